//! A subscription: everything that its worker, its handles and its publishers share, and how it ends.

mod handle;

use std::time::Duration;

use crate::account::{Account, Origin, Remote};
use crate::clock::{Alarm, NEVER};
use crate::config::Settings;
use crate::context::Context;
use crate::control::{Control, DETACHED, DRAIN, ENDED, ORPHANED, STARTED, STOP};
use crate::error::AckError;
use crate::message::{MessageId, nack_delay};
use crate::metrics::SubscriptionMetrics;
use crate::panics::drop_contained;
use crate::parker::Parker;
use crate::pending::{Nack, Table, Wake};
use crate::ring::{Producer, Ring};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::thread::JoinHandle;
use crate::sync::weak::{Arc, Weak};
use crate::sync::{self, Mutex, OnceLock};
use crate::topic::{Edge, TopicCore, User};
pub use handle::{DrainReport, Subscription, SubscriptionRef};

/// What is shared. Its worker holds it, and so do its handles, its topic's list and the broker's register, until it ends.
pub struct Core<T> {
    pub account: Arc<Account>,
    pub settings: Settings,
    pub ring: sync::Arc<Ring<T>>,
    pub parker: Arc<Parker>,
    pub control: Arc<Control>,
    /// At-least-once only.
    pub table: Option<Table<T>>,
    pub context: Arc<Context<T>>,
    /// Where messages go that are given up; counted among that topic's handles.
    pub dead_letter: OnceLock<Arc<TopicCore<T>>>,
    /// The way into the ring, from the start to the end.
    edge: Mutex<Option<Arc<Edge<T>>>>,
    thread: Mutex<Option<JoinHandle>>,
    /// When a drain gives up, by the broker's clock.
    drain_deadline: AtomicU64,
}

/// Real time that a drain leaves, past its deadline, to a worker that is between two calls.
const GRACE: Duration = Duration::from_millis(10);

/// Who waits for an end, and how long.
#[derive(Debug, Clone, Copy)]
pub enum Patience {
    Forever,
    /// Until this time of the broker's clock.
    Until(u64),
    /// For this long, in real time.
    RealTime(Duration),
}

impl<T> Core<T> {
    pub fn new(
        account: impl FnOnce(Weak<dyn Remote>) -> Account,
        settings: Settings,
        ring: sync::Arc<Ring<T>>,
        table: Option<Table<T>>,
        context: Arc<Context<T>>,
    ) -> Arc<Self>
    where
        T: Send + 'static,
    {
        Arc::new_cyclic(|this: &Weak<Self>| Self {
            account: Arc::new(account(this.clone())),
            settings,
            ring,
            parker: Arc::new(Parker::new()),
            control: Arc::new(Control::new()),
            table,
            context,
            dead_letter: OnceLock::new(),
            edge: Mutex::new(None),
            thread: Mutex::new(None),
            drain_deadline: AtomicU64::new(NEVER),
        })
    }

    /// Puts the subscription into `topic`'s list, of which it is counted as a user already, and starts it.
    pub fn start(self: &Arc<Self>, topic: &Arc<TopicCore<T>>, producer: Producer<T>) {
        let mut slot = self.edge.lock();
        // A shutdown may have come between its registration and here: then it never gets into the list.
        if self.control.has(STOP) {
            drop(slot);
            topic.leave(User::Subscription);
            return;
        }
        let (edge, first_seq) = topic.attach(self, producer);
        // Before the edge can be seen: a worker that finds it, if only to end, knows where its messages come from.
        let origin = Origin { name: topic.name().clone(), incarnation: topic.incarnation(), first_seq };
        let _ = self.account.origin.set(origin);
        *slot = Some(edge);
        drop(slot);
        self.control.raise(STARTED);
    }

    /// The way into the ring; `None` before the start and after the end.
    pub fn edge(&self) -> Option<Arc<Edge<T>>> {
        self.edge.lock().clone()
    }

    /// A thread that runs its worker.
    pub fn set_thread(&self, thread: JoinHandle) {
        *self.thread.lock() = Some(thread);
    }

    /// Its numbers now.
    pub fn metrics(&self) -> SubscriptionMetrics {
        let ended = self.control.has(ENDED);
        if ended {
            return self.account.metrics(self.account.last_counts(), None, true);
        }
        let counts = self.ring.counts();
        let oldest = (self.context.stamps == crate::config::TimeStamps::Every && counts.depth > 0)
            .then(|| self.ring.oldest_tag())
            .flatten()
            .map(|tag| self.context.clock.nanos().saturating_sub(tag - 1));
        self.account.metrics(counts, oldest, false)
    }
}

impl<T: Send> Remote for Core<T> {
    fn ack(&self, id: MessageId) -> Result<(), AckError> {
        Core::ack(self, id)
    }

    fn nack(&self, id: MessageId, delay: Option<Duration>) -> Result<(), AckError> {
        Core::nack(self, id, delay)
    }

    fn metrics(&self) -> SubscriptionMetrics {
        Core::metrics(self)
    }

    fn stop(&self) -> bool {
        Core::stop(self)
    }
}

/// Settling.
impl<T> Core<T> {
    /// Settles a message.
    pub fn ack(&self, id: MessageId) -> Result<(), AckError> {
        self.settle(id, |table| {
            let (panicked, wake) = table.ack(id.ticket, || self.account.shared.acked.add())?;
            if panicked {
                self.account.shared.payload_panics.add();
            }
            Ok(wake)
        })
    }

    /// Has a message delivered again.
    pub fn nack(&self, id: MessageId, delay: Option<Duration>) -> Result<(), AckError> {
        self.settle(id, |table| {
            let (at, mark) = (self.context.clock.nanos(), self.ring.end());
            table.nack(id.ticket, Nack { delay: nack_delay(delay), at, mark })
        })
    }

    fn settle(
        &self,
        id: MessageId,
        how: impl FnOnce(&Table<T>) -> Result<Wake, AckError>,
    ) -> Result<(), AckError> {
        if self.control.has(ENDED) {
            return Err(AckError::Closed);
        }
        let table = self.table.as_ref().filter(|_| id.subscription == self.account.id);
        let settled = table.ok_or(AckError::NotPending).and_then(how);
        match settled {
            Ok(Wake(wake)) => {
                if wake {
                    self.parker.wake();
                }
                self.finish_if_ending();
                Ok(())
            }
            // Discarded by the end that came meanwhile.
            Err(AckError::NotPending) if self.control.has(ENDED) => Err(AckError::Closed),
            Err(error) => Err(error),
        }
    }
}

/// Ends.
impl<T> Core<T> {
    /// Takes it off the list of its topic: nothing is pushed any more when this returns.
    pub fn unlist(&self) {
        if let Some(edge) = self.edge() {
            edge.topic.detach(&edge);
        }
    }

    /// Begins its end: off the list, and its worker stops at the next message boundary. True for the call that did it. Waits for no call.
    pub fn stop(&self) -> bool {
        // Under the lock of `start`: either it sees the flag, or we see that it is listed.
        let slot = self.edge.lock();
        let first = self.control.raise(STOP);
        drop(slot);
        self.unlist();
        self.parker.wake();
        if self.settings.receiver {
            // No worker will do it, and the receiver may not call for long.
            self.finish();
        }
        first
    }

    /// Begins a drain: what is queued is delivered, what is pending waited for, until `deadline`. `listed`: it stays in the list, for the dead letters of
    /// others, since publishes are refused otherwise.
    pub fn begin_drain(&self, deadline: u64, listed: bool) {
        if !listed {
            self.unlist();
        }
        // Relaxed: published by the flag. A second drain can only bring the deadline forward.
        self.drain_deadline.fetch_min(deadline, Ordering::Relaxed);
        self.control.raise(DRAIN);
        self.parker.wake();
        self.finish_if_ending();
    }

    /// The last step of what may have been the last of a receiver: its owner may not call again for long. Ends it if it drains and has nothing
    /// left; and if it was ended meanwhile, discards what this step has left pending.
    #[inline]
    pub fn finish_if_ending(&self) {
        if self.settings.receiver && self.control.has(DRAIN | STOP) {
            self.finish_receiver();
        }
    }

    #[cold]
    fn finish_receiver(&self) {
        // A message on its way from the ring to the caller has left the one count and not reached the other.
        let (worker, counts) = (&self.account.worker, self.ring.counts());
        let came = if self.table.is_some() { worker.accepted.get() } else { worker.delivered.get() };
        let left = came + counts.dropped + self.account.shared.discarded_queued.get();
        if self.control.has(STOP) || counts.pushed == left && self.account.pending() == 0 {
            self.finish();
        }
    }

    /// When a drain gives up.
    pub fn drain_deadline(&self) -> u64 {
        // Relaxed: published by `DRAIN`.
        self.drain_deadline.load(Ordering::Relaxed)
    }

    /// Nobody is left who could publish.
    pub fn orphan(&self) {
        self.control.raise(ORPHANED);
        self.parker.wake();
    }

    /// Without a guard from now on.
    pub fn detach(&self) {
        self.control.raise(DETACHED);
        self.parker.wake();
    }

    /// Discards and counts what is queued, and what is pending without a call. By any thread, once the list has been left.
    pub fn discard(&self) {
        let shared = &self.account.shared;
        if self.ring.counts().depth > 0 {
            self.reclaim();
        }
        if let Some(table) = &self.table {
            table.discard_all(|panicked| {
                shared.discarded_pending.add();
                if panicked {
                    shared.payload_panics.add();
                }
            });
        }
    }

    /// Discards and counts what is queued. Apart, since each payload goes through this stack: a worker clears its ring in place before.
    #[inline(never)]
    fn reclaim(&self) {
        let Some(edge) = self.edge() else { return };
        while let Some(payload) = edge.reclaim() {
            self.account.shared.discarded_queued.add();
            if drop_contained(payload) {
                self.account.shared.payload_panics.add();
            }
        }
    }

    /// Waits for the end of a drain, and cuts it at its deadline.
    pub fn end_drain(&self, time: u64) {
        if !self.wait_for_end(Patience::Until(time)) {
            self.cut_drain();
        }
    }

    /// Ends a drain at its deadline: what is left is discarded, also if a call still runs, which is given a moment if it is just ending.
    pub fn cut_drain(&self) {
        self.stop();
        self.discard();
        self.wait_for_end(Patience::RealTime(GRACE));
    }

    /// The last steps of an end: what is queued and pending is discarded and counted, the account closed, the register left. By the worker, when
    /// its handler is gone; for a receiver by whoever ends it, and then possibly by several at once.
    pub fn finish(&self) {
        self.control.raise(STOP);
        self.unlist();
        self.discard();
        let shared = &self.account.shared;
        let counts = self.ring.counts();
        self.account.close(counts);
        let removed = {
            let mut members = self.context.members.lock();
            let removed = members.cores.remove(&self.account.id.0);
            if removed.is_some() {
                members.dropped += counts.dropped;
                members.payload_panics += shared.payload_panics.get();
            }
            removed
        };
        let last_edge = self.edge.lock().take();
        if let Some(edge) = &last_edge {
            edge.topic.leave(User::Subscription);
        }
        if self.control.raise(ENDED)
            && let Some(target) = self.dead_letter.get()
        {
            target.leave(User::Handle);
        }
        drop((removed, last_edge));
    }

    /// Waits for the end, and for its thread to be gone; false if patience ran out first. On a thread that runs a worker: does not wait.
    pub fn wait_for_end(&self, patience: Patience) -> bool {
        if crate::worker::on_worker_thread() {
            return self.control.has(ENDED);
        }
        let control: Arc<dyn Alarm> = self.control.clone();
        let alarm: Weak<dyn Alarm> = Arc::downgrade(&control);
        let real = crate::clock::Clock::default();
        let (clock, time) = match patience {
            Patience::Forever => (&self.context.clock, NEVER),
            Patience::Until(time) => (&self.context.clock, time),
            Patience::RealTime(limit) => (&real, crate::clock::nanoseconds(limit)),
        };
        if !self.control.wait(ENDED, clock, time, &alarm) {
            return false;
        }
        // Held while joining, so that a second waiter does not return before the thread is gone. It is about to.
        let mut thread = self.thread.lock();
        if let Some(thread) = thread.take() {
            thread.join();
        }
        true
    }
}

impl<T> std::fmt::Debug for Core<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Subscription")
            .field("id", &self.account.id.0)
            .field("name", &self.account.name)
            .field("filter", &self.account.filter)
            .finish_non_exhaustive()
    }
}
