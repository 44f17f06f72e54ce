//! The pull form of a subscription: the caller's thread is its worker.

use std::fmt;
use std::ops::ControlFlow;
use std::time::Duration;

use crate::error::{AckError, RecvError, RecvTimeoutError, TryRecvError};
use crate::message::{MessageId, Received};
use crate::metrics::SubscriptionMetrics;
use crate::station::{Next, Sleep, Station};
use crate::subscription::SubscriptionRef;
use crate::sync::time;

/// A subscription without a thread: its owner takes the messages. `Send`, not `Clone`; dropping it ends the subscription, and
/// discards and counts what is queued and pending.
///
/// Redelivery, dead letters and hooks happen inside its calls. At-least-once: a message is pending from the call that returned it (which
/// clones the payload, since it may have to be delivered again) until it is settled, its ack timeout runs from then, and dropping a
/// [`Received`] settles nothing.
pub struct Receiver<T> {
    station: Station<T>,
}

/// Why there is no message.
enum Idle {
    Nothing(Sleep),
    Closed,
}

impl<T> Receiver<T> {
    pub(crate) fn new(station: Station<T>) -> Self {
        Self { station }
    }

    /// The next message. Where there is none, `idle` waits or breaks off.
    #[inline(always)]
    fn receive<E>(
        &mut self,
        idle: impl FnMut(&mut Station<T>, Idle) -> ControlFlow<E>,
    ) -> Result<Received<T>, E> {
        if self.station.is_pending() {
            self.receive_as::<true, E>(idle)
        } else {
            self.receive_as::<false, E>(idle)
        }
    }

    #[inline(always)]
    fn receive_as<const PENDING: bool, E>(
        &mut self,
        mut idle: impl FnMut(&mut Station<T>, Idle) -> ControlFlow<E>,
    ) -> Result<Received<T>, E> {
        loop {
            let reason = match self.station.next::<PENDING>() {
                Next::Deliver(taken, meta) => {
                    self.station.begin::<PENDING>(&meta);
                    let payload = self.station.hand_out::<PENDING>(meta.ticket(), taken);
                    self.station.core.finish_if_ending();
                    match payload {
                        Some(payload) => return Ok(Received::new(&self.station.core.account, payload, meta)),
                        None => continue,
                    }
                }
                Next::Wait(sleep) => Idle::Nothing(sleep),
                Next::End => {
                    self.station.core.finish();
                    Idle::Closed
                }
            };
            if let ControlFlow::Break(error) = idle(&mut self.station, reason) {
                return Err(error);
            }
        }
    }

    /// The next message, if one waits. At most once: one compare-and-swap; no syscall.
    ///
    /// # Errors
    ///
    /// [`TryRecvError::Empty`], [`TryRecvError::PendingLimit`] or [`TryRecvError::Closed`].
    #[inline]
    pub fn try_recv(&mut self) -> Result<Received<T>, TryRecvError> {
        self.receive(|_, reason| {
            ControlFlow::Break(match reason {
                Idle::Nothing(sleep) if sleep.stalled => TryRecvError::PendingLimit,
                Idle::Nothing(_) => TryRecvError::Empty,
                Idle::Closed => TryRecvError::Closed,
            })
        })
    }

    /// The next message; waits for it, as the subscription's wait strategy says.
    ///
    /// # Errors
    ///
    /// [`RecvError::Closed`].
    pub fn recv(&mut self) -> Result<Received<T>, RecvError> {
        self.receive(|station, reason| {
            let Idle::Nothing(sleep) = reason else { return ControlFlow::Break(RecvError::Closed) };
            station.wait(sleep, None);
            ControlFlow::Continue(())
        })
    }

    /// The next message; waits for it for `limit` of real time at most (whatever the broker's clock is).
    ///
    /// # Errors
    ///
    /// [`RecvTimeoutError::Timeout`] or [`RecvTimeoutError::Closed`].
    pub fn recv_timeout(&mut self, limit: Duration) -> Result<Received<T>, RecvTimeoutError> {
        // What no clock can hold never comes.
        let limit = time::now().checked_add(limit);
        self.receive(|station, reason| {
            let Idle::Nothing(sleep) = reason else { return ControlFlow::Break(RecvTimeoutError::Closed) };
            if limit.is_some_and(|limit| time::now() >= limit) {
                return ControlFlow::Break(RecvTimeoutError::Timeout);
            }
            station.wait(sleep, limit);
            ControlFlow::Continue(())
        })
    }

    /// The messages, one after the other, each waited for; ends when the subscription does.
    pub fn iter(&mut self) -> impl Iterator<Item = Received<T>> + '_ {
        std::iter::from_fn(|| self.recv().ok())
    }

    /// A weak handle to the subscription.
    pub fn handle(&self) -> SubscriptionRef<T> {
        SubscriptionRef::new(&self.station.core.account)
    }

    /// Its numbers.
    pub fn metrics(&self) -> SubscriptionMetrics {
        self.station.core.metrics()
    }

    /// Settles a message by its id. One compare-and-swap.
    ///
    /// # Errors
    ///
    /// [`AckError::NotPending`] if it is settled, nacked, another subscription's or unknown; [`AckError::Closed`] after the end.
    pub fn ack(&self, id: MessageId) -> Result<(), AckError> {
        self.station.core.ack(id)
    }

    /// Has a message delivered again after `delay`; `None`: after the configured back-off.
    ///
    /// # Errors
    ///
    /// As [`Receiver::ack`]; also [`AckError::NotPending`] if it was put back already.
    pub fn nack(&self, id: MessageId, delay: Option<Duration>) -> Result<(), AckError> {
        self.station.core.nack(id, delay)
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.station.core.stop();
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.station.core.fmt(f)
    }
}
