//! What can be seen, at any time and after the end.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "the crate's door to concurrency is for the crate; tests use std"
)]

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use fanout::{
    Broker, DeliveryMode, ManualClock, Shutdown, SubscriptionConfig, SubscriptionState, TimeStamps,
};
use support::{Gate, LIMIT, conserved, scale, wait_until, watchdog, within_bounds};

fn config(capacity: usize) -> SubscriptionConfig {
    SubscriptionConfig::at_most_once(capacity)
}

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

#[test]
fn numbers_stay_within_their_bounds_under_load() {
    watchdog(LIMIT * 5, || {
        let broker = Broker::<u64>::new();
        let subscriptions: Vec<_> =
            (1..=3).map(|capacity| broker.subscribe("t", config(capacity), |_| ()).unwrap()).collect();
        let done = Arc::new(AtomicBool::new(false));
        let sampler = thread::spawn({
            let (broker, done) = (broker.clone(), done.clone());
            move || {
                let mut samples = 0_u64;
                while !done.load(SeqCst) {
                    let metrics = broker.metrics();
                    assert_eq!((metrics.subscriptions.len(), metrics.topics.len()), (3, 1));
                    metrics.subscriptions.iter().for_each(within_bounds);
                    assert!(metrics.subscriptions.iter().all(|metrics| metrics.in_hand <= 1));
                    samples += 1;
                    thread::yield_now();
                }
                samples
            }
        });
        let publishers: Vec<_> = (0..2)
            .map(|_| {
                let topic = broker.topic("t").unwrap();
                thread::spawn(move || {
                    (0..scale(1_000_000))
                        .map(|value| topic.publish(value).unwrap().dropped as u64)
                        .sum::<u64>()
                })
            })
            .collect();
        let dropped: u64 = publishers.into_iter().map(|publisher| publisher.join().unwrap()).sum();
        done.store(true, SeqCst);
        assert!(sampler.join().unwrap() > 0);
        wait_until(|| subscriptions.iter().all(|subscription| subscription.metrics().depth == 0));
        let metrics = broker.metrics();
        assert_eq!((metrics.published, metrics.dropped), (2 * scale(1_000_000), dropped));
        metrics.subscriptions.iter().for_each(conserved);
        assert_eq!(metrics.subscriptions.iter().map(|metrics| metrics.dropped).sum::<u64>(), dropped);
        subscriptions.into_iter().for_each(|subscription| conserved(&subscription.unsubscribe()));
    });
}

#[test]
fn a_subscription_describes_itself() {
    let broker = Broker::<u64>::new();
    let line = line!() + 1;
    let subscription = broker.subscribe("some.topic", config(7).name("mine"), |_| ()).unwrap();
    let metrics = subscription.metrics();
    assert_eq!((&*metrics.name, &*metrics.filter, metrics.capacity), ("mine", "some.topic", 7));
    assert_eq!((metrics.mode, metrics.state), (DeliveryMode::AtMostOnce, SubscriptionState::Idle));
    assert_eq!(metrics.id, subscription.handle().id());
    assert!(metrics.subscribed_at.file().ends_with("metrics.rs"), "{}", metrics.subscribed_at);
    assert_eq!(metrics.subscribed_at.line(), line);
    let receiver = broker.receiver("t", config(1)).unwrap();
    assert_eq!(receiver.metrics().subscribed_at.line(), line!() - 1);
}

#[test]
fn the_final_numbers_are_read_through_the_handle_after_the_end() {
    watchdog(LIMIT, || {
        let (broker, gate) = (Broker::<u64>::new(), Gate::new());
        let pass = gate.clone();
        let subscription = broker.subscribe("t", config(2), move |_| pass.pass()).unwrap();
        let handle = subscription.handle();
        broker.publish("t", 0).unwrap();
        gate.wait_entered(1);
        for value in 1..=5 {
            broker.publish("t", value).unwrap();
        }
        conserved(&handle.metrics());
        gate.open();
        let last = subscription.unsubscribe();
        drop(broker);
        let again = handle.metrics();
        for metrics in [&last, &again] {
            conserved(metrics);
            assert_eq!((metrics.enqueued, metrics.dropped, metrics.depth), (6, 3, 0));
            assert_eq!(metrics.state, SubscriptionState::Ended);
        }
        assert_eq!(last.to_string(), again.to_string());
    });
}

#[test]
fn totals_of_the_broker_outlive_topics_and_subscriptions() {
    watchdog(LIMIT, || {
        let broker = Broker::<u64>::new();
        for round in 1..=3 {
            let receiver = broker.receiver("t", config(1)).unwrap();
            for value in 0..4 {
                broker.publish("t", value).unwrap();
            }
            drop(receiver);
            broker.remove_topic("t").unwrap();
            let metrics = broker.metrics();
            assert!(metrics.topics.is_empty() && metrics.subscriptions.is_empty());
            assert_eq!((metrics.published, metrics.dropped), (4 * round, 3 * round));
        }
        broker.shutdown(Shutdown::Discard);
        assert_eq!((broker.metrics().published, broker.metrics().dropped), (12, 9));
    });
}

#[test]
fn the_oldest_queued_message_has_an_age_and_the_next_takes_its_place() {
    let clock = ManualClock::new();
    let broker = Broker::builder().clock(clock.clone()).time_stamps(TimeStamps::Every).build();
    let mut receiver = broker.receiver("t", config(2)).unwrap();
    let oldest = |receiver: &fanout::Receiver<u64>| receiver.metrics().oldest_queued_age;
    assert_eq!(oldest(&receiver).unwrap_or_default(), secs(0), "nothing is queued");

    broker.publish("t", 0).unwrap();
    clock.advance(secs(3));
    broker.publish("t", 1).unwrap();
    clock.advance(secs(2));
    assert_eq!(oldest(&receiver), Some(secs(5)));
    broker.publish("t", 2).unwrap();
    assert_eq!(oldest(&receiver), Some(secs(2)), "the oldest made way");
    assert_eq!(receiver.try_recv().unwrap().age(), Some(secs(2)));
    assert_eq!(oldest(&receiver), Some(secs(0)));
    clock.advance(secs(1));
    assert_eq!(receiver.try_recv().unwrap().age(), Some(secs(1)));
    assert_eq!(oldest(&receiver).unwrap_or_default(), secs(0));
    conserved(&receiver.metrics());
}

#[test]
fn delivery_ages_run_from_publish_to_the_call() {
    watchdog(LIMIT, || {
        let clock = ManualClock::new();
        let broker = Broker::<u64>::builder().clock(clock.clone()).time_stamps(TimeStamps::Every).build();
        let gate = Gate::new();
        let pass = gate.clone();
        let subscription = broker.subscribe("t", config(4), move |_| pass.pass()).unwrap();
        assert!(subscription.metrics().age.is_none_or(|age| age.count == 0), "nothing has been delivered");
        broker.publish("t", 0).unwrap();
        gate.wait_entered(1);
        broker.publish("t", 1).unwrap();
        clock.advance(secs(8));
        gate.let_one();
        gate.wait_entered(2);
        let age = subscription.metrics().age.unwrap();
        assert_eq!((age.count, age.last, age.max), (2, secs(8), secs(8)));
        assert!(age.p50 <= age.p99 && age.p99 <= secs(16), "{age:?}");
        gate.open();
        conserved(&subscription.unsubscribe());
    });
}

#[test]
fn without_time_stamps_there_are_no_ages() {
    let broker = Broker::<u64>::builder().time_stamps(TimeStamps::Off).build();
    let mut receiver = broker.receiver("t", config(2)).unwrap();
    for value in 0..2 {
        broker.publish("t", value).unwrap();
    }
    assert_eq!(receiver.try_recv().unwrap().age(), None);
    let metrics = receiver.metrics();
    assert_eq!(metrics.oldest_queued_age, None);
    assert!(metrics.age.is_none_or(|age| age.count == 0));
    // Nor is the oldest known where only some publishes are stamped.
    let sampled = Broker::<u64>::new();
    let receiver = sampled.receiver("t", config(2)).unwrap();
    sampled.publish("t", 0).unwrap();
    assert_eq!(receiver.metrics().oldest_queued_age, None);
}

#[test]
fn the_state_says_since_when_the_handler_runs() {
    watchdog(LIMIT, || {
        let clock = ManualClock::new();
        let broker = Broker::<u64>::builder().clock(clock.clone()).time_stamps(TimeStamps::Every).build();
        let gate = Gate::new();
        let pass = gate.clone();
        let subscription = broker.subscribe("t", config(4), move |_| pass.pass()).unwrap();
        clock.advance(secs(3));
        broker.publish("t", 0).unwrap();
        gate.wait_entered(1);
        let since = |subscription: &fanout::Subscription<u64>| match subscription.metrics().state {
            SubscriptionState::InHandler { since, .. } => since,
            other => panic!("{other:?}"),
        };
        assert_eq!((since(&subscription), subscription.metrics().in_hand), (secs(3), 1));
        clock.advance(secs(2));
        assert_eq!((since(&subscription), clock.now()), (secs(3), secs(5)));
        gate.let_one();
        wait_until(|| subscription.metrics().state == SubscriptionState::Idle);
        assert_eq!(subscription.metrics().in_hand, 0);
        conserved(&subscription.unsubscribe());
    });
}

#[test]
fn metrics_print_as_something_to_read() {
    let broker = Broker::<u64>::new();
    let receiver = broker.receiver("orders.eu", config(3).name("ledger")).unwrap();
    for value in 0..5 {
        broker.publish("orders.eu", value).unwrap();
    }
    let table = broker.metrics().to_string();
    for expected in ["orders.eu", "ledger", "5", "2"] {
        assert!(table.contains(expected), "no {expected} in:\n{table}");
    }
    assert!(table.lines().count() >= 2, "{table}");
    let one = receiver.metrics().to_string();
    assert!(one.contains("ledger"), "{one}");
    for text in [table, one] {
        assert!(!text.contains('{'), "for people, not for the compiler:\n{text}");
    }
}

#[test]
fn events_of_dropping_are_coalesced() {
    watchdog(LIMIT, || {
        let events = Arc::new(std::sync::Mutex::new(Vec::new()));
        let broker = Broker::<u64>::builder()
            .on_event({
                let events = events.clone();
                move |event| events.lock().unwrap().push(event.clone())
            })
            .build();
        let gate = Gate::new();
        let pass = gate.clone();
        let subscription = broker.subscribe("t", config(1).name("slow"), move |_| pass.pass()).unwrap();
        broker.publish("t", 0).unwrap();
        gate.wait_entered(1);
        let drops = scale(1_000_000);
        for value in 0..=drops {
            broker.publish("t", value).unwrap();
        }
        assert!(events.lock().unwrap().is_empty(), "no hook runs on a publisher's thread");
        gate.open();
        wait_until(|| subscription.metrics().delivered == 2);
        assert_eq!(subscription.metrics().dropped, drops);
        conserved(&subscription.unsubscribe());
        let events = events.lock().unwrap();
        assert!((1..10).contains(&events.len()), "{} events for {drops} drops", events.len());
        assert!(events.iter().all(|event| &*event.name == "slow"));
        assert!(
            events.iter().any(
                |event| matches!(event.kind, fanout::EventKind::Dropping { dropped, .. } if dropped > 0)
            ),
            "{events:?}"
        );
    });
}

#[test]
fn one_message_in_64_has_an_age_however_they_are_published() {
    const MESSAGES: u64 = 6_400;
    for batch in [1, 2, 3, 10, 31, 32, 33, 63, 64, 65, 100, MESSAGES] {
        for before in [0, 1, 5, 33, 63] {
            let broker = Broker::<u64>::new();
            let topic = broker.topic("t").unwrap();
            for value in 0..before {
                topic.publish(value).unwrap();
            }
            let mut receiver = broker.receiver("t", config(2 * MESSAGES as usize)).unwrap();
            let batches = MESSAGES.div_ceil(batch);
            for _ in 0..batches {
                assert_eq!(topic.publish_batch(0..batch).unwrap().count as u64, batch);
            }
            let got = std::iter::from_fn(|| receiver.try_recv().ok());
            let stamped = got.filter(|message| message.age().is_some()).count() as u64;
            let expected = batches * batch / 64;
            assert!(
                stamped.abs_diff(expected) <= 1,
                "{stamped} instead of {expected} in batches of {batch} after {before}"
            );
            assert_eq!(receiver.metrics().age.unwrap().count, stamped);
        }
    }
}
