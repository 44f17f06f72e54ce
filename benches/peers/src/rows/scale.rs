//! What grows with the number of subscriptions and of topics.

use std::{
    hint,
    marker::PhantomData,
    sync::OnceLock,
    time::{Duration, Instant},
};

use fanout::Broker;

use crate::{
    audit::{Payload, Source},
    machine::per,
    peer::Topic,
    peers::Fanout,
    rows::{Figure, Of, Outcome, Round, Row, all_lanes, lanes, mark, one_thread::evicting},
};

/// Small, so that a thousand rings fit the caches.
const CAPACITY: usize = 16;
const SUBSCRIPTIONS: [(&str, usize); 4] =
    [("scale/1", 1), ("scale/10", 10), ("scale/100", 100), ("scale/1000", 1_000)];
const TOPICS: [usize; 4] = [1, 100, 10_000, 100_000];
/// So many names are in use at a time; all of them fit the caches, however many topics there are.
const IN_USE: usize = 64;

pub fn rows() -> Vec<Row> {
    let mut rows: Vec<_> = SUBSCRIPTIONS
        .iter()
        .map(|&(name, subscriptions)| {
            let marks = if subscriptions == 1_000 { vec![mark(1.3, Of::Own("scale/10"))] } else { vec![] };
            Row {
                name,
                figures: vec![Figure::new(name, "ns a subscription", &marks)],
                lanes: all_lanes!(peer, amount => grow(peer, amount, subscriptions)),
                crosses: false,
                start: 100,
            }
        })
        .collect();
    let look_up = |topics: usize| {
        let marks = if topics == 1 { vec![] } else { vec![mark(3.0, Of::Own("look-up/1"))] };
        Figure::new(format!("look-up/{topics}"), "ns a publish by name", &marks)
    };
    let mut look_ups: Vec<_> = TOPICS.iter().map(|topics| look_up(*topics)).collect();
    look_ups.push(Figure::new("look-up/100000, all in use", "ns a publish by name", &[]));
    rows.push(Row {
        name: "look-up",
        figures: look_ups,
        lanes: lanes!(peer, amount => look_up_round(peer, amount); Fanout),
        crosses: false,
        start: 10_000,
    });
    rows
}

fn grow<P: Topic>(_: PhantomData<P>, publishes: u64, subscriptions: usize) -> Outcome {
    let mut round = evicting::<P>(publishes, subscriptions, CAPACITY)?;
    round.values[0] /= subscriptions as f64;
    Ok(round)
}

struct Names {
    broker: Broker<Payload>,
    /// In an order unlike that of their creation.
    names: Vec<String>,
}

/// Made once: a hundred thousand topics take longer to create than to measure.
fn brokers() -> &'static [Names] {
    static BROKERS: OnceLock<Vec<Names>> = OnceLock::new();
    BROKERS.get_or_init(|| {
        TOPICS
            .iter()
            .map(|topics| {
                let broker = Broker::new();
                let names: Vec<_> = (0..*topics).map(|topic| format!("orders.book.{topic}")).collect();
                for name in &names {
                    broker.topic(name).expect("a good name");
                }
                // A stride without a common factor with the powers of ten visits all of them, far apart.
                let names = (0..*topics).map(|at| names[at * 7_919 % topics].clone()).collect();
                Names { broker, names }
            })
            .collect()
    })
}

fn look_up_round(_: PhantomData<Fanout>, publishes: u64) -> Outcome {
    let (mut took, mut values) = (Duration::MAX, Vec::new());
    let mut measure = |names: &Names, in_use: usize| {
        let names_in_use = &names.names[..in_use.min(names.names.len())];
        let mut source = Source::new(0);
        let mut publish_all = |publishes: u64| {
            let begun = Instant::now();
            for name in names_in_use.iter().cycle().take(publishes as usize) {
                let published = names.broker.publish(name, source.next());
                hint::black_box(published.expect("an open topic"));
            }
            begun.elapsed()
        };
        publish_all(in_use as u64);
        let this = publish_all(publishes);
        took = took.min(this);
        values.push(per(this, publishes));
    };
    for names in brokers() {
        measure(names, IN_USE);
    }
    let last = brokers().last().expect("several sizes");
    measure(last, last.names.len());
    Ok(Round { took, values })
}
