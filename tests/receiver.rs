//! The pull form: the same subscription without a thread.

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
        mpsc,
    },
    thread,
    time::Duration,
};

use fanout::{
    Broker, RecvError, RecvTimeoutError, SubscribeError, SubscriptionConfig, SubscriptionState, TryRecvError,
};
use support::{LIMIT, Ledger, conserved, scale, wait_until, watchdog};

fn config(capacity: usize) -> SubscriptionConfig {
    SubscriptionConfig::at_most_once(capacity)
}

#[test]
fn try_recv_says_empty_and_takes_in_order() {
    let broker = Broker::new();
    let mut receiver = broker.receiver("t", config(4)).unwrap();
    assert_eq!(receiver.try_recv().unwrap_err(), TryRecvError::Empty);
    for value in ["a", "b"] {
        broker.publish("t", value).unwrap();
    }
    let first = receiver.try_recv().unwrap();
    assert_eq!((first.seq(), first.topic(), *first.payload(), first.len()), (0, "t", "a", 1));
    assert_eq!((first.attempt(), first.dropped_before()), (1, 0));
    assert_eq!(receiver.try_recv().unwrap().into_payload(), "b");
    assert_eq!(receiver.try_recv().unwrap_err(), TryRecvError::Empty);
    let metrics = receiver.metrics();
    assert_eq!((metrics.enqueued, metrics.delivered, metrics.depth), (2, 2, 0));
    conserved(&metrics);
}

#[test]
fn gaps_show_in_the_message_that_follows_them() {
    let broker = Broker::new();
    let mut receiver = broker.receiver("t", config(2)).unwrap();
    let mut previous = None;
    let mut take = |receiver: &mut fanout::Receiver<u64>| {
        let message = receiver.try_recv().unwrap();
        let expected = previous.map_or(message.seq(), |previous| message.seq() - previous - 1);
        assert_eq!(message.dropped_before(), expected);
        previous = Some(message.seq());
        message.dropped_before()
    };
    let mut gaps = Vec::new();
    for burst in [1, 2, 3, 7, 1] {
        for _ in 0..burst {
            broker.publish("t", 0).unwrap();
        }
        gaps.push(take(&mut receiver));
    }
    gaps.push(take(&mut receiver));
    assert_eq!(gaps, [0, 0, 2, 6, 0, 0]);
    assert_eq!(receiver.metrics().dropped, 8);
    conserved(&receiver.metrics());
}

#[test]
fn recv_waits_for_a_message() {
    watchdog(LIMIT, || {
        let broker = Broker::new();
        let mut receiver = broker.receiver("t", config(1)).unwrap();
        let got = Arc::new(AtomicU64::new(0));
        let thread = thread::spawn({
            let got = got.clone();
            move || {
                while let Ok(message) = receiver.recv() {
                    got.store(*message, SeqCst);
                }
                receiver.metrics()
            }
        });
        // Each round the receiver is on its way to sleep, or asleep.
        for value in 1..=scale(100_000) {
            broker.publish("t", value).unwrap();
            wait_until(|| got.load(SeqCst) == value);
        }
        broker.shutdown(fanout::Shutdown::Discard);
        let last = thread.join().unwrap();
        assert_eq!((last.delivered, last.dropped), (scale(100_000), 0));
        conserved(&last);
    });
}

#[test]
fn recv_timeout_gives_up_or_takes_what_is_there() {
    watchdog(LIMIT, || {
        let broker = Broker::new();
        let mut receiver = broker.receiver("t", config(2)).unwrap();
        for limit in [Duration::ZERO, Duration::from_millis(2)] {
            assert_eq!(receiver.recv_timeout(limit).unwrap_err(), RecvTimeoutError::Timeout);
        }
        for limit in [Duration::ZERO, LIMIT, Duration::MAX] {
            broker.publish("t", 1).unwrap();
            assert_eq!(*receiver.recv_timeout(limit).unwrap(), 1);
        }
        let publisher = thread::spawn(move || broker.publish("t", 2).unwrap());
        // Either while it waits or after it is published; and then the broker is gone.
        assert_eq!(*receiver.recv_timeout(Duration::MAX).unwrap(), 2);
        publisher.join().unwrap();
        assert_eq!(receiver.recv_timeout(Duration::MAX).unwrap_err(), RecvTimeoutError::Closed);
    });
}

#[test]
fn the_iterator_ends_when_the_broker_is_gone_and_the_queue_is_empty() {
    watchdog(LIMIT, || {
        let broker = Broker::new();
        let mut receiver = broker.receiver("t", config(4)).unwrap();
        let topic = broker.topic("t").unwrap();
        drop(broker);
        for value in 0..3 {
            topic.publish(value).unwrap();
        }
        assert_eq!(receiver.iter().take(1).map(|message| message.seq()).collect::<Vec<_>>(), [0]);
        drop(topic);
        assert_eq!(receiver.iter().map(fanout::Received::into_payload).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(receiver.try_recv().unwrap_err(), TryRecvError::Closed);
        assert_eq!(receiver.recv().unwrap_err(), RecvError::Closed);
        conserved(&receiver.metrics());
    });
}

#[test]
fn a_receiver_that_waits_is_woken_when_the_last_handle_goes() {
    watchdog(LIMIT, || {
        let broker = Broker::<u64>::new();
        let mut receiver = broker.receiver("t", config(4)).unwrap();
        let waiting = Arc::new(AtomicBool::new(false));
        let thread = thread::spawn({
            let waiting = waiting.clone();
            move || {
                waiting.store(true, SeqCst);
                receiver.recv().unwrap_err()
            }
        });
        wait_until(|| waiting.load(SeqCst));
        drop(broker);
        assert_eq!(thread.join().unwrap(), RecvError::Closed);
    });
}

#[test]
fn ending_a_receiver_by_its_handle_discards_and_counts_its_queue() {
    watchdog(LIMIT, || {
        let (broker, ledger) = (Broker::new(), Ledger::new());
        let mut receiver = broker.receiver("t", config(4)).unwrap();
        let topic = broker.topic("t").unwrap();
        for id in 0..3 {
            topic.publish(ledger.live(id)).unwrap();
        }
        let first = receiver.recv().unwrap();
        assert!(receiver.handle().unsubscribe());
        assert!(!receiver.handle().unsubscribe());
        assert_eq!(topic.subscriptions(), 0);
        assert_eq!(receiver.try_recv().unwrap_err(), TryRecvError::Closed);
        let last = receiver.metrics();
        assert_eq!((last.delivered, last.discarded, last.state), (1, 2, SubscriptionState::Ended));
        conserved(&last);
        assert_eq!((first.id, ledger.alive()), (0, 1), "what was received belongs to the one who has it");
        drop(first);
        ledger.assert_all_dropped();
    });
}

#[test]
fn dropping_a_receiver_ends_its_subscription() {
    let (broker, ledger) = (Broker::new(), Ledger::new());
    let receiver = broker.receiver("t", config(2)).unwrap();
    let handle = receiver.handle();
    for id in 0..5 {
        broker.publish("t", ledger.live(id)).unwrap();
    }
    drop(receiver);
    let last = handle.metrics();
    assert_eq!((last.dropped, last.discarded, last.state), (3, 2, SubscriptionState::Ended));
    conserved(&last);
    ledger.assert_all_dropped();
    assert!(!handle.unsubscribe());
    assert_eq!(broker.publish("t", ledger.live(9)).unwrap().delivered_to, 0);
}

#[test]
fn a_received_message_outlives_its_receiver_and_its_broker() {
    let (broker, ledger) = (Broker::new(), Ledger::new());
    let mut receiver = broker.receiver("a.topic", config(2)).unwrap();
    broker.publish("a.topic", ledger.live(7)).unwrap();
    let message = receiver.try_recv().unwrap();
    drop((receiver, broker));
    assert_eq!((message.topic(), message.seq(), message.id), ("a.topic", 0, 7));
    let payload = message.into_payload();
    assert_eq!((payload.id, ledger.alive(), ledger.cloned()), (7, 1, 0));
    drop(payload);
    ledger.assert_all_dropped();
}

#[test]
fn messages_may_move_to_another_thread() {
    watchdog(LIMIT, || {
        let broker = Broker::new();
        let mut receiver = broker.receiver("t", config(2)).unwrap();
        broker.publish("t", std::cell::Cell::new(1)).unwrap();
        let message = receiver.recv().unwrap();
        thread::spawn(move || message.set(2)).join().unwrap();
        let last = thread::spawn(move || receiver.metrics()).join().unwrap();
        conserved(&last);
    });
}

#[test]
fn a_receiver_needs_no_start_hook_and_checks_its_filter() {
    let broker = Broker::<u64>::new();
    assert!(matches!(broker.receiver("", config(1)), Err(SubscribeError::InvalidFilter(_))));
    assert!(matches!(broker.receiver("a..b", config(1)), Err(SubscribeError::InvalidFilter(_))));
    assert!(broker.topics().is_empty());
}

#[test]
fn messages_print_for_debugging_whatever_their_payload() {
    /// It has no `Debug`.
    #[derive(Clone)]
    struct Mute;
    watchdog(LIMIT, || {
        let broker = Broker::new();
        let (send, printed) = mpsc::channel();
        let mut receiver = broker.receiver("orders", config(1)).unwrap();
        let subscription = broker
            .subscribe("orders", config(1), move |message| send.send(format!("{message:?}")).unwrap())
            .unwrap();
        broker.publish("orders", Mute).unwrap();
        for text in [printed.recv().unwrap(), format!("{:?}", receiver.recv().unwrap())] {
            assert!(text.contains("orders"), "{text}");
        }
        conserved(&subscription.unsubscribe());
    });
}
