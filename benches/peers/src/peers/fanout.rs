//! `fanout` in its default configuration, through its public interface: a topic handle, a receiver where the row drains by
//! hand, a callback subscription where it needs delivery.

use fanout::{Broker, Message, SubscriptionConfig, WaitStrategy};

use crate::{
    audit::Payload,
    peer::{Batching, Consumer, Handler, Kind, Named, Parking, Publish, Receive, Seat, Spinning, Topic},
};

pub struct Fanout;

impl Named for Fanout {
    const NAME: &'static str = "fanout";
    const KIND: Kind = Kind::Subject;
}

const NAME: &str = "bench";

#[derive(Clone)]
pub struct Publisher {
    topic: fanout::Topic<Payload>,
    /// Subscriptions outlive no broker.
    broker: Broker<Payload>,
}

impl Publisher {
    fn new() -> Self {
        let broker = Broker::new();
        let topic = broker.topic(NAME).expect("a good name");
        Self { topic, broker }
    }

    fn receiver(&self, capacity: usize) -> Receiver {
        let config = SubscriptionConfig::at_most_once(capacity);
        Receiver(self.broker.receiver(NAME, config).expect("a good configuration"))
    }

    fn subscribe(
        &self,
        capacity: usize,
        wait: WaitStrategy,
        seat: Seat,
        mut handler: impl Handler,
    ) -> Consumer {
        let mut config = SubscriptionConfig::at_most_once(capacity).wait_strategy(wait);
        if let Some(core) = seat.core {
            config = config.pin_to_core(core);
        }
        let config = config.on_thread_start(move || seat.thread.fill());
        let subscription = self
            .broker
            .subscribe(NAME, config, move |message: &Message<Payload>| {
                handler(message.payload());
            })
            .expect("a good configuration");
        Consumer::new(move || subscription.unsubscribe().dropped)
    }
}

pub struct Receiver(fanout::Receiver<Payload>);

impl Publish for Publisher {
    #[inline]
    fn publish(&mut self, payload: Payload) {
        self.topic.publish(payload).expect("an open topic");
    }
}

impl Receive for Receiver {
    #[inline]
    fn take(&mut self) -> Option<Payload> {
        self.0.try_recv().ok().map(fanout::Received::into_payload)
    }

    fn dropped(&self) -> u64 {
        self.0.metrics().dropped
    }
}

impl Topic for Fanout {
    type Publisher = Publisher;
    type Receiver = Receiver;

    fn topic(capacity: usize, subscriptions: usize) -> (Publisher, Vec<Receiver>) {
        let publisher = Publisher::new();
        let receivers = (0..subscriptions).map(|_| publisher.receiver(capacity)).collect();
        (publisher, receivers)
    }
}

impl Spinning for Fanout {
    type Publisher = Publisher;

    fn spinning(capacity: usize, seat: Seat, handler: impl Handler) -> (Publisher, Consumer) {
        let publisher = Publisher::new();
        let consumer = publisher.subscribe(capacity, WaitStrategy::BusySpin, seat, handler);
        (publisher, consumer)
    }
}

impl Batching for Fanout {
    type Publisher = Publisher;

    fn batching(capacity: usize, seat: Seat, handler: impl Handler) -> (Publisher, Consumer) {
        Self::spinning(capacity, seat, handler)
    }

    #[inline]
    fn publish_batch(publisher: &mut Publisher, payloads: &[Payload]) {
        publisher.topic.publish_batch(payloads.iter().copied()).expect("an open topic");
    }
}

impl Parking for Fanout {
    fn parking<H: Handler>(
        capacity: usize,
        receivers: usize,
        seat: &Seat,
        handlers: Vec<H>,
    ) -> (Publisher, Vec<Receiver>, Vec<Consumer>) {
        let (publisher, receivers) = Self::topic(capacity, receivers);
        let consumers = handlers
            .into_iter()
            .map(|handler| publisher.subscribe(capacity, WaitStrategy::Park, seat.clone(), handler))
            .collect();
        (publisher, receivers, consumers)
    }
}
