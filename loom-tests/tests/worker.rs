//! A subscription with its worker's thread, through the public interface: publishing, sleeping, and every way to end.

#[cfg(not(loom))]
#[test]
#[ignore = "needs RUSTFLAGS=\"--cfg loom\""]
fn models() {}

#[cfg(loom)]
mod models {
    // The handlers' book-keeping is std's: loom must not see it.
    #![allow(clippy::disallowed_types)]

    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use fanout::{
        Acker, Broker, SubscriptionConfig, SubscriptionMetrics, SubscriptionState, TimeStamps, Topic,
    };
    use fanout_loom_tests::{Gate, Ledger, Model, Payload, joined, role, step};

    fn broker() -> (Broker<Payload>, Topic<Payload>, Ledger) {
        let broker = Broker::builder().time_stamps(TimeStamps::Off).build();
        let topic = broker.topic("t").expect("a legal name");
        (broker, topic, Ledger::default())
    }

    /// What a handler has been called with. While it is captured, `Arc::strong_count` tells.
    type Calls = Arc<Mutex<Vec<u64>>>;

    fn calls(calls: &Calls) -> Vec<u64> {
        calls.lock().expect("no panic inside").clone()
    }

    /// What must hold once an end has been waited for.
    fn assert_ended(metrics: &SubscriptionMetrics, handler: &Calls) {
        let SubscriptionMetrics { enqueued, delivered, dropped, discarded, depth, payload_panics, .. } =
            *metrics;
        assert_eq!(metrics.state, SubscriptionState::Ended);
        assert_eq!((depth, payload_panics), (0, 0));
        assert_eq!(
            enqueued,
            delivered + dropped + discarded,
            "no message is delivered twice in these models"
        );
        assert_eq!(calls(handler).len() as u64, delivered);
        assert_eq!(Arc::strong_count(handler), 1, "the handler's captures are gone");
    }

    fn publish(topic: &Topic<Payload>, ledger: &Ledger, numbers: std::ops::Range<u64>) {
        for number in numbers {
            step(|| topic.publish(ledger.payload(number)).expect("open"));
        }
    }

    /// Two messages for a worker that sleeps, is falling asleep, or is returning from its sleep: both are handled. Only then does it end,
    /// so that a lost wake-up is a deadlock.
    #[test]
    fn publish_against_sleep() {
        Model::new("worker, publish against sleep", 1_000).bound(2).check([vec![0, 1]], || {
            let (broker, topic, ledger) = broker();
            let (handled, both) = (Calls::default(), Gate::default());
            let subscription = broker.subscribe("t", SubscriptionConfig::at_most_once(2), {
                let (handled, both) = (handled.clone(), both.clone());
                move |message| {
                    handled.lock().expect("no panic inside").push(message.number());
                    if message.seq() == 1 {
                        both.open();
                    }
                }
            });
            let subscription = subscription.expect("a legal subscription");
            publish(&topic, &ledger, 0..2);
            both.wait();
            assert_ended(&subscription.unsubscribe(), &handled);
            ledger.close();
            drop((topic, broker));
            calls(&handled)
        });
    }

    /// A publisher, the worker, and an unsubscribe, all at once. What was handled is the outcome; the rest is discarded, or was published
    /// too late.
    #[test]
    fn publish_against_unsubscribe() {
        Model::new("worker, publish against unsubscribe", 1_000).bound(2).check(
            [vec![], vec![0], vec![0, 1]],
            || {
                let (broker, topic, ledger) = broker();
                let handled = Calls::default();
                let subscription = broker.subscribe("t", SubscriptionConfig::at_most_once(2), {
                    let handled = handled.clone();
                    move |message| handled.lock().expect("no panic inside").push(message.number())
                });
                let subscription = subscription.expect("a legal subscription");
                let publisher = role({
                    let (topic, ledger) = (topic.clone(), ledger.clone());
                    move || publish(&topic, &ledger, 0..2)
                });
                let metrics = step(|| subscription.unsubscribe());
                assert_ended(&metrics, &handled);
                joined(publisher);
                // The broker and the topic live on, and keep nothing.
                ledger.close();
                assert_ended(&metrics, &handled);
                drop((topic, broker));
                calls(&handled)
            },
        );
    }

    /// A drain hands over all that was in the queue when it left the list: nothing is discarded.
    #[test]
    fn publish_against_drain() {
        Model::new("worker, publish against drain", 1_000).bound(2).check([vec![], vec![0]], || {
            let (broker, topic, ledger) = broker();
            let handled = Calls::default();
            let subscription = broker.subscribe("t", SubscriptionConfig::at_most_once(1), {
                let handled = handled.clone();
                move |message| handled.lock().expect("no panic inside").push(message.number())
            });
            let subscription = subscription.expect("a legal subscription");
            let publisher = role({
                let (topic, ledger) = (topic.clone(), ledger.clone());
                move || publish(&topic, &ledger, 0..1)
            });
            let report = step(|| subscription.drain(Duration::MAX));
            assert_eq!((report.still_running, report.metrics.discarded), (false, 0));
            assert_ended(&report.metrics, &handled);
            joined(publisher);
            ledger.close();
            drop((topic, broker));
            calls(&handled)
        });
    }

    /// At least once: a drain waits for the ack of the message in hand or awaiting, which comes from elsewhere while the call runs, ends, or
    /// the worker, at its pending limit, goes to sleep; a lost wake-up is a deadlock. How often the drain saw the message delivered is the
    /// outcome.
    #[test]
    fn ack_against_drain() {
        Model::new("worker, ack against drain", 1_000).bound(1).check([0, 1], || {
            let (broker, topic, ledger) = broker();
            let handled = Calls::default();
            let (told, ackers) = (Gate::default(), Arc::new(Mutex::new(Vec::<Acker>::new())));
            let config = SubscriptionConfig::at_least_once(1).max_pending(1).ack_timeout(Duration::MAX);
            let subscription = broker.subscribe("t", config, {
                let (handled, told, ackers) = (handled.clone(), told.clone(), ackers.clone());
                move |message| {
                    handled.lock().expect("no panic inside").push(message.number());
                    ackers.lock().expect("no panic inside").push(message.acker());
                    told.open();
                }
            });
            let subscription = subscription.expect("a legal subscription");
            publish(&topic, &ledger, 0..1);
            let handle = subscription.handle();
            let acker = role(move || {
                told.wait();
                let acker = ackers.lock().expect("no panic inside").pop().expect("the handler left it");
                acker.ack().expect("pending");
            });
            let report = step(|| subscription.drain(Duration::MAX));
            joined(acker);
            assert_eq!((report.still_running, report.metrics.discarded), (false, 0));
            assert_ended(&report.metrics, &handled);
            assert_eq!((handle.metrics().acked, calls(&handled)), (1, vec![0]));
            ledger.close();
            drop((topic, broker));
            report.delivered
        });
    }
}
