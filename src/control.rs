//! The life of a subscription in one word, and waiting for its turns.

use crate::clock::{Alarm, Clock, Due};
use crate::sync::atomic::Ordering;
use crate::sync::futex::Futex;
use crate::sync::weak::Weak;

/// In the list of its topic: the worker may begin.
pub const STARTED: u32 = 1;
/// Without a guard: it ends by itself once it is orphaned, empty, and nothing is pending.
pub const DETACHED: u32 = 1 << 1;
/// Nobody is left who could publish.
pub const ORPHANED: u32 = 1 << 2;
/// Deliver what is queued, wait for what is pending, then end.
pub const DRAIN: u32 = 1 << 3;
/// End at the next message boundary, and discard the rest.
pub const STOP: u32 = 1 << 4;
/// No handler call runs or will, the handler is gone, what was left has been discarded and counted.
pub const ENDED: u32 = 1 << 5;
/// One ring of the clock: changes the word, so that nobody sleeps through it.
const RUNG: u32 = 1 << 8;

/// The word. Flags are only ever added; each says what has become true for good.
#[derive(Debug)]
pub struct Control {
    /// `{ rings of the clock: 24, flags: 8 }`.
    word: Futex,
}

impl Control {
    /// A subscription that has not started.
    pub fn new() -> Self {
        Self { word: Futex::new(0) }
    }

    /// The flags that are up (and the clock's rings).
    #[inline]
    pub fn flags(&self) -> u32 {
        // Acquire (CONTROL): what was done before a flag was raised.
        self.word.load(Ordering::Acquire)
    }

    /// Whether any of `flags` is up.
    #[inline]
    pub fn has(&self, flags: u32) -> bool {
        self.flags() & flags != 0
    }

    /// Raises `flag`, and wakes whoever waits here; false if it was up already.
    pub fn raise(&self, flag: u32) -> bool {
        // AcqRel (CONTROL): Release hands over what was done before; a read-modify-write, so that flags raised at once all stay.
        let before = self.word.fetch_or(flag, Ordering::AcqRel);
        self.word.wake_all();
        before & flag == 0
    }

    /// Waits until one of `flags` is up.
    pub fn wait_for(&self, flags: u32) {
        loop {
            let word = self.flags();
            if word & flags != 0 {
                return;
            }
            self.word.wait(word);
        }
    }

    /// Waits until one of `flags` is up, or `time` of `clock` has come; true if a flag is up. `alarm` is this word's owner.
    pub fn wait(&self, flags: u32, clock: &Clock, time: u64, alarm: &Weak<dyn Alarm>) -> bool {
        loop {
            let word = self.flags();
            if word & flags != 0 {
                return true;
            }
            match clock.due(time) {
                Due::Never => self.word.wait(word),
                _ if clock.nanos() >= time => return false,
                Due::At(instant) => self.word.wait_until(word, instant),
                Due::ByHand(hand, time) => {
                    if hand.register(time, alarm, true) {
                        self.word.wait(word);
                    }
                }
            }
        }
    }
}

impl Alarm for Control {
    fn ring(&self) {
        // Relaxed: says only "look again"; the clock's own ordering carries the time.
        self.word.fetch_add(RUNG, Ordering::Relaxed);
        self.word.wake_all();
    }
}
