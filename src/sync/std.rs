//! The std side of the door.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "the door itself")]

pub use std::sync::Arc;

/// std's atomics, under types of this crate: a lint can then tell a use of the door from a way around it.
pub mod atomic {
    pub use std::sync::atomic::Ordering;

    macro_rules! door {
        ($($name:ident($value:ty);)*) => {$(
            #[doc = concat!("[`std::sync::atomic::", stringify!($name), "`].")]
            #[derive(Debug, Default)]
            #[repr(transparent)]
            pub struct $name(std::sync::atomic::$name);

            impl $name {
                /// An atomic that holds `value`.
                pub const fn new(value: $value) -> Self {
                    Self(std::sync::atomic::$name::new(value))
                }
            }

            impl std::ops::Deref for $name {
                type Target = std::sync::atomic::$name;

                #[inline(always)]
                fn deref(&self) -> &Self::Target {
                    &self.0
                }
            }
        )*};
    }

    door! {
        AtomicBool(bool);
        AtomicU32(u32);
        AtomicU64(u64);
        AtomicUsize(usize);
    }
}

/// Busy-wait hints.
pub mod hint {
    /// [`std::hint::spin_loop`].
    #[inline(always)]
    pub fn spin_loop() {
        std::hint::spin_loop();
    }
}

/// A cell with loom's signatures.
pub mod cell {
    use std::collections::TryReserveError;
    use std::mem::MaybeUninit;

    /// `std::cell::UnsafeCell` that hands out pointers in a closure, as loom's does.
    #[derive(Debug)]
    #[repr(transparent)]
    pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        /// A cell around `value`.
        pub const fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        /// Calls `f` with a pointer for reading.
        #[inline(always)]
        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        /// Calls `f` with a pointer for writing.
        #[inline(always)]
        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }

    /// `count` cells without a value, or the allocator's refusal.
    pub fn uninit_cells<T>(count: usize) -> Result<Box<[UnsafeCell<MaybeUninit<T>>]>, TryReserveError> {
        let mut cells: Vec<UnsafeCell<MaybeUninit<T>>> = Vec::new();
        cells.try_reserve_exact(count)?;
        // SAFETY: 1. `count` elements are reserved. 2. An `UnsafeCell<MaybeUninit<_>>` needs no initialisation.
        unsafe { cells.set_len(count) };
        Ok(cells.into_boxed_slice())
    }
}

/// A mutex that a panic does not poison: what it guards here is consistent between any two statements.
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

/// The guard of [`Mutex`].
pub type MutexGuard<'a, T> = std::sync::MutexGuard<'a, T>;

impl<T> Mutex<T> {
    /// A mutex around `value`.
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    /// Locks it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A condition variable for [`Mutex`].
#[derive(Debug, Default)]
pub struct Condvar(std::sync::Condvar);

#[allow(dead_code, reason = "used by the portable futex")]
impl Condvar {
    /// A condition variable.
    pub const fn new() -> Self {
        Self(std::sync::Condvar::new())
    }

    /// Waits for a notification.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Waits for a notification for `limit` at most.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: std::time::Duration,
    ) -> MutexGuard<'a, T> {
        self.0.wait_timeout(guard, limit).unwrap_or_else(std::sync::PoisonError::into_inner).0
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
    pub use std::thread_local;

    /// A running thread.
    #[derive(Debug)]
    pub struct JoinHandle(std::thread::JoinHandle<()>);

    impl JoinHandle {
        /// Waits until the thread is gone.
        pub fn join(self) {
            // Its body contains the panics of foreign code; one of our own has been reported by the panic hook.
            let _ = self.0.join();
        }
    }

    /// Starts a named thread, bound to the processor of this raw number if one is given: if that fails, `body` does not run.
    pub fn spawn(
        name: &str,
        pin_to_core: Option<usize>,
        body: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<JoinHandle> {
        let builder = std::thread::Builder::new().name(name.to_owned());
        let Some(core) = pin_to_core else { return builder.spawn(body).map(JoinHandle) };
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let thread = builder.spawn(move || {
            let pinned = pin(core);
            let failed = pinned.is_err();
            let _ = tell.send(pinned);
            if !failed {
                body();
            }
        })?;
        // A thread that ends without a word cannot be: the send comes first.
        match told.recv().unwrap_or_else(|lost| Err(std::io::Error::other(lost))) {
            Ok(()) => Ok(JoinHandle(thread)),
            Err(error) => {
                let _ = thread.join();
                Err(error)
            }
        }
    }

    /// How many processors this process may use; asked once, since the answer costs a syscall.
    pub fn processors() -> usize {
        static COUNT: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
        *COUNT.get_or_init(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get))
    }

    fn pin(core: usize) -> std::io::Result<()> {
        #[cfg(target_os = "linux")]
        {
            use rustix::thread::{CpuSet, sched_setaffinity};
            if core >= CpuSet::MAX_CPU {
                return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, format!("no core {core}")));
            }
            let mut set = CpuSet::new();
            set.set(core);
            Ok(sched_setaffinity(None, &set)?)
        }
        #[cfg(not(target_os = "linux"))]
        {
            let unsupported = std::io::ErrorKind::Unsupported;
            Err(std::io::Error::new(unsupported, format!("pinning to core {core} is done on Linux only")))
        }
    }
}

/// Real time.
pub mod time {
    pub use std::time::Instant;

    /// [`Instant::now`].
    #[inline]
    pub fn now() -> Instant {
        Instant::now()
    }
}
