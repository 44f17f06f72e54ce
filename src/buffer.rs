//! Room for the clones of a payload on their way in, and for the evicted values on their way out: made before the sequencer is entered
//! and emptied after it is left, so that no `Clone`, `Drop` or allocation runs inside.
//!
//! One array serves both. Of p payloads for n subscriptions, p (n - 1) clones lie in it from place p on; each push takes one of them (or a
//! payload itself), and then puts at most one evicted value in, at the front. So what is evicted never reaches the clones that are left:
//! `{ evicted values, free places, clones }`.

use std::mem::{MaybeUninit, align_of, size_of};

use crossbeam_queue::ArrayQueue;

use crate::panics::drop_contained;

const WORDS: usize = 128;

/// A pool of heap arrays for what does not fit the stack.
pub type Pool<T> = ArrayQueue<Vec<MaybeUninit<T>>>;

/// The array: 1 KiB on the stack if that is enough, else from the pool.
pub struct Buffer<T> {
    stack: MaybeUninit<[u64; WORDS]>,
    heap: Vec<MaybeUninit<T>>,
    /// Evicted values are at `..evicted`, clones at `next..end`; `evicted <= next`.
    evicted: usize,
    next: usize,
    end: usize,
}

impl<T> Buffer<T> {
    const ON_STACK: usize = {
        if align_of::<T>() > align_of::<u64>() {
            0
        } else if size_of::<T>() == 0 {
            usize::MAX
        } else {
            WORDS * size_of::<u64>() / size_of::<T>()
        }
    };

    /// An empty buffer for a publish of `payloads`. Costs nothing.
    #[inline(always)]
    pub fn new(payloads: usize) -> Self {
        Self { stack: MaybeUninit::uninit(), heap: Vec::new(), evicted: 0, next: payloads, end: payloads }
    }

    #[inline(always)]
    fn base(&mut self) -> *mut T {
        if self.heap.is_empty() { self.stack.as_mut_ptr().cast() } else { self.heap.as_mut_ptr().cast() }
    }

    /// Clones that are ready.
    #[inline(always)]
    pub fn clones(&self) -> usize {
        self.end - self.next
    }

    /// Makes the buffer hold `clones` clones from `make`, and have room for as many evicted values as will go in. Outside the sequencer
    /// only. A panic of `make` leaves what has been made so far.
    #[inline]
    pub fn fill(&mut self, clones: usize, pool: &Pool<T>, mut make: impl FnMut(usize) -> T) {
        debug_assert!(self.evicted == 0);
        let places = self.next + clones;
        if places > Self::ON_STACK && places > self.heap.len() {
            self.grow(places, pool);
        }
        while self.end < places {
            let value = make(self.end - self.next);
            // SAFETY: `end < places`, and the array has `places` elements at least.
            let place = unsafe { self.base().add(self.end) };
            // SAFETY: the place is inside the array and holds nothing.
            unsafe { place.write(value) };
            self.end += 1;
        }
    }

    /// An array of `places`, with what is in the old one moved over.
    #[cold]
    fn grow(&mut self, places: usize, pool: &Pool<T>) {
        let mut heap = pool.pop().unwrap_or_default();
        heap.clear();
        heap.reserve(places);
        // SAFETY: 1. reserved. 2. `MaybeUninit` needs no initialisation.
        unsafe { heap.set_len(places) };
        if self.end > self.next {
            // SAFETY: clones have been made, so the old array has `end` places, and the new one has more; they do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(self.base(), heap.as_mut_ptr().cast(), self.end) };
        }
        let old = std::mem::replace(&mut self.heap, heap);
        if old.capacity() > 0 {
            let _ = pool.push(old);
        }
    }

    /// The next clone.
    ///
    /// # Panics
    ///
    /// If there is none: a fault of this crate.
    #[inline(always)]
    pub fn take(&mut self) -> T {
        assert!(self.next < self.end, "a clone was not made");
        // SAFETY: `next..end` are inside the array.
        let place = unsafe { self.base().add(self.next) };
        self.next += 1;
        // SAFETY: `next..end` hold clones, and this one is not looked at again.
        unsafe { place.read() }
    }

    /// Keeps an evicted value for [`Self::clear`]: one at most for each payload and each clone taken so far.
    ///
    /// # Panics
    ///
    /// If there is no place for it: a fault of this crate.
    #[inline(always)]
    pub fn keep(&mut self, value: T) {
        assert!(self.evicted < self.next && self.has_room(self.evicted + 1), "an evicted value has no place");
        // SAFETY: inside the array, by the second assertion.
        let place = unsafe { self.base().add(self.evicted) };
        // SAFETY: before `next`, by the first assertion, and not before `evicted`, so the place holds nothing.
        unsafe { place.write(value) };
        self.evicted += 1;
    }

    /// Whether the array has this many places.
    #[inline(always)]
    pub fn has_room(&self, places: usize) -> bool {
        places <= Self::ON_STACK || places <= self.heap.len()
    }

    /// Drops what is left, each value contained, and gives the array back; the number of destructors that panicked. Outside the
    /// sequencer only.
    #[inline]
    pub fn clear(&mut self, pool: &Pool<T>) -> u64 {
        let panics = self.drop_values();
        if self.heap.capacity() > 0 {
            let heap = std::mem::take(&mut self.heap);
            let _ = pool.push(heap);
        }
        panics
    }

    #[inline]
    fn drop_values(&mut self) -> u64 {
        let mut panics = 0;
        let (evicted, next, end) = (self.evicted, self.next, self.end);
        if std::mem::needs_drop::<T>() {
            // Forgotten first: a destructor that comes back here finds nothing.
            (self.evicted, self.end) = (0, next);
            for at in (0..evicted).chain(next..end) {
                // SAFETY: inside the array.
                let place = unsafe { self.base().add(at) };
                // SAFETY: it holds a value, which is not looked at again.
                let value = unsafe { place.read() };
                panics += u64::from(drop_contained(value));
            }
        }
        (self.evicted, self.end) = (0, next);
        panics
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        if std::mem::needs_drop::<T>() {
            self.drop_values();
        }
    }
}

impl<T> std::fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { evicted, next, end, .. } = self;
        f.debug_struct("Buffer").field("evicted", evicted).field("clones", &(next..end)).finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::rc::Rc;

    /// Takes `n - 1` clones, keeps `n` evicted values, for sizes on both sides of the stack's 1 KiB.
    fn round<T>(n: usize, make: impl Fn() -> T) {
        let pool = Pool::new(2);
        for _ in 0..3 {
            let mut buffer = Buffer::new(2);
            buffer.fill(n, &pool, |_| make());
            buffer.fill(2 * n - 2, &pool, |_| make());
            assert_eq!(buffer.clones(), 2 * n - 2);
            for _payload in 0..2 {
                for _ in 1..n {
                    drop(buffer.take());
                    buffer.keep(make());
                }
                buffer.keep(make());
            }
            assert_eq!(buffer.clear(&pool), 0);
        }
    }

    #[test]
    fn every_value_is_dropped_once() {
        for n in [2, 3, 64, 65, 128, 129, 500] {
            let live = Rc::new(());
            round(n, || live.clone());
            round(n, || (live.clone(), [0u64; 9]));
            assert_eq!(Rc::strong_count(&live), 1);
        }
    }

    #[test]
    fn a_panicking_clone_leaves_nothing_behind() {
        let live = Rc::new(());
        let pool = Pool::new(1);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut buffer = Buffer::new(1);
            buffer.fill(300, &pool, |at| if at == 200 { panic!() } else { live.clone() });
        }));
        assert!(result.is_err());
        assert_eq!(Rc::strong_count(&live), 1);
    }

    #[test]
    fn arrays_return_to_the_pool() {
        let pool: Pool<String> = Pool::new(1);
        let mut buffer = Buffer::new(1);
        buffer.fill(99, &pool, |_| String::new());
        buffer.clear(&pool);
        assert_eq!(pool.len(), 1);
    }

    #[test]
    fn over_aligned_and_empty_payloads_have_a_place() {
        #[repr(align(64))]
        struct Wide(#[allow(dead_code)] u8);
        round(3, || Wide(1));
        round(1000, || ());
        round(2, || [1u64; 2000]);
    }
}
