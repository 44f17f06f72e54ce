//! `disruptor`: single producer, one managed consumer thread, busy spin. Lossless: a full ring makes the producer spin.

use disruptor::{BusySpin, Producer, SingleConsumerBarrier, SingleProducer, build_single_producer};

use crate::{
    audit::Payload,
    peer::{Batching, Consumer, Handler, Kind, Named, Publish, Seat, Spinning},
};

pub struct Disruptor;

impl Named for Disruptor {
    const NAME: &'static str = "disruptor";
    const KIND: Kind = Kind::Lossless;
}

/// No mutex: the type has a single producer, which orders its publishes.
pub struct Publisher(SingleProducer<Payload, SingleConsumerBarrier>);

impl Publish for Publisher {
    #[inline]
    fn publish(&mut self, payload: Payload) {
        self.0.publish(|slot| *slot = payload);
    }
}

/// `size` must be a power of two. The handler's end is the producer's: dropping it joins the thread.
fn build(size: usize, seat: Seat, mut handler: impl Handler) -> (Publisher, Consumer) {
    // Its own pinning looks at the cores that the building thread may use, which is one: the publisher's. So the consumer takes
    // its seat itself, with the message that every row sends before it begins.
    let mut seated = false;
    let each = move |payload: &Payload, _, _| {
        if !seated {
            seated = true;
            seat.take();
        }
        handler(payload);
    };
    let producer = build_single_producer(size, Payload::default, BusySpin).handle_events_with(each).build();
    (Publisher(producer), Consumer::new(|| 0))
}

impl Spinning for Disruptor {
    type Publisher = Publisher;

    fn spinning(capacity: usize, seat: Seat, handler: impl Handler) -> (Publisher, Consumer) {
        build(capacity, seat, handler)
    }
}

impl Batching for Disruptor {
    type Publisher = Publisher;

    fn batching(capacity: usize, seat: Seat, handler: impl Handler) -> (Publisher, Consumer) {
        build(capacity, seat, handler)
    }

    #[inline]
    fn publish_batch(publisher: &mut Publisher, payloads: &[Payload]) {
        publisher.0.batch_publish(payloads.len(), |slots| {
            for (slot, payload) in slots.zip(payloads) {
                *slot = *payload;
            }
        });
    }
}
