//! The broker: topics by name, subscriptions, and the end of them all.

mod builder;
mod shutdown;
mod subscribe;

use std::fmt;

use crate::account::Tally;
use crate::context::Context;
use crate::error::{PublishError, PublishErrorKind, RemoveTopicError, TopicError};
use crate::metrics::BrokerMetrics;
use crate::name;
use crate::registry::Registry;
use crate::sync::Mutex;
use crate::sync::weak::{Arc, Weak};
use crate::topic::{Closed, Published, Refusal, Topic, TopicCore, Wait};
pub use builder::BrokerBuilder;
pub use shutdown::{Shutdown, ShutdownReport};

/// An in-process publish/subscribe broker for payloads of one type. A handle: clones share one broker.
///
/// When the last `Broker` and the last [`Topic`] handle are gone, detached subscriptions end once they have delivered what is queued; guarded ones idle until
/// their guard goes. Dropping a handle waits for nothing.
pub struct Broker<T> {
    hub: Arc<Hub<T>>,
}

/// The registry of topics, behind all handles.
pub struct Hub<T> {
    context: Arc<Context<T>>,
    topics: Registry<TopicCore<T>>,
    topic_limit: usize,
    /// One change of the registry at a time.
    changes: Mutex<Changes>,
    /// Topics that have been removed, and the messages that had been published on them. Written under the lock of `changes`.
    removed: [Tally; 2],
}

/// What changes with the registry.
#[derive(Debug, Default)]
struct Changes {
    incarnations: u64,
}

impl<T: Clone + Send + 'static> Broker<T> {
    /// A broker with the defaults of [`Broker::builder`].
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// A broker to be configured.
    pub fn builder() -> BrokerBuilder<T> {
        BrokerBuilder::new()
    }

    /// A handle to the topic of this name, which is created if it does not exist. The way to publish often: it needs no look-up.
    ///
    /// # Errors
    ///
    /// [`TopicError`]: closed, no legal name, or one topic too many.
    pub fn topic(&self, name: &str) -> Result<Topic<T>, TopicError> {
        loop {
            let found = self.hub.topic(name, Topic::new)?;
            // A topic that was removed just now is found no more: look again.
            if let Some(topic) = found {
                return Ok(topic);
            }
        }
    }

    /// Publishes on the topic of this name, which is created if it does not exist.
    ///
    /// # Cost
    ///
    /// [`Topic::publish`], and a look-up: hashing the name, no lock. The first publish of a name waits for the registry.
    ///
    /// # Errors
    ///
    /// [`PublishErrorKind`]: closed, no legal name, or one topic too many; with the payload.
    ///
    /// # Panics
    ///
    /// As [`Topic::publish`].
    pub fn publish(&self, topic: &str, payload: T) -> Result<Published, PublishError<T>> {
        let mut payload = Some(payload);
        loop {
            let mut publish = |core: &Arc<TopicCore<T>>| {
                let value = payload.take().expect("taken once a round");
                core.publish(value, Wait::Yes, false).map_err(|(value, refusal)| {
                    payload = Some(value);
                    refusal
                })
            };
            let published = match self.hub.topics.with(topic, &mut publish) {
                Some(published) => published,
                None => match self.hub.topic(topic, publish) {
                    Ok(published) => published,
                    Err(error) => {
                        return Err(PublishError::new(payload.expect("not published"), kind(error)));
                    }
                },
            };
            match published {
                Ok(published) => return Ok(published),
                // A topic that was removed just now is found no more: look again.
                Err(Refusal::Closed(Closed::Removed)) => {}
                Err(_) => {
                    return Err(PublishError::new(payload.expect("not published"), PublishErrorKind::Closed));
                }
            }
        }
    }

    /// The names of its topics, in order.
    pub fn topics(&self) -> Vec<String> {
        self.hub.topics.all().iter().map(|topic| topic.name().to_string()).collect()
    }

    /// Removes a topic that has no subscription by exact name and no [`Topic`] handle. (A subscription's dead-letter topic counts as having a handle.) If the
    /// name is used again, its `seq` starts at 0, with a new incarnation.
    ///
    /// # Errors
    ///
    /// [`RemoveTopicError`]: not there, or in use.
    pub fn remove_topic(&self, name: &str) -> Result<(), RemoveTopicError> {
        let mut changes = self.hub.changes.lock();
        let topic = self.hub.topics.with(name, Arc::clone).ok_or(RemoveTopicError::NotFound)?;
        self.hub
            .remove(&mut changes, &topic)
            .map_err(|(subscriptions, handles)| RemoveTopicError::InUse { subscriptions, handles })
    }

    /// Removes every topic that [`Broker::remove_topic`] would; how many there were.
    pub fn remove_unused_topics(&self) -> usize {
        let mut changes = self.hub.changes.lock();
        self.hub.topics.all().iter().filter(|topic| self.hub.remove(&mut changes, topic).is_ok()).count()
    }

    /// Its numbers, and those of its topics and subscriptions. Stops no publish; waits only for a moment in which the list of subscriptions is being
    /// changed.
    pub fn metrics(&self) -> BrokerMetrics {
        let (topics, mut published) = loop {
            let before = self.hub.removed();
            let topics: Vec<_> = self.hub.topics.all().iter().map(|topic| topic.metrics()).collect();
            // A topic that was removed meanwhile may have been counted twice, or not at all.
            if self.hub.removed() == before {
                break (topics, before.1);
            }
        };
        published += topics.iter().map(|topic| topic.published).sum::<u64>();
        let context = &self.hub.context;
        let (cores, mut dropped, mut payload_panics): (Vec<_>, _, _) = {
            let members = context.members.lock();
            (members.cores.values().cloned().collect(), members.dropped, members.payload_panics)
        };
        let subscriptions: Vec<_> = cores.iter().map(|core| core.metrics()).collect();
        dropped += subscriptions.iter().map(|subscription| subscription.dropped).sum::<u64>();
        payload_panics += subscriptions.iter().map(|subscription| subscription.payload_panics).sum::<u64>();
        payload_panics += context.payload_panics.get();
        BrokerMetrics {
            topics,
            subscriptions,
            published,
            dropped,
            payload_panics,
            hook_panics: context.hook_panics.get(),
        }
    }

    /// A handle that keeps nothing alive: for handlers that publish or subscribe, so that they do not keep their own broker going.
    pub fn downgrade(&self) -> WeakBroker<T> {
        WeakBroker { hub: Arc::downgrade(&self.hub) }
    }
}

impl<T> Hub<T> {
    /// Calls `f` with the topic of this name, which is created if it does not exist.
    fn topic<R>(&self, name: &str, f: impl FnOnce(&Arc<TopicCore<T>>) -> R) -> Result<R, TopicError> {
        let mut changes = None;
        let found = match self.topics.with(name, Arc::clone) {
            Some(found) => found,
            None if self.context.is_closed() => return Err(TopicError::Closed),
            None => {
                name::checked(name).map_err(TopicError::InvalidName)?;
                let changes = changes.insert(self.changes.lock());
                match self.topics.with(name, Arc::clone) {
                    Some(found) => found,
                    None => self.create(changes, name)?,
                }
            }
        };
        drop(changes);
        if self.context.is_closed() {
            return Err(TopicError::Closed);
        }
        Ok(f(&found))
    }

    fn create(&self, changes: &mut Changes, name: &str) -> Result<Arc<TopicCore<T>>, TopicError> {
        if self.context.is_closed() {
            return Err(TopicError::Closed);
        }
        if self.topics.len() >= self.topic_limit {
            return Err(TopicError::TopicLimit { limit: self.topic_limit });
        }
        let topic = Arc::new(TopicCore::new(name, changes.incarnations, self.context.clone()));
        changes.incarnations += 1;
        self.topics.insert(name, topic.clone());
        Ok(topic)
    }

    fn removed(&self) -> (u64, u64) {
        (self.removed[0].get(), self.removed[1].get())
    }

    /// The caller holds the lock of the changes.
    fn remove(&self, _: &mut Changes, topic: &Arc<TopicCore<T>>) -> Result<(), (usize, usize)> {
        topic.remove()?;
        self.topics.remove(topic.name());
        self.removed[1].add_many(topic.published());
        self.removed[0].add();
        Ok(())
    }
}

fn kind(error: TopicError) -> PublishErrorKind {
    match error {
        TopicError::Closed => PublishErrorKind::Closed,
        TopicError::InvalidName(error) => PublishErrorKind::InvalidName(error.reason),
        TopicError::TopicLimit { limit } => PublishErrorKind::TopicLimit { limit },
    }
}

impl<T: Clone + Send + 'static> Default for Broker<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Clone for Broker<T> {
    fn clone(&self) -> Self {
        self.hub.context.add_handle();
        Self { hub: self.hub.clone() }
    }
}

impl<T> Drop for Broker<T> {
    fn drop(&mut self) {
        self.hub.context.drop_handle();
    }
}

impl<T> fmt::Debug for Broker<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker")
            .field("name", &self.hub.context.name)
            .field("topics", &self.hub.topics.len())
            .finish_non_exhaustive()
    }
}

/// A [`Broker`] handle that keeps nothing alive.
pub struct WeakBroker<T> {
    hub: Weak<Hub<T>>,
}

impl<T> WeakBroker<T> {
    /// A full handle, unless the last one is gone.
    pub fn upgrade(&self) -> Option<Broker<T>> {
        let hub = self.hub.upgrade()?;
        hub.context.try_add_handle().then(|| Broker { hub })
    }
}

impl<T> Clone for WeakBroker<T> {
    fn clone(&self) -> Self {
        Self { hub: self.hub.clone() }
    }
}

impl<T> fmt::Debug for WeakBroker<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakBroker").finish_non_exhaustive()
    }
}
