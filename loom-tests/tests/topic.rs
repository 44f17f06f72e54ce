//! The list of a topic, changed under its publishers: what a subscription sees has no hole, what it never gets is discarded and
//! counted, and nothing is pushed to it after its end. The subscriptions are receivers, so no worker's steps are explored.

#[cfg(not(loom))]
#[test]
#[ignore = "needs RUSTFLAGS=\"--cfg loom\""]
fn models() {}

#[cfg(loom)]
mod models {
    use fanout::{Broker, Receiver, SubscriptionConfig, SubscriptionMetrics, TimeStamps, Topic};
    use fanout_loom_tests::{Ledger, Model, Payload, joined, role, step};

    fn broker() -> (Broker<Payload>, Topic<Payload>, Ledger) {
        // No time stamps: a histogram of ages would be some hundred atomics more for loom to keep.
        let broker = Broker::builder().time_stamps(TimeStamps::Off).build();
        let topic = broker.topic("t").expect("a legal name");
        (broker, topic, Ledger::default())
    }

    fn receiver(broker: &Broker<Payload>, capacity: usize) -> Receiver<Payload> {
        broker.receiver("t", SubscriptionConfig::at_most_once(capacity)).expect("a legal subscription")
    }

    /// Publishes `ids`, in steps; to how many subscriptions each went.
    fn publish(topic: &Topic<Payload>, ledger: &Ledger, ids: std::ops::Range<u64>) -> Vec<usize> {
        ids.map(|id| step(|| topic.publish(ledger.payload(id)).expect("open").delivered_to)).collect()
    }

    /// `seq` and payload of what waits.
    fn received(receiver: &mut Receiver<Payload>) -> Vec<(u64, u64)> {
        std::iter::from_fn(|| receiver.try_recv().ok().map(|message| (message.seq(), message.number())))
            .collect()
    }

    fn assert_balanced(metrics: &SubscriptionMetrics) {
        let SubscriptionMetrics { enqueued, delivered, dropped, discarded, depth, payload_panics, .. } =
            *metrics;
        assert_eq!(enqueued, delivered + dropped + discarded + depth as u64, "{metrics:?}");
        assert_eq!(payload_panics, 0);
    }

    /// A subscription that comes while two messages are published sees the last so many of them, without a hole, and exactly those that
    /// the publishes say they delivered.
    #[test]
    fn publish_against_attach() {
        let expected = [vec![], vec![(1, 1)], vec![(0, 0), (1, 1)]];
        Model::new("topic, publish against subscribe", 1_000).bound(4).check(expected, || {
            let (broker, topic, ledger) = broker();
            let publisher = role({
                let (topic, ledger) = (topic.clone(), ledger.clone());
                move || publish(&topic, &ledger, 0..2)
            });
            let subscriber = role({
                let broker = broker.clone();
                move || receiver(&broker, 2)
            });
            let delivered = joined(publisher);
            let mut receiver = joined(subscriber);
            let seen = received(&mut receiver);
            assert_eq!(seen.len(), delivered.iter().sum());
            assert_balanced(&receiver.metrics());
            drop((receiver, topic, broker));
            ledger.close();
            seen
        });
    }

    /// The list grows under a publisher that has made its clones for the shorter one: it makes them again, and nobody misses a message.
    #[test]
    fn publish_against_a_second_attach() {
        let expected = [(vec![0, 1], vec![]), (vec![0, 1], vec![1]), (vec![0, 1], vec![0, 1])];
        Model::new("topic, publish against a second subscribe", 100).bound(4).check(expected, || {
            let (broker, topic, ledger) = broker();
            let mut first = receiver(&broker, 2);
            let publisher = role({
                let (topic, ledger) = (topic.clone(), ledger.clone());
                move || publish(&topic, &ledger, 0..2)
            });
            let subscriber = role({
                let broker = broker.clone();
                move || receiver(&broker, 2)
            });
            let delivered = joined(publisher);
            let mut second = joined(subscriber);
            let seen = [&mut first, &mut second].map(|receiver| {
                let seen = received(receiver);
                assert!(seen.iter().all(|(seq, id)| seq == id));
                assert_balanced(&receiver.metrics());
                seen.into_iter().map(|(seq, _)| seq).collect::<Vec<_>>()
            });
            assert_eq!(seen.iter().map(Vec::len).sum::<usize>(), delivered.iter().sum());
            drop((first, second, topic, broker));
            ledger.close();
            seen.into()
        });
    }

    /// A subscription that ends while messages are published: what it was given before is discarded or was evicted, and nothing comes
    /// after. How many messages it was given is the outcome.
    #[test]
    fn publish_against_detach() {
        Model::new("topic, publish against the end", 1_000).bound(4).check([0, 1, 2], || {
            let (broker, topic, ledger) = broker();
            let receiver = receiver(&broker, 1);
            let handle = receiver.handle();
            let publisher = role({
                let (topic, ledger) = (topic.clone(), ledger.clone());
                move || publish(&topic, &ledger, 0..2)
            });
            let ender = role(move || drop(receiver));
            let delivered: usize = joined(publisher).iter().sum();
            joined(ender);
            let metrics = handle.metrics();
            assert_eq!((metrics.enqueued, metrics.delivered, metrics.depth), (delivered as u64, 0, 0));
            assert_balanced(&metrics);
            // Nothing of a payload is kept by the broker or a topic that goes on.
            ledger.close();
            drop((topic, broker));
            delivered
        });
    }

    /// Two that end it at once, its owner and somebody with a handle, against a publisher: everything is counted once.
    #[test]
    fn two_ends() {
        Model::new("topic, publish against two ends", 1_000).bound(2).check(
            [(0, true), (0, false), (1, true), (1, false)],
            || {
                let (broker, topic, ledger) = broker();
                let receiver = receiver(&broker, 1);
                let handle = receiver.handle();
                let publisher = role({
                    let (topic, ledger) = (topic.clone(), ledger.clone());
                    move || publish(&topic, &ledger, 0..1)
                });
                let owner = role(move || drop(receiver));
                let other = role({
                    let handle = handle.clone();
                    move || handle.unsubscribe()
                });
                let delivered: usize = joined(publisher).iter().sum();
                joined(owner);
                let first = joined(other);
                let metrics = handle.metrics();
                assert_eq!((metrics.enqueued, metrics.discarded), (delivered as u64, delivered as u64));
                assert_balanced(&metrics);
                assert_eq!(broker.metrics().subscriptions.len(), 0);
                ledger.close();
                drop((topic, broker));
                (delivered, first)
            },
        );
    }

    /// Two publishers: one order of the messages, without holes, the same for both subscriptions.
    #[test]
    fn two_publishers() {
        Model::new("topic, 2 publishers, 2 subscriptions", 100).bound(4).check([[0, 1], [1, 0]], || {
            let (broker, topic, ledger) = broker();
            let mut receivers = [(); 2].map(|()| receiver(&broker, 2));
            let publishers = [0, 1].map(|id| {
                let (topic, ledger) = (topic.clone(), ledger.clone());
                role(move || topic.publish(ledger.payload(id)).expect("open"))
            });
            let published = publishers.map(joined);
            assert!(published.iter().all(|published| published.delivered_to == 2));
            let [first, second] = receivers.each_mut().map(received);
            assert_eq!(first, second);
            let [(0, one), (1, other)] = first[..] else { panic!("a hole: {first:?}") };
            assert_eq!(
                [one, other].map(|id| published[id as usize].seq),
                [0, 1],
                "what the publishers were told"
            );
            drop((receivers, topic, broker));
            ledger.close();
            [one, other]
        });
    }

    /// A receiver that sleeps in `recv`, in the crate's own way, is woken by publishes: nobody else would wake it.
    #[test]
    fn publish_against_recv() {
        Model::new("topic, publish against a sleeping receiver", 1_000).bound(3).check([[0, 1]], || {
            let (broker, topic, ledger) = broker();
            let mut receiver = receiver(&broker, 2);
            let handle = receiver.handle();
            let publisher = role({
                let (topic, ledger) = (topic.clone(), ledger.clone());
                move || publish(&topic, &ledger, 0..2)
            });
            let consumer = role(move || [(); 2].map(|()| receiver.recv().expect("not closed").number()));
            joined(publisher);
            let seen = joined(consumer);
            assert_balanced(&handle.metrics());
            drop((topic, broker));
            ledger.close();
            seen
        });
    }

    /// The last handle goes while a receiver sleeps: it gets what is queued, and then the end.
    #[test]
    fn last_handle_against_recv() {
        Model::new("topic, last handle against a sleeping receiver", 100).bound(2).check([vec![0]], || {
            let (broker, topic, ledger) = broker();
            let mut receiver = receiver(&broker, 1);
            drop(broker);
            let publisher = role({
                let ledger = ledger.clone();
                move || {
                    publish(&topic, &ledger, 0..1);
                    step(|| drop(topic));
                }
            });
            let consumer = role(move || {
                let seen: Vec<_> = receiver.iter().map(|message| message.seq()).collect();
                assert_balanced(&receiver.metrics());
                seen
            });
            joined(publisher);
            let seen = joined(consumer);
            ledger.close();
            seen
        });
    }
}
