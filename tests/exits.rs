//! A process ends, whatever becomes of its brokers: each part runs as a process of its own.

#![cfg(target_os = "linux")]
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "the crate's door to concurrency is for the crate; tests use std"
)]

mod support;

use std::{
    cell::RefCell,
    mem,
    os::unix::process::CommandExt,
    process::Command,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use fanout::{Broker, Subscription, SubscriptionConfig, SubscriptionRef};
use support::{Gate, LIMIT, process, serial, wait_until};

/// A broker with a worker that sleeps, one that hangs in its handler, and a detached one.
struct Everything {
    broker: Broker<u64>,
    _subscriptions: [Subscription<u64>; 2],
    _detached: SubscriptionRef<u64>,
}

fn everything() -> Everything {
    let broker = Broker::new();
    let gate = Gate::new();
    let pass = gate.clone();
    let subscribe = || broker.subscribe("t", SubscriptionConfig::at_most_once(2), |_| ()).unwrap();
    let hangs = broker.subscribe("t", SubscriptionConfig::at_most_once(2), move |_| pass.pass()).unwrap();
    let (sleeps, detached) = (subscribe(), subscribe().detach());
    for value in 0..4 {
        broker.publish("t", value).unwrap();
    }
    gate.wait_entered(1);
    wait_until(|| sleeps.metrics().depth == 0);
    Everything { broker, _subscriptions: [sleeps, hangs], _detached: detached }
}

/// Runs this test again, to play the part; it has to end by itself, in time and well.
fn ends(test: &str) {
    let start = Instant::now();
    let status = process::run(process::play(test, "child"), LIMIT).unwrap();
    assert!(status.is_some_and(|status| status.success()), "{test}: {status:?}");
    assert!(start.elapsed() < Duration::from_secs(2), "{test}: {:?}", start.elapsed());
}

#[test]
fn with_a_broker_in_a_thread_local() {
    thread_local! {
        static KEPT: RefCell<Option<Everything>> = const { RefCell::new(None) };
    }
    let _turn = serial();
    match process::part() {
        None => ends("with_a_broker_in_a_thread_local"),
        Some(_) => KEPT.set(Some(everything())),
    }
}

#[test]
fn with_a_broker_in_a_static() {
    static KEPT: OnceLock<Everything> = OnceLock::new();
    let _turn = serial();
    match process::part() {
        None => ends("with_a_broker_in_a_static"),
        Some(_) => assert_eq!(KEPT.get_or_init(everything).broker.topics(), ["t"]),
    }
}

#[test]
fn with_a_broker_that_is_leaked() {
    let _turn = serial();
    match process::part() {
        None => ends("with_a_broker_that_is_leaked"),
        Some(_) => mem::forget(everything()),
    }
}

#[test]
fn with_a_broker_that_is_dropped_while_a_handler_hangs() {
    let _turn = serial();
    match process::part() {
        None => ends("with_a_broker_that_is_dropped_while_a_handler_hangs"),
        Some(_) => drop(everything()),
    }
}

#[test]
fn with_a_broker_that_its_own_handler_keeps() {
    let _turn = serial();
    match process::part() {
        None => ends("with_a_broker_that_its_own_handler_keeps"),
        Some(_) => {
            let broker = Broker::<u64>::new();
            let kept = Arc::new(broker.clone());
            let handler = move |_: &fanout::Message<u64>| assert!(!kept.topics().is_empty());
            drop(broker.subscribe("t", SubscriptionConfig::at_most_once(2), handler).unwrap().detach());
            broker.publish("t", 0).unwrap();
        }
    }
}

#[test]
fn a_forked_child_may_drop_its_handles_though_no_worker_runs_there() {
    let _turn = serial();
    let mut kept = Some(everything());
    let gone = kept.take().map(|kept| (kept.broker.clone(), kept));
    let mut gone = std::sync::Mutex::new(gone);
    let mut command = Command::new("true");
    let drop_all = move || {
        drop(gone.get_mut().unwrap().take());
        Ok(())
    };
    // SAFETY: nobody publishes at this moment, so no lock of the crate is held by a thread that the child lacks;
    // the C library makes its allocator usable in a forked child.
    unsafe { command.pre_exec(drop_all) };
    let start = Instant::now();
    let status = process::run(command, LIMIT).unwrap();
    assert!(status.is_some_and(|status| status.success()), "{status:?}");
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}
