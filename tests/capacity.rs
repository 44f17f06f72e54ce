//! Capacity is exact, the oldest makes way, and what cannot be had is refused.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "the crate's door to concurrency is for the crate; tests use std"
)]

mod support;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use fanout::{Broker, SubscribeError, Subscription, SubscriptionConfig, TryRecvError};
use support::{Gate, LIMIT, Ledger, conserved, scale, wait_until, watchdog, within_bounds};

/// A subscription whose handler notes each payload and then stops at the gate.
fn gated(broker: &Broker<u64>, capacity: usize) -> (Subscription<u64>, Gate, Arc<Mutex<Vec<u64>>>) {
    let (gate, seen) = (Gate::new(), Arc::new(Mutex::new(Vec::new())));
    let handler = {
        let (gate, seen) = (gate.clone(), seen.clone());
        move |message: &fanout::Message<u64>| {
            seen.lock().unwrap().push(**message);
            gate.pass();
        }
    };
    let subscription = broker.subscribe("t", SubscriptionConfig::at_most_once(capacity), handler).unwrap();
    (subscription, gate, seen)
}

#[test]
fn a_ring_holds_exactly_its_capacity_and_then_drops_one_for_each_push() {
    watchdog(LIMIT, || {
        for capacity in [1, 2, 3, 5, 6, 7, 9, 10, 15, 16, 17, 100] {
            let broker = Broker::new();
            let (subscription, gate, seen) = gated(&broker, capacity);
            let topic = broker.topic("t").unwrap();
            topic.publish(0).unwrap();
            gate.wait_entered(1);

            for value in 1..=capacity as u64 {
                let published = topic.publish(value).unwrap();
                assert_eq!((published.delivered_to, published.dropped), (1, 0));
            }
            let full = subscription.metrics();
            assert_eq!((full.capacity, full.depth, full.dropped, full.in_hand), (capacity, capacity, 0, 1));
            conserved(&full);

            let published = topic.publish(capacity as u64 + 1).unwrap();
            assert_eq!((published.delivered_to, published.dropped), (1, 1));
            let over = subscription.metrics();
            assert_eq!((over.depth, over.dropped), (capacity, 1));
            conserved(&over);

            gate.open();
            wait_until(|| subscription.metrics().delivered == capacity as u64 + 1);
            let last = subscription.unsubscribe();
            conserved(&last);
            let survivors: Vec<_> = [0].into_iter().chain(2..=capacity as u64 + 1).collect();
            assert_eq!(*seen.lock().unwrap(), survivors, "capacity {capacity}");
        }
    });
}

#[test]
fn depth_counts_up_to_the_capacity_wherever_in_the_ring_it_starts() {
    watchdog(LIMIT, || {
        for capacity in [1, 2, 3, 5, 8] {
            for start in 0..3 * capacity {
                let broker = Broker::new();
                let (subscription, gate, _) = gated(&broker, capacity);
                let topic = broker.topic("t").unwrap();
                for drained in 0..start {
                    gate.let_one();
                    topic.publish(0).unwrap();
                    wait_until(|| subscription.metrics().delivered == drained as u64 + 1);
                }
                gate.wait_entered(start);
                topic.publish(0).unwrap();
                gate.wait_entered(start + 1);
                for filled in 1..=2 * capacity + 1 {
                    topic.publish(0).unwrap();
                    let metrics = subscription.metrics();
                    assert_eq!(metrics.depth, filled.min(capacity), "capacity {capacity}, start {start}");
                    assert_eq!(metrics.dropped, filled.saturating_sub(capacity) as u64);
                    conserved(&metrics);
                }
                gate.open();
                conserved(&subscription.unsubscribe());
            }
        }
    });
}

#[test]
fn a_receiver_counts_its_depth_the_same_way() {
    watchdog(LIMIT, || {
        for capacity in [1, 2, 3, 5, 8] {
            for start in 0..3 * capacity {
                let broker = Broker::new();
                let mut receiver = broker.receiver("t", SubscriptionConfig::at_most_once(capacity)).unwrap();
                let topic = broker.topic("t").unwrap();
                for value in 0..start as u64 {
                    topic.publish(value).unwrap();
                    assert_eq!(receiver.recv().unwrap().into_payload(), value);
                }
                for value in 1..=2 * capacity + 1 {
                    topic.publish(value as u64).unwrap();
                    assert_eq!(receiver.metrics().depth, value.min(capacity));
                }
                for value in capacity + 2..=2 * capacity + 1 {
                    assert_eq!(receiver.try_recv().unwrap().into_payload(), value as u64);
                }
                assert_eq!(receiver.try_recv().unwrap_err(), TryRecvError::Empty);
                let metrics = receiver.metrics();
                assert_eq!((metrics.depth, metrics.dropped), (0, capacity as u64 + 1));
                conserved(&metrics);
            }
        }
    });
}

#[test]
fn a_ring_of_any_size_takes_a_push_when_full() {
    for capacity in [127, 128, 129, 255, 256, 257, 32_767, 32_768, 32_769, 65_535, 65_536, 65_537] {
        watchdog(LIMIT, move || {
            let broker = Broker::new();
            let (subscription, gate, seen) = gated(&broker, capacity);
            let topic = broker.topic("t").unwrap();
            topic.publish(0).unwrap();
            gate.wait_entered(1);
            let dropped: usize =
                (1..=capacity as u64 + 1).map(|value| topic.publish(value).unwrap().dropped).sum();
            let metrics = subscription.metrics();
            assert_eq!((dropped, metrics.dropped, metrics.depth), (1, 1, capacity));
            conserved(&metrics);
            gate.open();
            wait_until(|| subscription.metrics().delivered == capacity as u64 + 1);
            assert_eq!(seen.lock().unwrap()[1], 2, "the oldest one made way");
            conserved(&subscription.unsubscribe());
        });
    }
}

#[test]
fn counters_stay_true_while_a_ring_of_two_overflows() {
    watchdog(LIMIT * 5, || {
        let messages = scale(1_000_000);
        let broker = Broker::new();
        let calls = Arc::new(AtomicU64::new(0));
        let handler = {
            let calls = calls.clone();
            move |_: &fanout::Message<u64>| {
                calls.fetch_add(1, Relaxed);
                thread::yield_now();
            }
        };
        let subscription = broker.subscribe("t", SubscriptionConfig::at_most_once(2), handler).unwrap();
        let (published, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let sampler = {
            let (subscription, published, done) = (subscription.handle(), published.clone(), done.clone());
            thread::spawn(move || {
                let mut last = subscription.metrics();
                while !done.load(Relaxed) {
                    let metrics = subscription.metrics();
                    // One publish may have begun and not been counted yet.
                    let begun = published.load(Relaxed) + 1;
                    within_bounds(&metrics);
                    assert!(metrics.dropped <= begun, "{} dropped of {begun}", metrics.dropped);
                    assert!(metrics.dropped >= last.dropped && metrics.delivered >= last.delivered);
                    assert!(metrics.enqueued >= last.enqueued);
                    last = metrics;
                    thread::yield_now();
                }
            })
        };
        let topic = broker.topic("t").unwrap();
        let mut dropped = 0;
        for value in 0..messages {
            dropped += topic.publish(value).unwrap().dropped as u64;
            published.fetch_add(1, Relaxed);
        }
        done.store(true, Relaxed);
        sampler.join().unwrap();
        wait_until(|| subscription.metrics().depth == 0);
        let last = subscription.unsubscribe();
        conserved(&last);
        assert_eq!((last.enqueued, last.dropped, last.discarded), (messages, dropped, 0));
        assert_eq!(last.delivered, calls.load(Relaxed));
    });
}

#[test]
fn a_capacity_that_cannot_be_allocated_is_an_error() {
    fn refuse<T: Clone + Send + 'static>(capacity: usize) {
        let broker = Broker::<T>::new();
        let refused = [
            broker.subscribe("t", SubscriptionConfig::at_most_once(capacity), |_| ()).unwrap_err(),
            broker.receiver("t", SubscriptionConfig::at_most_once(capacity)).unwrap_err(),
        ];
        for error in refused {
            let SubscribeError::CapacityTooLarge { option, requested, .. } = error else {
                panic!("capacity {capacity}: {error:?}");
            };
            assert_eq!((option, requested), ("queue_capacity", capacity));
        }
        assert!(broker.topics().is_empty() && broker.metrics().subscriptions.is_empty());
    }
    let most = isize::MAX as usize;
    for capacity in [usize::MAX, usize::MAX - 1, usize::MAX / 2, usize::MAX / 2 + 1] {
        refuse::<u64>(capacity);
        refuse::<()>(capacity);
        refuse::<[u8; 4096]>(capacity);
    }
    refuse::<u64>(most / size_of::<u64>() + 1);
    refuse::<[u8; 4096]>(most / 4096 + 1);
    // It can be computed, but no machine has so much.
    #[cfg(target_pointer_width = "64")]
    refuse::<u64>(1 << 52);
}

#[test]
fn a_capacity_of_zero_is_an_error_and_leaves_nothing_behind() {
    let broker = Broker::<u64>::new();
    let started = Arc::new(AtomicBool::new(false));
    let config = {
        let started = started.clone();
        SubscriptionConfig::at_most_once(0).on_thread_start(move || started.store(true, Relaxed))
    };
    let refused = [
        broker.subscribe("t", config, |_| ()).unwrap_err(),
        broker.receiver("t", SubscriptionConfig::at_most_once(0)).unwrap_err(),
    ];
    for error in refused {
        assert!(error.to_string().contains("queue_capacity"), "{error}");
        assert!(matches!(error, SubscribeError::InvalidOption { option: "queue_capacity", .. }), "{error:?}");
    }
    assert!(broker.topics().is_empty() && broker.metrics().subscriptions.is_empty());
    assert!(!started.load(Relaxed));
}

#[test]
fn options_of_the_other_mode_are_errors_that_name_them() {
    use std::time::Duration;
    let config = || SubscriptionConfig::at_most_once(1);
    let table = [
        ("ack_policy", config().ack_policy(fanout::AckPolicy::Manual)),
        ("ack_timeout", config().ack_timeout(Duration::from_secs(1))),
        ("max_pending", config().max_pending(1)),
        ("backoff", config().backoff(Duration::ZERO, Duration::ZERO)),
        ("max_deliveries", config().max_deliveries(1)),
        ("dead_letter", config().dead_letter("dead")),
    ];
    let broker = Broker::<u64>::new();
    for (name, config) in table {
        match broker.subscribe("t", config, |_| ()) {
            Err(SubscribeError::InvalidOption { option, .. }) => assert_eq!(option, name),
            other => panic!("{name}: {other:?}"),
        }
    }
    assert!(broker.topics().is_empty(), "{:?}", broker.topics());
}

#[test]
fn evicted_messages_are_given_back_at_once() {
    watchdog(LIMIT, || {
        let (broker, ledger, gate) = (Broker::new(), Ledger::new(), Gate::new());
        let pass = gate.clone();
        let subscription =
            broker.subscribe("t", SubscriptionConfig::at_most_once(3), move |_| pass.pass()).unwrap();
        broker.publish("t", ledger.live(0)).unwrap();
        gate.wait_entered(1);
        for id in 1..=1_000 {
            broker.publish("t", ledger.live(id)).unwrap();
            assert!(ledger.alive() <= 3 + 1, "{} alive after publish {id}", ledger.alive());
        }
        gate.open();
        let last = subscription.unsubscribe();
        assert_eq!(last.dropped, 997);
        conserved(&last);
        ledger.assert_all_dropped();
    });
}

#[test]
fn a_subscription_that_lost_messages_goes_on_and_shows_the_loss() {
    watchdog(LIMIT, || {
        let broker = Broker::new();
        let mut receiver = broker.receiver("t", SubscriptionConfig::at_most_once(2)).unwrap();
        let topic = broker.topic("t").unwrap();
        for round in 1..=1_000 {
            for value in 0..5_u64 {
                topic.publish(value).unwrap();
            }
            let first = receiver.try_recv().unwrap();
            assert_eq!((*first, first.dropped_before()), (3, 3));
            let second = receiver.try_recv().unwrap();
            assert_eq!((*second, second.dropped_before()), (4, 0));
            assert_eq!(receiver.metrics().dropped, 3 * round);
        }
        conserved(&receiver.metrics());
    });
}
