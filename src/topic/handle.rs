//! The handle to a topic: the way to publish without a look-up.

use std::fmt;

use crate::buffer::Heap;
use crate::error::{BatchError, PublishError, PublishErrorKind, TryPublishError};
use crate::metrics::TopicMetrics;
use crate::sync::weak::{Arc, Weak};
use crate::topic::publish::CHUNK;
use crate::topic::{Published, PublishedBatch, Refusal, TopicCore, User, Wait};

/// A handle to a topic. Cloning it is cheap; while one exists the topic cannot be removed, and detached subscriptions live on.
///
/// Publishes of one topic are put in order by its sequencer. A publish may wait for other publishers of the same topic that are inside, and for the
/// pointer swap of a subscribe or unsubscribe on it, never for a subscriber.
pub struct Topic<T> {
    core: Arc<TopicCore<T>>,
}

impl<T> Topic<T> {
    /// A handle to `core`, if it has not been removed. The caller has a broker handle.
    pub(crate) fn new(core: &Arc<TopicCore<T>>) -> Option<Self> {
        core.enter(User::Handle).then(|| {
            core.context().add_handle();
            Self { core: core.clone() }
        })
    }
}

impl<T: Clone + Send + 'static> Topic<T> {
    /// Appends `payload` to the ring of every subscription in the topic's list, and returns.
    ///
    /// # Cost
    ///
    /// Without contention: two atomic read-modify-writes, and for each subscription a store (a swap, if its ring is full). No allocation but
    /// those of `T::clone`, which is called once less than there are subscriptions (and, the first times, of an array for more clones than fit in
    /// 1 KiB, which is kept). A syscall for each worker that sleeps. Messages that
    /// are evicted are dropped on this thread, after the sequencer is left.
    ///
    /// # Errors
    ///
    /// [`PublishErrorKind::Closed`] after a shutdown, with the payload.
    ///
    /// # Panics
    ///
    /// If `T::clone` does: then nothing was published, and no `seq` was used. Panics of destructors are contained and counted.
    ///
    /// # Examples
    ///
    /// What does not fit makes the oldest go, and is counted:
    ///
    /// ```
    /// use fanout::{Broker, SubscriptionConfig};
    ///
    /// let broker = Broker::new();
    /// let topic = broker.topic("prices")?;
    /// let mut receiver = broker.receiver("prices", SubscriptionConfig::at_most_once(2))?;
    /// for price in [10, 11, 12] {
    ///     topic.publish(price)?;
    /// }
    /// let first = receiver.recv()?;
    /// assert_eq!((*first, first.seq(), first.dropped_before()), (11, 1, 1));
    /// assert_eq!(receiver.metrics().dropped, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn publish(&self, payload: T) -> Result<Published, PublishError<T>> {
        self.core.publish(payload, Wait::Yes, false).map_err(|(payload, _)| closed(payload))
    }

    /// [`Topic::publish`] that never waits: it hands the payload back if another publisher is inside. No syscall unless it has to wake a sleeper.
    ///
    /// # Errors
    ///
    /// [`TryPublishError::Contended`], or [`TryPublishError::Closed`] after a shutdown.
    ///
    /// # Panics
    ///
    /// As [`Topic::publish`].
    #[inline]
    pub fn try_publish(&self, payload: T) -> Result<Published, TryPublishError<T>> {
        self.core.publish(payload, Wait::No, false).map_err(|(payload, refusal)| match refusal {
            Refusal::Contended => TryPublishError::Contended(payload),
            Refusal::Closed(_) => TryPublishError::Closed(payload),
        })
    }

    /// Publishes all `payloads` in order, at most 32 at a time inside the sequencer: those are contiguous in the topic. The iterator runs
    /// outside it, and may do anything.
    ///
    /// # Cost
    ///
    /// Two atomic read-modify-writes for each 32 payloads; else as [`Topic::publish`]. The payloads of a chunk share one time stamp.
    ///
    /// # Errors
    ///
    /// After a shutdown, also one half-way, with what had been published and what had been pulled.
    ///
    /// # Panics
    ///
    /// If the iterator or `T::clone` does; chunks before have been published.
    pub fn publish_batch(
        &self,
        payloads: impl IntoIterator<Item = T>,
    ) -> Result<PublishedBatch, BatchError<T>> {
        let mut all = PublishedBatch { first_seq: None, count: 0, delivered_to: 0, dropped: 0 };
        let mut payloads = payloads.into_iter().fuse();
        let pool = &self.core.context().pool;
        let mut heap = Heap::take(pool);
        loop {
            let chunk = &mut heap.values;
            chunk.extend(payloads.by_ref().take(CHUNK));
            if chunk.is_empty() {
                heap.give(pool);
                return Ok(all);
            }
            match self.core.publish_chunk(chunk) {
                Ok(more) => {
                    all.first_seq = all.first_seq.or(more.first_seq);
                    all.count += more.count;
                    all.delivered_to += more.delivered_to;
                    all.dropped += more.dropped;
                }
                Err(_) => {
                    let unsent = std::mem::take(chunk);
                    return Err(BatchError { published: all, unsent, kind: PublishErrorKind::Closed });
                }
            }
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.core.name()
    }

    /// The subscriptions in its list.
    pub fn subscriptions(&self) -> usize {
        self.core.subscriptions()
    }

    /// Its numbers.
    pub fn metrics(&self) -> TopicMetrics {
        self.core.metrics()
    }

    /// A handle that keeps nothing alive: for handlers that publish, so that they do not keep their own broker going.
    pub fn downgrade(&self) -> WeakTopic<T> {
        WeakTopic { core: Arc::downgrade(&self.core) }
    }
}

#[cold]
fn closed<T>(payload: T) -> PublishError<T> {
    PublishError::new(payload, PublishErrorKind::Closed)
}

impl<T> TopicCore<T> {
    pub(crate) fn metrics(&self) -> TopicMetrics {
        let (published, subscriptions) = (self.published(), self.subscriptions());
        TopicMetrics { name: self.name().to_string(), published, subscriptions }
    }
}

impl<T> Clone for Topic<T> {
    fn clone(&self) -> Self {
        // Never `None`: this handle keeps the topic from being removed.
        Self::new(&self.core).expect("a topic with a handle is not removed")
    }
}

impl<T> Drop for Topic<T> {
    fn drop(&mut self) {
        self.core.leave(User::Handle);
        self.core.context().drop_handle();
    }
}

impl<T> fmt::Debug for Topic<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.fmt(f)
    }
}

/// A [`Topic`] handle that keeps neither the topic nor detached subscriptions alive.
pub struct WeakTopic<T> {
    core: Weak<TopicCore<T>>,
}

impl<T> WeakTopic<T> {
    /// A full handle, unless the topic has been removed or the last broker and topic handle is gone.
    pub fn upgrade(&self) -> Option<Topic<T>> {
        let core = self.core.upgrade()?;
        if !core.context().try_add_handle() {
            return None;
        }
        let topic = Topic::new(&core);
        core.context().drop_handle();
        topic
    }
}

impl<T> Clone for WeakTopic<T> {
    fn clone(&self) -> Self {
        Self { core: self.core.clone() }
    }
}

impl<T> fmt::Debug for WeakTopic<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakTopic").finish_non_exhaustive()
    }
}
