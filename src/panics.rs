//! Panics of foreign code (handlers, hooks, a payload's `Drop`), contained.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A caught panic. Dropping it never panics, though the value thrown may.
#[derive(Debug)]
pub struct Panic(Option<Box<dyn Any + Send>>);

impl Panic {
    /// The message, where the panic carried text.
    pub fn message(&self) -> String {
        let thrown = self.0.as_deref();
        let text = thrown.and_then(|thrown| thrown.downcast_ref::<&'static str>().copied());
        let owned = thrown.and_then(|thrown| thrown.downcast_ref::<String>().map(String::as_str));
        text.or(owned).unwrap_or("a value that is no text").to_owned()
    }
}

impl Drop for Panic {
    fn drop(&mut self) {
        let mut thrown = self.0.take();
        // The value thrown may itself throw when dropped, and so may the next one; the last of the chain is leaked.
        for _ in 0..3 {
            match catch_unwind(AssertUnwindSafe(move || drop(thrown))) {
                Ok(()) => return,
                Err(next) => thrown = Some(next),
            }
        }
        std::mem::forget(thrown);
    }
}

/// Calls `f`, catching a panic. Nothing of ours is left half-changed by the callers: they look at the result.
#[inline]
pub fn contain<R>(f: impl FnOnce() -> R) -> Result<R, Panic> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|thrown| Panic(Some(thrown)))
}

/// Drops `value`; true if its destructor panicked.
#[inline]
pub fn drop_contained<T>(value: T) -> bool {
    std::mem::needs_drop::<T>() && contain(move || drop(value)).is_err()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct Bomb(u32);

    impl Drop for Bomb {
        fn drop(&mut self) {
            if self.0 > 0 {
                std::panic::panic_any(Bomb(self.0 - 1));
            }
        }
    }

    #[test]
    fn a_thrown_value_that_throws_again_is_contained() {
        for depth in 0..6 {
            drop(contain(|| std::panic::panic_any(Bomb(depth))));
        }
    }

    #[test]
    fn the_message_is_kept() {
        assert_eq!(contain(|| panic!("{} fish", 2)).unwrap_err().message(), "2 fish");
        assert_eq!(contain(|| panic!("fish")).unwrap_err().message(), "fish");
    }

    #[test]
    fn a_panicking_destructor_is_reported() {
        assert!(drop_contained(Bomb(1)));
        assert!(!drop_contained(Bomb(0)));
    }
}
