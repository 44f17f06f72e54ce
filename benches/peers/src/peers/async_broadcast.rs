//! `async-broadcast` with overflow: one queue shared by all receivers. It orders publishes itself, so it gets no mutex.

use std::sync::Arc;

use async_broadcast::{RecvError, TryRecvError, broadcast};

use crate::{
    audit::Payload,
    peer::{Consumer, Handler, Kind, Named, Parking, Publish, Receive, Seat, Spinning, Topic, sleep, spin},
};

pub struct AsyncBroadcast;

impl Named for AsyncBroadcast {
    const NAME: &'static str = "async-broadcast";
    const KIND: Kind = Kind::DropOldest;
}

#[derive(Clone)]
pub struct Publisher(Arc<async_broadcast::Sender<Payload>>);

pub struct Receiver {
    receiver: async_broadcast::Receiver<Payload>,
    overflowed: u64,
}

impl Publish for Publisher {
    #[inline]
    fn publish(&mut self, payload: Payload) {
        // What it evicts is counted by each receiver that missed it.
        let _ = self.0.try_broadcast(payload);
    }
}

impl Receive for Receiver {
    #[inline]
    fn take(&mut self) -> Option<Payload> {
        loop {
            match self.receiver.try_recv() {
                Ok(payload) => return Some(payload),
                Err(TryRecvError::Overflowed(messages)) => self.overflowed += messages,
                Err(TryRecvError::Empty | TryRecvError::Closed) => return None,
            }
        }
    }

    fn dropped(&self) -> u64 {
        self.overflowed
    }
}

impl Receiver {
    fn wait(&mut self) -> (Payload, u64) {
        let mut overflowed = 0;
        loop {
            match self.receiver.recv_blocking() {
                Ok(payload) => return (payload, overflowed),
                Err(RecvError::Overflowed(messages)) => overflowed += messages,
                Err(RecvError::Closed) => panic!("closed before its last message"),
            }
        }
    }
}

impl Topic for AsyncBroadcast {
    type Publisher = Publisher;
    type Receiver = Receiver;

    fn topic(capacity: usize, subscriptions: usize) -> (Publisher, Vec<Receiver>) {
        let (mut sender, first) = broadcast(capacity);
        sender.set_overflow(true);
        let mut receivers = vec![Receiver { receiver: first, overflowed: 0 }];
        receivers
            .extend((1..subscriptions).map(|_| Receiver { receiver: sender.new_receiver(), overflowed: 0 }));
        (Publisher(Arc::new(sender)), receivers)
    }
}

impl Spinning for AsyncBroadcast {
    type Publisher = Publisher;

    fn spinning(capacity: usize, seat: Seat, handler: impl Handler) -> (Publisher, Consumer) {
        let (publisher, mut receivers) = Self::topic(capacity, 1);
        (publisher, spin(receivers.remove(0), seat, handler))
    }
}

impl Parking for AsyncBroadcast {
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
            .map(|(handler, mut receiver)| sleep(move || receiver.wait(), seat.clone(), handler))
            .collect();
        (publisher, all, consumers)
    }
}
