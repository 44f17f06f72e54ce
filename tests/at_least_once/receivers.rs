//! The pull form: everything happens inside its calls.

use std::{
    panic::resume_unwind,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use fanout::{
    AckPolicy, Broker, EventKind, ManualClock, RecvError, RecvTimeoutError, Shutdown, SubscribeError,
    SubscriptionConfig, SubscriptionRef, SubscriptionState, TryRecvError,
};

use crate::acks::{CLOSED, HOUR, Log, MS, NOT_PENDING, TICK, config, refusal, seen, take_all, timed};
use crate::support::{LIMIT, Ledger, Live, conserved, wait_until, watchdog};

#[test]
fn at_the_pending_limit_it_says_so_until_something_is_settled_or_due() {
    let (broker, clock) = timed::<u64>();
    let mut receiver = broker.receiver("t", config(8).max_pending(2).ack_timeout(50 * MS)).unwrap();
    for value in 0..5 {
        broker.publish("t", value).unwrap();
    }
    let taken = take_all(&mut receiver);
    assert_eq!(taken.len(), 2);
    assert_eq!(refusal(&mut receiver), TryRecvError::PendingLimit);
    assert_eq!(receiver.metrics().state, SubscriptionState::StalledAtPendingLimit);
    assert_eq!(receiver.recv_timeout(MS).unwrap_err(), RecvTimeoutError::Timeout, "it waits, in real time");
    assert_eq!(taken[1].ack(), Ok(()));
    assert_eq!(seen(&mut receiver), [(2, 1)]);
    assert_eq!(refusal(&mut receiver), TryRecvError::PendingLimit);
    clock.advance(50 * MS);
    assert_eq!(seen(&mut receiver), [(0, 2), (2, 2)]);
    assert_eq!(taken[0].ack(), Ok(()));
    assert_eq!(seen(&mut receiver), [(3, 1)]);
    conserved(&receiver.metrics());
}

#[test]
fn recv_at_the_pending_limit_is_woken_by_an_ack() {
    watchdog(LIMIT, || {
        let broker = Broker::new();
        let mut receiver = broker.receiver("t", config(8).max_pending(1)).unwrap();
        for value in 0..50_u64 {
            broker.publish("t", value).unwrap();
            let acker = receiver.recv().map(|message| {
                assert_eq!(*message, value);
                message.acker()
            });
            broker.publish("t", value + 1).unwrap();
            let handle = receiver.handle();
            let waiter = thread::spawn(move || {
                let got = receiver.recv().map(|message| (*message, message.ack()));
                (receiver, got)
            });
            wait_until(|| handle.metrics().state == SubscriptionState::StalledAtPendingLimit);
            assert_eq!(acker.unwrap().ack(), Ok(()));
            let got;
            (receiver, got) = waiter.join().unwrap();
            assert_eq!(got, Ok((value + 1, Ok(()))));
        }
        conserved(&receiver.metrics());
    });
}

#[test]
fn recv_is_woken_by_a_timeout_a_back_off_and_a_nack() {
    watchdog(LIMIT, || {
        let (broker, clock) = timed::<u64>();
        let mut receiver =
            broker.receiver("t", config(8).ack_timeout(50 * MS).backoff(10 * MS, HOUR)).unwrap();
        broker.publish("t", 0).unwrap();
        let acker = receiver.recv().unwrap().acker();
        let attempts = Log::new();
        let waiter = {
            let attempts = attempts.clone();
            thread::spawn(move || {
                while let Ok(message) = receiver.recv() {
                    attempts.push(message.attempt());
                    if message.attempt() == 4 {
                        return (message.ack(), receiver.recv().map(|message| *message), receiver.metrics());
                    }
                }
                panic!("closed");
            })
        };
        // Asleep, or on its way to it.
        clock.advance(50 * MS);
        attempts.wait_for(1);
        assert_eq!(acker.nack(Some(Duration::ZERO)), Ok(()));
        attempts.wait_for(2);
        assert_eq!(acker.nack(None), Ok(()));
        // The third attempt: doubled once.
        wait_until(|| {
            clock.advance(MS);
            attempts.len() == 3
        });
        drop(broker);
        let (acked, after, metrics) = waiter.join().unwrap();
        assert_eq!((acked, after, attempts.all()), (Ok(()), Err(RecvError::Closed), vec![2, 3, 4]));
        conserved(&metrics);
    });
}

#[test]
fn dropping_what_was_received_settles_nothing() {
    let ledger = Ledger::new();
    let (broker, clock) = timed();
    let mut receiver = broker.receiver("t", config(8).ack_timeout(50 * MS)).unwrap();
    for id in 0..2 {
        broker.publish("t", ledger.live(id)).unwrap();
    }
    drop(receiver.try_recv().unwrap());
    let payload = receiver.try_recv().unwrap().into_payload();
    assert_eq!(payload.id, 1);
    drop(payload);
    assert_eq!((receiver.metrics().pending, receiver.metrics().acked, ledger.alive()), (2, 0, 2));
    clock.advance(50 * MS);
    let again: Vec<_> =
        take_all(&mut receiver).into_iter().map(|m| (m.attempt(), m.into_payload().id)).collect();
    assert_eq!(again, [(2, 0), (2, 1)]);
    conserved(&receiver.metrics());
    drop(receiver);
    ledger.assert_all_dropped();
}

#[test]
fn the_timeout_runs_from_the_call_that_returned_the_message() {
    let (broker, clock) = timed();
    let mut receiver = broker.receiver("t", config(8).ack_timeout(50 * MS)).unwrap();
    broker.publish("t", 0).unwrap();
    clock.advance(HOUR);
    assert_eq!(seen(&mut receiver), [(0, 1)]);
    clock.advance(50 * MS - TICK);
    assert_eq!(seen(&mut receiver), []);
    clock.advance(HOUR);
    assert_eq!(seen(&mut receiver), [(0, 2)], "once, however late");
    clock.advance(50 * MS - TICK);
    assert_eq!(seen(&mut receiver), []);
    clock.advance(TICK);
    assert_eq!(seen(&mut receiver), [(0, 3)]);
}

#[test]
fn the_delay_of_a_nack_runs_from_the_nack_and_not_from_the_next_call() {
    let (broker, clock) = timed();
    let mut receiver = broker.receiver("t", config(8).backoff(10 * MS, HOUR)).unwrap();
    broker.publish("t", 0).unwrap();
    assert_eq!(receiver.try_recv().unwrap().nack(Some(7 * MS)), Ok(()));
    clock.advance(7 * MS);
    let second = receiver.try_recv().expect("its delay is over");
    assert_eq!(second.nack(None), Ok(()));
    clock.advance(20 * MS - TICK);
    assert_eq!(seen(&mut receiver), []);
    clock.advance(TICK);
    assert_eq!(seen(&mut receiver), [(0, 3)]);
}

#[test]
fn a_message_nacked_without_delay_comes_before_those_published_later() {
    let (broker, _) = timed();
    let mut receiver = broker.receiver("t", config(8)).unwrap();
    for value in 0..2 {
        broker.publish("t", value).unwrap();
    }
    assert_eq!(receiver.try_recv().unwrap().nack(Some(Duration::ZERO)), Ok(()));
    broker.publish("t", 2).unwrap();
    assert_eq!(seen(&mut receiver), [(1, 1), (0, 2), (2, 1)]);
}

/// A payload whose clones are made by the book: `Err` panics.
struct Scripted {
    live: Live,
    script: Arc<Mutex<Vec<Result<(), ()>>>>,
}

impl Clone for Scripted {
    fn clone(&self) -> Self {
        let next = self.script.lock().unwrap().pop();
        if next == Some(Err(())) {
            resume_unwind(Box::new("no clone"));
        }
        Self { live: self.live.clone(), script: self.script.clone() }
    }
}

#[test]
fn a_clone_that_panics_is_a_call_that_panicked() {
    let (clock, ledger, panics) = (ManualClock::new(), Ledger::new(), Log::new());
    let hook = {
        let panics = panics.clone();
        move |event: &fanout::Event| match &event.kind {
            EventKind::HandlerPanicked { panic, .. } => panics.push((panic.clone(), thread::current().id())),
            other => panic!("{other:?}"),
        }
    };
    let broker = Broker::builder().clock(clock.clone()).on_event(hook).build();
    let mut receiver = broker.receiver("t", config(8).backoff(10 * MS, HOUR)).unwrap();
    // Read from the end: the first two clones panic.
    let script = Arc::new(Mutex::new(vec![Ok(()), Err(()), Err(())]));
    broker.publish("t", Scripted { live: ledger.live(0), script }).unwrap();
    broker.publish("t", Scripted { live: ledger.live(1), script: Arc::default() }).unwrap();
    let first = receiver.try_recv().unwrap();
    assert_eq!((first.live.id, first.ack()), (1, Ok(())), "the call goes on to the next message");
    for delay in [10 * MS, 20 * MS] {
        assert_eq!(refusal(&mut receiver), TryRecvError::Empty);
        clock.advance(delay - TICK);
        assert_eq!(refusal(&mut receiver), TryRecvError::Empty);
        clock.advance(TICK);
    }
    let third = receiver.try_recv().unwrap();
    assert_eq!((third.live.id, third.attempt(), third.ack()), (0, 3, Ok(())));
    let metrics = receiver.metrics();
    assert_eq!((metrics.panicked, metrics.delivered, metrics.acked, metrics.pending), (2, 4, 2, 0));
    assert_eq!(panics.all(), vec![("no clone".to_owned(), thread::current().id()); 2]);
    conserved(&metrics);
    drop((first, third, receiver));
    ledger.assert_all_dropped();
}

#[test]
fn a_clone_that_always_panics_ends_in_the_dead_letters() {
    let (broker, clock) = timed();
    let (ledger, script) = (Ledger::new(), Arc::new(Mutex::new(vec![Err(()); 3])));
    let mut receiver = broker.receiver("t", config(8).max_deliveries(3).dead_letter("dead")).unwrap();
    let mut dead = broker.receiver("dead", SubscriptionConfig::at_most_once(1)).unwrap();
    broker.publish("t", Scripted { live: ledger.live(0), script }).unwrap();
    for _ in 0..3 {
        assert_eq!(refusal(&mut receiver), TryRecvError::Empty);
        clock.advance(HOUR);
    }
    let letter = dead.try_recv().unwrap();
    assert_eq!((letter.live.id, receiver.metrics().dead, receiver.metrics().panicked), (0, 1, 3));
    conserved(&receiver.metrics());
    drop((letter, receiver, dead));
    ledger.assert_all_dropped();
}

#[test]
fn redelivery_dead_letters_and_hooks_happen_inside_its_calls() {
    let (clock, events) = (ManualClock::new(), Log::new());
    let hook = {
        let events = events.clone();
        move |event: &fanout::Event| events.push((format!("{:?}", event.kind), thread::current().id()))
    };
    let broker = Broker::builder().clock(clock.clone()).on_event(hook).build();
    let config = config(8).max_pending(1).max_deliveries(1).ack_timeout(MS).dead_letter("dead");
    let mut receiver = broker.receiver("t", config).unwrap();
    let mut dead = broker.receiver("dead", SubscriptionConfig::at_most_once(4)).unwrap();
    broker.publish("t", 5).unwrap();
    assert_eq!(seen(&mut receiver), [(5, 1)]);
    clock.advance(HOUR);
    let before = (events.len(), receiver.metrics().dead, refusal(&mut dead));
    assert_eq!(before, (1, 0, TryRecvError::Empty), "nothing happens without a call");
    assert_eq!(refusal(&mut receiver), TryRecvError::Empty);
    assert_eq!(seen(&mut dead), [(5, 1)]);
    let (names, threads): (Vec<_>, Vec<_>) = events.all().into_iter().unzip();
    assert!(names[0].starts_with("Stalled") && names[1].starts_with("DeadLettered"), "{names:?}");
    assert!(threads.iter().all(|thread| *thread == thread::current().id()));
    conserved(&receiver.metrics());
}

#[test]
fn every_way_to_settle_does_the_same() {
    let (broker, _) = timed();
    let mut receiver = broker.receiver("t", config(8)).unwrap();
    for value in 0..4 {
        broker.publish("t", value).unwrap();
    }
    let taken = take_all(&mut receiver);
    let [a, b, c, d] = [0, 1, 2, 3].map(|at: usize| &taken[at]);
    assert_eq!(d.acker().id(), d.id());
    let results = [a.ack(), b.acker().ack(), receiver.ack(c.id()), receiver.handle().ack(d.id())];
    assert_eq!(results, [Ok(()); 4]);
    assert_eq!(b.subscription().ack(a.id()), NOT_PENDING);
    assert_eq!((receiver.metrics().acked, receiver.metrics().pending), (4, 0));
    drop(receiver);
    let results =
        [a.ack(), a.nack(None), b.acker().ack(), b.acker().nack(None), c.subscription().ack(c.id())];
    assert_eq!(results, [CLOSED; 5]);
}

#[test]
fn acks_on_success_need_a_handler() {
    let broker = Broker::<u64>::new();
    let error = broker.receiver("t", config(1).ack_policy(AckPolicy::OnSuccess)).unwrap_err();
    assert!(matches!(error, SubscribeError::InvalidOption { option: "ack_policy", .. }), "{error}");
    assert!(broker.receiver("t", config(1).ack_policy(AckPolicy::Manual)).is_ok());
}

#[test]
fn after_the_broker_is_gone_it_waits_for_what_is_pending_and_then_says_closed() {
    let (broker, clock) = timed();
    let mut receiver = broker.receiver("t", config(8).ack_timeout(50 * MS)).unwrap();
    for value in 0..2 {
        broker.publish("t", value).unwrap();
    }
    drop(broker);
    let taken = take_all(&mut receiver);
    assert_eq!(taken.len(), 2);
    assert_eq!(taken[0].ack(), Ok(()));
    assert_eq!(refusal(&mut receiver), TryRecvError::Empty);
    clock.advance(50 * MS);
    assert_eq!(seen(&mut receiver), [(1, 2)]);
    assert_eq!(taken[1].ack(), Ok(()));
    assert_eq!(refusal(&mut receiver), TryRecvError::Closed);
    assert_eq!(receiver.recv().unwrap_err(), RecvError::Closed);
    assert_eq!(taken[1].ack(), CLOSED);
    conserved(&receiver.metrics());
}

#[test]
fn dropping_the_receiver_discards_and_counts_what_is_queued_and_pending() {
    let ledger = Ledger::new();
    let (broker, _) = timed();
    let mut receiver = broker.receiver("t", config(8).max_pending(3)).unwrap();
    for id in 0..7 {
        broker.publish("t", ledger.live(id)).unwrap();
    }
    let taken = take_all(&mut receiver);
    assert_eq!((taken[0].ack(), taken[1].nack(None)), (Ok(()), Ok(())));
    let (ackers, handle): (Vec<_>, _) =
        (taken.iter().map(|message| message.acker()).collect(), receiver.handle());
    drop(taken);
    drop(receiver);
    ledger.assert_all_dropped();
    let last = handle.metrics();
    assert_eq!((last.acked, last.discarded, last.pending, last.state), (1, 6, 0, SubscriptionState::Ended));
    conserved(&last);
    for acker in ackers {
        assert_eq!([acker.ack(), acker.nack(None)], [CLOSED; 2]);
    }
}

/// Ends its subscription when it is cloned for the `n`th time.
struct Ends {
    live: Live,
    end: Arc<Mutex<Option<SubscriptionRef<Ends>>>>,
    clones: Arc<AtomicU32>,
}

impl Clone for Ends {
    fn clone(&self) -> Self {
        if self.clones.fetch_sub(1, SeqCst) == 1
            && let Some(handle) = self.end.lock().unwrap().take()
        {
            assert!(handle.unsubscribe());
        }
        Self { live: self.live.clone(), end: self.end.clone(), clones: self.clones.clone() }
    }
}

#[test]
fn a_subscription_that_ends_in_the_middle_of_a_call_keeps_nothing() {
    let ledger = Ledger::new();
    let (broker, clock) = timed();
    let mut receiver = broker.receiver("t", config(8).ack_timeout(MS)).unwrap();
    let (end, clones) = (Arc::new(Mutex::new(Some(receiver.handle()))), Arc::new(AtomicU32::new(2)));
    for id in 0..2 {
        let (end, clones) = (end.clone(), clones.clone());
        broker.publish("t", Ends { live: ledger.live(id), end, clones }).unwrap();
    }
    drop(receiver.try_recv().unwrap());
    clock.advance(MS);
    let last = receiver.try_recv().unwrap();
    assert_eq!((last.live.id, last.attempt()), (1, 1));
    let metrics = receiver.metrics();
    assert_eq!((metrics.state, metrics.pending, metrics.discarded), (SubscriptionState::Ended, 0, 2));
    conserved(&metrics);
    assert_eq!(ledger.alive(), 1, "the message that was returned, and nothing else");
    assert_eq!(last.ack(), CLOSED);
    assert_eq!(refusal(&mut receiver), TryRecvError::Closed);
    drop(last);
    ledger.assert_all_dropped();
}

#[test]
fn a_drain_ends_with_the_last_ack_though_nobody_calls_the_receiver() {
    watchdog(LIMIT, || {
        let ledger = Ledger::new();
        let (broker, _) = timed();
        let mut receiver = broker.receiver("t", config(8)).unwrap();
        for id in 0..3 {
            broker.publish("t", ledger.live(id)).unwrap();
        }
        let taken = take_all(&mut receiver);
        let shutdown = thread::spawn({
            let broker = broker.clone();
            move || broker.shutdown(Shutdown::Drain { deadline: HOUR })
        });
        wait_until(|| broker.topic("t").is_err());
        for (at, message) in taken.iter().enumerate() {
            assert!(!shutdown.is_finished());
            assert_eq!(receiver.metrics().pending, 3 - at);
            assert_eq!(message.ack(), Ok(()));
        }
        let report = shutdown.join().unwrap();
        assert_eq!((report.subscriptions, report.discarded, report.still_running), (1, 0, 0));
        assert_eq!(refusal(&mut receiver), TryRecvError::Closed);
        conserved(&receiver.metrics());
        drop(taken);
        ledger.assert_all_dropped();
    });
}
