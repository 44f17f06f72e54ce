//! `crossbeam_queue::ArrayQueue`, a queue per subscription, `force_push` under the topic's mutex.

use std::sync::{Arc, Mutex};

use crossbeam_queue::ArrayQueue as Queue;

use crate::{
    audit::Payload,
    peer::{Consumer, Handler, Kind, Named, Publish, Receive, Seat, Spinning, Topic, spin},
};

pub struct ArrayQueue;

impl Named for ArrayQueue {
    const NAME: &'static str = "array-queue";
    const KIND: Kind = Kind::DropOldest;
}

struct Fan {
    queues: Vec<Arc<Queue<Payload>>>,
    dropped: u64,
}

#[derive(Clone)]
pub struct Publisher(Arc<Mutex<Fan>>);

pub struct Receiver(Arc<Queue<Payload>>);

impl Publish for Publisher {
    #[inline]
    fn publish(&mut self, payload: Payload) {
        let mut fan = self.0.lock().unwrap();
        let mut dropped = 0;
        for queue in &fan.queues {
            dropped += u64::from(queue.force_push(payload).is_some());
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
        self.0.pop()
    }
}

impl Topic for ArrayQueue {
    type Publisher = Publisher;
    type Receiver = Receiver;

    fn topic(capacity: usize, subscriptions: usize) -> (Publisher, Vec<Receiver>) {
        let queues: Vec<_> = (0..subscriptions).map(|_| Arc::new(Queue::new(capacity))).collect();
        let receivers = queues.iter().cloned().map(Receiver).collect();
        (Publisher(Arc::new(Mutex::new(Fan { queues, dropped: 0 }))), receivers)
    }
}

impl Spinning for ArrayQueue {
    type Publisher = Publisher;

    fn spinning(capacity: usize, seat: Seat, handler: impl Handler) -> (Publisher, Consumer) {
        let (publisher, mut receivers) = Self::topic(capacity, 1);
        (publisher, spin(receivers.remove(0), seat, handler))
    }
}
