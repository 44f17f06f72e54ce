//! What calls can refuse, and why. Errors of a publish give the payload back.

use std::error::Error;
use std::fmt;

use crate::topic::PublishedBatch;

/// Why an ack or a nack did nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AckError {
    /// The message is not waiting for this: settled already, put back by a `nack`, of another subscription, or unknown. In
    /// at-most-once mode nothing is ever pending.
    NotPending,
    /// The subscription has ended.
    Closed,
}

/// Why [`Receiver::try_recv`](crate::Receiver::try_recv) gave nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TryRecvError {
    /// Nothing waits now.
    Empty,
    /// As many messages are pending as the subscription allows, and none of them is due again: settle one.
    PendingLimit,
    /// The subscription has ended, or nobody is left who could publish and the queue is empty.
    Closed,
}

/// Why [`Receiver::recv`](crate::Receiver::recv) gave nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecvError {
    /// The subscription has ended, or nobody is left who could publish and the queue is empty.
    Closed,
}

/// Why [`Receiver::recv_timeout`](crate::Receiver::recv_timeout) gave nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecvTimeoutError {
    /// Nothing came in time.
    Timeout,
    /// The subscription has ended, or nobody is left who could publish and the queue is empty.
    Closed,
}

/// A name or filter that is none, and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameError {
    /// The offending name.
    pub name: String,
    /// What is wrong with it.
    pub reason: NameErrorReason,
}

/// What is wrong with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NameErrorReason {
    /// It is empty.
    Empty,
    /// A token between, before or after its dots is empty.
    EmptyToken,
    /// A token is `*` or `>`. (Patterns over topic names are not supported yet.)
    Wildcard,
    /// A `>` stands before the end of a pattern. (Not returned yet.)
    MisplacedWildcard,
}

impl NameErrorReason {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Empty => "a name must not be empty",
            Self::EmptyToken => "no token between the dots may be empty",
            Self::Wildcard => "no token may be `*` or `>`: patterns are not supported yet",
            Self::MisplacedWildcard => "`>` may only be the last token",
        }
    }
}

/// Why a topic could not be had.
#[derive(Debug)]
#[non_exhaustive]
pub enum TopicError {
    /// The broker has been shut down.
    Closed,
    /// No such name can be.
    InvalidName(NameError),
    /// The broker has as many topics as it may: remove unused ones, or raise [`BrokerBuilder::topic_limit`](crate::BrokerBuilder::topic_limit).
    TopicLimit {
        /// The limit.
        limit: usize,
    },
}

/// Why a topic was not removed.
#[derive(Debug)]
#[non_exhaustive]
pub enum RemoveTopicError {
    /// There is no topic of this name.
    NotFound,
    /// It is in use.
    InUse {
        /// Its subscriptions by exact name.
        subscriptions: usize,
        /// The [`Topic`](crate::Topic) handles to it.
        handles: usize,
    },
}

/// Why there is no subscription. Nothing was created, nothing is left behind.
#[derive(Debug)]
#[non_exhaustive]
pub enum SubscribeError {
    /// The broker has been shut down.
    Closed,
    /// No such filter can be.
    InvalidFilter(NameError),
    /// The topic does not exist yet, and the broker has as many as it may.
    TopicLimit {
        /// The limit.
        limit: usize,
    },
    /// An option of the configuration cannot be.
    InvalidOption {
        /// The option, by the name of the method that sets it.
        option: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Memory for so many messages cannot be had.
    CapacityTooLarge {
        /// The option, by the name of the method that sets it.
        option: &'static str,
        /// What it asked for.
        requested: usize,
    },
    /// The filter matches the subscription's own dead-letter topic: a message that fails would come back for ever.
    DeadLetterLoop {
        /// The dead-letter topic.
        topic: String,
    },
    /// The worker's thread could not be started, or not be bound to its core.
    Spawn(std::io::Error),
}

/// Why a publish was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum PublishErrorKind {
    /// The broker has been shut down.
    Closed,
    /// No such name can be.
    InvalidName(NameErrorReason),
    /// The topic does not exist yet, and the broker has as many as it may.
    TopicLimit {
        /// The limit.
        limit: usize,
    },
}

/// A publish that was refused, with its payload. Nobody got it, and no `seq` was used.
pub struct PublishError<T> {
    payload: T,
    kind: PublishErrorKind,
}

impl<T> PublishError<T> {
    pub(crate) fn new(payload: T, kind: PublishErrorKind) -> Self {
        Self { payload, kind }
    }

    /// Why.
    pub fn kind(&self) -> &PublishErrorKind {
        &self.kind
    }

    /// The payload, unharmed.
    pub fn into_payload(self) -> T {
        self.payload
    }
}

/// A [`Topic::try_publish`](crate::Topic::try_publish) that was refused, with its payload.
#[non_exhaustive]
pub enum TryPublishError<T> {
    /// The broker has been shut down.
    Closed(T),
    /// Another publisher, or a change of the list, was inside the topic's sequencer.
    Contended(T),
}

/// A batch that was refused on its way.
pub struct BatchError<T> {
    /// What had been published before.
    pub published: PublishedBatch,
    /// What had been pulled from the iterator and was not published: 32 payloads at most. The rest is in the iterator.
    pub unsent: Vec<T>,
    /// Why.
    pub kind: PublishErrorKind,
}

macro_rules! display {
    ($($error:ident: $self:ident, $f:ident => $body:expr;)*) => {$(
        impl fmt::Display for $error {
            fn fmt(&$self, $f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $body
            }
        }
        impl Error for $error {}
    )*};
}

const ENDED: &str = "the subscription has ended";
const SHUT_DOWN: &str = "the broker has been shut down";

fn topic_limit(f: &mut fmt::Formatter<'_>, limit: usize) -> fmt::Result {
    write!(f, "the broker has its {limit} topics already: remove unused ones, or raise `topic_limit`")
}

display! {
    AckError: self, f => f.write_str(match self {
        Self::NotPending => "the message is not pending here: settled, put back by a nack, or another subscription's",
        Self::Closed => ENDED,
    });
    TryRecvError: self, f => f.write_str(match self {
        Self::Empty => "no message waits",
        Self::PendingLimit => "`max_pending` messages are unsettled: ack or nack one first",
        Self::Closed => ENDED,
    });
    RecvError: self, f => f.write_str(ENDED);
    RecvTimeoutError: self, f => f.write_str(match self {
        Self::Timeout => "no message came in time",
        Self::Closed => ENDED,
    });
    NameError: self, f => write!(f, "`{}` is no legal name: {}", self.name.escape_debug(), self.reason.text());
    NameErrorReason: self, f => f.write_str(self.text());
    TopicError: self, f => match self {
        Self::Closed => f.write_str(SHUT_DOWN),
        Self::InvalidName(error) => error.fmt(f),
        Self::TopicLimit { limit } => topic_limit(f, *limit),
    };
    RemoveTopicError: self, f => match self {
        Self::NotFound => f.write_str("there is no topic of this name"),
        Self::InUse { subscriptions, handles } => {
            write!(f, "the topic is in use: {subscriptions} subscriptions, {handles} handles")
        }
    };
    PublishErrorKind: self, f => match self {
        Self::Closed => f.write_str(SHUT_DOWN),
        Self::InvalidName(reason) => write!(f, "no legal topic name: {}", reason.text()),
        Self::TopicLimit { limit } => topic_limit(f, *limit),
    };
}

impl fmt::Display for SubscribeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str(SHUT_DOWN),
            Self::InvalidFilter(error) => error.fmt(f),
            Self::TopicLimit { limit } => topic_limit(f, *limit),
            Self::InvalidOption { option, reason } => write!(f, "`{option}` cannot be: {reason}"),
            Self::CapacityTooLarge { option, requested } => {
                write!(f, "`{option}`: memory for {requested} messages cannot be had; ask for less")
            }
            Self::DeadLetterLoop { topic } => {
                write!(
                    f,
                    "`dead_letter`: the filter matches the dead-letter topic `{}` itself",
                    topic.escape_debug()
                )
            }
            Self::Spawn(error) => write!(f, "the worker's thread could not be set up: {error}"),
        }
    }
}

impl Error for SubscribeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Spawn(error) => Some(error),
            Self::InvalidFilter(error) => Some(error),
            _ => None,
        }
    }
}

impl<T> fmt::Debug for PublishError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PublishError").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl<T> fmt::Display for PublishError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "nothing was published: {}", self.kind)
    }
}

impl<T> Error for PublishError<T> {}

impl<T> TryPublishError<T> {
    /// The payload, unharmed.
    pub fn into_payload(self) -> T {
        match self {
            Self::Closed(payload) | Self::Contended(payload) => payload,
        }
    }
}

impl<T> fmt::Debug for TryPublishError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed(_) => "Closed(..)",
            Self::Contended(_) => "Contended(..)",
        })
    }
}

impl<T> fmt::Display for TryPublishError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed(_) => "nothing was published: the broker has been shut down",
            Self::Contended(_) => "nothing was published: another publisher of the topic was at it",
        })
    }
}

impl<T> Error for TryPublishError<T> {}

impl<T> fmt::Debug for BatchError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchError")
            .field("published", &self.published)
            .field("unsent", &self.unsent.len())
            .field("kind", &self.kind)
            .finish()
    }
}

impl<T> fmt::Display for BatchError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, unsent) = (self.published.count, self.unsent.len());
        write!(f, "the batch ended after {count} payloads, {unsent} unsent: {}", self.kind)
    }
}

impl<T> Error for BatchError<T> {}
