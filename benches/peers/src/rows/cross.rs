//! Rows between two cores: one publisher, one consumer that spins.

use std::{hint, marker::PhantomData, time::Instant};

use crate::{
    audit::{Fault, Payload, Progress, Reports, Source, audited, settle},
    latency::{Latencies, Pace},
    machine::{cores, per, ticks},
    peer::{Batching, CAPACITY, Kind, Publish, Seat, Spinning},
    peers::{Disruptor, Fanout, PhotonRing, Rtrb},
    rows::{Figure, Of, Outcome, Round, Row, all_lanes, lanes, mark},
};

/// At most so many messages are under way in the lossless rows.
const IN_FLIGHT: u64 = 512;
const BATCH: usize = 32;
const HANDOFF_EVERY_NS: f64 = 3_000.0;

pub fn rows() -> Vec<Row> {
    let latency_marks = [mark(1.0, Of::Best), mark(1.1, Of::Peer("disruptor"))];
    vec![
        Row {
            name: "flood",
            figures: vec![
                Figure::new("flood publish", "ns a publish", &[mark(0.5, Of::Best)]),
                Figure::new("flood delivered", "ns a delivery", &[mark(0.4, Of::Best)]),
            ],
            lanes: all_lanes!(peer, amount => flood(peer, amount)),
            crosses: true,
            start: 10_000,
        },
        Row {
            name: "lossless",
            figures: vec![Figure::new(
                "lossless",
                "ns a message",
                &[mark(0.6, Of::Best), mark(2.0, Of::Peer("disruptor"))],
            )],
            lanes: all_lanes!(peer, amount => lossless(peer, amount); Disruptor, Rtrb),
            crosses: true,
            start: 10_000,
        },
        Row {
            name: "lossless batch",
            figures: vec![Figure::new("lossless batch", "ns a message", &[mark(2.0, Of::Peer("disruptor"))])],
            lanes: lanes!(peer, amount => batch(peer, amount); Fanout, Disruptor, Rtrb, PhotonRing),
            crosses: true,
            start: 1_000,
        },
        Row {
            name: "handoff",
            figures: vec![
                Figure::new("handoff p50", "ns", &latency_marks),
                Figure::new("handoff p99", "ns", &latency_marks),
            ],
            lanes: all_lanes!(peer, amount => handoff(peer, amount); Disruptor, Rtrb),
            crosses: true,
            start: 2_000,
        },
    ]
}

fn seat() -> Seat {
    Seat::at(cores().consumer)
}

/// The publisher at full speed, never waiting; what the consumer cannot take is dropped.
fn flood<P: Spinning>(_: PhantomData<P>, publishes: u64) -> Outcome {
    let (audited, handler) = audited(Reports::MARKED, (), |_: &Payload, ()| {});
    let (mut publisher, consumer) = P::spinning(CAPACITY, seat(), handler);
    let mut source = Source::new(0);
    publisher.publish(source.signal());
    audited.progress.wait(1)?;

    let begun = Instant::now();
    for _ in 1..publishes {
        publisher.publish(source.next());
    }
    publisher.publish(source.last());
    let published = begun.elapsed();
    // The last message is the newest, which is never the one dropped.
    audited.progress.wait(source.published())?;
    let delivered = begun.elapsed();

    let (received, ()) = audited.close(publisher, consumer, source.published())?;
    Ok(Round { took: published, values: vec![per(published, publishes), per(delivered, received - 1)] })
}

/// Room for the publisher of a peer that would drop: it looks at the consumer's progress only when its room is used up.
struct Credit {
    room: u64,
    progress: Progress,
}

impl Credit {
    #[inline]
    fn spend(&mut self, messages: u64, published: u64) {
        while self.room < messages {
            self.room = IN_FLIGHT - (published - self.progress.get());
            if self.room < messages {
                hint::spin_loop();
            }
        }
        self.room -= messages;
    }
}

/// Nothing dropped: a lossless peer waits for room in a ring of `IN_FLIGHT`, the others by the handler's progress.
fn lossless<P: Spinning>(_: PhantomData<P>, messages: u64) -> Outcome {
    let waits = P::KIND == Kind::Lossless;
    let (audited, handler) =
        audited(if waits { Reports::MARKED } else { Reports::EVERY_32 }, (), |_: &Payload, ()| {});
    let capacity = if waits { IN_FLIGHT as usize } else { CAPACITY };
    let (mut publisher, consumer) = P::spinning(capacity, seat(), handler);
    let mut source = Source::new(0);
    publisher.publish(source.signal());
    audited.progress.wait(1)?;

    let mut credit = Credit { room: IN_FLIGHT, progress: audited.progress.clone() };
    let begun = Instant::now();
    for _ in 1..messages {
        if !waits {
            credit.spend(1, source.published());
        }
        publisher.publish(source.next());
    }
    if !waits {
        credit.spend(1, source.published());
    }
    publisher.publish(source.last());
    audited.progress.wait(source.published())?;
    let took = begun.elapsed();

    let (received, ()) = audited.close(publisher, consumer, source.published())?;
    all_arrived(received, source.published())?;
    Ok(Round { took, values: vec![per(took, messages)] })
}

/// The same, `BATCH` at a time.
fn batch<P: Batching>(_: PhantomData<P>, batches: u64) -> Outcome {
    let waits = P::KIND != Kind::Subject;
    let (audited, handler) =
        audited(if waits { Reports::MARKED } else { Reports::EVERY_32 }, (), |_: &Payload, ()| {});
    let capacity = if waits { IN_FLIGHT as usize } else { CAPACITY };
    let (mut publisher, consumer) = P::batching(capacity, seat(), handler);
    let mut source = Source::new(0);
    P::publish_batch(&mut publisher, &[source.signal()]);
    audited.progress.wait(1)?;

    let mut payloads = [Payload::default(); BATCH];
    let mut credit = Credit { room: IN_FLIGHT, progress: audited.progress.clone() };
    let begun = Instant::now();
    for batch in 1..=batches {
        if !waits {
            credit.spend(BATCH as u64, source.published());
        }
        payloads.fill_with(|| source.next());
        if batch == batches {
            payloads[BATCH - 1].mark_last();
        }
        P::publish_batch(&mut publisher, &payloads);
    }
    audited.progress.wait(source.published())?;
    let took = begun.elapsed();

    let (received, missed, dropped, ()) = audited.collect(consumer, source.published(), || {
        drop(publisher);
        0
    })?;
    settle(missed, dropped)?;
    all_arrived(received, source.published())?;
    Ok(Round { took, values: vec![per(took, batches * BATCH as u64)] })
}

fn all_arrived(received: u64, published: u64) -> Result<(), Fault> {
    if received == published {
        Ok(())
    } else {
        Err(Fault(format!("a lossless row lost {} messages", published - received)))
    }
}

/// One message every few microseconds, from just before its publish to the first line of its handler.
fn handoff<P: Spinning>(_: PhantomData<P>, messages: u64) -> Outcome {
    let (audited, handler) =
        audited(Reports::MARKED, Latencies::default(), |payload: &Payload, latencies| {
            latencies.since(payload.stamp)
        });
    let (mut publisher, consumer) = P::spinning(CAPACITY, seat(), handler);
    let mut source = Source::new(0);
    let mut first = source.signal();
    first.stamp = ticks();
    publisher.publish(first);
    audited.progress.wait(1)?;

    let begun = Instant::now();
    let mut pace = Pace::every(HANDOFF_EVERY_NS);
    for _ in 1..messages {
        pace.wait();
        let mut payload = source.next();
        payload.stamp = ticks();
        publisher.publish(payload);
    }
    pace.wait();
    let mut last = source.last();
    last.stamp = ticks();
    publisher.publish(last);
    audited.progress.wait(source.published())?;
    let took = begun.elapsed();

    let (_, latencies) = audited.close(publisher, consumer, source.published())?;
    Ok(Round { took, values: vec![latencies.at(0.5), latencies.at(0.99)] })
}
