//! The at-least-once part: a watcher of price jumps for every symbol, which fails now and then, acks its alerts late and
//! from another thread, and always fails one message, so that it ends among the dead letters.

use std::io::{self, Write};
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use fanout::SubscriptionMetrics;
use fanout::{AckPolicy, Acker, Broker, Message, SubscribeError, Subscription, SubscriptionConfig};

use crate::market::Tick;
use crate::report::Accounts;

/// The topic of the dead letters is one of the `stocks`, so no symbol can have it.
const DEAD_LETTERS: &str = "stocks.dead";
const QUEUE: usize = 1_024;
const DEAD_QUEUE: usize = 4_096;
const MAX_DELIVERIES: u32 = 3;
const ACK_TIMEOUT: Duration = Duration::from_millis(100);
const ACK_DELAY: Duration = Duration::from_millis(1);

/// What is called a jump, as a share of the price before it.
const JUMP: f64 = 0.1;
const FAIL_EVERY: u64 = 97;
const FORGET_EVERY: u64 = 53;

pub struct Alerts {
    watchers: Vec<Subscription<Tick>>,
    ended: Vec<SubscriptionMetrics>,
    dead_letters: Subscription<Tick>,
    arrived: Arc<AtomicU64>,
    to_ack: mpsc::Sender<Acker>,
}

impl Alerts {
    pub fn open(broker: &Broker<Tick>) -> Result<Self, SubscribeError> {
        let arrived = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&arrived);
        let config = SubscriptionConfig::at_most_once(DEAD_QUEUE).name("dead letters");
        let dead_letters = broker.subscribe(DEAD_LETTERS, config, move |_| {
            count.fetch_add(1, Ordering::Relaxed);
        })?;
        let (to_ack, acks) = mpsc::channel();
        // It ends with the last sender: ours and those in the handlers.
        thread::Builder::new()
            .name("replay acker".into())
            .spawn(move || ack_late(&acks))
            .map_err(SubscribeError::Spawn)?;
        Ok(Self { watchers: Vec::new(), ended: Vec::new(), dead_letters, arrived, to_ack })
    }

    pub fn watch(&mut self, broker: &Broker<Tick>, symbol: &str, topic: &str) -> Result<(), SubscribeError> {
        let config = SubscriptionConfig::at_least_once(QUEUE)
            .name(format!("{symbol} alerts"))
            .ack_policy(AckPolicy::Manual)
            .ack_timeout(ACK_TIMEOUT)
            .max_deliveries(MAX_DELIVERIES)
            .dead_letter(DEAD_LETTERS);
        let mut watcher = Watcher::new(self.to_ack.clone());
        self.watchers.push(broker.subscribe(topic, config, move |tick| watcher.watch(tick))?);
        Ok(())
    }

    /// Ends the watchers once their queues are empty and everything is settled. To be called before the broker is shut down.
    pub fn drain(&mut self, limit: Duration) {
        let watchers = mem::take(&mut self.watchers);
        self.ended.extend(watchers.into_iter().map(|watcher| watcher.drain(limit).metrics));
    }

    /// Messages that the watchers' queues dropped, those that the queue of dead letters dropped, and dead letters.
    pub fn totals(&self) -> (u64, u64, u64) {
        let dead_letters = self.dead_letters.metrics();
        (self.ended.iter().map(|m| m.dropped).sum(), dead_letters.dropped, dead_letters.enqueued)
    }

    pub fn check(&self, published: u64, accounts: &mut Accounts) {
        let (mut dead, mut enqueued) = (0, 0);
        for m in &self.ended {
            let settled = m.acked + m.rejected + m.dead;
            let ended = settled + m.dropped + m.discarded + m.pending as u64 + m.depth as u64;
            let what = "enqueued = acked + rejected + dead + dropped + discarded + pending + depth";
            accounts.equal(&m.name, what, m.enqueued, ended);
            accounts.equal(&m.name, "discarded = 0", m.discarded, 0);
            accounts.equal(
                &m.name,
                "dead letters that could not be published = 0",
                m.dead_letter_failures,
                0,
            );
            // The first message that arrives is the one that always fails.
            accounts.equal(&m.name, "some message is dead = true", (m.dead > 0).into(), 1);
            accounts.equal(&m.name, "some message came again = true", (m.redelivered > 1).into(), 1);
            dead += m.dead;
            enqueued += m.enqueued;
        }
        let m = self.dead_letters.metrics();
        let arrived = self.arrived.load(Ordering::Relaxed);
        accounts.equal("alerts", "published = enqueued", published, enqueued);
        accounts.equal(&m.name, "dead = enqueued", dead, m.enqueued);
        accounts.equal(&m.name, "delivered = messages that the handler saw", m.delivered, arrived);
        let ended = m.delivered + m.dropped + m.discarded + m.depth as u64;
        accounts.equal(&m.name, "enqueued = delivered + dropped + discarded + depth", m.enqueued, ended);
    }

    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let wide = self.ended.iter().map(|m| m.name.chars().count()).max();
        let wide = wide.unwrap_or(0).max("subscription".len());
        write!(out, "{:wide$} {:>10} {:>10} {:>10} ", "subscription", "enqueued", "acked", "dropped")?;
        writeln!(
            out,
            "{:>9} {:>11} {:>8} {:>8} {:>6}",
            "delivered", "redelivered", "failed", "pending", "dead"
        )?;
        for m in &self.ended {
            write!(out, "{:wide$} {:>10} {:>10} {:>10} ", m.name, m.enqueued, m.acked, m.dropped)?;
            write!(out, "{:>9} {:>11} {:>8} ", m.delivered, m.redelivered, m.failed)?;
            writeln!(out, "{:>8} {:>6}", m.pending, m.dead)?;
        }
        writeln!(out, "{} dead letters arrived", self.arrived.load(Ordering::Relaxed))?;
        writeln!(out)
    }
}

/// The handler of one symbol.
struct Watcher {
    to_ack: mpsc::Sender<Acker>,
    poison: Option<u64>,
    last_price: f64,
    jumps: u64,
}

impl Watcher {
    fn new(to_ack: mpsc::Sender<Acker>) -> Self {
        Self { to_ack, poison: None, last_price: f64::NAN, jumps: 0 }
    }

    fn watch(&mut self, tick: &Message<Tick>) -> Result<(), &'static str> {
        if *self.poison.get_or_insert(tick.seq()) == tick.seq() {
            return Err("the first one always fails");
        }
        let first_attempt = tick.attempt() == 1;
        if first_attempt && tick.seq().is_multiple_of(FAIL_EVERY) {
            return Err("now and then one fails");
        }
        let change = (tick.price / self.last_price - 1.0).abs();
        self.last_price = tick.price;
        if change > JUMP {
            self.jumps += 1;
            // One that is forgotten comes back after the ack timeout.
            if !(first_attempt && self.jumps.is_multiple_of(FORGET_EVERY)) {
                self.to_ack.send(tick.acker()).map_err(|_| "the acker is gone")?;
            }
            return Ok(());
        }
        // It may be settled already, by the late ack of an earlier delivery.
        let _ = tick.ack();
        Ok(())
    }
}

fn ack_late(acks: &mpsc::Receiver<Acker>) {
    while let Ok(first) = acks.recv() {
        thread::sleep(ACK_DELAY);
        for acker in std::iter::once(first).chain(acks.try_iter()) {
            // Too late for a message that is dead by now; the metrics tell.
            let _ = acker.ack();
        }
    }
}
