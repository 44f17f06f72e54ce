//! A subscription comes to be: checked, its thread started, registered, in that order, and undone on failure.

use std::panic::Location;

use crate::account::Account;
use crate::broker::Broker;
use crate::config::{DeliveryMode, IntoOutcome, Settings, SubscriptionConfig, TimeStamps};
use crate::error::{SubscribeError, TopicError};
use crate::message::{Message, SubscriptionId};
use crate::name;
use crate::pending::Table;
use crate::receiver::Receiver;
use crate::redelivery::Schedule;
use crate::ring::{Cursor, Producer, ring};
use crate::station::{Mode, Station};
use crate::subscription::{Core, Patience, Subscription};
use crate::sync::unique_number;
use crate::sync::weak::Arc;
use crate::topic::{TopicCore, User};
use crate::worker;

/// The parts of a subscription that is not in any list yet.
struct Parts<T> {
    core: Arc<Core<T>>,
    producer: Producer<T>,
    cursor: Cursor,
    mode: Mode<T>,
}

impl<T: Clone + Send + 'static> Broker<T> {
    /// Calls `handler` with every message of the topic `filter` from now on, one at a time and in order, on a thread of its own. The topic is created if it
    /// does not exist.
    ///
    /// The subscription sees every message whose publish began after this returned. Dropping it unsubscribes.
    ///
    /// # Errors
    ///
    /// [`SubscribeError`]; then nothing was created.
    ///
    /// # Examples
    ///
    /// ```
    /// use fanout::{Broker, SubscriptionConfig};
    /// use std::sync::mpsc;
    ///
    /// let broker = Broker::<&str>::new();
    /// let (tell, told) = mpsc::channel();
    /// let subscription = broker.subscribe("greetings", SubscriptionConfig::at_most_once(16), move |message| {
    ///     tell.send(format!("{} #{}", message.payload(), message.seq()))
    /// })?;
    /// broker.publish("greetings", "hello")?;
    /// assert_eq!(told.recv()?, "hello #0");
    /// let metrics = subscription.unsubscribe();
    /// assert_eq!((metrics.enqueued, metrics.delivered, metrics.dropped), (1, 1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn subscribe<R: IntoOutcome>(
        &self,
        filter: &str,
        config: SubscriptionConfig,
        handler: impl FnMut(&Message<T>) -> R + Send + 'static,
    ) -> Result<Subscription<T>, SubscribeError> {
        let mut settings = self.check(config, false)?;
        // Its captures are the subscriber's code: they go with the worker, on whose thread they are dropped.
        let start = settings.on_thread_start.take();
        let parts = self.prepare(filter, settings, Location::caller())?;
        let Parts { core, producer, cursor, mode } = parts;
        worker::spawn(&core, cursor, mode, start, handler).map_err(SubscribeError::Spawn)?;
        if let Err(error) = self.register(&core, producer, filter) {
            core.stop();
            core.wait_for_end(Patience::Forever);
            return Err(error);
        }
        Ok(Subscription::new(core))
    }

    /// The pull form: every message of the topic `filter` from now on, taken by the caller. The topic is created if it does not exist.
    ///
    /// # Errors
    ///
    /// [`SubscribeError`]; then nothing was created.
    #[track_caller]
    pub fn receiver(&self, filter: &str, config: SubscriptionConfig) -> Result<Receiver<T>, SubscribeError> {
        let parts = self.prepare(filter, self.check(config, true)?, Location::caller())?;
        let Parts { core, producer, cursor, mode } = parts;
        self.register(&core, producer, filter).inspect_err(|_| _ = core.stop())?;
        // `None` if a shutdown came in between: it has ended.
        Station::new(core, cursor, mode).map(Receiver::new).ok_or(SubscribeError::Closed)
    }

    fn check(&self, config: SubscriptionConfig, receiver: bool) -> Result<Settings, SubscribeError> {
        if self.hub.context.is_closed() { Err(SubscribeError::Closed) } else { config.check(receiver) }
    }

    /// Everything that needs memory and no thread.
    fn prepare(
        &self,
        filter: &str,
        mut settings: Settings,
        subscribed_at: &'static Location<'static>,
    ) -> Result<Parts<T>, SubscribeError> {
        name::checked(filter).map_err(SubscribeError::InvalidFilter)?;
        if settings.dead_letter.as_deref() == Some(filter) {
            return Err(SubscribeError::DeadLetterLoop { topic: filter.to_owned() });
        }
        let context = &self.hub.context;
        let (capacity, max_pending) = (settings.queue_capacity, settings.max_pending);
        let large = |option, requested| SubscribeError::CapacityTooLarge { option, requested };
        let tagged = context.stamps != TimeStamps::Off;
        let at_least_once = settings.mode == DeliveryMode::AtLeastOnce;
        // One slot for the worker, and one for each pending message.
        let too_large = || match max_pending > capacity {
            true => large("max_pending", max_pending),
            false => large("queue_capacity", capacity),
        };
        let spares = max_pending.checked_add(1).ok_or_else(too_large)?;
        let (producer, cursor, mut spares) = ring(capacity, spares, tagged).map_err(|_| too_large())?;
        let (table, mode) = if at_least_once {
            let table = Table::new(spares).map_err(|_| too_large())?;
            let schedule = Schedule::new(table.len()).map_err(|_| too_large())?;
            (Some(table), Mode::AtLeastOnce { schedule: Box::new(schedule) })
        } else {
            (None, Mode::AtMostOnce { spare: spares.pop() })
        };
        let id = unique_number();
        let name = settings.name.take().unwrap_or_else(|| format!("{filter}#{id}"));
        let (filter, delivery) = (filter.to_owned(), settings.mode);
        let account = |remote| {
            let (id, name) = (SubscriptionId(id), name.into());
            Account::new(id, name, filter, delivery, subscribed_at, capacity, max_pending, remote)
        };
        let core = Core::new(account, settings, producer.ring().clone(), table, context.clone());
        Ok(Parts { core, producer, cursor, mode })
    }

    /// Makes its topics, and puts it into the broker's register and the topic's list.
    fn register(
        &self,
        core: &Arc<Core<T>>,
        producer: Producer<T>,
        filter: &str,
    ) -> Result<(), SubscribeError> {
        // A topic that this call creates and then does not use must not stay.
        let fresh = !self.hub.topics.contains(filter);
        let topic = self.enter(filter, User::Subscription).map_err(in_subscribe)?;
        if let Some(target) = &core.settings.dead_letter {
            match self.enter(target, User::Handle) {
                Ok(target) => drop(core.dead_letter.set(target)),
                Err(error) => {
                    topic.leave(User::Subscription);
                    if fresh {
                        let _ = self.remove_topic(filter);
                    }
                    return Err(in_subscribe(error));
                }
            }
        }
        let admitted = {
            let mut members = self.hub.context.members.lock();
            let admitted = !self.hub.context.is_closed();
            if admitted {
                members.cores.insert(core.account.id.0, core.clone());
            }
            admitted
        };
        if !admitted {
            topic.leave(User::Subscription);
            return Err(SubscribeError::Closed);
        }
        core.start(&topic, producer);
        Ok(())
    }

    /// The topic of this name, counted as used.
    fn enter(&self, name: &str, user: User) -> Result<Arc<TopicCore<T>>, TopicError> {
        loop {
            // A topic that was removed just now is found no more: look again.
            if let Some(topic) = self.hub.topic(name, |topic| topic.enter(user).then(|| topic.clone()))? {
                return Ok(topic);
            }
        }
    }
}

fn in_subscribe(error: TopicError) -> SubscribeError {
    match error {
        TopicError::Closed => SubscribeError::Closed,
        TopicError::InvalidName(error) => SubscribeError::InvalidFilter(error),
        TopicError::TopicLimit { limit } => SubscribeError::TopicLimit { limit },
    }
}
