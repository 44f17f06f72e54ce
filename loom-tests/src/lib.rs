//! What the models share: running one, the payloads that count their drops, the specification of a ring, and roles.
//!
//! A model here is a closure that returns the **outcome** of one execution, and the exact set of outcomes that there may be. An outcome
//! outside the set fails at once, with loom's trace of the execution; one that never came fails at the end, because then the model does
//! not explore what it claims to. A panic fails the model also where the crate contains it (handlers, destructors): loom reports races by
//! panicking.
#![cfg(loom)]
// The book-keeping is std's on purpose: what loom saw of it would be explored, and would order what it must not order.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use std::cell::Cell;
use std::collections::{BTreeSet, VecDeque};
use std::fmt::Debug;
use std::panic;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::Instant;

use loom::thread::{self, JoinHandle};

/// A model to be run.
#[derive(Debug)]
#[must_use = "a model does nothing until it is checked"]
pub struct Model {
    name: &'static str,
    bound: Option<usize>,
    at_least: usize,
}

impl Model {
    /// A model that explores everything, in `at_least` executions: fewer mean that it lost its teeth.
    pub fn new(name: &'static str, at_least: usize) -> Self {
        Self { name, bound: None, at_least }
    }

    /// Explores executions with up to this many preemptions only. `LOOM_MAX_PREEMPTIONS` replaces the number.
    pub fn bound(mut self, preemptions: usize) -> Self {
        self.bound = Some(preemptions);
        self
    }

    /// Runs it.
    ///
    /// # Panics
    ///
    /// If loom finds a fault, if the outcomes are not exactly the `expected` ones, or if there were too few executions.
    pub fn check<O, F>(self, expected: impl IntoIterator<Item = O>, execution: F)
    where
        O: Ord + Debug + Send + Sync + 'static,
        F: Fn() -> O + Send + Sync + 'static,
    {
        let Self { name, bound, at_least } = self;
        let mut builder = loom::model::Builder::new();
        builder.max_branches = 20_000;
        if bound.is_some() {
            builder.preemption_bound = builder.preemption_bound.or(bound);
        } else {
            builder.preemption_bound = None;
        }
        let bound = builder.preemption_bound.map_or("none".to_owned(), |bound| bound.to_string());
        let expected: Arc<BTreeSet<O>> = Arc::new(expected.into_iter().collect());
        let seen = Arc::new(Mutex::new(BTreeSet::new()));
        let executions = Arc::new(AtomicUsize::new(0));
        count_panics();
        let started = Instant::now();
        builder.check({
            let (expected, seen, executions) = (expected.clone(), seen.clone(), executions.clone());
            move || {
                executions.fetch_add(1, Ordering::Relaxed);
                let outcome = execution();
                assert_eq!(PANICS.get(), 0, "{name}: a panic was contained");
                assert!(expected.contains(&outcome), "{name}: unexpected outcome {outcome:?}");
                seen.lock().expect("no panic inside").insert(outcome);
            }
        });
        let (seconds, executions) = (started.elapsed().as_secs_f64(), executions.load(Ordering::Relaxed));
        #[allow(clippy::print_stdout, reason = "the report of a run, shown with --nocapture")]
        {
            println!("model {name}: bound {bound}, {executions} executions, {seconds:.1} s");
        }
        let seen = seen.lock().expect("no panic inside");
        let never: Vec<_> = expected.difference(&seen).collect();
        assert!(never.is_empty(), "{name}: never seen: {never:?}");
        assert!(executions >= at_least, "{name}: {executions} executions are fewer than {at_least}");
    }
}

thread_local! {
    /// Panics on this thread: all threads of a model share the one of its test.
    static PANICS: Cell<usize> = const { Cell::new(0) };
}

fn count_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            PANICS.set(PANICS.get() + 1);
            before(info);
        }));
    });
    PANICS.set(0);
}

loom::lazy_static! {
    /// Changed before each operation.
    static ref TURNS: loom::sync::atomic::AtomicUsize = loom::sync::atomic::AtomicUsize::new(0);
}

/// Starts a role of a model.
pub fn role<R: 'static>(body: impl FnOnce() -> R + 'static) -> JoinHandle<R> {
    // Made by main, before there are roles: so it orders nothing among them.
    step(|| ());
    thread::spawn(move || step(body))
}

/// One operation of a role. It begins with a change of a word that all roles change, so that loom sees a conflict between any two
/// operations, and tries both orders: of its own accord it does not, since it remembers only the last access to an object, and a
/// thread that loads and then writes hides its conflict with another thread's earlier load.
pub fn step<R>(operation: impl FnOnce() -> R) -> R {
    // Relaxed: orders nothing.
    TURNS.fetch_add(1, loom::sync::atomic::Ordering::Relaxed);
    operation()
}

/// What a role returned.
///
/// # Panics
///
/// If it panicked.
pub fn joined<R>(role: JoinHandle<R>) -> R {
    role.join().expect("a role panicked")
}

/// A door that is closed until it is opened: who waits for it waits in a way that loom can call a deadlock.
#[derive(Debug, Clone, Default)]
pub struct Gate(loom::sync::Arc<(loom::sync::Mutex<bool>, loom::sync::Condvar)>);

impl Gate {
    /// Opens it.
    ///
    /// # Panics
    ///
    /// Never: there is no poison without a panic.
    pub fn open(&self) {
        *self.0.0.lock().expect("no panic inside") = true;
        self.0.1.notify_all();
    }

    /// Waits until it is open.
    ///
    /// # Panics
    ///
    /// As [`Gate::open`].
    pub fn wait(&self) {
        let mut open = self.0.0.lock().expect("no panic inside");
        while !*open {
            open = self.0.1.wait(open).expect("no panic inside");
        }
    }
}

/// Keeps account of [`Payload`]s: each is dropped once, and none is left at the end.
#[derive(Debug, Clone, Default)]
pub struct Ledger(Arc<(AtomicUsize, AtomicUsize)>);

impl Ledger {
    /// A payload.
    pub fn payload(&self, id: u64) -> Payload {
        self.0.0.fetch_add(1, Ordering::Relaxed);
        // The box makes a value that is dropped twice, or read when it is not there, a fault that allocators and sanitizers see too.
        Payload { id: Box::new(id), ledger: self.clone() }
    }

    /// Payloads made, clones included.
    pub fn made(&self) -> usize {
        self.0.0.load(Ordering::Relaxed)
    }

    /// Payloads dropped.
    pub fn dropped(&self) -> usize {
        self.0.1.load(Ordering::Relaxed)
    }

    /// To be called when everything is gone.
    ///
    /// # Panics
    ///
    /// If not every payload has been dropped exactly once.
    pub fn close(&self) {
        assert_eq!(self.made(), self.dropped(), "payloads made and dropped");
    }
}

/// A value with an identity, whose drops are counted.
#[derive(Debug)]
pub struct Payload {
    id: Box<u64>,
    ledger: Ledger,
}

impl Payload {
    /// Its number; clones have the same.
    pub fn number(&self) -> u64 {
        *self.id
    }
}

impl Clone for Payload {
    fn clone(&self) -> Self {
        self.ledger.payload(self.number())
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        self.ledger.0.1.fetch_add(1, Ordering::Relaxed);
    }
}

/// Every way to merge roles of so many steps each: lists of role numbers.
pub fn interleavings(steps: &[usize]) -> Vec<Vec<usize>> {
    if steps.iter().all(|&left| left == 0) {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for role in (0..steps.len()).filter(|&role| steps[role] > 0) {
        let mut rest = steps.to_vec();
        rest[role] -= 1;
        for mut tail in interleavings(&rest) {
            tail.insert(0, role);
            all.push(tail);
        }
    }
    all
}

/// The specification of a ring: a queue that drops its oldest.
#[derive(Debug, Default)]
pub struct Queue {
    waiting: VecDeque<u64>,
    pushed: u64,
}

impl Queue {
    /// Appends the next number; what made way for it.
    pub fn push(&mut self, capacity: usize) -> Option<u64> {
        self.waiting.push_back(self.pushed);
        self.pushed += 1;
        if self.waiting.len() > capacity { self.waiting.pop_front() } else { None }
    }

    /// The oldest.
    pub fn take(&mut self) -> Option<u64> {
        self.waiting.pop_front()
    }
}
