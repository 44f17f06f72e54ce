//! Scripts of calls on one thread and a clock moved by hand, run on a receiver and on a model of what the contract says.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use fanout::{
    AckError, Broker, ManualClock, MessageId, Receiver, SubscriptionConfig, SubscriptionMetrics,
    SubscriptionRef, SubscriptionState, TryRecvError,
};
use proptest::prelude::*;

use crate::acks::MS;
use crate::support::{conserved, scale};

#[derive(Debug, Clone, Copy)]
enum Op {
    Publish,
    Recv,
    /// Of the message that was received as the nth.
    Ack(usize),
    Nack(usize, Option<u64>),
    /// By so many milliseconds.
    Advance(u64),
    /// Drops the receiver.
    End,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        24 => Just(Op::Publish),
        36 => Just(Op::Recv),
        12 => any::<usize>().prop_map(Op::Ack),
        12 => (any::<usize>(), prop::option::of(0_u64..40)).prop_map(|(which, delay)| Op::Nack(which, delay)),
        15 => (0_u64..40).prop_map(Op::Advance),
        1 => Just(Op::End),
    ]
}

#[derive(Debug, Clone, Copy)]
struct Setup {
    capacity: usize,
    max_pending: usize,
    timeout: Option<u64>,
    backoff: (u64, u64),
    max_deliveries: Option<u32>,
}

fn setup() -> impl Strategy<Value = Setup> {
    let limits = (1_usize..6, 1_usize..6, prop::option::weighted(0.8, 1_u64..60));
    let tries = ((0_u64..10, 0_u64..30), prop::option::of(1_u32..4));
    (limits, tries).prop_map(|((capacity, max_pending, timeout), ((first, more), max_deliveries))| Setup {
        capacity,
        max_pending,
        timeout,
        backoff: (first, first + more),
        max_deliveries,
    })
}

/// Where a pending message stands; times in milliseconds.
#[derive(Debug, Clone, Copy)]
enum State {
    Awaiting {
        deadline: u64,
    },
    /// By a nack: the receiver's next call acts on it.
    Nacked {
        due: u64,
        mark: u64,
    },
    /// Behind the messages before `mark`; together with those of the same `pass`. An ack settles it unless a nack put it there.
    PutBack {
        due: u64,
        mark: u64,
        pass: u64,
        settles: bool,
    },
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    attempts: u32,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
struct Got {
    seq: u64,
    attempt: u32,
    dropped_before: u64,
}

/// The contract.
#[derive(Debug)]
struct Model {
    setup: Setup,
    now: u64,
    published: u64,
    queue: VecDeque<u64>,
    /// By `seq`.
    pending: BTreeMap<u64, Pending>,
    next_seq: u64,
    passes: u64,
    stalled: bool,
    ended: bool,
    enqueued: u64,
    delivered: u64,
    redelivered: u64,
    dropped: u64,
    discarded: u64,
    acked: u64,
    dead: Vec<u64>,
}

impl Model {
    fn new(setup: Setup) -> Self {
        Self {
            setup,
            now: 0,
            published: 0,
            queue: VecDeque::new(),
            pending: BTreeMap::new(),
            next_seq: 0,
            passes: 0,
            stalled: false,
            ended: false,
            enqueued: 0,
            delivered: 0,
            redelivered: 0,
            dropped: 0,
            discarded: 0,
            acked: 0,
            dead: Vec::new(),
        }
    }

    /// Subscriptions that heard it, messages that made way.
    fn publish(&mut self) -> (usize, usize) {
        let seq = self.published;
        self.published += 1;
        if self.ended {
            return (0, 0);
        }
        self.enqueued += 1;
        self.queue.push_back(seq);
        let full = self.queue.len() > self.setup.capacity;
        if full {
            self.queue.pop_front();
            self.dropped += 1;
        }
        (1, usize::from(full))
    }

    fn ack(&mut self, seq: u64) -> Result<(), AckError> {
        if self.ended {
            return Err(AckError::Closed);
        }
        let state = self.pending.get(&seq).ok_or(AckError::NotPending)?.state;
        if matches!(state, State::Nacked { .. } | State::PutBack { settles: false, .. }) {
            return Err(AckError::NotPending);
        }
        self.pending.remove(&seq);
        self.acked += 1;
        Ok(())
    }

    fn nack(&mut self, seq: u64, delay: Option<u64>) -> Result<(), AckError> {
        if self.ended {
            return Err(AckError::Closed);
        }
        let (first, most) = self.setup.backoff;
        let Pending { attempts, state } = self.pending.get_mut(&seq).ok_or(AckError::NotPending)?;
        if !matches!(state, State::Awaiting { .. }) {
            return Err(AckError::NotPending);
        }
        let delay = delay.unwrap_or(most.min(first << (*attempts - 1).min(20)));
        *state = State::Nacked { due: self.now + delay, mark: self.published };
        Ok(())
    }

    /// Puts back these, together, or gives them up.
    fn put_back(&mut self, together: Vec<(u64, u64, u64, bool)>) {
        self.passes += 1;
        for (seq, due, mark, settles) in together {
            let entry = self.pending.get_mut(&seq).unwrap();
            if self.setup.max_deliveries.is_some_and(|most| entry.attempts >= most) {
                self.pending.remove(&seq);
                self.dead.push(seq);
            } else {
                entry.state = State::PutBack { due, mark, pass: self.passes, settles };
            }
        }
    }

    fn recv(&mut self) -> Result<Got, TryRecvError> {
        let (now, published) = (self.now, self.published);
        let nacked = self.pending.iter().filter_map(|(seq, pending)| match pending.state {
            State::Nacked { due, mark } => Some((*seq, due, mark, false)),
            _ => None,
        });
        self.put_back(nacked.collect());
        let expired = self.pending.iter().filter_map(|(seq, pending)| match pending.state {
            State::Awaiting { deadline } if deadline <= now => Some((*seq, now, published, true)),
            _ => None,
        });
        self.put_back(expired.collect());
        let turn = self.pending.iter().filter_map(|(seq, pending)| match pending.state {
            State::PutBack { due, mark, pass, .. } if due <= now => Some((mark, pass, *seq)),
            _ => None,
        });
        let turn = turn.min();
        let full = self.pending.len() == self.setup.max_pending;
        let deadline = self.setup.timeout.map_or(u64::MAX, |timeout| now + timeout);
        self.stalled = full && turn.is_none();
        let queued = self.queue.front().copied().filter(|_| !full);
        match (turn, queued) {
            (Some((mark, _, seq)), queued) if queued.is_none_or(|queued| queued >= mark) => {
                let entry = self.pending.get_mut(&seq).unwrap();
                entry.attempts += 1;
                entry.state = State::Awaiting { deadline };
                self.delivered += 1;
                self.redelivered += 1;
                Ok(Got { seq, attempt: entry.attempts, dropped_before: 0 })
            }
            (_, Some(seq)) => {
                self.queue.pop_front();
                self.pending.insert(seq, Pending { attempts: 1, state: State::Awaiting { deadline } });
                let dropped_before = seq - self.next_seq;
                self.next_seq = seq + 1;
                self.delivered += 1;
                Ok(Got { seq, attempt: 1, dropped_before })
            }
            _ if full => Err(TryRecvError::PendingLimit),
            _ => Err(TryRecvError::Empty),
        }
    }

    fn end(&mut self) {
        self.discarded += (self.queue.len() + self.pending.len()) as u64;
        self.queue.clear();
        self.pending.clear();
        self.ended = true;
    }

    fn check(&self, metrics: &SubscriptionMetrics) -> Result<(), TestCaseError> {
        let state = match (self.ended, self.stalled) {
            (true, _) => SubscriptionState::Ended,
            (_, true) => SubscriptionState::StalledAtPendingLimit,
            _ => SubscriptionState::Idle,
        };
        prop_assert_eq!(metrics.state, state);
        prop_assert_eq!(
            (metrics.depth, metrics.pending, metrics.enqueued, metrics.delivered, metrics.redelivered),
            (self.queue.len(), self.pending.len(), self.enqueued, self.delivered, self.redelivered)
        );
        prop_assert_eq!(
            (metrics.dropped, metrics.discarded, metrics.acked, metrics.dead),
            (self.dropped, self.discarded, self.acked, self.dead.len() as u64)
        );
        prop_assert_eq!((metrics.failed, metrics.panicked, metrics.rejected, metrics.in_hand), (0, 0, 0, 0));
        conserved(metrics);
        Ok(())
    }
}

/// The crate.
struct Real {
    broker: Broker<u64>,
    clock: ManualClock,
    receiver: Option<Receiver<u64>>,
    handle: SubscriptionRef<u64>,
    dead: Receiver<u64>,
    /// Each message that was received, once.
    ids: Vec<(u64, MessageId)>,
}

impl Real {
    fn new(setup: Setup) -> Self {
        let clock = ManualClock::new();
        let broker: Broker<u64> = Broker::builder().clock(clock.clone()).build();
        let timeout = setup.timeout.map_or(Duration::MAX, Duration::from_millis);
        let (first, most) = setup.backoff;
        let mut config = SubscriptionConfig::at_least_once(setup.capacity)
            .max_pending(setup.max_pending)
            .ack_timeout(timeout)
            .backoff(Duration::from_millis(first), Duration::from_millis(most))
            .dead_letter("dead");
        if let Some(most) = setup.max_deliveries {
            config = config.max_deliveries(most);
        }
        let receiver = broker.receiver("t", config).unwrap();
        let dead = broker.receiver("dead", SubscriptionConfig::at_most_once(1000)).unwrap();
        let handle = receiver.handle();
        Self { broker, clock, receiver: Some(receiver), handle, dead, ids: Vec::new() }
    }

    fn recv(&mut self) -> Option<Result<Got, TryRecvError>> {
        let receiver = self.receiver.as_mut()?;
        Some(receiver.try_recv().map(|message| {
            assert_eq!(*message, message.seq());
            match self.ids.iter().find(|(seq, _)| *seq == message.seq()) {
                Some((_, id)) => assert_eq!(*id, message.id(), "the id stays the same"),
                None => self.ids.push((message.seq(), message.id())),
            }
            Got { seq: message.seq(), attempt: message.attempt(), dropped_before: message.dropped_before() }
        }))
    }
}

fn run(setup: Setup, script: &[Op]) -> Result<(), TestCaseError> {
    let (mut model, mut real) = (Model::new(setup), Real::new(setup));
    let mut buried = Vec::new();
    for (step, op) in script.iter().enumerate() {
        let named =
            |which: usize, ids: &[(u64, MessageId)]| (!ids.is_empty()).then(|| ids[which % ids.len()]);
        match *op {
            Op::Publish => {
                let published = real.broker.publish("t", model.published).unwrap();
                prop_assert_eq!(published.seq, model.published);
                prop_assert_eq!(
                    (published.delivered_to, published.dropped),
                    model.publish(),
                    "step {}",
                    step
                );
            }
            Op::Recv => {
                if let Some(got) = real.recv() {
                    prop_assert_eq!(got, model.recv(), "step {}", step);
                }
            }
            Op::Ack(which) => {
                if let Some((seq, id)) = named(which, &real.ids) {
                    prop_assert_eq!(real.handle.ack(id), model.ack(seq), "step {}", step);
                }
            }
            Op::Nack(which, delay) => {
                if let Some((seq, id)) = named(which, &real.ids) {
                    let result = real.handle.nack(id, delay.map(Duration::from_millis));
                    prop_assert_eq!(result, model.nack(seq, delay), "step {}", step);
                }
            }
            Op::Advance(by) => {
                real.clock.advance(by as u32 * MS);
                model.now += by;
            }
            Op::End => {
                real.receiver = None;
                model.end();
            }
        }
        model.check(&real.handle.metrics())?;
        // What one call gives up may come in any order.
        let mut letters: Vec<u64> =
            std::iter::from_fn(|| real.dead.try_recv().ok()).map(|letter| *letter).collect();
        letters.sort_unstable();
        let mut expected = model.dead[buried.len()..].to_vec();
        expected.sort_unstable();
        prop_assert_eq!(&letters, &expected, "step {}", step);
        buried.extend(letters);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: scale(50_000) as u32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_receiver_does_what_the_contract_says(setup in setup(), script in prop::collection::vec(op(), 0..150)) {
        run(setup, &script)?;
    }
}
