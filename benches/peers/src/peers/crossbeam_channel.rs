//! `crossbeam-channel`, a bounded channel per subscription: under the topic's mutex the publisher sends, and takes the
//! oldest out itself while the channel is full.

use std::sync::{Arc, Mutex};

use crossbeam_channel::{Receiver as Tail, Sender, TrySendError, bounded};

use crate::{
    audit::Payload,
    peer::{Consumer, Handler, Kind, Named, Parking, Publish, Receive, Seat, Spinning, Topic, sleep, spin},
};

pub struct CrossbeamChannel;

impl Named for CrossbeamChannel {
    const NAME: &'static str = "crossbeam-channel";
    const KIND: Kind = Kind::DropOldest;
}

struct Fan {
    channels: Vec<(Sender<Payload>, Tail<Payload>)>,
    dropped: u64,
}

#[derive(Clone)]
pub struct Publisher(Arc<Mutex<Fan>>);

pub struct Receiver(Tail<Payload>);

impl Publish for Publisher {
    #[inline]
    fn publish(&mut self, payload: Payload) {
        let mut fan = self.0.lock().unwrap();
        let mut dropped = 0;
        for (sender, tail) in &fan.channels {
            while let Err(TrySendError::Full(_)) = sender.try_send(payload) {
                dropped += u64::from(tail.try_recv().is_ok());
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
        self.0.try_recv().ok()
    }
}

impl Topic for CrossbeamChannel {
    type Publisher = Publisher;
    type Receiver = Receiver;

    fn topic(capacity: usize, subscriptions: usize) -> (Publisher, Vec<Receiver>) {
        let channels: Vec<_> = (0..subscriptions).map(|_| bounded(capacity)).collect();
        let receivers = channels.iter().map(|(_, tail)| Receiver(tail.clone())).collect();
        (Publisher(Arc::new(Mutex::new(Fan { channels, dropped: 0 }))), receivers)
    }
}

impl Spinning for CrossbeamChannel {
    type Publisher = Publisher;

    fn spinning(capacity: usize, seat: Seat, handler: impl Handler) -> (Publisher, Consumer) {
        let (publisher, mut receivers) = Self::topic(capacity, 1);
        (publisher, spin(receivers.remove(0), seat, handler))
    }
}

impl Parking for CrossbeamChannel {
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
            .map(|(handler, receiver)| {
                let next = move || (receiver.0.recv().expect("closed before its last message"), 0);
                sleep(next, seat.clone(), handler)
            })
            .collect();
        (publisher, all, consumers)
    }
}
