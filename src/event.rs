//! What a broker's hook is told.

use crate::sync::weak::Arc;

use crate::message::{MessageId, SubscriptionId};

/// Something that happened to a subscription. Hooks run on the subscription's worker (or inside its receiver's next call),
/// before its next message; a hook that blocks holds up that subscription alone, and one that panics is contained and counted.
#[derive(Debug, Clone)]
pub struct Event {
    /// Whose.
    pub subscription: SubscriptionId,
    /// Its name.
    pub name: Arc<str>,
    /// What.
    pub kind: EventKind,
}

/// What happened.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum EventKind {
    /// A handler call panicked.
    HandlerPanicked {
        /// The message it was called with.
        message: MessageId,
        /// The panic's text.
        panic: String,
    },
    /// A message was given up (delivery limit, or `Reject`) and published to the dead-letter topic, if there is one.
    DeadLettered {
        /// Its id here.
        message: MessageId,
        /// How often it had been delivered.
        attempts: u32,
    },
    /// A message was given up and could not be published to the dead-letter topic.
    DeadLetterFailed {
        /// Its id here.
        message: MessageId,
    },
    /// The ring began to drop its oldest messages. Told once, until the queue has been empty again ([`EventKind::Recovered`]).
    Dropping {
        /// How many had been dropped when this was seen.
        dropped: u64,
    },
    /// As many messages are pending as may be: no new one is taken until one is settled. Told once, until it is over.
    StalledAtPendingLimit,
    /// The queue was empty again after drops, or a message could be taken again after a stall.
    Recovered,
}
