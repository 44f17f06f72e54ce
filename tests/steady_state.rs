//! Publishing and delivering allocate nothing once they are warm, and what is removed gives its memory back. Each test
//! has the process to itself.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "the crate's door to concurrency is for the crate; tests use std"
)]

mod support;

use std::{
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

use fanout::{Broker, Receiver, SubscriptionConfig};
use support::{
    LIMIT,
    allocations::{self, Counting},
    conserved, scale, serial, wait_until, watchdog,
};

#[global_allocator]
static COUNTING: Counting = Counting;

fn config(capacity: usize) -> SubscriptionConfig {
    SubscriptionConfig::at_most_once(capacity)
}

/// How often `step` allocates in its second thousand runs; the first warms up.
fn when_warm(mut step: impl FnMut()) -> u64 {
    (0..1_000).for_each(|_| step());
    allocations::during(|| (0..1_000).for_each(|_| step()))
}

fn receivers<T: Clone + Send + 'static>(
    broker: &Broker<T>,
    count: usize,
    capacity: usize,
) -> Vec<Receiver<T>> {
    (0..count).map(|_| broker.receiver("t", config(capacity)).unwrap()).collect()
}

#[test]
fn publishing_allocates_nothing_whatever_the_number_of_subscriptions() {
    let _turn = serial();
    watchdog(LIMIT, || {
        for listeners in [0, 1, 2, 5, 40, 200] {
            let broker = Broker::<u64>::new();
            let topic = broker.topic("t").unwrap();
            let mut receivers = receivers(&broker, listeners, 4);
            // The rings overflow, then there is room.
            let allocated = when_warm(|| {
                for value in 0..6 {
                    topic.publish(value).unwrap();
                }
                broker.publish("t", 6).unwrap();
                topic.try_publish(7).unwrap();
                for receiver in &mut receivers {
                    black_box(receiver.try_recv().unwrap());
                    black_box(receiver.recv().unwrap());
                }
            });
            assert_eq!(allocated, 0, "{listeners} listeners");
            receivers.iter().for_each(|receiver| conserved(&receiver.metrics()));
        }
    });
}

#[test]
fn payloads_that_need_a_drop_cost_their_clones_only() {
    let _turn = serial();
    watchdog(LIMIT, || {
        for listeners in [1, 2, 5, 40, 200] {
            let broker = Broker::<Box<u64>>::new();
            let topic = broker.topic("t").unwrap();
            let receivers = receivers(&broker, listeners, 2);
            let allocated = when_warm(|| _ = topic.publish(Box::new(1)).unwrap());
            assert_eq!(
                allocated,
                1_000 * listeners as u64,
                "the box itself, and a clone for each other listener"
            );
            receivers.iter().for_each(|receiver| conserved(&receiver.metrics()));
        }
    });
}

#[test]
fn a_batch_allocates_once_at_most_whatever_its_length() {
    let _turn = serial();
    watchdog(LIMIT, || {
        for listeners in [0, 1, 3, 40] {
            let broker = Broker::<u64>::new();
            let topic = broker.topic("t").unwrap();
            let receivers = receivers(&broker, listeners, 50);
            let allocated = when_warm(|| _ = topic.publish_batch(0..100).unwrap());
            assert!(
                allocated <= 1_000,
                "{listeners} listeners: {allocated}, where each batch may keep what it has pulled"
            );
            receivers.iter().for_each(|receiver| conserved(&receiver.metrics()));
        }
    });
}

#[test]
fn workers_deliver_without_allocating_asleep_or_awake() {
    let _turn = serial();
    watchdog(LIMIT, || {
        let broker = Broker::<u64>::new();
        let topic = broker.topic("t").unwrap();
        let sum = Arc::new(AtomicU64::new(0));
        let subscriptions: Vec<_> = (0..2)
            .map(|_| {
                let sum = sum.clone();
                let handler = move |message: &fanout::Message<u64>| {
                    sum.fetch_add(**message, SeqCst);
                };
                broker.subscribe("t", config(8), handler).unwrap()
            })
            .collect();
        let mut expected = 0;
        let allocated = when_warm(|| {
            // Three at once, and then none until all are handled: the workers doze off now and then.
            for _ in 0..3 {
                topic.publish(1).unwrap();
            }
            expected += 6;
            while sum.load(SeqCst) < expected {
                std::thread::yield_now();
            }
        });
        assert_eq!(allocated, 0);
        for subscription in subscriptions {
            let last = subscription.unsubscribe();
            assert_eq!((last.delivered, last.dropped), (6_000, 0));
            conserved(&last);
        }
    });
}

/// Runs `cycle` five times: what is allocated after the later ones is what was after the second.
#[track_caller]
fn assert_flat(mut cycle: impl FnMut()) {
    let mut after = Vec::new();
    for _ in 0..5 {
        cycle();
        after.push(allocations::live_bytes());
    }
    let grown = after[4] - after[1];
    assert!(grown < 16 << 10, "{grown} bytes more after three cycles: {after:?}");
}

#[test]
fn topics_that_are_removed_give_their_memory_back() {
    let _turn = serial();
    watchdog(LIMIT * 10, || {
        let broker = Broker::<u64>::new();
        let names = scale(1_000_000) / 10;
        let mut next = 0;
        assert_flat(|| {
            for name in next..next + names {
                let name = format!("topic.{name}");
                let receiver = broker.receiver(&name, config(4)).unwrap();
                broker.publish(&name, 0).unwrap();
                drop(receiver);
                broker.publish(&format!("{name}.unheard"), 0).unwrap();
            }
            next += names;
            assert_eq!(broker.remove_unused_topics() as u64, 2 * names);
            assert!(broker.topics().is_empty());
        });
    });
}

#[test]
fn subscriptions_that_end_give_their_memory_back() {
    let _turn = serial();
    watchdog(LIMIT * 10, || {
        let broker = Broker::<u64>::new();
        assert_flat(|| {
            for _ in 0..scale(10_000) {
                let subscription = broker.subscribe("t", config(64), |_| ()).unwrap();
                drop(broker.receiver("t", config(64)).unwrap());
                broker.publish("t", 0).unwrap();
                conserved(&subscription.unsubscribe());
            }
            let dropped = broker.subscribe("t", config(64), |_| ()).unwrap();
            let handle = dropped.handle();
            drop(dropped);
            wait_until(|| handle.metrics().state == fanout::SubscriptionState::Ended);
        });
    });
}
