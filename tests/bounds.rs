//! What may move between threads, and what the types ask of a payload. Checked as this file compiles.

use std::{
    cell::Cell,
    error::Error,
    fmt::{Debug, Display},
};

use fanout::{
    AckError, Acker, BatchError, Broker, BrokerBuilder, BrokerMetrics, Clock, DrainReport, Event,
    ManualClock, Message, MessageId, NameError, PublishError, PublishErrorKind, Received, Receiver,
    RecvError, RecvTimeoutError, RemoveTopicError, ShutdownReport, SubscribeError, Subscription,
    SubscriptionConfig, SubscriptionId, SubscriptionMetrics, SubscriptionRef, Topic, TopicError,
    TopicMetrics, TryPublishError, TryRecvError, WeakBroker, WeakTopic,
};

fn send<V: Send>() {}
fn send_sync<V: Send + Sync>() {}
fn clone<V: Clone>() {}
fn debug<V: Debug>() {}
fn shown<V: Debug + Display>() {}
fn error<V: Error>() {}

/// `Clone + Send + 'static`, and nothing else: `Cell` is not `Sync`.
type Payload = Cell<u32>;

/// Not even that.
struct Opaque;

#[test]
fn handles_are_send_and_sync_for_payloads_that_are_not_sync() {
    send_sync::<Broker<Payload>>();
    send_sync::<WeakBroker<Payload>>();
    send_sync::<Topic<Payload>>();
    send_sync::<WeakTopic<Payload>>();
    send_sync::<Subscription<Payload>>();
    send_sync::<SubscriptionRef<Payload>>();
    send::<Receiver<Payload>>();
    send::<Received<Payload>>();
    send::<BrokerBuilder<Payload>>();
    send_sync::<Acker>();
    send_sync::<(Clock, ManualClock, SubscriptionConfig, SubscriptionId, MessageId)>();
    send_sync::<(BrokerMetrics, SubscriptionMetrics, TopicMetrics, DrainReport, ShutdownReport, Event)>();
}

#[test]
fn handles_clone_without_a_payload_that_does() {
    clone::<Broker<Opaque>>();
    clone::<WeakBroker<Opaque>>();
    clone::<Topic<Opaque>>();
    clone::<WeakTopic<Opaque>>();
    clone::<SubscriptionRef<Opaque>>();
    clone::<(Acker, Clock, ManualClock, SubscriptionConfig, BrokerMetrics, Event)>();
    assert!(Broker::<Payload>::default().topics().is_empty());
    assert!(Broker::<Payload>::builder().clock(Clock::default()).build().topics().is_empty());
}

#[test]
fn handles_and_messages_can_be_debugged_whatever_the_payload() {
    debug::<Broker<Opaque>>();
    debug::<WeakBroker<Opaque>>();
    debug::<BrokerBuilder<Opaque>>();
    debug::<Topic<Opaque>>();
    debug::<WeakTopic<Opaque>>();
    debug::<Subscription<Opaque>>();
    debug::<SubscriptionRef<Opaque>>();
    debug::<Receiver<Opaque>>();
    debug::<(Acker, Clock, ManualClock, SubscriptionConfig)>();
}

#[test]
fn errors_are_errors_without_bounds_on_the_payload() {
    error::<PublishError<Opaque>>();
    error::<TryPublishError<Opaque>>();
    error::<BatchError<Opaque>>();
    error::<TopicError>();
    error::<RemoveTopicError>();
    error::<SubscribeError>();
    error::<NameError>();
    error::<AckError>();
    error::<TryRecvError>();
    error::<RecvError>();
    error::<RecvTimeoutError>();
    send_sync::<(TopicError, SubscribeError, PublishErrorKind)>();
    shown::<BrokerMetrics>();
    shown::<SubscriptionMetrics>();
}

#[test]
fn errors_read_as_sentences_and_give_the_payload_back() {
    let broker = Broker::<Payload>::new();
    let refused = broker.publish("a..b", Cell::new(77)).unwrap_err();
    let unheard = broker.topic("").unwrap_err();
    let filter = broker.receiver(".", SubscriptionConfig::at_most_once(1)).unwrap_err();
    let capacity = broker.receiver("t", SubscriptionConfig::at_most_once(0)).unwrap_err();
    for text in [refused.to_string(), unheard.to_string(), filter.to_string(), capacity.to_string()] {
        assert!(text.len() > 10 && !text.contains(['{', '(']), "{text}");
    }
    assert_eq!(refused.into_payload().get(), 77);
}

#[test]
fn every_way_to_say_how_a_call_went_is_taken() {
    let broker = Broker::<Payload>::new();
    let config = || SubscriptionConfig::at_most_once(1);
    let subscriptions = [
        broker.subscribe("t", config(), |_| ()).unwrap(),
        broker.subscribe("t", config(), |_| fanout::Outcome::Handled).unwrap(),
        broker.subscribe("t", config(), |_| Err::<(), _>("no")).unwrap(),
        broker.subscribe("t", config(), |_| Ok::<_, std::io::Error>(fanout::Outcome::Reject)).unwrap(),
        broker.subscribe("t", config(), |_| panic!("never returns")).unwrap(),
        broker.subscribe("t", config(), |message: &Message<Payload>| message.set(1)).unwrap(),
    ];
    assert_eq!(broker.topic("t").unwrap().subscriptions(), subscriptions.len());
}
