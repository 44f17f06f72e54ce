//! The naive broker: a `Mutex<VecDeque>` per subscription behind the topic's mutex, with a condition variable for those
//! who sleep.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex},
};

use crate::{
    audit::Payload,
    peer::{Consumer, Handler, Kind, Named, Parking, Publish, Receive, Seat, Spinning, Topic, sleep, spin},
};

pub struct Naive;

impl Named for Naive {
    const NAME: &'static str = "naive";
    const KIND: Kind = Kind::DropOldest;
}

struct Queue {
    messages: VecDeque<Payload>,
    /// Whether somebody waits: a notification nobody waits for is not worth its load.
    sleeps: bool,
}

struct Subscription {
    queue: Mutex<Queue>,
    arrived: Condvar,
    capacity: usize,
}

struct Fan {
    subscriptions: Vec<Arc<Subscription>>,
    dropped: u64,
}

#[derive(Clone)]
pub struct Publisher(Arc<Mutex<Fan>>);

pub struct Receiver(Arc<Subscription>);

impl Publish for Publisher {
    #[inline]
    fn publish(&mut self, payload: Payload) {
        let mut fan = self.0.lock().unwrap();
        let mut dropped = 0;
        for subscription in &fan.subscriptions {
            let mut queue = subscription.queue.lock().unwrap();
            if queue.messages.len() == subscription.capacity {
                queue.messages.pop_front();
                dropped += 1;
            }
            queue.messages.push_back(payload);
            let sleeps = queue.sleeps;
            drop(queue);
            if sleeps {
                subscription.arrived.notify_one();
            }
        }
        fan.dropped += dropped;
    }

    fn dropped(&self) -> u64 {
        self.0.lock().unwrap().dropped
    }
}

impl Receive for Receiver {
    #[inline]
    fn take(&mut self) -> Option<Payload> {
        self.0.queue.lock().unwrap().messages.pop_front()
    }
}

impl Receiver {
    fn wait(&self) -> Payload {
        let mut queue = self.0.queue.lock().unwrap();
        loop {
            if let Some(payload) = queue.messages.pop_front() {
                return payload;
            }
            queue.sleeps = true;
            queue = self.0.arrived.wait(queue).unwrap();
            queue.sleeps = false;
        }
    }
}

impl Topic for Naive {
    type Publisher = Publisher;
    type Receiver = Receiver;

    fn topic(capacity: usize, subscriptions: usize) -> (Publisher, Vec<Receiver>) {
        let subscriptions: Vec<_> = (0..subscriptions)
            .map(|_| {
                let queue = Mutex::new(Queue { messages: VecDeque::with_capacity(capacity), sleeps: false });
                Arc::new(Subscription { queue, arrived: Condvar::new(), capacity })
            })
            .collect();
        let receivers = subscriptions.iter().cloned().map(Receiver).collect();
        (Publisher(Arc::new(Mutex::new(Fan { subscriptions, dropped: 0 }))), receivers)
    }
}

impl Spinning for Naive {
    type Publisher = Publisher;

    fn spinning(capacity: usize, seat: Seat, handler: impl Handler) -> (Publisher, Consumer) {
        let (publisher, mut receivers) = Self::topic(capacity, 1);
        (publisher, spin(receivers.remove(0), seat, handler))
    }
}

impl Parking for Naive {
    fn parking<H: Handler>(
        capacity: usize,
        receivers: usize,
        seat: &Seat,
        handlers: Vec<H>,
    ) -> (Publisher, Vec<Receiver>, Vec<Consumer>) {
        let (publisher, mut all) = Self::topic(capacity, receivers + handlers.len());
        let consumers = handlers
            .into_iter()
            .zip(all.split_off(receivers))
            .map(|(handler, receiver)| sleep(move || (receiver.wait(), 0), seat.clone(), handler))
            .collect();
        (publisher, all, consumers)
    }
}
