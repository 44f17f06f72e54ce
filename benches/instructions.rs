//! What the guard counts: each scenario runs the hot path a fixed number of times inside one function that is not inlined, so that callgrind
//! can be told to count that function alone (see `.ci/instructions`). Without arguments it runs each once, as a check.

use fanout::{Broker, Receiver, SubscriptionConfig, Topic};

type Payload = [u64; 4];

/// Iterations of a scenario, for the script to divide by.
const ROUNDS: u64 = 10_000;

fn topic(subscriptions: usize) -> (Topic<Payload>, Vec<Receiver<Payload>>) {
    let broker = Broker::new();
    let receiver = |_| broker.receiver("bench", SubscriptionConfig::at_most_once(1024)).expect("a receiver");
    let receivers = (0..subscriptions).map(receiver).collect();
    (broker.topic("bench").expect("a topic"), receivers)
}

#[inline(never)]
fn measured_publish(topic: &Topic<Payload>) {
    for n in 0..ROUNDS {
        let published = topic.publish([n; 4]).expect("open");
        std::hint::black_box(published);
    }
}

#[inline(never)]
fn measured_receive(receiver: &mut Receiver<Payload>, rounds: u64) {
    for _ in 0..rounds {
        let message = receiver.try_recv().expect("a message waits");
        std::hint::black_box(*message);
    }
}

/// Publishes to full rings: each publish evicts.
fn publish(subscriptions: usize) {
    let (topic, receivers) = topic(subscriptions);
    for n in 0..2_000 {
        topic.publish([n; 4]).expect("open");
    }
    measured_publish(&topic);
    drop(receivers);
}

fn receive() {
    let (topic, mut receivers) = topic(1);
    for _ in 0..ROUNDS / 500 {
        for n in 0..500 {
            topic.publish([n; 4]).expect("open");
        }
        measured_receive(&mut receivers[0], 500);
    }
}

/// Scenarios by name.
const SCENARIOS: [(&str, fn()); 4] = [
    ("publish_1", || publish(1)),
    ("publish_4", || publish(4)),
    ("publish_16", || publish(16)),
    ("receive", receive),
];

fn main() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    for (name, scenario) in SCENARIOS {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            scenario();
        }
    }
}
