//! What the calls of a publisher and of a receiver cost, one number each. How it compares with others is the business of `benches/peers`.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "the crate's door to concurrency is for the crate; benchmarks use std"
)]

use std::hint::{black_box, spin_loop};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use criterion::{BenchmarkId, Criterion, Throughput};
use fanout::{Broker, Receiver, SubscriptionConfig, Topic, WaitStrategy};

type Payload = [u64; 4];

const PAYLOAD: Payload = [1, 2, 3, 4];
const CAPACITY: usize = 1_024;
/// Half a queue: a burst of it drops nothing.
const BURST: u64 = CAPACITY as u64 / 2;
const BATCH: u64 = 32;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    publish(&mut criterion);
    publish_by_name(&mut criterion);
    publish_batch(&mut criterion);
    drain(&mut criterion);
    acknowledge(&mut criterion);
    deliver(&mut criterion);
    criterion.final_summary();
}

/// A topic and `receivers` subscriptions that nobody empties unless the benchmark does.
fn topic(
    receivers: usize,
    config: &SubscriptionConfig,
) -> (Broker<Payload>, Topic<Payload>, Vec<Receiver<Payload>>) {
    let broker = Broker::new();
    let topic = broker.topic("orders").expect("a good name");
    let receivers =
        (0..receivers).map(|_| broker.receiver("orders", config.clone()).expect("a subscription"));
    let receivers = receivers.collect();
    (broker, topic, receivers)
}

/// Fills every queue, so that each publish to come drops one message from each.
fn fill(topic: &Topic<Payload>) {
    for _ in 0..CAPACITY {
        topic.publish(PAYLOAD).expect("open");
    }
}

/// One publish to full queues: the steady state of subscribers that are too slow.
fn publish(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("publish");
    for receivers in [0, 1, 4, 16] {
        let (_broker, topic, _receivers) = topic(receivers, &SubscriptionConfig::at_most_once(CAPACITY));
        fill(&topic);
        group.bench_function(BenchmarkId::from_parameter(receivers), |bencher| {
            bencher.iter(|| topic.publish(black_box(PAYLOAD)).expect("open"));
        });
    }
}

/// The same to one, with the topic looked up each time.
fn publish_by_name(criterion: &mut Criterion) {
    let (broker, topic, _receivers) = topic(1, &SubscriptionConfig::at_most_once(CAPACITY));
    fill(&topic);
    criterion.bench_function("publish by name", |bencher| {
        bencher.iter(|| broker.publish(black_box("orders"), black_box(PAYLOAD)).expect("open"));
    });
}

/// The same to one, in batches; the time is that of a batch, the rate that of its messages.
fn publish_batch(criterion: &mut Criterion) {
    let (_broker, topic, _receivers) = topic(1, &SubscriptionConfig::at_most_once(CAPACITY));
    fill(&topic);
    let mut group = criterion.benchmark_group("publish batch");
    group.throughput(Throughput::Elements(BATCH));
    group.bench_function(BenchmarkId::from_parameter(BATCH), |bencher| {
        bencher.iter(|| topic.publish_batch((0..BATCH).map(|_| black_box(PAYLOAD))).expect("open"));
    });
}

/// Half a queue published, then received, on one thread.
fn drain(criterion: &mut Criterion) {
    let (_broker, topic, mut receivers) = topic(1, &SubscriptionConfig::at_most_once(CAPACITY));
    let mut group = criterion.benchmark_group("drain");
    group.throughput(Throughput::Elements(BURST));
    group.bench_function(BenchmarkId::from_parameter(BURST), |bencher| {
        bencher.iter(|| {
            for _ in 0..BURST {
                topic.publish(black_box(PAYLOAD)).expect("open");
            }
            for _ in 0..BURST {
                black_box(receivers[0].try_recv().expect("it is queued").into_payload());
            }
        });
    });
}

/// The same, at least once: each message is acked.
fn acknowledge(criterion: &mut Criterion) {
    let (_broker, topic, mut receivers) = topic(1, &SubscriptionConfig::at_least_once(CAPACITY));
    let mut group = criterion.benchmark_group("receive and ack");
    group.throughput(Throughput::Elements(BURST));
    group.bench_function(BenchmarkId::from_parameter(BURST), |bencher| {
        bencher.iter(|| {
            for _ in 0..BURST {
                topic.publish(black_box(PAYLOAD)).expect("open");
            }
            for _ in 0..BURST {
                let received = receivers[0].try_recv().expect("it is queued");
                received.ack().expect("it is pending");
                black_box(received.into_payload());
            }
        });
    });
}

/// From publish to a spinning handler on another core and back by a counter, in bursts that fit the queue, so that nothing is dropped.
fn deliver(criterion: &mut Criterion) {
    let (broker, topic, _) = topic(0, &SubscriptionConfig::at_most_once(CAPACITY));
    let handled = Arc::new(AtomicU64::new(0));
    let counter = handled.clone();
    let config = SubscriptionConfig::at_most_once(CAPACITY).wait_strategy(WaitStrategy::BusySpin);
    let subscription = broker
        .subscribe("orders", config, move |message| {
            black_box(message.payload());
            counter.fetch_add(1, Ordering::Release);
        })
        .expect("a subscription");
    let mut published = 0;
    let mut group = criterion.benchmark_group("deliver");
    group.throughput(Throughput::Elements(1));
    group.bench_function(BenchmarkId::from_parameter("BusySpin"), |bencher| {
        bencher.iter_custom(|messages| {
            let end = published + messages;
            let start = Instant::now();
            while published < end {
                let burst = BURST.min(end - published);
                for _ in 0..burst {
                    topic.publish(black_box(PAYLOAD)).expect("open");
                }
                published += burst;
                while handled.load(Ordering::Acquire) < published {
                    spin_loop();
                }
            }
            start.elapsed()
        });
    });
    drop(group);
    assert_eq!(subscription.unsubscribe().dropped, 0, "a burst fits the queue");
}
