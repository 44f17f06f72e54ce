//! Many messages whose handlers fail, panic, ack early, late, from other threads, or never; and the books afterwards.

use std::{
    collections::VecDeque,
    panic::resume_unwind,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::Duration,
};

use fanout::{
    AckPolicy, Acker, Broker, EventKind, ManualClock, Message, Outcome, SubscriptionConfig,
    SubscriptionMetrics, TryRecvError,
};

use crate::acks::{Log, MS, config, timed};
use crate::support::{LIMIT, Ledger, Live, conserved, scale, wait_until, watchdog, within_bounds};

/// What is known of the calls and the settlements, from outside.
struct Book {
    /// Calls begun.
    begun: AtomicU64,
    /// By id: attempts so far.
    attempts: Vec<AtomicU32>,
    /// By id: the last call that may have begun before an ack returned `Ok`; 0 while there was none.
    settled: Vec<AtomicU64>,
    oks: AtomicU64,
    /// What must not happen; a panic would be lost in a handler.
    faults: Log<String>,
}

impl Book {
    fn new(messages: u64) -> Arc<Self> {
        Arc::new(Self {
            begun: AtomicU64::new(0),
            attempts: (0..messages).map(|_| AtomicU32::new(0)).collect(),
            settled: (0..messages).map(|_| AtomicU64::new(0)).collect(),
            oks: AtomicU64::new(0),
            faults: Log::new(),
        })
    }

    /// A call: the first statement of its handler.
    fn begins(&self, id: u64, attempt: u32) {
        let call = self.begun.fetch_add(1, SeqCst) + 1;
        let settled = self.settled[id as usize].load(SeqCst);
        if settled != 0 && call > settled {
            self.faults.push(format!("message {id} comes again after its ack, as attempt {attempt}"));
        }
        let before = self.attempts[id as usize].fetch_add(1, SeqCst);
        if attempt != before + 1 {
            self.faults.push(format!("message {id} comes as attempt {attempt} after {before}"));
        }
    }

    /// An ack, from anywhere. A call that is on its way to its first statement has begun already.
    fn ack(&self, id: u64, acker: &Acker) -> bool {
        let ok = acker.ack().is_ok();
        if ok {
            let last = self.begun.load(SeqCst) + 1;
            if self.settled[id as usize].swap(last, SeqCst) != 0 {
                self.faults.push(format!("message {id} was acked twice"));
            }
            self.oks.fetch_add(1, SeqCst);
        }
        ok
    }
}

/// An arbitrary number, the same each time.
fn scramble(id: u64, attempt: u32) -> u64 {
    let mut bits =
        id.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(attempt).wrapping_mul(0xD1B5_4A32_D192_ED03);
    bits ^= bits >> 29;
    bits.wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 32
}

/// Threads that ack what they are sent: at once, or a hundred acks later.
struct Ackers {
    senders: Vec<mpsc::Sender<(u64, Acker, bool)>>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Ackers {
    fn new(book: &Arc<Book>, count: usize) -> Self {
        let (senders, threads) = (0..count)
            .map(|_| {
                let (sender, acks) = mpsc::channel::<(u64, Acker, bool)>();
                let book = book.clone();
                let thread = thread::spawn(move || {
                    let mut late = VecDeque::new();
                    for (id, acker, delayed) in acks {
                        if delayed {
                            late.push_back((id, acker));
                        } else {
                            book.ack(id, &acker);
                        }
                        if late.len() > 100 {
                            let (id, acker) = late.pop_front().unwrap();
                            book.ack(id, &acker);
                        }
                    }
                    late.iter().for_each(|(id, acker)| {
                        book.ack(*id, acker);
                    });
                });
                (sender, thread)
            })
            .unzip();
        Self { senders, threads }
    }
}

/// Publishes all, now at the pace of the ring and now in bursts that overflow it; the number of messages that made way.
fn publish(
    broker: &Broker<Live>,
    ledger: &Ledger,
    messages: u64,
    metrics: impl Fn() -> SubscriptionMetrics,
) -> u64 {
    let topic = broker.topic("t").unwrap();
    let mut dropped = 0;
    for id in 0..messages {
        if id % 1000 < 900 {
            let room = || {
                let metrics = metrics();
                within_bounds(&metrics);
                metrics.depth < metrics.capacity
            };
            wait_until(room);
        }
        dropped += topic.publish(ledger.live(id)).unwrap().dropped as u64;
    }
    dropped
}

/// Moves the clock on until it is told to stop.
fn tick(clock: &ManualClock, stop: &Arc<AtomicBool>) -> thread::JoinHandle<()> {
    let (clock, stop) = (clock.clone(), stop.clone());
    thread::spawn(move || {
        while !stop.load(SeqCst) {
            clock.advance(MS / 10);
            thread::yield_now();
        }
    })
}

fn limits() -> SubscriptionConfig {
    config(128)
        .max_pending(64)
        .ack_timeout(20 * MS)
        .backoff(MS / 10, MS)
        .max_deliveries(6)
        .dead_letter("dead")
}

/// The books at the end, when nothing is queued or pending.
fn balance(book: &Book, last: &SubscriptionMetrics, published: u64, dropped: u64, letters: u64) {
    assert_eq!(book.faults.all(), [""; 0]);
    conserved(last);
    assert_eq!((last.enqueued, last.dropped, last.pending, last.discarded), (published, dropped, 0, 0));
    assert_eq!(last.delivered, book.begun.load(SeqCst));
    let tried: Vec<u64> = book.attempts.iter().map(|attempts| attempts.load(SeqCst).into()).collect();
    assert_eq!(
        last.redelivered,
        tried.iter().filter(|tries| **tries > 0).map(|tries| tries - 1).sum::<u64>()
    );
    assert_eq!(tried.iter().filter(|tries| **tries == 0).count() as u64, dropped, "evicted ones never came");
    assert!(tried.iter().all(|tries| *tries <= 6));
    assert_eq!(letters, last.dead + last.rejected);
    assert_eq!((last.dead_letter_failures, last.payload_panics), (0, 0));
}

fn storm(policy: AckPolicy, messages: u64) {
    watchdog(10 * LIMIT, move || {
        let (ledger, book, stop) = (Ledger::new(), Book::new(messages), Arc::new(AtomicBool::new(false)));
        let (broker, clock) = timed::<Live>();
        let ackers = Ackers::new(&book, 2);
        let handler = {
            let (book, senders) = (book.clone(), ackers.senders.clone());
            move |message: &Message<Live>| {
                let (id, attempt) = (message.id, message.attempt());
                book.begins(id, attempt);
                let dice = scramble(id, attempt);
                let send = |delayed| {
                    let sender = &senders[dice as usize / 64 % senders.len()];
                    sender.send((id, message.acker(), delayed)).unwrap();
                };
                match dice % 16 {
                    // At once, and then whatever comes.
                    0..4 => {
                        book.ack(id, &message.acker());
                        match dice / 16 % 8 {
                            0 => return Outcome::Failed,
                            1 => return Outcome::Reject,
                            2 => resume_unwind(Box::new("after its ack")),
                            _ => {}
                        }
                    }
                    // From another thread, during this call or after it, or much later.
                    4..7 => send(false),
                    7..9 => send(true),
                    9 => {
                        send(false);
                        return Outcome::Failed;
                    }
                    10 => return Outcome::Failed,
                    11 => resume_unwind(Box::new("storm")),
                    12 => drop(message.nack(None)),
                    13 => drop(message.nack(Some(Duration::from_micros(dice / 16 % 500)))),
                    14 if dice & 16 == 0 => return Outcome::Reject,
                    // Never (or, on success, by the call's end).
                    _ => {}
                }
                Outcome::Handled
            }
        };
        let subscription = broker.subscribe("t", limits().ack_policy(policy), handler).unwrap();
        let letters = {
            let ledger = ledger.clone();
            let check = move |message: &Message<Live>| assert!(ledger.alive_of(message.id) >= 1);
            broker.subscribe("dead", SubscriptionConfig::at_most_once(1 << 16), check).unwrap()
        };
        let ticker = tick(&clock, &stop);
        let dropped = publish(&broker, &ledger, messages, || subscription.metrics());
        wait_until(|| {
            let metrics = subscription.metrics();
            within_bounds(&metrics);
            metrics.pending == 0 && metrics.depth == 0 && metrics.in_hand == 0
        });
        stop.store(true, SeqCst);
        ticker.join().unwrap();
        let last = subscription.unsubscribe();
        drop(ackers.senders);
        ackers.threads.into_iter().for_each(|thread| thread.join().unwrap());
        let buried = broker.topic("dead").unwrap().metrics().published;
        balance(&book, &last, messages, dropped, buried);
        match policy {
            AckPolicy::OnSuccess => assert!(last.acked >= book.oks.load(SeqCst)),
            _ => assert_eq!(last.acked, book.oks.load(SeqCst)),
        }
        // Drops are left to chance: a worker may keep up with every burst.
        let calls = [last.failed, last.panicked, last.rejected, last.dead, last.redelivered];
        assert!(calls.iter().all(|count| *count > 0), "a storm that is none: {last:#?}");
        assert_eq!(broker.metrics().dropped, dropped + letters.metrics().dropped);
        let last = letters.drain(Duration::MAX).metrics;
        assert_eq!((last.panicked, last.enqueued), (0, buried));
        conserved(&last);
        ledger.assert_all_dropped();
    });
}

#[test]
fn a_storm_of_failures_panics_and_acks_from_everywhere() {
    storm(AckPolicy::Manual, scale(1_000_000));
}

#[test]
fn a_storm_in_which_success_acks() {
    storm(AckPolicy::OnSuccess, scale(1_000_000));
}

#[test]
fn a_storm_on_a_receiver() {
    watchdog(10 * LIMIT, || {
        let messages = scale(1_000_000);
        let (ledger, book, stop) = (Ledger::new(), Book::new(messages), Arc::new(AtomicBool::new(false)));
        let letters = Arc::new(AtomicU64::new(0));
        let clock = ManualClock::new();
        let hook = {
            let letters = letters.clone();
            move |event: &fanout::Event| {
                if let EventKind::DeadLettered { .. } = event.kind {
                    letters.fetch_add(1, SeqCst);
                }
            }
        };
        let broker: Broker<Live> = Broker::builder().clock(clock.clone()).on_event(hook).build();
        let ackers = Ackers::new(&book, 2);
        let mut receiver = broker.receiver("t", limits()).unwrap();
        let handle = receiver.handle();
        let (senders, its_book) = (ackers.senders.clone(), book.clone());
        let consumer = thread::spawn(move || {
            loop {
                let message = match receiver.try_recv() {
                    Ok(message) => message,
                    Err(TryRecvError::Closed) => return,
                    Err(TryRecvError::PendingLimit) => match receiver.recv() {
                        Ok(message) => message,
                        Err(_) => return,
                    },
                    Err(_) => {
                        thread::yield_now();
                        continue;
                    }
                };
                let (id, attempt) = (message.id, message.attempt());
                its_book.begins(id, attempt);
                let dice = scramble(id, attempt);
                match dice % 8 {
                    0..3 => drop(its_book.ack(id, &message.acker())),
                    3 => drop(message.nack(None)),
                    4 => drop(message.nack(Some(Duration::from_micros(dice / 16 % 500)))),
                    5 | 6 => {
                        let sender = &senders[dice as usize / 64 % senders.len()];
                        sender.send((id, message.acker(), dice % 8 == 6)).unwrap();
                    }
                    _ => {}
                }
            }
        });
        let ticker = tick(&clock, &stop);
        let dropped = publish(&broker, &ledger, messages, || handle.metrics());
        wait_until(|| {
            let metrics = handle.metrics();
            within_bounds(&metrics);
            metrics.pending == 0 && metrics.depth == 0
        });
        stop.store(true, SeqCst);
        ticker.join().unwrap();
        // Orphaned, empty and with nothing pending: it is told that this is the end.
        drop(broker);
        consumer.join().unwrap();
        drop(ackers.senders);
        ackers.threads.into_iter().for_each(|thread| thread.join().unwrap());
        let last = handle.metrics();
        balance(&book, &last, messages, dropped, letters.load(SeqCst));
        assert_eq!(last.acked, book.oks.load(SeqCst));
        assert!(last.dead > 0 && last.redelivered > 0 && last.dropped > 0, "a storm that is none: {last:#?}");
        ledger.assert_all_dropped();
    });
}
