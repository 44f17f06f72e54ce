//! For the tests of at-least-once: a subscription on a clock that is moved by hand, and a record of its calls.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fanout::{
    AckError, Broker, Event, ManualClock, Message, MessageId, Outcome, Received, Receiver, Subscription,
    SubscriptionConfig, SubscriptionState, TryRecvError,
};

use super::support::{conserved, wait_until};

pub const MS: Duration = Duration::from_millis(1);
/// The shortest time.
pub const TICK: Duration = Duration::from_nanos(1);
pub const HOUR: Duration = Duration::from_secs(3600);

pub const NOT_PENDING: Result<(), AckError> = Err(AckError::NotPending);
pub const CLOSED: Result<(), AckError> = Err(AckError::Closed);

/// At least once, with a time limit that no test reaches by accident.
pub fn config(capacity: usize) -> SubscriptionConfig {
    SubscriptionConfig::at_least_once(capacity).ack_timeout(Duration::MAX)
}

/// A broker whose time stands still.
pub fn timed<T: Clone + Send + 'static>() -> (Broker<T>, ManualClock) {
    let clock = ManualClock::new();
    (Broker::builder().clock(clock.clone()).build(), clock)
}

/// A list that the test and others write and read.
pub struct Log<E>(Arc<Mutex<Vec<E>>>);

impl<E: Clone> Log<E> {
    pub fn new() -> Self {
        Self(Arc::default())
    }

    pub fn push(&self, entry: E) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
    }

    pub fn all(&self) -> Vec<E> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn len(&self) -> usize {
        self.all().len()
    }

    #[track_caller]
    pub fn wait_for(&self, entries: usize) {
        wait_until(|| self.len() >= entries);
    }
}

impl<E> Clone for Log<E> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// A handler call: of which message, its attempt, and the clock when it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    pub value: u64,
    pub attempt: u32,
    pub at: Duration,
    pub id: MessageId,
}

/// The payload that asks the worker for a sign of life.
const PROBE: u64 = u64::MAX;

/// A subscription to `t` with its broker, its clock, the calls of its handler and the events of its hook.
pub struct Subject {
    pub broker: Broker<u64>,
    pub clock: ManualClock,
    pub subscription: Subscription<u64>,
    pub calls: Log<Call>,
    pub events: Log<Event>,
    probes: Log<()>,
}

impl Subject {
    /// With a handler whose calls are recorded as they begin.
    pub fn new(
        config: SubscriptionConfig,
        mut handler: impl FnMut(&Message<u64>) -> Outcome + Send + 'static,
    ) -> Self {
        let (clock, calls, events, probes) = (ManualClock::new(), Log::new(), Log::new(), Log::new());
        let hook = {
            let events = events.clone();
            move |event: &Event| events.push(event.clone())
        };
        let broker = Broker::builder().clock(clock.clone()).on_event(hook).build();
        let handler = {
            let (clock, calls, probes) = (clock.clone(), calls.clone(), probes.clone());
            move |message: &Message<u64>| {
                if **message == PROBE {
                    message.ack().unwrap();
                    probes.push(());
                    return Outcome::Handled;
                }
                let (value, attempt, id) = (**message, message.attempt(), message.id());
                calls.push(Call { value, attempt, at: clock.now(), id });
                handler(message)
            }
        };
        let subscription = broker.subscribe("t", config, handler).unwrap();
        Self { broker, clock, subscription, calls, events, probes }
    }

    pub fn publish(&self, values: impl IntoIterator<Item = u64>) {
        for value in values {
            self.broker.publish("t", value).unwrap();
        }
    }

    /// Returns when the worker has done all that is due by now. Each probe is a message; the first may overtake what has just become
    /// due, and what this puts back comes after the second.
    #[track_caller]
    pub fn settle(&self) {
        for _ in 0..3 {
            let before = self.probes.len();
            self.publish([PROBE]);
            self.probes.wait_for(before + 1);
        }
    }

    #[track_caller]
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
        self.settle();
    }

    /// The calls so far: value and attempt.
    pub fn seen(&self) -> Vec<(u64, u32)> {
        self.calls.all().iter().map(|call| (call.value, call.attempt)).collect()
    }

    /// Acks by the test, without the probes.
    pub fn acked(&self) -> u64 {
        self.subscription.metrics().acked - self.probes.len() as u64
    }

    /// Returns when the worker waits at its pending limit after `delivered` calls.
    #[track_caller]
    pub fn wait_stalled(&self, delivered: u64) {
        wait_until(|| {
            let metrics = self.subscription.metrics();
            metrics.state == SubscriptionState::StalledAtPendingLimit && metrics.delivered == delivered
        });
    }

    #[track_caller]
    pub fn conserved(&self) {
        conserved(&self.subscription.metrics());
    }
}

/// Takes what `receiver` gives, without waiting.
pub fn take_all<T>(receiver: &mut Receiver<T>) -> Vec<Received<T>> {
    std::iter::from_fn(|| receiver.try_recv().ok()).collect()
}

/// The same: values and attempts.
pub fn seen(receiver: &mut Receiver<u64>) -> Vec<(u64, u32)> {
    take_all(receiver).iter().map(|message| (**message, message.attempt())).collect()
}

/// Why `receiver` gives nothing.
#[track_caller]
pub fn refusal<T>(receiver: &mut Receiver<T>) -> TryRecvError {
    match receiver.try_recv() {
        Ok(message) => panic!("it gave message {}, attempt {}", message.seq(), message.attempt()),
        Err(error) => error,
    }
}
