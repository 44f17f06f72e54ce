//! The ring: every outcome of concurrent operations is one of the specification's, under every interleaving, and the specification's
//! are all seen.

#[cfg(not(loom))]
#[test]
#[ignore = "needs RUSTFLAGS=\"--cfg loom\""]
fn models() {}

#[cfg(loom)]
mod models {
    use fanout::__loom::{Cursor, Producer, Spare, ring, ring_from};
    use fanout_loom_tests::{Gate, Ledger, Model, Payload, Queue, interleavings, joined, role, step};

    type Ids = Vec<u64>;

    /// Where the lap field, and the position, wrap after one lap.
    fn last_lap(capacity: usize) -> u64 {
        0u64.wrapping_sub(capacity as u64)
    }

    fn push(producer: &mut Producer<Payload>, payload: Payload) -> Option<u64> {
        let (tag, mut evicted) = (payload.number() + 1, None);
        let full = producer.push(payload, tag, |old| evicted = Some(old.number()));
        assert_eq!(full, evicted.is_some());
        evicted
    }

    /// The message, out of its slot; the spare is back where it was.
    fn take(spare: &mut Option<Spare<Payload>>, cursor: &mut Cursor) -> Option<u64> {
        match spare.take().expect("the spare is back").take(cursor) {
            Ok(taken) => {
                let (id, tag) = (taken.number(), taken.tag());
                assert!(tag == 0 || tag == id + 1, "the tag of another message");
                let (empty, dropped) = taken.discard();
                dropped.expect("no destructor panics");
                *spare = Some(empty);
                Some(id)
            }
            Err(empty) => {
                *spare = Some(empty);
                None
            }
        }
    }

    /// What is evicted, taken and left, for every order of the operations.
    fn specified(capacity: usize, pushes: usize, takes: usize) -> Vec<(Ids, Vec<Option<u64>>, Ids)> {
        let one = |order: Vec<usize>| {
            let (mut queue, mut evicted, mut taken) = (Queue::default(), Vec::new(), Vec::new());
            for step in order {
                match step {
                    0 => evicted.extend(queue.push(capacity)),
                    _ => taken.push(queue.take()),
                }
            }
            (evicted, taken, std::iter::from_fn(|| queue.take()).collect())
        };
        interleavings(&[pushes, takes]).into_iter().map(one).collect()
    }

    /// Pushes against takes; the rest is reclaimed. PUBLISH, RETURN, the lap arithmetic, and the counts.
    fn flow(model: Model, capacity: usize, start: u64, tagged: bool, pushes: usize) {
        const TAKES: usize = 2;
        model.check(specified(capacity, pushes, TAKES), move || {
            let ledger = Ledger::default();
            let (mut producer, mut cursor, mut spares) =
                ring_from(capacity, 1, tagged, start).expect("a small ring");
            let ring = producer.ring().clone();
            let payloads: Vec<_> = (0..pushes as u64).map(|id| ledger.payload(id)).collect();
            let publisher = role(move || {
                let evicted: Ids = payloads
                    .into_iter()
                    .filter_map(|payload| step(|| push(&mut producer, payload)))
                    .collect();
                (producer, evicted)
            });
            let consumer = role(move || {
                let mut spare = spares.pop();
                let taken: Vec<_> = (0..TAKES).map(|_| step(|| take(&mut spare, &mut cursor))).collect();
                (spare, taken)
            });
            let (mut producer, evicted) = joined(publisher);
            let (spare, taken) = joined(consumer);
            let counts = ring.counts();
            let left: Ids =
                std::iter::from_fn(|| producer.reclaim().map(|payload| payload.number())).collect();
            assert_eq!((counts.pushed, counts.dropped), (pushes as u64, evicted.len() as u64));
            assert_eq!(counts.depth, left.len());
            drop((producer, spare, ring));
            ledger.close();
            (evicted, taken, left)
        });
    }

    #[test]
    fn capacity_1() {
        flow(Model::new("ring, capacity 1", 100_000), 1, 0, true, 3);
    }

    #[test]
    fn capacity_1_wrap() {
        flow(Model::new("ring, capacity 1, laps wrap", 1_000).bound(3), 1, last_lap(1), false, 3);
    }

    #[test]
    fn capacity_2() {
        flow(Model::new("ring, capacity 2", 30_000), 2, 0, true, 3);
    }

    #[test]
    fn capacity_2_wrap() {
        flow(Model::new("ring, capacity 2, laps wrap", 1_000).bound(3), 2, last_lap(2), false, 3);
    }

    /// A slot that the consumer has used and given back is written again: by the fourth push at the earliest. RETURN.
    #[test]
    fn a_slot_comes_back() {
        flow(Model::new("ring, a slot comes back", 1_000).bound(3), 1, 0, false, 4);
    }

    /// A consumer that is stopped, with a message in hand or in the middle of taking one, keeps no push waiting: if one waited, nobody would
    /// open the gate.
    fn frozen(name: &'static str, capacity: usize, in_the_middle: bool) {
        let last = capacity as u64 + 2;
        // In hand: any that was the oldest in its time. In the middle: that is decided only when the pushes are over.
        let oldest = last + 1 - capacity as u64;
        let held = if in_the_middle { oldest..=oldest } else { 0..=oldest };
        Model::new(name, 50).bound(4).check(held, move || {
            let ledger = Ledger::default();
            let (mut producer, mut cursor, mut spares) =
                ring::<Payload>(capacity, 1, false).expect("a small ring");
            push(&mut producer, ledger.payload(0));
            let gate = Gate::default();
            let publisher = role({
                let (ledger, gate) = (ledger.clone(), gate.clone());
                move || {
                    let mut evicted = 0;
                    for id in 1..=last {
                        evicted += u64::from(step(|| push(&mut producer, ledger.payload(id))).is_some());
                    }
                    gate.open();
                    (producer, evicted)
                }
            });
            let consumer = role(move || {
                let spare = spares.pop().expect("one");
                let stop = |_: &Cursor| {
                    if in_the_middle {
                        gate.wait();
                    }
                    true
                };
                let taken = spare.take_if(&mut cursor, stop).expect("a message waits from the start");
                if !in_the_middle {
                    gate.wait();
                }
                let position = cursor.position() - 1;
                let (payload, spare) = taken.into_inner();
                assert_eq!(
                    payload.number(),
                    position,
                    "a message at another's place, or changed while it was held"
                );
                (spare, position)
            });
            let (producer, evicted) = joined(publisher);
            let (spare, held) = joined(consumer);
            // The newest wait still, and the rest is evicted, but for what was taken before its turn to go came.
            let depth = producer.ring().counts().depth as u64;
            assert_eq!(depth + evicted + 1, last + 1);
            drop((producer, spare));
            ledger.close();
            held
        });
    }

    #[test]
    fn frozen_with_a_message_in_hand() {
        frozen("ring, frozen consumer, capacity 1", 1, false);
        frozen("ring, frozen consumer, capacity 2", 2, false);
    }

    #[test]
    fn frozen_in_the_middle_of_taking() {
        frozen("ring, consumer frozen in a take, capacity 1", 1, true);
        frozen("ring, consumer frozen in a take, capacity 2", 2, true);
    }

    /// The two that take at the end of a subscription: each message goes to one of them, in order.
    #[test]
    fn reclaim_against_take() {
        let one = |order: Vec<usize>| {
            let mut queue = Queue::default();
            queue.push(2);
            queue.push(2);
            let mut got = [Vec::new(), Vec::new()];
            for role in order {
                got[role].push(queue.take());
            }
            got
        };
        let expected = interleavings(&[2, 2]).into_iter().map(one);
        Model::new("ring, reclaim against take", 50).check(expected, || {
            let ledger = Ledger::default();
            let (mut producer, mut cursor, mut spares) =
                ring_from(2, 1, false, last_lap(2)).expect("a small ring");
            push(&mut producer, ledger.payload(0));
            push(&mut producer, ledger.payload(1));
            let reclaimer = role(move || {
                let mut reclaim = || step(|| producer.reclaim()).map(|payload| payload.number());
                let got = vec![reclaim(), reclaim()];
                assert_eq!(producer.reclaim().map(|payload| payload.number()), None);
                (producer, got)
            });
            let consumer = role(move || {
                let mut spare = spares.pop();
                let mut take = || step(|| take(&mut spare, &mut cursor));
                let got = vec![take(), take()];
                (spare, got)
            });
            let ((producer, reclaimed), (spare, taken)) = (joined(reclaimer), joined(consumer));
            assert_eq!(producer.ring().counts().depth, 0);
            drop((producer, spare));
            ledger.close();
            [reclaimed, taken]
        });
    }

    /// The ring goes with the last of its owners, whoever that is, and what waits in it goes too.
    #[test]
    fn dropped_with_messages_inside() {
        Model::new("ring, dropped with messages inside", 100).check([None, Some(0), Some(1)], || {
            let ledger = Ledger::default();
            let (mut producer, mut cursor, mut spares) = ring(1, 1, false).expect("a small ring");
            let publisher = role({
                let ledger = ledger.clone();
                move || {
                    for id in 0..2 {
                        step(|| push(&mut producer, ledger.payload(id)));
                    }
                    step(|| drop(producer));
                }
            });
            let consumer = role(move || {
                let mut spare = spares.pop();
                let taken = step(|| take(&mut spare, &mut cursor));
                step(|| drop(spare));
                taken
            });
            joined(publisher);
            let taken = joined(consumer);
            ledger.close();
            taken
        });
    }
}
