//! A shutdown at the very moment of a subscribe: it is refused, or it ends.

#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "the crate's door to concurrency is for the crate; tests use std"
)]

mod support;

use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
};

use fanout::{Broker, Shutdown, SubscribeError, SubscriptionConfig, SubscriptionState};
use support::{LIMIT, conserved, scale, wait_until, watchdog};

const DRAIN: Shutdown = Shutdown::Drain { deadline: LIMIT };

fn config(capacity: usize) -> SubscriptionConfig {
    SubscriptionConfig::at_most_once(capacity)
}

/// Shuts a broker with `settled` subscriptions down while two threads subscribe, once they have done so `made` times. The more it has to end, the longer
/// it takes.
fn shut_down_while_subscribing(how: Shutdown, settled: usize, made: usize) {
    let broker = Broker::<u64>::new();
    let _settled: Vec<_> = (0..settled).map(|_| broker.receiver("settled", config(1)).unwrap()).collect();
    let (workers, receivers) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let count = AtomicUsize::new(0);
    let all_ended = || {
        let workers = workers.lock().unwrap();
        let receivers = receivers.lock().unwrap();
        let workers = workers.iter().map(fanout::Subscription::metrics);
        for metrics in workers.chain(receivers.iter().map(fanout::Receiver::metrics)) {
            assert_eq!(metrics.state, SubscriptionState::Ended, "{how:?} left {metrics:#?}");
            conserved(&metrics);
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                match broker.subscribe("t", config(1), |_| ()) {
                    Ok(subscription) => workers.lock().unwrap().push(subscription),
                    Err(error) => return assert!(matches!(error, SubscribeError::Closed), "{error:?}"),
                }
                count.fetch_add(1, SeqCst);
            }
        });
        scope.spawn(|| {
            loop {
                match broker.receiver("t", config(1)) {
                    Ok(receiver) => receivers.lock().unwrap().push(receiver),
                    Err(error) => return assert!(matches!(error, SubscribeError::Closed), "{error:?}"),
                }
                count.fetch_add(1, SeqCst);
                thread::yield_now();
            }
        });
        wait_until(|| count.load(SeqCst) >= made);
        let report = broker.shutdown(how);
        assert_eq!(report.still_running, 0);
        all_ended();
    });
    all_ended();
    assert!(broker.metrics().subscriptions.is_empty());
}

#[test]
fn a_subscribe_during_a_shutdown_is_refused_or_ended() {
    watchdog(LIMIT * 2, || {
        for round in 0..scale(2_000) as usize {
            for how in [DRAIN, Shutdown::Discard] {
                shut_down_while_subscribing(how, 200, round % 7);
            }
        }
    });
}

#[test]
fn a_worker_that_is_just_starting_ends_with_the_broker() {
    watchdog(LIMIT * 2, || {
        for round in 0..scale(10_000) as usize {
            for how in [DRAIN, Shutdown::Discard] {
                shut_down_while_subscribing(how, 0, round % 5);
            }
        }
    });
}
