//! The one door to atomics, cells, locks, threads and futexes. Every other file takes them from here, so that the models
//! of `loom-tests` run the code that ships; clippy's `disallowed-types` keeps the door shut.
//!
//! What differs under `cfg(loom)`, and only here: [`weak`] counts references with std (loom has no `Weak`), so the models
//! do not see the orderings of those counts; [`time`] stands still; [`futex`] is a mutex and a condition variable.

#[cfg(not(loom))]
#[path = "std.rs"]
mod imp;
#[cfg(loom)]
#[path = "loom.rs"]
mod imp;

pub mod futex;

#[cfg(any(loom, fanout_portable_futex, not(target_os = "linux")))]
pub use imp::Condvar;
pub use imp::{Arc, Mutex, atomic, cell, hint, thread, time};
pub use std::sync::OnceLock;

/// Reference counts that can be weak: std's on both sides of the door.
pub mod weak {
    pub use std::sync::{Arc, Weak};
}

/// A number that no other call in this process gets, from 1.
#[allow(clippy::disallowed_types, reason = "the door itself; a number is no part of any protocol")]
pub fn unique_number() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    // Relaxed: only its uniqueness matters.
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

#[cfg(not(target_has_atomic = "64"))]
compile_error!("fanout needs 64-bit atomics: the words of its rings hold a lap and an index");
