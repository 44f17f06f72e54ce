//! `photon-ring`, the yardstick: one ring shared by all, plain-data payloads only, spinning only, readers that copy first and
//! check afterwards. Its single producer under the topic's mutex is faster in every row than its many-producer channel,
//! which orders publishes itself, so it gets the mutex.

use std::sync::{Arc, Mutex};

use photon_ring::{Pod, Subscriber, TryRecvError, channel, channel_bounded};

use crate::{
    audit::Payload,
    peer::{Batching, Consumer, Handler, Kind, Named, Publish, Receive, Seat, Spinning, Topic, spin},
};

pub struct PhotonRing;

impl Named for PhotonRing {
    const NAME: &'static str = "photon-ring";
    const KIND: Kind = Kind::Yardstick;
}

// SAFETY: four words without padding, valid for any bits, `Copy` and `Send`.
unsafe impl Pod for Payload {}

#[derive(Clone)]
pub struct Publisher(Arc<Mutex<photon_ring::Publisher<Payload>>>);

pub struct Receiver(Subscriber<Payload>);

impl Publish for Publisher {
    #[inline]
    fn publish(&mut self, payload: Payload) {
        self.0.lock().unwrap().publish(payload);
    }
}

impl Receive for Receiver {
    #[inline]
    fn take(&mut self) -> Option<Payload> {
        loop {
            match self.0.try_recv() {
                Ok(payload) => return Some(payload),
                Err(TryRecvError::Lagged { .. }) => {}
                Err(TryRecvError::Empty) => return None,
            }
        }
    }

    fn dropped(&self) -> u64 {
        self.0.total_lagged()
    }
}

impl Topic for PhotonRing {
    type Publisher = Publisher;
    type Receiver = Receiver;

    fn topic(capacity: usize, subscriptions: usize) -> (Publisher, Vec<Receiver>) {
        let (publisher, subscribable) = channel(capacity);
        let receivers = (0..subscriptions).map(|_| Receiver(subscribable.subscribe())).collect();
        (Publisher(Arc::new(Mutex::new(publisher))), receivers)
    }
}

impl Spinning for PhotonRing {
    type Publisher = Publisher;

    fn spinning(capacity: usize, seat: Seat, handler: impl Handler) -> (Publisher, Consumer) {
        let (publisher, mut receivers) = Self::topic(capacity, 1);
        (publisher, spin(receivers.remove(0), seat, handler))
    }
}

impl Batching for PhotonRing {
    type Publisher = photon_ring::Publisher<Payload>;

    /// No mutex, as for the other single producers of this row; the bounded channel waits for room itself.
    fn batching(capacity: usize, seat: Seat, handler: impl Handler) -> (Self::Publisher, Consumer) {
        let (publisher, subscribable) = channel_bounded(capacity, 0);
        (publisher, spin(Receiver(subscribable.subscribe()), seat, handler))
    }

    #[inline]
    fn publish_batch(publisher: &mut Self::Publisher, payloads: &[Payload]) {
        publisher.publish_batch(payloads);
    }
}
