//! `tokio::sync::broadcast`: one ring shared by all receivers. It orders publishes itself, so it gets no mutex.

use std::sync::Arc;

use tokio::sync::broadcast::{
    self,
    error::{RecvError, TryRecvError},
};

use crate::{
    audit::Payload,
    peer::{Consumer, Handler, Kind, Named, Parking, Publish, Receive, Seat, Spinning, Topic, sleep, spin},
};

pub struct Tokio;

impl Named for Tokio {
    const NAME: &'static str = "tokio";
    const KIND: Kind = Kind::DropOldest;
}

/// Shared by reference: cloning the sender itself would count references, which publishing does not need.
#[derive(Clone)]
pub struct Publisher(Arc<broadcast::Sender<Payload>>);

pub struct Receiver {
    receiver: broadcast::Receiver<Payload>,
    lagged: u64,
}

impl Publish for Publisher {
    #[inline]
    fn publish(&mut self, payload: Payload) {
        // The count of receivers, or an error when there are none: either way it is done.
        let _ = self.0.send(payload);
    }
}

impl Receive for Receiver {
    #[inline]
    fn take(&mut self) -> Option<Payload> {
        loop {
            match self.receiver.try_recv() {
                Ok(payload) => return Some(payload),
                Err(TryRecvError::Lagged(messages)) => self.lagged += messages,
                Err(TryRecvError::Empty | TryRecvError::Closed) => return None,
            }
        }
    }

    fn dropped(&self) -> u64 {
        self.lagged
    }
}

impl Receiver {
    fn wait(&mut self) -> (Payload, u64) {
        let mut lagged = 0;
        loop {
            match self.receiver.blocking_recv() {
                Ok(payload) => return (payload, lagged),
                Err(RecvError::Lagged(messages)) => lagged += messages,
                Err(RecvError::Closed) => panic!("closed before its last message"),
            }
        }
    }
}

impl Topic for Tokio {
    type Publisher = Publisher;
    type Receiver = Receiver;

    fn topic(capacity: usize, subscriptions: usize) -> (Publisher, Vec<Receiver>) {
        let sender = broadcast::Sender::new(capacity);
        let receivers =
            (0..subscriptions).map(|_| Receiver { receiver: sender.subscribe(), lagged: 0 }).collect();
        (Publisher(Arc::new(sender)), receivers)
    }
}

impl Spinning for Tokio {
    type Publisher = Publisher;

    fn spinning(capacity: usize, seat: Seat, handler: impl Handler) -> (Publisher, Consumer) {
        let (publisher, mut receivers) = Self::topic(capacity, 1);
        (publisher, spin(receivers.remove(0), seat, handler))
    }
}

impl Parking for Tokio {
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
