//! Promises that no test of a single behaviour shows: what runs on a publisher's thread, what runs inside the sequencer, and who waits for whom.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "the crate's door to concurrency is for the crate; tests use std"
)]

mod support;

use std::{
    iter,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread::{self, ThreadId},
    time::Duration,
};

use fanout::{AckPolicy, Broker, Message, Outcome, SubscriptionConfig, Topic, TryPublishError};
use support::{Gate, LIMIT, conserved, wait_until, watchdog};

/// Who ran what.
#[derive(Clone, Default)]
struct Runs(Arc<Mutex<Vec<(&'static str, ThreadId)>>>);

impl Runs {
    fn note(&self, what: &'static str) {
        self.0.lock().unwrap().push((what, thread::current().id()));
    }

    /// On which threads; each once.
    fn threads_of(&self, what: &str) -> Vec<ThreadId> {
        let mut threads = Vec::new();
        for (_, thread) in self.0.lock().unwrap().iter().filter(|(other, _)| *other == what) {
            if !threads.contains(thread) {
                threads.push(*thread);
            }
        }
        threads
    }
}

/// What a handler captures.
struct Captured(Runs);

impl Drop for Captured {
    fn drop(&mut self) {
        self.0.note("captures");
    }
}

#[test]
fn no_code_of_a_subscriber_runs_on_a_publishers_thread() {
    watchdog(LIMIT, || {
        let (runs, gate) = (Runs::default(), Gate::new());
        let (hook, start, captured) = (runs.clone(), runs.clone(), Captured(runs.clone()));
        let broker = Broker::builder().on_event(move |_| hook.note("hook")).build();
        let pass = gate.clone();
        let handler = move |_: &Message<u64>| {
            captured.0.note("handler");
            pass.pass();
            Outcome::Reject
        };
        let config = SubscriptionConfig::at_least_once(2)
            .ack_policy(AckPolicy::Manual)
            .dead_letter("letters")
            .on_thread_start(move || start.note("start"));
        let subscription = broker.subscribe("t", config, handler).unwrap();
        // It evicts, it ends the subscription, and it has its last handles, while a call runs.
        let publisher = thread::spawn({
            let gate = gate.clone();
            move || {
                let topic = broker.topic("t").unwrap();
                topic.publish(0).unwrap();
                gate.wait_entered(1);
                let dropped: usize = (1..10).map(|value| topic.publish(value).unwrap().dropped).sum();
                assert_eq!(dropped, 7);
                // The worker's turn: it finds the drops, and rejects what it has in hand.
                gate.let_one();
                gate.wait_entered(2);
                let handle = subscription.handle();
                drop(subscription);
                topic.publish(10).unwrap();
                (thread::current().id(), handle)
            }
        });
        let (publisher, handle) = publisher.join().unwrap();
        gate.open();
        wait_until(|| !runs.threads_of("captures").is_empty());
        let worker = runs.threads_of("start");
        assert_eq!(worker.len(), 1);
        assert_ne!(worker, [publisher]);
        for what in ["handler", "hook", "captures"] {
            assert_eq!(runs.threads_of(what), worker, "{what} on a thread that is not the worker's");
        }
        wait_until(|| handle.metrics().state == fanout::SubscriptionState::Ended);
        conserved(&handle.metrics());
    });
}

/// A payload that tries to publish wherever code of it runs: inside the sequencer that is refused.
struct Probe(Option<(Topic<Probe>, Runs)>);

impl Probe {
    fn look(&self, what: &'static str) {
        if let Some((topic, runs)) = &self.0 {
            let inside = matches!(topic.try_publish(Probe(None)), Err(TryPublishError::Contended(_)));
            runs.note(if inside { "inside" } else { what });
        }
    }
}

impl Clone for Probe {
    fn clone(&self) -> Self {
        self.look("clone");
        Probe(self.0.clone())
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.look("drop");
    }
}

#[test]
fn neither_clones_nor_drops_nor_iterators_run_inside_the_sequencer() {
    watchdog(LIMIT, || {
        let (broker, runs) = (Broker::new(), Runs::default());
        let topic = broker.topic("t").unwrap();
        let probe = || Probe(Some((topic.clone(), runs.clone())));
        let receivers: Vec<_> =
            (0..3).map(|_| broker.receiver("t", SubscriptionConfig::at_most_once(1)).unwrap()).collect();
        for _ in 0..5 {
            topic.publish(probe()).unwrap();
            topic.publish_batch([probe(), probe()]).unwrap();
        }
        let payloads = iter::repeat_with(|| {
            probe().look("iterator");
            Probe(None)
        });
        topic.publish_batch(payloads.take(40)).unwrap();
        for what in ["clone", "drop", "iterator"] {
            assert!(!runs.threads_of(what).is_empty(), "no {what} was seen");
        }
        assert!(runs.threads_of("inside").is_empty(), "a payload's code ran inside the sequencer");
        drop(receivers);
    });
}

/// A payload that holds whoever drops it, once.
#[derive(Clone)]
struct Heavy(Option<Gate>);

impl Drop for Heavy {
    fn drop(&mut self) {
        if let Some(gate) = self.0.take() {
            gate.pass();
        }
    }
}

/// Publishes take milliseconds; this is for a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(20);

/// A thousand publishes return though the worker stands still, at `gate`.
fn overrun(broker: &Broker<Heavy>, gate: &Gate) {
    gate.wait_entered(1);
    let topic = broker.topic("t").unwrap();
    let dropped: usize = (0..1_000).map(|_| topic.publish(Heavy(None)).unwrap().dropped).sum();
    assert_eq!(dropped, 1_000 - 2);
    assert_eq!(gate.entered(), 1, "the worker has gone on");
}

#[test]
fn publishers_do_not_wait_for_a_worker_that_stands_in_its_handler() {
    for config in [SubscriptionConfig::at_most_once(2), SubscriptionConfig::at_least_once(2)] {
        watchdog(PATIENCE, || {
            let (broker, gate) = (Broker::new(), Gate::new());
            let pass = gate.clone();
            let subscription = broker.subscribe("t", config, move |_| pass.pass()).unwrap();
            broker.publish("t", Heavy(None)).unwrap();
            overrun(&broker, &gate);
            gate.open();
            conserved(&subscription.unsubscribe());
        });
    }
}

#[test]
fn publishers_do_not_wait_for_a_worker_that_stands_in_a_payloads_drop() {
    watchdog(PATIENCE, || {
        let (broker, gate) = (Broker::new(), Gate::new());
        let subscription = broker.subscribe("t", SubscriptionConfig::at_most_once(2), |_| ()).unwrap();
        broker.publish("t", Heavy(Some(gate.clone()))).unwrap();
        overrun(&broker, &gate);
        gate.open();
        conserved(&subscription.unsubscribe());
    });
}

#[test]
fn publishers_do_not_wait_for_a_worker_that_stands_in_a_hook() {
    watchdog(PATIENCE, || {
        let gate = Gate::new();
        let pass = gate.clone();
        let broker = Broker::builder().on_event(move |_| pass.pass()).build();
        let handler = |message: &Message<Heavy>| assert!(message.seq() > 0, "so that the hook is called");
        let subscription = broker.subscribe("t", SubscriptionConfig::at_most_once(2), handler).unwrap();
        broker.publish("t", Heavy(None)).unwrap();
        overrun(&broker, &gate);
        gate.open();
        conserved(&subscription.unsubscribe());
    });
}

#[cfg(target_os = "linux")]
mod linux {
    use super::*;
    use fanout::SubscriptionState::StalledAtPendingLimit;
    use std::fs;

    /// A file of this process's thread of that name.
    fn file_of(thread: &str, file: &str) -> String {
        let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
        let mut named = tasks
            .filter(|task| fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == thread));
        fs::read_to_string(named.next().expect("a thread of this name").join(file)).unwrap()
    }

    fn sleeps(thread: &str) -> bool {
        let stat = file_of(thread, "stat");
        stat[stat.rfind(')').unwrap() + 2..].starts_with('S')
    }

    /// How often that thread has gone to sleep.
    fn sleeps_so_far(thread: &str) -> u64 {
        let status = file_of(thread, "status");
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.unwrap().trim().parse().unwrap()
    }

    #[test]
    fn a_worker_that_waits_for_acks_is_not_woken_by_publishes() {
        watchdog(LIMIT, || {
            let (broker, heard) = (Broker::new(), Arc::new(AtomicU64::new(0)));
            let config = SubscriptionConfig::at_least_once(4).max_pending(1).thread_name("stalled");
            let stalled = broker.subscribe("t", config, |_| ()).unwrap();
            // Its neighbour sleeps before each publish, so that each has somebody to wake.
            let config = SubscriptionConfig::at_most_once(4).thread_name("neighbour");
            let counts = heard.clone();
            let neighbour = broker
                .subscribe("t", config, move |_| {
                    counts.fetch_add(1, SeqCst);
                })
                .unwrap();
            let publish = |value: u64| {
                broker.publish("t", value).unwrap();
                wait_until(|| heard.load(SeqCst) == value + 1 && sleeps("neighbour"));
            };
            publish(0);
            wait_until(|| stalled.metrics().state == StalledAtPendingLimit && sleeps("stalled"));
            let before = sleeps_so_far("stalled");
            let before_neighbour = sleeps_so_far("neighbour");
            (1..=100).for_each(publish);
            let woken = sleeps_so_far("neighbour") - before_neighbour;
            assert!(woken >= 100, "the neighbour was awake: it slept {woken} times");
            let woken = sleeps_so_far("stalled") - before;
            assert!(woken < 5, "publishes have woken it {woken} times");
            assert_eq!(stalled.metrics().depth, 4);
            conserved(&stalled.unsubscribe());
            conserved(&neighbour.unsubscribe());
        });
    }
}
