//! Bytes on the heap for what is there and idle.

use std::{marker::PhantomData, time::Duration};

use fanout::{Broker, Message, SubscriptionConfig};

use crate::{
    audit::{Fault, Payload},
    machine::footprint,
    peer::ThreadSlot,
    peers::Fanout,
    rows::{Figure, Of, Outcome, Round, Row, lanes, mark},
};

const COUNT: usize = 64;
/// Two capacities tell the bytes of a slot from those beside the slots.
const SMALL: usize = 16;
const LARGE: usize = 1_040;

pub fn row() -> Row {
    let beside = [mark(2_048.0, Of::Value)];
    Row {
        name: "footprint",
        figures: vec![
            Figure::new("footprint of a topic", "bytes", &[]),
            Figure::new("footprint of a slot", "bytes", &[]),
            Figure::new("footprint of a receiver beside its slots", "bytes", &beside),
            Figure::new("footprint of a subscription beside its slots and thread", "bytes", &beside),
        ],
        lanes: lanes!(peer, amount => measure(peer, amount); Fanout),
        crosses: false,
        start: 1,
    }
}

fn measure(_: PhantomData<Fanout>, _: u64) -> Outcome {
    let topic =
        each_of(|broker, at| broker.topic(&format!("topic.{at}")).map_err(|error| error.to_string()), drop)?;
    let receiver = |capacity| {
        let config = move || SubscriptionConfig::at_most_once(capacity);
        each_of(move |broker, _| broker.receiver("topic", config()).map_err(|error| error.to_string()), drop)
    };
    let (small, large) = (receiver(SMALL)?, receiver(LARGE)?);
    let slot = (large - small) / (LARGE - SMALL) as f64;
    let slots = slot * SMALL as f64;

    let subscribe = |broker: &Broker<Payload>, _| {
        let thread = ThreadSlot::default();
        let starts = thread.clone();
        let config = SubscriptionConfig::at_most_once(SMALL).on_thread_start(move || starts.fill());
        let subscription = broker.subscribe("topic", config, |_: &Message<Payload>| ());
        // Whatever the thread allocates to begin with counts too.
        while subscription.is_ok() && thread.get() == 0 {
            std::thread::yield_now();
        }
        subscription.map_err(|error| error.to_string())
    };
    // Waits for the threads: what they give back must not be taken off the next count.
    let subscription = each_of(subscribe, |subscription| drop(subscription.unsubscribe()))?;
    // The time is not the point: no amount makes a round long enough, so it says that it is.
    Ok(Round { took: Duration::MAX, values: vec![topic, slot, small - slots, subscription - slots] })
}

/// Bytes for each of several things made of one broker, whose own bytes are there before.
fn each_of<R>(
    make: impl Fn(&Broker<Payload>, usize) -> Result<R, String>,
    end: impl Fn(R),
) -> Result<f64, Fault> {
    let broker = Broker::new();
    let _topic = broker.topic("topic").expect("a good name");
    let first = make(&broker, COUNT).map_err(Fault)?;
    let mut made = Vec::with_capacity(COUNT);
    let (bytes, result) = footprint(|| {
        for at in 0..COUNT {
            made.push(make(&broker, at)?);
        }
        Ok(())
    });
    made.into_iter().chain([first]).for_each(end);
    result.map_err(Fault)?;
    Ok(bytes as f64 / COUNT as f64)
}
