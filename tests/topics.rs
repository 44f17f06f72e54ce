//! Names, their errors, how many topics there may be, and what becomes of the unused ones.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "the crate's door to concurrency is for the crate; tests use std"
)]

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
};

use fanout::{
    Broker, NameErrorReason, PublishErrorKind, RemoveTopicError, SubscribeError, SubscriptionConfig,
    TopicError,
};
use support::{LIMIT, conserved, scale, wait_until, watchdog};

fn config(capacity: usize) -> SubscriptionConfig {
    SubscriptionConfig::at_most_once(capacity)
}

#[test]
fn names_are_non_empty_tokens_between_dots() {
    let broker = Broker::<u64>::new();
    let long = "x".repeat(10_000);
    let good = [
        "a",
        "a.b",
        "a.b.c",
        "orders.eu-west.1",
        " ",
        "a b",
        "ß.日本",
        "*a",
        "a*.b>",
        "**",
        ">>",
        "A/B#+",
        &long,
    ];
    for name in good {
        assert_eq!(broker.topic(name).unwrap().name(), name);
        assert_eq!(broker.publish(name, 0).unwrap().seq, 0);
        assert_eq!(broker.receiver(name, config(1)).unwrap().metrics().filter, name);
    }
    let mut topics = broker.topics();
    topics.sort();
    let mut expected = good.map(str::to_owned).to_vec();
    expected.sort();
    assert_eq!(topics, expected);
}

#[test]
fn bad_names_are_errors_that_say_why() {
    use NameErrorReason::{Empty, EmptyToken, Wildcard};
    let broker = Broker::<u64>::new();
    let table = [
        ("", Empty),
        (".", EmptyToken),
        ("a.", EmptyToken),
        (".a", EmptyToken),
        ("a..b", EmptyToken),
        ("*", Wildcard),
        (">", Wildcard),
        ("a.*", Wildcard),
        ("a.>", Wildcard),
        ("*.a", Wildcard),
        (">.a", Wildcard),
    ];
    for (name, reason) in table {
        match broker.topic(name) {
            Err(TopicError::InvalidName(error)) => {
                assert_eq!((&*error.name, error.reason), (name, reason));
                assert!(!error.to_string().is_empty());
            }
            other => panic!("{name:?}: {other:?}"),
        }
        let error = broker.publish(name, 7).unwrap_err();
        assert_eq!(error.kind(), &PublishErrorKind::InvalidName(reason), "{name:?}");
        assert_eq!(error.into_payload(), 7);
        if matches!(reason, Empty | EmptyToken) {
            match broker.receiver(name, config(1)) {
                Err(SubscribeError::InvalidFilter(error)) => {
                    assert_eq!((&*error.name, error.reason), (name, reason))
                }
                other => panic!("{name:?}: {other:?}"),
            }
        }
        assert!(matches!(broker.remove_topic(name), Err(RemoveTopicError::NotFound)));
    }
    assert!(broker.topics().is_empty());
    assert_eq!(broker.metrics().published, 0);
}

#[test]
fn topics_are_created_by_publish_by_name_and_by_subscribing() {
    let broker = Broker::<u64>::new();
    broker.publish("published", 0).unwrap();
    drop(broker.topic("named").unwrap());
    let subscription = broker.subscribe("subscribed", config(1), |_| ()).unwrap();
    let mut topics = broker.topics();
    topics.sort();
    assert_eq!(topics, ["named", "published", "subscribed"]);
    assert_eq!(broker.remove_unused_topics(), 2);
    assert_eq!(broker.topics(), ["subscribed"]);
    conserved(&subscription.unsubscribe());
    assert_eq!(broker.remove_unused_topics(), 1);
    assert_eq!(broker.remove_unused_topics(), 0);
}

#[test]
fn over_the_limit_a_new_name_is_refused_and_known_ones_go_on() {
    let broker = Broker::builder().topic_limit(2).build();
    broker.publish("a", 0).unwrap();
    let kept = broker.topic("b").unwrap();
    assert!(matches!(broker.topic("c"), Err(TopicError::TopicLimit { limit: 2, .. })));
    assert!(matches!(
        broker.subscribe("c", config(1), |_| ()),
        Err(SubscribeError::TopicLimit { limit: 2, .. })
    ));
    assert!(matches!(broker.receiver("c", config(1)), Err(SubscribeError::TopicLimit { limit: 2, .. })));
    let error = broker.publish("c", 7).unwrap_err();
    assert!(matches!(error.kind(), PublishErrorKind::TopicLimit { limit: 2, .. }));
    assert_eq!(error.into_payload(), 7);
    assert_eq!(broker.topics().len(), 2);
    assert!(broker.metrics().subscriptions.is_empty());

    assert_eq!(broker.publish("a", 0).unwrap().seq, 1);
    assert!(broker.receiver("b", config(1)).is_ok());
    broker.remove_topic("a").unwrap();
    assert_eq!(broker.publish("c", 0).unwrap().seq, 0);
    assert!(broker.publish("a", 0).is_err());
    assert_eq!(kept.name(), "b");
}

#[test]
fn a_topic_in_use_is_not_removed_and_says_by_how_many() {
    fn in_use(broker: &Broker<u64>) -> (usize, usize) {
        match broker.remove_topic("t") {
            Err(RemoveTopicError::InUse { subscriptions, handles, .. }) => (subscriptions, handles),
            other => panic!("{other:?}"),
        }
    }
    let broker = Broker::<u64>::new();
    assert!(matches!(broker.remove_topic("t"), Err(RemoveTopicError::NotFound)));
    let topic = broker.topic("t").unwrap();
    let (copy, weak) = (topic.clone(), topic.downgrade());
    let one = broker.subscribe("t", config(1), |_| ()).unwrap();
    let two = broker.receiver("t", config(1)).unwrap();
    assert_eq!(in_use(&broker), (2, 2));
    assert_eq!(topic.subscriptions(), 2);
    drop(two);
    assert_eq!(in_use(&broker), (1, 2));
    drop((topic, copy));
    assert_eq!(in_use(&broker), (1, 0));
    assert_eq!(broker.remove_unused_topics(), 0);
    conserved(&one.unsubscribe());
    broker.remove_topic("t").unwrap();
    assert!(matches!(broker.remove_topic("t"), Err(RemoveTopicError::NotFound)));
    assert!(broker.topics().is_empty());
    assert!(weak.upgrade().is_none(), "that topic is gone, whatever has its name later");
}

#[test]
fn a_weak_topic_gives_a_handle_while_there_is_one() {
    let broker = Broker::<u64>::new();
    let topic = broker.topic("t").unwrap();
    let weak = topic.downgrade();
    assert_eq!(weak.upgrade().unwrap().publish(0).unwrap().seq, 0);
    let weak_broker = broker.downgrade();
    assert_eq!(weak_broker.upgrade().unwrap().topics(), ["t"]);
    drop(broker);
    drop(topic);
    assert!(weak_broker.upgrade().is_none() && weak.upgrade().is_none());
}

#[test]
fn a_topic_created_again_starts_over_with_a_new_incarnation() {
    let broker = Broker::new();
    let mut previous = None;
    for _ in 0..3 {
        let mut receiver = broker.receiver("t", config(2)).unwrap();
        for seq in 0..2 {
            assert_eq!(broker.publish("t", 0).unwrap().seq, seq);
            let message = receiver.try_recv().unwrap();
            assert_eq!(message.seq(), seq);
            let grown = previous.is_none_or(|previous| message.incarnation() > previous);
            assert!(grown || (seq > 0 && previous == Some(message.incarnation())));
            previous = Some(message.incarnation());
        }
        drop(receiver);
        broker.remove_topic("t").unwrap();
    }
}

#[test]
fn names_from_outside_leave_nothing_behind_once_removed() {
    watchdog(LIMIT * 10, || {
        let broker = Broker::<u64>::new();
        let names = scale(1_000_000);
        for name in 0..names {
            let name = format!("heard.{name}");
            let mut receiver = broker.receiver(&name, config(1)).unwrap();
            assert_eq!(broker.publish(&name, name.len() as u64).unwrap().delivered_to, 1);
            assert_eq!(*receiver.try_recv().unwrap(), name.len() as u64);
            if name.ends_with("99") {
                conserved(&broker.subscribe(&name, config(1), |_| ()).unwrap().unsubscribe());
            }
        }
        for name in 0..names {
            assert_eq!(broker.publish(&format!("unheard.{name}"), name).unwrap().delivered_to, 0);
        }
        assert_eq!(broker.topics().len() as u64, 2 * names);
        assert_eq!(broker.remove_unused_topics() as u64, 2 * names);
        let metrics = broker.metrics();
        assert!(broker.topics().is_empty() && metrics.topics.is_empty() && metrics.subscriptions.is_empty());
        assert_eq!(metrics.published, 2 * names);
    });
}

#[test]
fn a_newcomer_hears_all_that_follows_while_others_leave_and_the_topic_is_swept_away() {
    watchdog(LIMIT * 10, || {
        let broker = Broker::<u64>::new();
        let (begun, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let publisher = thread::spawn({
            let (broker, begun, stop) = (broker.clone(), begun.clone(), stop.clone());
            move || {
                for value in 0.. {
                    if stop.load(SeqCst) {
                        break;
                    }
                    begun.store(value, SeqCst);
                    broker.publish("t", value).unwrap();
                }
            }
        });
        let sweeper = thread::spawn({
            let (broker, stop) = (broker.clone(), stop.clone());
            move || {
                while !stop.load(SeqCst) {
                    broker.remove_unused_topics();
                    thread::yield_now();
                }
            }
        });
        let mut leaving = None;
        for _ in 0..scale(200_000) {
            let mut receiver = broker.receiver("t", config(2)).unwrap();
            let begun_before = begun.load(SeqCst);
            drop(leaving.take());
            let first = receiver.recv().unwrap();
            let lost = first.dropped_before();
            assert!(
                *first - lost <= begun_before + 1,
                "{} after {begun_before} had begun, {lost} dropped",
                *first
            );
            let second = receiver.recv().unwrap();
            assert_eq!(*second - *first - 1, second.dropped_before());
            assert_eq!(second.incarnation(), first.incarnation(), "a topic in use stays");
            leaving = Some(receiver);
        }
        drop(leaving);
        stop.store(true, SeqCst);
        publisher.join().unwrap();
        sweeper.join().unwrap();
        broker.remove_unused_topics();
        assert!(broker.topics().is_empty());
    });
}

#[test]
fn a_topics_metrics_follow_its_life() {
    watchdog(LIMIT, || {
        let broker = Broker::<u64>::new();
        let topic = broker.topic("t").unwrap();
        assert_eq!((topic.metrics().published, topic.metrics().subscriptions), (0, 0));
        let subscription = broker.subscribe("t", config(1), |_| ()).unwrap();
        topic.publish(0).unwrap();
        let metrics = topic.metrics();
        assert_eq!((&*metrics.name, metrics.published, metrics.subscriptions), ("t", 1, 1));
        wait_until(|| subscription.metrics().delivered == 1);
        conserved(&subscription.unsubscribe());
        assert_eq!(topic.metrics().subscriptions, 0);
    });
}
