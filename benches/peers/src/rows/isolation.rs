//! One slow subscription among many: what the others' publisher pays for it.

use std::{
    marker::PhantomData,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    audit::{Fault, Payload, Reports, Source, Tally, audit, audited, settle},
    latency::Latencies,
    machine::{cores, ticks},
    peer::{CAPACITY, Parking, Publish, Receive, Seat, Topic},
    peers::{ArrayQueue, AsyncBroadcast, CrossbeamChannel, Fanout, Naive, PhotonRing, RingChannel, Tokio},
    rows::{Figure, Of, Outcome, Round, Row, lanes, mark},
};

const SUBSCRIPTIONS: usize = 100;
/// Publishes between two times of emptying: half a ring.
const TURN: usize = CAPACITY / 2;
const NAP: Duration = Duration::from_millis(1);

pub fn row() -> Row {
    let emptied = ["isolation p50, all emptied", "isolation p99.9, all emptied"];
    let mut lanes = lanes!(peer, amount => with_nap(peer, amount); Fanout, Naive, Tokio, AsyncBroadcast, CrossbeamChannel);
    lanes.extend(lanes!(peer, amount => without_nap(peer, amount); ArrayQueue, RingChannel, PhotonRing));
    Row {
        name: "isolation",
        figures: vec![
            Figure::new(emptied[0], "ns a publish", &[]),
            Figure::new(emptied[1], "ns a publish", &[]),
            Figure::new(
                "isolation p50, one never emptied",
                "ns a publish",
                &[mark(1.05, Of::Own(emptied[0]))],
            ),
            Figure::new(
                "isolation p99.9, one never emptied",
                "ns a publish",
                &[mark(1.3, Of::Own(emptied[1]))],
            ),
            Figure::new("isolation p50, one naps", "ns a publish", &[]),
            Figure::new("isolation p99.9, one naps", "ns a publish", &[]),
        ],
        lanes,
        crosses: false,
        start: 2,
    }
}

fn without_nap<P: Topic>(_: PhantomData<P>, turns: u64) -> Outcome {
    let begun = Instant::now();
    let values = [receivers::<P>(turns, 0)?, receivers::<P>(turns, 1)?].concat();
    Ok(Round { took: begun.elapsed(), values })
}

fn with_nap<P: Parking>(_: PhantomData<P>, turns: u64) -> Outcome {
    let begun = Instant::now();
    let values = [receivers::<P>(turns, 0)?, receivers::<P>(turns, 1)?, napping::<P>(turns)?].concat();
    Ok(Round { took: begun.elapsed(), values })
}

/// Publishes turn by turn, each publish timed, and empties the receivers after `idle`.
fn publish_turns<P: Publish, R: Receive>(
    turns: u64,
    idle: usize,
    publisher: &mut P,
    source: &mut Source,
    receivers: &mut [R],
    tallies: &mut [Tally],
) -> [f64; 2] {
    let mut latencies = Latencies::default();
    // Recorded after the turn, to keep the histogram out of the caches.
    let mut samples = [0; TURN];
    // The first turns touch every slot and fill what is never emptied; they do not count.
    let warm = 4;
    for turn in 0..warm + turns {
        for sample in &mut samples {
            let payload = source.next();
            let stamp = ticks();
            publisher.publish(payload);
            *sample = ticks() - stamp;
        }
        if turn >= warm {
            latencies.record_all(&samples);
        }
        for (receiver, tally) in receivers.iter_mut().zip(&mut *tallies).skip(idle) {
            while let Some(payload) = receiver.take() {
                tally.see(&payload);
            }
        }
    }
    [latencies.at(0.5), latencies.at(0.999)]
}

fn receivers<P: Topic>(turns: u64, idle: usize) -> Result<[f64; 2], Fault> {
    let (mut publisher, mut receivers) = P::topic(CAPACITY, SUBSCRIPTIONS);
    let mut tallies = vec![Tally::default(); SUBSCRIPTIONS];
    let mut source = Source::new(0);
    let values = publish_turns(turns, idle, &mut publisher, &mut source, &mut receivers, &mut tallies);
    audit(&[&publisher], receivers, tallies, [source.published(), 0])?;
    Ok(values)
}

/// The slow one has a thread, which sleeps after every message.
fn napping<P: Parking>(turns: u64) -> Result<[f64; 2], Fault> {
    let naps = Arc::new(AtomicBool::new(true));
    let (napper, handler) = audited(Reports::MARKED, (), {
        let naps = Arc::clone(&naps);
        move |_: &Payload, ()| {
            if naps.load(Ordering::Relaxed) {
                thread::sleep(NAP);
            }
        }
    });
    let seat = Seat::at(cores().consumer);
    let (mut publisher, mut receivers, mut consumers) =
        P::parking(CAPACITY, SUBSCRIPTIONS - 1, &seat, vec![handler]);
    let mut tallies = vec![Tally::default(); SUBSCRIPTIONS - 1];
    let mut source = Source::new(0);
    let values = publish_turns(turns, 0, &mut publisher, &mut source, &mut receivers, &mut tallies);

    naps.store(false, Ordering::Relaxed);
    publisher.publish(source.last());
    napper.progress.wait(source.published())?;
    let published = [source.published(), 0];
    let mut missed = 0;
    for (receiver, mut tally) in receivers.iter_mut().zip(tallies) {
        while let Some(payload) = receiver.take() {
            tally.see(&payload);
        }
        missed += tally.close(published)?;
    }
    let dropped = publisher.dropped() + receivers.iter().map(Receive::dropped).sum::<u64>();
    let (_, missed_by_napper, dropped_by_napper, ()) =
        napper.collect(consumers.remove(0), source.published(), || 0)?;
    settle(missed + missed_by_napper, dropped + dropped_by_napper)?;
    Ok(values)
}
