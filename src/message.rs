//! A message as a handler or a receiver's caller sees it, and its ack from anywhere.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use crate::account::{Account, Remote};
use crate::clock::nanoseconds;
use crate::error::AckError;
use crate::lease::Lease;
use crate::pending::{BACKOFF, Ticket};
use crate::ring::Taken;
use crate::subscription::{Core, SubscriptionRef};
use crate::sync::weak::{Arc, Weak};

/// Names a subscription: no two of a process have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SubscriptionId(pub(crate) u64);

impl fmt::Display for SubscriptionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Names a message within its subscription, the same at every redelivery. (Its `seq` would not do: in a subscription to a pattern it repeats
/// from topic to topic.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MessageId {
    pub(crate) subscription: SubscriptionId,
    pub(crate) ticket: Ticket,
}

/// What a message carries beside its payload: few words, since they move with it.
#[derive(Debug, Clone, Copy)]
pub struct Meta {
    generation: u64,
    seq: u64,
    dropped_before: u64,
    /// Nanoseconds; `NO_AGE` without a time stamp.
    age: u64,
    entry: u32,
    attempt: u32,
}

const NO_AGE: u64 = u64::MAX;

impl Meta {
    #[inline(always)]
    pub fn new(ticket: Ticket, seq: u64, attempt: u32, dropped_before: u64, age: Option<u64>) -> Self {
        let Ticket { entry, generation } = ticket;
        Self { generation, seq, dropped_before, age: age.unwrap_or(NO_AGE), entry, attempt }
    }

    #[inline(always)]
    pub fn ticket(&self) -> Ticket {
        Ticket { entry: self.entry, generation: self.generation }
    }

    #[inline(always)]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }
}

/// A message in a handler call. Derefs to its payload, which stays in its slot: the handler borrows it.
pub struct Message<T> {
    core: Arc<Core<T>>,
    held: Option<Taken<T>>,
    meta: Meta,
}

impl<T> Message<T> {
    fn account(&self) -> &Arc<Account> {
        &self.core.account
    }

    fn settle(&self, how: impl FnOnce(&Core<T>) -> Result<(), AckError>) -> Result<(), AckError> {
        how(&self.core)
    }

    /// The one message of a worker, refilled for each call.
    pub(crate) fn empty(core: Arc<Core<T>>) -> Self {
        let ticket = Ticket { entry: 0, generation: 0 };
        Self { core, held: None, meta: Meta::new(ticket, 0, 0, 0, None) }
    }

    pub(crate) fn fill(&mut self, held: Taken<T>, meta: Meta) {
        (self.held, self.meta) = (Some(held), meta);
    }

    pub(crate) fn take(&mut self) -> Taken<T> {
        self.held.take().expect("a message is filled while its call runs")
    }

    /// Its payload, cloned. (An associated function, so that it never hides a method of the payload.)
    pub fn cloned(this: &Self) -> T
    where
        T: Clone,
    {
        this.payload().clone()
    }
}

impl<T> Deref for Message<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.payload()
    }
}

impl<T> Message<T> {
    /// The payload.
    #[inline]
    pub fn payload(&self) -> &T {
        self.held.as_deref().expect("a message is filled while its call runs")
    }
}

/// A message that a receiver returned; it owns its payload. It keeps neither the subscription nor the broker alive. (The thread that drops it may keep the
/// subscription's names and counters until it drops another, or ends.)
pub struct Received<T> {
    account: Lease,
    payload: T,
    meta: Meta,
}

impl<T> Received<T> {
    #[inline]
    pub(crate) fn new(account: &Arc<Account>, payload: T, meta: Meta) -> Self {
        Self { account: Lease::new(account), payload, meta }
    }

    fn account(&self) -> &Arc<Account> {
        self.account.account()
    }

    fn settle(&self, how: impl FnOnce(&dyn Remote) -> Result<(), AckError>) -> Result<(), AckError> {
        self.account.remote.upgrade().map_or(Err(AckError::Closed), |remote| how(&*remote))
    }

    /// The payload, moved out.
    pub fn into_payload(self) -> T {
        self.payload
    }

    /// The payload.
    pub fn payload(&self) -> &T {
        &self.payload
    }

    /// Its payload, cloned.
    pub fn cloned(this: &Self) -> T
    where
        T: Clone,
    {
        this.payload.clone()
    }
}

impl<T> Deref for Received<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.payload
    }
}

macro_rules! accessors {
    ($name:ident) => {
        impl<T> $name<T> {
            /// Names it within its subscription.
            pub fn id(&self) -> MessageId {
                MessageId { subscription: self.account().id, ticket: self.meta.ticket() }
            }

            /// Its number in its topic: from 0, without holes; what is missing between two messages was dropped.
            #[inline]
            pub fn seq(&self) -> u64 {
                self.meta.seq
            }

            /// The topic that it was published on.
            pub fn topic(&self) -> &str {
                &self.account().origin().name
            }

            /// Which topic of that name: grows each time a removed name is created again, and `seq` starts anew.
            pub fn incarnation(&self) -> u64 {
                self.account().origin().incarnation
            }

            /// Which delivery of it this is, from 1.
            pub fn attempt(&self) -> u32 {
                self.meta.attempt
            }

            /// How many messages were evicted from the ring between the one that was taken before and this one; 0 at a redelivery. With one
            /// topic: `seq` minus the previous `seq` minus 1.
            pub fn dropped_before(&self) -> u64 {
                self.meta.dropped_before
            }

            /// From publish to this call, if the message has a time stamp (see [`TimeStamps`](crate::TimeStamps)).
            pub fn age(&self) -> Option<Duration> {
                (self.meta.age != NO_AGE).then(|| Duration::from_nanos(self.meta.age))
            }

            /// Settles the message. One compare-and-swap.
            ///
            /// # Errors
            ///
            /// [`AckError::NotPending`] if it is settled or was nacked; always in at-most-once mode.
            pub fn ack(&self) -> Result<(), AckError> {
                self.settle(|core| core.ack(self.id()))
            }

            /// Has the message delivered again after `delay`; `None`: after the configured back-off. Not counted as a failure.
            ///
            /// # Errors
            ///
            /// [`AckError::NotPending`] if it is settled or put back already; always in at-most-once mode.
            pub fn nack(&self, delay: Option<Duration>) -> Result<(), AckError> {
                self.settle(|core| core.nack(self.id(), delay))
            }

            /// A handle that settles the message from anywhere, later. It keeps nothing alive. Costs a reference count.
            pub fn acker(&self) -> Acker {
                Acker { remote: self.account().remote.clone(), id: self.id() }
            }

            /// A weak handle to the subscription.
            pub fn subscription(&self) -> SubscriptionRef<T> {
                SubscriptionRef::new(self.account())
            }
        }

        impl<T> fmt::Debug for $name<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("topic", &self.topic())
                    .field("seq", &self.meta.seq)
                    .field("attempt", &self.meta.attempt)
                    .finish_non_exhaustive()
            }
        }
    };
}

accessors!(Message);
accessors!(Received);

/// The delay of a nack, as the pending table has it.
pub fn nack_delay(delay: Option<Duration>) -> u64 {
    match delay.map(nanoseconds) {
        None => BACKOFF,
        // The number that means "as configured" is 584 years, too: as good as never.
        Some(BACKOFF) => BACKOFF + 1,
        Some(nanos) => nanos,
    }
}

/// Settles one message from any thread, at any time. It keeps neither the subscription nor the payload alive.
#[derive(Clone)]
pub struct Acker {
    remote: Weak<dyn Remote>,
    id: MessageId,
}

impl Acker {
    /// The message.
    pub fn id(&self) -> MessageId {
        self.id
    }

    /// Settles the message. An ack that comes late, after the timeout has put the message back, still settles it, and no further delivery begins. The
    /// payload is dropped on this thread, unless a call runs.
    ///
    /// # Errors
    ///
    /// [`AckError::NotPending`] if it is settled or was nacked; [`AckError::Closed`] after the subscription's end.
    pub fn ack(&self) -> Result<(), AckError> {
        self.remote.upgrade().map_or(Err(AckError::Closed), |remote| remote.ack(self.id))
    }

    /// Has the message delivered again after `delay`; `None`: after the configured back-off.
    ///
    /// # Errors
    ///
    /// [`AckError::NotPending`] if it is settled or put back already; [`AckError::Closed`] after the subscription's end.
    pub fn nack(&self, delay: Option<Duration>) -> Result<(), AckError> {
        self.remote.upgrade().map_or(Err(AckError::Closed), |remote| remote.nack(self.id, delay))
    }
}

impl fmt::Debug for Acker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acker").field("id", &self.id).finish_non_exhaustive()
    }
}
