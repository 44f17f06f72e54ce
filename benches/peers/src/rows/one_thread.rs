//! Rows on one thread: a publish into rings that nobody empties, and publishing and draining by turns.

use std::{marker::PhantomData, time::Instant};

use crate::{
    audit::{Source, Tally, audit},
    machine::per,
    peer::{CAPACITY, Publish, Receive, Topic},
    rows::{Figure, Mark, Of, Outcome, Round, Row, all_lanes, mark},
};

pub fn rows() -> Vec<Row> {
    vec![
        evict_row("evict/1", 1, &[mark(1.0, Of::Best)]),
        evict_row("evict/16", 16, &[mark(0.5, Of::Peer("array-queue")), mark(0.8, Of::Peer("naive"))]),
        evict_row("evict/64", 64, &[mark(0.5, Of::Peer("array-queue"))]),
        drain_row("drain/1", 1, &[mark(0.8, Of::Best)]),
        drain_row("drain/16", 16, &[mark(0.6, Of::Best)]),
    ]
}

fn evict_row(name: &'static str, subscriptions: usize, marks: &[Mark]) -> Row {
    Row {
        name,
        figures: vec![Figure::new(name, "ns a publish", marks)],
        lanes: all_lanes!(peer, amount => evict(peer, amount, subscriptions)),
        crosses: false,
        start: 10_000,
    }
}

fn drain_row(name: &'static str, subscriptions: usize, marks: &[Mark]) -> Row {
    Row {
        name,
        figures: vec![Figure::new(name, "ns a delivery", marks)],
        lanes: all_lanes!(peer, amount => drain(peer, amount, subscriptions)),
        crosses: false,
        start: 20,
    }
}

fn evict<P: Topic>(_: PhantomData<P>, publishes: u64, subscriptions: usize) -> Outcome {
    evicting::<P>(publishes, subscriptions, CAPACITY)
}

/// Publishes into full rings; the value is nanoseconds a publish.
pub fn evicting<P: Topic>(publishes: u64, subscriptions: usize, capacity: usize) -> Outcome {
    let (mut publisher, receivers) = P::topic(capacity, subscriptions);
    let mut source = Source::new(0);
    for _ in 0..capacity {
        publisher.publish(source.next());
    }
    let begun = Instant::now();
    for _ in 0..publishes {
        publisher.publish(source.next());
    }
    let took = begun.elapsed();
    let tallies = vec![Tally::default(); subscriptions];
    audit(&[&publisher], receivers, tallies, [source.published(), 0])?;
    Ok(Round { took, values: vec![per(took, publishes)] })
}

/// Half a ring in, half a ring out, so nothing is ever dropped.
fn drain<P: Topic>(_: PhantomData<P>, turns: u64, subscriptions: usize) -> Outcome {
    const TURN: u64 = CAPACITY as u64 / 2;
    let (mut publisher, mut receivers) = P::topic(CAPACITY, subscriptions);
    let mut tallies = vec![Tally::default(); subscriptions];
    let mut source = Source::new(0);
    let mut turn = || {
        for _ in 0..TURN {
            publisher.publish(source.next());
        }
        for (receiver, tally) in receivers.iter_mut().zip(&mut tallies) {
            while let Some(payload) = receiver.take() {
                tally.see(&payload);
            }
        }
    };
    // A lap first, so that every slot has been touched.
    turn();
    turn();
    let begun = Instant::now();
    for _ in 0..turns {
        turn();
    }
    let took = begun.elapsed();
    audit(&[&publisher], receivers, tallies, [source.published(), 0])?;
    Ok(Round { took, values: vec![per(took, turns * TURN * subscriptions as u64)] })
}
