//! What can be seen: snapshots of counters and gauges, and their tables.
//!
//! Whenever no push or take is in progress (a handler that runs is none), exactly:
//!
//! * at-most-once: `enqueued = delivered + dropped + discarded + depth`;
//! * at-least-once: `enqueued = acked + rejected + dead + dropped + discarded + pending + depth`.
//!
//! While running: counters only grow, `depth <= capacity`, `pending <= max_pending`.

use std::fmt;
use std::panic::Location;
use std::time::Duration;

use crate::config::DeliveryMode;
use crate::message::SubscriptionId;

/// A subscription at one moment. Taken without stopping anyone; final after the end.
///
/// How to read it: `depth` up and `dropped` flat, the subscriber is slowing down; `dropped` up, it is overwhelmed and loses its oldest
/// backlog, as contracted; `pending` up, acks are missing, not processing; `age` up, it works on stale data.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SubscriptionMetrics {
    /// Its id.
    pub id: SubscriptionId,
    /// Its name: as configured, else filter and number.
    pub name: String,
    /// The topic that it hears.
    pub filter: String,
    /// Its delivery mode.
    pub mode: DeliveryMode,
    /// Where `subscribe` or `receiver` was called.
    pub subscribed_at: &'static Location<'static>,
    /// What it is doing.
    pub state: SubscriptionState,
    /// Messages that its ring holds at most.
    pub capacity: usize,
    /// Messages that wait in its ring.
    pub depth: usize,
    /// Messages that may be pending at once; 0 in at-most-once mode.
    pub max_pending: usize,
    /// Messages taken from the ring and not settled yet; 0 in at-most-once mode.
    pub pending: usize,
    /// Handler calls that run.
    pub in_hand: usize,
    /// Messages pushed into its ring.
    pub enqueued: u64,
    /// Handler calls begun (messages returned, for a receiver), redeliveries included.
    pub delivered: u64,
    /// Those of them that were not the message's first.
    pub redelivered: u64,
    /// Calls that returned a failure, or a `Reject` of a message that had been acked.
    pub failed: u64,
    /// Calls that panicked.
    pub panicked: u64,
    /// Calls that settled their message by `Reject`.
    pub rejected: u64,
    /// Messages evicted from the full ring by newer ones.
    pub dropped: u64,
    /// Messages that waited or were pending when the subscription ended.
    pub discarded: u64,
    /// Messages acked.
    pub acked: u64,
    /// Messages given up at their delivery limit.
    pub dead: u64,
    /// Messages given up (at the limit or by `Reject`) that could not be published to the dead-letter topic.
    pub dead_letter_failures: u64,
    /// Payloads whose destructor panicked while this subscription owned them.
    pub payload_panics: u64,
    /// Time from publish to the call, of the messages with a time stamp; `None` if there was none.
    pub age: Option<AgeSummary>,
    /// Age of the oldest message that waits: `Some` only with [`TimeStamps::Every`](crate::TimeStamps::Every).
    pub oldest_queued_age: Option<Duration>,
}

/// What a subscription is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubscriptionState {
    /// Between calls, or asleep.
    Idle,
    /// In a handler call.
    InHandler {
        /// The broker's clock when the call began. Exact with [`TimeStamps::Every`](crate::TimeStamps::Every), with a manual clock, and in at-least-once mode
        /// with an ack timeout; otherwise the worker's last reading before it (it reads at each sampled message, and when it wakes).
        since: Duration,
    },
    /// `max_pending` messages are unsettled: no new one is taken, the ring goes on dropping its oldest.
    StalledAtPendingLimit,
    /// It has ended; these numbers are final.
    Ended,
}

/// Delivery ages: publish (the call, so a wait for other publishers counts) to the begin of the handler call.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct AgeSummary {
    /// The newest.
    pub last: Duration,
    /// The median, at most one eighth too high.
    pub p50: Duration,
    /// The 99th percentile, at most one eighth too high.
    pub p99: Duration,
    /// The largest.
    pub max: Duration,
    /// How many messages had a stamp.
    pub count: u64,
}

/// A topic at one moment.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TopicMetrics {
    /// Its name.
    pub name: String,
    /// Messages published: the next one's `seq`.
    pub published: u64,
    /// Subscriptions in its list.
    pub subscriptions: usize,
}

/// A broker at one moment. The totals count removed topics and ended subscriptions too.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BrokerMetrics {
    /// Its topics, by name.
    pub topics: Vec<TopicMetrics>,
    /// Its subscriptions that have not ended, oldest first.
    pub subscriptions: Vec<SubscriptionMetrics>,
    /// Messages published.
    pub published: u64,
    /// Messages evicted from rings.
    pub dropped: u64,
    /// Payloads whose destructor panicked: every subscription's, and of values that nobody heard.
    pub payload_panics: u64,
    /// Panics of hooks and of handlers' destructors, all contained.
    pub hook_panics: u64,
}

struct Age(Option<Duration>);

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(age) => f.pad(&format!("{age:.1?}")),
            None => f.pad("-"),
        }
    }
}

impl fmt::Display for SubscriptionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Idle => "idle",
            Self::InHandler { .. } => "in handler",
            Self::StalledAtPendingLimit => "stalled",
            Self::Ended => "ended",
        })
    }
}

fn header(f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(
        f,
        "{:<24} {:<10} {:>11} {:>11} {:>9} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "subscription",
        "state",
        "depth",
        "pending",
        "enqueued",
        "delivered",
        "dropped",
        "failed",
        "acked",
        "dead",
        "age p99"
    )
}

fn row(f: &mut fmt::Formatter<'_>, m: &SubscriptionMetrics) -> fmt::Result {
    let mut name: String = m.name.chars().take(24).collect();
    if name.len() < m.name.len() {
        name.pop();
        name.push('~');
    }
    writeln!(
        f,
        "{:<24} {:<10} {:>11} {:>11} {:>9} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9}",
        name,
        m.state,
        format!("{}/{}", m.depth, m.capacity),
        format!("{}/{}", m.pending, m.max_pending),
        m.enqueued,
        m.delivered,
        m.dropped,
        m.failed + m.panicked,
        m.acked,
        m.dead + m.rejected,
        Age(m.age.map(|age| age.p99)),
    )
}

impl fmt::Display for SubscriptionMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        header(f)?;
        row(f, self)
    }
}

impl fmt::Display for TopicMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<24} {:>12} published {:>6} subscriptions",
            self.name, self.published, self.subscriptions
        )
    }
}

impl fmt::Display for BrokerMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} topics, {} subscriptions, {} published, {} dropped",
            self.topics.len(),
            self.subscriptions.len(),
            self.published,
            self.dropped
        )?;
        for topic in &self.topics {
            writeln!(f, "{topic}")?;
        }
        if !self.subscriptions.is_empty() {
            header(f)?;
        }
        self.subscriptions.iter().try_for_each(|subscription| row(f, subscription))
    }
}
