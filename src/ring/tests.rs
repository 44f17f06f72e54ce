use std::rc::Rc;

use proptest::prelude::*;

use super::model::{Op, check};
use super::*;

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![4 => Just(Op::Push), 3 => (0u8..8).prop_map(Op::Take), 1 => Just(Op::Reclaim)]
}

proptest! {
    #[test]
    fn the_ring_is_a_queue_that_drops_its_oldest(
        capacity in 1usize..9,
        spares in 1usize..5,
        script in prop::collection::vec(op(), 0..200),
    ) {
        check(capacity, spares, 0, &script);
    }

    #[test]
    fn laps_and_positions_may_wrap(
        capacity in 1usize..9,
        back in 0u64..40,
        script in prop::collection::vec(op(), 0..200),
    ) {
        // The last whole lap before the end of the positions, and of the lap field, which wraps earlier.
        let last = u64::MAX / capacity as u64 * capacity as u64;
        check(capacity, 2, last.saturating_sub(1 << 30), &script);
        let shape = word::Shape::new(capacity as u32, capacity as u32 + 3);
        check(capacity, 2, shape.position_of_last_lap() - back, &script);
    }
}

/// Pushes `count` numbers, and gives what was evicted.
fn push(producer: &mut Producer<u64>, numbers: std::ops::Range<u64>) -> Vec<u64> {
    let ring = producer.ring().clone();
    let before = ring.dropped();
    let mut evicted = Vec::new();
    for number in numbers {
        if producer.push(number, 0, |_| unreachable!("a number has no destructor")) {
            evicted.push(number);
        }
    }
    assert_eq!(ring.dropped() - before, evicted.len() as u64);
    evicted
}

#[test]
fn capacity_is_exact_at_every_size() {
    for capacity in [1, 2, 3, 5, 127, 128, 129, 255, 256, 257, 32_767, 32_768, 32_769, 65_535, 65_536, 65_537]
    {
        let (mut producer, mut cursor, mut spares) = ring::<u64>(capacity, 1, false).unwrap();
        let count = capacity as u64;
        assert!(push(&mut producer, 0..count).is_empty());
        assert_eq!(push(&mut producer, count..count + 1), [count]);
        let taken = spares.pop().unwrap().take(&mut cursor).unwrap();
        assert_eq!((*taken, cursor.position()), (1, 2));
    }
}

#[test]
fn a_message_taken_costs_the_producer_nothing() {
    let (mut producer, mut cursor, mut spares) = ring::<u64>(2, 1, false).unwrap();
    push(&mut producer, 0..2);
    let held = spares.pop().unwrap().take(&mut cursor).unwrap();
    assert_eq!(push(&mut producer, 2..3), [0u64; 0], "the message in hand has left the ring");
    push(&mut producer, 3..1000);
    assert_eq!(*held, 0);
    let (_, spare) = held.into_inner();
    assert_eq!(*spare.take(&mut cursor).unwrap(), 998);
}

#[test]
fn everything_is_dropped_once() {
    let live = Rc::new(());
    let (mut producer, mut cursor, mut spares) = ring::<Rc<()>>(3, 2, false).unwrap();
    for _ in 0..10 {
        producer.push(live.clone(), 0, drop);
    }
    let lost = spares.pop().unwrap().take(&mut cursor).unwrap();
    let (spare, outcome) = spares.pop().unwrap().take(&mut cursor).unwrap().discard();
    assert!(outcome.is_ok());
    assert_eq!(Rc::strong_count(&live), 3);
    drop((producer, spare, lost));
    assert_eq!(Rc::strong_count(&live), 1);
}

#[test]
fn a_destructor_that_panics_frees_the_slot_all_the_same() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("bomb");
        }
    }
    let (mut producer, mut cursor, mut spares) = ring::<Bomb>(1, 1, false).unwrap();
    let mut spare = spares.pop().unwrap();
    for _ in 0..5 {
        producer.push(Bomb, 0, |_| unreachable!("never full"));
        let (back, outcome) = spare.take(&mut cursor).unwrap().discard();
        assert!(outcome.is_err());
        spare = back;
    }
    producer.push(Bomb, 0, |_| unreachable!("never full"));
    drop((producer, spare));
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    for capacity in [usize::MAX, usize::MAX / 2, usize::MAX / 2 + 1, MAX_SLOTS, isize::MAX as usize / 8 + 1] {
        assert_eq!(ring::<u64>(capacity, 1, false).err(), Some(RingTooLarge));
        assert_eq!(ring::<()>(capacity, 1, false).err(), Some(RingTooLarge));
        assert_eq!(ring::<u64>(1, capacity, false).err(), Some(RingTooLarge));
    }
    assert_eq!(ring::<[u64; 1 << 30]>(1 << 29, 1, false).err(), Some(RingTooLarge));
}

#[test]
fn what_each_side_writes_is_on_lines_of_its_own() {
    let (producer, ..) = ring::<u64>(4, 1, false).unwrap();
    let ring = producer.ring();
    let (pushed, taken) = (&raw const ring.producer.pushed as usize, &raw const *ring.taken as usize);
    assert!(
        pushed.abs_diff(taken) >= 128,
        "the counts of producer and consumer are {} apart",
        pushed.abs_diff(taken)
    );
    assert!(pushed % 128 == 0 && taken % 128 == 0);
}
