//! Any string is a legal topic name or not, as the grammar says; every call agrees, and none panics.
#![no_main]

use fanout::{Broker, PublishErrorKind, SubscribeError, SubscriptionConfig, TopicError};
use libfuzzer_sys::fuzz_target;

/// Tokens with a dot between them, none empty, none a wildcard.
fn is_legal(name: &str) -> bool {
    name.split('.').all(|token| !matches!(token, "" | "*" | ">"))
}

fuzz_target!(|name: &str| {
    let broker = Broker::<u8>::new();
    let legal = is_legal(name);

    match broker.publish(name, 7) {
        Ok(published) => assert!(legal && published.seq == 0 && published.delivered_to == 0),
        Err(error) => {
            assert!(!legal && matches!(error.kind(), PublishErrorKind::InvalidName(_)));
            assert_eq!(error.into_payload(), 7);
        }
    }
    match broker.topic(name) {
        Ok(topic) => assert!(legal && topic.name() == name),
        Err(TopicError::InvalidName(error)) => assert!(!legal && error.name == name),
        Err(error) => panic!("{error}"),
    }
    match broker.receiver(name, SubscriptionConfig::at_most_once(1)) {
        Ok(mut receiver) => {
            assert!(legal && broker.publish(name, 9).is_ok_and(|published| published.delivered_to == 1));
            let received = receiver.try_recv().expect("it is queued");
            assert_eq!((received.topic(), *received), (name, 9));
        }
        Err(SubscribeError::InvalidFilter(error)) => assert!(!legal && error.name == name),
        Err(error) => panic!("{error}"),
    }
    assert_eq!(broker.topics(), if legal { vec![name.to_owned()] } else { Vec::new() });
});
