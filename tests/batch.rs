//! Publishing many at once: contiguous by 32, whatever the iterator does.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "the crate's door to concurrency is for the crate; tests use std"
)]

mod support;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
};

use fanout::{Broker, PublishErrorKind, PublishedBatch, Receiver, Shutdown, SubscriptionConfig};
use support::{LIMIT, Ledger, conserved, scale, watchdog};

fn config(capacity: usize) -> SubscriptionConfig {
    SubscriptionConfig::at_most_once(capacity)
}

fn take_all(receiver: &mut Receiver<u64>) -> Vec<(u64, u64)> {
    std::iter::from_fn(|| receiver.try_recv().ok()).map(|message| (message.seq(), *message)).collect()
}

#[test]
fn an_empty_batch_publishes_nothing() {
    let broker = Broker::<u64>::new();
    let topic = broker.topic("t").unwrap();
    let receiver = broker.receiver("t", config(1)).unwrap();
    let nothing = PublishedBatch { first_seq: None, count: 0, delivered_to: 0, dropped: 0 };
    assert_eq!(topic.publish_batch([]).unwrap(), nothing);
    assert_eq!(topic.metrics().published, 0);
    conserved(&receiver.metrics());
}

#[test]
fn batches_of_any_size_arrive_whole_and_in_order() {
    const MARK: u64 = 9_999;
    for size in [1, 2, 31, 32, 33, 63, 64, 65, 200] {
        let broker = Broker::new();
        let topic = broker.topic("t").unwrap();
        let mut receivers = [1, 2].map(|_| broker.receiver("t", config(200)).unwrap());
        assert_eq!(topic.publish(MARK).unwrap().seq, 0);
        let batch = topic.publish_batch(0..size).unwrap();
        let expected = PublishedBatch {
            first_seq: Some(1),
            count: size as usize,
            delivered_to: 2 * size as usize,
            dropped: 0,
        };
        // The first one makes way for the last of the greatest batch.
        let expected = PublishedBatch { dropped: if size == 200 { 2 } else { 0 }, ..expected };
        assert_eq!(batch, expected);
        assert_eq!(topic.publish(MARK).unwrap().seq, size + 1);
        for receiver in &mut receivers {
            let got = take_all(receiver);
            let batch: Vec<_> = got.iter().filter(|(_, value)| *value != MARK).copied().collect();
            assert!(batch.iter().all(|(seq, value)| *seq == value + 1), "{batch:?}");
            assert_eq!(batch.len() as u64, size.min(199));
            conserved(&receiver.metrics());
        }
    }
}

#[test]
fn sums_of_a_batch_count_each_eviction() {
    let broker = Broker::new();
    let topic = broker.topic("t").unwrap();
    let mut receivers = [1, 3, 50].map(|capacity| broker.receiver("t", config(capacity)).unwrap());
    let batch = topic.publish_batch(0..40).unwrap();
    assert_eq!((batch.count, batch.delivered_to, batch.dropped), (40, 120, 39 + 37));
    let dropped: Vec<_> = receivers.iter().map(|receiver| receiver.metrics().dropped).collect();
    assert_eq!(dropped, [39, 37, 0]);
    assert_eq!(take_all(&mut receivers[1]), [(37, 37), (38, 38), (39, 39)]);
    receivers.iter().for_each(|receiver| conserved(&receiver.metrics()));
}

#[test]
fn a_batch_that_nobody_hears_counts_and_keeps_nothing() {
    let (broker, ledger) = (Broker::new(), Ledger::new());
    let batch = broker.topic("t").unwrap().publish_batch((0..40).map(|id| ledger.live(id))).unwrap();
    assert_eq!((batch.first_seq, batch.count, batch.delivered_to), (Some(0), 40, 0));
    ledger.assert_all_dropped();
}

#[test]
fn thirty_two_stay_together_whoever_else_publishes() {
    watchdog(LIMIT, || {
        let (publishers, rounds) = (3_u64, scale(10_000));
        let broker = Broker::new();
        let mut receiver = broker.receiver("t", config((publishers * rounds * 32) as usize)).unwrap();
        let threads: Vec<_> = (0..publishers)
            .map(|publisher| {
                let topic = broker.topic("t").unwrap();
                thread::spawn(move || {
                    for round in 0..rounds {
                        let first = (publisher * rounds + round) * 32;
                        assert_eq!(topic.publish_batch(first..first + 32).unwrap().count, 32);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        let got = take_all(&mut receiver);
        assert_eq!(got.len() as u64, publishers * rounds * 32);
        for batch in got.chunks(32) {
            let first = batch[0];
            assert_eq!(first.1 % 32, 0, "a batch begins where another is not yet done");
            let whole = batch.iter().zip(0..).all(|(got, nth)| *got == (first.0 + nth, first.1 + nth));
            assert!(whole, "{batch:?}");
        }
        conserved(&receiver.metrics());
    });
}

#[test]
fn an_iterator_that_panics_unwinds_and_leaves_the_topic_well() {
    for panics_at in [0, 1, 31, 32, 40, 64] {
        let (broker, ledger) = (Broker::new(), Ledger::new());
        let topic = broker.topic("t").unwrap();
        let mut receivers = [1, 2].map(|_| broker.receiver("t", config(100)).unwrap());
        let payloads = (0..100).map(|id| {
            assert!(id != panics_at, "an iterator that panics");
            ledger.live(id)
        });
        assert!(catch_unwind(AssertUnwindSafe(|| topic.publish_batch(payloads))).is_err());
        let published = topic.metrics().published;
        assert!(published <= panics_at && published >= panics_at / 32 * 32, "{published} of {panics_at}");
        assert_eq!(topic.publish(ledger.live(1_000)).unwrap().seq, published, "no number is lost");
        for receiver in &mut receivers {
            let ids: Vec<_> =
                std::iter::from_fn(|| receiver.try_recv().ok()).map(|message| message.id).collect();
            assert!(ids.into_iter().eq((0..published).chain([1_000])), "the same beginning reaches each");
            conserved(&receiver.metrics());
        }
        drop(receivers);
        ledger.assert_all_dropped();
    }
}

#[test]
fn an_iterator_may_publish_subscribe_and_send_batches_of_its_own() {
    watchdog(LIMIT, || {
        let broker = Broker::new();
        let topic = broker.topic("t").unwrap();
        let mut receiver = broker.receiver("t", config(1_000)).unwrap();
        let inner = topic.clone();
        let batch = topic
            .publish_batch((0..100).inspect(|value| {
                inner.publish(1_000 + value).unwrap();
                assert_eq!(inner.publish_batch([2_000 + value]).unwrap().count, 1);
                drop(broker.receiver("t", config(1)).unwrap());
            }))
            .unwrap();
        assert_eq!((batch.count, batch.delivered_to), (100, 100));
        let got = take_all(&mut receiver);
        assert!(got.iter().map(|(seq, _)| *seq).eq(0..300), "no hole and no double");
        for series in [0..100, 1_000..1_100, 2_000..2_100] {
            let values: Vec<_> =
                got.iter().map(|(_, value)| *value).filter(|value| series.contains(value)).collect();
            assert!(values.into_iter().eq(series), "each in its own order");
        }
        conserved(&receiver.metrics());
    });
}

#[test]
fn a_broker_that_closes_half_way_hands_back_what_was_not_sent() {
    watchdog(LIMIT, || {
        for closes_at in [0, 5, 31, 32, 40, 63, 64] {
            let (broker, ledger) = (Broker::new(), Ledger::new());
            let topic = broker.topic("t").unwrap();
            let receiver = broker.receiver("t", config(100)).unwrap();
            let mut pulled = 0;
            let error = topic
                .publish_batch((0..100).map(|id| {
                    if id == closes_at {
                        broker.shutdown(Shutdown::Discard);
                    }
                    pulled += 1;
                    ledger.live(id)
                }))
                .unwrap_err();
            assert_eq!(error.kind, PublishErrorKind::Closed);
            let sent = error.published.count as u64;
            assert_eq!(sent, closes_at / 32 * 32, "what was whole before the end is out");
            assert!(error.unsent.len() <= 32, "{} handed back", error.unsent.len());
            assert!(
                error.unsent.iter().map(|payload| payload.id).eq(sent..pulled),
                "what was pulled, in order"
            );
            assert_eq!(error.published.first_seq, (sent > 0).then_some(0));
            assert_eq!(receiver.metrics().enqueued, sent);
            conserved(&receiver.metrics());
            drop(error);
            drop(receiver);
            ledger.assert_all_dropped();
        }
    });
}

#[test]
fn an_iterator_without_end_stops_when_the_broker_closes() {
    watchdog(LIMIT, || {
        let broker = Broker::new();
        let (topic, other) = (broker.topic("t").unwrap(), broker.clone());
        let publisher = thread::spawn(move || topic.publish_batch(0_u64..));
        support::wait_until(|| other.metrics().published > 0);
        other.shutdown(Shutdown::Discard);
        let error = publisher.join().unwrap().unwrap_err();
        assert_eq!(error.published.count as u64, broker.metrics().published);
        assert_eq!(error.unsent.first().copied(), Some(error.published.count as u64));
    });
}

type Act = Box<dyn FnOnce() + Send>;

/// A payload of which the clone of a given number changes the list of subscriptions.
struct Meddler {
    value: u64,
    until: Arc<Mutex<(usize, Option<Act>)>>,
}

impl Clone for Meddler {
    fn clone(&self) -> Self {
        let act = {
            let (left, act) = &mut *self.until.lock().unwrap();
            *left = left.saturating_sub(1);
            if *left == 0 { act.take() } else { None }
        };
        if let Some(act) = act {
            act();
        }
        Self { value: self.value, until: self.until.clone() }
    }
}

#[test]
fn payloads_keep_their_numbers_though_a_clone_changes_the_list() {
    // Three subscriptions take sixteen clones of eight payloads.
    for clone in 1..=16 {
        for (leaves, joins) in [(1, 0), (2, 0), (3, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 1)] {
            for leaver in 0..=3 - leaves {
                let broker = Broker::<Meddler>::new();
                let receiver = |broker: &Broker<Meddler>| broker.receiver("t", config(64)).unwrap();
                let receivers = Arc::new(Mutex::new(Vec::from_iter((0..3).map(|_| receiver(&broker)))));
                let act: Act = {
                    let (broker, receivers) = (broker.clone(), receivers.clone());
                    Box::new(move || {
                        let mut receivers = receivers.lock().unwrap();
                        receivers.drain(leaver..leaver + leaves);
                        receivers.extend((0..joins).map(|_| receiver(&broker)));
                    })
                };
                let until = Arc::new(Mutex::new((clone, Some(act))));
                let payloads = (0..8).map(|value| Meddler { value, until: until.clone() });
                let sent = broker.topic("t").unwrap().publish_batch(payloads).unwrap();
                assert!(until.lock().unwrap().1.is_none(), "the list has changed");
                let mut receivers = receivers.lock().unwrap();
                assert_eq!((sent.count, sent.delivered_to), (8, 8 * (3 - leaves + joins)));
                for receiver in receivers.iter_mut() {
                    let got = std::iter::from_fn(|| receiver.try_recv().ok());
                    let got: Vec<_> = got.map(|message| (message.seq(), message.value)).collect();
                    let all: Vec<_> = (0..8).map(|seq| (seq, seq)).collect();
                    assert_eq!(got, all, "at clone {clone}: {leaves} leave from {leaver}, {joins} join");
                    conserved(&receiver.metrics());
                }
            }
        }
    }
}

#[test]
fn payloads_keep_their_numbers_while_subscriptions_come_and_go() {
    watchdog(LIMIT, || {
        let broker = Broker::<String>::new();
        let topic = broker.topic("t").unwrap();
        let mut receiver = broker.receiver("t", config(8)).unwrap();
        let _second = broker.receiver("t", config(1)).unwrap();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(SeqCst) {
                    drop(broker.receiver("t", config(4)).unwrap());
                }
            });
            let mut wrong = Vec::new();
            for first in (0..scale(500_000)).map(|batch| batch * 8) {
                topic.publish_batch((first..first + 8).map(|value| value.to_string())).unwrap();
                let got = std::iter::from_fn(|| receiver.try_recv().ok());
                wrong.extend(
                    got.filter(|message| message.seq().to_string() != **message).map(|message| message.seq()),
                );
            }
            done.store(true, SeqCst);
            assert!(wrong.is_empty(), "the payloads of others at {wrong:?}");
        });
        conserved(&receiver.metrics());
    });
}

#[test]
fn an_iterator_that_has_ended_is_not_asked_again() {
    struct Once {
        left: u64,
        ended: bool,
    }
    impl Iterator for Once {
        type Item = u64;
        fn next(&mut self) -> Option<u64> {
            assert!(!self.ended, "asked again after its end");
            self.ended = self.left == 0;
            self.left = self.left.checked_sub(1)?;
            Some(self.left)
        }
    }
    let broker = Broker::new();
    let topic = broker.topic("t").unwrap();
    for left in [0, 1, 31, 32, 33, 63, 64, 65] {
        assert_eq!(topic.publish_batch(Once { left, ended: false }).unwrap().count as u64, left);
    }
}
