//! Messages that are given up: rejected ones, and those at their delivery limit.

use std::{
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use fanout::{
    Broker, EventKind, Message, Outcome, Receiver, RemoveTopicError, Shutdown, SubscribeError,
    SubscriptionConfig,
};

use crate::acks::{HOUR, Log, MS, NOT_PENDING, Subject, config, seen, take_all, timed};
use crate::support::{Gate, LIMIT, Ledger, Live, conserved, wait_until, watchdog};

fn most_once(capacity: usize) -> SubscriptionConfig {
    SubscriptionConfig::at_most_once(capacity)
}

/// What has arrived in the dead-letter topic.
fn values(receiver: &mut Receiver<u64>) -> Vec<u64> {
    take_all(receiver).iter().map(|message| **message).collect()
}

/// The events of dead letters: attempts, or `None` for one that failed.
fn burials(subject: &Subject) -> Vec<Option<u32>> {
    let attempts = |event: fanout::Event| match event.kind {
        EventKind::DeadLettered { attempts, .. } => Some(Some(attempts)),
        EventKind::DeadLetterFailed { .. } => Some(None),
        _ => None,
    };
    subject.events.all().into_iter().filter_map(attempts).collect()
}

#[test]
fn a_message_at_its_delivery_limit_arrives_in_the_dead_letter_topic() {
    watchdog(LIMIT, || {
        let handler = |message: &Message<u64>| {
            match **message {
                0 => return Outcome::Failed,
                1 => resume_unwind(Box::new("dead")),
                2 => message.nack(None).unwrap(),
                // 3 is never acked.
                3 => {}
                _ => message.ack().unwrap(),
            }
            Outcome::Handled
        };
        let config = config(16).max_deliveries(2).dead_letter("dead").backoff(MS, MS).ack_timeout(50 * MS);
        let subject = Subject::new(config, handler);
        let mut dead = subject.broker.receiver("dead", most_once(16)).unwrap();
        subject.publish(0..5);
        for _ in 0..4 {
            subject.advance(50 * MS);
        }
        assert_eq!(values(&mut dead), [0, 1, 2, 3]);
        assert_eq!(burials(&subject), [Some(2); 4]);
        let metrics = subject.subscription.metrics();
        assert_eq!((metrics.dead, metrics.rejected, metrics.dead_letter_failures), (4, 0, 0));
        assert_eq!((subject.acked(), metrics.pending, metrics.redelivered), (1, 0, 4));
        subject.conserved();
    });
}

#[test]
fn reject_is_a_dead_letter_now() {
    watchdog(LIMIT, || {
        let handler = |message: &Message<u64>| {
            if **message == 1 {
                // Asked to come again, and then given up: a nack settles nothing.
                message.nack(None).unwrap();
            }
            Outcome::Reject
        };
        let subject = Subject::new(config(16).dead_letter("dead"), handler);
        let mut dead = subject.broker.receiver("dead", most_once(16)).unwrap();
        subject.publish([0, 1]);
        subject.advance(HOUR);
        assert_eq!(values(&mut dead), [0, 1]);
        assert_eq!((subject.seen(), burials(&subject)), (vec![(0, 1), (1, 1)], vec![Some(1); 2]));
        let metrics = subject.subscription.metrics();
        assert_eq!((metrics.rejected, metrics.dead, metrics.failed, metrics.pending), (2, 0, 0, 0));
        for call in subject.calls.all() {
            assert_eq!(subject.subscription.ack(call.id), NOT_PENDING);
        }
        subject.conserved();
    });
}

#[test]
fn at_most_once_a_rejected_message_is_counted_and_gone() {
    watchdog(LIMIT, || {
        let (broker, ledger) = (Broker::new(), Ledger::new());
        let ends = |message: &Message<Live>| match message.id {
            0 => Outcome::Reject,
            1 => Outcome::Failed,
            _ => Outcome::Handled,
        };
        let subscription = broker.subscribe("t", most_once(8), ends).unwrap();
        for id in 0..3 {
            broker.publish("t", ledger.live(id)).unwrap();
        }
        wait_until(|| ledger.alive() == 0);
        let last = subscription.unsubscribe();
        assert_eq!((last.delivered, last.rejected, last.failed, last.redelivered), (3, 1, 1, 0));
        conserved(&last);
        ledger.assert_all_dropped();
    });
}

#[test]
fn a_reject_after_an_ack_counts_as_failed_and_buries_nothing() {
    watchdog(LIMIT, || {
        let handler = |message: &Message<u64>| {
            message.ack().unwrap();
            Outcome::Reject
        };
        let subject = Subject::new(config(4).dead_letter("dead"), handler);
        let mut dead = subject.broker.receiver("dead", most_once(4)).unwrap();
        subject.publish([0]);
        subject.settle();
        let metrics = subject.subscription.metrics();
        assert_eq!((metrics.rejected, metrics.failed, subject.acked()), (0, 1, 1));
        assert!(values(&mut dead).is_empty());
        assert!(burials(&subject).is_empty());
        subject.conserved();
    });
}

#[test]
fn a_dead_letter_topic_that_feeds_its_own_source_is_refused() {
    let broker = Broker::<u64>::new();
    let error = broker.subscribe("t", config(1).dead_letter("t"), |_| {}).unwrap_err();
    assert!(matches!(&error, SubscribeError::DeadLetterLoop { topic } if topic == "t"), "{error}");
    let error = broker.receiver("t", config(1).dead_letter("t")).unwrap_err();
    assert!(matches!(error, SubscribeError::DeadLetterLoop { .. }));
    for name in ["", "a..b", "a.*", "a.>"] {
        let error = broker.subscribe("t", config(1).dead_letter(name), |_| {}).unwrap_err();
        assert!(
            matches!(error, SubscribeError::InvalidOption { option: "dead_letter", .. }),
            "{name}: {error}"
        );
    }
    assert!(broker.topics().is_empty(), "nothing is left behind");
}

#[test]
fn without_room_for_the_dead_letter_topic_nothing_is_created() {
    let broker = Broker::<u64>::builder().topic_limit(1).build();
    let error = broker.subscribe("t", config(1).dead_letter("dead"), |_| {}).unwrap_err();
    assert!(matches!(error, SubscribeError::TopicLimit { limit: 1 }), "{error}");
    assert!(broker.topics().is_empty());
    assert!(broker.subscribe("t", config(1), |_| {}).is_ok());
}

/// So a dead letter always finds its topic: while the subscription lives, the target cannot be removed.
#[test]
fn the_dead_letter_topic_is_created_by_subscribe_and_stays_as_long() {
    watchdog(LIMIT, || {
        let handler = |_: &Message<u64>| Outcome::Reject;
        let subject = Subject::new(config(4).dead_letter("dead"), handler);
        let broker = &subject.broker;
        assert_eq!(broker.topics(), ["dead", "t"]);
        let in_use = |error| matches!(error, Err(RemoveTopicError::InUse { subscriptions: 0, handles: 1 }));
        assert!(in_use(broker.remove_topic("dead")));
        assert_eq!(broker.remove_unused_topics(), 0);
        subject.publish([0]);
        wait_until(|| broker.topic("dead").unwrap().metrics().published == 1);
        wait_until(|| burials(&subject) == [Some(1)]);
        let broker = broker.clone();
        assert_eq!(subject.subscription.unsubscribe().dead_letter_failures, 0);
        assert!(broker.remove_topic("dead").is_ok(), "it is free with the subscription's end");
    });
}

#[test]
fn without_a_dead_letter_topic_the_message_is_counted_and_gone() {
    watchdog(LIMIT, || {
        let (broker, ledger) = (Broker::new(), Ledger::new());
        let subscription = broker.subscribe("t", config(4), |_: &Message<Live>| Outcome::Reject).unwrap();
        broker.publish("t", ledger.live(0)).unwrap();
        wait_until(|| subscription.metrics().rejected == 1 && ledger.alive() == 0);
        let last = subscription.unsubscribe();
        assert_eq!((last.dead_letter_failures, last.payload_panics, ledger.cloned()), (0, 0, 0));
        conserved(&last);
    });
}

#[test]
fn a_dead_letter_is_moved_and_one_that_nobody_hears_is_dropped() {
    watchdog(LIMIT, || {
        let (broker, ledger) = (Broker::new(), Ledger::new());
        let config = config(4).dead_letter("dead");
        let subscription = broker.subscribe("t", config, |_: &Message<Live>| Outcome::Reject).unwrap();
        broker.publish("t", ledger.live(0)).unwrap();
        wait_until(|| broker.topic("dead").unwrap().metrics().published == 1 && ledger.alive() == 0);
        let mut dead = broker.receiver("dead", most_once(4)).unwrap();
        broker.publish("t", ledger.live(1)).unwrap();
        let letter = dead.recv().unwrap();
        assert_eq!((letter.id, letter.topic(), letter.seq(), letter.attempt()), (1, "dead", 1, 1));
        assert_eq!(ledger.cloned(), 0);
        drop(letter);
        conserved(&subscription.unsubscribe());
        ledger.assert_all_dropped();
    });
}

/// A payload whose `Clone` panics on demand.
struct Fragile {
    live: Live,
    breaks: Arc<AtomicBool>,
}

impl Clone for Fragile {
    fn clone(&self) -> Self {
        if self.breaks.load(SeqCst) {
            resume_unwind(Box::new("no clone"));
        }
        Self { live: self.live.clone(), breaks: self.breaks.clone() }
    }
}

#[test]
fn a_dead_letter_that_cannot_be_published_is_counted_and_the_worker_goes_on() {
    watchdog(LIMIT, || {
        let (failures, ledger, breaks) = (Log::new(), Ledger::new(), Arc::new(AtomicBool::new(true)));
        let hook = {
            let failures = failures.clone();
            move |event: &fanout::Event| match event.kind {
                EventKind::DeadLetterFailed { .. } => failures.push(true),
                EventKind::DeadLettered { .. } => failures.push(false),
                _ => {}
            }
        };
        let broker: Broker<Fragile> = Broker::builder().on_event(hook).build();
        let config = config(4).dead_letter("dead");
        let subscription = broker.subscribe("t", config, |_: &Message<Fragile>| Outcome::Reject).unwrap();
        // Two that hear it: one of them needs a clone, which panics, on the worker's thread.
        let mut heard = [(); 2].map(|()| broker.receiver("dead", most_once(4)).unwrap());
        broker.publish("t", Fragile { live: ledger.live(0), breaks: breaks.clone() }).unwrap();
        failures.wait_for(1);
        breaks.store(false, SeqCst);
        broker.publish("t", Fragile { live: ledger.live(1), breaks }).unwrap();
        for receiver in &mut heard {
            let letter = receiver.recv().unwrap();
            assert_eq!((letter.live.id, letter.seq()), (1, 0), "the failed one used no seq");
        }
        failures.wait_for(2);
        assert_eq!(failures.all(), [true, false]);
        let last = subscription.unsubscribe();
        assert_eq!((last.rejected, last.dead_letter_failures), (2, 1));
        conserved(&last);
        drop(heard);
        ledger.assert_all_dropped();
    });
}

#[test]
fn what_dead_letters_evict_counts_as_dropped_there() {
    watchdog(LIMIT, || {
        let handler = |message: &Message<u64>| match **message % 2 {
            0 => Outcome::Reject,
            _ => Outcome::Failed,
        };
        let config = config(4).max_pending(64).max_deliveries(2).dead_letter("dead").backoff(MS, MS);
        let subject = Subject::new(config, handler);
        let dead = subject.broker.receiver("dead", most_once(3)).unwrap();
        let gate = Gate::new();
        let slow = {
            let gate = gate.clone();
            subject.broker.subscribe("t", most_once(2), move |_| gate.pass()).unwrap()
        };
        // Some is evicted from both rings of `t`, the dead letters evict each other.
        let publish = |value| subject.broker.publish("t", value).unwrap().dropped as u64;
        let by_publishes: u64 = (0..50).map(publish).sum();
        wait_until(|| {
            subject.clock.advance(MS);
            let metrics = subject.subscription.metrics();
            metrics.pending == 0 && metrics.depth == 0
        });
        let [source, target] = [subject.subscription.metrics(), dead.metrics()];
        let letters = source.dead + source.rejected;
        assert_eq!(subject.broker.topic("dead").unwrap().metrics().published, letters);
        assert!(letters > 3);
        assert_eq!(target.dropped, letters - 3, "evicted by the broker's own publishes");
        let dropped = [&source, &target, &slow.metrics()].map(|metrics| metrics.dropped).iter().sum::<u64>();
        assert_eq!(dropped, by_publishes + target.dropped);
        assert_eq!(subject.broker.metrics().dropped, dropped);
        conserved(&source);
        conserved(&target);
        gate.open();
    });
}

#[test]
fn a_dead_letter_may_be_given_up_in_turn() {
    let (broker, clock) = timed::<u64>();
    let config = |target: &str| config(4).max_deliveries(1).ack_timeout(MS).dead_letter(target);
    let mut first = broker.receiver("a", config("b")).unwrap();
    let mut second = broker.receiver("b", config("c")).unwrap();
    let mut third = broker.receiver("c", most_once(4)).unwrap();
    broker.publish("a", 7).unwrap();
    assert_eq!(seen(&mut first), [(7, 1)]);
    clock.advance(MS);
    assert_eq!((seen(&mut first), seen(&mut second)), (vec![], vec![(7, 1)]));
    clock.advance(MS);
    assert_eq!((seen(&mut second), seen(&mut third)), (vec![], vec![(7, 1)]));
    // Also in a circle: each is a new message, with attempts of its own.
    let mut fourth = broker.receiver("d", config("e")).unwrap();
    let mut fifth = broker.receiver("e", config("d")).unwrap();
    broker.publish("d", 1).unwrap();
    for _ in 0..10 {
        assert_eq!(seen(&mut fourth), [(1, 1)]);
        clock.advance(MS);
        assert_eq!((seen(&mut fourth), seen(&mut fifth)), (vec![], vec![(1, 1)]));
        clock.advance(MS);
        assert_eq!(seen(&mut fifth), []);
    }
    assert_eq!((fourth.metrics().dead, fifth.metrics().dead), (10, 10));
}

#[test]
fn what_an_unsubscribe_discards_is_no_dead_letter() {
    watchdog(LIMIT, || {
        let handler =
            |message: &Message<u64>| if **message == 0 { Outcome::Failed } else { Outcome::Handled };
        let subject = Subject::new(config(8).max_pending(2).max_deliveries(2).dead_letter("dead"), handler);
        subject.publish(0..5);
        subject.wait_stalled(2);
        let target = subject.broker.topic("dead").unwrap();
        let last = subject.subscription.unsubscribe();
        assert_eq!((last.dead, last.discarded, target.metrics().published), (0, 5, 0));
        conserved(&last);
    });
}

#[test]
fn dead_letters_pass_while_the_broker_drains() {
    watchdog(LIMIT, || {
        let gate = Gate::new();
        let (broker, buried) = (Broker::<u64>::new(), Log::new());
        let handler = {
            let gate = gate.clone();
            move |_: &Message<u64>| {
                gate.pass();
                Outcome::Reject
            }
        };
        let source = broker.subscribe("t", config(8).dead_letter("dead"), handler).unwrap();
        let target = {
            let buried = buried.clone();
            broker.subscribe("dead", most_once(8), move |message| buried.push(**message)).unwrap()
        };
        for value in 0..4 {
            broker.publish("t", value).unwrap();
        }
        gate.wait_entered(1);
        let drain = std::thread::spawn({
            let broker = broker.clone();
            move || broker.shutdown(Shutdown::Drain { deadline: Duration::MAX })
        });
        wait_until(|| broker.topic("t").is_err());
        gate.open();
        let report = drain.join().unwrap();
        assert_eq!(buried.all(), [0, 1, 2, 3]);
        assert_eq!((report.subscriptions, report.discarded, report.still_running), (2, 0, 0));
        let [source, target] = [source, target].map(|subscription| subscription.metrics());
        assert_eq!((source.rejected, source.dead_letter_failures, target.delivered), (4, 0, 4));
        conserved(&source);
        conserved(&target);
    });
}

#[test]
fn dead_letters_are_published_outside_all_locks() {
    /// Uses the broker as it is evicted from the dead letters' ring.
    #[derive(Clone)]
    struct Busy(Option<(Broker<Busy>, Log<usize>)>);
    impl Drop for Busy {
        fn drop(&mut self) {
            if let Some((broker, log)) = self.0.take() {
                broker.publish("t", Busy(None)).unwrap();
                broker.publish("dead", Busy(None)).unwrap();
                log.push(broker.metrics().subscriptions.len());
            }
        }
    }
    watchdog(LIMIT, || {
        let (broker, log) = (Broker::new(), Log::new());
        let config = config(8).dead_letter("dead");
        let subscription = broker.subscribe("t", config, |_: &Message<Busy>| Outcome::Reject).unwrap();
        let dead = broker.receiver("dead", most_once(1)).unwrap();
        for _ in 0..10 {
            broker.publish("t", Busy(Some((broker.clone(), log.clone())))).unwrap();
            wait_until(|| subscription.metrics().depth == 0);
        }
        broker.publish("t", Busy(None)).unwrap();
        log.wait_for(10);
        assert!(log.all().iter().all(|subscriptions| *subscriptions == 2));
        conserved(&dead.metrics());
        wait_until(|| subscription.metrics().depth == 0);
        conserved(&subscription.unsubscribe());
    });
}
