//! Where a worker sleeps: one word, one thread that sleeps on it, any number that wake it.
//!
//! Two kinds of waker use it. **Publishers** of the worker's ring look at the count of sleepers in the sequencer's word first (see
//! [`crate::sequencer`]) and call [`Parker::wake_if_parked`] only if somebody sleeps. **Everybody else** (acks, stop, a clock moved by
//! hand) stores what it has to say and calls [`Parker::wake`].
//!
//! # The race of `wake` against going to sleep
//!
//! Both sides change the one word by a read-modify-write (SLEEP: AcqRel), so one of them is first. If the waker's is first, the worker's
//! [`Parker::prepare`] reads what it wrote and, by Acquire, sees what was said before; the worker looks again after `prepare`, and does
//! not sleep. If the worker's is first, the waker reads `PARKED` and wakes. That the worker's return ([`Parker::finish`]) is a swap and not
//! a store keeps the same true for the next sleep: a store would not see what a waker said at that moment.

use crate::clock::{Alarm, Due};
use crate::sync::atomic::Ordering;
use crate::sync::futex::Futex;
use crate::sync::time::{self, Instant};
use crate::sync::weak::Weak;

const AWAKE: u32 = 0;
const PARKED: u32 = 1;
const PARKED_DEAF: u32 = 2;

/// One sleeper's bed.
#[derive(Debug)]
pub struct Parker {
    /// `AWAKE`: the worker runs, or has been woken. `PARKED`: it sleeps or is about to, and looks again before it does. `PARKED_DEAF`: the same, but
    /// messages are nothing to it: publishers leave it alone. The worker sets these two and takes them back; a waker only ever makes it `AWAKE`.
    state: Futex,
}

impl Parker {
    /// A parker whose thread is awake.
    pub fn new() -> Self {
        Self { state: Futex::new(AWAKE) }
    }

    /// The sleeper's first step: from now on wakers wake it. It must look once more for work before [`Self::wait`].
    pub fn prepare(&self) {
        // AcqRel (SLEEP): see the module's text.
        self.state.swap(PARKED, Ordering::AcqRel);
    }

    /// [`Self::prepare`], for a sleeper that could not take a message now: publishers, who may be looking for its neighbours, do not wake it.
    pub fn prepare_deaf(&self) {
        // AcqRel (SLEEP): as above.
        self.state.swap(PARKED_DEAF, Ordering::AcqRel);
    }

    /// Sleeps until woken, or due, or until `limit` of real time. `alarm` is this parker, for a clock that is moved by hand.
    pub fn wait(&self, due: &Due<'_>, limit: Option<Instant>, alarm: &Weak<dyn Alarm>) {
        if let Due::ByHand(clock, time) = due
            && !clock.register(*time, alarm, false)
        {
            return;
        }
        let deadline = match due {
            Due::At(instant) => Some(limit.map_or(*instant, |limit| limit.min(*instant))),
            Due::Never | Due::ByHand(..) => limit,
        };
        // Relaxed: only a hint to sleep on; `finish` takes the wakers' news.
        loop {
            let state = self.state.load(Ordering::Relaxed);
            match deadline {
                _ if state == AWAKE => return,
                None => self.state.wait(state),
                Some(deadline) if time::now() >= deadline => return,
                Some(deadline) => self.state.wait_until(state, deadline),
            }
        }
    }

    /// The sleeper's last step, slept or not.
    pub fn finish(&self) {
        // AcqRel (SLEEP): Acquire takes what the waker said. A swap, see the module's text.
        self.state.swap(AWAKE, Ordering::AcqRel);
    }

    /// Wakes the sleeper if it sleeps: for publishers, who know from the sequencer's word that somebody does. One
    /// compare-and-swap, and one syscall if it slept.
    pub fn wake_if_parked(&self) {
        // Relaxed: after the handshake in the sequencer's word, `PARKED` or what a later waker made of it is seen.
        // Success: Release, the next publisher's or the worker's read-modify-write continues from here; Acquire is not needed.
        if self.state.load(Ordering::Relaxed) == PARKED
            && self.state.compare_exchange(PARKED, AWAKE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            self.state.wake_one();
        }
    }

    /// Wakes the sleeper, also one that is about to sleep: for whoever has just stored something for it to see. One swap, and
    /// one syscall if it slept.
    pub fn wake(&self) {
        // AcqRel (SLEEP): Release hands over what was stored before.
        if self.state.swap(AWAKE, Ordering::AcqRel) != AWAKE {
            self.state.wake_one();
        }
    }
}

impl Alarm for Parker {
    fn ring(&self) {
        self.wake();
    }
}
