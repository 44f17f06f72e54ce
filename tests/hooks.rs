//! What the event hook may do: end the subscription that it hears of, or the whole broker.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "the crate's door to concurrency is for the crate; tests use std"
)]

mod support;

use std::{
    panic::resume_unwind,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use fanout::{
    Acker, Broker, EventKind, Message, Outcome, Received, Receiver, RecvError, RecvTimeoutError, Shutdown,
    SubscriptionConfig, SubscriptionRef, SubscriptionState, TryRecvError,
};
use support::{Gate, LIMIT, conserved, wait_until, watchdog};

fn at_most_once(capacity: usize) -> SubscriptionConfig {
    SubscriptionConfig::at_most_once(capacity)
}

fn at_least_once(capacity: usize) -> SubscriptionConfig {
    SubscriptionConfig::at_least_once(capacity).ack_timeout(Duration::MAX)
}

/// Where the hook finds the subscription to end.
type Slot = Arc<OnceLock<SubscriptionRef<u64>>>;

/// A broker whose hook ends the subscription in the slot at the first event for which `when` holds.
fn ended_by_its_hook(when: fn(&EventKind) -> bool) -> (Broker<u64>, Slot) {
    let slot = Slot::default();
    let its = slot.clone();
    let hook = move |event: &fanout::Event| {
        if when(&event.kind) {
            its.get().unwrap().unsubscribe();
        }
    };
    (Broker::builder().on_event(hook).build(), slot)
}

fn panics(_: &Message<u64>) -> Outcome {
    resume_unwind(Box::new("handler"))
}

#[test]
fn a_hook_that_ends_its_own_subscription_is_followed_by_no_call() {
    type Case = (fn(&EventKind) -> bool, SubscriptionConfig, fn(&Message<u64>) -> Outcome);
    let dropping: fn(&EventKind) -> bool = |kind| matches!(kind, EventKind::Dropping { .. });
    let panicked: fn(&EventKind) -> bool = |kind| matches!(kind, EventKind::HandlerPanicked { .. });
    let handled: fn(&Message<u64>) -> Outcome = |_| Outcome::Handled;
    watchdog(LIMIT, move || {
        let cases: [Case; 6] = [
            (dropping, at_most_once(2), handled),
            (dropping, at_least_once(2), handled),
            (panicked, at_most_once(8), panics),
            (panicked, at_least_once(8), panics),
            (|kind| matches!(kind, EventKind::DeadLettered { .. }), at_least_once(8), |_| Outcome::Reject),
            (
                |kind| matches!(kind, EventKind::StalledAtPendingLimit),
                at_least_once(8).max_pending(1),
                handled,
            ),
        ];
        for (at, (when, config, outcome)) in cases.into_iter().enumerate() {
            let (broker, slot) = ended_by_its_hook(when);
            let (gate, calls) = (Gate::new(), Arc::new(AtomicU64::new(0)));
            let handler = {
                let (gate, calls) = (gate.clone(), calls.clone());
                move |message: &Message<u64>| {
                    calls.fetch_add(1, SeqCst);
                    gate.pass();
                    outcome(message)
                }
            };
            let subscription = broker.subscribe("t", config, handler).unwrap();
            assert!(slot.set(subscription.handle()).is_ok());
            broker.publish("t", 0).unwrap();
            gate.wait_entered(1);
            for value in 1..6 {
                broker.publish("t", value).unwrap();
            }
            gate.open();
            wait_until(|| subscription.metrics().state == SubscriptionState::Ended);
            assert_eq!(calls.load(SeqCst), 1, "case {at}: called after its end");
            conserved(&subscription.metrics());
        }
    });
}

#[test]
fn a_hook_that_ends_its_own_subscription_as_a_stall_is_over_is_followed_by_no_call() {
    watchdog(LIMIT, || {
        let (broker, slot) = ended_by_its_hook(|kind| matches!(kind, EventKind::Recovered));
        let ackers = Arc::new(Mutex::new(Vec::<Acker>::new()));
        let handler = {
            let ackers = ackers.clone();
            move |message: &Message<u64>| ackers.lock().unwrap().push(message.acker())
        };
        let subscription = broker.subscribe("t", at_least_once(4).max_pending(1), handler).unwrap();
        assert!(slot.set(subscription.handle()).is_ok());
        for value in 0..3 {
            broker.publish("t", value).unwrap();
        }
        wait_until(|| subscription.metrics().state == SubscriptionState::StalledAtPendingLimit);
        let acker = ackers.lock().unwrap()[0].clone();
        acker.ack().unwrap();
        wait_until(|| subscription.metrics().state == SubscriptionState::Ended);
        let last = subscription.metrics();
        assert_eq!((last.delivered, last.acked, last.discarded), (1, 1, 2));
        conserved(&last);
    });
}

/// Each way to ask a receiver; `None` for "closed".
type Ask = fn(&mut Receiver<u64>) -> Option<Received<u64>>;

const ASKS: [Ask; 3] = [
    |receiver| match receiver.try_recv() {
        Ok(message) => Some(message),
        Err(error) => {
            assert_eq!(error, TryRecvError::Closed);
            None
        }
    },
    |receiver| match receiver.recv() {
        Ok(message) => Some(message),
        Err(error) => {
            assert_eq!(error, RecvError::Closed);
            None
        }
    },
    |receiver| match receiver.recv_timeout(LIMIT) {
        Ok(message) => Some(message),
        Err(error) => {
            assert_eq!(error, RecvTimeoutError::Closed);
            None
        }
    },
];

#[test]
fn a_receiver_that_its_hook_has_ended_is_closed_in_that_very_call() {
    watchdog(LIMIT, || {
        for ask in ASKS {
            for config in [at_most_once(1), at_least_once(1)] {
                let (broker, slot) = ended_by_its_hook(|kind| matches!(kind, EventKind::Dropping { .. }));
                let mut receiver = broker.receiver("t", config).unwrap();
                assert!(slot.set(receiver.handle()).is_ok());
                for value in 0..3 {
                    broker.publish("t", value).unwrap();
                }
                assert!(ask(&mut receiver).is_none());
                let last = receiver.metrics();
                assert_eq!((last.delivered, last.dropped, last.discarded), (0, 2, 1));
                conserved(&last);
            }
            let (broker, slot) = ended_by_its_hook(|kind| matches!(kind, EventKind::StalledAtPendingLimit));
            let mut receiver = broker.receiver("t", at_least_once(4).max_pending(1)).unwrap();
            assert!(slot.set(receiver.handle()).is_ok());
            for value in 0..3 {
                broker.publish("t", value).unwrap();
            }
            let _first = receiver.try_recv().unwrap();
            assert!(ask(&mut receiver).is_none(), "at the limit");
            conserved(&receiver.metrics());
        }
    });
}

#[test]
fn a_hook_inside_a_receivers_call_may_shut_the_broker_down() {
    watchdog(LIMIT, || {
        for ask in ASKS {
            for (how, left) in
                [(Shutdown::Drain { deadline: Duration::MAX }, Some(2)), (Shutdown::Discard, None)]
            {
                let slot = Arc::new(OnceLock::<fanout::WeakBroker<u64>>::new());
                let its = slot.clone();
                let hook = move |_: &fanout::Event| {
                    its.get().unwrap().upgrade().unwrap().shutdown(how);
                };
                let broker = Broker::<u64>::builder().on_event(hook).build();
                assert!(slot.set(broker.downgrade()).is_ok());
                let mut receiver = broker.receiver("t", at_most_once(1)).unwrap();
                for value in 0..3 {
                    broker.publish("t", value).unwrap();
                }
                assert_eq!(ask(&mut receiver).map(Received::into_payload), left);
                assert!(broker.publish("t", 3).is_err());
                assert_eq!(receiver.recv().unwrap_err(), RecvError::Closed);
                conserved(&receiver.metrics());
            }
        }
    });
}
