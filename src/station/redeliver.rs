//! At-least-once, seen from the consuming end: taking into the pending table, putting back, delivering again, giving up.
//!
//! The table (shared with ackers) decides who settles a message; the schedule (this side's own) says which comes next.
//!
//! There is no timer thread: a worker (or a receiver's call) that has an ack timeout or a delay running sleeps until then at most, by a timed wait on
//! its own word. So a deadline costs no thread, no lock and no hand-over, and nobody wakes for somebody else's.

use super::{Ending, Mode, Next, Sleep, Station};
use crate::clock::NEVER;
use crate::config::Outcome;
use crate::control::DRAIN;
use crate::event::EventKind;
use crate::message::{MessageId, Meta};
use crate::panics::{contain, drop_contained};
use crate::pending::{BACKOFF, Concluded, Mail, Nack, Table, Ticket, Verdict};
use crate::redelivery::Schedule;
use crate::ring::{Cursor, Taken};

impl<T> Station<T> {
    fn table(&self) -> &Table<T> {
        self.core.table.as_ref().expect("at-least-once has a pending table")
    }

    fn schedule(&mut self) -> &mut Schedule {
        match &mut self.mode {
            Mode::AtLeastOnce { schedule } => schedule,
            Mode::AtMostOnce { .. } => unreachable!("at-most-once has no schedule"),
        }
    }

    /// [`Station::next`], at least once.
    pub(super) fn next_pending(&mut self, flags: u32) -> Next<T> {
        self.read_mail();
        self.expire();
        loop {
            let counts = self.core.ring.counts();
            let full = self.unsettled() >= self.core.settings.max_pending;
            if !full && std::mem::take(&mut self.stalled) {
                self.core.account.worker.idle();
                self.emit(EventKind::Recovered);
            }
            if self.is_stopped() {
                return Next::End;
            }
            let free = self.schedule().free_entry().filter(|_| !full);
            let turn = self.schedule().next();
            if let Some((ticket, mark)) = turn {
                // What was queued when it was put back goes first, unless the limit keeps that from being taken.
                if free.is_none() || counts.depth == 0 || self.core.ring.oldest(counts) >= mark {
                    match self.deliver_again(ticket) {
                        Some(next) => return next,
                        None => continue,
                    }
                }
            }
            let Some(entry) = free else { return self.stall(flags) };
            // What was published after the one in turn was put back goes after it.
            let admit = |cursor: &Cursor| turn.is_none_or(|(_, mark)| cursor.position() < mark);
            if let Some(next) = self.accept(entry, admit) {
                return next;
            }
            // The queue ran empty, or was overtaken by publishes: now it is the turn of the other.
            if let Some((ticket, _)) = turn {
                match self.deliver_again(ticket) {
                    Some(next) => return next,
                    None => continue,
                }
            } else {
                let until = self.schedule().next_time();
                let unsettled = self.unsettled();
                return self.idle(flags, until, unsettled);
            }
        }
    }

    /// Messages that are not settled, as far as this side knows. An acker counts after it has settled, and for a message in its call it sends no
    /// mail; but that one this side has seen settled itself. So what either knows holds, and this side never sleeps on a count that nobody
    /// would wake it for.
    fn unsettled(&mut self) -> usize {
        self.schedule().in_use().min(self.core.account.pending())
    }

    /// A new message out of the ring.
    fn accept(&mut self, entry: u32, admit: impl Fn(&Cursor) -> bool) -> Option<Next<T>> {
        let before = self.cursor.position();
        let table = self.core.table.as_ref().expect("at-least-once has a pending table");
        let (ticket, taken) = table.accept(entry, &mut self.cursor, admit)?;
        self.core.account.worker.accepted.add();
        let (seq, dropped_before) = self.place(before);
        self.schedule().accept(ticket, seq, taken.tag());
        let age = self.read_age(taken.tag());
        Some(Next::Deliver(taken, Meta::new(ticket, seq, 1, dropped_before, age)))
    }

    /// No new message may be taken, and none is due again.
    fn stall(&mut self, flags: u32) -> Next<T> {
        if !std::mem::replace(&mut self.stalled, true) {
            self.emit(EventKind::StalledAtPendingLimit);
            if self.is_stopped() {
                return Next::End;
            }
        }
        self.core.account.worker.stalled();
        let until = self.schedule().next_time();
        let until = if flags & DRAIN != 0 { until.min(self.core.drain_deadline()) } else { until };
        Next::Wait(Sleep { until, stalled: true, flags })
    }

    /// Another delivery of a message; `None` if it was settled just now.
    fn deliver_again(&mut self, ticket: Ticket) -> Option<Next<T>> {
        let Some(taken) = self.table().redeliver(ticket) else {
            // Its acker mails it when it is done: until then it has no turn.
            self.schedule().suspend(ticket.entry);
            self.read_mail();
            return None;
        };
        self.schedule().redeliver(ticket.entry);
        let record = *self.schedule().record(ticket.entry);
        let age = self.read_age(record.tag);
        let (seq, attempt) = (record.position, record.attempts);
        Some(Next::Deliver(taken, Meta::new(ticket, seq, attempt, 0, age)))
    }

    /// Acts on what other threads have settled or nacked.
    fn read_mail(&mut self) {
        let Mode::AtLeastOnce { schedule } = &mut self.mode else { return };
        let Some(table) = &self.core.table else { return };
        let mut nacked = Vec::new();
        table.read_mail(|entry, mail| match mail {
            Mail::Freed => schedule.release(entry),
            Mail::Nacked(ticket, nack) => nacked.push((ticket, nack)),
        });
        if !nacked.is_empty() {
            self.schedule().begin_pass();
            for (ticket, nack) in nacked {
                self.put_back(ticket, nack);
            }
        }
    }

    /// Puts back whatever has waited for its ack too long, and finds whose delay is over.
    fn expire(&mut self) {
        if self.schedule().next_time() == NEVER {
            return;
        }
        let now = self.core.context.clock.nanos();
        self.schedule().ripen(now);
        self.schedule().begin_pass();
        while let Some(ticket) = self.schedule().expired(now) {
            if self.table().expire(ticket) {
                self.put_back(ticket, self.put_back_now(0));
            } else {
                // Settled or nacked just now: the mail says which.
                self.schedule().suspend(ticket.entry);
            }
        }
    }

    /// A message that this side puts back.
    fn put_back_now(&self, delay: u64) -> Nack {
        Nack { delay, at: self.core.context.clock.nanos(), mark: self.core.ring.end() }
    }

    /// Lists a message to be delivered again, or gives it up at its limit.
    fn put_back(&mut self, ticket: Ticket, Nack { delay, at, mark }: Nack) {
        let attempts = self.schedule().record(ticket.entry).attempts;
        if attempts >= self.core.settings.max_deliveries {
            match self.table().remove(ticket, || self.core.account.worker.dead.add()) {
                Some(taken) => self.bury(ticket, taken, attempts),
                None => self.schedule().suspend(ticket.entry),
            }
            return;
        }
        let delay = if delay == BACKOFF { self.core.settings.backoff.delay(attempts) } else { delay };
        let now = self.core.context.clock.nanos();
        self.schedule().put_back(ticket.entry, at.saturating_add(delay), now, mark);
    }

    /// Frees the entry of a message that was given up, and publishes it to the dead-letter topic, or drops it.
    fn bury(&mut self, ticket: Ticket, taken: Taken<T>, attempts: u32) {
        let message = MessageId { subscription: self.core.account.id, ticket };
        let published = match self.core.dead_letter.get() {
            Some(_) => self.publish_dead_letter(ticket, taken),
            None => {
                self.discard_taken(ticket, taken);
                true
            }
        };
        self.schedule().release(ticket.entry);
        if published {
            self.emit(EventKind::DeadLettered { message, attempts });
        } else {
            self.core.account.worker.dead_letter_failures.add();
            self.emit(EventKind::DeadLetterFailed { message });
        }
    }

    /// Drops a message in its place, and frees its entry.
    fn discard_taken(&mut self, ticket: Ticket, taken: Taken<T>) {
        let (spare, dropped) = taken.discard();
        self.table().restore(ticket, spare);
        if dropped.is_err() {
            self.core.account.shared.payload_panics.add();
        }
    }

    /// As any publisher, outside every lock. Apart, since the payload goes through this stack, which may have no room for a large one.
    #[inline(never)]
    fn publish_dead_letter(&mut self, ticket: Ticket, taken: Taken<T>) -> bool {
        let target = self.core.dead_letter.get().expect("looked at before");
        let (payload, spare) = taken.into_inner();
        self.table().restore(ticket, spare);
        // A `Clone` that panics has unwound with nothing published, and took the payload with it.
        let published = contain(|| (self.core.context.payload.publish)(target, payload));
        let Ok(Err(payload)) = published else { return matches!(published, Ok(Ok(()))) };
        if drop_contained(payload) {
            self.core.account.shared.payload_panics.add();
        }
        false
    }

    /// Discards and counts what is queued, in place: [`Station::discard`], at least once.
    pub(super) fn discard_queued(&mut self) {
        while let Some(entry) = self.schedule().free_entry() {
            let table = self.core.table.as_ref().expect("at-least-once has a pending table");
            let Some((ticket, taken)) = table.accept(entry, &mut self.cursor, |_| true) else { return };
            self.core.account.shared.discarded_queued.add();
            self.discard_taken(ticket, taken);
        }
    }

    /// [`Station::conclude`], at least once.
    pub(super) fn conclude_pending(&mut self, ticket: Ticket, taken: Taken<T>, ending: &Ending) {
        let attempts = self.schedule().record(ticket.entry).attempts;
        let core = &*self.core;
        let (counts, shared) = (&core.account.worker, &core.account.shared);
        let rejected = matches!(ending, Ending::Returned(Outcome::Reject));
        let verdict = match ending {
            Ending::Returned(Outcome::Handled) if core.settings.ack_on_success => Verdict::Ack,
            Ending::Returned(Outcome::Handled) => Verdict::Await,
            Ending::Returned(Outcome::Reject) => Verdict::Remove,
            _ if attempts >= core.settings.max_deliveries => Verdict::Remove,
            _ => Verdict::PutBack,
        };
        let concluded = self.table().conclude(ticket, taken, verdict, || match verdict {
            Verdict::Ack => shared.acked.add(),
            Verdict::Remove if rejected => counts.rejected.add(),
            Verdict::Remove => counts.dead.add(),
            Verdict::Await | Verdict::PutBack => {}
        });
        match ending {
            Ending::Panicked(_) => counts.panicked.add(),
            Ending::Returned(Outcome::Failed) => counts.failed.add(),
            // A `Reject` that came too late to settle anything.
            _ if rejected && !matches!(concluded, Concluded::Removed(_)) => counts.failed.add(),
            Ending::Returned(_) => {}
        }
        match concluded {
            Concluded::AckedBefore(panicked) | Concluded::Acked(panicked) => {
                if panicked {
                    shared.payload_panics.add();
                }
                self.schedule().release(ticket.entry);
            }
            Concluded::Awaiting => {
                let deadline = self.now.unwrap_or(0).saturating_add(core.settings.ack_timeout);
                self.schedule().await_ack(ticket.entry, deadline);
            }
            Concluded::PutBack => {
                self.schedule().begin_pass();
                self.put_back(ticket, self.put_back_now(BACKOFF));
            }
            Concluded::Nacked(nack) => {
                self.schedule().begin_pass();
                self.put_back(ticket, nack);
            }
            // It comes with the mail.
            Concluded::Nacking => {}
            Concluded::Removed(taken) => self.bury(ticket, taken, attempts),
        }
    }
}
