//! How much may be pending, and how often a message is tried.

use std::{
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::Duration,
};

use fanout::{
    AckPolicy, Acker, Broker, Event, EventKind, Message, Outcome, SubscribeError, SubscriptionConfig,
    SubscriptionState,
};

use crate::acks::{HOUR, Log, MS, NOT_PENDING, Subject, config, refusal, seen, take_all, timed};
use crate::support::{Gate, LIMIT, conserved, scale, wait_until, watchdog, within_bounds};

/// Stalls and recoveries.
fn stalls(events: &Log<Event>) -> Vec<&'static str> {
    let names = |event: Event| match event.kind {
        EventKind::StalledAtPendingLimit => Some("stalled"),
        EventKind::Recovered => Some("recovered"),
        _ => None,
    };
    events.all().into_iter().filter_map(names).collect()
}

#[test]
fn at_the_pending_limit_the_ring_goes_on_dropping_and_one_ack_gives_one_delivery() {
    watchdog(LIMIT, || {
        let subject = Subject::new(config(8).max_pending(4).ack_timeout(50 * MS), |_| Outcome::Handled);
        subject.publish(0..4);
        subject.wait_stalled(4);
        let published: usize =
            (4..100).map(|value| subject.broker.publish("t", value).unwrap().dropped).sum();
        let metrics = subject.subscription.metrics();
        assert_eq!((metrics.pending, metrics.depth, metrics.enqueued), (4, 8, 100));
        assert_eq!((metrics.dropped, published), (88, 88));
        subject.conserved();
        let first = subject.calls.all();
        // Nothing but time: the same four again, at the limit.
        subject.clock.advance(50 * MS);
        subject.wait_stalled(8);
        let again: Vec<_> = first.iter().map(|call| (call.value, 2)).collect();
        assert_eq!(subject.seen()[4..], again);
        // One ack, without any help, is one new delivery: the oldest that waits.
        assert_eq!(subject.subscription.ack(first[2].id), Ok(()));
        subject.wait_stalled(9);
        assert_eq!(subject.seen()[8..], [(92, 1)]);
        let metrics = subject.subscription.metrics();
        assert_eq!((metrics.pending, metrics.depth, metrics.acked, metrics.redelivered), (4, 7, 1, 4));
        // A publish is none.
        assert_eq!(subject.broker.publish("t", 100).unwrap().dropped, 0);
        assert_eq!(subject.broker.publish("t", 101).unwrap().dropped, 1);
        assert_eq!(subject.subscription.ack(first[0].id), Ok(()));
        subject.wait_stalled(10);
        assert_eq!(subject.seen()[9..], [(94, 1)], "93 was dropped for 101");
        subject.conserved();
    });
}

#[test]
fn never_more_is_pending_than_the_limit_seen_from_every_call() {
    watchdog(LIMIT, || {
        let most = Log::new();
        let handler = {
            let most = most.clone();
            move |message: &Message<u64>| {
                let metrics = message.subscription().metrics();
                within_bounds(&metrics);
                most.push(metrics.pending);
                match (**message % 3, message.attempt()) {
                    (_, 2..) => message.ack().unwrap(),
                    (0, _) => return Outcome::Failed,
                    (1, _) => message.nack(None).unwrap(),
                    _ => {}
                }
                Outcome::Handled
            }
        };
        let config = config(200).max_pending(3).ack_timeout(5 * MS).backoff(MS, MS);
        let subject = Subject::new(config, handler);
        subject.publish(0..200);
        subject.wait_stalled(3);
        wait_until(|| {
            subject.clock.advance(MS);
            subject.subscription.metrics().acked == 200
        });
        assert_eq!(most.all().into_iter().max(), Some(3));
        let metrics = subject.subscription.metrics();
        assert_eq!((metrics.delivered, metrics.redelivered, metrics.dropped), (400, 200, 0));
        subject.conserved();
    });
}

#[test]
fn with_one_pending_at_most_redelivery_goes_on() {
    watchdog(LIMIT, || {
        let handler = |message: &Message<u64>| match message.attempt() {
            1 => Outcome::Failed,
            2 => resume_unwind(Box::new("second")),
            3 => {
                message.nack(None).unwrap();
                Outcome::Handled
            }
            4 => Outcome::Handled,
            _ => {
                message.ack().unwrap();
                Outcome::Handled
            }
        };
        let subject = Subject::new(config(4).max_pending(1).backoff(MS, MS).ack_timeout(MS), handler);
        subject.publish([1, 2]);
        wait_until(|| {
            subject.clock.advance(MS);
            subject.subscription.metrics().acked == 2
        });
        let each = |value| (1..=5).map(move |attempt| (value, attempt));
        assert_eq!(subject.seen(), each(1).chain(each(2)).collect::<Vec<_>>());
        subject.conserved();
    });
}

#[test]
fn a_stall_is_seen_and_told_once_and_is_over_when_one_is_settled() {
    watchdog(LIMIT, || {
        let subject = Subject::new(config(8).max_pending(2).ack_timeout(50 * MS), |_| Outcome::Handled);
        subject.publish([0, 1]);
        subject.wait_stalled(2);
        assert_eq!(stalls(&subject.events), ["stalled"]);
        // Redelivery at the limit is still the same stall.
        subject.clock.advance(50 * MS);
        subject.wait_stalled(4);
        assert_eq!(stalls(&subject.events), ["stalled"]);
        // Nothing waits in the queue: the stall is over all the same.
        assert_eq!(subject.subscription.ack(subject.calls.all()[0].id), Ok(()));
        wait_until(|| subject.subscription.metrics().state == SubscriptionState::Idle);
        wait_until(|| stalls(&subject.events) == ["stalled", "recovered"]);
        subject.publish([2]);
        subject.wait_stalled(5);
        assert_eq!(stalls(&subject.events), ["stalled", "recovered", "stalled"]);
        subject.conserved();
    });
}

#[test]
fn what_waits_for_its_redelivery_is_pending_too() {
    watchdog(LIMIT, || {
        let handler = |message: &Message<u64>| {
            if message.attempt() == 1 && **message < 2 {
                message.nack(Some(HOUR)).unwrap();
            } else {
                message.ack().unwrap();
            }
            Outcome::Handled
        };
        let subject = Subject::new(config(8).max_pending(2), handler);
        subject.publish(0..4);
        subject.wait_stalled(2);
        let ids = subject.calls.all();
        assert_eq!([0, 1].map(|at: usize| subject.subscription.ack(ids[at].id)), [NOT_PENDING; 2]);
        subject.clock.advance(HOUR);
        wait_until(|| subject.subscription.metrics().acked == 4);
        // The first to be acked makes room for a new one, which was queued before and so goes first.
        let mut seen = subject.seen();
        assert_eq!(seen[..3], [(0, 1), (1, 1), (0, 2)]);
        seen.sort_unstable();
        assert_eq!(seen, [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (3, 1)]);
        subject.conserved();
    });
}

#[test]
fn an_evicted_message_owes_no_ack() {
    watchdog(LIMIT, || {
        let gate = Gate::new();
        let handler = {
            let gate = gate.clone();
            move |_: &Message<u64>| {
                gate.pass();
                Outcome::Handled
            }
        };
        let subject = Subject::new(config(2).max_pending(10).ack_timeout(MS), handler);
        subject.publish([0]);
        gate.wait_entered(1);
        subject.publish(1..10);
        let metrics = subject.subscription.metrics();
        assert_eq!((metrics.dropped, metrics.pending, metrics.depth), (7, 1, 2));
        subject.conserved();
        gate.open();
        wait_until(|| subject.subscription.metrics().pending == 3);
        for _ in 0..3 {
            subject.advance(MS);
        }
        let values: Vec<_> = subject.seen().iter().map(|(value, _)| *value).collect();
        assert!(values.iter().all(|value| [0, 8, 9].contains(value)), "{values:?}");
        assert_eq!(values[..3], [0, 8, 9]);
        for call in &subject.calls.all()[..3] {
            assert_eq!(subject.subscription.ack(call.id), Ok(()));
        }
        let metrics = subject.subscription.metrics();
        assert_eq!((metrics.pending, metrics.dropped), (0, 7));
        assert_eq!(subject.acked(), 3);
        subject.conserved();
    });
}

#[test]
fn with_one_delivery_at_most_nothing_is_redelivered() {
    watchdog(LIMIT, || {
        let handler = |message: &Message<u64>| match **message {
            0 => Outcome::Failed,
            1 => resume_unwind(Box::new("no second chance")),
            2 => {
                message.nack(None).unwrap();
                Outcome::Handled
            }
            3 => {
                message.ack().unwrap();
                Outcome::Handled
            }
            // Never acked.
            _ => Outcome::Handled,
        };
        let subject = Subject::new(config(8).max_deliveries(1).ack_timeout(50 * MS), handler);
        subject.publish(0..5);
        subject.settle();
        assert_eq!(subject.subscription.metrics().dead, 3);
        assert_eq!(subject.subscription.metrics().pending, 1);
        subject.advance(50 * MS);
        let metrics = subject.subscription.metrics();
        assert_eq!((metrics.dead, metrics.redelivered, metrics.pending), (4, 0, 0));
        assert_eq!((metrics.failed, metrics.panicked, subject.acked()), (1, 1, 1));
        assert_eq!(subject.calls.len(), 5);
        for call in subject.calls.all() {
            assert_eq!(subject.subscription.ack(call.id), NOT_PENDING, "{call:?}");
        }
        subject.conserved();
    });
}

#[test]
fn every_kind_of_end_of_a_call_counts_as_a_delivery() {
    let (broker, clock) = timed::<u64>();
    let mut receiver = broker.receiver("t", config(8).max_deliveries(4).ack_timeout(50 * MS)).unwrap();
    broker.publish("t", 0).unwrap();
    let ways: [fn(&fanout::Received<u64>); 3] =
        [|message| message.nack(None).unwrap(), |message| message.nack(Some(HOUR)).unwrap(), |_| {}];
    for (attempt, way) in (1..).zip(ways) {
        let message = receiver.try_recv().unwrap();
        assert_eq!(message.attempt(), attempt);
        way(&message);
        let _ = receiver.try_recv().unwrap_err();
        clock.advance(HOUR);
    }
    assert_eq!(seen(&mut receiver), [(0, 4)]);
    clock.advance(50 * MS);
    assert_eq!(seen(&mut receiver), []);
    let metrics = receiver.metrics();
    assert_eq!((metrics.dead, metrics.delivered, metrics.redelivered, metrics.failed), (1, 4, 3, 0));
    conserved(&metrics);
}

#[test]
fn the_limit_is_the_queues_capacity_unless_said_otherwise() {
    let (broker, _) = timed::<u64>();
    for (config, limit) in [(config(3), 3), (config(3).max_pending(1), 1), (config(1).max_pending(7), 7)] {
        let mut receiver = broker.receiver("t", config).unwrap();
        assert_eq!(receiver.metrics().max_pending, limit);
        let mut taken = 0;
        for value in 0..10 {
            broker.publish("t", value).unwrap();
            taken += take_all(&mut receiver).len();
        }
        assert_eq!((taken, receiver.metrics().pending), (limit, limit));
        assert_eq!(refusal(&mut receiver), fanout::TryRecvError::PendingLimit);
        conserved(&receiver.metrics());
    }
}

#[test]
fn limits_that_make_no_sense_are_refused_by_name() {
    let (broker, _) = timed::<u64>();
    let refused = |config: SubscriptionConfig| match broker.subscribe("t", config, |_| {}).unwrap_err() {
        SubscribeError::InvalidOption { option, .. } => option,
        SubscribeError::CapacityTooLarge { option, requested } => {
            assert_eq!(requested, usize::MAX);
            option
        }
        error => panic!("{error}"),
    };
    assert_eq!(refused(config(1).max_pending(0)), "max_pending");
    assert_eq!(refused(config(1).max_pending(usize::MAX)), "max_pending");
    assert_eq!(refused(config(1).max_deliveries(0)), "max_deliveries");
    assert_eq!(refused(config(1).backoff(MS, Duration::ZERO)), "backoff");
    let other = || SubscriptionConfig::at_most_once(1);
    assert_eq!(refused(other().ack_policy(AckPolicy::Manual)), "ack_policy");
    assert_eq!(refused(other().ack_timeout(HOUR)), "ack_timeout");
    assert_eq!(refused(other().max_pending(1)), "max_pending");
    assert_eq!(refused(other().backoff(MS, MS)), "backoff");
    assert_eq!(refused(other().max_deliveries(1)), "max_deliveries");
    assert_eq!(refused(other().dead_letter("dead")), "dead_letter");
    assert!(broker.topics().is_empty(), "nothing is left behind");
}

#[test]
fn an_ack_at_the_very_end_of_its_call_wakes_the_worker() {
    watchdog(LIMIT, || {
        let broker = Broker::<u64>::new();
        let (send, ackers) = mpsc::channel::<Acker>();
        let returned = Arc::new(AtomicU64::new(0));
        let handler = {
            let returned = returned.clone();
            move |message: &Message<u64>| {
                send.send(message.acker()).unwrap();
                // So that the ack comes now before, now after the call's end.
                (0..**message % 97 * 8).for_each(|_| std::hint::spin_loop());
                returned.fetch_add(1, SeqCst);
            }
        };
        let subscription = broker.subscribe("t", config(1).max_pending(1), handler).unwrap();
        let acking = thread::spawn(move || ackers.iter().for_each(|acker| acker.ack().unwrap()));
        for round in 1..=scale(300_000) {
            broker.publish("t", round).unwrap();
            wait_until(|| subscription.metrics().acked == round && returned.load(SeqCst) == round);
        }
        let last = subscription.unsubscribe();
        assert_eq!((last.dropped, last.redelivered, last.discarded), (0, 0, 0));
        conserved(&last);
        acking.join().unwrap();
    });
}
