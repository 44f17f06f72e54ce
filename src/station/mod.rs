//! The consuming end of a subscription, for its worker or its receiver: which message comes next, what its call led to, and sleeping
//! until there is something to do. What at-least-once adds is in [`redeliver`].

mod redeliver;

use crate::backoff::Spin;
use crate::clock::{Alarm, NEVER};
use crate::config::{Outcome, WaitStrategy};
use crate::control::{DETACHED, DRAIN, ORPHANED, STOP};
use crate::event::{Event, EventKind};
use crate::message::{MessageId, Meta};
use crate::panics::{Panic, contain};
use crate::pending::{Table, Ticket};
use crate::redelivery::Schedule;
use crate::ring::{Cursor, Spare, Taken};
use crate::subscription::Core;
use crate::sync::time::{self, Instant};
use crate::sync::weak::{Arc, Weak};
use crate::topic::TopicCore;
use crate::worker::as_worker;

/// The one owner of a subscription's cursor, spare slot and pending table.
pub struct Station<T> {
    pub core: Arc<Core<T>>,
    topic: Arc<TopicCore<T>>,
    cursor: Cursor,
    mode: Mode<T>,
    alarm: Weak<dyn Alarm>,
    /// The `seq` of the ring's first message.
    first_seq: u64,
    /// Whether anybody hears of drops.
    hooked: bool,
    /// Drops told to the hook; `None` while the ring keeps up.
    dropping: Option<u64>,
    seen_dropped: u64,
    stalled: bool,
    /// The clock, if it was read since the last call.
    now: Option<u64>,
}

/// What differs between the delivery modes.
pub enum Mode<T> {
    AtMostOnce { spare: Option<Spare<T>> },
    AtLeastOnce { schedule: Box<Schedule> },
}

/// What to do next.
pub enum Next<T> {
    /// Deliver this.
    Deliver(Taken<T>, Meta),
    /// Wait.
    Wait(Sleep),
    /// End.
    End,
}

/// How to wait.
#[derive(Debug, Clone, Copy)]
pub struct Sleep {
    /// Until this time at most.
    pub until: u64,
    /// No new message may be taken.
    pub stalled: bool,
    /// The control flags that were looked at.
    flags: u32,
}

/// How a call ended.
pub enum Ending {
    Returned(Outcome),
    Panicked(Panic),
}

const FLAGS: u32 = DETACHED | DRAIN | ORPHANED | STOP;

impl<T> Station<T> {
    /// The station of a subscription that has started.
    pub fn new(core: Arc<Core<T>>, cursor: Cursor, mode: Mode<T>) -> Option<Self> {
        let topic = core.edge()?.topic.clone();
        let parker: Arc<dyn Alarm> = core.parker.clone();
        let alarm = Arc::downgrade(&parker);
        let (first_seq, hooked) = (core.account.origin().first_seq, core.context.hook.is_some());
        Some(Self {
            core,
            topic,
            first_seq,
            hooked,
            cursor,
            mode,
            alarm,
            dropping: None,
            seen_dropped: 0,
            stalled: false,
            now: None,
        })
    }

    /// Whether the mode is at-least-once: the parameter `PENDING` of the calls below, which are compiled for each mode by itself.
    pub fn is_pending(&self) -> bool {
        matches!(self.mode, Mode::AtLeastOnce { .. })
    }

    /// What to do next. At most once, with a message that waits: two atomic loads and one compare-and-swap.
    #[inline(always)]
    pub fn next<const PENDING: bool>(&mut self) -> Next<T> {
        if self.hooked {
            self.tell_of_drops();
        }
        // After the hook, which may have ended this very subscription.
        let flags = self.core.control.flags() & FLAGS;
        if flags & (STOP | DRAIN) != 0 && self.is_over(flags) {
            return Next::End;
        }
        if PENDING {
            return self.next_pending(flags);
        }
        let before = self.cursor.position();
        let empty = self.spare().take();
        let taken = match empty.expect("the spare is back between calls").take(&mut self.cursor) {
            Ok(taken) => taken,
            Err(empty) => {
                *self.spare() = Some(empty);
                return self.idle(flags, NEVER, 0);
            }
        };
        let ticket = Ticket { entry: 0, generation: self.cursor.position() };
        let (seq, dropped_before) = self.place(before);
        let age = self.read_age(taken.tag());
        Next::Deliver(taken, Meta::new(ticket, seq, 1, dropped_before, age))
    }

    #[inline(always)]
    fn spare(&mut self) -> &mut Option<Spare<T>> {
        match &mut self.mode {
            Mode::AtMostOnce { spare } => spare,
            Mode::AtLeastOnce { .. } => unreachable!("at-least-once has its spares in the table"),
        }
    }

    /// The age of a message with this time stamp, recorded.
    #[inline]
    fn read_age(&mut self, tag: u64) -> Option<u64> {
        let (age, now) = self.core.account.record_age(tag, &self.core.context.clock)?;
        self.now = Some(now);
        Some(age)
    }

    /// Whether it has been stopped, or drains and its deadline has passed.
    #[cold]
    fn is_over(&self, flags: u32) -> bool {
        flags & STOP != 0 || self.core.context.clock.nanos() >= self.core.drain_deadline()
    }

    /// Whether a hook that has just run, or anybody else, has ended the subscription.
    fn is_stopped(&self) -> bool {
        self.core.control.has(STOP)
    }

    /// The `seq` of the message taken last, and what was evicted since `before`.
    #[inline]
    fn place(&self, before: u64) -> (u64, u64) {
        let position = self.cursor.position().wrapping_sub(1);
        (self.first_seq.wrapping_add(position), position.wrapping_sub(before))
    }

    /// Nothing to deliver: the end, if this was to be the last, else how to wait.
    #[inline(never)]
    fn idle(&mut self, flags: u32, until: u64, pending: usize) -> Next<T> {
        let closing = flags & DRAIN != 0
            || flags & ORPHANED != 0 && (flags & DETACHED != 0 || self.core.settings.receiver);
        // The flag was read before the ring was found empty, and nothing is pushed after it was raised.
        if closing && pending == 0 {
            return Next::End;
        }
        if self.dropping.take().is_some() {
            self.emit(EventKind::Recovered);
            if self.is_stopped() {
                return Next::End;
            }
        }
        let until = if flags & DRAIN != 0 { until.min(self.core.drain_deadline()) } else { until };
        Next::Wait(Sleep { until, stalled: false, flags })
    }

    /// A call begins: counted, and visible.
    #[inline]
    pub fn begin<const PENDING: bool>(&mut self, meta: &Meta) {
        let core = &self.core;
        let counts = &core.account.worker;
        counts.delivered.add();
        if PENDING && meta.attempt() > 1 {
            counts.redelivered.add();
        }
        if !PENDING && core.settings.receiver {
            // Nothing is in hand: the call that returns the message is all there is.
            return;
        }
        if PENDING && core.settings.needs_clock() || self.now.is_none() && core.context.clock.is_cheap() {
            self.now = Some(core.context.clock.nanos());
        }
        counts.in_handler(self.now);
    }

    /// A call has ended: what its ending means for the message.
    #[inline]
    pub fn conclude<const PENDING: bool>(&mut self, ticket: Ticket, taken: Taken<T>, ending: Ending) {
        let core = &self.core;
        core.account.worker.idle();
        if PENDING {
            self.conclude_pending(ticket, taken, &ending);
        } else {
            let counts = &core.account.worker;
            match &ending {
                Ending::Returned(Outcome::Handled) => {}
                Ending::Returned(Outcome::Failed) => counts.failed.add(),
                Ending::Returned(Outcome::Reject) => counts.rejected.add(),
                Ending::Panicked(_) => counts.panicked.add(),
            }
            let (empty, dropped) = taken.discard();
            if dropped.is_err() {
                core.account.shared.payload_panics.add();
            }
            *self.spare() = Some(empty);
        }
        self.now = None;
        if let Ending::Panicked(panic) = ending {
            let message = MessageId { subscription: self.core.account.id, ticket };
            self.emit(EventKind::HandlerPanicked { message, panic: panic.message() });
        }
    }

    /// Discards and counts what is queued, in place, after the list has been left: the end of a worker.
    pub fn discard(&mut self) {
        let Mode::AtMostOnce { spare } = &mut self.mode else { return self.discard_queued() };
        while let Some(empty) = spare.take() {
            match empty.take(&mut self.cursor) {
                Ok(message) => {
                    let (empty, dropped) = message.discard();
                    *spare = Some(empty);
                    let shared = &self.core.account.shared;
                    shared.discarded_queued.add();
                    if dropped.is_err() {
                        shared.payload_panics.add();
                    }
                }
                Err(_) => return,
            }
        }
    }

    /// Ends the call of a receiver: its payload, out of the ring; or, at least once, a clone, while the message waits for its ack. `None` if the
    /// clone panicked, which counts as a call that did.
    #[inline(always)]
    pub fn hand_out<const PENDING: bool>(&mut self, ticket: Ticket, taken: Taken<T>) -> Option<T> {
        if PENDING {
            return self.hand_out_clone(ticket, taken);
        }
        let (payload, empty) = taken.into_inner();
        *self.spare() = Some(empty);
        Some(payload)
    }

    #[inline(never)]
    fn hand_out_clone(&mut self, ticket: Ticket, taken: Taken<T>) -> Option<T> {
        // Like a handler: the clone may end or drain this subscription, and must not wait for itself.
        let clone = || as_worker(|| (self.core.context.payload.clone)(&taken));
        let (payload, ending) = match contain(clone) {
            Ok(payload) => (Some(payload), Ending::Returned(Outcome::Handled)),
            Err(panic) => (None, Ending::Panicked(panic)),
        };
        self.conclude::<true>(ticket, taken, ending);
        payload
    }

    /// Waits until there is something to do, or as `sleep` says, or until `limit` of the real clock. First spins, then sleeps; a `BusySpin` never does.
    pub fn wait(&mut self, sleep: Sleep, limit: Option<Instant>) {
        let core = &*self.core;
        let mut spin = Spin::new();
        loop {
            if self.has_work(sleep) {
                return;
            }
            let more = spin.once();
            if core.settings.wait_strategy == WaitStrategy::BusySpin && !sleep.stalled {
                if !more {
                    spin = Spin::new();
                    crate::sync::hint::spin_loop();
                    let due = sleep.until != NEVER && core.context.clock.nanos() >= sleep.until;
                    if due || limit.is_some_and(|limit| time::now() >= limit) {
                        return;
                    }
                }
            } else if !more {
                break;
            }
        }
        // See `parker` and `sequencer`: say `PARKED`, say so in the word of whoever can wake us, look again, sleep.
        if sleep.stalled {
            core.parker.prepare_deaf();
        } else {
            core.parker.prepare();
            self.topic.add_sleeper();
        }
        let quiet =
            core.table.as_ref().is_none_or(|table| table.await_mail(sleep.stalled || sleep.flags != 0));
        if quiet && !self.has_work(sleep) {
            let due = core.context.clock.due(sleep.until);
            core.parker.wait(&due, limit, &self.alarm);
        }
        core.parker.finish();
        if !sleep.stalled {
            self.topic.remove_sleeper();
        }
        if !core.context.clock.is_cheap() {
            self.now = Some(core.context.clock.nanos());
        }
    }

    /// Whether there is a reason not to sleep.
    #[inline]
    fn has_work(&self, sleep: Sleep) -> bool {
        self.core.control.flags() & FLAGS != sleep.flags
            || !sleep.stalled && self.core.ring.has_news(&self.cursor)
            || self.core.table.as_ref().is_some_and(Table::has_mail)
    }

    /// Tells the hook when drops begin.
    #[inline(never)]
    fn tell_of_drops(&mut self) {
        let dropped = self.core.ring.dropped();
        if dropped != self.seen_dropped {
            self.seen_dropped = dropped;
            if self.dropping.is_none() {
                self.dropping = Some(dropped);
                self.emit(EventKind::Dropping { dropped });
            }
        }
    }

    fn emit(&self, kind: EventKind) {
        let Core { account, context, .. } = &*self.core;
        as_worker(|| context.emit(|| Event { subscription: account.id, name: account.name.clone(), kind }));
    }
}
