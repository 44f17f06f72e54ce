//! What must not compile, each beside a twin that must, so that it fails for the reason named.

/// A payload must be `Send`: it moves to its subscribers' threads. It need not be `Sync`.
///
/// ```compile_fail
/// fanout::Broker::<std::rc::Rc<u32>>::new();
/// ```
/// ```compile_fail
/// fanout::Broker::<std::sync::Arc<std::sync::MutexGuard<'static, u32>>>::new();
/// ```
/// ```
/// fanout::Broker::<std::cell::Cell<u32>>::new();
/// ```
struct Payload;

/// Nor can one be shared between threads from within a handler, if it is not `Sync`.
///
/// ```compile_fail
/// fn shared<T: Sync>() {}
/// shared::<fanout::Message<std::cell::Cell<u32>>>();
/// ```
/// ```
/// fn shared<T: Sync>() {}
/// shared::<fanout::Message<u32>>();
/// ```
struct Shared;

/// A handler must be `Send`: it moves to its worker's thread.
///
/// ```compile_fail
/// let (broker, captured) = (fanout::Broker::<u32>::new(), std::rc::Rc::new(0));
/// let config = fanout::SubscriptionConfig::at_most_once(1);
/// broker.subscribe("t", config, move |_| drop(captured.clone())).unwrap().unsubscribe();
/// ```
/// ```
/// let (broker, captured) = (fanout::Broker::<u32>::new(), std::sync::Arc::new(0));
/// let config = fanout::SubscriptionConfig::at_most_once(1);
/// broker.subscribe("t", config, move |_| drop(captured.clone())).unwrap().unsubscribe();
/// ```
struct Handler;

/// A subscription that is not kept ends at once: the compiler says so.
///
/// ```compile_fail
/// #![deny(unused_must_use)]
/// let broker = fanout::Broker::<u32>::new();
/// broker.subscribe("t", fanout::SubscriptionConfig::at_most_once(1), |_| ()).unwrap();
/// ```
/// ```
/// #![deny(unused_must_use)]
/// let broker = fanout::Broker::<u32>::new();
/// let kept = broker.subscribe("t", fanout::SubscriptionConfig::at_most_once(1), |_| ()).unwrap();
/// # drop(kept);
/// ```
struct Guard;

/// A receiver has one owner.
///
/// ```compile_fail
/// let broker = fanout::Broker::<u32>::new();
/// let receiver = broker.receiver("t", fanout::SubscriptionConfig::at_most_once(1)).unwrap();
/// receiver.clone();
/// ```
/// ```
/// let broker = fanout::Broker::<u32>::new();
/// let receiver = broker.receiver("t", fanout::SubscriptionConfig::at_most_once(1)).unwrap();
/// drop(receiver);
/// ```
struct Pull;
