//! A pointer that is read without a lock and swapped now and then: a list as those see it who are not inside the sequencer.
//!
//! Under loom a mutex stands in for `arc-swap`, which loom cannot see: it adds happens-before edges between a store and the loads
//! after it, which `arc-swap` promises too, and between loads, which it does not.

use crate::sync::weak::Arc;

/// The pointer.
#[derive(Debug)]
pub struct Snapshot<T>(#[cfg(not(loom))] arc_swap::ArcSwap<T>, #[cfg(loom)] crate::sync::Mutex<Arc<T>>);

#[cfg(not(loom))]
impl<T> Snapshot<T> {
    /// A snapshot of `value`.
    pub fn new(value: Arc<T>) -> Self {
        Self(arc_swap::ArcSwap::new(value))
    }

    /// What it is now.
    pub fn load(&self) -> Arc<T> {
        self.0.load_full()
    }

    /// Makes it `value`, and gives back what it was.
    pub fn swap(&self, value: Arc<T>) -> Arc<T> {
        self.0.swap(value)
    }
}

#[cfg(loom)]
impl<T> Snapshot<T> {
    /// A snapshot of `value`.
    pub fn new(value: Arc<T>) -> Self {
        Self(crate::sync::Mutex::new(value))
    }

    /// What it is now.
    pub fn load(&self) -> Arc<T> {
        self.0.lock().clone()
    }

    /// Makes it `value`, and gives back what it was.
    pub fn swap(&self, value: Arc<T>) -> Arc<T> {
        std::mem::replace(&mut *self.0.lock(), value)
    }
}
