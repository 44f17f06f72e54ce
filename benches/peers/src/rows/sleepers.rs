//! Rows with consumers that sleep: the hand-off to one, and the cost of a publish that has many to wake.

use std::{marker::PhantomData, time::Instant};

use crate::{
    audit::{Audited, Fault, Payload, Progress, Reports, Source, audited, settle},
    latency::{Latencies, Pace},
    machine::{cores, ticks},
    peer::{CAPACITY, Consumer, Handler, Parking, Publish, Seat},
    peers::{AsyncBroadcast, CrossbeamChannel, Fanout, Naive, Tokio},
    rows::{Figure, Of, Outcome, Round, Row, lanes, mark},
};

const PARKED_EVERY_NS: f64 = 200_000.0;
/// Between two publishes, once all have been served: long enough for all of them, which share a core and may spin for a while
/// each, to fall asleep again.
const REST_NS: f64 = 200_000.0;
const REST_EACH_NS: f64 = 50_000.0;

pub fn parked() -> Row {
    Row {
        name: "handoff parked",
        figures: vec![Figure::new("handoff parked p50", "ns", &[mark(1.0, Of::Best)])],
        lanes: lanes!(peer, amount => handoff(peer, amount); Fanout, Naive, Tokio, AsyncBroadcast, CrossbeamChannel),
        crosses: true,
        start: 50,
    }
}

pub fn many() -> Row {
    let figure =
        |sleepers: u64| Figure::new(format!("sleepers/{sleepers}"), "ns a publish", &[mark(1.0, Of::Best)]);
    Row {
        name: "sleepers",
        figures: vec![figure(1), figure(10), figure(100)],
        lanes: lanes!(peer, amount => wake_all(peer, amount); Fanout, Naive, Tokio, AsyncBroadcast, CrossbeamChannel),
        crosses: true,
        start: 10,
    }
}

fn handoff<P: Parking>(_: PhantomData<P>, messages: u64) -> Outcome {
    let (audited, handler) =
        audited(Reports::MARKED, Latencies::default(), |payload: &Payload, latencies| {
            latencies.since(payload.stamp)
        });
    let (mut publisher, _, mut consumers) =
        P::parking(CAPACITY, 0, &Seat::at(cores().consumer), vec![handler]);
    let mut source = Source::new(0);
    let begun = Instant::now();
    let mut pace = Pace::every(PARKED_EVERY_NS);
    for message in 1..=messages {
        pace.wait();
        let mut payload = if message == messages { source.last() } else { source.next() };
        payload.stamp = ticks();
        publisher.publish(payload);
    }
    audited.progress.wait(source.published())?;
    let took = begun.elapsed();
    let (_, latencies) = audited.close(publisher, consumers.remove(0), source.published())?;
    Ok(Round { took, values: vec![latencies.at(0.5)] })
}

fn wake_all<P: Parking>(peer: PhantomData<P>, publishes: u64) -> Outcome {
    let begun = Instant::now();
    let mut values = Vec::new();
    for sleepers in [1, 10, 100] {
        values.push(wake::<P>(peer, publishes, sleepers)?);
    }
    Ok(Round { took: begun.elapsed(), values })
}

/// The median publish to `sleepers` that are all asleep. Not their wake-up: what the publisher pays for it.
fn wake<P: Parking>(_: PhantomData<P>, publishes: u64, sleepers: usize) -> Result<f64, Fault> {
    let served = Progress::default();
    let (books, handlers): (Vec<Audited<()>>, Vec<_>) = (0..sleepers).map(|_| sleeper(&served)).unzip();
    let (mut publisher, _, consumers) = P::parking(CAPACITY, 0, &Seat::at(cores().consumer), handlers);

    let mut source = Source::new(0);
    let mut latencies = Latencies::default();
    for publish in 0..=publishes {
        let payload = if publish == publishes { source.last() } else { source.next() };
        let stamp = ticks();
        publisher.publish(payload);
        let took = ticks() - stamp;
        // The first finds threads that have never slept.
        if publish > 0 {
            latencies.record(took);
        }
        served.wait(source.published() * sleepers as u64)?;
        Pace::every(REST_NS + REST_EACH_NS * sleepers as f64).wait();
    }
    finish(publisher, books, consumers, source.published())?;
    Ok(latencies.at(0.5))
}

fn sleeper(served: &Progress) -> (Audited<()>, impl Handler + use<>) {
    let served = served.clone();
    audited(Reports::MARKED, (), move |_: &Payload, ()| served.bump())
}

/// Closes the books of several consumers of one publisher.
fn finish<P: Publish>(
    publisher: P,
    books: Vec<Audited<()>>,
    consumers: Vec<Consumer>,
    published: u64,
) -> Result<(), Fault> {
    let (mut missed, mut dropped) = (0, publisher.dropped());
    for (audited, consumer) in books.into_iter().zip(consumers) {
        let (_, missed_here, dropped_here, ()) = audited.collect(consumer, published, || 0)?;
        missed += missed_here;
        dropped += dropped_here;
    }
    settle(missed, dropped)
}
