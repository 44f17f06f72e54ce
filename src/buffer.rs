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

/// Evicted values that fit the stack with the names of their owners.
const OWNERS: usize = 32;

/// Empty arrays, kept for what does not fit the stack.
pub type Pool<T> = ArrayQueue<Box<Heap<T>>>;

/// An array on the heap. Both are empty as far as `Vec` knows: their spare capacity is the array.
#[derive(Debug)]
pub struct Heap<T> {
    pub values: Vec<T>,
    owners: Vec<u64>,
}

impl<T> Heap<T> {
    /// An empty one, from the pool if it has one.
    pub fn take(pool: &Pool<T>) -> Box<Self> {
        pool.pop().unwrap_or_else(|| Box::new(Self { values: Vec::new(), owners: Vec::new() }))
    }

    /// Gives it back, empty; dropped if the pool is full.
    pub fn give(self: Box<Self>, pool: &Pool<T>) {
        debug_assert!(self.values.is_empty() && self.owners.is_empty());
        let _ = pool.push(self);
    }

    fn has_room(&self, places: usize) -> bool {
        // A vector of values without a size has room for all of them, but their owners have a size.
        places <= self.values.capacity() && (!std::mem::needs_drop::<T>() || places <= self.owners.capacity())
    }
}

/// The array on the stack: 1 KiB, never initialised as a whole. Apart from [`Buffer`], or the compiler would clear it together with the fields there.
pub struct Room {
    values: MaybeUninit<[u64; WORDS]>,
    owners: MaybeUninit<[u64; OWNERS]>,
}

impl Room {
    /// Costs nothing.
    #[inline(always)]
    pub fn new() -> Self {
        Self { values: MaybeUninit::uninit(), owners: MaybeUninit::uninit() }
    }
}

/// The array: the room on the stack if that is enough, else one from the pool.
pub struct Buffer<'a, T> {
    room: &'a mut Room,
    heap: Option<Box<Heap<T>>>,
    /// Evicted values are at `..evicted`, clones at `next..end`; `evicted <= next`.
    evicted: usize,
    next: usize,
    end: usize,
}

impl<'a, T> Buffer<'a, T> {
    const ON_STACK: usize = {
        if align_of::<T>() > align_of::<u64>() {
            0
        } else {
            let size = if size_of::<T>() == 0 { 1 } else { size_of::<T>() };
            let places = WORDS * size_of::<u64>() / size;
            if std::mem::needs_drop::<T>() && places > OWNERS { OWNERS } else { places }
        }
    };

    /// An empty buffer for a publish of `payloads`.
    #[inline(always)]
    pub fn new(room: &'a mut Room, payloads: usize) -> Self {
        Self { room, heap: None, evicted: 0, next: payloads, end: payloads }
    }

    #[inline(always)]
    fn base(&mut self) -> *mut T {
        match &mut self.heap {
            Some(heap) => heap.values.as_mut_ptr(),
            None => self.room.values.as_mut_ptr().cast(),
        }
    }

    #[inline(always)]
    fn owners(&mut self) -> *mut u64 {
        match &mut self.heap {
            Some(heap) => heap.owners.as_mut_ptr(),
            None => self.room.owners.as_mut_ptr().cast(),
        }
    }

    /// Whether the array has this many places, with their owners.
    #[inline(always)]
    pub fn has_room(&self, places: usize) -> bool {
        self.heap.as_ref().map_or(places <= Self::ON_STACK, |heap| heap.has_room(places))
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
        if !self.has_room(places) {
            self.grow(places, pool);
        }
        let base = self.base();
        while self.end < places {
            let value = make(self.end - self.next);
            // SAFETY: `end < places`, and the array has `places` elements at least.
            let place = unsafe { base.add(self.end) };
            // SAFETY: the place is inside the array and holds nothing.
            unsafe { place.write(value) };
            self.end += 1;
        }
    }

    /// An array of `places`, with what is in the old one moved over.
    #[cold]
    fn grow(&mut self, places: usize, pool: &Pool<T>) {
        let mut heap = Heap::take(pool);
        heap.values.reserve(places);
        if std::mem::needs_drop::<T>() {
            // No owner is written yet: nothing is evicted before the last clone is made.
            heap.owners.reserve(places);
        }
        if self.end > self.next {
            // SAFETY: clones have been made, so the old array has `end` places, and the new one has more; they do not overlap.
            unsafe { std::ptr::copy_nonoverlapping(self.base(), heap.values.as_mut_ptr(), self.end) };
        }
        if let Some(old) = self.heap.replace(heap) {
            old.give(pool);
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

    /// Keeps a value that was evicted from `owner`'s ring for [`Self::clear`]: one at most for each payload and each clone taken so far.
    ///
    /// # Panics
    ///
    /// If there is no place for it: a fault of this crate.
    #[inline(always)]
    pub fn keep(&mut self, value: T, owner: u64) {
        assert!(std::mem::needs_drop::<T>() && self.evicted < self.next, "an evicted value has no place");
        assert!(self.has_room(self.evicted + 1), "an evicted value has no place");
        // SAFETY: inside the array, by the second assertion.
        let place = unsafe { self.base().add(self.evicted) };
        // SAFETY: before `next`, by the first assertion, and not before `evicted`, so the place holds nothing.
        unsafe { place.write(value) };
        // SAFETY: there are as many owners as places, for values that need to be dropped: the others are not kept.
        let place = unsafe { self.owners().add(self.evicted) };
        // SAFETY: inside the array.
        unsafe { place.write(owner) };
        self.evicted += 1;
    }

    /// Drops what is left, each value contained, and gives the arrays back; `panicked` hears of each destructor that panicked: whose
    /// value it was, or `None` for a clone that nobody got. Outside the sequencer only.
    #[inline]
    pub fn clear(&mut self, pool: &Pool<T>, panicked: impl FnMut(Option<u64>)) {
        self.drop_values(panicked);
        if let Some(heap) = self.heap.take() {
            heap.give(pool);
        }
    }

    #[inline]
    fn drop_values(&mut self, mut panicked: impl FnMut(Option<u64>)) {
        let (evicted, next, end) = (self.evicted, self.next, self.end);
        // Forgotten first: nothing is looked at twice, whatever happens.
        (self.evicted, self.end) = (0, next);
        if std::mem::needs_drop::<T>() {
            for at in (0..evicted).chain(next..end) {
                // SAFETY: inside the array.
                let place = unsafe { self.base().add(at) };
                // SAFETY: it holds a value, which is not looked at again.
                let value = unsafe { place.read() };
                if drop_contained(value) {
                    panicked((at < evicted).then(|| self.owner(at)));
                }
            }
        }
    }

    fn owner(&mut self, at: usize) -> u64 {
        // SAFETY: the caller's place holds an evicted value, so it is inside the array.
        let place = unsafe { self.owners().add(at) };
        // SAFETY: written with the value.
        unsafe { place.read() }
    }
}

impl<T> Drop for Buffer<'_, T> {
    fn drop(&mut self) {
        if std::mem::needs_drop::<T>() {
            self.drop_values(|_| ());
        }
    }
}

impl<T> std::fmt::Debug for Buffer<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { evicted, next, end, .. } = self;
        f.debug_struct("Buffer")
            .field("evicted", evicted)
            .field("clones", &(next..end))
            .finish_non_exhaustive()
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
            let keep = |buffer: &mut Buffer<'_, T>| {
                if std::mem::needs_drop::<T>() {
                    buffer.keep(make(), 7);
                }
            };
            let mut room = Room::new();
            let mut buffer = Buffer::new(&mut room, 2);
            buffer.fill(n, &pool, |_| make());
            buffer.fill(2 * n - 2, &pool, |_| make());
            assert_eq!(buffer.clones(), 2 * n - 2);
            for _payload in 0..2 {
                for _ in 1..n {
                    drop(buffer.take());
                    keep(&mut buffer);
                }
                keep(&mut buffer);
            }
            buffer.clear(&pool, |_| unreachable!("no destructor panics"));
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
            let mut room = Room::new();
            let mut buffer = Buffer::new(&mut room, 1);
            buffer.fill(300, &pool, |at| if at == 200 { panic!() } else { live.clone() });
        }));
        assert!(result.is_err());
        assert_eq!(Rc::strong_count(&live), 1);
    }

    #[test]
    fn arrays_return_to_the_pool() {
        let pool: Pool<String> = Pool::new(1);
        let mut room = Room::new();
        let mut buffer = Buffer::new(&mut room, 1);
        buffer.fill(99, &pool, |_| String::new());
        buffer.clear(&pool, |_| unreachable!("no destructor panics"));
        assert_eq!(pool.len(), 1);
    }

    #[test]
    fn a_panic_is_told_with_its_owner() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("bomb");
            }
        }
        for n in [3, 100] {
            let pool = Pool::new(1);
            let mut room = Room::new();
            let mut buffer = Buffer::new(&mut room, 1);
            buffer.fill(n, &pool, |_| Bomb);
            for owner in 0..n as u64 - 1 {
                std::mem::forget(buffer.take());
                buffer.keep(Bomb, owner);
            }
            let mut told = Vec::new();
            buffer.clear(&pool, |owner| told.push(owner));
            assert_eq!(told, (0..n as u64 - 1).map(Some).chain([None]).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_payload_without_a_size_has_places_too() {
        struct Unsized;
        impl Drop for Unsized {
            fn drop(&mut self) {}
        }
        round(2, || Unsized);
        round(500, || Unsized);
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
