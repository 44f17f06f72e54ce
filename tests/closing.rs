//! Shutdown and drain: nothing is cut, nothing hangs, and everything that is left is counted.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "the crate's door to concurrency is for the crate; tests use std"
)]

mod support;

use std::{
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use fanout::{
    Broker, ManualClock, Message, PublishErrorKind, RecvError, RecvTimeoutError, RemoveTopicError, Shutdown,
    SubscribeError, Subscription, SubscriptionConfig, SubscriptionState, TopicError, TryPublishError,
    TryRecvError,
};
use support::{Gate, LIMIT, Ledger, Live, conserved, scale, wait_until, watchdog};

const DRAIN: Shutdown = Shutdown::Drain { deadline: LIMIT };

fn config(capacity: usize) -> SubscriptionConfig {
    SubscriptionConfig::at_most_once(capacity)
}

/// Subscribes to `t` a handler that notes the payload once it has passed the gate: then the call is complete.
fn gated(broker: &Broker<u64>, capacity: usize) -> (Subscription<u64>, Gate, Arc<Mutex<Vec<u64>>>) {
    let (gate, done) = (Gate::new(), Arc::new(Mutex::new(Vec::new())));
    let handler = {
        let (gate, done) = (gate.clone(), done.clone());
        move |message: &Message<u64>| {
            gate.pass();
            done.lock().unwrap().push(**message);
        }
    };
    (broker.subscribe("t", config(capacity), handler).unwrap(), gate, done)
}

/// Publishes 0 and waits until it is in hand, then fills the queue with `queued` more.
fn fill(broker: &Broker<u64>, gate: &Gate, queued: u64) {
    broker.publish("t", 0).unwrap();
    gate.wait_entered(1);
    for value in 1..=queued {
        broker.publish("t", value).unwrap();
    }
}

#[test]
fn closing_takes_no_slot_so_a_queue_of_one_keeps_its_message() {
    watchdog(LIMIT, || {
        let broker = Broker::new();
        let (subscription, gate, done) = gated(&broker, 1);
        let handle = subscription.handle();
        fill(&broker, &gate, 1);
        let drain = thread::spawn(move || subscription.drain(LIMIT));
        wait_until(|| broker.topic("t").unwrap().subscriptions() == 0);
        gate.open();
        let report = drain.join().unwrap();
        assert_eq!(*done.lock().unwrap(), [0, 1]);
        assert_eq!((report.discarded, report.still_running, report.metrics.dropped), (0, false, 0));
        conserved(&handle.metrics());
    });
}

#[test]
fn a_broker_that_drains_keeps_the_message_of_a_queue_of_one() {
    watchdog(LIMIT, || {
        let broker = Broker::new();
        let (subscription, gate, done) = gated(&broker, 1);
        fill(&broker, &gate, 1);
        let drain = thread::spawn({
            let broker = broker.clone();
            move || broker.shutdown(DRAIN)
        });
        wait_until(|| broker.topic("t").is_err());
        gate.open();
        let report = drain.join().unwrap();
        assert_eq!(*done.lock().unwrap(), [0, 1]);
        assert_eq!((report.subscriptions, report.discarded, report.still_running), (1, 0, 0));
        let last = subscription.metrics();
        assert_eq!((last.delivered, last.dropped, last.state), (2, 0, SubscriptionState::Ended));
        conserved(&last);
    });
}

#[test]
fn drain_delivers_what_is_queued_before_it_returns() {
    watchdog(LIMIT, || {
        let broker = Broker::new();
        let (subscription, gate, done) = gated(&broker, 10);
        fill(&broker, &gate, 10);
        let drain = thread::spawn(move || subscription.drain(LIMIT));
        wait_until(|| broker.topic("t").unwrap().subscriptions() == 0);
        assert_eq!(broker.publish("t", 99).unwrap().delivered_to, 0, "a drain takes nothing new");
        gate.open();
        let report = drain.join().unwrap();
        assert_eq!(*done.lock().unwrap(), (0..=10).collect::<Vec<_>>());
        assert_eq!((report.delivered, report.discarded, report.still_running), (10, 0, false));
        conserved(&report.metrics);
    });
}

#[test]
fn a_drain_can_be_stopped_by_unsubscribing() {
    watchdog(LIMIT, || {
        let broker = Broker::new();
        let (gate, calls) = (Gate::new(), Arc::new(AtomicU64::new(0)));
        let handler = {
            let (gate, calls) = (gate.clone(), calls.clone());
            move |message: &Message<u64>| {
                gate.pass();
                if calls.fetch_add(1, SeqCst) + 1 == 4 {
                    message.subscription().unsubscribe();
                }
            }
        };
        let subscription = broker.subscribe("t", config(9), handler).unwrap();
        fill(&broker, &gate, 9);
        let drain = thread::spawn(move || subscription.drain(LIMIT));
        wait_until(|| broker.topic("t").unwrap().subscriptions() == 0);
        gate.open();
        let report = drain.join().unwrap();
        assert_eq!(calls.load(SeqCst), 4);
        assert_eq!((report.metrics.delivered, report.metrics.discarded), (4, 6));
        assert_eq!(report.discarded, 6);
        conserved(&report.metrics);
    });
}

#[test]
fn a_drain_returns_at_its_deadline_with_a_call_still_running() {
    watchdog(LIMIT, || {
        let clock = ManualClock::new();
        let broker = Broker::builder().clock(clock.clone()).build();
        let (subscription, gate, done) = gated(&broker, 9);
        let handle = subscription.handle();
        fill(&broker, &gate, 9);
        let drain = thread::spawn(move || subscription.drain(Duration::from_millis(50)));
        // The drain takes its deadline from the clock at some moment after this loop begins.
        while !drain.is_finished() {
            clock.advance(Duration::from_millis(10));
            thread::yield_now();
        }
        let report = drain.join().unwrap();
        assert_eq!((report.discarded, report.still_running), (9, true));
        gate.open();
        wait_until(|| handle.metrics().state == SubscriptionState::Ended);
        assert_eq!(*done.lock().unwrap(), [0], "only the call that had begun");
        let last = handle.metrics();
        assert_eq!((last.delivered, last.discarded), (1, 9));
        conserved(&last);
    });
}

#[test]
fn a_drain_waits_for_its_deadline_on_the_brokers_clock_only() {
    watchdog(LIMIT, || {
        let clock = ManualClock::new();
        let broker = Broker::builder().clock(clock.clone()).build();
        let (subscription, gate, _) = gated(&broker, 2);
        fill(&broker, &gate, 2);
        // No time passes on that clock: the drain waits for the handler, however short its deadline is.
        let drain = thread::spawn(move || subscription.drain(Duration::from_nanos(1)));
        wait_until(|| broker.topic("t").unwrap().subscriptions() == 0);
        gate.open();
        let report = drain.join().unwrap();
        assert_eq!((report.metrics.delivered, report.discarded, report.still_running), (3, 0, false));
    });
}

#[test]
fn a_shutdown_returns_at_its_deadline_and_reports_what_is_left() {
    watchdog(LIMIT, || {
        let clock = ManualClock::new();
        let broker = Broker::builder().clock(clock.clone()).build();
        let (stuck, gate, _) = gated(&broker, 9);
        let free = broker.subscribe("other", config(4), |_| ()).unwrap();
        fill(&broker, &gate, 9);
        let shutdown = thread::spawn({
            let broker = broker.clone();
            move || broker.shutdown(Shutdown::Drain { deadline: Duration::from_millis(50) })
        });
        while !shutdown.is_finished() {
            clock.advance(Duration::from_millis(10));
            thread::yield_now();
        }
        let report = shutdown.join().unwrap();
        assert_eq!((report.subscriptions, report.discarded, report.still_running), (2, 9, 1));
        gate.open();
        wait_until(|| stuck.metrics().state == SubscriptionState::Ended);
        conserved(&stuck.metrics());
        conserved(&free.metrics());
    });
}

#[test]
fn a_shutdown_that_discards_counts_what_it_throws_away() {
    watchdog(LIMIT, || {
        let (broker, ledger, gate) = (Broker::<Live>::new(), Ledger::new(), Gate::new());
        let pass = gate.clone();
        let subscription = broker.subscribe("t", config(8), move |_| pass.pass()).unwrap();
        let idle = broker.receiver("t", config(2)).unwrap();
        broker.publish("t", ledger.live(0)).unwrap();
        gate.wait_entered(1);
        for id in 1..=5 {
            broker.publish("t", ledger.live(id)).unwrap();
        }
        conserved(&subscription.metrics());
        let shutdown = thread::spawn({
            let broker = broker.clone();
            move || broker.shutdown(Shutdown::Discard)
        });
        wait_until(|| broker.topic("t").is_err());
        gate.open();
        let report = shutdown.join().unwrap();
        assert_eq!((report.subscriptions, report.discarded), (2, 5 + 2));
        wait_until(|| subscription.metrics().state == SubscriptionState::Ended);
        for metrics in [subscription.metrics(), idle.metrics()] {
            conserved(&metrics);
            assert_eq!((metrics.depth, metrics.state), (0, SubscriptionState::Ended));
        }
        assert_eq!((subscription.metrics().delivered, subscription.metrics().discarded), (1, 5));
        wait_until(|| ledger.alive() == 0);
        ledger.assert_all_dropped();
    });
}

#[test]
fn after_shutdown_every_call_says_closed_however_often_it_is_made() {
    watchdog(LIMIT, || {
        let broker = Broker::<u64>::new();
        let topic = broker.topic("t").unwrap();
        let mut receiver = broker.receiver("t", config(1)).unwrap();
        let subscription = broker.subscribe("t", config(1), |_| ()).unwrap();
        let first = broker.shutdown(DRAIN);
        assert_eq!((first.discarded, first.still_running), (0, 0));
        for _ in 0..2 {
            assert!(matches!(broker.topic("t"), Err(TopicError::Closed)));
            assert!(matches!(broker.topic("new"), Err(TopicError::Closed)));
            assert!(matches!(broker.subscribe("t", config(1), |_| ()), Err(SubscribeError::Closed)));
            assert!(matches!(broker.receiver("t", config(1)), Err(SubscribeError::Closed)));
            for error in [broker.publish("t", 7).unwrap_err(), topic.publish(7).unwrap_err()] {
                assert_eq!(error.kind(), &PublishErrorKind::Closed);
                assert_eq!(error.into_payload(), 7);
            }
            assert!(matches!(topic.try_publish(7), Err(TryPublishError::Closed(7))));
            let error = topic.publish_batch([7, 8]).unwrap_err();
            assert_eq!(
                (error.kind, error.unsent, error.published.count),
                (PublishErrorKind::Closed, vec![7, 8], 0)
            );
            assert_eq!(receiver.try_recv().unwrap_err(), TryRecvError::Closed);
            assert_eq!(receiver.recv().unwrap_err(), RecvError::Closed);
            assert_eq!(receiver.recv_timeout(LIMIT).unwrap_err(), RecvTimeoutError::Closed);
            assert_eq!(receiver.iter().count(), 0);
            assert_eq!(broker.metrics().published, 0);
            assert_eq!(topic.metrics().published, 0);
            assert_eq!(subscription.metrics().state, SubscriptionState::Ended);
            assert!(!subscription.handle().unsubscribe(), "it has ended already");
            assert!(!matches!(broker.remove_topic("none"), Err(RemoveTopicError::InUse { .. })));
            broker.remove_unused_topics();
            for how in [DRAIN, Shutdown::Discard] {
                assert_eq!(broker.shutdown(how).discarded, 0);
            }
        }
        conserved(&subscription.unsubscribe());
    });
}

#[test]
fn shutdown_wakes_a_receiver_that_waits() {
    watchdog(LIMIT, || {
        for how in [DRAIN, Shutdown::Discard] {
            let broker = Broker::<u64>::new();
            let mut receiver = broker.receiver("t", config(1)).unwrap();
            let waiting = Arc::new(AtomicBool::new(false));
            let thread = thread::spawn({
                let waiting = waiting.clone();
                move || {
                    waiting.store(true, SeqCst);
                    receiver.recv().unwrap_err()
                }
            });
            wait_until(|| waiting.load(SeqCst));
            broker.shutdown(how);
            assert_eq!(thread.join().unwrap(), RecvError::Closed);
        }
    });
}

#[test]
fn a_receiver_gets_what_is_queued_from_a_broker_that_drains() {
    watchdog(LIMIT, || {
        let broker = Broker::new();
        let mut receiver = broker.receiver("t", config(4)).unwrap();
        for value in 0..3_u64 {
            broker.publish("t", value).unwrap();
        }
        let shutdown = thread::spawn({
            let broker = broker.clone();
            move || broker.shutdown(DRAIN)
        });
        wait_until(|| broker.topic("t").is_err());
        let got: Vec<_> = receiver.iter().map(fanout::Received::into_payload).collect();
        assert_eq!(got, [0, 1, 2]);
        let report = shutdown.join().unwrap();
        assert_eq!((report.discarded, report.still_running), (0, 0));
        assert_eq!(receiver.try_recv().unwrap_err(), TryRecvError::Closed);
        conserved(&receiver.metrics());
    });
}

#[test]
fn publishers_that_loop_get_closed_and_return() {
    watchdog(LIMIT, || {
        for how in [DRAIN, Shutdown::Discard] {
            let broker = Broker::new();
            let subscriptions: Vec<_> =
                (0..2).map(|_| broker.subscribe("t", config(2), |_| ()).unwrap()).collect();
            let publishers: Vec<_> = (0..3)
                .map(|_| {
                    let topic = broker.topic("t").unwrap();
                    thread::spawn(move || {
                        (0_u64..).map_while(|value| topic.publish(value).ok()).count() as u64
                    })
                })
                .collect();
            wait_until(|| broker.metrics().published > 100);
            let report = broker.shutdown(how);
            let published: u64 = publishers.into_iter().map(|publisher| publisher.join().unwrap()).sum();
            assert_eq!((report.subscriptions, report.still_running), (2, 0));
            assert_eq!(broker.metrics().published, published);
            for subscription in subscriptions {
                let last = subscription.unsubscribe();
                assert!(last.enqueued <= published);
                if matches!(how, Shutdown::Drain { .. }) {
                    assert_eq!(last.enqueued, published, "each message that was accepted reached each ring");
                }
                conserved(&last);
            }
        }
    });
}

#[test]
fn a_handler_may_shut_its_own_broker_down() {
    watchdog(LIMIT, || {
        for how in [DRAIN, Shutdown::Discard] {
            let broker = Broker::<u64>::new();
            let weak = broker.downgrade();
            let calls = Arc::new(AtomicU64::new(0));
            let subscription = broker
                .subscribe("t", config(8), {
                    let calls = calls.clone();
                    move |_| {
                        if let Some(broker) = weak.upgrade() {
                            broker.shutdown(how);
                        }
                        calls.fetch_add(1, SeqCst);
                    }
                })
                .unwrap();
            broker.publish("t", 0).unwrap();
            wait_until(|| subscription.metrics().state == SubscriptionState::Ended);
            assert_eq!(calls.load(SeqCst), 1);
            assert!(broker.publish("t", 1).is_err());
            conserved(&subscription.metrics());
        }
    });
}

#[test]
fn a_drain_refuses_what_handlers_publish() {
    watchdog(LIMIT, || {
        let broker = Broker::<u64>::new();
        let (gate, weak, refused) = (Gate::new(), broker.downgrade(), Arc::new(AtomicU64::new(0)));
        let handler = {
            let (gate, refused) = (gate.clone(), refused.clone());
            move |message: &Message<u64>| {
                gate.pass();
                if weak.upgrade().is_none_or(|broker| broker.publish("t", **message + 100).is_err()) {
                    refused.fetch_add(1, SeqCst);
                }
            }
        };
        let subscription = broker.subscribe("t", config(8), handler).unwrap();
        fill(&broker, &gate, 3);
        let shutdown = thread::spawn({
            let broker = broker.clone();
            move || broker.shutdown(DRAIN)
        });
        wait_until(|| broker.topic("t").is_err());
        gate.open();
        let report = shutdown.join().unwrap();
        assert_eq!((report.discarded, report.still_running), (0, 0));
        assert_eq!(refused.load(SeqCst), 4);
        assert_eq!(subscription.metrics().enqueued, 4);
        conserved(&subscription.metrics());
    });
}

#[test]
fn a_flood_cannot_keep_a_worker_from_stopping() {
    watchdog(LIMIT, || {
        let broker = Broker::new();
        let (subscription, gate, done) = gated(&broker, 4);
        let stop = Arc::new(AtomicBool::new(false));
        let flood = thread::spawn({
            let (topic, stop) = (broker.topic("t").unwrap(), stop.clone());
            move || {
                while !stop.load(SeqCst) {
                    topic.publish(1).unwrap();
                }
            }
        });
        gate.wait_entered(1);
        wait_until(|| subscription.metrics().dropped > 100 && subscription.metrics().depth == 4);
        assert!(subscription.handle().unsubscribe(), "it marks the subscription and does not wait");
        gate.open();
        let last = subscription.unsubscribe();
        assert_eq!(done.lock().unwrap().len(), 1, "no call after the one that was running");
        assert_eq!((last.delivered, last.discarded, last.depth), (1, 4, 0));
        conserved(&last);
        stop.store(true, SeqCst);
        flood.join().unwrap();
    });
}

#[test]
fn a_shutdown_at_any_moment_ends_every_worker() {
    watchdog(LIMIT * 5, || {
        for round in 0..scale(100_000) {
            let broker = Broker::<u64>::new();
            let subscription = broker.subscribe("t", config(1), |_| ()).unwrap();
            if round % 3 == 0 {
                broker.publish("t", round).unwrap();
            }
            (0..round % 32 * 32).for_each(|_| std::hint::spin_loop());
            let how = if round % 2 == 0 { DRAIN } else { Shutdown::Discard };
            let report = broker.shutdown(how);
            assert_eq!((report.subscriptions, report.still_running), (1, 0));
            assert_eq!(subscription.metrics().state, SubscriptionState::Ended);
            conserved(&subscription.unsubscribe());
        }
    });
}

#[test]
fn shutdowns_and_drains_at_once_all_return() {
    watchdog(LIMIT, || {
        for _ in 0..20 {
            let broker = Broker::<u64>::new();
            let subscription = broker.subscribe("t", config(4), |_| thread::yield_now()).unwrap();
            let handle = subscription.handle();
            for value in 0..4 {
                broker.publish("t", value).unwrap();
            }
            let start = Arc::new(Barrier::new(3));
            let enders = [DRAIN, Shutdown::Discard].map(|how| {
                let (broker, start) = (broker.clone(), start.clone());
                thread::spawn(move || {
                    start.wait();
                    broker.shutdown(how);
                })
            });
            start.wait();
            let report = subscription.drain(LIMIT);
            assert!(!report.still_running);
            enders.into_iter().for_each(|ender| ender.join().unwrap());
            assert_eq!(handle.metrics().state, SubscriptionState::Ended);
            conserved(&handle.metrics());
        }
    });
}

#[test]
fn after_shutdown_closed_comes_before_any_fault_of_the_arguments() {
    let broker = Broker::<u64>::new();
    broker.shutdown(Shutdown::Discard);
    let error = broker.publish("a..b", 7).unwrap_err();
    assert_eq!(*error.kind(), PublishErrorKind::Closed);
    assert_eq!(error.into_payload(), 7);
    assert!(matches!(broker.topic("a..b"), Err(TopicError::Closed)));
    let (once, least) = (SubscriptionConfig::at_most_once, SubscriptionConfig::at_least_once);
    for (filter, config) in [("", once(1)), ("t", once(0)), ("t", least(1).dead_letter("t"))] {
        assert!(matches!(broker.subscribe(filter, config.clone(), |_| ()), Err(SubscribeError::Closed)));
        assert!(matches!(broker.receiver(filter, config), Err(SubscribeError::Closed)));
    }
}
