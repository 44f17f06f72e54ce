//! How a broker is set up.

use std::fmt;
use std::marker::PhantomData;

use crate::broker::{Broker, Changes, Hub};
use crate::clock::Clock;
use crate::config::TimeStamps;
use crate::context::{Context, Hook};
use crate::event::Event;
use crate::registry::Registry;
use crate::sync::Mutex;
use crate::sync::weak::Arc;

/// Sets up a [`Broker`].
///
/// ```
/// use fanout::{Broker, TimeStamps};
///
/// let broker: Broker<String> = Broker::builder()
///     .name("ticks")
///     .topic_limit(10_000)
///     .time_stamps(TimeStamps::Every)
///     .on_event(|event| eprintln!("{event:?}"))
///     .build();
/// # drop(broker);
/// ```
#[must_use = "a builder does nothing until it is built"]
pub struct BrokerBuilder<T> {
    name: String,
    clock: Clock,
    topic_limit: usize,
    stamps: TimeStamps,
    hook: Option<Hook>,
    payload: PhantomData<fn(T) -> T>,
}

impl<T: Clone + Send + 'static> BrokerBuilder<T> {
    pub(super) fn new() -> Self {
        Self {
            name: "fanout".to_owned(),
            clock: Clock::default(),
            topic_limit: usize::MAX,
            stamps: TimeStamps::default(),
            hook: None,
            payload: PhantomData,
        }
    }

    /// A name, which is also the prefix of its threads' names. Default: `fanout`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Its clock. Default: the system's monotonic clock.
    pub fn clock(mut self, clock: impl Into<Clock>) -> Self {
        self.clock = clock.into();
        self
    }

    /// How many topics it has at most, so that names from outside cannot exhaust memory. Default: no limit.
    pub fn topic_limit(mut self, topics: usize) -> Self {
        self.topic_limit = topics;
        self
    }

    /// When publishes read the clock. Default: [`TimeStamps::Sampled`].
    pub fn time_stamps(mut self, stamps: TimeStamps) -> Self {
        self.stamps = stamps;
        self
    }

    /// A hook for what happens to subscriptions: it runs on the subscription's worker, before its next message. A panic in it is contained and counted.
    pub fn on_event(mut self, hook: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.hook = Some(Box::new(hook));
        self
    }

    /// The broker.
    pub fn build(self) -> Broker<T> {
        let context = Arc::new(Context::new(self.name, self.clock, self.stamps, self.hook));
        let changes = Mutex::new(Changes::default());
        let hub = Hub {
            context,
            topics: Registry::new(),
            topic_limit: self.topic_limit,
            changes,
            removed: Default::default(),
        };
        Broker { hub: Arc::new(hub) }
    }
}

impl<T> fmt::Debug for BrokerBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrokerBuilder").field("name", &self.name).finish_non_exhaustive()
    }
}
