//! Idle costs nothing: no CPU time, no wake-ups, no allocations. Each test has the process to itself.

#![cfg(target_os = "linux")]
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "the crate's door to concurrency is for the crate; tests use std"
)]

mod support;

use std::{thread, time::Duration};

use fanout::{Broker, RecvError, RecvTimeoutError, Shutdown, SubscriptionConfig};
use support::{
    Gate, LIMIT,
    allocations::{self, Counting},
    conserved, full_run, process, serial, wait_until, watchdog,
};

#[global_allocator]
static COUNTING: Counting = Counting;

fn config(capacity: usize) -> SubscriptionConfig {
    SubscriptionConfig::at_most_once(capacity)
}

/// How long an idle process is watched; the sleep is what is measured, it waits for nothing.
fn window() -> Duration {
    Duration::from_secs(if full_run() { 10 } else { 1 })
}

/// Fails unless every thread but this one, all of which wait, stays at rest for the whole window.
#[track_caller]
fn assert_at_rest() {
    let window = window();
    wait_until(process::others_sleep);
    let switches = process::context_switches_of_others();
    let cpu = process::cpu_time_of_others();
    let allocated = allocations::during(|| thread::sleep(window));
    let cpu = process::cpu_time_of_others() - cpu;
    let switches = process::context_switches_of_others() - switches;
    assert_eq!(allocated, 0, "allocations");
    assert!(cpu < window / 1_000, "{cpu:?} of CPU time in {window:?}");
    assert!(switches < 5, "{switches} context switches");
}

#[test]
fn subscriptions_that_wait_for_their_first_message() {
    let _turn = serial();
    watchdog(LIMIT, || {
        let broker = Broker::<u64>::new();
        let subscriptions: Vec<_> =
            (0..20).map(|_| broker.subscribe("t", config(8), |_| ()).unwrap()).collect();
        assert_at_rest();
        subscriptions.into_iter().for_each(|subscription| conserved(&subscription.unsubscribe()));
    });
}

#[test]
fn subscriptions_that_have_handled_messages() {
    let _turn = serial();
    watchdog(LIMIT, || {
        let broker = Broker::<u64>::new();
        let subscriptions: Vec<_> =
            (0..20).map(|_| broker.subscribe("t", config(8), |_| ()).unwrap()).collect();
        for value in 0..100 {
            broker.publish("t", value).unwrap();
        }
        wait_until(|| subscriptions.iter().all(|subscription| subscription.metrics().depth == 0));
        assert_at_rest();
        subscriptions.into_iter().for_each(|subscription| conserved(&subscription.unsubscribe()));
    });
}

#[test]
fn workers_that_wait_for_acks_and_for_the_time_of_a_redelivery() {
    let _turn = serial();
    watchdog(LIMIT, || {
        let broker = Broker::<u64>::new();
        let minute = Duration::from_secs(60);
        let config = || SubscriptionConfig::at_least_once(8).max_pending(2).ack_timeout(minute);
        let threads = process::threads();
        let subscriptions: Vec<_> = (0..20)
            .map(|nth| {
                let config = if nth % 2 == 0 { config().max_pending(1) } else { config() };
                broker
                    .subscribe("t", config, move |message| {
                        if nth % 4 == 3 {
                            message.nack(Some(minute)).unwrap();
                        }
                    })
                    .unwrap()
            })
            .collect();
        broker.publish("t", 1).unwrap();
        wait_until(|| subscriptions.iter().all(|subscription| subscription.metrics().pending == 1));
        assert_eq!(process::threads() - threads, 20, "whoever has something due waits for it himself");
        assert_at_rest();
        subscriptions.into_iter().for_each(|subscription| conserved(&subscription.unsubscribe()));
    });
}

#[test]
fn receivers_that_wait_with_and_without_a_limit() {
    let _turn = serial();
    watchdog(LIMIT, || {
        let broker = Broker::<u64>::new();
        let waiting: Vec<_> = (0..6)
            .map(|nth| {
                let mut receiver = broker.receiver("t", config(1)).unwrap();
                thread::spawn(move || match nth % 3 {
                    0 => assert_eq!(receiver.recv().unwrap_err(), RecvError::Closed),
                    1 => assert_eq!(receiver.recv_timeout(LIMIT).unwrap_err(), RecvTimeoutError::Closed),
                    _ => assert_eq!(
                        receiver.recv_timeout(Duration::MAX).unwrap_err(),
                        RecvTimeoutError::Closed
                    ),
                })
            })
            .collect();
        assert_at_rest();
        broker.shutdown(Shutdown::Discard);
        waiting.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_shutdown_and_an_unsubscribe_that_wait_for_a_handler() {
    let _turn = serial();
    watchdog(LIMIT, || {
        let broker = Broker::<u64>::new();
        let gate = Gate::new();
        let mut subscriptions = (0..3).map(|_| {
            let pass = gate.clone();
            broker.subscribe("t", config(1), move |_| pass.pass()).unwrap()
        });
        let (one, two, three) =
            (subscriptions.next().unwrap(), subscriptions.next().unwrap(), subscriptions.next().unwrap());
        broker.publish("t", 0).unwrap();
        gate.wait_entered(3);
        let waiting = [
            thread::spawn(move || conserved(&one.unsubscribe())),
            thread::spawn(move || conserved(&two.drain(LIMIT).metrics)),
            thread::spawn({
                let broker = broker.clone();
                move || assert_eq!(broker.shutdown(Shutdown::Drain { deadline: LIMIT }).still_running, 0)
            }),
        ];
        wait_until(|| broker.topic("t").is_err());
        assert_at_rest();
        gate.open();
        waiting.into_iter().for_each(|thread| thread.join().unwrap());
        conserved(&three.metrics());
    });
}

#[test]
fn workers_are_not_woken_by_publishes_to_other_topics() {
    let _turn = serial();
    watchdog(LIMIT, || {
        let broker = Broker::<u64>::new();
        let subscriptions: Vec<_> =
            (0..20).map(|_| broker.subscribe("quiet", config(8), |_| ()).unwrap()).collect();
        let mut other = broker.receiver("busy", config(8)).unwrap();
        let topic = broker.topic("busy").unwrap();
        wait_until(process::others_sleep);
        let sleeping = process::context_switches_of_others;
        let before = sleeping();
        for value in 0..10_000 {
            topic.publish(value).unwrap();
        }
        assert!(sleeping() - before < 10, "the workers of a quiet topic sleep on");
        assert_eq!(other.try_recv().unwrap().seq(), 9_992);
        subscriptions.into_iter().for_each(|subscription| conserved(&subscription.unsubscribe()));
    });
}
