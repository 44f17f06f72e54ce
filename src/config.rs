//! How a subscription is set up, checked once.

use std::fmt;
use std::time::Duration;

use crate::clock::{NEVER, nanoseconds};
use crate::error::SubscribeError;
use crate::name;
use crate::sync::weak::Arc;

/// What is promised of a message's delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeliveryMode {
    /// Delivered once, or dropped and counted. A failed call is counted, and the message is gone.
    AtMostOnce,
    /// Once taken from the ring, redelivered until it is settled. (A message that is evicted from the ring before was never taken.)
    AtLeastOnce,
}

/// What acks a message in at-least-once mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AckPolicy {
    /// An explicit ack, from any thread, at any time until the subscription's end. The default.
    Manual,
    /// A handler call that succeeds.
    OnSuccess,
}

/// How a worker waits for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitStrategy {
    /// Spins briefly, then sleeps: an idle subscription costs nothing, the publish that wakes it one syscall. The default.
    Park,
    /// Spins for ever: the shortest hand-over, for the price of a whole core.
    BusySpin,
}

/// When publishes read the clock, for [`SubscriptionMetrics::age`](crate::SubscriptionMetrics::age) and [`Message::age`](crate::Message::age).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum TimeStamps {
    /// Never: no message has an age.
    Off,
    /// About one message in 64 a topic, so that a publish costs hardly more than without. The default.
    #[default]
    Sampled,
    /// Every message: one clock read a publish, and one a delivery.
    Every,
}

/// What a handler says of the message that it was called with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Done. At-least-once: acks it under [`AckPolicy::OnSuccess`]; under `Manual` it stays pending until acked.
    Handled,
    /// Not done. At-least-once: put back, and delivered again after the back-off.
    Failed,
    /// It never will be. At-least-once: settled, and published to the dead-letter topic, if there is one.
    Reject,
}

/// What a handler may return.
pub trait IntoOutcome {
    /// The outcome that it means.
    fn into_outcome(self) -> Outcome;
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Outcome {
        self
    }
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Outcome {
        Outcome::Handled
    }
}

impl<E> IntoOutcome for Result<(), E> {
    fn into_outcome(self) -> Outcome {
        if self.is_ok() { Outcome::Handled } else { Outcome::Failed }
    }
}

impl<E> IntoOutcome for Result<Outcome, E> {
    fn into_outcome(self) -> Outcome {
        self.unwrap_or(Outcome::Failed)
    }
}

/// The return type of a function, by way of which the never type can be named on stable Rust.
pub trait Returns {
    /// What it returns.
    type Output;
}

impl<R> Returns for fn() -> R {
    type Output = R;
}

impl IntoOutcome for <fn() -> ! as Returns>::Output {
    fn into_outcome(self) -> Outcome {
        self
    }
}

/// How a subscription is set up. Checked by `subscribe` and `receiver`, not before.
#[derive(Clone)]
#[must_use]
pub struct SubscriptionConfig {
    mode: DeliveryMode,
    queue_capacity: usize,
    name: Option<String>,
    wait_strategy: WaitStrategy,
    thread_name: Option<String>,
    pin_to_core: Option<usize>,
    on_thread_start: Option<ThreadStart>,
    ack_policy: Option<AckPolicy>,
    ack_timeout: Option<Duration>,
    max_pending: Option<usize>,
    backoff: Option<(Duration, Duration)>,
    max_deliveries: Option<u32>,
    dead_letter: Option<String>,
}

/// A hook that runs on a new worker's thread.
pub type ThreadStart = Arc<dyn Fn() + Send + Sync>;

impl SubscriptionConfig {
    fn new(mode: DeliveryMode, queue_capacity: usize) -> Self {
        Self {
            mode,
            queue_capacity,
            name: None,
            wait_strategy: WaitStrategy::Park,
            thread_name: None,
            pin_to_core: None,
            on_thread_start: None,
            ack_policy: None,
            ack_timeout: None,
            max_pending: None,
            backoff: None,
            max_deliveries: None,
            dead_letter: None,
        }
    }

    /// At most once, with a ring of exactly `queue_capacity` messages; the message in hand is not among them.
    pub fn at_most_once(queue_capacity: usize) -> Self {
        Self::new(DeliveryMode::AtMostOnce, queue_capacity)
    }

    /// At least once, with a ring of exactly `queue_capacity` messages; the pending ones are not among them.
    ///
    /// A message may come twice, so a handler must be idempotent: what it has done for a message it does not do again.
    ///
    /// ```
    /// use fanout::{AckPolicy, Broker, SubscriptionConfig};
    /// use std::collections::HashSet;
    /// use std::time::Duration;
    ///
    /// let broker = Broker::<u64>::new();
    /// let config = SubscriptionConfig::at_least_once(16).ack_policy(AckPolicy::OnSuccess).max_deliveries(3);
    /// let mut booked = HashSet::new();
    /// let orders = broker.subscribe("orders", config, move |order| match **order {
    ///     0 => Err("no such order"),
    ///     id if booked.contains(&id) => Ok(()),
    ///     id => {
    ///         booked.insert(id);
    ///         Ok(())
    ///     }
    /// })?;
    /// for id in [7, 0, 7] {
    ///     broker.publish("orders", id)?;
    /// }
    /// let end = orders.drain(Duration::from_secs(60)).metrics;
    /// assert_eq!((end.acked, end.dead, end.failed, end.redelivered), (2, 1, 3, 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn at_least_once(queue_capacity: usize) -> Self {
        Self::new(DeliveryMode::AtLeastOnce, queue_capacity)
    }

    /// A name for metrics, events and the thread. Default: the filter, `#`, and the subscription's number.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// How the worker (or a receiver's blocking call) waits. Default: [`WaitStrategy::Park`].
    pub fn wait_strategy(mut self, strategy: WaitStrategy) -> Self {
        self.wait_strategy = strategy;
        self
    }

    /// The name of the worker's thread, instead of the broker's and the subscription's; cut to what the system keeps (15 bytes on Linux).
    pub fn thread_name(mut self, name: impl Into<String>) -> Self {
        self.thread_name = Some(name.into());
        self
    }

    /// Binds the worker's thread to a core, by its raw number; `subscribe` fails if it cannot be had. Linux only.
    pub fn pin_to_core(mut self, core: usize) -> Self {
        self.pin_to_core = Some(core);
        self
    }

    /// Runs on the worker's thread before its first message: the place to set a priority. A panic in it is contained and counted.
    pub fn on_thread_start(mut self, hook: impl Fn() + Send + Sync + 'static) -> Self {
        self.on_thread_start = Some(Arc::new(hook));
        self
    }

    /// What acks. At-least-once only. Default: [`AckPolicy::Manual`].
    pub fn ack_policy(mut self, policy: AckPolicy) -> Self {
        self.ack_policy = Some(policy);
        self
    }

    /// How long an unsettled message may take, from the begin of its call, before it is put back; `Duration::MAX` is for ever.
    /// At-least-once only. Default: 30 s.
    pub fn ack_timeout(mut self, timeout: Duration) -> Self {
        self.ack_timeout = Some(timeout);
        self
    }

    /// How many messages may be unsettled at once. At-least-once only. Default: the queue's capacity.
    pub fn max_pending(mut self, messages: usize) -> Self {
        self.max_pending = Some(messages);
        self
    }

    /// How long a message that failed stays put back: `first`, doubled for each further attempt, `most` at most. A zero `first` is "at once".
    /// At-least-once only. Default: 1 ms to 1 s.
    pub fn backoff(mut self, first: Duration, most: Duration) -> Self {
        self.backoff = Some((first, most));
        self
    }

    /// How often a message is delivered before it is given up. At-least-once only. Default: no limit.
    pub fn max_deliveries(mut self, attempts: u32) -> Self {
        self.max_deliveries = Some(attempts);
        self
    }

    /// The topic to which messages that are given up go. At-least-once only. Default: none; they are counted and gone.
    pub fn dead_letter(mut self, topic: impl Into<String>) -> Self {
        self.dead_letter = Some(topic.into());
        self
    }

    /// Checks everything that can be checked without a broker. `receiver`: for the pull form.
    pub(crate) fn check(self, receiver: bool) -> Result<Settings, SubscribeError> {
        let invalid = |option, reason| Err(SubscribeError::InvalidOption { option, reason });
        if self.queue_capacity == 0 {
            return invalid("queue_capacity", "it must be at least 1");
        }
        if self.mode == DeliveryMode::AtMostOnce {
            let set = [
                ("ack_policy", self.ack_policy.is_some()),
                ("ack_timeout", self.ack_timeout.is_some()),
                ("max_pending", self.max_pending.is_some()),
                ("backoff", self.backoff.is_some()),
                ("max_deliveries", self.max_deliveries.is_some()),
                ("dead_letter", self.dead_letter.is_some()),
            ];
            if let Some((option, _)) = set.into_iter().find(|(_, set)| *set) {
                return invalid(option, "it belongs to at-least-once mode");
            }
        }
        if receiver {
            let set = [
                ("thread_name", self.thread_name.is_some()),
                ("pin_to_core", self.pin_to_core.is_some()),
                ("on_thread_start", self.on_thread_start.is_some()),
            ];
            if let Some((option, _)) = set.into_iter().find(|(_, set)| *set) {
                return invalid(option, "a receiver has no thread of its own");
            }
            if self.ack_policy == Some(AckPolicy::OnSuccess) {
                return invalid("ack_policy", "a receiver has no handler whose success could ack");
            }
        }
        if self.max_pending == Some(0) {
            return invalid("max_pending", "it must be at least 1");
        }
        if self.max_deliveries == Some(0) {
            return invalid("max_deliveries", "it must be at least 1");
        }
        if self.ack_timeout == Some(Duration::ZERO) {
            return invalid(
                "ack_timeout",
                "every message would expire at once; `Duration::MAX` never expires",
            );
        }
        let (first, most) = self.backoff.unwrap_or((Duration::from_millis(1), Duration::from_secs(1)));
        if first > most {
            return invalid("backoff", "the first delay is longer than the longest");
        }
        if let Some(target) = &self.dead_letter
            && let Err(reason) = name::check(target)
        {
            return invalid("dead_letter", reason.text());
        }
        if self.thread_name.as_ref().is_some_and(|name| name.contains('\0')) {
            return invalid("thread_name", "a thread's name has no NUL");
        }
        Ok(Settings {
            mode: self.mode,
            receiver,
            queue_capacity: self.queue_capacity,
            name: self.name,
            wait_strategy: self.wait_strategy,
            thread_name: self.thread_name,
            pin_to_core: self.pin_to_core,
            on_thread_start: self.on_thread_start,
            ack_on_success: self.ack_policy == Some(AckPolicy::OnSuccess),
            ack_timeout: nanoseconds(self.ack_timeout.unwrap_or(Duration::from_secs(30))),
            max_pending: match self.mode {
                DeliveryMode::AtMostOnce => 0,
                DeliveryMode::AtLeastOnce => self.max_pending.unwrap_or(self.queue_capacity),
            },
            backoff: Backoff { first: nanoseconds(first), most: nanoseconds(most) },
            max_deliveries: self.max_deliveries.unwrap_or(u32::MAX),
            dead_letter: self.dead_letter,
        })
    }
}

impl fmt::Debug for SubscriptionConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SubscriptionConfig")
            .field("mode", &self.mode)
            .field("queue_capacity", &self.queue_capacity)
            .field("name", &self.name)
            .field("wait_strategy", &self.wait_strategy)
            .field("ack_policy", &self.ack_policy)
            .field("ack_timeout", &self.ack_timeout)
            .field("max_pending", &self.max_pending)
            .field("backoff", &self.backoff)
            .field("max_deliveries", &self.max_deliveries)
            .field("dead_letter", &self.dead_letter)
            .finish_non_exhaustive()
    }
}

/// A configuration that has been checked; times in nanoseconds.
pub struct Settings {
    pub mode: DeliveryMode,
    pub receiver: bool,
    pub queue_capacity: usize,
    pub name: Option<String>,
    pub wait_strategy: WaitStrategy,
    pub thread_name: Option<String>,
    pub pin_to_core: Option<usize>,
    pub on_thread_start: Option<ThreadStart>,
    pub ack_on_success: bool,
    pub ack_timeout: u64,
    pub max_pending: usize,
    pub backoff: Backoff,
    pub max_deliveries: u32,
    pub dead_letter: Option<String>,
}

impl Settings {
    /// Whether each call needs to know when it began.
    pub fn needs_clock(&self) -> bool {
        self.mode == DeliveryMode::AtLeastOnce && self.ack_timeout != NEVER
    }
}

/// The delay of a message that failed.
#[derive(Debug, Clone, Copy)]
pub struct Backoff {
    first: u64,
    most: u64,
}

impl Backoff {
    /// After the attempt of this number, from 1: `first` doubled for each attempt before, `most` at most.
    pub fn delay(self, attempt: u32) -> u64 {
        let doublings = attempt.saturating_sub(1);
        if self.first == 0 || doublings > self.first.leading_zeros() {
            return if self.first == 0 { 0 } else { self.most };
        }
        (self.first << doublings).min(self.most)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_backoff_doubles_to_its_limit_and_does_not_wrap() {
        let backoff = Backoff { first: 3, most: 50 };
        assert_eq!([1, 2, 3, 4, 5, 6].map(|n| backoff.delay(n)), [3, 6, 12, 24, 48, 50]);
        assert_eq!([63, 64, 65, u32::MAX].map(|n| backoff.delay(n)), [50; 4]);
        assert_eq!(Backoff { first: 0, most: 50 }.delay(9), 0);
        assert_eq!(Backoff { first: u64::MAX, most: u64::MAX }.delay(1), u64::MAX);
        assert_eq!(Backoff { first: 1 << 62, most: u64::MAX }.delay(2), 1 << 63);
    }

    #[test]
    fn options_of_the_other_mode_are_named() {
        let config = SubscriptionConfig::at_most_once(1).max_deliveries(3);
        let Err(SubscribeError::InvalidOption { option, .. }) = config.check(false) else { panic!() };
        assert_eq!(option, "max_deliveries");
    }

    #[test]
    fn the_never_type_is_an_outcome() {
        fn takes<R: IntoOutcome>(_: impl FnMut() -> R) {}
        takes(|| -> ! { panic!() });
    }
}
