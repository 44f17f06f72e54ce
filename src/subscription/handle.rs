//! The handles to a subscription.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use crate::account::Account;
use crate::clock::nanoseconds;
use crate::error::AckError;
use crate::message::{MessageId, SubscriptionId};
use crate::metrics::SubscriptionMetrics;
use crate::subscription::{Core, Patience};
use crate::sync::weak::Arc;
use crate::worker::on_worker_thread;

/// A running subscription. **Dropping it unsubscribes**, without waiting for a call that runs: `let _ = broker.subscribe(..)` ends it at once. To let it
/// go on by itself, [`detach`](Self::detach) it.
#[must_use = "dropping it unsubscribes; `detach` lets it go on"]
pub struct Subscription<T> {
    /// `None` once it has been consumed.
    core: Option<Arc<Core<T>>>,
}

/// What a drain did.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DrainReport {
    /// The numbers when it returned; final unless `still_running`.
    pub metrics: SubscriptionMetrics,
    /// Calls begun during the drain.
    pub delivered: u64,
    /// Messages discarded at its end.
    pub discarded: u64,
    /// A call still ran at the deadline (or the drain was asked for on a worker's thread, and goes on): the rest ends in the background.
    pub still_running: bool,
}

impl<T> Subscription<T> {
    pub(crate) fn new(core: Arc<Core<T>>) -> Self {
        Self { core: Some(core) }
    }

    fn core(&self) -> &Arc<Core<T>> {
        self.core.as_ref().expect("a subscription is consumed by value only")
    }

    fn into_core(mut self) -> Arc<Core<T>> {
        self.core.take().expect("a subscription is consumed by value only")
    }

    /// A weak handle: keeps nothing alive, usable anywhere.
    pub fn handle(&self) -> SubscriptionRef<T> {
        SubscriptionRef::new(&self.core().account)
    }

    /// Settles a message by its id. One compare-and-swap.
    ///
    /// # Errors
    ///
    /// [`AckError::NotPending`] if it is settled, nacked, another subscription's or unknown.
    pub fn ack(&self, id: MessageId) -> Result<(), AckError> {
        self.core().ack(id)
    }

    /// Has a message delivered again after `delay`; `None`: after the configured back-off.
    ///
    /// # Errors
    ///
    /// [`AckError::NotPending`] if it is settled, put back, another subscription's or unknown.
    pub fn nack(&self, id: MessageId, delay: Option<Duration>) -> Result<(), AckError> {
        self.core().nack(id, delay)
    }

    /// Its numbers. Stops nobody.
    pub fn metrics(&self) -> SubscriptionMetrics {
        self.core().metrics()
    }

    /// Ends it: off the list, its worker stops at the next message boundary, what is queued and pending is discarded and counted.
    ///
    /// When this returns, no call is running and none will start, the handler and its captures are dropped, and the thread is gone; the numbers are final. It
    /// waits for a call that runs. On a thread that runs a worker of this crate it never waits: then the subscription is off the list and its worker
    /// stops by itself.
    pub fn unsubscribe(self) -> SubscriptionMetrics {
        let core = self.into_core();
        core.stop();
        core.wait_for_end(Patience::Forever);
        core.metrics()
    }

    /// [`Self::unsubscribe`] that waits for `limit` of real time at most.
    ///
    /// # Errors
    ///
    /// If it is still in its last call then (or this is a worker's thread): a handle; it ends by itself.
    pub fn unsubscribe_timeout(self, limit: Duration) -> Result<SubscriptionMetrics, SubscriptionRef<T>> {
        let core = self.into_core();
        core.stop();
        if core.wait_for_end(Patience::RealTime(limit)) {
            Ok(core.metrics())
        } else {
            Err(SubscriptionRef::new(&core.account))
        }
    }

    /// Ends it when its work is done: off the list, what is queued is delivered, acks are waited for. At the deadline (of the broker's clock, from now) the
    /// rest is discarded and counted, and this returns, even with a call still running. On a thread that runs a worker it does not wait, and the drain
    /// goes on in the background.
    pub fn drain(self, deadline: Duration) -> DrainReport {
        let core = self.into_core();
        let before = core.metrics();
        let time = core.context.clock.nanos().saturating_add(nanoseconds(deadline));
        core.begin_drain(time, false);
        if on_worker_thread() {
            (core.context.payload.drain_in_background)(core.clone(), time);
        } else {
            core.end_drain(time);
        }
        let metrics = core.metrics();
        DrainReport {
            delivered: metrics.delivered - before.delivered,
            discarded: metrics.discarded - before.discarded,
            still_running: metrics.state != crate::metrics::SubscriptionState::Ended,
            metrics,
        }
    }

    /// Lets it go on without a guard: it ends with [`SubscriptionRef::unsubscribe`], with the broker's shutdown, or when the last `Broker` and `Topic`
    /// handles are gone, its queue is empty and nothing is pending. Handles that its own handler has captured count: capture weak ones.
    pub fn detach(self) -> SubscriptionRef<T> {
        let core = self.into_core();
        core.detach();
        SubscriptionRef::new(&core.account)
    }
}

impl<T> Drop for Subscription<T> {
    fn drop(&mut self) {
        if let Some(core) = self.core.take() {
            core.stop();
        }
    }
}

impl<T> fmt::Debug for Subscription<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core().fmt(f)
    }
}

/// A weak handle to a subscription: it keeps neither it nor its broker nor any payload alive, and its numbers stay readable after the end.
pub struct SubscriptionRef<T> {
    account: Arc<Account>,
    payload: PhantomData<fn(T) -> T>,
}

impl<T> SubscriptionRef<T> {
    pub(crate) fn new(account: &Arc<Account>) -> Self {
        Self { account: account.clone(), payload: PhantomData }
    }

    /// Names it.
    pub fn id(&self) -> SubscriptionId {
        self.account.id
    }

    /// Settles a message by its id.
    ///
    /// # Errors
    ///
    /// [`AckError::NotPending`] if it is settled, nacked, another subscription's or unknown; [`AckError::Closed`] after the end.
    pub fn ack(&self, id: MessageId) -> Result<(), AckError> {
        self.account.remote.upgrade().map_or(Err(AckError::Closed), |remote| remote.ack(id))
    }

    /// Has a message delivered again after `delay`; `None`: after the configured back-off.
    ///
    /// # Errors
    ///
    /// [`AckError::NotPending`] if it is settled, put back, another subscription's or unknown; [`AckError::Closed`] after the end.
    pub fn nack(&self, id: MessageId, delay: Option<Duration>) -> Result<(), AckError> {
        self.account.remote.upgrade().map_or(Err(AckError::Closed), |remote| remote.nack(id, delay))
    }

    /// Its numbers; after the end the final ones.
    pub fn metrics(&self) -> SubscriptionMetrics {
        self.account.read()
    }

    /// Ends it, without ever waiting: when this returns it is off the list, and its worker stops at the next message boundary. True for the call that
    /// did it, false if it was ending already.
    pub fn unsubscribe(&self) -> bool {
        self.account.remote.upgrade().is_some_and(|remote| remote.stop())
    }
}

impl<T> Clone for SubscriptionRef<T> {
    fn clone(&self) -> Self {
        Self::new(&self.account)
    }
}

impl<T> fmt::Debug for SubscriptionRef<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.account.fmt(f)
    }
}
