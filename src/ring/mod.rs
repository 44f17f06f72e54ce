//! The ring of one subscription: bounded, lock-free, drop-oldest, any payload inline, nothing allocated per message.
//!
//! # The index swap
//!
//! The ring has `capacity` **entries**, one atomic word each, and more **slots** than entries. Every slot is owned by exactly one of: an
//! entry, the producer (its spare), a consumer's [`Spare`], or a [`Taken`] message. Ownership moves by exchanging slot numbers
//! in one entry word, so each position's fate (taken or evicted) is decided by one atomic operation on one word:
//!
//! * **push** writes the value into the producer's spare, which nobody else can see, then publishes `{ lap, spare, full }` in the
//!   entry: by a plain store if the entry is empty (consumers never write an empty entry), by a swap if it is full. The slot that the
//!   old word named is the new spare. If the old word was full, that was the oldest message: evicted.
//! * **take** exchanges its own spare for the slot of a full entry by one compare-and-swap. The message is then the consumer's, and is
//!   handled, and stays pending, in place: a consumer that is stopped anywhere costs the producer nothing.
//!
//! Push is wait-free: a load, then a store or a swap. Take is lock-free: a failed compare-and-swap means that an eviction or another
//! take succeeded. The idea is that of LTTng's overwrite mode (a reader exchanges its own sub-buffer for the writer's), at the size
//! of a slot.
//!
//! # Orderings
//!
//! PUBLISH: the producer's Release on the entry pairs with a consumer's Acquire on it: the payload written before is seen.
//! RETURN: a take's Release on the entry pairs with the producer's Acquire on it: whatever the consumer did to the slot that it gave
//! back happened before the producer writes it. From the other side: if the push's load comes first, it sees a full entry, and its
//! swap decides against the take's compare-and-swap on the same word; one of them fails or sees the other's word.

#[cfg(any(all(test, not(loom)), fuzzing))]
pub mod model;
#[cfg(all(test, not(loom)))]
mod tests;
mod word;

use std::collections::TryReserveError;
use std::fmt;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};

use crossbeam_utils::CachePadded;

use crate::panics::{Panic, contain};
use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::cell::{UnsafeCell, uninit_cells};
pub use word::Cursor;
use word::{FULL, MAX_SLOTS, Shape, TAGGED};

/// What producer, consumers and readers of metrics share.
pub struct Ring<V> {
    shape: Shape,
    /// The position of the first push.
    start: u64,
    /// Word of each position, `{ lap, slot, tagged, full }`. Full: published, waiting. Empty: taken in this lap, or not
    /// reached by it. Only the producer fills, only takes empty.
    entries: Box<[AtomicU64]>,
    slots: Box<[UnsafeCell<MaybeUninit<V>>]>,
    /// A number beside a slot, read by anyone while its message waits; empty if the ring has no tags.
    tags: Box<[AtomicU64]>,
    producer: CachePadded<ProducerCounts>,
    /// Takes by the consumer; one writer.
    taken: CachePadded<AtomicU64>,
    /// Takes by [`Producer::reclaim`].
    reclaimed: AtomicU64,
}

/// Written under the producer's exclusion only, read by anyone.
#[derive(Default)]
struct ProducerCounts {
    pushed: AtomicU64,
    dropped: AtomicU64,
}

// SAFETY: A payload is only ever reached by the one owner of its slot, and moves between threads with it: `V: Send` is enough.
// What is shared by reference (words, tags, counts) is atomic.
unsafe impl<V: Send> Sync for Ring<V> {}
// SAFETY: As above; dropping the ring drops the payloads that still wait, on the dropping thread.
unsafe impl<V: Send> Send for Ring<V> {}

/// The counts of a ring at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Messages pushed.
    pub pushed: u64,
    /// Messages evicted by a push onto a full ring.
    pub dropped: u64,
    /// Messages that wait.
    pub depth: usize,
}

impl Counts {
    /// Messages that have left.
    pub fn left(self) -> u64 {
        self.pushed.wrapping_sub(self.depth as u64)
    }
}

/// The one right to push.
pub struct Producer<V> {
    spare: Spare<V>,
    next: Cursor,
    reclaim: Cursor,
}

/// An empty slot, owned: the price of taking a message.
pub struct Spare<V> {
    ring: Arc<Ring<V>>,
    slot: u32,
}

/// A message that has left the ring, owned, in its slot.
pub struct Taken<V> {
    ring: Arc<Ring<V>>,
    slot: u32,
    tag: u64,
    /// It derefs to its payload, so it is `Sync` only if that is; the ring always is.
    payload: PhantomData<V>,
}

/// A ring of exactly `capacity` messages, its producer, a cursor at its start, and `spares` spare slots. With `tagged`, there is a
/// number beside each message (8 bytes a slot). The one place where the ring allocates.
#[allow(clippy::type_complexity, reason = "the parts are taken apart where they are made")]
pub fn ring<V>(
    capacity: usize,
    spares: usize,
    tagged: bool,
) -> Result<(Producer<V>, Cursor, Vec<Spare<V>>), RingTooLarge> {
    ring_from(capacity, spares, tagged, 0)
}

/// [`ring`], at any position: for tests of what happens when laps wrap.
#[allow(clippy::type_complexity, reason = "as above")]
pub fn ring_from<V>(
    capacity: usize,
    spares: usize,
    tagged: bool,
    start: u64,
) -> Result<(Producer<V>, Cursor, Vec<Spare<V>>), RingTooLarge> {
    debug_assert!(capacity > 0 && spares > 0);
    let slots = capacity.checked_add(spares).and_then(|slots| slots.checked_add(1)).ok_or(RingTooLarge)?;
    if slots > MAX_SLOTS
        || slots.checked_mul(size_of::<V>().max(1)).is_none_or(|bytes| bytes > isize::MAX as usize)
    {
        return Err(RingTooLarge);
    }
    // First what is largest, so that a size that cannot be had is refused before anything is written.
    let cells = uninit_cells(slots)?;
    let shape = Shape::new(capacity as u32, slots as u32);
    let start = shape.cursor(start);
    let words = (0..capacity as u32).map(|at| shape.first_word(&start, at));
    let ring = Arc::new(Ring {
        shape,
        start: start.position(),
        entries: try_collect(capacity, words.map(AtomicU64::new))?,
        slots: cells,
        tags: if tagged {
            try_collect(slots, (0..slots).map(|_| AtomicU64::new(0)))?
        } else {
            Box::default()
        },
        producer: CachePadded::default(),
        taken: CachePadded::default(),
        reclaimed: AtomicU64::new(0),
    });
    let mut free = Vec::new();
    free.try_reserve_exact(spares)?;
    free.extend((capacity + 1..slots).map(|slot| Spare { ring: ring.clone(), slot: slot as u32 }));
    let spare = Spare { ring, slot: capacity as u32 };
    Ok((Producer { spare, next: start.clone(), reclaim: start.clone() }, start, free))
}

fn try_collect<I>(count: usize, items: impl Iterator<Item = I>) -> Result<Box<[I]>, TryReserveError> {
    let mut all = Vec::new();
    all.try_reserve_exact(count)?;
    all.extend(items);
    Ok(all.into_boxed_slice())
}

/// More slots than a ring can have, or than the allocator gives.
#[derive(Debug, PartialEq, Eq)]
pub struct RingTooLarge;

impl From<TryReserveError> for RingTooLarge {
    fn from(_: TryReserveError) -> Self {
        Self
    }
}

impl<V> Producer<V> {
    /// Appends `value`; true if the ring was full and its oldest message made way. That message goes to `evicted`, unless dropping it
    /// is nothing to do. A `tag` other than 0 stands beside the message, where the ring has tags. Wait-free: one atomic load and one store,
    /// or one swap if the ring is full.
    #[inline(always)]
    pub fn push(&mut self, value: V, tag: u64, evicted: impl FnOnce(V)) -> bool {
        self.spare.write(value);
        let ring = &*self.spare.ring;
        let mut flags = FULL;
        if tag != 0 && !ring.tags.is_empty() {
            // Release (TAG): who reads this tag for the slot's former message finds the entry changed.
            ring.tags[self.spare.slot as usize].store(tag, Ordering::Release);
            flags |= TAGGED;
        }
        let new = ring.shape.word(&self.next, self.spare.slot, flags);
        debug_assert!(self.next.at() < ring.entries.len());
        // SAFETY: the producer's own cursor, made for this ring: below its capacity, which is the number of entries.
        let entry = unsafe { ring.entries.get_unchecked(self.next.at()) };
        // Acquire (RETURN): the slot named here may be one that a consumer gave back.
        let mut old = entry.load(Ordering::Acquire);
        if old & FULL == 0 {
            // Release (PUBLISH): the payload. A store is enough: nobody else writes an empty entry.
            entry.store(new, Ordering::Release);
        } else {
            // Release (PUBLISH), Acquire (RETURN, and PUBLISH of our own thread's predecessor): a take may have come between.
            old = entry.swap(new, Ordering::AcqRel);
        }
        ring.shape.advance(&mut self.next);
        self.spare.slot = ring.shape.slot(old);
        // Relaxed: one writer; readers of metrics want a recent value.
        let pushed = ring.producer.pushed.load(Ordering::Relaxed);
        // Release (COUNTS): a reader that sees this push sees the drops before it.
        ring.producer.pushed.store(pushed.wrapping_add(1), Ordering::Release);
        if old & FULL == 0 {
            return false;
        }
        // Relaxed: one writer. Release (COUNTS): see `Ring::counts`.
        let dropped = ring.producer.dropped.load(Ordering::Relaxed);
        ring.producer.dropped.store(dropped.wrapping_add(1), Ordering::Release);
        if std::mem::needs_drop::<V>() {
            // SAFETY: the full word named this slot as one that holds a message, and the exchange made it ours, once.
            evicted(unsafe { self.spare.read() });
        }
        true
    }

    /// Takes the oldest message, as a consumer would, for whoever clears a ring that has no consumer at hand. Lock-free.
    pub fn reclaim(&mut self) -> Option<V> {
        let Self { spare, reclaim, .. } = self;
        let ring = spare.ring.clone();
        let (slot, _) = ring.claim(reclaim, spare.slot, |_| true)?;
        spare.slot = slot;
        // Relaxed: a counter. It has one writer at a time, and the order to the claim does not matter to a quiet reader.
        ring.reclaimed.fetch_add(1, Ordering::Relaxed);
        // SAFETY: `claim` gave us a slot that holds a message, once.
        Some(unsafe { spare.read() })
    }

    /// The ring.
    pub fn ring(&self) -> &Arc<Ring<V>> {
        &self.spare.ring
    }
}

impl<V> Spare<V> {
    /// Exchanges this spare for the oldest message that waits at or after `cursor`, and moves the cursor past it; gives the spare back if
    /// there is none. Messages that were evicted meanwhile are skipped: the cursor's position tells how many. Lock-free: one
    /// atomic load and one compare-and-swap.
    #[inline(always)]
    pub fn take(self, cursor: &mut Cursor) -> Result<Taken<V>, Self> {
        self.take_if(cursor, |_| true)
    }

    /// [`Self::take`], of a message at a place that `admit` allows.
    #[inline(always)]
    pub fn take_if(self, cursor: &mut Cursor, admit: impl Fn(&Cursor) -> bool) -> Result<Taken<V>, Self> {
        let Some((slot, tagged)) = self.ring.claim(cursor, self.slot, admit) else { return Err(self) };
        // Relaxed: one writer. Release (COUNTS): see `Ring::counts`.
        let taken = self.ring.taken.load(Ordering::Relaxed);
        self.ring.taken.store(taken.wrapping_add(1), Ordering::Release);
        // Relaxed: written before the word that we have read with Acquire, and not again while the slot is ours.
        let tag = if tagged { self.ring.tags[slot as usize].load(Ordering::Relaxed) } else { 0 };
        Ok(Taken { ring: self.ring, slot, tag, payload: PhantomData })
    }

    #[inline(always)]
    fn write(&mut self, value: V) {
        self.ring.slot(self.slot).with_mut(|cell| {
            // SAFETY: the slot is ours alone (the invariant of the module's text), and empty: nothing is overwritten undropped.
            unsafe { (*cell).write(value) };
        });
    }

    /// # Safety
    ///
    /// The slot must hold a message, and be treated as empty from now on.
    #[inline(always)]
    unsafe fn read(&mut self) -> V {
        self.ring.slot(self.slot).with_mut(|cell| {
            // SAFETY: initialised, by the caller's word; ours alone, so not read twice.
            unsafe { cell.cast::<V>().read() }
        })
    }
}

impl<V> Ring<V> {
    #[inline(always)]
    fn slot(&self, slot: u32) -> &UnsafeCell<MaybeUninit<V>> {
        debug_assert!((slot as usize) < self.slots.len());
        // SAFETY: slot numbers are made by `ring_from`, below the number of slots, and from then on only exchanged.
        unsafe { self.slots.get_unchecked(slot as usize) }
    }

    /// Takes the oldest message at or after `cursor` in exchange for the empty slot `spare`, which the caller owns: the slot of the
    /// message, then the caller's, and whether it has a tag. `None` if no message waits, or `admit` refuses the place of the oldest.
    #[inline(always)]
    fn claim(&self, cursor: &mut Cursor, spare: u32, admit: impl Fn(&Cursor) -> bool) -> Option<(u32, bool)> {
        loop {
            let entry = &self.entries[cursor.at()];
            // Acquire (PUBLISH): the payload, if the word is full.
            let word = entry.load(Ordering::Acquire);
            let ahead = self.shape.laps_ahead(word, cursor);
            if ahead > 0 {
                self.shape.catch_up(cursor, ahead);
            } else if ahead < 0 || !admit(cursor) {
                return None;
            } else if word & FULL == 0 {
                // Taken in this lap by another consumer.
                self.shape.advance(cursor);
            } else {
                let emptied = self.shape.with_slot(word, spare);
                // Success: Release (RETURN) gives our spare to the producer; Acquire (PUBLISH). Failure: Relaxed, we look again.
                if entry.compare_exchange(word, emptied, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                    self.shape.advance(cursor);
                    return Some((self.shape.slot(word), word & TAGGED != 0));
                }
            }
        }
    }

    /// Whether a take at `cursor` would find something to do. One atomic load.
    #[inline]
    pub fn has_news(&self, cursor: &Cursor) -> bool {
        // Acquire (PUBLISH): after it the take finds the message.
        let word = self.entries[cursor.at()].load(Ordering::Acquire);
        self.shape.laps_ahead(word, cursor) >= 0
    }

    /// The position of the oldest message that waits, or else of the next push; a recent one.
    pub fn oldest(&self, counts: Counts) -> u64 {
        self.start.wrapping_add(counts.left())
    }

    /// The position of the next push; a recent one.
    pub fn end(&self) -> u64 {
        self.start.wrapping_add(self.pushed())
    }

    /// The messages that the ring holds at most.
    pub fn capacity(&self) -> usize {
        self.shape.capacity() as usize
    }

    /// Messages pushed.
    pub fn pushed(&self) -> u64 {
        // Acquire (COUNTS): see `counts`.
        self.producer.pushed.load(Ordering::Acquire)
    }

    /// Messages evicted.
    pub fn dropped(&self) -> u64 {
        // Acquire (COUNTS): see `counts`.
        self.producer.dropped.load(Ordering::Acquire)
    }

    /// The counts, exact when no push or take is in progress, else each a recent value with `depth` kept within its bounds.
    pub fn counts(&self) -> Counts {
        // Acquire (COUNTS): what has left is read before what came in, and a count seen implies those before it: what left is part
        // of what came in, but for what is between its exchange and its count.
        let taken = self.taken.load(Ordering::Acquire);
        let dropped = self.dropped();
        // Relaxed: changes only when the ring is being cleared.
        let reclaimed = self.reclaimed.load(Ordering::Relaxed);
        let pushed = self.pushed();
        let waiting = pushed.saturating_sub(taken).saturating_sub(dropped).saturating_sub(reclaimed);
        Counts { pushed, dropped, depth: usize::try_from(waiting).unwrap_or(usize::MAX).min(self.capacity()) }
    }

    /// The tag of the oldest message that waits, if it has one. Lock-free; gives up (as if there were none) when the ring moves on
    /// under its eyes more than a few times.
    pub fn oldest_tag(&self) -> Option<u64> {
        for _ in 0..8 {
            let counts = self.counts();
            if counts.depth == 0 {
                return None;
            }
            let cursor = self.shape.cursor(self.oldest(counts));
            // Acquire (PUBLISH): the tag was written before the word.
            let word = self.entries[cursor.at()].load(Ordering::Acquire);
            if word & FULL == 0 || self.shape.laps_ahead(word, &cursor) != 0 {
                continue;
            }
            if word & TAGGED == 0 {
                return None;
            }
            // Acquire (TAG): a tag of a later message brings the changed word with it.
            let tag = self.tags[self.shape.slot(word) as usize].load(Ordering::Acquire);
            // Relaxed: see TAG.
            if self.entries[cursor.at()].load(Ordering::Relaxed) == word {
                return Some(tag);
            }
        }
        None
    }
}

impl<V> Taken<V> {
    /// The tag that was pushed with it; 0 if none.
    #[inline]
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// Takes the message out of its slot.
    #[inline(always)]
    pub fn into_inner(self) -> (V, Spare<V>) {
        let mut spare = self.into_spare();
        // SAFETY: the slot held a message, ours alone, and is a spare from now on.
        (unsafe { spare.read() }, spare)
    }

    /// Drops the message in its slot. The spare is good also if the destructor panicked.
    #[inline(always)]
    pub fn discard(self) -> (Spare<V>, Result<(), Panic>) {
        let spare = self.into_spare();
        if !std::mem::needs_drop::<V>() {
            return (spare, Ok(()));
        }
        let outcome = contain(|| spare.ring.drop_in_place(spare.slot));
        (spare, outcome)
    }

    #[inline(always)]
    fn into_spare(self) -> Spare<V> {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is not used again and its own drop does not run, so the reference count moves, once.
        let ring = unsafe { std::ptr::read(&raw const this.ring) };
        Spare { ring, slot: this.slot }
    }
}

impl<V> Ring<V> {
    /// Drops the message of `slot`, whose owner calls this once.
    fn drop_in_place(&self, slot: u32) {
        self.slot(slot).with_mut(|cell| {
            // SAFETY: called by the slot's one owner (`Taken`, or the dropping ring), for a slot that holds a message, once.
            unsafe { cell.cast::<V>().drop_in_place() };
        });
    }
}

impl<V> std::ops::Deref for Taken<V> {
    type Target = V;

    #[inline]
    fn deref(&self) -> &V {
        self.ring.slot(self.slot).with(|cell| {
            // SAFETY: the slot is ours, holds a message, and nobody writes it while we are borrowed.
            unsafe { &*cell.cast::<V>() }
        })
    }
}

impl<V> Drop for Taken<V> {
    /// The safety net of unwinding: the message goes, its slot is lost to the ring.
    fn drop(&mut self) {
        self.ring.drop_in_place(self.slot);
    }
}

impl<V> Drop for Ring<V> {
    fn drop(&mut self) {
        for at in 0..self.entries.len() {
            // Relaxed: `&mut self`; the reference count ordered every other use before this.
            let word = self.entries[at].load(Ordering::Relaxed);
            if word & FULL != 0 {
                // A panic in one destructor must not keep the others from running.
                let _ = contain(|| self.drop_in_place(self.shape.slot(word)));
            }
        }
    }
}

impl<V> fmt::Debug for Ring<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("shape", &self.shape)
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

impl<V> fmt::Debug for Producer<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer")
            .field("next", &self.next)
            .field("spare", &self.spare.slot)
            .finish_non_exhaustive()
    }
}

impl<V> fmt::Debug for Spare<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Spare").field(&self.slot).finish()
    }
}

impl<V> fmt::Debug for Taken<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Taken").field(&self.slot).finish()
    }
}
