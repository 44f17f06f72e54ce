//! The pending table: whoever races for a message, it is settled once, its payload dropped once, and its owner hears of it.

#[cfg(not(loom))]
#[test]
#[ignore = "needs RUSTFLAGS=\"--cfg loom\""]
fn models() {}

#[cfg(loom)]
mod models {
    // The book-keeping is std's: loom must not see it.
    #![allow(clippy::disallowed_types)]

    use fanout::__loom::weak::Weak;
    use fanout::__loom::{
        Alarm, Concluded, Cursor, Due, Mail, Nack, Parker, Table, Taken, Ticket, Verdict, Wake, ring,
    };
    use fanout_loom_tests::{Ledger, Model, Payload, joined, role, step};
    use loom::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// What nacks ask for.
    const NACK: Nack = Nack { delay: 5, at: 6, mark: 7 };

    /// What the owner of a table and its ackers share.
    struct World {
        table: Table<Payload>,
        parker: Parker,
        ledger: Ledger,
        /// Messages settled.
        settled: AtomicUsize,
    }

    /// A message in a call.
    type Call = (Ticket, Taken<Payload>);

    impl World {
        /// A table of `entries`, each in a call, and a ring with one more message than that.
        fn new(entries: usize) -> (Arc<Self>, Vec<Call>, Cursor) {
            let ledger = Ledger::default();
            let (mut producer, mut cursor, spares) = ring(entries + 1, entries, false).expect("a small ring");
            for id in 0..=entries as u64 {
                producer.push(ledger.payload(id), 0, |_| unreachable!("there is room"));
            }
            let table = Table::new(spares).expect("a small table");
            let world = Arc::new(Self { table, parker: Parker::new(), ledger, settled: AtomicUsize::new(0) });
            let calls = (0..world.table.len()).map(|entry| world.accept(entry, &mut cursor)).collect();
            (world, calls, cursor)
        }

        /// The same, after the calls: the messages wait for their acks.
        fn awaiting(entries: usize) -> (Arc<Self>, Vec<Ticket>, Cursor) {
            let (world, calls, cursor) = Self::new(entries);
            let tickets = calls.iter().map(|(ticket, _)| *ticket).collect();
            for call in calls {
                assert_eq!(world.conclude(call, Verdict::Await), "Awaiting");
            }
            (world, tickets, cursor)
        }

        fn accept(&self, entry: u32, cursor: &mut Cursor) -> Call {
            self.table.accept(entry, cursor, |_| true).expect("a message waits")
        }

        fn count(&self) {
            self.settled.fetch_add(1, Ordering::Relaxed);
        }

        /// As `Core::ack`; true if it settled the message.
        fn ack(&self, ticket: Ticket) -> bool {
            let Ok((panicked, Wake(wake))) = self.table.ack(ticket, || self.count()) else { return false };
            assert!(!panicked, "a race for the payload");
            if wake {
                self.parker.wake();
            }
            true
        }

        /// As `Core::nack`.
        fn nack(&self, ticket: Ticket) -> bool {
            let Ok(Wake(wake)) = self.table.nack(ticket, NACK) else { return false };
            if wake {
                self.parker.wake();
            }
            true
        }

        /// Ends a call; what became of its message.
        fn conclude(&self, (ticket, taken): Call, verdict: Verdict) -> &'static str {
            assert_eq!(taken.number(), u64::from(ticket.entry), "the payload of another message");
            match self.table.conclude(ticket, taken, verdict, || self.count()) {
                Concluded::AckedBefore(panicked) => ("AckedBefore", assert!(!panicked)).0,
                Concluded::Acked(panicked) => ("Acked", assert!(!panicked)).0,
                Concluded::Awaiting => "Awaiting",
                Concluded::PutBack => "PutBack",
                Concluded::Nacked(nack) => ("Nacked", assert_eq!(nack, NACK)).0,
                Concluded::Nacking => "Nacking",
                Concluded::Removed(taken) => {
                    let (spare, dropped) = taken.discard();
                    dropped.expect("no destructor panics");
                    self.table.restore(ticket, spare);
                    "Removed"
                }
            }
        }

        /// The news: entries freed, entries nacked.
        fn read_mail(&self) -> (Vec<u32>, Vec<Ticket>) {
            let (mut freed, mut nacked) = (Vec::new(), Vec::new());
            self.table.read_mail(|entry, mail| match mail {
                Mail::Freed => freed.push(entry),
                Mail::Nacked(ticket, nack) => {
                    assert_eq!(nack, NACK);
                    nacked.push(ticket);
                }
            });
            (freed, nacked)
        }

        /// As `Station::wait`, when only mail can end it.
        fn wait_for_mail(&self, settled: bool) {
            self.parker.prepare();
            if self.table.await_mail(settled) {
                let no_clock: Weak<dyn Alarm> = Weak::<Parker>::new();
                self.parker.wait(&Due::Never, None, &no_clock);
            }
            self.parker.finish();
        }

        /// The end: `settled` messages were, what is left is discarded, and every payload has been dropped once.
        fn close(world: Arc<Self>, settled: usize, discarded: usize) {
            assert_eq!(world.settled.load(Ordering::Relaxed), settled, "messages settled");
            let mut left = 0;
            world.table.discard_all(|panicked| left += 1 + usize::from(panicked));
            assert_eq!(left, discarded, "messages left in the table");
            let ledger = world.ledger.clone();
            drop(world);
            ledger.close();
        }
    }

    fn alone<T>(mut all: Vec<T>) -> T {
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    /// An ack while the call ends as `verdict` says: in any order one of them settles the message.
    fn ack_against_the_end_of_the_call(
        name: &'static str,
        verdict: Verdict,
        expected: [(bool, &'static str); 2],
    ) {
        Model::new(name, 10).check(expected, move || {
            let (world, calls, _) = World::new(1);
            let call = alone(calls);
            let ticket = call.0;
            let acker = role({
                let world = world.clone();
                move || world.ack(ticket)
            });
            let owner = role({
                let world = world.clone();
                move || world.conclude(call, verdict)
            });
            let (acked, concluded) = (joined(acker), joined(owner));
            // Out of the call it is mailed.
            let mailed = concluded == "Awaiting" || concluded == "PutBack";
            assert_eq!(world.read_mail(), (vec![0; usize::from(mailed)], vec![]));
            World::close(world, 1, 0);
            (acked, concluded)
        });
    }

    #[test]
    fn ack_against_conclude() {
        let check = ack_against_the_end_of_the_call;
        check("pending, ack against await", Verdict::Await, [(true, "AckedBefore"), (true, "Awaiting")]);
        check("pending, ack against success", Verdict::Ack, [(true, "AckedBefore"), (false, "Acked")]);
        check("pending, ack against put back", Verdict::PutBack, [(true, "AckedBefore"), (true, "PutBack")]);
        check("pending, ack against remove", Verdict::Remove, [(true, "AckedBefore"), (false, "Removed")]);
    }

    /// A nack while the call ends: what the nacker is told is what happens, and a nack that comes by mail comes with what it asked for.
    fn nack_against_the_end_of_the_call(
        name: &'static str,
        verdict: Verdict,
        expected: &[(bool, &'static str)],
    ) {
        Model::new(name, 20).check(expected.to_vec(), move || {
            let (world, calls, _) = World::new(1);
            let call = alone(calls);
            let ticket = call.0;
            let nacker = role({
                let world = world.clone();
                move || world.nack(ticket)
            });
            let owner = role({
                let world = world.clone();
                move || world.conclude(call, verdict)
            });
            let (nacked, concluded) = (joined(nacker), joined(owner));
            let mailed = concluded == "Nacking" || concluded == "Awaiting";
            assert_eq!(world.read_mail(), (vec![], vec![ticket; usize::from(mailed)]));
            let settled = concluded == "Acked" || concluded == "Removed";
            World::close(world, usize::from(settled), usize::from(!settled));
            (nacked, concluded)
        });
    }

    #[test]
    fn nack_against_conclude() {
        let check = nack_against_the_end_of_the_call;
        let (nacked, nacking) = ((true, "Nacked"), (true, "Nacking"));
        check("pending, nack against await", Verdict::Await, &[nacked, nacking, (true, "Awaiting")]);
        check("pending, nack against success", Verdict::Ack, &[nacked, nacking, (false, "Acked")]);
        check("pending, nack against put back", Verdict::PutBack, &[nacked, nacking, (false, "PutBack")]);
        check(
            "pending, nack against remove",
            Verdict::Remove,
            &[nacking, (true, "Removed"), (false, "Removed")],
        );
    }

    /// An ack against the timeout, the redelivery, and the end of that second call. HOLD.
    #[test]
    fn ack_against_expiry_and_redelivery() {
        let expected = [(true, "settled"), (true, "put back"), (true, "AckedBefore"), (false, "Acked")];
        Model::new("pending, ack against timeout, redelivery and its end", 30).check(expected, || {
            let (world, tickets, _) = World::awaiting(1);
            let ticket = alone(tickets);
            let acker = role({
                let world = world.clone();
                move || world.ack(ticket)
            });
            let owner = role({
                let world = world.clone();
                move || {
                    if !world.table.expire(ticket) {
                        return "settled";
                    }
                    let Some(taken) = step(|| world.table.redeliver(ticket)) else { return "put back" };
                    step(|| world.conclude((ticket, taken), Verdict::Ack))
                }
            });
            let (acked, found) = (joined(acker), joined(owner));
            let mailed = found == "settled" || found == "put back";
            assert_eq!(world.read_mail(), (vec![0; usize::from(mailed)], vec![]));
            World::close(world, 1, 0);
            (acked, found)
        });
    }

    /// Two threads that settle or nack the same message: one is told that it did. Whoever did has mailed it.
    fn two(name: &'static str, nacks: bool) {
        Model::new(name, 20).check([(true, false), (false, true)], move || {
            let (world, tickets, _) = World::awaiting(1);
            let ticket = alone(tickets);
            let acker = role({
                let world = world.clone();
                move || world.ack(ticket)
            });
            let other = role({
                let world = world.clone();
                move || if nacks { world.nack(ticket) } else { world.ack(ticket) }
            });
            let (first, second) = (joined(acker), joined(other));
            let settled = first || !nacks;
            assert_eq!(world.read_mail(), if settled { (vec![0], vec![]) } else { (vec![], vec![ticket]) });
            World::close(world, usize::from(settled), usize::from(!settled));
            (first, second)
        });
    }

    #[test]
    fn ack_against_ack() {
        two("pending, ack against ack", false);
    }

    #[test]
    fn ack_against_nack() {
        two("pending, ack against nack", true);
    }

    /// The end of the subscription, by two threads at once, against an ack or a nack: one of them has the message.
    fn end(name: &'static str, nacks: bool, expected: &[(bool, usize, usize)]) {
        Model::new(name, 1_000).bound(2).check(expected.to_vec(), move || {
            let (world, tickets, _) = World::awaiting(1);
            let ticket = alone(tickets);
            let acker = role({
                let world = world.clone();
                move || if nacks { world.nack(ticket) } else { world.ack(ticket) }
            });
            let enders = [(); 2].map(|()| {
                let world = world.clone();
                role(move || {
                    let mut discarded = 0;
                    world.table.discard_all(|panicked| discarded += 1 + usize::from(panicked));
                    discarded
                })
            });
            let (done, [first, second]) = (joined(acker), enders.map(joined));
            World::close(world, usize::from(done && !nacks), 0);
            (done, first, second)
        });
    }

    #[test]
    fn ack_against_the_end() {
        end("pending, ack against the end", false, &[(true, 0, 0), (false, 1, 0), (false, 0, 1)]);
    }

    #[test]
    fn nack_against_the_end() {
        let expected = [(true, 1, 0), (true, 0, 1), (false, 1, 0), (false, 0, 1)];
        end("pending, nack against the end", true, &expected);
    }

    /// An ack that comes twice, or late, settles no message that has the entry after its own.
    #[test]
    fn a_late_ack() {
        let expected = [(true, false, false), (false, true, false), (true, false, true), (false, true, true)];
        Model::new("pending, a late ack against reuse", 1_000).bound(3).check(expected, || {
            let (world, tickets, mut cursor) = World::awaiting(1);
            let ticket = alone(tickets);
            let ackers = [(); 2].map(|()| {
                let world = world.clone();
                role(move || world.ack(ticket))
            });
            let owner = role({
                let world = world.clone();
                move || {
                    let (freed, _) = world.read_mail();
                    let used_again = freed.first().map(|&entry| step(|| world.accept(entry, &mut cursor)));
                    used_again.map(|(next, taken)| {
                        assert_eq!((next.entry, taken.number()), (0, 1));
                        let concluded = world.table.conclude(next, taken, Verdict::Await, || ());
                        assert!(matches!(concluded, Concluded::Awaiting));
                    })
                }
            });
            let ([first, second], reused) = (ackers.map(joined), joined(owner).is_some());
            World::close(world, 1, usize::from(reused));
            (first, second, reused)
        });
    }

    /// Mail that comes while the owner goes to sleep: it wakes, or does not sleep; a lost wake-up is a deadlock. Looks until it has all,
    /// and in how many is the outcome. MAIL.
    #[test]
    fn two_acks_wake_the_owner() {
        Model::new("pending, 2 acks wake the owner", 1_000).bound(2).check([vec![1, 1], vec![2]], || {
            let (world, tickets, _) = World::awaiting(2);
            let ackers: Vec<_> = tickets
                .into_iter()
                .map(|ticket| (world.clone(), ticket))
                .map(|(world, ticket)| role(move || assert!(world.ack(ticket))))
                .collect();
            let owner = role({
                let world = world.clone();
                move || {
                    let mut looks = Vec::new();
                    while looks.iter().sum::<usize>() < 2 {
                        let (freed, _) = world.read_mail();
                        if freed.is_empty() {
                            world.wait_for_mail(true);
                        } else {
                            looks.push(freed.len());
                        }
                    }
                    looks
                }
            });
            ackers.into_iter().for_each(joined);
            let looks = joined(owner);
            World::close(world, 2, 0);
            looks
        });
    }

    /// An owner that is not stalled is woken by a nack, and lets the mail of acks wait: whether it found the ack is the outcome.
    #[test]
    fn a_nack_wakes_the_owner() {
        Model::new("pending, a nack wakes the owner past an ack", 1_000).bound(2).check(
            [false, true],
            || {
                let (world, tickets, _) = World::awaiting(2);
                let (first, second) = (tickets[0], tickets[1]);
                let acker = role({
                    let world = world.clone();
                    move || assert!(world.ack(first))
                });
                let nacker = role({
                    let world = world.clone();
                    move || assert!(world.nack(second))
                });
                let owner = role({
                    let world = world.clone();
                    move || {
                        let mut found = false;
                        loop {
                            let (freed, nacked) = world.read_mail();
                            found |= !freed.is_empty();
                            if !nacked.is_empty() {
                                return found;
                            }
                            world.wait_for_mail(false);
                        }
                    }
                });
                joined(acker);
                joined(nacker);
                let found = joined(owner);
                assert_eq!(world.read_mail().0.is_empty(), found);
                World::close(world, 1, 1);
                found
            },
        );
    }
}
