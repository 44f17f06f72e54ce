//! The one place of a topic where its messages get their order: a short lock, and the count of sleeping workers in its word.
//!
//! # The park handshake
//!
//! The word is `{ sleepers, contended, locked }`. A worker that finds its ring empty says `PARKED` on its own parker, adds itself to
//! `sleepers` (W), and **looks again** at its ring before it sleeps. A publisher pushes, releases the lock (U), and looks at the
//! `sleepers` of the word that its release read: only if there are some, it looks for parked workers and wakes them. No fence, no flag
//! of a subscription is read on the hot path.
//!
//! Every change of the word is a read-modify-write that changes its value, so from any of them on the word's modification order is
//! one release sequence, and of U and W one is first (HANDSHAKE: both AcqRel):
//!
//! * **W first:** U reads W's count or one that follows from it. W's Release and U's Acquire put the worker's `PARKED` before the publisher's
//!   look at it: the worker is woken.
//! * **U first:** W reads U's word or one that follows from it. U's Release and W's Acquire put the pushes before the worker's second look at
//!   its ring: it does not sleep.
//!
//! It is a count and not a bit: the workers take it back themselves, so that a publisher that is stopped between U and the wake
//! does not keep the next one from waking. The read-modify-writes must change the value: a compiler may delete one that does not.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::backoff::Spin;
use crate::sync::atomic::Ordering;
use crate::sync::cell::UnsafeCell;
use crate::sync::futex::Futex;

/// Somebody is inside.
const LOCKED: u32 = 1;
/// Somebody may sleep on the word until it is free.
const CONTENDED: u32 = 2;
/// One sleeping worker.
const SLEEPER: u32 = 4;

/// A lock around `S`, entered by publishers and by whoever changes the topic's list.
#[derive(Debug)]
pub struct Sequencer<S> {
    /// `{ sleepers: 30, contended: 1, locked: 1 }`.
    word: Futex,
    state: UnsafeCell<S>,
}

// SAFETY: the state is reached through `Guard` only, and `LOCKED` admits one guard at a time, handed over by Acquire (LOCK) and
// Release (LOCK).
unsafe impl<S: Send> Sync for Sequencer<S> {}

impl<S> Sequencer<S> {
    /// An open sequencer.
    pub fn new(state: S) -> Self {
        Self { word: Futex::new(0), state: UnsafeCell::new(state) }
    }

    /// Enters, waiting for whoever is inside: first spinning, then asleep. One read-modify-write if nobody is.
    #[inline]
    pub fn lock(&self) -> Guard<'_, S> {
        // Acquire (LOCK): what the last holder left. It also continues the HANDSHAKE's release sequence.
        if self.word.fetch_or(LOCKED, Ordering::Acquire) & LOCKED != 0 {
            self.lock_slow();
        }
        Guard { sequencer: self, unlocked: false, state: PhantomData }
    }

    /// Enters if nobody is inside. One read-modify-write.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_, S>> {
        // Acquire (LOCK).
        let free = self.word.fetch_or(LOCKED, Ordering::Acquire) & LOCKED == 0;
        free.then(|| Guard { sequencer: self, unlocked: false, state: PhantomData })
    }

    #[cold]
    #[inline(never)]
    fn lock_slow(&self) {
        let mut spin = Spin::new();
        while spin.once() {
            // Relaxed: a look that does not take the line away from the holder; Acquire (LOCK) below.
            if self.word.load(Ordering::Relaxed) & LOCKED == 0
                && self.word.fetch_or(LOCKED, Ordering::Acquire) & LOCKED == 0
            {
                return;
            }
        }
        loop {
            // Whoever has been here takes the lock with `CONTENDED`: another one may sleep, and our release must wake it.
            // Acquire (LOCK).
            let word = self.word.fetch_or(LOCKED | CONTENDED, Ordering::Acquire);
            if word & LOCKED == 0 {
                return;
            }
            // A worker's coming and going changes the word and ends this wait early; then we look again.
            self.word.wait(word | LOCKED | CONTENDED);
        }
    }

    /// Adds a sleeper (W of the module's text). The caller has said `PARKED`, and looks again before it sleeps.
    pub fn add_sleeper(&self) {
        // AcqRel (HANDSHAKE).
        self.word.fetch_add(SLEEPER, Ordering::AcqRel);
    }

    /// Takes a sleeper back.
    pub fn remove_sleeper(&self) {
        // Relaxed: only continues the release sequence.
        self.word.fetch_sub(SLEEPER, Ordering::Relaxed);
    }

    #[inline]
    fn unlock(&self) -> bool {
        // U. Release (LOCK) hands the state over; AcqRel (HANDSHAKE), see the module's text.
        let word = self.word.fetch_sub(LOCKED, Ordering::AcqRel);
        if word & CONTENDED != 0 {
            self.wake_contender();
        }
        word >= SLEEPER
    }

    #[cold]
    fn wake_contender(&self) {
        // Relaxed: only continues the release sequence. One of the sleepers is woken and sets the bit again if it must wait on.
        self.word.fetch_and(!CONTENDED, Ordering::Relaxed);
        self.word.wake_one();
    }
}

/// The right to be inside.
#[derive(Debug)]
pub struct Guard<'a, S> {
    sequencer: &'a Sequencer<S>,
    unlocked: bool,
    /// It derefs to the state, so it is `Sync` only if that is; the sequencer always is.
    state: PhantomData<&'a mut S>,
}

impl<'a, S> Guard<'a, S> {
    /// Leaves; true if a worker sleeps, and the caller has to look for it.
    #[inline]
    pub fn unlock(mut self) -> bool {
        self.unlocked = true;
        self.sequencer.unlock()
    }

    /// The state, and the key to the cells that belong to this sequencer.
    #[inline]
    pub fn open(&mut self) -> (&mut S, Key<'_>) {
        let owner = self.sequencer.address();
        (self.deref_mut(), Key { owner, _guard: PhantomData })
    }
}

impl<S> Drop for Guard<'_, S> {
    #[inline]
    fn drop(&mut self) {
        if !self.unlocked {
            self.sequencer.unlock();
        }
    }
}

impl<S> Deref for Guard<'_, S> {
    type Target = S;

    #[inline]
    fn deref(&self) -> &S {
        self.sequencer.state.with(|state| {
            // SAFETY: we hold the lock, so nobody else has a reference but through us.
            unsafe { &*state }
        })
    }
}

impl<S> DerefMut for Guard<'_, S> {
    #[inline]
    fn deref_mut(&mut self) -> &mut S {
        self.sequencer.state.with_mut(|state| {
            // SAFETY: we hold the lock and are borrowed mutably.
            unsafe { &mut *state }
        })
    }
}

impl<S> Sequencer<S> {
    /// What tells this sequencer from every other one that lives.
    fn address(&self) -> usize {
        std::ptr::from_ref(&self.word).addr()
    }

    /// A cell that only a guard of this sequencer opens. It may live anywhere; it opens only while the sequencer is where it is now.
    pub fn cell<V>(&self, value: V) -> Sequenced<V> {
        Sequenced { owner: self.address(), value: UnsafeCell::new(value) }
    }
}

/// Borrowed from a [`Guard`]: opens the sequencer's cells, one at a time.
#[derive(Debug)]
pub struct Key<'g> {
    owner: usize,
    _guard: PhantomData<&'g mut ()>,
}

/// A value that lives outside the sequencer's state but is reached under its lock only.
#[derive(Debug)]
pub struct Sequenced<V> {
    owner: usize,
    value: UnsafeCell<V>,
}

// SAFETY: `open` needs the key of the owning sequencer, of which there is one at a time.
unsafe impl<V: Send> Sync for Sequenced<V> {}

impl<V> Sequenced<V> {
    /// The value.
    ///
    /// # Panics
    ///
    /// If `key` is another sequencer's: a fault of this crate.
    #[inline]
    pub fn open<'k>(&'k self, key: &'k mut Key<'_>) -> &'k mut V {
        assert!(self.owner == key.owner, "a cell was opened under a sequencer that is not its own");
        self.value.with_mut(|value| {
            // SAFETY: 1. The key is borrowed from the guard of the sequencer at `owner`. 2. Two sequencers that live at once have two
            // addresses, so no other guard passes the check. 3. The key is borrowed mutably as long as the reference lives.
            unsafe { &mut *value }
        })
    }
}
