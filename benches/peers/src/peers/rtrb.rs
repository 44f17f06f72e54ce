//! `rtrb`: a wait-free single-producer single-consumer ring. Lossless: the publisher retries while it is full.

use std::hint;

use rtrb::{Consumer as Tail, Producer, PushError, RingBuffer};

use crate::{
    audit::Payload,
    peer::{Batching, Consumer, Handler, Kind, Named, Publish, Receive, Seat, Spinning, spin},
};

pub struct Rtrb;

impl Named for Rtrb {
    const NAME: &'static str = "rtrb";
    const KIND: Kind = Kind::Lossless;
}

/// No mutex: the type has a single producer, which orders its publishes.
pub struct Publisher(Producer<Payload>);

struct Receiver(Tail<Payload>);

impl Publish for Publisher {
    #[inline]
    fn publish(&mut self, payload: Payload) {
        while let Err(PushError::Full(_)) = self.0.push(payload) {
            hint::spin_loop();
        }
    }
}

impl Receive for Receiver {
    #[inline]
    fn take(&mut self) -> Option<Payload> {
        self.0.pop().ok()
    }
}

impl Spinning for Rtrb {
    type Publisher = Publisher;

    fn spinning(capacity: usize, seat: Seat, handler: impl Handler) -> (Publisher, Consumer) {
        let (producer, tail) = RingBuffer::new(capacity);
        (Publisher(producer), spin(Receiver(tail), seat, handler))
    }
}

impl Batching for Rtrb {
    type Publisher = Publisher;

    fn batching(capacity: usize, seat: Seat, handler: impl Handler) -> (Publisher, Consumer) {
        Self::spinning(capacity, seat, handler)
    }

    #[inline]
    fn publish_batch(publisher: &mut Publisher, mut payloads: &[Payload]) {
        while let (_, rest @ [_, ..]) = publisher.0.push_partial_slice(payloads) {
            payloads = rest;
            hint::spin_loop();
        }
    }
}
