//! Two publishers on two cores, one topic, subscriptions that nobody empties.

use std::{marker::PhantomData, sync::Barrier, thread, time::Instant};

use crate::{
    audit::{Source, Tally, audit},
    machine::{cores, per, pin},
    peer::{CAPACITY, Publish, Topic},
    rows::{Figure, Of, Outcome, Round, Row, all_lanes, mark},
};

const SUBSCRIPTIONS: usize = 4;

pub fn row() -> Row {
    Row {
        name: "two publishers",
        figures: vec![Figure::new("two publishers", "ns a publish", &[mark(0.7, Of::Best)])],
        lanes: all_lanes!(peer, amount => two(peer, amount)),
        crosses: true,
        start: 10_000,
    }
}

/// The value is wall time by the publishes of both.
fn two<P: Topic>(_: PhantomData<P>, publishes: u64) -> Outcome {
    let (mut here, receivers) = P::topic(CAPACITY, SUBSCRIPTIONS);
    let mut there = here.clone();
    let (mut source, mut other) = (Source::new(0), Source::new(1));
    for _ in 0..CAPACITY {
        here.publish(source.next());
    }
    let (each, line) = (publishes / 2, Barrier::new(2));
    let took = thread::scope(|scope| {
        let neighbour = scope.spawn(|| {
            if let Some(core) = cores().consumer {
                pin(core);
            }
            line.wait();
            for _ in 0..each {
                there.publish(other.next());
            }
        });
        line.wait();
        let begun = Instant::now();
        for _ in 0..each {
            here.publish(source.next());
        }
        neighbour.join().expect("a publisher panicked");
        begun.elapsed()
    });
    drop(there);
    let tallies = vec![Tally::default(); SUBSCRIPTIONS];
    // The publishers share their count of drops.
    audit(&[&here], receivers, tallies, [source.published(), other.published()])?;
    Ok(Round { took, values: vec![per(took, 2 * each)] })
}
