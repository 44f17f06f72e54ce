//! A word to sleep on. On Linux the kernel's futex (`atomic-wait`, and `rustix` for the one timed wait that
//! `atomic-wait` does not have); elsewhere, and under loom, a mutex and a condition variable beside the word.
//!
//! Differences of the portable form that the models live with: its lock adds happens-before edges that a futex does not
//! promise, and its waits do not end spuriously. `--cfg fanout_portable_futex` selects it on Linux, so that it is run.

use super::atomic::AtomicU32;
use super::time::{self, Instant};
#[cfg(any(loom, fanout_portable_futex, not(target_os = "linux")))]
use super::{Condvar, Mutex, atomic::Ordering};

/// A 32-bit atomic that threads can sleep on until it changes.
#[derive(Debug)]
pub struct Futex {
    word: AtomicU32,
    #[cfg(any(loom, fanout_portable_futex, not(target_os = "linux")))]
    queue: (Mutex<()>, Condvar),
}

impl std::ops::Deref for Futex {
    type Target = AtomicU32;

    #[inline(always)]
    fn deref(&self) -> &AtomicU32 {
        &self.word
    }
}

#[cfg(all(not(loom), not(fanout_portable_futex), target_os = "linux"))]
impl Futex {
    /// A futex that holds `value`.
    pub const fn new(value: u32) -> Self {
        Self { word: AtomicU32::new(value) }
    }

    /// Sleeps while the word is `expected`; may return early. One syscall.
    pub fn wait(&self, expected: u32) {
        atomic_wait::wait(&self.word, expected);
    }

    /// Sleeps while the word is `expected`, until `deadline` at most; may return early. One syscall.
    pub fn wait_until(&self, expected: u32, deadline: Instant) {
        use rustix::thread::futex::{Flags, Timespec, wait};
        let left = deadline.saturating_duration_since(time::now());
        // Clamped to 30 years: the kernel refuses what its clock cannot hold, and a refusal would make the caller spin.
        let tv_sec = left.as_secs().min(1_000_000_000).cast_signed();
        let timeout = Timespec { tv_sec, tv_nsec: left.subsec_nanos().into() };
        // An interrupted, late or refused wait is an early return, as the contract above allows.
        let _ = wait(&self.word, Flags::PRIVATE, expected, Some(&timeout));
    }

    /// Wakes one sleeper. One syscall.
    pub fn wake_one(&self) {
        atomic_wait::wake_one(std::ptr::from_ref(&**self));
    }

    /// Wakes all sleepers. One syscall.
    pub fn wake_all(&self) {
        atomic_wait::wake_all(std::ptr::from_ref(&**self));
    }
}

#[cfg(any(loom, fanout_portable_futex, not(target_os = "linux")))]
impl Futex {
    /// A futex that holds `value`.
    pub fn new(value: u32) -> Self {
        Self { word: AtomicU32::new(value), queue: (Mutex::new(()), Condvar::new()) }
    }

    /// Sleeps while the word is `expected`; may return early.
    pub fn wait(&self, expected: u32) {
        let guard = self.queue.0.lock();
        // Relaxed: only a hint to sleep; callers read the word again with the ordering that they need.
        if self.word.load(Ordering::Relaxed) == expected {
            drop(self.queue.1.wait(guard));
        }
    }

    /// Sleeps while the word is `expected`, until `deadline` at most; may return early.
    pub fn wait_until(&self, expected: u32, deadline: Instant) {
        let guard = self.queue.0.lock();
        // Relaxed: as above.
        if self.word.load(Ordering::Relaxed) == expected {
            let left = deadline.saturating_duration_since(time::now());
            drop(self.queue.1.wait_timeout(guard, left));
        }
    }

    /// Wakes one sleeper.
    pub fn wake_one(&self) {
        let _queue = self.queue.0.lock();
        self.queue.1.notify_one();
    }

    /// Wakes all sleepers.
    pub fn wake_all(&self) {
        let _queue = self.queue.0.lock();
        self.queue.1.notify_all();
    }
}
