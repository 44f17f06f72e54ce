//! The broker's side: one topic and three subscriptions for every symbol.

use std::collections::HashMap;
use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use fanout::{
    Broker, Message, Shutdown, ShutdownReport, SubscribeError, Subscription, SubscriptionConfig, Topic,
};

use crate::alerts::Alerts;

const FAST_QUEUE: usize = 8_192;
const SLOW_QUEUE: usize = 64;
const NAP: Duration = Duration::from_micros(200);
const NAP_EVERY: u64 = 4;
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// Names come from the input, and each costs three threads, so their number is limited.
const SYMBOL_LIMIT: usize = 256;

#[derive(Clone, Copy)]
pub struct Tick {
    /// Counts the published lines from 1.
    pub number: u64,
    pub price: f64,
}

pub struct Market {
    broker: Broker<Tick>,
    pub alerts: Alerts,
    index: HashMap<String, usize>,
    pub feeds: Vec<Feed>,
    pub published: u64,
    /// The sum of what every publish said that it dropped.
    pub dropped: u64,
}

pub struct Feed {
    topic: Topic<Tick>,
    pub fast: Watcher,
    pub slow: Watcher,
}

impl Market {
    pub fn open() -> Result<Self, SubscribeError> {
        let broker = Broker::builder().name("replay").topic_limit(SYMBOL_LIMIT + 1).build();
        Ok(Self {
            alerts: Alerts::open(&broker)?,
            broker,
            index: HashMap::new(),
            feeds: Vec::new(),
            published: 0,
            dropped: 0,
        })
    }

    /// Publishes on the symbol's topic, or says why this symbol cannot have one.
    pub fn publish(&mut self, symbol: &str, price: f64) -> Result<Option<&'static str>, Box<dyn Error>> {
        let feed = match self.index.get(symbol) {
            Some(&feed) => feed,
            None => match self.list(symbol) {
                Ok(feed) => feed,
                Err(SubscribeError::TopicLimit { .. }) => return Ok(Some("too many symbols")),
                Err(SubscribeError::DeadLetterLoop { .. }) => {
                    return Ok(Some("the topic of the dead letters"));
                }
                Err(error) => return Err(error.into()),
            },
        };
        let tick = Tick { number: self.published + 1, price };
        let published = self.feeds[feed].topic.publish(tick)?;
        self.published += 1;
        self.dropped += published.dropped as u64;
        Ok(None)
    }

    fn list(&mut self, symbol: &str) -> Result<usize, SubscribeError> {
        let name = format!("stocks.{symbol}");
        self.alerts.watch(&self.broker, symbol, &name)?;
        let fast = SubscriptionConfig::at_most_once(FAST_QUEUE).name(format!("{symbol} fast"));
        let slow = SubscriptionConfig::at_most_once(SLOW_QUEUE).name(format!("{symbol} slow"));
        let feed = Feed {
            fast: Watcher::subscribe(&self.broker, &name, fast, u64::MAX)?,
            slow: Watcher::subscribe(&self.broker, &name, slow, NAP_EVERY)?,
            topic: self.broker.topic(&name).expect("the subscriptions hold the topic"),
        };
        let place = self.feeds.len();
        self.feeds.push(feed);
        self.index.insert(symbol.to_owned(), place);
        Ok(place)
    }

    /// Ends the publishing and waits until every queue is empty; the metrics stay readable.
    pub fn close(&mut self) -> ShutdownReport {
        self.alerts.drain(DRAIN_LIMIT);
        self.broker.shutdown(Shutdown::Drain { deadline: DRAIN_LIMIT })
    }

    pub fn broker_totals(&self) -> (u64, u64) {
        let metrics = self.broker.metrics();
        (metrics.published, metrics.dropped)
    }
}

/// A subscription, and what its handler made of the messages.
pub struct Watcher {
    pub subscription: Subscription<Tick>,
    seen: Arc<Mutex<Seen>>,
}

impl Watcher {
    /// The handler naps after every `nap_every` messages.
    fn subscribe(
        broker: &Broker<Tick>,
        topic: &str,
        config: SubscriptionConfig,
        nap_every: u64,
    ) -> Result<Self, SubscribeError> {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let written = Arc::clone(&seen);
        let subscription = broker.subscribe(topic, config, move |message| {
            let count = {
                let mut seen = written.lock().expect("no handler panics");
                seen.take(message);
                seen.count
            };
            if count.is_multiple_of(nap_every) {
                thread::sleep(NAP);
            }
        })?;
        Ok(Self { subscription, seen })
    }

    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().expect("no handler panics")
    }
}

/// The statistics of one handler.
#[derive(Default)]
pub struct Seen {
    pub count: u64,
    pub min: f64,
    pub max: f64,
    /// Messages that came out of order, or whose `dropped_before` is not the hole before their `seq`.
    pub misplaced: u64,
    last_number: u64,
    next_seq: u64,
    window: [f64; Seen::WINDOW],
}

impl Seen {
    const WINDOW: usize = 12;

    fn take(&mut self, message: &Message<Tick>) {
        let in_order = message.number > self.last_number && message.seq() >= self.next_seq;
        if !in_order || message.dropped_before() != message.seq() - self.next_seq {
            self.misplaced += 1;
        }
        self.last_number = message.number;
        self.next_seq = message.seq() + 1;

        let first = self.count == 0;
        self.min = if first { message.price } else { self.min.min(message.price) };
        self.max = if first { message.price } else { self.max.max(message.price) };
        self.window[(self.count % Self::WINDOW as u64) as usize] = message.price;
        self.count += 1;
    }

    /// The mean of the last prices seen, twelve at most.
    pub fn moving_average(&self) -> Option<f64> {
        let filled = self.count.min(Self::WINDOW as u64) as usize;
        (filled > 0).then(|| self.window[..filled].iter().sum::<f64>() / filled as f64)
    }
}
