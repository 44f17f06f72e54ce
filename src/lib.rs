#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]
#![cfg_attr(fuzzing, allow(missing_docs))]
// What the door for the models makes public is no interface, and owes it no manners.
#![cfg_attr(
    loom,
    allow(dead_code, clippy::disallowed_types, clippy::len_without_is_empty, clippy::new_without_default)
)]

mod account;
mod age;
mod backoff;
mod broker;
#[allow(unsafe_code)]
mod buffer;
mod clock;
#[cfg(doctest)]
mod compile_fail;
mod config;
mod context;
mod control;
mod error;
mod event;
mod lease;
mod message;
mod metrics;
mod name;
mod panics;
mod parker;
#[allow(unsafe_code)]
mod pending;
mod receiver;
mod redelivery;
mod registry;
#[allow(unsafe_code)]
mod ring;
#[allow(unsafe_code)]
mod sequencer;
mod snapshot;
mod station;
mod subscription;
#[allow(unsafe_code)]
mod sync;
mod topic;
mod worker;

pub use broker::{Broker, BrokerBuilder, Shutdown, ShutdownReport, WeakBroker};
pub use clock::{Clock, ManualClock};
pub use config::{
    AckPolicy, DeliveryMode, IntoOutcome, Outcome, SubscriptionConfig, TimeStamps, WaitStrategy,
};
pub use error::{
    AckError, BatchError, NameError, NameErrorReason, PublishError, PublishErrorKind, RecvError,
    RecvTimeoutError, RemoveTopicError, SubscribeError, TopicError, TryPublishError, TryRecvError,
};
pub use event::{Event, EventKind};
pub use message::{Acker, Message, MessageId, Received, SubscriptionId};
pub use metrics::{AgeSummary, BrokerMetrics, SubscriptionMetrics, SubscriptionState, TopicMetrics};
pub use receiver::Receiver;
pub use subscription::{DrainReport, Subscription, SubscriptionRef};
pub use topic::{Published, PublishedBatch, Topic, WeakTopic};

/// The inside, for the models of `loom-tests`. It exists under `--cfg loom` only, and is no part of the interface.
#[cfg(loom)]
#[doc(hidden)]
pub mod __loom {
    pub use crate::clock::{Alarm, Due};
    pub use crate::parker::Parker;
    pub use crate::pending::{Concluded, Mail, Nack, Table, Ticket, Verdict, Wake};
    pub use crate::ring::{Counts, Cursor, Producer, Ring, RingTooLarge, Spare, Taken, ring, ring_from};
    pub use crate::sequencer::{Guard, Key, Sequenced, Sequencer};
    pub use crate::sync::weak;
}

/// For `fuzz` alone: parts beside their models, which no user can reach.
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod __fuzz {
    pub use crate::pending::{Verdict, model as pending};
    pub use crate::redelivery::model as schedule;
    pub use crate::ring::model as ring;
}
