//! The loom side of the door: the same names, modelled.

pub use loom::sync::Arc;

/// loom's atomics.
pub mod atomic {
    pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
}

/// Busy-wait hints: loom's scheduler is unfair, so each is a yield.
pub mod hint {
    pub use loom::hint::spin_loop;
}

/// loom's cells.
pub mod cell {
    pub use loom::cell::UnsafeCell;
    use std::collections::TryReserveError;
    use std::mem::MaybeUninit;

    /// `count` cells without a value, or the allocator's refusal.
    pub fn uninit_cells<T>(count: usize) -> Result<Box<[UnsafeCell<MaybeUninit<T>>]>, TryReserveError> {
        let mut cells = Vec::new();
        cells.try_reserve_exact(count)?;
        cells.resize_with(count, || UnsafeCell::new(MaybeUninit::uninit()));
        Ok(cells.into_boxed_slice())
    }
}

/// A mutex without poison.
#[derive(Debug)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

/// The guard of [`Mutex`].
pub type MutexGuard<'a, T> = loom::sync::MutexGuard<'a, T>;

impl<T> Mutex<T> {
    /// A mutex around `value`.
    pub fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    /// Locks it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

/// A condition variable for [`Mutex`]; it never wakes spuriously and never times out.
#[derive(Debug, Default)]
pub struct Condvar(loom::sync::Condvar);

impl Condvar {
    /// A condition variable.
    pub fn new() -> Self {
        Self(loom::sync::Condvar::new())
    }

    /// Waits for a notification.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Waits for a notification: time stands still in a model.
    pub fn wait_timeout<'a, T>(&self, guard: MutexGuard<'a, T>, _: std::time::Duration) -> MutexGuard<'a, T> {
        self.wait(guard)
    }

    /// Wakes one waiter.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Threads.
pub mod thread {
    /// A running thread.
    #[derive(Debug)]
    pub struct JoinHandle(loom::thread::JoinHandle<()>);

    impl JoinHandle {
        /// Waits until the thread is gone.
        pub fn join(self) {
            // A panic of the thread fails the model by itself.
            let _ = self.0.join();
        }
    }

    /// loom's, which has no form for `const` initialisers.
    macro_rules! local {
        ($($(#[$attribute:meta])* static $name:ident: $type:ty = const $value:block;)*) => {
            ::loom::thread_local! { $($(#[$attribute])* static $name: $type = $value;)* }
        };
    }
    pub(crate) use local as thread_local;

    /// Starts a thread.
    pub fn spawn(
        _: &str,
        _: Option<usize>,
        body: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<JoinHandle> {
        Ok(JoinHandle(loom::thread::spawn(body)))
    }

    /// One processor: spinning adds nothing to a model but states.
    pub fn processors() -> usize {
        1
    }
}

/// Time that stands still.
pub mod time {
    use std::time::Duration;

    /// The only instant there is.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub struct Instant(Duration);

    /// Now.
    pub fn now() -> Instant {
        Instant(Duration::ZERO)
    }

    impl Instant {
        /// Since `earlier`.
        pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
            self.0.saturating_sub(earlier.0)
        }

        /// After `by`.
        pub fn checked_add(&self, by: Duration) -> Option<Self> {
            self.0.checked_add(by).map(Self)
        }
    }
}
