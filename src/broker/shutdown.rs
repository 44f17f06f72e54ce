//! The end of a broker.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::broker::Broker;
use crate::clock::nanoseconds;
use crate::metrics::SubscriptionState;
use crate::subscription::{Core, Patience};
use crate::sync::weak::Arc;
use crate::topic::Closed;
use crate::worker::on_worker_thread;

/// What a shutdown does with what is queued and pending.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Shutdown {
    /// Delivers what is queued and waits for acks.
    Drain {
        /// For so long at most, by the broker's clock; then the rest is discarded.
        deadline: Duration,
    },
    /// Discards it.
    Discard,
}

/// What a shutdown did.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Subscriptions that it ended: 0 for a second shutdown.
    pub subscriptions: usize,
    /// Calls begun during it.
    pub delivered: u64,
    /// Messages discarded.
    pub discarded: u64,
    /// Subscriptions that still had a call running when it returned; they end when that returns.
    pub still_running: usize,
}

impl<T: Clone + Send + 'static> Broker<T> {
    /// Ends the broker: from now on every publish and subscribe is refused (handlers' too; dead letters still pass), and every subscription ends as
    /// `how` says. When it returns their threads are gone, except those that still have a call running at a drain's deadline.
    ///
    /// On a thread that runs a worker it does not wait, and the subscriptions end in the background. A second shutdown finds nothing left to end, or cuts a
    /// drain short.
    pub fn shutdown(&self, how: Shutdown) -> ShutdownReport {
        let context = &self.hub.context;
        let (cores, first) = {
            // No topic is created meanwhile: what is closed here is all there will be.
            let _changes = self.hub.changes.lock();
            for topic in self.hub.topics.all() {
                topic.close(Closed::ShutDown);
            }
            context.close(matches!(how, Shutdown::Discard))
        };
        let before: Vec<_> = cores.iter().map(|core| core.metrics()).collect();
        match how {
            Shutdown::Discard => end_all(&cores),
            Shutdown::Drain { deadline } => {
                let time = context.clock.nanos().saturating_add(nanoseconds(deadline));
                let draining = cores.clone();
                if !on_worker_thread() {
                    drain_all(&cores, time);
                } else if context.in_background(move || drain_all(&draining, time)).is_err() {
                    // Without a thread to see to their order: all at once.
                    for core in &cores {
                        core.begin_drain(time, true);
                    }
                }
            }
        }
        let after: Vec<_> = cores.iter().map(|core| core.metrics()).collect();
        let grown = |count: fn(&crate::SubscriptionMetrics) -> u64| {
            after.iter().map(count).sum::<u64>() - before.iter().map(count).sum::<u64>()
        };
        ShutdownReport {
            subscriptions: if first { cores.len() } else { 0 },
            delivered: grown(|metrics| metrics.delivered),
            discarded: grown(|metrics| metrics.discarded),
            still_running: after.iter().filter(|metrics| metrics.state != SubscriptionState::Ended).count(),
        }
    }
}

fn end_all<T>(cores: &[Arc<Core<T>>]) {
    for core in cores {
        core.stop();
    }
    for core in cores {
        core.wait_for_end(Patience::Forever);
    }
}

/// Drains all: those that no dead letters of others can reach first, then those that these fed, and so on; what feeds itself in a circle at last.
fn drain_all<T>(cores: &[Arc<Core<T>>], time: u64) {
    let mut left: BTreeMap<u64, &Arc<Core<T>>> = cores.iter().map(|core| (core.account.id.0, core)).collect();
    while !left.is_empty() {
        let feeds = |target: &Core<T>| {
            left.values().any(|core| core.settings.dead_letter.as_ref() == Some(&target.account.filter))
        };
        let mut round: Vec<_> = left.values().copied().filter(|core| !feeds(core)).collect();
        if round.is_empty() {
            round = left.values().copied().collect();
        }
        for core in &round {
            core.begin_drain(time, true);
        }
        let ended = round.iter().filter(|core| core.wait_for_end(Patience::Until(time))).count();
        if ended < round.len() {
            break;
        }
        left.retain(|id, _| round.iter().all(|core| core.account.id.0 != *id));
    }
    // At the deadline, for what is left.
    for core in left.values() {
        core.stop();
    }
    for core in left.values() {
        core.cut_drain();
    }
}
