//! A payload of a mebibyte, inline, and workers with the stack that every thread gets. A binary of its own: a stack
//! that overflows takes the whole process with it.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "the crate's door to concurrency is for the crate; tests use std"
)]

mod support;

use std::{
    sync::{Arc, Mutex},
    thread,
};

use fanout::{Broker, Message, SubscriptionConfig};
use support::{Gate, conserved, wait_until};

const SIZE: usize = 1 << 20;

#[derive(Clone)]
struct Big([u8; SIZE]);

/// The publisher's own stack must hold the payload, several times over without optimisation.
fn with_room(body: impl FnOnce() + Send + 'static) {
    thread::Builder::new().stack_size(64 * SIZE).spawn(body).unwrap().join().unwrap();
}

#[test]
fn workers_handle_it_where_it_lies() {
    with_room(|| {
        let (broker, gate, seen) = (Broker::new(), Gate::new(), Arc::new(Mutex::new(Vec::new())));
        let subscriptions: Vec<_> = (0..2)
            .map(|_| {
                let (gate, seen) = (gate.clone(), seen.clone());
                let handler = move |message: &Message<Big>| {
                    gate.pass();
                    assert!(message.0.iter().all(|&byte| byte == message.0[0]));
                    seen.lock().unwrap().push(message.0[0]);
                };
                broker.subscribe("t", SubscriptionConfig::at_most_once(2), handler).unwrap()
            })
            .collect();
        broker.publish("t", Big([0; SIZE])).unwrap();
        gate.wait_entered(2);
        for value in 1..=4 {
            broker.publish("t", Big([value; SIZE])).unwrap();
        }
        gate.open();
        wait_until(|| subscriptions.iter().all(|subscription| subscription.metrics().delivered == 3));
        for subscription in subscriptions {
            let last = subscription.unsubscribe();
            assert_eq!((last.dropped, last.panicked), (2, 0));
            conserved(&last);
        }
        let mut seen = seen.lock().unwrap().clone();
        seen.sort_unstable();
        assert_eq!(seen, [0, 0, 3, 3, 4, 4]);
    });
}

#[test]
fn receivers_take_it_out() {
    with_room(|| {
        let broker = Broker::new();
        let mut receiver = broker.receiver("t", SubscriptionConfig::at_most_once(1)).unwrap();
        let topic = broker.topic("t").unwrap();
        topic.publish(Big([1; SIZE])).unwrap();
        topic.publish_batch((2..4).map(|value| Big([value; SIZE]))).unwrap();
        assert_eq!(receiver.try_recv().unwrap().into_payload().0[SIZE - 1], 3);
        conserved(&receiver.metrics());
    });
}
