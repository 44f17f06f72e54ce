//! What a subscription is and what it has done: the part of it that outlives it, for metrics.

use std::fmt;
use std::panic::Location;
use std::time::Duration;

use crossbeam_utils::CachePadded;

use crate::age::Ages;
use crate::clock::Clock;
use crate::config::DeliveryMode;
use crate::error::AckError;
use crate::message::{MessageId, SubscriptionId};
use crate::metrics::{SubscriptionMetrics, SubscriptionState};
use crate::ring::Counts;
use crate::sync::OnceLock;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::weak::{Arc, Weak};

/// What can be done to a subscription from afar, whatever its payload's type. Weak references to it keep nothing alive.
pub trait Remote: Send + Sync {
    /// Settles a message.
    fn ack(&self, id: MessageId) -> Result<(), AckError>;
    /// Has a message delivered again; the delay as the interface has it.
    fn nack(&self, id: MessageId, delay: Option<Duration>) -> Result<(), AckError>;
    /// Its numbers now.
    fn metrics(&self) -> SubscriptionMetrics;
    /// Begins its end; true for the call that did it.
    fn stop(&self) -> bool;
}

/// Where messages come from.
#[derive(Debug)]
pub struct Origin {
    pub name: Arc<str>,
    pub incarnation: u64,
    /// The `seq` of the ring's first message.
    pub first_seq: u64,
}

/// What does not change, and the counters.
pub struct Account {
    pub id: SubscriptionId,
    pub name: Arc<str>,
    pub filter: String,
    pub mode: DeliveryMode,
    pub subscribed_at: &'static Location<'static>,
    pub capacity: usize,
    pub max_pending: usize,
    /// Written by the one thread that delivers.
    pub worker: CachePadded<WorkerCounts>,
    /// Written by whoever settles or discards.
    pub shared: CachePadded<SharedCounts>,
    /// Made for the first message with a time stamp: most of the memory of a subscription that has had none.
    ages: OnceLock<Ages>,
    /// Known once it has started.
    pub origin: OnceLock<Origin>,
    /// The subscription itself.
    pub remote: Weak<dyn Remote>,
    /// `{ pushed, dropped }` of the ring at the end, when the ring is gone.
    last: [AtomicU64; 2],
}

/// A counter with one writer at a time.
#[derive(Debug, Default)]
pub struct Tally(AtomicU64);

impl Tally {
    /// One more.
    #[inline]
    pub fn add(&self) {
        // Relaxed: one writer. Release: a reader that sees a later event sees the earlier ones of this thread.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// So many more.
    pub fn add_many(&self, more: u64) {
        // As `add`.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(more), Ordering::Release);
    }

    /// So far.
    #[inline]
    pub fn get(&self) -> u64 {
        // Acquire: see `add`.
        self.0.load(Ordering::Acquire)
    }
}

/// A counter with many writers.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// One more.
    #[inline]
    pub fn add(&self) {
        // AcqRel: as `Tally::add`, and the settlements of one thread are seen with those that it has seen.
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// So far.
    #[inline]
    pub fn get(&self) -> u64 {
        // Acquire: see `add`.
        self.0.load(Ordering::Acquire)
    }
}

/// Counted by the thread that delivers.
#[derive(Debug, Default)]
pub struct WorkerCounts {
    /// Calls begun.
    pub delivered: Tally,
    pub redelivered: Tally,
    pub failed: Tally,
    pub panicked: Tally,
    pub rejected: Tally,
    /// Messages that became pending.
    pub accepted: Tally,
    pub dead: Tally,
    pub dead_letter_failures: Tally,
    /// `IDLE`, `IN_HANDLER` or `STALLED`.
    state: AtomicU32,
    /// The clock when the running call began.
    since: AtomicU64,
}

/// Counted by any thread.
#[derive(Debug, Default)]
pub struct SharedCounts {
    pub acked: Count,
    /// Discarded from the queue.
    pub discarded_queued: Count,
    /// Discarded while pending.
    pub discarded_pending: Count,
    pub payload_panics: Count,
}

const IDLE: u32 = 0;
const IN_HANDLER: u32 = 1;
const STALLED: u32 = 2;

impl WorkerCounts {
    #[inline]
    fn set_state(&self, state: u32) {
        // Relaxed: one writer, and a reader wants the state of about now. Release: with the counts before it.
        self.state.store(state, Ordering::Release);
    }

    /// Between calls.
    #[inline]
    pub fn idle(&self) {
        self.set_state(IDLE);
    }

    /// A call begins; `now` is the clock, if it has been read.
    #[inline]
    pub fn in_handler(&self, now: Option<u64>) {
        if let Some(now) = now {
            // Relaxed: published by the state's Release.
            self.since.store(now, Ordering::Relaxed);
        }
        self.set_state(IN_HANDLER);
    }

    /// No new message may be taken.
    pub fn stalled(&self) {
        self.set_state(STALLED);
    }
}

impl Account {
    #[allow(clippy::too_many_arguments, reason = "the one constructor of a plain record")]
    pub fn new(
        id: SubscriptionId,
        name: Arc<str>,
        filter: String,
        mode: DeliveryMode,
        subscribed_at: &'static Location<'static>,
        capacity: usize,
        max_pending: usize,
        remote: Weak<dyn Remote>,
    ) -> Self {
        let (worker, shared) = (CachePadded::default(), CachePadded::default());
        let last = [AtomicU64::new(0), AtomicU64::new(0)];
        let (origin, ages) = (OnceLock::new(), OnceLock::new());
        Self {
            id,
            name,
            filter,
            mode,
            subscribed_at,
            capacity,
            max_pending,
            worker,
            shared,
            ages,
            origin,
            remote,
            last,
        }
    }

    /// Where its messages come from: known to whoever has one.
    pub fn origin(&self) -> &Origin {
        self.origin.get().expect("a subscription with a message has started")
    }

    /// Its numbers: of the subscription while there is one, else the final ones.
    pub fn read(&self) -> SubscriptionMetrics {
        match self.remote.upgrade() {
            Some(remote) => remote.metrics(),
            None => self.metrics(self.last_counts(), None, true),
        }
    }

    /// Messages pending now.
    #[inline]
    pub fn pending(&self) -> usize {
        if self.mode == DeliveryMode::AtMostOnce {
            return 0;
        }
        // What has left is read before what came in, so a difference is never negative but for moments; clamped for those.
        let settled = self.shared.acked.get()
            + self.worker.rejected.get()
            + self.worker.dead.get()
            + self.shared.discarded_pending.get();
        let pending = self.worker.accepted.get().saturating_sub(settled);
        usize::try_from(pending).unwrap_or(usize::MAX)
    }

    /// Keeps the ring's last counts.
    pub fn close(&self, counts: Counts) {
        // Release: read by whoever sees the end, or the subscription gone.
        self.last[0].store(counts.pushed, Ordering::Release);
        self.last[1].store(counts.dropped, Ordering::Release);
    }

    /// The ring's last counts.
    pub fn last_counts(&self) -> Counts {
        // Acquire: see `close`.
        let [pushed, dropped] = [0, 1].map(|at: usize| self.last[at].load(Ordering::Acquire));
        Counts { pushed, dropped, depth: 0 }
    }

    /// Everything, with the ring's `counts` and the age of its oldest message.
    pub fn metrics(
        &self,
        counts: Counts,
        oldest_queued_age: Option<u64>,
        ended: bool,
    ) -> SubscriptionMetrics {
        let (worker, shared) = (&self.worker, &self.shared);
        // Acquire: with the counts before it.
        let (state, in_hand) = match worker.state.load(Ordering::Acquire) {
            _ if ended => (SubscriptionState::Ended, 0),
            IN_HANDLER => {
                // Relaxed: published by the state.
                let since = Duration::from_nanos(worker.since.load(Ordering::Relaxed));
                (SubscriptionState::InHandler { since }, 1)
            }
            STALLED => (SubscriptionState::StalledAtPendingLimit, 0),
            _ => (SubscriptionState::Idle, 0),
        };
        let (pending, acked) = if ended {
            // Whatever was taken and has not left in another way was acked, also if its acker has not come to count it yet: the final
            // numbers stay as they are. (A receiver may have been ended in the middle of a call.)
            let in_call = u64::from(worker.state.load(Ordering::Relaxed) == IN_HANDLER);
            let left = worker.rejected.get() + worker.dead.get() + shared.discarded_pending.get() + in_call;
            (in_call as usize, worker.accepted.get().saturating_sub(left))
        } else {
            (self.pending().min(self.max_pending), shared.acked.get())
        };
        SubscriptionMetrics {
            id: self.id,
            name: self.name.to_string(),
            filter: self.filter.clone(),
            mode: self.mode,
            subscribed_at: self.subscribed_at,
            state,
            capacity: self.capacity,
            depth: counts.depth,
            max_pending: self.max_pending,
            pending,
            in_hand,
            enqueued: counts.pushed,
            delivered: worker.delivered.get(),
            redelivered: worker.redelivered.get(),
            failed: worker.failed.get(),
            panicked: worker.panicked.get(),
            rejected: worker.rejected.get(),
            dropped: counts.dropped,
            discarded: shared.discarded_queued.get() + shared.discarded_pending.get(),
            acked,
            dead: worker.dead.get(),
            dead_letter_failures: worker.dead_letter_failures.get(),
            payload_panics: shared.payload_panics.get(),
            age: self.ages.get().and_then(Ages::summary),
            oldest_queued_age: oldest_queued_age.map(Duration::from_nanos),
        }
    }

    /// Records the age of a message with the stamp `tag`, at delivery; the clock as read for it.
    #[inline]
    pub fn record_age(&self, tag: u64, clock: &Clock) -> Option<(u64, u64)> {
        if tag == 0 {
            return None;
        }
        let now = clock.nanos();
        let age = now.saturating_sub(tag - 1);
        self.ages.get_or_init(Ages::new).record(age);
        Some((age, now))
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, name, filter, .. } = self;
        f.debug_struct("Subscription")
            .field("id", &id.0)
            .field("name", name)
            .field("filter", filter)
            .finish_non_exhaustive()
    }
}
