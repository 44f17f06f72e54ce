//! Every payload is dropped exactly once, as early as promised, and payloads that panic harm nobody.

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
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
};

use fanout::{Broker, Message, Shutdown, SubscriptionConfig};
use support::{Gate, LIMIT, Ledger, conserved, scale, wait_until, watchdog};

fn config(capacity: usize) -> SubscriptionConfig {
    SubscriptionConfig::at_most_once(capacity)
}

#[test]
fn one_subscription_costs_no_clone_and_each_further_one_a_single_one() {
    for listeners in 0..5_u64 {
        let (broker, ledger) = (Broker::new(), Ledger::new());
        let mut receivers: Vec<_> =
            (0..listeners).map(|_| broker.receiver("t", config(2)).unwrap()).collect();
        for id in 0..2 {
            broker.publish("t", ledger.live(id)).unwrap();
        }
        assert_eq!(ledger.cloned(), 2 * listeners.saturating_sub(1), "{listeners} listeners");
        assert_eq!(ledger.alive() as u64, 2 * listeners, "a publish that nobody hears keeps nothing");
        receivers.iter_mut().for_each(|receiver| assert_eq!(receiver.try_recv().unwrap().id, 0));
        assert_eq!(ledger.alive() as u64, listeners);
        drop(receivers);
        ledger.assert_all_dropped();
    }
}

#[test]
fn a_handled_message_is_gone_before_the_next_call() {
    watchdog(LIMIT, || {
        let (broker, ledger) = (Broker::new(), Ledger::new());
        let late = Arc::new(AtomicU64::new(0));
        let subscription = broker
            .subscribe("t", config(1_000), {
                let (late, ledger) = (late.clone(), ledger.clone());
                move |message: &Message<support::Live>| {
                    let before = message.id.checked_sub(1);
                    late.fetch_add(before.map_or(0, |id| ledger.alive_of(id) as u64), SeqCst);
                }
            })
            .unwrap();
        for id in 0..1_000 {
            broker.publish("t", ledger.live(id)).unwrap();
        }
        // No traffic follows the last one, and it goes all the same.
        wait_until(|| ledger.alive() == 0);
        assert_eq!(late.load(SeqCst), 0);
        let last = subscription.unsubscribe();
        assert_eq!(last.delivered, 1_000);
        conserved(&last);
        ledger.assert_all_dropped();
    });
}

#[test]
fn payloads_are_dropped_once_on_every_way_out() {
    watchdog(LIMIT, || {
        let (broker, ledger, gate) = (Broker::new(), Ledger::new(), Gate::new());
        let pass = gate.clone();
        let evicting = broker.subscribe("t", config(1), move |_| pass.pass()).unwrap();
        let panicking = broker.subscribe("t", config(64), |_| panic!("each time")).unwrap();
        let dropped = broker.subscribe("t", config(64), |_| ()).unwrap();
        let detached = broker.subscribe("t", config(64), |_| ()).unwrap().detach();
        let mut receiver = broker.receiver("t", config(4)).unwrap();
        let unread = broker.receiver("t", config(4)).unwrap();
        let topic = broker.topic("t").unwrap();
        let mut kept = Vec::new();
        for id in 0..20 {
            match id % 3 {
                0 => assert_eq!(broker.publish("t", ledger.live(id)).unwrap().delivered_to, 6),
                1 => assert_eq!(topic.publish(ledger.live(id)).unwrap().delivered_to, 6),
                _ => assert_eq!(topic.publish_batch([ledger.live(id)]).unwrap().delivered_to, 6),
            }
            if id % 5 == 0 {
                kept.push(receiver.recv().unwrap());
            }
        }
        gate.wait_entered(1);
        drop(dropped);
        drop(unread);
        gate.open();
        conserved(&evicting.unsubscribe());
        wait_until(|| panicking.metrics().delivered == 20);
        conserved(&panicking.unsubscribe());
        broker.shutdown(Shutdown::Discard);
        assert_eq!(broker.publish("t", ledger.live(99)).unwrap_err().into_payload().id, 99);
        assert_eq!(topic.publish_batch([ledger.live(99)]).unwrap_err().unsent.len(), 1);
        conserved(&receiver.metrics());
        conserved(&detached.metrics());
        drop(receiver);
        wait_until(|| ledger.alive() == kept.len());
        drop(kept);
        ledger.assert_all_dropped();
    });
}

#[test]
fn a_storm_of_overflow_and_endings_drops_everything_once() {
    watchdog(LIMIT * 5, || {
        let (broker, ledger) = (Broker::new(), Ledger::new());
        let slow = broker.subscribe("t", config(2), |_| thread::yield_now()).unwrap();
        let publishers: Vec<_> = (0..2)
            .map(|_| {
                let (topic, ledger) = (broker.topic("t").unwrap(), ledger.clone());
                thread::spawn(move || {
                    for id in 0..scale(1_000_000) {
                        topic.publish(ledger.live(id)).unwrap();
                    }
                })
            })
            .collect();
        while publishers.iter().any(|publisher| !publisher.is_finished()) {
            let mut receiver = broker.receiver("t", config(3)).unwrap();
            let _ = receiver.try_recv();
            drop(receiver);
            conserved(&broker.subscribe("t", config(1), |_| ()).unwrap().unsubscribe());
        }
        publishers.into_iter().for_each(|publisher| publisher.join().unwrap());
        conserved(&slow.unsubscribe());
        ledger.assert_all_dropped();
    });
}

/// Its clone panics once the shared count of clones that are left has reached zero.
struct Fragile {
    counted: support::Live,
    clones_left: Arc<AtomicU64>,
}

impl Clone for Fragile {
    fn clone(&self) -> Self {
        let left = self.clones_left.load(SeqCst);
        assert!(left > 0, "no more clones");
        self.clones_left.store(left - 1, SeqCst);
        Fragile { counted: self.counted.clone(), clones_left: self.clones_left.clone() }
    }
}

#[test]
fn a_clone_that_panics_leaves_nothing_published_and_uses_no_number() {
    for allowed in 0..3 {
        let (broker, ledger, clones_left) = (Broker::new(), Ledger::new(), Arc::new(AtomicU64::new(100)));
        let mut receivers: Vec<_> = (0..4).map(|_| broker.receiver("t", config(4)).unwrap()).collect();
        let topic = broker.topic("t").unwrap();
        let payload = |id| Fragile { counted: ledger.live(id), clones_left: clones_left.clone() };
        assert_eq!(topic.publish(payload(0)).unwrap().seq, 0);

        let attempts: [&dyn Fn(); 4] = [
            &|| drop(topic.publish(payload(1))),
            &|| drop(broker.publish("t", payload(1))),
            &|| drop(topic.try_publish(payload(1))),
            &|| drop(topic.publish_batch([payload(1), payload(2)])),
        ];
        for attempt in attempts {
            clones_left.store(allowed, SeqCst);
            assert!(catch_unwind(AssertUnwindSafe(attempt)).is_err(), "it unwinds to the publisher");
            assert_eq!(ledger.alive(), 4, "what had been cloned is gone");
        }

        clones_left.store(100, SeqCst);
        let published = topic.publish(payload(3)).unwrap();
        assert_eq!((published.seq, published.delivered_to, published.dropped), (1, 4, 0));
        assert_eq!(topic.metrics().published, 2);
        for receiver in &mut receivers {
            assert_eq!(receiver.metrics().enqueued, 2);
            let ids = [0, 1].map(|_| receiver.try_recv().unwrap().counted.id);
            assert_eq!(ids, [0, 3]);
            conserved(&receiver.metrics());
        }
        drop(receivers);
        ledger.assert_all_dropped();
    }
}

/// Panics when dropped if its id says so; counted first.
#[derive(Clone)]
struct Grudge {
    counted: support::Live,
    bad: bool,
}

impl Drop for Grudge {
    fn drop(&mut self) {
        assert!(!self.bad, "a drop that panics");
    }
}

#[test]
fn a_drop_that_panics_is_contained_and_counted_for_its_owner() {
    watchdog(LIMIT, || {
        let (broker, ledger, gate) = (Broker::new(), Ledger::new(), Gate::new());
        let payload = |id, bad| Grudge { counted: ledger.live(id), bad };

        // Nobody hears it: the broker's.
        assert_eq!(broker.publish("t", payload(0, true)).unwrap().delivered_to, 0);
        assert_eq!(broker.metrics().payload_panics, 1);

        let handled = Arc::new(Mutex::new(Vec::new()));
        let subscription = broker
            .subscribe("t", config(2), {
                let (gate, handled) = (gate.clone(), handled.clone());
                move |message: &Message<Grudge>| {
                    handled.lock().unwrap().push(message.counted.id);
                    gate.pass();
                }
            })
            .unwrap();
        // Dropped by the worker, after the call.
        broker.publish("t", payload(1, true)).unwrap();
        gate.wait_entered(1);
        // Evicted: dropped on this thread, and the publish is well all the same.
        broker.publish("t", payload(2, true)).unwrap();
        broker.publish("t", payload(3, false)).unwrap();
        let published = broker.publish("t", payload(4, true)).unwrap();
        assert_eq!((published.seq, published.delivered_to, published.dropped), (4, 1, 1));
        assert_eq!(subscription.metrics().payload_panics, 1);
        // The next in hand is 3; 4 stays in the queue and is discarded at the end.
        gate.let_one();
        gate.wait_entered(2);
        assert_eq!(subscription.metrics().payload_panics, 2);
        assert!(subscription.handle().unsubscribe());
        gate.open();
        let last = subscription.unsubscribe();
        assert_eq!((last.delivered, last.dropped, last.discarded), (2, 1, 1));
        assert_eq!((last.payload_panics, last.panicked), (3, 0));
        conserved(&last);
        assert_eq!(*handled.lock().unwrap(), [1, 3]);
        assert_eq!(broker.publish("t", payload(5, false)).unwrap().seq, 5);
        ledger.assert_all_dropped();
    });
}

#[test]
fn many_evicted_values_whose_drops_panic_are_all_dropped() {
    let (broker, ledger) = (Broker::new(), Ledger::new());
    let receivers: Vec<_> = (0..40).map(|_| broker.receiver("t", config(1)).unwrap()).collect();
    for id in 0..3 {
        let published = broker.publish("t", Grudge { counted: ledger.live(id), bad: true }).unwrap();
        assert_eq!((published.delivered_to, published.dropped), (40, if id == 0 { 0 } else { 40 }));
    }
    for receiver in receivers {
        let handle = receiver.handle();
        drop(receiver);
        assert_eq!(handle.metrics().payload_panics, 3);
        conserved(&handle.metrics());
    }
    ledger.assert_all_dropped();
}

#[test]
fn payloads_without_a_size_are_counted_like_any_other() {
    let broker = Broker::new();
    let mut receiver = broker.receiver("t", config(3)).unwrap();
    let dropped: usize = (0..5).map(|_| broker.publish("t", ()).unwrap().dropped).sum();
    assert_eq!((dropped, receiver.metrics().depth), (2, 3));
    let seqs: Vec<_> = std::iter::from_fn(|| receiver.try_recv().ok()).map(|message| message.seq()).collect();
    assert_eq!(seqs, [2, 3, 4]);
    conserved(&receiver.metrics());
}

#[test]
fn payloads_keep_their_alignment() {
    #[derive(Clone)]
    #[repr(align(256))]
    struct Aligned(u8);
    let broker = Broker::new();
    let mut receivers: Vec<_> =
        [1, 2, 3].map(|capacity| broker.receiver("t", config(capacity)).unwrap()).into();
    for value in 0..5 {
        broker.publish("t", Aligned(value)).unwrap();
    }
    for receiver in &mut receivers {
        while let Ok(message) = receiver.try_recv() {
            assert_eq!((&raw const *message.payload() as usize) % 256, 0);
            assert_eq!(u64::from(message.0), message.seq());
        }
        conserved(&receiver.metrics());
    }
}
