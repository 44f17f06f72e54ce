//! The workers' threads: their names, their start, their core, and that none is left over.

#![cfg(target_os = "linux")]
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "the crate's door to concurrency is for the crate; tests use std"
)]

mod support;

use std::{
    collections::HashSet,
    panic::resume_unwind,
    process::Command,
    sync::{
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::Duration,
};

use fanout::{Broker, Message, SubscribeError, Subscription, SubscriptionConfig, SubscriptionState};
use support::{LIMIT, conserved, process, scale, serial, wait_until, watchdog};

fn config(capacity: usize) -> SubscriptionConfig {
    SubscriptionConfig::at_most_once(capacity)
}

/// What `look` says on the thread of a worker with that configuration.
fn on_worker<R: Send + 'static>(
    broker: &Broker<u64>,
    config: SubscriptionConfig,
    look: impl Fn() -> R + Send + 'static,
) -> R {
    let (send, seen) = mpsc::channel();
    let subscription =
        broker.subscribe("t", config, move |_: &Message<u64>| send.send(look()).map_err(drop)).unwrap();
    broker.publish("t", 0).unwrap();
    let result = seen.recv_timeout(LIMIT).unwrap();
    conserved(&subscription.unsubscribe());
    result
}

#[test]
fn workers_have_a_name_of_their_own_that_the_system_shows_whole() {
    let _turn = serial();
    watchdog(LIMIT, || {
        let caller = process::thread_name();
        let default = on_worker(&Broker::new(), config(1), process::thread_name);
        assert!(default.starts_with("fanout") && default.len() <= 15, "{default:?}");
        let named = Broker::builder().name("ticks").build();
        let prefixed = on_worker(&named, config(1), process::thread_name);
        assert!(prefixed.starts_with("ticks") && prefixed.len() <= 15, "{prefixed:?}");
        let explicit = on_worker(&named, config(1).thread_name("my-worker"), process::thread_name);
        assert_eq!(explicit, "my-worker");
        for name in [default, prefixed, explicit] {
            assert_ne!(name, caller);
        }
    });
}

#[test]
fn long_names_are_cut_where_a_character_ends() {
    let _turn = serial();
    watchdog(LIMIT, || {
        let look = || (process::thread_name(), thread::current().name().map(str::to_owned));
        let broker = Broker::builder().name("a-broker-with-a-very-long-name").build();
        let (shown, _) = on_worker(&broker, config(1), look);
        assert!(shown.starts_with("a-broker") && shown.len() <= 15, "{shown:?}");
        let (shown, known) = on_worker(&broker, config(1).thread_name("ééééééééé"), look);
        assert_eq!(shown, "é".repeat(7));
        assert_eq!(known, Some(shown));
    });
}

#[test]
fn a_name_that_no_thread_can_have_is_no_panic() {
    let _turn = serial();
    watchdog(LIMIT, || {
        let broker = Broker::<u64>::builder().name("a\0b").build();
        for config in [config(1), config(1).thread_name("c\0d"), config(1).thread_name("")] {
            match broker.subscribe("t", config, |_| ()) {
                Ok(subscription) => conserved(&subscription.unsubscribe()),
                Err(error) => assert!(matches!(error, SubscribeError::InvalidOption { .. }), "{error:?}"),
            }
        }
    });
}

#[test]
fn every_thread_that_a_broker_starts_carries_its_prefix() {
    let _turn = serial();
    watchdog(LIMIT, || {
        let before: HashSet<_> = process::names_of_others().into_iter().collect();
        let broker = Broker::<u64>::builder().name("quotes").build();
        let subscriptions: Vec<_> =
            (0..3).map(|_| broker.subscribe("t", config(1), |_| ()).unwrap()).collect();
        broker.publish("t", 0).unwrap();
        wait_until(|| subscriptions.iter().all(|subscription| subscription.metrics().delivered == 1));
        let new: Vec<_> =
            process::names_of_others().into_iter().filter(|name| !before.contains(name)).collect();
        assert!(!new.is_empty() && new.iter().all(|name| name.starts_with("quotes")), "{new:?}");
        drop(subscriptions);
    });
}

#[test]
fn the_start_hook_runs_once_on_the_workers_thread_before_its_first_message() {
    let _turn = serial();
    watchdog(LIMIT, || {
        let broker = Broker::<u64>::new();
        let (send, seen) = mpsc::channel();
        let hook = {
            let send = send.clone();
            move || send.send(("start", thread::current().id())).unwrap()
        };
        let subscription = broker
            .subscribe("t", config(2).on_thread_start(hook), move |_| {
                send.send(("call", thread::current().id())).unwrap();
            })
            .unwrap();
        for value in 0..2 {
            broker.publish("t", value).unwrap();
        }
        wait_until(|| subscription.metrics().delivered == 2);
        conserved(&subscription.unsubscribe());
        let (calls, threads): (Vec<_>, HashSet<_>) = seen.try_iter().unzip();
        assert_eq!(calls, ["start", "call", "call"]);
        assert!(threads.len() == 1 && !threads.contains(&thread::current().id()));
    });
}

#[test]
fn a_worker_runs_on_the_core_that_it_is_pinned_to() {
    let _turn = serial();
    watchdog(LIMIT, || {
        let allowed = process::allowed_cores();
        let first: usize = allowed.split(['-', ',']).next().unwrap().parse().unwrap();
        let pinned = on_worker(&Broker::new(), config(1).pin_to_core(first), process::allowed_cores);
        assert_eq!(pinned, first.to_string());
        assert_eq!(process::allowed_cores(), allowed, "the caller stays where it was");
    });
}

#[test]
fn a_core_that_is_not_there_is_an_error_of_subscribe() {
    let _turn = serial();
    watchdog(LIMIT, || {
        let broker = Broker::<u64>::new();
        let before = process::threads();
        for core in [9_999, usize::MAX] {
            let error = broker.subscribe("t", config(1).pin_to_core(core), |_| ()).unwrap_err();
            let named = matches!(error, SubscribeError::InvalidOption { option: "pin_to_core", .. });
            assert!(named || matches!(error, SubscribeError::Spawn(_)), "{error:?}");
        }
        assert!(broker.topics().is_empty() && broker.metrics().subscriptions.is_empty());
        wait_until(|| process::threads() == before);
        assert!(broker.subscribe("t", config(1), |_| ()).is_ok());
    });
}

#[test]
fn a_refused_subscribe_starts_no_thread() {
    let _turn = serial();
    watchdog(LIMIT, || {
        let broker = Broker::<u64>::builder().topic_limit(1).build();
        let _only = broker.topic("only").unwrap();
        let before = process::threads();
        for (filter, capacity) in [("only", 0), ("only", usize::MAX), ("", 1), ("another", 1)] {
            assert!(broker.subscribe(filter, config(capacity), |_| ()).is_err());
        }
        wait_until(|| process::threads() == before);
    });
}

#[test]
fn as_many_threads_are_there_after_many_subscriptions_as_before() {
    let _turn = serial();
    watchdog(LIMIT * 5, || {
        let broker = Broker::<u64>::new();
        let before = process::threads();
        for round in 0..scale(100_000) {
            let subscription = broker.subscribe("t", config(1), |_| ()).unwrap();
            match round % 3 {
                0 => conserved(&subscription.unsubscribe()),
                1 => drop(subscription),
                _ => drop(subscription.drain(Duration::MAX)),
            }
        }
        wait_until(|| process::threads() == before);
        assert!(broker.metrics().subscriptions.is_empty());

        let kept: Vec<_> = (0..4).map(|_| broker.subscribe("t", config(1), |_| ()).unwrap()).collect();
        assert_eq!(process::threads(), before + 4, "one for each, and none besides");
        let detached = broker.subscribe("t", config(1), |_| ()).unwrap().detach();
        drop(broker);
        drop(kept);
        wait_until(|| process::threads() == before);
        conserved(&detached.metrics());
    });
}

#[test]
fn when_no_thread_can_be_had_subscribe_says_so_and_leaves_nothing_behind() {
    const TEST: &str = "when_no_thread_can_be_had_subscribe_says_so_and_leaves_nothing_behind";
    let _turn = serial();
    if process::part().is_some() {
        return subscribe_without_room_for_a_stack();
    }
    let child = process::play(TEST, "child");
    let mut limited = Command::new("sh");
    limited.args(["-c", "ulimit -v 1000000 && exec \"$0\" \"$@\""]).arg(child.get_program());
    limited.args(child.get_args()).envs(child.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let status = process::run(limited, LIMIT).unwrap().expect("it ends");
    assert!(status.success(), "{status}");
}

/// Runs with a limited address space: what is free of it is taken, so that no stack fits, and given back.
fn subscribe_without_room_for_a_stack() {
    let broker = Broker::<u64>::new();
    // Room in the heap for what `subscribe` itself needs.
    let small: Vec<_> = (0..4096).map(|_| Box::new([0_u8; 100])).collect();
    let end_of_heap = Box::new([0_u8; 100]);
    drop(small);
    let (mut taken, mut size) = (Vec::with_capacity(1024), 1 << 30);
    while size > 64 << 10 {
        let mut piece = Vec::<u8>::new();
        if piece.try_reserve_exact(size).is_ok() {
            taken.push(piece);
        } else {
            size /= 2;
        }
    }
    for _ in 0..2 {
        let error = broker.subscribe("t", config(1), |_| ()).unwrap_err();
        assert!(matches!(error, SubscribeError::Spawn(_)), "{error:?}");
        assert!(broker.topics().is_empty() && broker.metrics().subscriptions.is_empty());
    }
    drop((taken, end_of_heap));
    let subscription = broker.subscribe("t", config(1), |_| ()).unwrap();
    assert_eq!(broker.publish("t", 0).unwrap().delivered_to, 1);
    wait_until(|| subscription.metrics().delivered == 1);
    conserved(&subscription.unsubscribe());
}

/// Tells which thread drops it, and panics then if asked to.
struct Captured {
    dropped: mpsc::Sender<thread::ThreadId>,
    panics: bool,
}

impl Drop for Captured {
    fn drop(&mut self) {
        self.dropped.send(thread::current().id()).unwrap();
        if self.panics {
            resume_unwind(Box::new("captured"));
        }
    }
}

#[test]
fn what_a_start_hook_captured_is_dropped_on_the_workers_thread_before_the_end_is_told() {
    let _turn = serial();
    watchdog(LIMIT, || {
        let broker = Broker::<u64>::new();
        let topic = broker.topic("t").unwrap();
        let (done, mut droppers) = (AtomicBool::new(false), Vec::new());
        thread::scope(|scope| {
            // Whoever publishes holds the list of subscriptions, but nothing of theirs.
            let publisher = scope.spawn(|| {
                while !done.load(SeqCst) {
                    topic.publish(0).unwrap();
                }
            });
            for round in 0..scale(20_000) {
                let (dropped, drops) = mpsc::channel();
                let captured = Captured { dropped, panics: false };
                let hook = move || {
                    let _ = &captured;
                };
                let subscription = broker.subscribe("t", config(1).on_thread_start(hook), |_| ()).unwrap();
                if round % 2 == 0 {
                    wait_until(|| subscription.metrics().delivered > 0);
                }
                subscription.unsubscribe();
                // Before unsubscribe has returned.
                droppers.push(drops.try_recv().ok());
            }
            done.store(true, SeqCst);
            let others = [None, Some(publisher.thread().id()), Some(thread::current().id())];
            assert!(droppers.iter().all(|by| !others.contains(by)), "{droppers:?}, but none of {others:?}");
        });
        assert_eq!(broker.metrics().hook_panics, 0);
    });
}

#[test]
fn what_a_start_hook_captured_may_panic_as_it_is_dropped() {
    let _turn = serial();
    watchdog(LIMIT, || {
        let drain = |subscription: Subscription<u64>| subscription.drain(LIMIT).metrics;
        let release = |subscription: Subscription<u64>| {
            let last = subscription.handle();
            drop(subscription);
            wait_until(|| last.metrics().state == SubscriptionState::Ended);
            last.metrics()
        };
        for end in [Subscription::unsubscribe, drain, release] {
            let broker = Broker::<u64>::new();
            let (dropped, drops) = mpsc::channel();
            let captured = Captured { dropped, panics: true };
            let hook = move || {
                let _ = &captured;
            };
            let subscription = broker.subscribe("t", config(1).on_thread_start(hook), |_| ()).unwrap();
            broker.publish("t", 0).unwrap();
            wait_until(|| subscription.metrics().delivered == 1);
            let last = end(subscription);
            assert_eq!(last.state, SubscriptionState::Ended);
            conserved(&last);
            assert_ne!(drops.try_recv().unwrap(), thread::current().id());
            assert_eq!(broker.metrics().hook_panics, 1);
            broker.subscribe("t", config(1), |_| ()).unwrap().unsubscribe();
        }
    });
}
