//! Panics in users' code are contained and counted, and take nothing else down.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "the crate's door to concurrency is for the crate; tests use std"
)]

mod support;

use std::{
    collections::HashSet,
    panic::{AssertUnwindSafe, catch_unwind, panic_any},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread::{self, ThreadId},
};

use fanout::{Broker, EventKind, Message, Outcome, SubscriptionConfig};
use support::{LIMIT, Ledger, Live, conserved, wait_until, watchdog};

fn config(capacity: usize) -> SubscriptionConfig {
    SubscriptionConfig::at_most_once(capacity)
}

#[test]
fn a_handler_that_panics_keeps_its_thread_and_its_siblings() {
    watchdog(LIMIT, || {
        let (broker, ledger) = (Broker::new(), Ledger::new());
        let threads: Arc<Mutex<HashSet<ThreadId>>> = Arc::default();
        let shaky = broker
            .subscribe("t", config(64), {
                let threads = threads.clone();
                move |message: &Message<Live>| {
                    threads.lock().unwrap().insert(thread::current().id());
                    assert!(!message.id.is_multiple_of(3), "every third one");
                }
            })
            .unwrap();
        let steady = broker.subscribe("t", config(64), |_| ()).unwrap();
        for id in 1..=30 {
            assert_eq!(broker.publish("t", ledger.live(id)).unwrap().delivered_to, 2);
        }
        wait_until(|| shaky.metrics().delivered == 30 && steady.metrics().delivered == 30);
        let (shaky, steady) = (shaky.unsubscribe(), steady.unsubscribe());
        assert_eq!((shaky.delivered, shaky.panicked, shaky.failed), (30, 10, 0));
        assert_eq!((steady.delivered, steady.panicked), (30, 0));
        conserved(&shaky);
        conserved(&steady);
        assert_eq!(threads.lock().unwrap().len(), 1);
        ledger.assert_all_dropped();
    });
}

#[test]
fn a_panic_reaches_the_hook_with_the_subscriptions_name_and_the_message() {
    watchdog(LIMIT, || {
        let events = Arc::new(Mutex::new(Vec::new()));
        let broker = Broker::<u64>::builder()
            .on_event({
                let events = events.clone();
                move |event| events.lock().unwrap().push(event.clone())
            })
            .build();
        let ids = Arc::new(Mutex::new(Vec::new()));
        let first = broker.subscribe("t", config(8), |_| ()).unwrap();
        let second = broker
            .subscribe("t", config(8).name("second"), {
                let ids = ids.clone();
                move |message: &Message<u64>| {
                    ids.lock().unwrap().push(message.id());
                    panic!("no luck with {}", **message)
                }
            })
            .unwrap();
        let third = broker.subscribe("t", config(8), |_| ()).unwrap();
        for value in 0..5 {
            broker.publish("t", value).unwrap();
        }
        wait_until(|| {
            [&first, &second, &third].iter().all(|subscription| subscription.metrics().delivered == 5)
        });
        let id = second.handle().id();
        for subscription in [first, second, third] {
            conserved(&subscription.unsubscribe());
        }
        let events = events.lock().unwrap();
        let panics: Vec<_> = events
            .iter()
            .filter_map(|event| match &event.kind {
                EventKind::HandlerPanicked { message, panic, .. } => Some((event, message, panic)),
                _ => None,
            })
            .collect();
        assert!(!panics.is_empty(), "{events:?}");
        for (event, message, panic) in panics {
            assert_eq!((event.subscription, &*event.name), (id, "second"));
            assert!(ids.lock().unwrap().contains(message));
            assert!(panic.contains("no luck with"), "{panic:?}");
        }
    });
}

#[test]
fn outcomes_of_at_most_once_are_counted_apart_and_end_the_message() {
    watchdog(LIMIT, || {
        let (broker, ledger) = (Broker::new(), Ledger::new());
        let subscription = broker
            .subscribe("t", config(8), |message: &Message<Live>| match message.id {
                0 => Ok(Outcome::Handled),
                1 => Ok(Outcome::Failed),
                2 => Ok(Outcome::Reject),
                3 => Err("an error is a failure"),
                _ => panic!("as bad as it gets"),
            })
            .unwrap();
        for id in 0..5 {
            broker.publish("t", ledger.live(id)).unwrap();
        }
        wait_until(|| subscription.metrics().delivered == 5);
        let last = subscription.unsubscribe();
        assert_eq!((last.failed, last.rejected, last.panicked), (2, 1, 1));
        assert_eq!((last.redelivered, last.pending, last.acked, last.dead), (0, 0, 0, 0));
        conserved(&last);
        ledger.assert_all_dropped();
    });
}

/// Panics again when the panic that carries it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("and again");
    }
}

#[test]
fn a_panic_whose_payload_panics_when_dropped_does_not_kill_the_worker() {
    watchdog(LIMIT, || {
        let (broker, ledger) = (Broker::new(), Ledger::new());
        let subscription = broker
            .subscribe("t", config(8), |message: &Message<Live>| {
                if message.id.is_multiple_of(2) {
                    panic_any(Bomb);
                }
            })
            .unwrap();
        for id in 0..6 {
            broker.publish("t", ledger.live(id)).unwrap();
        }
        wait_until(|| subscription.metrics().delivered == 6);
        let last = subscription.unsubscribe();
        assert_eq!((last.delivered, last.panicked, last.depth), (6, 3, 0));
        conserved(&last);
        ledger.assert_all_dropped();
    });
}

/// A payload that panics where its test says so. The switch is shared by all clones.
struct Touchy {
    clone: Arc<AtomicBool>,
    drop: Arc<AtomicBool>,
}

impl Clone for Touchy {
    fn clone(&self) -> Self {
        assert!(!self.clone.swap(false, SeqCst), "a clone that panics");
        Touchy { clone: self.clone.clone(), drop: self.drop.clone() }
    }
}

impl Drop for Touchy {
    fn drop(&mut self) {
        assert!(!self.drop.swap(false, SeqCst), "a drop that panics");
    }
}

#[test]
fn after_a_panic_in_any_users_code_every_call_still_works() {
    watchdog(LIMIT, || {
        let hooks = Arc::new(AtomicU64::new(0));
        let broker = Broker::<Touchy>::builder()
            .on_event({
                let hooks = hooks.clone();
                move |_| {
                    hooks.fetch_add(1, SeqCst);
                    panic!("a hook that panics")
                }
            })
            .build();
        let (clone, drop_switch): (Arc<AtomicBool>, Arc<AtomicBool>) = Default::default();
        let payload = || Touchy { clone: clone.clone(), drop: drop_switch.clone() };
        let panics = Arc::new(AtomicBool::new(false));
        let handler = |panics: Arc<AtomicBool>| {
            move |_: &Message<Touchy>| assert!(!panics.swap(false, SeqCst), "a handler that panics")
        };
        let one = broker.subscribe("t", config(4), handler(panics.clone())).unwrap();
        let two = broker.subscribe("t", config(4), handler(panics.clone())).unwrap();
        let topic = broker.topic("t").unwrap();
        let mut sent = 0;
        let mut settled = |broker: &Broker<Touchy>| {
            assert_eq!(broker.publish("t", payload()).unwrap().seq, sent, "no number is lost");
            sent += 1;
            wait_until(|| [&one, &two].iter().all(|subscription| subscription.metrics().delivered == sent));
        };

        settled(&broker);
        panics.store(true, SeqCst);
        settled(&broker);
        settled(&broker);
        wait_until(|| hooks.load(SeqCst) > 0);

        clone.store(true, SeqCst);
        assert!(
            catch_unwind(AssertUnwindSafe(|| topic.publish(payload()))).is_err(),
            "it unwinds to the publisher"
        );
        settled(&broker);

        drop_switch.store(true, SeqCst);
        settled(&broker);
        wait_until(|| one.metrics().payload_panics + two.metrics().payload_panics == 1);
        settled(&broker);

        // A hook that panics as the thread starts: whatever becomes of that subscription, the others stay.
        drop(broker.subscribe("t", config(1).on_thread_start(|| panic!("a start that panics")), |_| ()));
        settled(&broker);

        assert_eq!(topic.subscriptions(), 2);
        assert_eq!(broker.topics(), ["t"]);
        assert!(broker.topic("another").is_ok());
        assert!(broker.receiver("t", config(1)).unwrap().try_recv().is_err());
        assert_eq!(broker.publish("another", payload()).unwrap().delivered_to, 0);
        assert_eq!(broker.remove_unused_topics(), 1);
        let (one, two) = (one.unsubscribe(), two.unsubscribe());
        assert_eq!(one.panicked + two.panicked, 1);
        conserved(&one);
        conserved(&two);
    });
}

#[test]
fn publishing_while_unwinding_works() {
    struct Goodbye(Broker<u64>);
    impl Drop for Goodbye {
        fn drop(&mut self) {
            self.0.publish("t", 1).unwrap();
        }
    }
    watchdog(LIMIT, || {
        let broker = Broker::new();
        let mut receiver = broker.receiver("t", config(2)).unwrap();
        let goodbye = Goodbye(broker.clone());
        let unwound = catch_unwind(AssertUnwindSafe(move || {
            let _goodbye = goodbye;
            panic!("unwinding");
        }));
        assert!(unwound.is_err());
        assert_eq!(*receiver.try_recv().unwrap(), 1);
        conserved(&receiver.metrics());
    });
}
