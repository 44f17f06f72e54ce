//! The pending table of an at-least-once subscription: fixed size, a message in each entry that is in use, and one word an entry
//! that decides who settles it.
//!
//! The worker (or the receiver's call) **owns** the table: it alone takes messages into it, redelivers, and reuses entries. Any thread **settles**: an
//! ack or a nack is one compare-and-swap of the entry's word. Whoever changes a word from `AWAITING` or `PUT_BACK` to a state that is in
//! progress has the message to itself: an acker drops it there and then. What the owner has to know of is **mailed**: the entry's number goes onto a
//! lock-free stack, which the owner empties at once (so that its links are never reused under anybody's eyes).
//!
//! # Orderings
//!
//! HOLD: a change to `AWAITING`, `PUT_BACK` or `SETTLED` is a Release, every change from them an Acquire: the message (or the empty slot) in
//! `hold` moves with the word. MAIL: pushing is a Release and emptying an Acquire; both are read-modify-writes on one word, and so is the owner's
//! note that it is about to sleep, so one of them is first. If the push is, the owner finds it when it looks again; if the note is, the pusher
//! reads it and wakes the owner.

#[cfg(any(all(test, not(loom)), fuzzing))]
pub mod model;
#[cfg(all(test, not(loom)))]
mod tests;

use crate::clock::NEVER;
use crate::error::AckError;
use crate::ring::{Cursor, Spare, Taken};
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::cell::UnsafeCell;

/// The delay of a `nack` that leaves it to the configured back-off.
pub const BACKOFF: u64 = NEVER - 1;

/// Nothing is in it; the owner may use it. `hold` is the owner's.
const FREE: u64 = 0;
/// Its message is with a call that runs. `hold` is the owner's.
const IN_HANDLER: u64 = 1;
/// The same, and acked meanwhile: settled, freed when the call returns.
const ACKED: u64 = 2;
/// The same, and a nacker is writing its delay.
const NACKING_IN_HANDLER: u64 = 3;
/// The same, and nacked meanwhile.
const NACKED_IN_HANDLER: u64 = 4;
/// Waits for its ack. `hold` goes to whoever changes the word.
const AWAITING: u64 = 5;
/// Waits to be delivered again; an ack still settles it. `hold` goes to whoever changes the word.
const PUT_BACK: u64 = 6;
/// A nacker is writing its delay. `hold` goes to whoever changes the word: that is the nacker, or the owner at the end.
const NACKING: u64 = 7;
/// Waits to be delivered again because somebody asked for it: only the owner goes on.
const NACKED: u64 = 8;
/// Acked: its acker is dropping the message. `hold` is the acker's.
const SETTLING: u64 = 9;
/// Acked, its slot empty, mailed: the owner may use it again once it has read its mail. `hold` is the owner's.
const SETTLED: u64 = 10;
const STATE_BITS: u32 = 4;
const STATE: u64 = (1 << STATE_BITS) - 1;

/// No entry, as a link.
const NONE: u32 = u32::MAX;
/// In the mail word: the owner sleeps and wants to know of settlements.
const WANTS_SETTLED: u64 = 1 << 32;
/// In the mail word: the owner sleeps and wants to know of nacks.
const WANTS_NACKED: u64 = 1 << 33;
const WANTS: u64 = WANTS_SETTLED | WANTS_NACKED;

/// The part that is shared.
#[derive(Debug)]
pub struct Table<T> {
    entries: Box<[Entry<T>]>,
    /// `{ wants: 2, newest mailed entry: 32 }`.
    mail: AtomicU64,
}

#[derive(Debug)]
struct Entry<T> {
    /// `{ generation: 60, state: 4 }`. The generation tells the messages apart that used the entry one after the other.
    word: AtomicU64,
    /// Of a nack: see [`Nack`]. Written by the one nacker that has changed the word to `NACKING`.
    nack: [AtomicU64; 3],
    /// The next older mailed entry.
    next: AtomicU32,
    hold: UnsafeCell<Hold<T>>,
}

/// What an entry has.
#[derive(Debug)]
enum Hold<T> {
    /// An empty slot to take the next message with.
    Spare(Spare<T>),
    /// A message.
    Message(Taken<T>),
    /// Nothing: it is with a call.
    Lent,
}

// SAFETY: `hold` is reached by one thread at a time, as the states say; payloads move between threads with it.
unsafe impl<T: Send> Sync for Table<T> {}

/// What a nack asks for, and when it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nack {
    /// Nanoseconds, or [`BACKOFF`].
    pub delay: u64,
    /// The clock at that moment.
    pub at: u64,
    /// The position of the ring's next push at that moment.
    pub mark: u64,
}

/// A message of the table: its entry and its generation there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// The entry's number.
    pub entry: u32,
    /// Which of the messages that used the entry one after the other.
    pub generation: u64,
}

impl Ticket {
    fn word(self, state: u64) -> u64 {
        self.generation << STATE_BITS | state
    }
}

/// What the end of a call means for its message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It waits for an ack.
    Await,
    /// It is settled.
    Ack,
    /// It is delivered again.
    PutBack,
    /// It is given up.
    Remove,
}

/// What has become of a message after its call.
#[derive(Debug)]
pub enum Concluded<T> {
    /// Settled in the call by an ack. Dropped; true if its destructor panicked.
    AckedBefore(bool),
    /// The verdict `Ack` settled it. Dropped; true if its destructor panicked.
    Acked(bool),
    /// It waits for its ack.
    Awaiting,
    /// Put back, by the verdict.
    PutBack,
    /// Put back, by a nack in the call.
    Nacked(Nack),
    /// A nacker is at it: it comes with the mail.
    Nacking,
    /// Given up: the message, for [`Table::restore`].
    Removed(Taken<T>),
}

/// News of an entry.
#[derive(Debug, PartialEq, Eq)]
pub enum Mail {
    /// It was acked, and is free again.
    Freed,
    /// It was nacked, and waits to be delivered again.
    Nacked(Ticket, Nack),
}

/// Whether the owner must be woken.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub struct Wake(pub bool);

impl<T> Table<T> {
    /// A table with one entry for each of `spares`.
    pub fn new(spares: Vec<Spare<T>>) -> Result<Self, std::collections::TryReserveError> {
        let mut entries = Vec::new();
        entries.try_reserve_exact(spares.len())?;
        entries.extend(spares.into_iter().map(|spare| Entry {
            word: AtomicU64::new(FREE),
            nack: std::array::from_fn(|_| AtomicU64::new(0)),
            next: AtomicU32::new(NONE),
            hold: UnsafeCell::new(Hold::Spare(spare)),
        }));
        Ok(Self { entries: entries.into_boxed_slice(), mail: AtomicU64::new(NONE.into()) })
    }

    /// The number of entries.
    pub fn len(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Exchanges what an entry holds. The caller must be the one that the entry's state names.
    fn swap_hold(&self, entry: u32, hold: Hold<T>) -> Hold<T> {
        self.entries[entry as usize].hold.with_mut(|cell| {
            // SAFETY: one thread at a time, by the states (every caller says which one makes it that thread).
            unsafe { std::mem::replace(&mut *cell, hold) }
        })
    }

    /// Drops the message that an entry holds, which is the caller's; true if its destructor panicked.
    fn empty(&self, entry: u32) -> bool {
        let Hold::Message(message) = self.swap_hold(entry, Hold::Lent) else {
            unreachable!("an entry lost its message")
        };
        let (spare, dropped) = message.discard();
        self.swap_hold(entry, Hold::Spare(spare));
        dropped.is_err()
    }

    fn change(&self, ticket: Ticket, from: u64, to: u64) -> bool {
        let word = &self.entries[ticket.entry as usize].word;
        // AcqRel (HOLD). Failure: Relaxed, the caller looks again.
        word.compare_exchange(ticket.word(from), ticket.word(to), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    fn state(&self, ticket: Ticket) -> Option<u64> {
        let entry = self.entries.get(ticket.entry as usize)?;
        // Acquire: a settled state is seen with what its settler counted.
        let word = entry.word.load(Ordering::Acquire);
        (word >> STATE_BITS == ticket.generation).then_some(word & STATE)
    }
}

/// By any thread.
impl<T> Table<T> {
    /// Settles a message; whether its destructor panicked, and whether the owner must be woken. `count` is called as soon as it is settled.
    ///
    /// # Errors
    ///
    /// [`AckError::NotPending`].
    pub fn ack(&self, ticket: Ticket, count: impl FnOnce()) -> Result<(bool, Wake), AckError> {
        loop {
            match self.state(ticket) {
                Some(IN_HANDLER) if self.change(ticket, IN_HANDLER, ACKED) => {
                    count();
                    return Ok((false, Wake(false)));
                }
                Some(from @ (AWAITING | PUT_BACK)) if self.change(ticket, from, SETTLING) => {
                    count();
                    // Ours by `SETTLING`.
                    let panicked = self.empty(ticket.entry);
                    // Release (HOLD). A plain store: nobody else changes `SETTLING`.
                    self.entries[ticket.entry as usize].word.store(ticket.word(SETTLED), Ordering::Release);
                    return Ok((panicked, self.mail(ticket.entry, WANTS_SETTLED)));
                }
                // Another thread was faster: look again.
                Some(IN_HANDLER | AWAITING | PUT_BACK) => {}
                _ => return Err(AckError::NotPending),
            }
        }
    }

    /// Has a message delivered again, as `nack` says.
    ///
    /// # Errors
    ///
    /// [`AckError::NotPending`].
    pub fn nack(&self, ticket: Ticket, nack: Nack) -> Result<Wake, AckError> {
        loop {
            let entered = match self.state(ticket) {
                Some(IN_HANDLER) => self.change(ticket, IN_HANDLER, NACKING_IN_HANDLER),
                Some(AWAITING) => self.change(ticket, AWAITING, NACKING),
                _ => return Err(AckError::NotPending),
            };
            if entered {
                break;
            }
        }
        for (place, part) in
            self.entries[ticket.entry as usize].nack.iter().zip([nack.delay, nack.at, nack.mark])
        {
            // Relaxed: published by the word's change.
            place.store(part, Ordering::Relaxed);
        }
        if self.change(ticket, NACKING_IN_HANDLER, NACKED_IN_HANDLER) {
            // The owner sees it when the call returns.
            return Ok(Wake(false));
        }
        if self.change(ticket, NACKING, NACKED) {
            return Ok(self.mail(ticket.entry, WANTS_NACKED));
        }
        // The owner ended the subscription meanwhile.
        Err(AckError::NotPending)
    }

    fn mail(&self, entry: u32, wanted: u64) -> Wake {
        let next = &self.entries[entry as usize].next;
        // Relaxed: the compare-and-swap below decides.
        let mut head = self.mail.load(Ordering::Relaxed);
        loop {
            // Relaxed: published by the push.
            next.store(head as u32, Ordering::Relaxed);
            let new = head & WANTS | u64::from(entry);
            // Release (MAIL): the link, and the entry's state. Acquire: the owner's note comes with its `PARKED`.
            match self.mail.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Wake(head & wanted != 0),
                Err(now) => head = now,
            }
        }
    }
}

/// By the owner. Two threads must not be owner at once, which the station that owns a table sees to.
impl<T> Table<T> {
    /// Takes the next message of the ring into the free `entry`; `None` if `admit` refuses it or none waits. The message is lent to the caller
    /// for a call.
    pub fn accept(
        &self,
        entry: u32,
        cursor: &mut Cursor,
        admit: impl Fn(&Cursor) -> bool,
    ) -> Option<(Ticket, Taken<T>)> {
        // Ours by `FREE`.
        let Hold::Spare(spare) = self.swap_hold(entry, Hold::Lent) else {
            unreachable!("a free entry has a message")
        };
        match spare.take_if(cursor, admit) {
            Ok(message) => {
                let word = &self.entries[entry as usize].word;
                // Relaxed: only the owner changes a free entry.
                let generation = (word.load(Ordering::Relaxed) >> STATE_BITS) + 1;
                let ticket = Ticket { entry, generation };
                // Release: an ack that sees the id sees the entry in use. A plain store: nobody else changes a free entry.
                word.store(ticket.word(IN_HANDLER), Ordering::Release);
                Some((ticket, message))
            }
            Err(spare) => {
                self.swap_hold(entry, Hold::Spare(spare));
                None
            }
        }
    }

    /// Ends the call of a message. `Awaiting`, `PutBack`, `Nacked` and `Nacking` keep it in the table; the others free the entry. `count` is
    /// called as soon as the verdict `Ack` or `Remove` has settled it.
    pub fn conclude(
        &self,
        ticket: Ticket,
        message: Taken<T>,
        verdict: Verdict,
        count: impl FnOnce(),
    ) -> Concluded<T> {
        self.swap_hold(ticket.entry, Hold::Message(message));
        loop {
            // The call's entry changes only from one of its five states to another, so its generation is ours.
            match (self.state(ticket).expect("an entry was reused during its call"), verdict) {
                (ACKED, _) => return Concluded::AckedBefore(self.release(ticket)),
                (from @ (IN_HANDLER | NACKED_IN_HANDLER), Verdict::Remove) => {
                    if self.change(ticket, from, SETTLING) {
                        count();
                        return Concluded::Removed(self.lend(ticket));
                    }
                }
                (NACKED_IN_HANDLER, _) => {
                    let nack = self.read_nack(ticket.entry);
                    if self.change(ticket, NACKED_IN_HANDLER, NACKED) {
                        return Concluded::Nacked(nack);
                    }
                }
                (NACKING_IN_HANDLER, _) => {
                    if self.change(ticket, NACKING_IN_HANDLER, NACKING) {
                        return Concluded::Nacking;
                    }
                }
                (IN_HANDLER, Verdict::Ack) => {
                    if self.change(ticket, IN_HANDLER, SETTLING) {
                        count();
                        return Concluded::Acked(self.release(ticket));
                    }
                }
                (IN_HANDLER, Verdict::Await) => {
                    if self.change(ticket, IN_HANDLER, AWAITING) {
                        return Concluded::Awaiting;
                    }
                }
                (IN_HANDLER, Verdict::PutBack) => {
                    if self.change(ticket, IN_HANDLER, PUT_BACK) {
                        return Concluded::PutBack;
                    }
                }
                (state, _) => unreachable!("state {state} after a call"),
            }
        }
    }

    /// What the nack of an entry that is `NACKED` says.
    fn read_nack(&self, entry: u32) -> Nack {
        // Relaxed: published by the word.
        let [delay, at, mark] =
            self.entries[entry as usize].nack.each_ref().map(|part| part.load(Ordering::Relaxed));
        Nack { delay, at, mark }
    }

    /// Frees an entry that is the owner's, and drops its message; true if its destructor panicked.
    fn release(&self, ticket: Ticket) -> bool {
        let panicked = self.empty(ticket.entry);
        self.free(ticket);
        panicked
    }

    /// The message of an entry that is the owner's.
    fn lend(&self, ticket: Ticket) -> Taken<T> {
        let Hold::Message(message) = self.swap_hold(ticket.entry, Hold::Lent) else {
            unreachable!("an entry lost its message")
        };
        message
    }

    /// Frees an entry whose message was lent and is gone.
    pub fn restore(&self, ticket: Ticket, spare: Spare<T>) {
        self.swap_hold(ticket.entry, Hold::Spare(spare));
        self.free(ticket);
    }

    fn free(&self, ticket: Ticket) {
        // Release: an ack that comes too late sees it. A plain store: the entry is the owner's.
        self.entries[ticket.entry as usize].word.store(ticket.word(FREE), Ordering::Release);
    }

    /// Puts back a message whose time for an ack is over; false if it was settled or nacked just now.
    pub fn expire(&self, ticket: Ticket) -> bool {
        self.change(ticket, AWAITING, PUT_BACK)
    }

    /// Lends a message that was put back for another call; `None` if it was acked just now.
    pub fn redeliver(&self, ticket: Ticket) -> Option<Taken<T>> {
        if !(self.change(ticket, PUT_BACK, IN_HANDLER) || self.change(ticket, NACKED, IN_HANDLER)) {
            return None;
        }
        Some(self.lend(ticket))
    }

    /// Gives up a message that is not in a call; `None` if it was settled just now, or a nacker is at it. `count` is called as soon as it is settled.
    pub fn remove(&self, ticket: Ticket, count: impl FnOnce()) -> Option<Taken<T>> {
        let ours = [PUT_BACK, NACKED, AWAITING].into_iter().any(|from| self.change(ticket, from, SETTLING));
        ours.then(|| {
            count();
            self.lend(ticket)
        })
    }

    /// Discards every message that is not in a call, for the end; how many there were and how many destructors panicked. Other threads may do the
    /// same at once.
    pub fn discard_all(&self, mut count: impl FnMut(bool)) {
        for entry in 0..self.len() {
            // Relaxed: the changes below decide.
            let generation = self.entries[entry as usize].word.load(Ordering::Relaxed) >> STATE_BITS;
            let ticket = Ticket { entry, generation };
            if [AWAITING, PUT_BACK, NACKING, NACKED]
                .into_iter()
                .any(|from| self.change(ticket, from, SETTLING))
            {
                count(self.empty(entry));
                // Release (HOLD). Not mailed: no more messages come. A plain store: nobody else changes `SETTLING`.
                self.entries[entry as usize].word.store(ticket.word(SETTLED), Ordering::Release);
            }
        }
    }

    /// Reads the mail, oldest last. One atomic load if there is none.
    pub fn read_mail(&self, mut reader: impl FnMut(u32, Mail)) {
        // Relaxed: a look; the swap decides.
        if self.mail.load(Ordering::Relaxed) == u64::from(NONE) {
            return;
        }
        // Acquire (MAIL). The owner is awake, so the notes go too.
        let mut entry = self.mail.swap(NONE.into(), Ordering::AcqRel) as u32;
        while entry != NONE {
            let Entry { word, next, .. } = &self.entries[entry as usize];
            // Relaxed: published by the push. Read before the entry is free to be mailed again.
            let after = next.load(Ordering::Relaxed);
            // Acquire (HOLD).
            let now = word.load(Ordering::Acquire);
            let ticket = Ticket { entry, generation: now >> STATE_BITS };
            if now & STATE == SETTLED {
                self.free(ticket);
                reader(entry, Mail::Freed);
            } else if now & STATE == NACKED {
                reader(entry, Mail::Nacked(ticket, self.read_nack(entry)));
            }
            entry = after;
        }
    }

    /// Whether there is mail. One atomic load.
    pub fn has_mail(&self) -> bool {
        // Relaxed: a hint before sleeping, where `await_mail` decides, and while spinning.
        self.mail.load(Ordering::Relaxed) as u32 != NONE
    }

    /// Notes that the owner is about to sleep, and wants to be woken by nacks, and by settlements if `settled`; false if there is mail already. To
    /// be called after the owner has said `PARKED`.
    pub fn await_mail(&self, settled: bool) -> bool {
        let wants = if settled { WANTS } else { WANTS_NACKED };
        // AcqRel (MAIL): see the module's text.
        self.mail.fetch_or(wants, Ordering::AcqRel) as u32 == NONE
    }
}
