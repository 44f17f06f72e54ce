//! What becomes of pending messages, and of those who would settle them, at the end of a subscription.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use fanout::{
    AckError, Acker, Broker, DrainReport, ManualClock, Message, Outcome, Shutdown, Subscription,
    SubscriptionState,
};

use crate::acks::{CLOSED, HOUR, Log, MS, NOT_PENDING, Subject, TICK, config, timed};
use crate::support::{Gate, LIMIT, Ledger, Live, conserved, scale, wait_until, watchdog};

/// A subscription that keeps its ackers, with `calls` messages in wait of an ack and the rest of `published` queued.
fn with_pending(
    ledger: &Ledger,
    calls: u64,
    published: u64,
) -> (Broker<Live>, Subscription<Live>, Vec<Acker>) {
    let (broker, _) = timed();
    let ackers = Log::new();
    let handler = {
        let ackers = ackers.clone();
        move |message: &Message<Live>| ackers.push(message.acker())
    };
    let config = config(published as usize).max_pending(calls as usize);
    let subscription = broker.subscribe("t", config, handler).unwrap();
    for id in 0..published {
        broker.publish("t", ledger.live(id)).unwrap();
    }
    wait_until(|| subscription.metrics().state == SubscriptionState::StalledAtPendingLimit);
    assert_eq!(ackers.len() as u64, calls);
    let ackers = ackers.all();
    (broker, subscription, ackers)
}

#[test]
fn unsubscribe_discards_and_counts_what_is_pending() {
    watchdog(LIMIT, || {
        let ledger = Ledger::new();
        let (broker, subscription, ackers) = with_pending(&ledger, 5, 12);
        assert_eq!(subscription.handle().nack(ackers[0].id(), Some(HOUR)), Ok(()));
        let last = subscription.unsubscribe();
        assert_eq!((last.discarded, last.pending, last.depth, last.acked), (12, 0, 0, 0));
        assert_eq!(last.state, SubscriptionState::Ended);
        conserved(&last);
        ledger.assert_all_dropped();
        drop(broker);
    });
}

#[test]
fn an_acker_after_the_end_is_closed_and_keeps_nothing_alive() {
    watchdog(LIMIT, || {
        let ledger = Ledger::new();
        let (broker, subscription, ackers) = with_pending(&ledger, 3, 3);
        let (handle, weak) = (subscription.handle(), broker.downgrade());
        subscription.unsubscribe();
        ledger.assert_all_dropped();
        for acker in &ackers {
            assert_eq!(
                [acker.ack(), acker.nack(None), handle.ack(acker.id()), handle.nack(acker.id(), None)],
                [CLOSED; 4]
            );
        }
        drop(broker);
        assert!(weak.upgrade().is_none(), "neither does it keep the broker");
        assert_eq!(ackers[0].ack(), CLOSED);
        assert_eq!(handle.metrics().discarded, 3);
    });
}

#[test]
fn an_acker_keeps_no_detached_subscription_alive() {
    watchdog(LIMIT, || {
        let ledger = Ledger::new();
        let (broker, subscription, ackers) = with_pending(&ledger, 2, 2);
        let handle = subscription.detach();
        drop(broker);
        assert_eq!(ackers[0].ack(), Ok(()));
        assert_eq!(handle.metrics().pending, 1, "it lives until nothing is pending");
        assert_eq!(ackers[1].ack(), Ok(()));
        wait_until(|| handle.metrics().state == SubscriptionState::Ended);
        let last = handle.metrics();
        assert_eq!((last.acked, last.discarded), (2, 0));
        conserved(&last);
        assert_eq!(ackers[1].ack(), CLOSED);
        ledger.assert_all_dropped();
    });
}

#[test]
fn a_detached_subscription_redelivers_until_its_last_message_is_settled() {
    watchdog(LIMIT, || {
        let handler = |message: &Message<u64>| {
            if message.attempt() == 3 {
                message.ack().unwrap();
            }
            Outcome::Handled
        };
        let Subject { broker, clock, subscription, calls, .. } =
            Subject::new(config(8).max_pending(4).ack_timeout(MS), handler);
        for value in 0..4 {
            broker.publish("t", value).unwrap();
        }
        let handle = subscription.detach();
        drop(broker);
        wait_until(|| {
            clock.advance(MS);
            handle.metrics().state == SubscriptionState::Ended
        });
        let last = handle.metrics();
        assert_eq!((last.acked, last.delivered, last.discarded, calls.len()), (4, 12, 0, 12));
        conserved(&last);
    });
}

/// Drains on a thread of its own; returns once the drain has begun.
fn drain<T: Clone + Send + 'static>(
    broker: &Broker<T>,
    subscription: Subscription<T>,
    deadline: Duration,
) -> thread::JoinHandle<DrainReport> {
    let drain = thread::spawn(move || subscription.drain(deadline));
    wait_until(|| broker.topic("t").unwrap().subscriptions() == 0);
    drain
}

#[test]
fn drain_waits_for_the_acks() {
    watchdog(LIMIT, || {
        let ledger = Ledger::new();
        let (broker, subscription, ackers) = with_pending(&ledger, 4, 4);
        let handle = subscription.handle();
        let drain = drain(&broker, subscription, HOUR);
        for (at, acker) in ackers.iter().enumerate() {
            assert!(!drain.is_finished());
            assert_eq!(handle.metrics().pending, 4 - at);
            assert_eq!(acker.ack(), Ok(()));
        }
        let report = drain.join().unwrap();
        assert_eq!((report.delivered, report.discarded, report.still_running), (0, 0, false));
        assert_eq!(report.metrics.acked, 4);
        conserved(&report.metrics);
        ledger.assert_all_dropped();
    });
}

#[test]
fn a_drain_at_the_pending_limit_goes_on_as_acks_come() {
    watchdog(LIMIT, || {
        let ackers = Log::<Acker>::new();
        let handler = {
            let ackers = ackers.clone();
            move |message: &Message<u64>| {
                ackers.push(message.acker());
                Outcome::Handled
            }
        };
        let subject = Subject::new(config(16).max_pending(2), handler);
        subject.publish(0..10);
        subject.wait_stalled(2);
        let drain = drain(&subject.broker, subject.subscription, Duration::MAX);
        for at in 0..10 {
            ackers.wait_for(at + 1);
            assert_eq!(ackers.all()[at].ack(), Ok(()));
        }
        let report = drain.join().unwrap();
        assert_eq!((report.delivered, report.discarded, report.still_running), (8, 0, false));
        assert_eq!(
            subject.calls.all().iter().map(|call| call.value).collect::<Vec<_>>(),
            Vec::from_iter(0..10)
        );
        conserved(&report.metrics);
    });
}

#[test]
fn a_drain_redelivers_what_fails_and_what_expires() {
    watchdog(LIMIT, || {
        let handler = |message: &Message<u64>| match (**message, message.attempt()) {
            (0, 1) => Outcome::Failed,
            (1, 1) => Outcome::Handled,
            _ => {
                message.ack().unwrap();
                Outcome::Handled
            }
        };
        let subject = Subject::new(config(4).max_pending(2).backoff(MS, MS).ack_timeout(5 * MS), handler);
        subject.publish([0, 1]);
        subject.wait_stalled(2);
        let drain = drain(&subject.broker, subject.subscription, Duration::MAX);
        while !drain.is_finished() {
            subject.clock.advance(MS);
            thread::yield_now();
        }
        let report = drain.join().unwrap();
        assert_eq!((report.delivered, report.metrics.acked, report.discarded), (2, 2, 0));
        conserved(&report.metrics);
    });
}

#[test]
fn a_drain_discards_and_counts_what_is_not_acked_at_its_deadline() {
    watchdog(LIMIT, || {
        let subject = Subject::new(config(8).max_pending(3), |_| Outcome::Handled);
        subject.publish(0..7);
        subject.wait_stalled(3);
        let (clock, handle) = (subject.clock.clone(), subject.subscription.handle());
        let drain = drain(&subject.broker, subject.subscription, 50 * MS);
        assert_eq!(handle.ack(subject.calls.all()[0].id), Ok(()));
        subject.calls.wait_for(4);
        clock.advance(50 * MS - TICK);
        assert!(!drain.is_finished());
        clock.advance(TICK);
        let report = drain.join().unwrap();
        // On a machine that stalls the worker for long it may be reported as running; then it ends by itself.
        wait_until(|| handle.metrics().state == SubscriptionState::Ended);
        let last = handle.metrics();
        assert_eq!((last.delivered, last.acked, last.discarded, last.pending), (4, 1, 6, 0));
        assert!(report.still_running || report.discarded == 6, "{report:?}");
        conserved(&last);
        assert_eq!(handle.ack(subject.calls.all()[1].id), CLOSED);
    });
}

#[test]
fn a_drain_does_not_end_before_its_deadline_on_the_brokers_clock() {
    watchdog(LIMIT, || {
        let ledger = Ledger::new();
        let clock = ManualClock::new();
        let broker: Broker<Live> = Broker::builder().clock(clock.clone()).build();
        let subscription = broker.subscribe("t", config(1), |_: &Message<Live>| {}).unwrap();
        broker.publish("t", ledger.live(0)).unwrap();
        wait_until(|| subscription.metrics().pending == 1);
        let handle = subscription.handle();
        let drain = drain(&broker, subscription, HOUR);
        clock.advance(HOUR / 2);
        assert_ne!(handle.metrics().state, SubscriptionState::Ended);
        assert!(!drain.is_finished());
        clock.advance(HOUR / 2);
        drain.join().unwrap();
        wait_until(|| handle.metrics().state == SubscriptionState::Ended);
        assert_eq!(handle.metrics().discarded, 1);
        ledger.assert_all_dropped();
    });
}

#[test]
fn a_shutdown_discards_pending_messages_or_waits_for_them() {
    watchdog(LIMIT, || {
        let ledger = Ledger::new();
        let (broker, subscription, ackers) = with_pending(&ledger, 2, 5);
        let report = broker.shutdown(Shutdown::Discard);
        assert_eq!((report.subscriptions, report.discarded, report.still_running), (1, 5, 0));
        conserved(&subscription.metrics());
        assert_eq!(ackers[0].ack(), CLOSED);
        ledger.assert_all_dropped();

        let (broker, subscription, ackers) = with_pending(&ledger, 2, 2);
        let shutdown = thread::spawn({
            let broker = broker.clone();
            move || broker.shutdown(Shutdown::Drain { deadline: HOUR })
        });
        wait_until(|| broker.topic("t").is_err());
        for acker in &ackers {
            assert!(!shutdown.is_finished());
            assert_eq!(acker.ack(), Ok(()));
        }
        let report = shutdown.join().unwrap();
        assert_eq!((report.subscriptions, report.discarded, report.still_running), (1, 0, 0));
        conserved(&subscription.metrics());
        ledger.assert_all_dropped();
    });
}

#[test]
fn a_handler_that_ends_its_subscription_may_still_ack_in_that_call() {
    watchdog(LIMIT, || {
        for acks in [true, false] {
            let ledger = Ledger::new();
            let (broker, results) = (Broker::new(), Log::new());
            let gate = Gate::new();
            let handler = {
                let (gate, results) = (gate.clone(), results.clone());
                move |message: &Message<Live>| {
                    gate.pass();
                    assert!(message.subscription().unsubscribe());
                    if acks {
                        results.push(message.ack());
                    }
                }
            };
            let subscription = broker.subscribe("t", config(4), handler).unwrap();
            for id in 0..3 {
                broker.publish("t", ledger.live(id)).unwrap();
            }
            gate.open();
            wait_until(|| subscription.metrics().state == SubscriptionState::Ended);
            let last = subscription.unsubscribe();
            let acked = u64::from(acks);
            assert_eq!((last.delivered, last.acked, last.discarded), (1, acked, 3 - acked));
            assert!(results.all().iter().all(|result| *result == Ok(())));
            conserved(&last);
            ledger.assert_all_dropped();
        }
    });
}

#[test]
fn acks_that_race_with_the_end_settle_each_message_once() {
    watchdog(LIMIT, || {
        let ledger = Ledger::new();
        for round in 0..scale(20_000) {
            let (broker, ackers) = (Broker::new(), Log::new());
            let handler = {
                let ackers = ackers.clone();
                move |message: &Message<Live>| ackers.push(message.acker())
            };
            let subscription = broker.subscribe("t", config(8), handler).unwrap();
            for id in 0..8 {
                broker.publish("t", ledger.live(id)).unwrap();
            }
            ackers.wait_for((round % 9) as usize);
            let ackers = ackers.all();
            let stop = Arc::new(AtomicBool::new(false));
            let (last, results) = thread::scope(|scope| {
                let settle = |nack: bool| {
                    let (ackers, stop) = (&ackers, stop.clone());
                    move || {
                        let settle = |acker: &Acker| match nack {
                            // A nack now and then comes before the ack.
                            true => acker.nack(Some(HOUR)).and_then(|()| acker.ack()),
                            false => acker.ack(),
                        };
                        let results: Vec<_> = ackers.iter().map(settle).collect();
                        stop.store(true, SeqCst);
                        results
                    }
                };
                let threads = [scope.spawn(settle(false)), scope.spawn(settle(round % 2 == 0))];
                if round % 3 == 0 {
                    wait_until(|| stop.load(SeqCst));
                }
                let last = subscription.unsubscribe();
                (last, threads.map(|thread| thread.join().unwrap()).concat())
            });
            let settled = results.iter().filter(|result| result.is_ok()).count() as u64;
            let known = [Ok(()), NOT_PENDING, Err(AckError::Closed)];
            assert!(results.iter().all(|result| known.contains(result)));
            assert_eq!((last.acked, last.discarded, last.pending), (settled, 8 - settled, 0));
            conserved(&last);
            ledger.assert_all_dropped();
            assert!(ackers.iter().all(|acker| acker.ack() == CLOSED));
        }
    });
}
