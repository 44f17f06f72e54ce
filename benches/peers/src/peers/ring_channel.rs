//! `ring-channel`, a channel per subscription, sent to under the topic's mutex.

use std::{
    num::NonZeroUsize,
    sync::{Arc, Mutex},
};

use ring_channel::{RingReceiver, RingSender, ring_channel};

use crate::{
    audit::Payload,
    peer::{Consumer, Handler, Kind, Named, Publish, Receive, Seat, Spinning, Topic, spin},
};

pub struct RingChannel;

impl Named for RingChannel {
    const NAME: &'static str = "ring-channel";
    const KIND: Kind = Kind::DropOldest;
}

struct Fan {
    senders: Vec<RingSender<Payload>>,
    dropped: u64,
}

#[derive(Clone)]
pub struct Publisher(Arc<Mutex<Fan>>);

pub struct Receiver(RingReceiver<Payload>);

impl Publish for Publisher {
    #[inline]
    fn publish(&mut self, payload: Payload) {
        let mut fan = self.0.lock().unwrap();
        let mut dropped = 0;
        for sender in &fan.senders {
            dropped += u64::from(matches!(sender.send(payload), Ok(Some(_))));
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
        self.0.try_recv().ok()
    }
}

impl Topic for RingChannel {
    type Publisher = Publisher;
    type Receiver = Receiver;

    fn topic(capacity: usize, subscriptions: usize) -> (Publisher, Vec<Receiver>) {
        let capacity = NonZeroUsize::new(capacity).expect("a capacity is at least one");
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..subscriptions)
            .map(|_| {
                let (sender, receiver) = ring_channel(capacity);
                (sender, Receiver(receiver))
            })
            .unzip();
        (Publisher(Arc::new(Mutex::new(Fan { senders, dropped: 0 }))), receivers)
    }
}

impl Spinning for RingChannel {
    type Publisher = Publisher;

    fn spinning(capacity: usize, seat: Seat, handler: impl Handler) -> (Publisher, Consumer) {
        let (publisher, mut receivers) = Self::topic(capacity, 1);
        (publisher, spin(receivers.remove(0), seat, handler))
    }
}
