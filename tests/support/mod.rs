//! What the integration tests share: time limits, gates, payloads that are counted, and the identities of the metrics.

#![allow(dead_code, unused_imports, reason = "every test binary uses its own part of this")]

use std::{
    panic::{Location, resume_unwind},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use fanout::{DeliveryMode, SubscriptionMetrics};

pub mod allocations;
mod gate;
mod live;
#[cfg(target_os = "linux")]
pub mod process;

pub use gate::Gate;
pub use live::{Ledger, Live};

/// A limit that only a hang can reach, however slow the machine.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Runs `body` on a thread of its own; one that hangs fails the test, named, instead of stopping the suite.
#[track_caller]
pub fn watchdog<R: Send + 'static>(limit: Duration, body: impl FnOnce() -> R + Send + 'static) -> R {
    let caller = Location::caller();
    let name = thread::current().name().unwrap_or("test").to_owned();
    let (done, ended) = mpsc::channel();
    let body = thread::Builder::new()
        .name(name.clone())
        .spawn(move || {
            let result = body();
            let _ = done.send(());
            result
        })
        .expect("a thread for the test");
    if let Err(mpsc::RecvTimeoutError::Timeout) = ended.recv_timeout(limit) {
        panic!("{name}, started at {caller}, hangs: not done after {limit:?}");
    }
    body.join().unwrap_or_else(|panic| resume_unwind(panic))
}

/// Yields until `condition` holds; fails at the caller's line when it never does.
#[track_caller]
pub fn wait_until(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT / 2, "the condition never came true");
        thread::yield_now();
    }
}

/// By how much the counts shrink in an ordinary run, in which no test takes more than about 2 seconds.
const SHRINK: u64 = 100;

/// `full` with `FANOUT_TEST_FULL=1`, else a small part of it.
pub fn scale(full: u64) -> u64 {
    if full_run() { full } else { (full / SHRINK).max(full.min(10)) }
}

pub fn full_run() -> bool {
    static FULL: OnceLock<bool> = OnceLock::new();
    *FULL.get_or_init(|| std::env::var_os("FANOUT_TEST_FULL").is_some_and(|value| value == "1"))
}

/// Held by each test of a binary that measures the whole process: one runs at a time, and only once what the last one
/// left behind, and what the harness does after it, has come to rest.
pub fn serial() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    #[cfg(target_os = "linux")]
    {
        // A thread on its way out may doze off for a moment, so once is not enough.
        let mut quiet = 0;
        wait_until(|| {
            quiet = if process::others_sleep() { quiet + 1 } else { 0 };
            quiet == 50
        });
    }
    turn
}

/// What holds at any time, also in the middle of a push.
#[track_caller]
pub fn within_bounds(m: &SubscriptionMetrics) {
    assert!(m.depth <= m.capacity, "more queued than the capacity: {m:#?}");
    assert!(m.pending <= m.max_pending, "more pending than allowed: {m:#?}");
    let counters = [
        m.enqueued,
        m.delivered,
        m.redelivered,
        m.failed,
        m.panicked,
        m.rejected,
        m.dropped,
        m.discarded,
        m.acked,
        m.dead,
        m.dead_letter_failures,
        m.payload_panics,
    ];
    assert!(counters.iter().all(|&count| count < 1 << 63), "a counter below zero: {m:#?}");
}

/// Every message is accounted for; exact whenever no push or take is in progress.
#[track_caller]
pub fn conserved(m: &SubscriptionMetrics) {
    within_bounds(m);
    let taken = match m.mode {
        DeliveryMode::AtMostOnce => m.delivered,
        DeliveryMode::AtLeastOnce => m.acked + m.rejected + m.dead + m.pending as u64,
        _ => unreachable!("a delivery mode without an identity"),
    };
    assert_eq!(
        m.enqueued,
        taken + m.dropped + m.discarded + m.depth as u64,
        "messages unaccounted for: {m:#?}"
    );
}
