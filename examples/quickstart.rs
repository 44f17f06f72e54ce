//! The quick start of the README: everything below the first blank line is the text that stands there.
#![allow(clippy::print_stdout)]

use fanout::{Broker, SubscriptionConfig};
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let broker = Broker::<String>::new();

    // A queue of 1,024 messages and a thread of its own, which runs the closure.
    let config = SubscriptionConfig::at_most_once(1_024).name("printer");
    let printer = broker.subscribe("greetings", config, |message| {
        println!("#{}: {}", message.seq(), message.payload());
    })?;

    // Publishing never waits for the printer; were it too slow, it would lose its oldest messages.
    let greetings = broker.topic("greetings")?;
    for name in ["Ada", "Grace", "Barbara"] {
        greetings.publish(format!("hello, {name}"))?;
    }

    let end = printer.drain(Duration::from_secs(1)).metrics;
    println!("delivered {}, dropped {}", end.delivered, end.dropped);
    Ok(())
}
