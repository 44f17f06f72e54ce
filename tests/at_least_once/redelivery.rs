//! When a message comes again, and in which order.

use std::{panic::resume_unwind, thread, time::Duration};

use fanout::{EventKind, Message, Outcome, SubscribeError, SubscriptionConfig};

use crate::acks::{HOUR, Log, MS, NOT_PENDING, Subject, TICK, config, seen, take_all, timed};
use crate::support::{Gate, LIMIT, Ledger, Live, conserved, wait_until, watchdog};

/// A handler that always ends like this: redelivered after 10 ms, doubled to 60 ms.
fn grows_its_backoff(end: impl FnMut(&Message<u64>) -> Outcome + Send + 'static) -> Subject {
    let subject = Subject::new(config(8).backoff(10 * MS, 60 * MS), end);
    subject.publish([1]);
    subject.settle();
    let mut calls = 1;
    for delay in [10, 20, 40, 60, 60] {
        subject.advance(delay * MS - TICK);
        assert_eq!(subject.calls.len(), calls, "not before {delay} ms");
        subject.advance(TICK);
        calls += 1;
        assert_eq!(subject.calls.len(), calls, "after {delay} ms");
    }
    let at: Vec<_> = subject.calls.all().iter().map(|call| (call.attempt, call.at)).collect();
    let times = [0, 10, 30, 70, 130, 190].map(Duration::from_millis);
    assert_eq!(at, (1..).zip(times).collect::<Vec<_>>());
    assert_eq!(subject.subscription.metrics().redelivered, 5);
    subject.conserved();
    subject
}

#[test]
fn a_failure_is_put_back_with_a_growing_back_off() {
    watchdog(LIMIT, || {
        let subject = grows_its_backoff(|_| Outcome::Failed);
        assert_eq!(subject.subscription.metrics().failed, 6);
    });
}

#[test]
fn a_panic_is_put_back_with_a_growing_back_off() {
    watchdog(LIMIT, || {
        let subject = grows_its_backoff(|_| resume_unwind(Box::new("again")));
        let metrics = subject.subscription.metrics();
        assert_eq!((metrics.panicked, metrics.failed), (6, 0));
    });
}

#[test]
fn a_nack_without_a_delay_uses_the_back_off_and_is_no_failure() {
    watchdog(LIMIT, || {
        let subject = grows_its_backoff(|message| {
            message.nack(None).unwrap();
            Outcome::Handled
        });
        let metrics = subject.subscription.metrics();
        assert_eq!((metrics.failed, metrics.panicked, metrics.rejected), (0, 0, 0));
    });
}

#[test]
fn a_nack_with_a_delay_is_redelivered_after_exactly_that() {
    watchdog(LIMIT, || {
        for delay in [Duration::ZERO, TICK, 7 * MS, HOUR] {
            let handler = move |message: &Message<u64>| {
                if message.attempt() == 1 {
                    message.nack(Some(delay)).unwrap();
                } else {
                    message.ack().unwrap();
                }
                Outcome::Handled
            };
            let subject = Subject::new(config(8).backoff(HOUR, HOUR), handler);
            subject.publish([1]);
            subject.settle();
            if delay > Duration::ZERO {
                subject.advance(delay - TICK);
                assert_eq!(subject.calls.len(), 1);
                subject.advance(TICK);
            }
            let at: Vec<_> = subject.calls.all().iter().map(|call| call.at).collect();
            assert_eq!(at, [Duration::ZERO, delay]);
            assert_eq!((subject.acked(), subject.subscription.metrics().failed), (1, 0));
        }
    });
}

#[test]
fn a_nack_from_outside_wakes_the_worker() {
    watchdog(LIMIT, || {
        let handler = |message: &Message<u64>| {
            if message.attempt() == 3 {
                message.ack().unwrap();
            }
            Outcome::Handled
        };
        let subject = Subject::new(config(8), handler);
        subject.publish([1]);
        subject.settle();
        let id = subject.calls.all()[0].id;
        assert_eq!(subject.subscription.nack(id, Some(Duration::ZERO)), Ok(()));
        subject.calls.wait_for(2);
        // Waits for the second call's end: until then a nack is one from beside the call, which does as well.
        assert_eq!(subject.subscription.handle().nack(id, Some(Duration::ZERO)), Ok(()));
        subject.calls.wait_for(3);
        subject.settle();
        assert_eq!(subject.seen(), [(1, 1), (1, 2), (1, 3)]);
        assert_eq!(subject.acked(), 1);
    });
}

#[test]
fn the_delay_of_a_nack_runs_from_the_nack_though_the_worker_is_busy() {
    watchdog(LIMIT, || {
        let gate = Gate::new();
        let handler = {
            let gate = gate.clone();
            move |message: &Message<u64>| {
                if **message == 2 {
                    gate.pass();
                }
                Outcome::Handled
            }
        };
        let subject = Subject::new(config(8), handler);
        subject.publish([1, 2]);
        gate.wait_entered(1);
        let id = subject.calls.all()[0].id;
        assert_eq!(subject.subscription.nack(id, Some(10 * MS)), Ok(()));
        subject.clock.advance(10 * MS);
        gate.open();
        subject.settle();
        assert_eq!(subject.seen(), [(1, 1), (2, 1), (1, 2)]);
    });
}

#[test]
fn a_nack_that_never_comes_due_stays_pending() {
    watchdog(LIMIT, || {
        let handler = |message: &Message<u64>| {
            message.nack(Some(Duration::MAX)).unwrap();
            Outcome::Handled
        };
        let subject = Subject::new(config(8).ack_timeout(MS), handler);
        subject.publish([1]);
        for _ in 0..5 {
            subject.advance(1_000_000 * HOUR);
        }
        assert_eq!((subject.calls.len(), subject.subscription.metrics().pending), (1, 1));
        assert_eq!(subject.subscription.ack(subject.calls.all()[0].id), NOT_PENDING);
    });
}

#[test]
fn what_expires_is_redelivered_at_once() {
    watchdog(LIMIT, || {
        // A back-off that would show.
        let subject = Subject::new(config(8).ack_timeout(50 * MS).backoff(HOUR, HOUR), |_| Outcome::Handled);
        subject.publish([1]);
        subject.settle();
        for calls in 1..4 {
            subject.advance(50 * MS - TICK);
            assert_eq!(subject.calls.len(), calls);
            subject.advance(TICK);
            assert_eq!(subject.calls.len(), calls + 1);
        }
        let at: Vec<_> = subject.calls.all().iter().map(|call| call.at).collect();
        assert_eq!(at, [0, 50, 100, 150].map(Duration::from_millis));
        assert_eq!(subject.subscription.metrics().failed, 0);
        subject.conserved();
    });
}

#[test]
fn what_expires_comes_in_publish_order_after_the_queued_and_before_the_later() {
    watchdog(LIMIT, || {
        let gate = Gate::new();
        let handler = {
            let gate = gate.clone();
            move |message: &Message<u64>| {
                if **message == 6 || (**message, message.attempt()) == (1, 2) {
                    gate.pass();
                }
                if **message > 5 {
                    message.ack().unwrap();
                }
                Outcome::Handled
            }
        };
        let subject = Subject::new(config(8).max_pending(100).ack_timeout(50 * MS), handler);
        subject.publish(1..=6);
        gate.wait_entered(1);
        subject.publish([7]);
        subject.clock.advance(50 * MS);
        gate.let_one();
        // The first of them is in its second call: the others have been put back too.
        gate.wait_entered(2);
        subject.publish([8]);
        gate.open();
        subject.settle();
        let order: Vec<_> = subject.seen().iter().map(|(value, _)| *value).collect();
        assert_eq!(order, [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 8]);
        subject.conserved();
    });
}

#[test]
fn messages_put_back_together_keep_their_publish_order_however_they_were_nacked() {
    watchdog(LIMIT, || {
        let gate = Gate::new();
        let handler = {
            let gate = gate.clone();
            move |message: &Message<u64>| {
                if **message == 6 {
                    gate.pass();
                }
                Outcome::Handled
            }
        };
        let subject = Subject::new(config(8).max_pending(100), handler);
        subject.publish(1..=6);
        gate.wait_entered(1);
        // From two threads, in other orders, while the worker is busy.
        let calls = subject.calls.all();
        let nack =
            |value: usize| subject.subscription.nack(calls[value - 1].id, Some(Duration::ZERO)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| [5, 1, 4].map(nack));
            scope.spawn(|| [3, 2].map(nack));
        });
        gate.open();
        subject.settle();
        assert_eq!(subject.seen()[6..], [1, 2, 3, 4, 5].map(|value| (value, 2)));
    });
}

#[test]
fn a_poison_message_is_tried_three_times_and_holds_up_nobody() {
    watchdog(LIMIT, || {
        let handler = |message: &Message<u64>| {
            if **message == 0 {
                resume_unwind(Box::new("poison"));
            }
            message.ack().unwrap();
            Outcome::Handled
        };
        let subject = Subject::new(config(16).max_deliveries(3).backoff(10 * MS, HOUR), handler);
        subject.publish(0..10);
        subject.settle();
        assert_eq!(subject.seen(), (0..10).map(|value| (value, 1)).collect::<Vec<_>>());
        for _ in 0..5 {
            subject.advance(HOUR);
        }
        assert_eq!(subject.seen()[10..], [(0, 2), (0, 3)]);
        let metrics = subject.subscription.metrics();
        assert_eq!((metrics.dead, metrics.pending, metrics.panicked, metrics.redelivered), (1, 0, 3, 2));
        assert_eq!(subject.acked(), 9);
        let dead = subject.events.all().into_iter().filter_map(|event| match event.kind {
            EventKind::DeadLettered { message, attempts } => Some((message, attempts)),
            _ => None,
        });
        assert_eq!(dead.collect::<Vec<_>>(), [(subject.calls.all()[0].id, 3)]);
        subject.conserved();
    });
}

#[test]
fn without_a_back_off_a_poison_message_takes_its_turn_behind_the_queue() {
    watchdog(LIMIT, || {
        let gate = Gate::new();
        let handler = {
            let gate = gate.clone();
            move |message: &Message<u64>| {
                if **message != 0 {
                    message.ack().unwrap();
                    return Outcome::Handled;
                }
                gate.pass();
                Outcome::Failed
            }
        };
        let config = config(16).max_deliveries(4).backoff(Duration::ZERO, Duration::ZERO);
        let subject = Subject::new(config, handler);
        subject.publish(0..3);
        for round in 1..4 {
            gate.wait_entered(round);
            subject.publish([10 * round as u64]);
            gate.let_one();
        }
        gate.open();
        subject.settle();
        let order = [(0, 1), (1, 1), (2, 1), (10, 1), (0, 2), (20, 1), (0, 3), (30, 1), (0, 4)];
        assert_eq!(subject.seen(), order);
        assert_eq!(subject.subscription.metrics().dead, 1);
    });
}

#[test]
fn a_panic_in_the_first_call_and_an_ack_in_the_second() {
    watchdog(LIMIT, || {
        let handler = |message: &Message<u64>| {
            if **message == 0 && message.attempt() == 1 {
                resume_unwind(Box::new("once"));
            }
            message.ack().unwrap();
            Outcome::Handled
        };
        let subject = Subject::new(config(16).backoff(10 * MS, HOUR), handler);
        subject.publish(0..4);
        subject.settle();
        assert_eq!(subject.seen(), [0, 1, 2, 3].map(|value| (value, 1)), "the others are not held up");
        subject.advance(10 * MS);
        assert_eq!(subject.seen()[4..], [(0, 2)]);
        let metrics = subject.subscription.metrics();
        assert_eq!((metrics.dead, metrics.panicked, metrics.pending), (0, 1, 0));
        assert_eq!(subject.acked(), 4);
    });
}

#[test]
fn a_message_stays_the_same_from_call_to_call() {
    watchdog(LIMIT, || {
        let (broker, clock) = timed();
        let (ledger, calls) = (Ledger::new(), Log::new());
        let handler = {
            let (calls, clock) = (calls.clone(), clock.clone());
            move |message: &Message<Live>| {
                let gap = message.dropped_before();
                let address = std::ptr::from_ref(message.payload()) as usize;
                calls.push((
                    message.id(),
                    message.seq(),
                    message.topic().to_owned(),
                    address,
                    gap,
                    clock.now(),
                ));
                Outcome::Failed
            }
        };
        let config = config(2).backoff(MS, MS).max_deliveries(3);
        let subscription = broker.subscribe("t", config, handler).unwrap();
        broker.publish("t", ledger.live(0)).unwrap();
        wait_until(|| {
            clock.advance(MS);
            subscription.metrics().dead == 1
        });
        let calls: Vec<_> =
            calls.all().into_iter().map(|(id, seq, topic, at, gap, _)| (id, seq, topic, at, gap)).collect();
        assert_eq!(calls, vec![calls[0].clone(); 3]);
        assert_eq!(ledger.cloned(), 0, "redelivery needs no clone");
        wait_until(|| ledger.alive() == 0);
        conserved(&subscription.unsubscribe());
        ledger.assert_all_dropped();
    });
}

#[test]
fn a_redelivery_tells_of_no_gap_and_the_next_new_message_of_all_of_it() {
    let (broker, clock) = timed();
    let mut receiver = broker.receiver("t", config(2).max_pending(9).ack_timeout(MS)).unwrap();
    broker.publish("t", 0_u64).unwrap();
    let _ = receiver.try_recv().unwrap();
    for value in 1..=5 {
        broker.publish("t", value).unwrap();
    }
    clock.advance(MS);
    let got =
        take_all(&mut receiver).iter().map(|m| (**m, m.attempt(), m.dropped_before())).collect::<Vec<_>>();
    assert_eq!(got, [(4, 1, 3), (5, 1, 0), (0, 2, 0)]);
    conserved(&receiver.metrics());
}

#[test]
fn a_timeout_without_end_never_expires() {
    watchdog(LIMIT, || {
        let config = SubscriptionConfig::at_least_once(8).ack_timeout(Duration::MAX);
        let subject = Subject::new(config, |_| Outcome::Handled);
        subject.publish([1]);
        subject.settle();
        for by in [HOUR, 1_000_000 * HOUR, Duration::MAX, Duration::MAX] {
            subject.advance(by);
        }
        assert_eq!(subject.seen(), [(1, 1)]);
        assert_eq!(subject.subscription.ack(subject.calls.all()[0].id), Ok(()));
    });
}

#[test]
fn a_timeout_of_zero_is_refused() {
    let (broker, _) = timed::<u64>();
    let config = SubscriptionConfig::at_least_once(8).ack_timeout(Duration::ZERO);
    let error = broker.receiver("t", config).unwrap_err();
    assert!(matches!(error, SubscribeError::InvalidOption { option: "ack_timeout", .. }), "{error}");
    assert!(broker.topics().is_empty());
}

#[test]
fn a_leap_of_the_clock_is_one_round_of_redelivery() {
    watchdog(LIMIT, || {
        let subject = Subject::new(config(8).max_pending(100).ack_timeout(50 * MS), |_| Outcome::Handled);
        subject.publish(0..5);
        subject.settle();
        subject.advance(10 * HOUR);
        let second = [0, 1, 2, 3, 4].map(|value| (value, 2));
        assert_eq!(subject.seen()[5..], second, "not ten hours' worth");
        subject.advance(50 * MS - TICK);
        assert_eq!(subject.calls.len(), 10, "and none too early after it");
    });
}

#[test]
fn the_default_back_off_is_one_millisecond_doubled_to_a_second() {
    watchdog(LIMIT, || {
        let config = SubscriptionConfig::at_least_once(8);
        let subject = Subject::new(config, |_| Outcome::Failed);
        subject.publish([1]);
        subject.settle();
        for delay in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 1000] {
            let calls = subject.calls.len();
            subject.advance(delay * MS - TICK);
            assert_eq!(subject.calls.len(), calls, "before {delay} ms");
            subject.advance(TICK);
            assert_eq!(subject.calls.len(), calls + 1, "after {delay} ms");
        }
    });
}

#[test]
fn the_default_timeout_is_thirty_seconds() {
    let (broker, clock) = timed();
    let mut receiver = broker.receiver("t", SubscriptionConfig::at_least_once(8)).unwrap();
    broker.publish("t", 1).unwrap();
    assert_eq!(seen(&mut receiver), [(1, 1)]);
    clock.advance(Duration::from_secs(30) - TICK);
    assert_eq!(seen(&mut receiver), []);
    clock.advance(TICK);
    assert_eq!(seen(&mut receiver), [(1, 2)]);
}
