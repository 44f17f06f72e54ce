//! Which message is delivered again, and when: the owner's view of its pending table, without atomics, threads or clocks.
//!
//! A message that is put back comes after every message that is queued at that moment (those before its *mark* in the ring) and, once its
//! delay is over, before those published later; messages put back together (at one mark, in one pass) keep the order in which they were
//! published.

#[cfg(any(all(test, not(loom)), fuzzing))]
pub mod model;
#[cfg(all(test, not(loom)))]
mod tests;

use std::collections::BTreeSet;

use crate::clock::NEVER;
use crate::pending::Ticket;

/// No entry, as a link.
const NONE: u32 = u32::MAX;

/// What the owner knows of the message in an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    pub ticket: Ticket,
    /// Its place in the ring when it was taken: the order of publishing.
    pub position: u64,
    /// Its time stamp, 0 for none.
    pub tag: u64,
    /// Deliveries begun.
    pub attempts: u32,
    place: Place,
}

/// Where an entry is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Nowhere,
    /// Waits for its ack: a link of the list by deadline.
    Awaiting {
        deadline: u64,
        before: u32,
        after: u32,
    },
    /// Put back, its delay not over.
    Delayed {
        due: u64,
        pass: u64,
        mark: u64,
    },
    /// Put back, next in turn.
    Ready {
        pass: u64,
        mark: u64,
    },
}

/// The lists of one table.
#[derive(Debug)]
pub struct Schedule {
    records: Box<[Record]>,
    free: Vec<u32>,
    /// The ends of the list of `Awaiting`: calls begin one after the other and all have the same timeout, so it is in order by itself.
    first: u32,
    last: u32,
    /// `{ due, entry }`.
    delayed: BTreeSet<(u64, u32)>,
    /// `{ mark, pass, position, entry }`.
    ready: BTreeSet<(u64, u64, u64, u32)>,
    pass: u64,
}

impl Schedule {
    /// For a table of `entries`, all free.
    pub fn new(entries: u32) -> Result<Self, std::collections::TryReserveError> {
        let (mut records, mut free) = (Vec::new(), Vec::new());
        records.try_reserve_exact(entries as usize)?;
        free.try_reserve_exact(entries as usize)?;
        free.extend((0..entries).rev());
        records.extend((0..entries).map(|entry| Record {
            ticket: Ticket { entry, generation: 0 },
            position: 0,
            tag: 0,
            attempts: 0,
            place: Place::Nowhere,
        }));
        let records = records.into_boxed_slice();
        let (delayed, ready) = (BTreeSet::new(), BTreeSet::new());
        Ok(Self { records, free, first: NONE, last: NONE, delayed, ready, pass: 0 })
    }

    /// A free entry, which stays free.
    pub fn free_entry(&self) -> Option<u32> {
        self.free.last().copied()
    }

    /// Entries in use.
    pub fn in_use(&self) -> usize {
        self.records.len() - self.free.len()
    }

    /// The record of an entry in use.
    pub fn record(&self, entry: u32) -> &Record {
        &self.records[entry as usize]
    }

    /// The entry that [`Self::free_entry`] gave holds a new message.
    pub fn accept(&mut self, ticket: Ticket, position: u64, tag: u64) {
        let entry = self.free.pop();
        debug_assert_eq!(entry, Some(ticket.entry));
        self.records[ticket.entry as usize] =
            Record { ticket, position, tag, attempts: 1, place: Place::Nowhere };
    }

    /// The entry's message is settled: it is free.
    pub fn release(&mut self, entry: u32) {
        self.unlist(entry);
        self.free.push(entry);
    }

    /// The entry's message is being settled or nacked by somebody else, whose mail will come: until then nothing is due.
    pub fn suspend(&mut self, entry: u32) {
        self.unlist(entry);
    }

    /// The entry's message waits for its ack.
    pub fn await_ack(&mut self, entry: u32, deadline: u64) {
        self.unlist(entry);
        // In order also where a clock or a caller is not: nothing expires before its turn.
        let deadline = match self.last {
            NONE => deadline,
            last => deadline.max(self.deadline(last)),
        };
        self.records[entry as usize].place = Place::Awaiting { deadline, before: self.last, after: NONE };
        match self.last {
            NONE => self.first = entry,
            last => *self.after(last) = entry,
        }
        self.last = entry;
    }

    /// A pass of the owner begins: what it puts back is put back together.
    pub fn begin_pass(&mut self) {
        self.pass += 1;
    }

    /// The entry's message is put back: behind what the ring has been pushed so far (`mark`), not before `due`.
    pub fn put_back(&mut self, entry: u32, due: u64, now: u64, mark: u64) {
        self.unlist(entry);
        let pass = self.pass;
        if due > now {
            self.delayed.insert((due, entry));
            self.records[entry as usize].place = Place::Delayed { due, pass, mark };
        } else {
            self.make_ready(entry, pass, mark);
        }
    }

    fn make_ready(&mut self, entry: u32, pass: u64, mark: u64) {
        let record = &mut self.records[entry as usize];
        self.ready.insert((mark, pass, record.position, entry));
        record.place = Place::Ready { pass, mark };
    }

    /// Moves those whose delay is over to their turn.
    pub fn ripen(&mut self, now: u64) {
        while let Some(&(due, entry)) = self.delayed.first()
            && due <= now
        {
            self.delayed.pop_first();
            let Place::Delayed { pass, mark, .. } = self.records[entry as usize].place else {
                unreachable!("a delayed entry is listed as one")
            };
            self.make_ready(entry, pass, mark);
        }
    }

    /// The first message whose time for an ack is over.
    pub fn expired(&self, now: u64) -> Option<Ticket> {
        (self.first != NONE && self.deadline(self.first) <= now)
            .then(|| self.records[self.first as usize].ticket)
    }

    /// The next message in turn to be delivered again, and its mark.
    pub fn next(&self) -> Option<(Ticket, u64)> {
        let &(.., entry) = self.ready.first()?;
        let record = &self.records[entry as usize];
        let Place::Ready { mark, .. } = record.place else { unreachable!("a ready entry is listed as one") };
        Some((record.ticket, mark))
    }

    /// Another delivery of the entry's message begins.
    pub fn redeliver(&mut self, entry: u32) {
        self.unlist(entry);
        let attempts = &mut self.records[entry as usize].attempts;
        *attempts = attempts.saturating_add(1);
    }

    /// When the owner has to look again, though nothing happens: [`NEVER`] if not at all.
    pub fn next_time(&self) -> u64 {
        let expiry = if self.first == NONE { NEVER } else { self.deadline(self.first) };
        self.delayed.first().map_or(NEVER, |&(due, _)| due).min(expiry)
    }

    fn deadline(&self, entry: u32) -> u64 {
        match self.records[entry as usize].place {
            Place::Awaiting { deadline, .. } => deadline,
            _ => unreachable!("a link that is not awaiting"),
        }
    }

    fn before(&mut self, entry: u32) -> &mut u32 {
        match &mut self.records[entry as usize].place {
            Place::Awaiting { before, .. } => before,
            _ => unreachable!("a link that is not awaiting"),
        }
    }

    fn after(&mut self, entry: u32) -> &mut u32 {
        match &mut self.records[entry as usize].place {
            Place::Awaiting { after, .. } => after,
            _ => unreachable!("a link that is not awaiting"),
        }
    }

    fn unlist(&mut self, entry: u32) {
        let record = &mut self.records[entry as usize];
        let position = record.position;
        match std::mem::replace(&mut record.place, Place::Nowhere) {
            Place::Nowhere => {}
            Place::Awaiting { before, after, .. } => {
                match before {
                    NONE => self.first = after,
                    before => *self.after(before) = after,
                }
                match after {
                    NONE => self.last = before,
                    after => *self.before(after) = before,
                }
            }
            Place::Delayed { due, .. } => {
                self.delayed.remove(&(due, entry));
            }
            Place::Ready { pass, mark } => {
                self.ready.remove(&(mark, pass, position, entry));
            }
        }
    }
}
