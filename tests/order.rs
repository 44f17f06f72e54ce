//! Order, sequence numbers, gaps, and the sums that a publisher gets.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "the crate's door to concurrency is for the crate; tests use std"
)]

mod support;

use std::{
    sync::{
        Arc, Barrier, Mutex,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    thread,
};

use fanout::{Broker, Message, SubscriptionConfig, TryPublishError, TryRecvError, WaitStrategy};
use support::{Gate, LIMIT, conserved, scale, wait_until, watchdog};

#[test]
fn seq_starts_at_zero_and_has_no_holes_whoever_publishes() {
    watchdog(LIMIT, || {
        let (publishers, each) = (3, scale(100_000));
        let broker = Broker::<u64>::new();
        let start = Arc::new(Barrier::new(publishers));
        let threads: Vec<_> = (0..publishers)
            .map(|_| {
                let (topic, start) = (broker.topic("t").unwrap(), start.clone());
                thread::spawn(move || {
                    start.wait();
                    (0..each).map(|value| topic.publish(value).unwrap().seq).collect::<Vec<_>>()
                })
            })
            .collect();
        let mut all = Vec::new();
        for thread in threads {
            let seqs = thread.join().unwrap();
            assert!(seqs.is_sorted_by(|a, b| a < b), "a publisher's own numbers grow");
            all.extend(seqs);
        }
        all.sort_unstable();
        assert!(all.into_iter().eq(0..publishers as u64 * each));
    });
}

#[test]
fn topics_count_for_themselves() {
    let broker = Broker::new();
    let seqs: Vec<_> =
        ["a", "b", "a", "c", "a", "b"].map(|name| broker.publish(name, 0).unwrap().seq).to_vec();
    assert_eq!(seqs, [0, 0, 1, 0, 2, 1]);
}

#[test]
fn under_overflow_each_publishers_messages_arrive_in_order_once_and_all_are_counted() {
    watchdog(LIMIT * 5, || {
        let (publishers, each) = (3_u64, scale(1_000_000) / 3);
        let broker = Broker::new();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let handler = {
            let seen = seen.clone();
            move |message: &Message<(u64, u64)>| {
                seen.lock().unwrap().push((message.seq(), message.dropped_before(), **message));
                thread::yield_now();
            }
        };
        let subscription = broker.subscribe("t", SubscriptionConfig::at_most_once(3), handler).unwrap();
        let threads: Vec<_> = (0..publishers)
            .map(|publisher| {
                let topic = broker.topic("t").unwrap();
                thread::spawn(move || {
                    (0..each)
                        .map(|value| topic.publish((publisher, value)).unwrap().dropped as u64)
                        .sum::<u64>()
                })
            })
            .collect();
        let dropped: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        wait_until(|| subscription.metrics().depth == 0);
        conserved(&subscription.metrics());
        let last = subscription.unsubscribe();
        conserved(&last);
        let seen = seen.lock().unwrap();
        assert_eq!((last.enqueued, last.dropped), (publishers * each, dropped));
        assert_eq!(last.delivered, seen.len() as u64);

        let mut next = [0; 3];
        let mut expected = 0;
        for &(seq, dropped_before, (publisher, value)) in seen.iter() {
            assert_eq!(seq, expected + dropped_before, "a hole that is not counted");
            expected = seq + 1;
            let next = &mut next[publisher as usize];
            assert!(value >= *next, "publisher {publisher}: {value} after {next}");
            *next = value + 1;
        }
        let gaps: u64 = seen.iter().map(|(_, dropped_before, _)| dropped_before).sum();
        assert_eq!(
            gaps, last.dropped,
            "the newest message is never evicted, so each gap shows before one that came"
        );
    });
}

#[test]
fn the_survivors_of_an_overflow_are_the_newest() {
    watchdog(LIMIT, || {
        for capacity in [1, 2, 3, 7, 64] {
            let (broker, gate, seen) = (Broker::new(), Gate::new(), Arc::new(Mutex::new(Vec::new())));
            let handler = {
                let (gate, seen) = (gate.clone(), seen.clone());
                move |message: &Message<u64>| {
                    seen.lock().unwrap().push(**message);
                    gate.pass();
                }
            };
            let config = SubscriptionConfig::at_most_once(capacity as usize);
            let subscription = broker.subscribe("t", config, handler).unwrap();
            broker.publish("t", 0).unwrap();
            gate.wait_entered(1);
            let last = 10 * capacity + 1;
            for value in 1..=last {
                broker.publish("t", value).unwrap();
            }
            conserved(&subscription.metrics());
            gate.open();
            wait_until(|| subscription.metrics().delivered == capacity + 1);
            conserved(&subscription.unsubscribe());
            let expected: Vec<_> = [0].into_iter().chain(last - capacity + 1..=last).collect();
            assert_eq!(*seen.lock().unwrap(), expected);
        }
    });
}

#[test]
fn handler_calls_of_one_subscription_never_overlap() {
    watchdog(LIMIT, || {
        let broker = Broker::new();
        let (busy, overlaps) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let handler = {
            let (busy, overlaps) = (busy.clone(), overlaps.clone());
            move |_: &Message<u64>| {
                if busy.swap(true, SeqCst) {
                    overlaps.fetch_add(1, SeqCst);
                }
                thread::yield_now();
                busy.store(false, SeqCst);
            }
        };
        let subscription = broker.subscribe("t", SubscriptionConfig::at_most_once(64), handler).unwrap();
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let topic = broker.topic("t").unwrap();
                thread::spawn(move || (0..scale(100_000)).for_each(|value| drop(topic.publish(value))))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        conserved(&subscription.unsubscribe());
        assert_eq!(overlaps.load(SeqCst), 0);
    });
}

#[test]
fn a_subscription_misses_nothing_published_after_subscribe_returned() {
    watchdog(LIMIT * 5, || {
        let broker = Broker::new();
        let (begun, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let publisher = {
            let (topic, begun, stop) = (broker.topic("t").unwrap(), begun.clone(), stop.clone());
            thread::spawn(move || {
                let mut value = 0;
                while !stop.load(Relaxed) {
                    begun.store(value, SeqCst);
                    assert_eq!(topic.publish(value).unwrap().seq, value);
                    value += 1;
                }
            })
        };
        for _ in 0..scale(100_000) {
            let mut receiver = broker.receiver("t", SubscriptionConfig::at_most_once(4)).unwrap();
            let begun_before = begun.load(SeqCst);
            let mut expected = None;
            for _ in 0..3 {
                let message = receiver.recv().unwrap();
                match expected {
                    None => assert!(
                        message.seq() - message.dropped_before() <= begun_before + 1,
                        "{} came first, {} of its publishes dropped, and {begun_before} had begun",
                        message.seq(),
                        message.dropped_before(),
                    ),
                    Some(expected) => assert_eq!(message.seq(), expected + message.dropped_before()),
                }
                expected = Some(message.seq() + 1);
            }
        }
        stop.store(true, Relaxed);
        publisher.join().unwrap();
    });
}

#[test]
fn a_steady_subscription_gets_everything_while_its_neighbours_come_and_go() {
    watchdog(LIMIT * 10, || {
        let messages = scale(1_000_000);
        let broker = Broker::new();
        let seen = Arc::new(AtomicU64::new(0));
        let handler = {
            let seen = seen.clone();
            let mut expected = 0;
            move |message: &Message<u64>| {
                assert_eq!((**message, message.seq(), message.dropped_before()), (expected, expected, 0));
                expected += 1;
                seen.store(expected, Relaxed);
            }
        };
        let steady = broker.subscribe("t", SubscriptionConfig::at_most_once(1024), handler).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let churners: Vec<_> = (0..4)
            .map(|churner| {
                let (broker, stop) = (broker.clone(), stop.clone());
                thread::spawn(move || {
                    let config = || SubscriptionConfig::at_most_once(2);
                    while !stop.load(Relaxed) {
                        if churner == 0 {
                            conserved(&broker.subscribe("t", config(), |_| ()).unwrap().unsubscribe());
                        } else {
                            let mut receiver = broker.receiver("t", config()).unwrap();
                            let _ = receiver.try_recv();
                        }
                        thread::yield_now();
                    }
                })
            })
            .collect();
        let topic = broker.topic("t").unwrap();
        for value in 0..messages {
            while value - seen.load(Relaxed) >= 1024 {
                assert_eq!(steady.metrics().panicked, 0, "a message out of order");
                thread::yield_now();
            }
            assert_eq!(topic.publish(value).unwrap().seq, value);
        }
        stop.store(true, Relaxed);
        churners.into_iter().for_each(|churner| churner.join().unwrap());
        wait_until(|| steady.metrics().delivered == messages);
        conserved(&steady.metrics());
        let last = steady.unsubscribe();
        conserved(&last);
        assert_eq!((last.delivered, last.dropped, last.panicked), (messages, 0, 0));
    });
}

#[test]
fn publishers_learn_how_many_rings_took_a_message_and_what_they_evicted() {
    let broker = Broker::new();
    assert_eq!(broker.publish("t", 0).unwrap().delivered_to, 0, "a publish that nobody hears is no error");
    let mut receivers: Vec<_> = [1, 2, 4]
        .map(|capacity| broker.receiver("t", SubscriptionConfig::at_most_once(capacity)).unwrap())
        .into_iter()
        .collect();
    let topic = broker.topic("t").unwrap();
    let dropped: Vec<_> = (1..=6)
        .map(|value| {
            let published = topic.publish(value).unwrap();
            assert_eq!((published.seq, published.delivered_to), (value, 3));
            published.dropped
        })
        .collect();
    assert_eq!(dropped, [0, 1, 2, 2, 3, 3]);
    let each: Vec<_> = receivers.iter().map(|receiver| receiver.metrics().dropped).collect();
    assert_eq!(each, [5, 4, 2]);
    assert_eq!(broker.metrics().dropped, 11);
    for (receiver, lost) in receivers.iter_mut().zip(each) {
        let first = receiver.try_recv().unwrap();
        // Seq 0 was published before any of them was there: not theirs to lose.
        assert_eq!((first.seq(), first.dropped_before()), (lost + 1, lost));
        conserved(&receiver.metrics());
    }
}

#[test]
fn try_publish_publishes_or_hands_the_payload_back() {
    watchdog(LIMIT, || {
        let broker = Broker::new();
        let mut receiver = broker.receiver("t", SubscriptionConfig::at_most_once(1 << 16)).unwrap();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let topic = broker.topic("t").unwrap();
                thread::spawn(move || {
                    let mut done = 0_u64;
                    for value in 0..scale(1_000_000) {
                        match topic.try_publish(value) {
                            Ok(published) => {
                                assert_eq!(published.delivered_to, 1);
                                done += 1;
                            }
                            Err(TryPublishError::Contended(payload)) => assert_eq!(payload, value),
                            Err(other) => panic!("{other:?}"),
                        }
                    }
                    done
                })
            })
            .collect();
        let done: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        let metrics = receiver.metrics();
        assert!(done > 0);
        assert_eq!(metrics.enqueued, done);
        conserved(&metrics);
        let mut seq = metrics.dropped;
        while let Ok(message) = receiver.try_recv() {
            assert_eq!(message.seq(), seq);
            seq += 1;
        }
        assert_eq!(seq, done, "no number used by a refused one");
        assert_eq!(receiver.try_recv().unwrap_err(), TryRecvError::Empty);
    });
}

#[test]
fn a_worker_is_woken_for_each_message_asleep_awake_or_on_its_way() {
    watchdog(LIMIT * 5, || {
        for strategy in [WaitStrategy::Park, WaitStrategy::BusySpin] {
            let broker = Broker::new();
            let seen = Arc::new(AtomicU64::new(0));
            let handler = {
                let seen = seen.clone();
                move |message: &Message<u64>| seen.store(**message, SeqCst)
            };
            let config = SubscriptionConfig::at_most_once(1).wait_strategy(strategy);
            let subscription = broker.subscribe("t", config, handler).unwrap();
            let topic = broker.topic("t").unwrap();
            // One that spins never sleeps, and takes a whole turn of a core that it shares.
            let rounds = scale(if strategy == WaitStrategy::Park { 100_000 } else { 10_000 });
            for round in 1..=rounds {
                topic.publish(round).unwrap();
                wait_until(|| seen.load(SeqCst) == round);
                // From at once to well after the worker has gone to sleep.
                (0..round % 64 * 16).for_each(|_| std::hint::spin_loop());
            }
            let last = subscription.unsubscribe();
            assert_eq!((last.delivered, last.dropped), (rounds, 0));
            conserved(&last);
        }
    });
}
