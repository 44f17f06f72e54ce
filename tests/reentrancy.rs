//! Any call from anywhere: handlers, hooks and payloads that call back into the broker.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "the crate's door to concurrency is for the crate; tests use std"
)]

mod support;

use std::{
    cell::Cell,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
};

use fanout::{Broker, EventKind, Message, SubscriptionConfig, SubscriptionState, Topic};
use support::{Gate, LIMIT, conserved, wait_until, watchdog};

fn config(capacity: usize) -> SubscriptionConfig {
    SubscriptionConfig::at_most_once(capacity)
}

/// Where the calling function's frame is, roughly: enough to see a stack that grows.
fn stack_position() -> usize {
    let here = 0_u8;
    &raw const here as usize
}

#[test]
fn a_handler_may_publish_to_its_own_topic() {
    watchdog(LIMIT, || {
        for capacity in [1, 8] {
            let broker = Broker::<u64>::new();
            let stack = Arc::new(Mutex::new(Vec::new()));
            let subscription = broker
                .subscribe("t", config(capacity), {
                    let (topic, stack) = (broker.topic("t").unwrap(), stack.clone());
                    move |message: &Message<u64>| {
                        stack.lock().unwrap().push(stack_position());
                        if **message < 999 {
                            let published = topic.publish(**message + 1).unwrap();
                            assert_eq!((published.delivered_to, published.dropped), (1, 0));
                        }
                    }
                })
                .unwrap();
            broker.publish("t", 0).unwrap();
            wait_until(|| subscription.metrics().delivered == 1_000);
            let last = subscription.unsubscribe();
            assert_eq!((last.panicked, last.dropped), (0, 0));
            conserved(&last);
            let stack = stack.lock().unwrap();
            let deepest = stack.iter().map(|position| position.abs_diff(stack[0])).max();
            assert!(deepest < Some(4096), "the stack grows by {deepest:?} bytes");
        }
    });
}

#[test]
fn two_topics_may_play_ping_pong() {
    watchdog(LIMIT, || {
        let broker = Broker::<u64>::new();
        let player = |own: &str, other: &str| {
            let other: Topic<u64> = broker.topic(other).unwrap();
            broker
                .subscribe(own, config(1), move |message: &Message<u64>| {
                    if **message < 1_000 {
                        other.publish(**message + 1).unwrap();
                    }
                })
                .unwrap()
        };
        let (ping, pong) = (player("ping", "pong"), player("pong", "ping"));
        broker.publish("ping", 0).unwrap();
        wait_until(|| ping.metrics().delivered + pong.metrics().delivered == 1_001);
        for (player, calls) in [(ping, 501), (pong, 500)] {
            let last = player.unsubscribe();
            assert_eq!((last.delivered, last.dropped, last.panicked), (calls, 0, 0));
            conserved(&last);
        }
    });
}

#[test]
fn a_publisher_may_hold_a_lock_that_the_handler_wants() {
    watchdog(LIMIT, || {
        for capacity in [1, 8] {
            let broker = Broker::new();
            let seen = Arc::new(Mutex::new(Vec::new()));
            let handler = {
                let seen = seen.clone();
                move |message: &Message<u64>| seen.lock().unwrap().push(**message)
            };
            let subscription = broker.subscribe("t", config(capacity), handler).unwrap();
            let last = 10 * capacity as u64;
            let held = seen.lock().unwrap();
            for value in 0..=last {
                broker.publish("t", value).unwrap();
            }
            drop(held);
            wait_until(|| subscription.metrics().depth == 0);
            let metrics = subscription.unsubscribe();
            conserved(&metrics);
            let seen = seen.lock().unwrap();
            let newest: Vec<_> = (last + 1 - capacity as u64..=last).collect();
            assert!(seen.ends_with(&newest), "capacity {capacity}: {seen:?}");
            assert!(seen.len() <= capacity + 1, "the newest, and at most one that was in hand: {seen:?}");
        }
    });
}

#[test]
fn a_handler_may_subscribe_unsubscribe_create_topics_and_read_metrics() {
    watchdog(LIMIT, || {
        let broker = Broker::<u64>::new();
        let sibling = Mutex::new(Some(broker.subscribe("t", config(4), |_| ()).unwrap()));
        let (seen, young) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(None)));
        let (gate, done) = (Gate::new(), Arc::new(AtomicBool::new(false)));
        let handler = {
            let (weak, seen, young, gate, done) =
                (broker.downgrade(), seen.clone(), young.clone(), gate.clone(), done.clone());
            move |message: &Message<u64>| {
                if **message != 0 {
                    return;
                }
                gate.pass();
                let broker = weak.upgrade().unwrap();
                let seen = seen.clone();
                let born = broker.subscribe("t", config(4), move |message: &Message<u64>| {
                    seen.lock().unwrap().push(**message);
                });
                *young.lock().unwrap() = Some(born.unwrap());
                let last = sibling.lock().unwrap().take().unwrap().unsubscribe();
                assert_eq!(last.filter, "t");
                assert_eq!(broker.topic("fresh").unwrap().name(), "fresh");
                assert_eq!(broker.publish("fresh", 1).unwrap().seq, 0);
                assert!(broker.remove_topic("fresh").is_ok());
                assert!(matches!(
                    message.subscription().metrics().state,
                    SubscriptionState::InHandler { .. }
                ));
                assert_eq!(broker.metrics().topics.len(), broker.topics().len());
                let mut receiver = broker.receiver("t", config(1)).unwrap();
                broker.publish("t", 2).unwrap();
                assert_eq!(*receiver.recv().unwrap(), 2);
                drop(receiver);
                done.store(true, SeqCst);
            }
        };
        let subscription = broker.subscribe("t", config(4), handler).unwrap();
        broker.publish("t", 0).unwrap();
        gate.wait_entered(1);
        broker.publish("t", 1).unwrap();
        gate.open();
        wait_until(|| done.load(SeqCst) || subscription.metrics().panicked > 0);
        assert_eq!(broker.publish("t", 3).unwrap().delivered_to, 2, "itself and the young one");
        wait_until(|| subscription.metrics().depth == 0);
        let young = young.lock().unwrap().take().unwrap();
        wait_until(|| young.metrics().delivered == 2);
        conserved(&young.unsubscribe());
        let last = subscription.unsubscribe();
        assert_eq!((last.panicked, last.delivered), (0, 4));
        conserved(&last);
        assert_eq!(*seen.lock().unwrap(), [2, 3], "what was published before it was there is not its own");
    });
}

/// A payload that calls back as it is dropped, with the id that it carries.
struct Hooked {
    id: u64,
    hook: Arc<dyn Fn(u64) + Send + Sync>,
}

impl Clone for Hooked {
    fn clone(&self) -> Self {
        Hooked { id: self.id, hook: self.hook.clone() }
    }
}

impl Drop for Hooked {
    fn drop(&mut self) {
        (self.hook)(self.id);
    }
}

#[test]
fn an_evicted_payload_may_publish_unsubscribe_and_panic_as_it_is_dropped() {
    watchdog(LIMIT, || {
        let broker = Broker::<Hooked>::new();
        let gate = Gate::new();
        let pass = gate.clone();
        let subscription = broker.subscribe("t", config(1), move |_| pass.pass()).unwrap();
        let (handle, weak) = (subscription.handle(), broker.downgrade());
        let calls = Arc::new(AtomicUsize::new(0));
        let silent: Arc<dyn Fn(u64) + Send + Sync> = Arc::new(|_| ());
        let hook: Arc<dyn Fn(u64) + Send + Sync> = {
            let (calls, handle, silent) = (calls.clone(), handle.clone(), silent.clone());
            Arc::new(move |id| {
                calls.fetch_add(1, SeqCst);
                let broker = weak.upgrade().unwrap();
                broker.publish("t", Hooked { id: id + 100, hook: silent.clone() }).unwrap();
                broker.publish("elsewhere", Hooked { id: id + 200, hook: silent.clone() }).unwrap();
                assert!(handle.unsubscribe());
                panic!("a payload that panics as it is dropped");
            })
        };
        broker.publish("t", Hooked { id: 0, hook: silent.clone() }).unwrap();
        gate.wait_entered(1);
        broker.publish("t", Hooked { id: 1, hook }).unwrap();
        let published = broker.publish("t", Hooked { id: 2, hook: silent.clone() }).unwrap();
        assert_eq!((published.seq, published.delivered_to, published.dropped), (2, 1, 1));
        assert_eq!(calls.load(SeqCst), 1);
        assert_eq!(broker.publish("t", Hooked { id: 3, hook: silent }).unwrap().seq, 4);
        gate.open();
        let last = subscription.unsubscribe();
        assert_eq!((last.delivered, last.dropped, last.discarded, last.payload_panics), (1, 2, 1, 1));
        conserved(&last);
    });
}

#[test]
fn a_clone_may_publish_and_subscribe() {
    thread_local! {
        static DEPTH: Cell<u32> = const { Cell::new(0) };
    }
    struct Eager(Broker<Eager>);
    impl Clone for Eager {
        fn clone(&self) -> Self {
            // Only the first level: its own clones are made by the same means.
            if DEPTH.replace(1) == 0 {
                assert_eq!(self.0.publish("t", Eager(self.0.clone())).unwrap().delivered_to, 2);
                drop(self.0.receiver("t", config(1)).unwrap());
                DEPTH.set(0);
            }
            Eager(self.0.clone())
        }
    }
    watchdog(LIMIT, || {
        let broker = Broker::new();
        let mut receivers: Vec<_> = (0..2).map(|_| broker.receiver("t", config(4)).unwrap()).collect();
        let published = broker.publish("t", Eager(broker.clone())).unwrap();
        assert_eq!(published.delivered_to, 2);
        for receiver in &mut receivers {
            let seqs: Vec<_> = (0..=published.seq).map(|_| receiver.try_recv().unwrap().seq()).collect();
            assert!(seqs.into_iter().eq(0..=published.seq));
            conserved(&receiver.metrics());
        }
    });
}

#[test]
fn an_event_hook_may_publish_and_unsubscribe() {
    watchdog(LIMIT, || {
        let slot: Arc<Mutex<Option<Broker<u64>>>> = Arc::default();
        let (events, gate) = (Arc::new(AtomicU64::new(0)), Gate::new());
        let broker = Broker::<u64>::builder()
            .on_event({
                let (slot, events) = (slot.clone(), events.clone());
                move |event| {
                    if matches!(event.kind, EventKind::Dropping { .. }) {
                        let broker = slot.lock().unwrap().clone().unwrap();
                        broker.publish("events", 0).unwrap();
                        broker.metrics();
                        drop(broker.subscribe("t", config(1), |_| ()).unwrap().unsubscribe());
                        events.fetch_add(1, SeqCst);
                        panic!("a hook that panics");
                    }
                }
            })
            .build();
        *slot.lock().unwrap() = Some(broker.clone());
        let pass = gate.clone();
        let subscription = broker.subscribe("t", config(1), move |_| pass.pass()).unwrap();
        broker.publish("t", 0).unwrap();
        gate.wait_entered(1);
        for value in 1..=3 {
            broker.publish("t", value).unwrap();
        }
        gate.open();
        wait_until(|| subscription.metrics().delivered == 2);
        wait_until(|| events.load(SeqCst) > 0);
        broker.publish("t", 4).unwrap();
        wait_until(|| subscription.metrics().delivered == 3);
        assert_eq!(broker.publish("events", 0).unwrap().seq, events.load(SeqCst));
        conserved(&subscription.unsubscribe());
        slot.lock().unwrap().take();
    });
}

#[test]
fn handles_may_be_dropped_inside_handlers() {
    watchdog(LIMIT, || {
        let broker = Broker::<u64>::new();
        let (held, done) = (Mutex::new(None), Arc::new(AtomicBool::new(false)));
        *held.lock().unwrap() =
            Some((broker.clone(), broker.topic("t").unwrap(), broker.receiver("t", config(1)).unwrap()));
        let subscription = broker
            .subscribe("t", config(1), {
                let done = done.clone();
                move |_| {
                    held.lock().unwrap().take();
                    done.store(true, SeqCst);
                }
            })
            .unwrap();
        let topic = broker.topic("t").unwrap();
        drop(broker);
        topic.publish(0).unwrap();
        drop(topic);
        wait_until(|| done.load(SeqCst));
        conserved(&subscription.unsubscribe());
    });
}
