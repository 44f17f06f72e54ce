//! Drains that are begun on a worker's thread, where nobody may wait for them: they keep their order and their deadline.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "the crate's door to concurrency is for the crate; tests use std"
)]

mod support;

use std::{
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use fanout::{
    Broker, ManualClock, Message, Outcome, Shutdown, Subscription, SubscriptionConfig, SubscriptionState,
    TryRecvError,
};
use support::{Gate, LIMIT, conserved, wait_until, watchdog};

const SECOND: Duration = Duration::from_secs(1);

fn at_most_once(capacity: usize) -> SubscriptionConfig {
    SubscriptionConfig::at_most_once(capacity)
}

fn at_least_once(capacity: usize) -> SubscriptionConfig {
    SubscriptionConfig::at_least_once(capacity).ack_timeout(Duration::MAX)
}

/// Runs `act` in a handler, and returns when that call is over.
#[must_use = "it is to live on"]
fn on_a_worker<R: Send + 'static>(
    broker: &Broker<u64>,
    act: impl FnOnce() -> R + Send + 'static,
) -> (R, Subscription<u64>) {
    let mut act = Some(act);
    let (send, result) = mpsc::channel();
    let handler = move |_: &Message<u64>| send.send(act.take().expect("called once")()).unwrap();
    let subscription = broker.subscribe("actor", at_most_once(1), handler).unwrap();
    broker.publish("actor", 0).unwrap();
    (result.recv_timeout(LIMIT).unwrap(), subscription)
}

/// A shutdown by a handler, of itself or another, of a source that gives up all of its messages: all arrive in the topic of dead letters.
fn dead_letters_pass(by_the_source: bool, target_first: bool) {
    const DRAIN: Shutdown = Shutdown::Drain { deadline: Duration::MAX };
    let (broker, gate) = (Broker::<u64>::new(), Gate::new());
    let buried = Arc::new(Mutex::new(Vec::new()));
    let subscribe_target = || {
        let buried = buried.clone();
        broker.subscribe("dead", at_most_once(8), move |m| buried.lock().unwrap().push(**m)).unwrap()
    };
    let first = target_first.then(subscribe_target);
    let handler = {
        let (weak, gate) = (broker.downgrade(), gate.clone());
        move |message: &Message<u64>| {
            if by_the_source && **message == 0 {
                weak.upgrade().unwrap().shutdown(DRAIN);
            }
            gate.pass();
            Outcome::Failed
        }
    };
    let config = at_least_once(8).max_deliveries(1).dead_letter("dead");
    let source = broker.subscribe("t", config, handler).unwrap();
    let target = first.unwrap_or_else(subscribe_target);
    broker.topic("t").unwrap().publish_batch(0..3).unwrap();
    gate.wait_entered(1);
    let actor = (!by_the_source).then(|| {
        let weak = broker.downgrade();
        on_a_worker(&broker, move || weak.upgrade().unwrap().shutdown(DRAIN))
    });
    assert!(broker.topic("t").is_err(), "it is shut down");
    gate.open();
    let ended = |subscription: &Subscription<u64>| subscription.metrics().state == SubscriptionState::Ended;
    wait_until(|| ended(&source) && ended(&target));
    assert_eq!(*buried.lock().unwrap(), [0, 1, 2]);
    let (source, target) = (source.metrics(), target.metrics());
    assert_eq!((source.dead, source.dead_letter_failures, source.discarded), (3, 0, 0));
    assert_eq!((target.delivered, target.discarded), (3, 0));
    conserved(&source);
    conserved(&target);
    drop(actor);
}

#[test]
fn dead_letters_pass_in_a_drain_that_a_handler_began() {
    watchdog(LIMIT, || {
        for (by_the_source, target_first) in [(true, true), (true, false), (false, true), (false, false)] {
            dead_letters_pass(by_the_source, target_first);
        }
    });
}

#[test]
fn receivers_that_nobody_calls_end_at_the_deadline_of_a_drain_that_a_handler_began() {
    watchdog(LIMIT, || {
        for (config, left) in [(at_most_once(8), 2), (at_least_once(8), 3)] {
            let clock = ManualClock::new();
            let broker = Broker::<u64>::builder().clock(clock.clone()).build();
            let mut receiver = broker.receiver("t", config).unwrap();
            for value in 0..3 {
                broker.publish("t", value).unwrap();
            }
            let taken = receiver.try_recv().unwrap();
            let weak = broker.downgrade();
            let (report, _actor) = on_a_worker(&broker, move || {
                weak.upgrade().unwrap().shutdown(Shutdown::Drain { deadline: SECOND })
            });
            assert_eq!((report.subscriptions, report.still_running, report.discarded), (2, 2, 0));
            clock.advance(SECOND - Duration::from_nanos(1));
            assert_eq!(receiver.metrics().discarded, 0, "not before its deadline");
            clock.advance(Duration::from_nanos(1));
            wait_until(|| receiver.metrics().state == SubscriptionState::Ended);
            let last = receiver.metrics();
            assert_eq!((last.delivered, last.discarded, last.pending), (1, left, 0));
            conserved(&last);
            assert_eq!(receiver.try_recv().unwrap_err(), TryRecvError::Closed);
            drop(taken);
        }
    });
}

#[test]
fn at_its_deadline_a_drain_discards_what_is_queued_though_a_call_still_runs() {
    type Drain = fn(Broker<u64>, Subscription<u64>) -> Option<Subscription<u64>>;
    let one: Drain = |_, subscription| {
        assert!(subscription.drain(SECOND).still_running);
        None
    };
    let all: Drain = |broker, subscription| {
        broker.shutdown(Shutdown::Drain { deadline: SECOND });
        Some(subscription)
    };
    watchdog(LIMIT, move || {
        for (drain, config, unsettled) in [
            (one, at_most_once(8), 0),
            (one, at_least_once(8), 1),
            (all, at_most_once(8), 0),
            (all, at_least_once(8), 1),
        ] {
            let (clock, gate) = (ManualClock::new(), Gate::new());
            let broker = Broker::<u64>::builder().clock(clock.clone()).build();
            let pass = gate.clone();
            let subscription = broker.subscribe("t", config, move |_| pass.pass()).unwrap();
            for value in 0..4 {
                broker.publish("t", value).unwrap();
            }
            gate.wait_entered(1);
            let (handle, its) = (subscription.handle(), broker.downgrade());
            let (_kept, _actor) = on_a_worker(&broker, move || drain(its.upgrade().unwrap(), subscription));
            assert_eq!((handle.metrics().depth, handle.metrics().discarded), (3, 0));
            clock.advance(SECOND);
            wait_until(|| handle.metrics().depth == 0);
            wait_until(|| handle.metrics().discarded == 3);
            assert_ne!(handle.metrics().state, SubscriptionState::Ended, "its call still runs");
            gate.open();
            wait_until(|| handle.metrics().state == SubscriptionState::Ended);
            let last = handle.metrics();
            assert_eq!((last.delivered, last.discarded), (1, 3 + unsettled));
            conserved(&last);
        }
    });
}
