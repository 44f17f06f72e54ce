//! Who may settle a message, when, and what they are told.

use std::{
    collections::VecDeque,
    panic::resume_unwind,
    sync::{Arc, Mutex, mpsc},
    thread::{self, ThreadId},
    time::Duration,
};

use fanout::{AckPolicy, Acker, Broker, Message, Outcome, SubscriptionConfig};

use crate::acks::{HOUR, Log, MS, NOT_PENDING, Subject, config, seen, take_all, timed};
use crate::support::{Gate, LIMIT, Ledger, Live, conserved, scale, wait_until, watchdog};

/// Publishes `count` messages to `handler`, and checks that each is acked in its first call.
fn acked_in_the_call(count: u64, mut handler: impl FnMut(&Message<u64>) + Send + 'static) {
    watchdog(LIMIT, move || {
        let handler = move |message: &Message<u64>| {
            handler(message);
            Outcome::Handled
        };
        let subject = Subject::new(config(count as usize).max_pending(1).ack_timeout(HOUR), handler);
        subject.publish(0..count);
        wait_until(|| subject.subscription.metrics().acked == count);
        subject.clock.advance(2 * HOUR);
        subject.settle();
        let metrics = subject.subscription.metrics();
        assert_eq!((metrics.pending, metrics.redelivered, metrics.dropped), (0, 0, 0));
        assert_eq!(subject.calls.len() as u64, count);
        subject.conserved();
    });
}

#[test]
fn an_ack_as_the_first_statement_of_the_handler_counts() {
    acked_in_the_call(scale(100_000), |message| message.ack().unwrap());
}

#[test]
fn an_ack_from_a_thread_that_the_handler_joins_counts() {
    acked_in_the_call(scale(100_000), |message| {
        let acker = message.acker();
        thread::spawn(move || acker.ack().unwrap()).join().unwrap();
    });
}

#[test]
fn an_ack_from_another_thread_while_the_handler_runs_leaves_it_the_payload() {
    watchdog(LIMIT, || {
        let (gate, ledger, ackers) = (Gate::new(), Ledger::new(), Log::<Acker>::new());
        let broker = Broker::new();
        let handler = {
            let (gate, ackers) = (gate.clone(), ackers.clone());
            move |message: &Message<Live>| {
                ackers.push(message.acker());
                gate.pass();
                assert_eq!(message.id, 7, "the payload is there until the call ends");
            }
        };
        let subscription = broker.subscribe("t", config(1), handler).unwrap();
        broker.publish("t", ledger.live(7)).unwrap();
        gate.wait_entered(1);
        assert_eq!(ackers.all()[0].ack(), Ok(()));
        let metrics = subscription.metrics();
        assert_eq!((metrics.acked, metrics.pending, metrics.in_hand), (1, 0, 1));
        conserved(&metrics);
        assert_eq!(ledger.alive(), 1);
        assert_eq!(ackers.all()[0].ack(), NOT_PENDING);
        assert_eq!(ackers.all()[0].nack(None), NOT_PENDING);
        gate.open();
        wait_until(|| ledger.alive() == 0);
        assert_eq!(subscription.unsubscribe().panicked, 0);
        ledger.assert_all_dropped();
    });
}

#[test]
fn a_second_ack_says_so_and_the_subscription_goes_on() {
    let (broker, _) = timed::<u64>();
    let mut receiver = broker.receiver("t", config(8)).unwrap();
    for value in 0..4 {
        broker.publish("t", value).unwrap();
    }
    let taken = take_all(&mut receiver);
    assert_eq!(taken[0].ack(), Ok(()));
    for _ in 0..3 {
        assert_eq!([taken[0].ack(), taken[0].acker().ack(), receiver.ack(taken[0].id())], [NOT_PENDING; 3]);
        assert_eq!(receiver.handle().ack(taken[0].id()), NOT_PENDING);
        assert_eq!(taken[0].nack(None), NOT_PENDING);
    }
    let metrics = receiver.metrics();
    assert_eq!((metrics.acked, metrics.pending), (1, 3), "the count never wraps");
    for message in &taken[1..] {
        assert_eq!(receiver.ack(message.id()), Ok(()));
    }
    broker.publish("t", 4).unwrap();
    assert_eq!(receiver.try_recv().unwrap().ack(), Ok(()));
    assert_eq!((receiver.metrics().acked, receiver.metrics().pending), (5, 0));
    conserved(&receiver.metrics());
}

#[test]
fn an_ack_after_a_nack_finds_nothing_pending_until_the_next_call() {
    let (broker, clock) = timed::<u64>();
    let mut receiver = broker.receiver("t", config(8)).unwrap();
    broker.publish("t", 0).unwrap();
    let first = receiver.try_recv().unwrap();
    assert_eq!(first.nack(Some(MS)), Ok(()));
    let refused = |when: &str| {
        assert_eq!([first.ack(), first.nack(None), first.nack(Some(MS))], [NOT_PENDING; 3], "{when}");
    };
    refused("before the receiver has seen it");
    assert!(receiver.try_recv().is_err());
    refused("while it waits");
    clock.advance(HOUR);
    let second = receiver.try_recv().unwrap();
    assert_eq!(second.id(), first.id(), "the id names the message, not the delivery");
    assert_eq!(first.ack(), Ok(()));
    assert_eq!(second.ack(), NOT_PENDING);
    conserved(&receiver.metrics());
}

#[test]
fn an_id_of_another_subscription_settles_nothing() {
    // Two subscriptions of one broker, and one of another broker that is made in the same way.
    let (broker, other) = (Broker::new(), Broker::new());
    let mut receivers = [("t", &broker), ("u", &broker), ("t", &other)]
        .map(|(topic, broker)| broker.receiver(topic, config(4)).unwrap());
    for (topic, broker) in [("t", &broker), ("u", &broker), ("t", &other)] {
        broker.publish(topic, 0_u64).unwrap();
    }
    let messages = receivers.each_mut().map(|receiver| receiver.try_recv().unwrap());
    for (mine, receiver) in receivers.iter().enumerate() {
        for (its, message) in messages.iter().enumerate().filter(|(its, _)| *its != mine) {
            assert_eq!(receiver.ack(message.id()), NOT_PENDING, "message {its} by subscription {mine}");
            assert_eq!(receiver.nack(message.id(), None), NOT_PENDING);
            assert_eq!(receiver.handle().ack(message.id()), NOT_PENDING);
        }
        assert_eq!(receiver.metrics().pending, 1);
    }
    for (receiver, message) in receivers.iter().zip(&messages) {
        assert_eq!(receiver.ack(message.id()), Ok(()));
    }
}

#[test]
fn an_id_whose_place_was_used_again_is_unknown() {
    let (broker, _) = timed::<u64>();
    let mut receiver = broker.receiver("t", config(1).max_pending(1)).unwrap();
    let mut old = Vec::new();
    for value in 0..50 {
        broker.publish("t", value).unwrap();
        let message = receiver.try_recv().unwrap();
        for id in &old {
            assert_ne!(*id, message.id());
            assert_eq!(receiver.ack(*id), NOT_PENDING);
        }
        assert_eq!((receiver.metrics().pending, receiver.metrics().acked), (1, value));
        assert_eq!(receiver.ack(message.id()), Ok(()));
        old.push(message.id());
    }
}

#[test]
fn at_most_once_has_nothing_to_settle() {
    let broker = Broker::new();
    let mut receiver = broker.receiver("t", SubscriptionConfig::at_most_once(4)).unwrap();
    broker.publish("t", 1_u64).unwrap();
    let message = receiver.try_recv().unwrap();
    assert_eq!([message.ack(), message.nack(None), message.acker().ack()], [NOT_PENDING; 3]);
    assert_eq!([receiver.ack(message.id()), receiver.nack(message.id(), None)], [NOT_PENDING; 2]);
    assert_eq!(receiver.metrics().acked, 0);
    conserved(&receiver.metrics());
}

#[test]
fn a_late_ack_settles_the_message_that_it_names() {
    watchdog(LIMIT, || {
        let subject = Subject::new(config(8).ack_timeout(50 * MS), |_| Outcome::Handled);
        subject.publish([1]);
        subject.settle();
        subject.advance(50 * MS);
        assert_eq!(subject.seen(), [(1, 1), (1, 2)]);
        let [first, second] = [0, 1].map(|call| subject.calls.all()[call].id);
        assert_eq!(first, second);
        assert_eq!(subject.subscription.ack(first), Ok(()));
        assert_eq!(subject.subscription.ack(second), NOT_PENDING);
        for _ in 0..5 {
            subject.advance(HOUR);
        }
        assert_eq!(subject.seen().len(), 2, "no further delivery begins");
        assert_eq!((subject.acked(), subject.subscription.metrics().pending), (1, 0));
        subject.conserved();
    });
}

#[test]
fn a_late_ack_cancels_a_redelivery_that_has_not_begun() {
    let (broker, clock) = timed::<u64>();
    let mut receiver = broker.receiver("t", config(8).ack_timeout(50 * MS)).unwrap();
    for value in 0..3 {
        broker.publish("t", value).unwrap();
    }
    let taken = take_all(&mut receiver);
    clock.advance(50 * MS);
    // Expired, and not looked at yet; then put back, with another message in front of it.
    assert_eq!(taken[1].ack(), Ok(()));
    let again = receiver.try_recv().unwrap();
    assert_eq!((*again, again.attempt()), (0, 2));
    assert_eq!(taken[2].ack(), Ok(()));
    assert!(receiver.try_recv().is_err());
    assert_eq!([taken[1].ack(), taken[2].ack()], [NOT_PENDING; 2]);
    assert_eq!(taken[0].ack(), Ok(()), "also during a later delivery");
    clock.advance(HOUR);
    assert!(seen(&mut receiver).is_empty());
    assert_eq!((receiver.metrics().acked, receiver.metrics().redelivered), (3, 1));
    conserved(&receiver.metrics());
}

#[test]
fn a_late_ack_during_the_second_call_is_the_one_that_counts() {
    watchdog(LIMIT, || {
        let gate = Gate::new();
        let handler = {
            let gate = gate.clone();
            move |message: &Message<u64>| {
                if message.attempt() == 2 {
                    gate.pass();
                }
                // The second call fails: too late to matter.
                if message.attempt() == 2 { Outcome::Failed } else { Outcome::Handled }
            }
        };
        let subject = Subject::new(config(8).ack_timeout(50 * MS), handler);
        subject.publish([1]);
        subject.settle();
        subject.clock.advance(50 * MS);
        gate.wait_entered(1);
        assert_eq!(subject.subscription.ack(subject.calls.all()[0].id), Ok(()));
        gate.open();
        subject.advance(HOUR);
        assert_eq!(subject.seen(), [(1, 1), (1, 2)]);
        assert_eq!((subject.acked(), subject.subscription.metrics().failed), (1, 1));
        subject.conserved();
    });
}

#[test]
fn time_in_the_queue_is_not_time_for_the_ack() {
    watchdog(LIMIT, || {
        let (gate, clock) = (Gate::new(), Arc::new(Mutex::new(None::<fanout::ManualClock>)));
        let handler = {
            let (gate, clock) = (gate.clone(), clock.clone());
            move |message: &Message<u64>| {
                gate.pass();
                clock.lock().unwrap().as_ref().unwrap().advance(200 * MS);
                message.ack().unwrap();
                Outcome::Handled
            }
        };
        let subject = Subject::new(config(8).ack_timeout(50 * MS), handler);
        *clock.lock().unwrap() = Some(subject.clock.clone());
        subject.publish(0..5);
        gate.open();
        subject.settle();
        assert_eq!(subject.seen(), [0, 1, 2, 3, 4].map(|value| (value, 1)));
        let started: Vec<_> = subject.calls.all().iter().map(|call| call.at).collect();
        assert_eq!(started, [0, 200, 400, 600, 800].map(Duration::from_millis));
        assert_eq!((subject.acked(), subject.subscription.metrics().redelivered), (5, 0));
    });
}

#[test]
fn a_call_that_outlasts_the_timeout_is_redelivered_when_it_returns_unsettled() {
    watchdog(LIMIT, || {
        let gate = Gate::new();
        let handler = {
            let gate = gate.clone();
            move |message: &Message<u64>| {
                if message.attempt() == 1 {
                    gate.pass();
                } else {
                    message.ack().unwrap();
                }
                Outcome::Handled
            }
        };
        let subject = Subject::new(config(8).ack_timeout(50 * MS), handler);
        subject.publish([1]);
        gate.wait_entered(1);
        subject.clock.advance(HOUR);
        let metrics = subject.subscription.metrics();
        assert_eq!((metrics.delivered, metrics.in_hand), (1, 1), "never two calls at once");
        gate.open();
        subject.settle();
        assert_eq!(subject.seen(), [(1, 1), (1, 2)]);
        assert_eq!(subject.acked(), 1);
    });
}

#[test]
fn messages_acked_in_time_never_time_out() {
    watchdog(LIMIT, || {
        let count = scale(1_000_000);
        let clock = Arc::new(Mutex::new(None::<fanout::ManualClock>));
        let mut waiting = VecDeque::new();
        let (tell, told) = mpsc::channel();
        let handler = {
            let clock = clock.clone();
            move |message: &Message<u64>| {
                // A message takes 1 ms and is acked 400 ms later, of the 500 that it has.
                clock.lock().unwrap().as_ref().unwrap().advance(MS);
                waiting.push_back(message.acker());
                if waiting.len() > 400 {
                    waiting.pop_front().unwrap().ack().unwrap();
                }
                if **message + 1 == count {
                    waiting.drain(..).for_each(|acker| tell.send(acker).unwrap());
                }
                Outcome::Handled
            }
        };
        let config = config(count as usize).max_pending(1000).ack_timeout(500 * MS);
        let (broker, its_clock) = timed();
        *clock.lock().unwrap() = Some(its_clock);
        let subscription = broker.subscribe("t", config, handler).unwrap();
        for value in 0..count {
            broker.publish("t", value).unwrap();
        }
        for acker in told {
            acker.ack().unwrap();
            if subscription.metrics().acked == count {
                break;
            }
        }
        let last = subscription.unsubscribe();
        assert_eq!((last.delivered, last.acked, last.redelivered, last.dropped), (count, count, 0, 0));
        conserved(&last);
    });
}

/// Notes on which thread it is dropped.
#[derive(Clone)]
struct Dropped(Log<ThreadId>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.push(thread::current().id());
    }
}

#[test]
fn the_payload_is_dropped_by_the_thread_that_acks_before_the_ack_returns() {
    watchdog(LIMIT, || {
        let (broker, dropped, ackers) = (Broker::new(), Log::new(), Log::<Acker>::new());
        let handler = {
            let ackers = ackers.clone();
            move |message: &Message<Dropped>| ackers.push(message.acker())
        };
        let subscription = broker.subscribe("t", config(4), handler).unwrap();
        broker.publish("t", Dropped(dropped.clone())).unwrap();
        broker.publish("t", Dropped(Log::new())).unwrap();
        // The second call has begun, so the first has ended.
        ackers.wait_for(2);
        // Two at once: one of them settles it, and drops it.
        let results: Vec<_> = thread::scope(|scope| {
            let ack = || (ackers.all()[0].ack(), thread::current().id(), dropped.all());
            let threads = [scope.spawn(ack), scope.spawn(ack)];
            threads.map(|thread| thread.join().unwrap()).into()
        });
        let winners: Vec<_> = results.iter().filter(|(result, ..)| result.is_ok()).collect();
        let [(_, winner, seen)] = winners[..] else { panic!("{} acks of one message", winners.len()) };
        assert_eq!((&dropped.all()[..], &seen[..]), (&[*winner][..], &[*winner][..]));
        subscription.unsubscribe();
        assert_eq!(dropped.len(), 1);
    });
}

#[test]
fn after_an_ack_in_the_call_a_failure_or_a_panic_only_counts() {
    watchdog(LIMIT, || {
        let handler = |message: &Message<u64>| {
            message.ack().unwrap();
            match **message {
                0 => Outcome::Failed,
                1 => Outcome::Reject,
                2 => resume_unwind(Box::new("after the ack")),
                _ => Outcome::Handled,
            }
        };
        let subject = Subject::new(config(8).max_deliveries(1).dead_letter("dead"), handler);
        subject.publish(0..4);
        subject.advance(HOUR);
        let metrics = subject.subscription.metrics();
        assert_eq!((metrics.failed, metrics.panicked, metrics.rejected, metrics.dead), (2, 1, 0, 0));
        assert_eq!((subject.acked(), metrics.pending, metrics.redelivered), (4, 0, 0));
        assert_eq!(subject.broker.topic("dead").unwrap().metrics().published, 0);
        subject.conserved();
    });
}

#[test]
fn on_success_a_call_that_succeeds_acks_also_past_the_timeout() {
    watchdog(LIMIT, || {
        let gate = Gate::new();
        let handler = {
            let gate = gate.clone();
            move |message: &Message<u64>| match **message {
                0 => {
                    gate.pass();
                    Outcome::Handled
                }
                // Settled by itself, and then again by its success.
                1 => message.ack().map(|()| Outcome::Handled).unwrap(),
                2 if message.attempt() == 1 => message.nack(Some(MS)).map(|()| Outcome::Handled).unwrap(),
                3 if message.attempt() == 1 => Outcome::Failed,
                _ => Outcome::Handled,
            }
        };
        let config = config(8).ack_policy(AckPolicy::OnSuccess).ack_timeout(50 * MS).backoff(MS, MS);
        let (broker, clock) = timed();
        let calls = Log::new();
        let recorded = {
            let calls = calls.clone();
            move |message: &Message<u64>| {
                calls.push((**message, message.attempt()));
                handler(message)
            }
        };
        let subscription = broker.subscribe("t", config, recorded).unwrap();
        broker.publish("t", 0).unwrap();
        gate.wait_entered(1);
        clock.advance(HOUR);
        gate.open();
        for value in 1..=4 {
            broker.publish("t", value).unwrap();
        }
        calls.wait_for(5);
        // What was nacked and what failed come again as time goes on, whenever the worker looked at the clock.
        wait_until(|| {
            clock.advance(MS);
            subscription.metrics().acked == 5
        });
        clock.advance(HOUR);
        let last = subscription.unsubscribe();
        let mut seen = calls.all();
        seen.sort_unstable();
        assert_eq!(seen, [(0, 1), (1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (4, 1)]);
        assert_eq!((last.acked, last.failed, last.redelivered, last.discarded), (5, 1, 2, 0));
        conserved(&last);
    });
}

/// Has an acker of its own message, and may panic as it is dropped.
#[derive(Clone)]
struct Rude {
    acker: Arc<Mutex<Option<Acker>>>,
    panics: bool,
}

impl Drop for Rude {
    fn drop(&mut self) {
        if let Some(acker) = self.acker.lock().unwrap().take() {
            assert_eq!([acker.ack(), acker.nack(None)], [NOT_PENDING; 2]);
        }
        if self.panics {
            resume_unwind(Box::new("rude"));
        }
    }
}

#[test]
fn a_payload_that_acks_itself_or_panics_as_it_is_dropped_breaks_no_ack() {
    watchdog(LIMIT, || {
        let (broker, ackers) = (Broker::new(), Log::<Acker>::new());
        let handler = {
            let ackers = ackers.clone();
            move |message: &Message<Rude>| {
                *message.acker.lock().unwrap() = Some(message.acker());
                ackers.push(message.acker());
            }
        };
        let subscription = broker.subscribe("t", config(4), handler).unwrap();
        for panics in [false, true, false] {
            broker.publish("t", Rude { acker: Arc::default(), panics }).unwrap();
        }
        ackers.wait_for(3);
        // Two wait for their acks; the last may be with its call.
        for acker in ackers.all() {
            assert_eq!(acker.ack(), Ok(()));
        }
        let last = subscription.unsubscribe();
        assert_eq!((last.acked, last.payload_panics, last.discarded), (3, 1, 0));
        conserved(&last);
    });
}
