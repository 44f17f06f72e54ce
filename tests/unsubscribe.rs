//! The end of a subscription: from outside, from its own handler, by dropping the handle, and what outlives it.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "the crate's door to concurrency is for the crate; tests use std"
)]

mod support;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use fanout::{Broker, Message, SubscriptionConfig, SubscriptionState};
use support::{Gate, LIMIT, Ledger, conserved, scale, wait_until, watchdog};

fn config(capacity: usize) -> SubscriptionConfig {
    SubscriptionConfig::at_most_once(capacity)
}

#[test]
fn unsubscribing_while_publishers_overrun_the_ring_breaks_nothing() {
    watchdog(LIMIT * 10, || {
        let broker = Broker::new();
        let stop = Arc::new(AtomicBool::new(false));
        let publishers: Vec<_> = (0..2)
            .map(|_| {
                let (topic, stop) = (broker.topic("t").unwrap(), stop.clone());
                thread::spawn(move || {
                    let mut dropped = 0;
                    while !stop.load(SeqCst) {
                        dropped += topic.publish(0_u64).unwrap().dropped as u64;
                    }
                    dropped
                })
            })
            .collect();
        let mut lost = 0;
        for _ in 0..scale(100_000) {
            let last = broker.subscribe("t", config(1), |_| ()).unwrap().unsubscribe();
            conserved(&last);
            assert_eq!((last.depth, last.in_hand, last.state), (0, 0, SubscriptionState::Ended));
            assert!(last.discarded <= 1, "{} discarded of a queue of one", last.discarded);
            lost += last.dropped;
        }
        stop.store(true, SeqCst);
        let dropped: u64 = publishers.into_iter().map(|publisher| publisher.join().unwrap()).sum();
        assert_eq!(dropped, lost, "what publishers saw is what subscriptions counted");
    });
}

#[test]
fn every_payload_is_dropped_once_while_three_threads_come_publish_and_go() {
    watchdog(LIMIT * 10, || {
        let (broker, ledger) = (Broker::new(), Ledger::new());
        let threads: Vec<_> = (0..3)
            .map(|thread| {
                let (broker, ledger) = (broker.clone(), ledger.clone());
                thread::spawn(move || {
                    for round in 0..scale(1_000_000) / 3 {
                        // A receiver costs no thread, so most rounds use one; both end in the same way.
                        if round % 8 == thread {
                            let subscription = broker.subscribe("t", config(1), |_| ()).unwrap();
                            broker.publish("t", ledger.live(round)).unwrap();
                            conserved(&subscription.unsubscribe());
                        } else {
                            let mut receiver = broker.receiver("t", config(2)).unwrap();
                            broker.publish("t", ledger.live(round)).unwrap();
                            assert!(receiver.try_recv().is_ok());
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        ledger.assert_all_dropped();
        assert!(broker.metrics().subscriptions.is_empty());
    });
}

#[test]
fn after_unsubscribe_has_returned_the_handler_never_runs() {
    watchdog(LIMIT * 10, || {
        let broker = Broker::new();
        let (stop, late) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let storm = thread::spawn({
            let (topic, stop) = (broker.topic("t").unwrap(), stop.clone());
            move || {
                while !stop.load(SeqCst) {
                    topic.publish(0_u64).unwrap();
                }
            }
        });
        for _ in 0..scale(100_000) {
            let ended = Arc::new(AtomicBool::new(false));
            let captured = Arc::new(());
            let handler = {
                let (ended, late, captured) = (ended.clone(), late.clone(), captured.clone());
                move |_: &Message<u64>| {
                    let _ = &captured;
                    if ended.load(SeqCst) {
                        late.fetch_add(1, SeqCst);
                    }
                }
            };
            let last = broker.subscribe("t", config(2), handler).unwrap().unsubscribe();
            ended.store(true, SeqCst);
            assert_eq!(Arc::strong_count(&captured), 1, "its captures are gone, too");
            conserved(&last);
        }
        stop.store(true, SeqCst);
        storm.join().unwrap();
        assert_eq!(late.load(SeqCst), 0);
    });
}

#[test]
fn a_handler_that_unsubscribes_itself_is_not_called_again() {
    watchdog(LIMIT, || {
        let (broker, ledger, gate) = (Broker::new(), Ledger::new(), Gate::new());
        let calls = Arc::new(AtomicU64::new(0));
        let handler = {
            let (gate, calls) = (gate.clone(), calls.clone());
            move |message: &Message<support::Live>| {
                gate.pass();
                if calls.fetch_add(1, SeqCst) + 1 == 3 {
                    assert!(message.subscription().unsubscribe(), "this call ends it");
                    assert!(!message.subscription().unsubscribe(), "the next one finds it ended");
                }
            }
        };
        let subscription = broker.subscribe("t", config(10), handler).unwrap();
        let handle = subscription.handle();
        for id in 0..10 {
            broker.publish("t", ledger.live(id)).unwrap();
        }
        gate.open();
        wait_until(|| handle.metrics().state == SubscriptionState::Ended);
        assert!(!handle.unsubscribe(), "already");
        let last = subscription.unsubscribe();
        assert_eq!((calls.load(SeqCst), last.delivered, last.discarded, last.panicked), (3, 3, 7, 0));
        conserved(&last);
        ledger.assert_all_dropped();
        assert_eq!(broker.topic("t").unwrap().subscriptions(), 0);
    });
}

#[test]
fn handlers_that_unsubscribe_themselves_give_back_their_captures_each_time() {
    watchdog(LIMIT * 10, || {
        let (broker, ledger) = (Broker::<u64>::new(), Ledger::new());
        let topic = broker.topic("t").unwrap();
        let rounds = scale(100_000);
        for round in 0..rounds {
            let captured = ledger.live(round);
            let subscription = broker
                .subscribe("t", config(4), move |message: &Message<u64>| {
                    assert_eq!(captured.id, **message);
                    message.subscription().unsubscribe();
                })
                .unwrap();
            topic.publish(round).unwrap();
            wait_until(|| topic.subscriptions() == 0);
            let last = subscription.unsubscribe();
            assert_eq!((last.delivered, last.panicked), (1, 0));
            conserved(&last);
        }
        assert_eq!((ledger.made(), ledger.cloned()), (rounds, 0));
        ledger.assert_all_dropped();
        assert!(broker.metrics().subscriptions.is_empty());
    });
}

#[test]
fn ending_one_subscription_leaves_its_sibling_alone_and_repeats_say_so() {
    watchdog(LIMIT, || {
        let (broker, other) = (Broker::<u64>::new(), Broker::<u64>::new());
        let one = broker.subscribe("t", config(4), |_| ()).unwrap();
        let sibling = broker.subscribe("t", config(4), |_| ()).unwrap();
        let stranger = other.subscribe("t", config(4), |_| ()).unwrap();
        assert_ne!(one.handle().id(), sibling.handle().id());
        assert_eq!([(); 3].map(|()| one.handle().unsubscribe()), [true, false, false]);
        assert!(stranger.handle().unsubscribe());
        assert_eq!(broker.publish("t", 1).unwrap().delivered_to, 1);
        wait_until(|| sibling.metrics().delivered == 1);
        for subscription in [one, sibling, stranger] {
            conserved(&subscription.unsubscribe());
        }
    });
}

#[test]
fn unsubscribe_timeout_gives_a_handle_while_the_last_call_runs() {
    watchdog(LIMIT, || {
        let (broker, gate, captured) = (Broker::<u64>::new(), Gate::new(), Arc::new(()));
        let handler = {
            let (gate, captured) = (gate.clone(), captured.clone());
            move |_: &Message<u64>| {
                let _ = &captured;
                gate.pass();
            }
        };
        let subscription = broker.subscribe("t", config(4), handler).unwrap();
        for value in 0..3 {
            broker.publish("t", value).unwrap();
        }
        gate.wait_entered(1);
        let handle = subscription.unsubscribe_timeout(Duration::from_millis(10)).unwrap_err();
        assert_eq!(broker.topic("t").unwrap().subscriptions(), 0);
        assert!(matches!(
            handle.metrics().state,
            SubscriptionState::InHandler { .. } | SubscriptionState::Ended
        ));
        gate.open();
        wait_until(|| {
            handle.metrics().state == SubscriptionState::Ended && Arc::strong_count(&captured) == 1
        });
        let last = handle.metrics();
        assert_eq!((last.delivered, last.discarded), (1, 2));
        conserved(&last);
    });
}

#[test]
fn unsubscribe_timeout_waits_for_a_call_that_ends_in_time() {
    watchdog(LIMIT, || {
        let broker = Broker::<u64>::new();
        let subscription = broker.subscribe("t", config(4), |_| ()).unwrap();
        broker.publish("t", 0).unwrap();
        let last = subscription.unsubscribe_timeout(LIMIT).unwrap();
        assert_eq!(last.state, SubscriptionState::Ended);
        conserved(&last);
        let idle = broker.subscribe("t", config(4), |_| ()).unwrap();
        // A limit too great to be added to any clock.
        assert!(idle.unsubscribe_timeout(Duration::MAX).is_ok());
    });
}

#[test]
fn dropping_the_handle_unsubscribes_without_waiting() {
    watchdog(LIMIT, || {
        let (broker, gate) = (Broker::<u64>::new(), Gate::new());
        let pass = gate.clone();
        let subscription = broker.subscribe("t", config(4), move |_| pass.pass()).unwrap();
        let handle = subscription.handle();
        for value in 0..3 {
            broker.publish("t", value).unwrap();
        }
        gate.wait_entered(1);
        drop(subscription);
        assert_eq!(broker.publish("t", 9).unwrap().delivered_to, 0);
        assert!(!handle.unsubscribe(), "dropping was what ended it");
        gate.open();
        wait_until(|| handle.metrics().state == SubscriptionState::Ended);
        assert_eq!((handle.metrics().delivered, handle.metrics().discarded), (1, 2));
        conserved(&handle.metrics());
    });
}

#[test]
fn a_detached_subscription_lives_until_the_last_handle_is_gone_and_its_queue_is_empty() {
    watchdog(LIMIT, || {
        let (broker, gate, captured) = (Broker::<u64>::new(), Gate::new(), Arc::new(()));
        let handler = {
            let (gate, captured) = (gate.clone(), captured.clone());
            move |_: &Message<u64>| {
                let _ = &captured;
                gate.pass();
            }
        };
        let handle = broker.subscribe("t", config(8), handler).unwrap().detach();
        let topic = broker.topic("t").unwrap();
        drop(broker);
        for value in 0..5 {
            assert_eq!(topic.publish(value).unwrap().delivered_to, 1, "a topic's handle keeps it");
        }
        gate.wait_entered(1);
        drop(topic);
        gate.open();
        wait_until(|| {
            handle.metrics().state == SubscriptionState::Ended && Arc::strong_count(&captured) == 1
        });
        let last = handle.metrics();
        assert_eq!((last.delivered, last.discarded), (5, 0));
        conserved(&last);
    });
}

#[test]
fn an_idle_detached_subscription_ends_with_the_last_handle() {
    watchdog(LIMIT, || {
        let broker = Broker::<u64>::new();
        let captured = Arc::new(());
        let inner = captured.clone();
        let handle = broker.subscribe("t", config(1), move |_| drop(inner.clone())).unwrap().detach();
        let copy = broker.clone();
        drop(broker);
        assert_ne!(handle.metrics().state, SubscriptionState::Ended);
        drop(copy);
        wait_until(|| {
            handle.metrics().state == SubscriptionState::Ended && Arc::strong_count(&captured) == 1
        });
    });
}

#[test]
fn a_detached_subscription_ends_by_its_handle_or_by_shutdown() {
    watchdog(LIMIT, || {
        let broker = Broker::<u64>::new();
        let by_handle = broker.subscribe("t", config(1), |_| ()).unwrap().detach();
        let by_shutdown = broker.subscribe("t", config(1), |_| ()).unwrap().detach();
        assert!(by_handle.unsubscribe());
        assert_eq!(broker.publish("t", 0).unwrap().delivered_to, 1);
        assert_eq!(broker.shutdown(fanout::Shutdown::Drain { deadline: LIMIT }).still_running, 0);
        for handle in [by_handle, by_shutdown] {
            wait_until(|| handle.metrics().state == SubscriptionState::Ended);
            conserved(&handle.metrics());
        }
    });
}

#[test]
fn on_a_workers_thread_unsubscribing_another_does_not_wait() {
    watchdog(LIMIT, || {
        let broker = Broker::<u64>::new();
        let gate = Gate::new();
        let pass = gate.clone();
        let busy = broker.subscribe("busy", config(4), move |_| pass.pass()).unwrap();
        let handle = busy.handle();
        for value in 0..3 {
            broker.publish("busy", value).unwrap();
        }
        gate.wait_entered(1);

        let (busy, off) = (Mutex::new(Some(busy)), Arc::new(AtomicBool::new(false)));
        let ender = broker
            .subscribe("end", config(1), {
                let (off, topic) = (off.clone(), broker.topic("busy").unwrap());
                move |_| {
                    busy.lock().unwrap().take().unwrap().unsubscribe();
                    off.store(topic.subscriptions() == 0, SeqCst);
                }
            })
            .unwrap();
        broker.publish("end", 0).unwrap();
        wait_until(|| off.load(SeqCst));
        gate.open();
        wait_until(|| handle.metrics().state == SubscriptionState::Ended);
        assert_eq!((gate.entered(), handle.metrics().discarded), (1, 2), "it stopped at the next boundary");
        conserved(&handle.metrics());
        conserved(&ender.unsubscribe());
    });
}

#[test]
fn two_handlers_that_unsubscribe_each_other_do_not_deadlock() {
    watchdog(LIMIT, || {
        let broker = Broker::<u64>::new();
        let gate = Gate::new();
        let slots: [Arc<Mutex<Option<fanout::Subscription<u64>>>>; 2] = Default::default();
        let handles: Vec<_> = (0..2)
            .map(|own| {
                let (gate, victim) = (gate.clone(), slots[1 - own].clone());
                let subscription = broker
                    .subscribe("t", config(2), move |_| {
                        gate.pass();
                        let victim = victim.lock().unwrap().take();
                        drop(victim.map(fanout::Subscription::unsubscribe));
                    })
                    .unwrap();
                let handle = subscription.handle();
                *slots[own].lock().unwrap() = Some(subscription);
                handle
            })
            .collect();
        broker.publish("t", 0).unwrap();
        gate.wait_entered(2);
        gate.open();
        for handle in handles {
            wait_until(|| handle.metrics().state == SubscriptionState::Ended);
            assert_eq!(handle.metrics().delivered, 1);
            conserved(&handle.metrics());
        }
    });
}

/// Does something when a value of it is dropped, wherever that happens. Clones are harmless.
struct WhenDropped(Option<Box<dyn FnOnce() + Send>>);

impl Clone for WhenDropped {
    fn clone(&self) -> Self {
        WhenDropped(None)
    }
}

impl Drop for WhenDropped {
    fn drop(&mut self) {
        if let Some(action) = self.0.take() {
            action();
        }
    }
}

#[test]
fn a_payload_may_unsubscribe_its_own_subscription_as_it_is_dropped_by_the_worker() {
    watchdog(LIMIT, || {
        let broker = Broker::new();
        let gate = Gate::new();
        let pass = gate.clone();
        let subscription = broker.subscribe("t", config(4), move |_| pass.pass()).unwrap();
        let handle = subscription.handle();
        let action = Box::new(move || drop(subscription.unsubscribe()));
        broker.publish("t", WhenDropped(Some(action))).unwrap();
        broker.publish("t", WhenDropped(None)).unwrap();
        gate.open();
        wait_until(|| handle.metrics().state == SubscriptionState::Ended);
        assert_eq!((handle.metrics().delivered, handle.metrics().discarded), (1, 1));
        conserved(&handle.metrics());
    });
}

#[test]
fn a_payload_may_unsubscribe_as_it_is_evicted_by_a_publisher() {
    watchdog(LIMIT, || {
        let broker = Broker::new();
        let gate = Gate::new();
        let pass = gate.clone();
        let subscription = broker.subscribe("t", config(1), move |_| pass.pass()).unwrap();
        let (handle, off) = (subscription.handle(), Arc::new(AtomicBool::new(false)));
        broker.publish("t", WhenDropped(None)).unwrap();
        gate.wait_entered(1);
        let action = {
            let (handle, off) = (handle.clone(), off.clone());
            Box::new(move || off.store(handle.unsubscribe(), SeqCst))
        };
        broker.publish("t", WhenDropped(Some(action))).unwrap();
        let published = broker.publish("t", WhenDropped(None)).unwrap();
        assert_eq!((published.delivered_to, published.dropped), (1, 1));
        assert!(off.load(SeqCst), "it ran on this thread, and ended the subscription");
        gate.open();
        let last = subscription.unsubscribe();
        assert_eq!((last.delivered, last.dropped, last.discarded), (1, 1, 1));
        conserved(&last);
    });
}
