//! The park handshake: no wake-up is lost, whoever brings the news. A lost one is a deadlock.

#[cfg(not(loom))]
#[test]
#[ignore = "needs RUSTFLAGS=\"--cfg loom\""]
fn models() {}

#[cfg(loom)]
mod models {
    use std::collections::BTreeSet;

    use fanout::__loom::weak::Weak;
    use fanout::__loom::{Alarm, Cursor, Due, Parker, Producer, Ring, Sequenced, Sequencer, Spare, ring};
    use fanout_loom_tests::{Model, joined, role, step};
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, Ordering};

    /// What a worker and those who wake it share.
    struct World {
        /// Stays where it is: its cells know it by its place.
        sequencer: Box<Sequencer<()>>,
        producer: Sequenced<Producer<u32>>,
        ring: Arc<Ring<u32>>,
        parker: Parker,
        acked: Flag,
        stopped: Flag,
    }

    /// Raised once. Relaxed: it is the parker that must hand it over.
    #[derive(Default)]
    struct Flag(AtomicBool);

    impl Flag {
        /// Whether it is up, for who has `seen` it before or not. It is loaded no more than needed: each load that may be stale doubles
        /// the executions.
        fn is_up(&self, seen: bool) -> bool {
            seen || self.0.load(Ordering::Relaxed)
        }
    }

    impl World {
        fn new(all: News) -> (Arc<Self>, Worker) {
            let (producer, cursor, mut spares) = ring(2, 1, false).expect("a small ring");
            let (ring, sequencer) = (producer.ring().clone(), Box::new(Sequencer::new(())));
            let producer = sequencer.cell(producer);
            let (acked, stopped) = (Flag::default(), Flag::default());
            let world = Arc::new(Self { sequencer, producer, ring, parker: Parker::new(), acked, stopped });
            let worker =
                Worker { world: world.clone(), cursor, spare: spares.pop(), seen: News::default(), all };
            (world, worker)
        }

        /// As `TopicCore::publish`, for a list of one.
        fn publish(&self) {
            let mut guard = self.sequencer.lock();
            let ((), mut key) = guard.open();
            self.producer.open(&mut key).push(7, 0, |_| {});
            if guard.unlock() {
                self.parker.wake_if_parked();
            }
        }

        /// As an ack or a stop.
        fn raise(&self, flag: impl FnOnce(&Self) -> &Flag) {
            flag(self).0.store(true, Ordering::Relaxed);
            self.parker.wake();
        }
    }

    /// What a worker knows of.
    #[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    struct News {
        messages: u32,
        acked: bool,
        stopped: bool,
    }

    struct Worker {
        world: Arc<World>,
        cursor: Cursor,
        spare: Option<Spare<u32>>,
        seen: News,
        /// What there will be to see.
        all: News,
    }

    impl Worker {
        fn look(&mut self) {
            if self.seen.messages < self.all.messages {
                match self.spare.take().expect("the spare is back").take(&mut self.cursor) {
                    Ok(taken) => {
                        let (message, spare) = taken.into_inner();
                        assert_eq!(message, 7);
                        self.seen.messages += 1;
                        self.spare = Some(spare);
                    }
                    Err(spare) => self.spare = Some(spare),
                }
            }
            self.seen.acked = self.sees_ack();
            self.seen.stopped = self.sees_stop();
        }

        fn sees_ack(&self) -> bool {
            self.all.acked && self.world.acked.is_up(self.seen.acked)
        }

        fn sees_stop(&self) -> bool {
            self.all.stopped && self.world.stopped.is_up(self.seen.stopped)
        }

        fn has_work(&self) -> bool {
            self.seen.messages < self.all.messages && self.world.ring.has_news(&self.cursor)
                || self.sees_ack() != self.seen.acked
                || self.sees_stop() != self.seen.stopped
        }

        /// `Station::wait`, without the spinning.
        fn wait(&self) {
            let World { parker, sequencer, .. } = &*self.world;
            parker.prepare();
            sequencer.add_sleeper();
            if !self.has_work() {
                let no_clock: Weak<dyn Alarm> = Weak::<Parker>::new();
                parker.wait(&Due::Never, None, &no_clock);
            }
            parker.finish();
            sequencer.remove_sleeper();
        }

        /// Works until it has seen all; what it had seen after each look that brought something.
        fn work(mut self) -> Vec<News> {
            let mut looks = Vec::new();
            loop {
                let before = self.seen;
                self.look();
                if self.seen != before {
                    looks.push(self.seen);
                }
                if self.seen == self.all {
                    return looks;
                }
                self.wait();
            }
        }
    }

    /// Every way in which a worker that looks now and then can come to know of what happens, in any order.
    fn ways(all: News) -> BTreeSet<Vec<News>> {
        let next = |seen: &News| {
            let News { messages, acked, stopped } = *seen;
            let mut next = Vec::new();
            // One message a look.
            for messages in messages..=(messages + 1).min(all.messages) {
                for acked in [acked, all.acked] {
                    for stopped in [stopped, all.stopped] {
                        next.push(News { messages, acked, stopped });
                    }
                }
            }
            next.retain(|next| next != seen);
            next.sort_unstable();
            next.dedup();
            next
        };
        let mut ways = BTreeSet::new();
        let mut begun = vec![(News::default(), Vec::new())];
        while let Some((seen, looks)) = begun.pop() {
            if seen == all {
                ways.insert(looks);
                continue;
            }
            for news in next(&seen) {
                let mut longer = looks.clone();
                longer.push(news);
                begun.push((news, longer));
            }
        }
        ways
    }

    /// A publisher that publishes twice: also the second message, which may come while the worker returns from its first sleep.
    #[test]
    fn a_publisher() {
        let all = News { messages: 2, acked: false, stopped: false };
        Model::new("parker, a publisher", 1_000).bound(5).check(ways(all), move || {
            let (world, worker) = World::new(all);
            let publisher = role(move || {
                world.publish();
                step(|| world.publish());
            });
            let worker = role(move || worker.work());
            joined(publisher);
            joined(worker)
        });
    }

    /// Two publishers: the one that finds the sleeper may be stopped before it wakes it.
    #[test]
    fn two_publishers() {
        let all = News { messages: 2, acked: false, stopped: false };
        Model::new("parker, 2 publishers", 1_000).bound(2).check(ways(all), move || {
            let (world, worker) = World::new(all);
            let publishers = [world.clone(), world].map(|world| role(move || world.publish()));
            let worker = role(move || worker.work());
            publishers.into_iter().for_each(joined);
            joined(worker)
        });
    }

    /// An ack and a stop: the two meet in the parker's word alone.
    #[test]
    fn an_ack_and_a_stop() {
        let all = News { messages: 0, acked: true, stopped: true };
        Model::new("parker, an ack and a stop", 1_000).bound(3).check(ways(all), move || {
            let (world, worker) = World::new(all);
            let acker = role({
                let world = world.clone();
                move || world.raise(|world| &world.acked)
            });
            let stopper = role(move || world.raise(|world| &world.stopped));
            let worker = role(move || worker.work());
            joined(acker);
            joined(stopper);
            joined(worker)
        });
    }

    /// All three roles at once.
    #[test]
    fn a_publisher_an_ack_and_a_stop() {
        let all = News { messages: 1, acked: true, stopped: true };
        Model::new("parker, a publisher, an ack and a stop", 100_000).bound(2).check(ways(all), move || {
            let (world, worker) = World::new(all);
            let publisher = role({
                let world = world.clone();
                move || world.publish()
            });
            let acker = role({
                let world = world.clone();
                move || world.raise(|world| &world.acked)
            });
            let stopper = role(move || world.raise(|world| &world.stopped));
            let worker = role(move || worker.work());
            joined(publisher);
            joined(acker);
            joined(stopper);
            joined(worker)
        });
    }

    /// Somebody wakes the worker for nothing: it goes back to sleep, and misses no message for it.
    #[test]
    fn a_spurious_wake() {
        let all = News { messages: 1, acked: false, stopped: false };
        Model::new("parker, a spurious wake", 1_000).bound(3).check(ways(all), move || {
            let (world, worker) = World::new(all);
            let publisher = role({
                let world = world.clone();
                move || world.publish()
            });
            let nobody = role(move || world.parker.wake());
            let worker = role(move || worker.work());
            joined(publisher);
            joined(nobody);
            joined(worker)
        });
    }
}
