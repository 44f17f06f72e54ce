//! What a ring must do, in twenty lines of safe code; the property test and the fuzz target run both side by side.

use std::collections::VecDeque;

use super::{Counts, Spare, ring_from};

/// One step of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// A message in.
    Push,
    /// The oldest out, into the spare of this number (modulo their count), where it replaces what is held there.
    Take(u8),
    /// The oldest out, by way of the producer.
    Reclaim,
}

/// The specification: a queue that drops its oldest.
#[derive(Debug, Default)]
struct Model {
    queue: VecDeque<u64>,
    pushed: u64,
    dropped: u64,
}

impl Model {
    fn push(&mut self, capacity: usize) -> Option<u64> {
        self.queue.push_back(self.pushed);
        self.pushed += 1;
        let evicted = (self.queue.len() > capacity).then(|| self.queue.pop_front()).flatten();
        self.dropped += u64::from(evicted.is_some());
        evicted
    }
}

/// Runs `script` on a ring of `capacity` with `spares` spare slots that starts at position `start`, and on the model.
///
/// # Panics
///
/// If they differ.
pub fn check(capacity: usize, spares: usize, start: u64, script: &[Op]) {
    let (mut producer, mut cursor, free) =
        ring_from::<Box<u64>>(capacity, spares, true, start).expect("a small ring");
    let ring = producer.ring().clone();
    let mut free: Vec<Spare<_>> = free;
    let mut held = VecDeque::new();
    let mut model = Model::default();
    // Where the next take begins to look: what it skips must be what was evicted.
    let mut looked = 0;
    for &op in script {
        match op {
            Op::Push => {
                let (mut evicted, id) = (None, model.pushed);
                let full = producer.push(Box::new(id), id + 1, |old| evicted = Some(*old));
                let expected = model.push(capacity);
                assert_eq!((evicted, full), (expected, expected.is_some()));
            }
            Op::Take(which) => {
                if free.is_empty() {
                    let (message, expected): (super::Taken<Box<u64>>, u64) =
                        held.pop_front().expect("all are held");
                    let (value, spare) = message.into_inner();
                    assert_eq!(*value, expected);
                    free.push(spare);
                }
                let spare = free.swap_remove(usize::from(which) % free.len());
                assert_eq!(ring.has_news(&cursor), model.pushed > looked);
                match spare.take(&mut cursor) {
                    Ok(message) => {
                        let expected =
                            model.queue.pop_front().expect("the ring had a message, the model none");
                        assert_eq!((**message, message.tag()), (expected, expected + 1));
                        assert_eq!(cursor.position(), start.wrapping_add(expected + 1));
                        looked = expected + 1;
                        held.push_back((message, expected));
                    }
                    Err(spare) => {
                        assert_eq!(model.queue.front(), None);
                        looked = model.pushed;
                        free.push(spare);
                    }
                }
            }
            Op::Reclaim => assert_eq!(producer.reclaim().map(|value| *value), model.queue.pop_front()),
        }
        let Counts { pushed, dropped, depth } = ring.counts();
        assert_eq!((pushed, dropped, depth), (model.pushed, model.dropped, model.queue.len()));
        assert_eq!(ring.oldest_tag(), model.queue.front().map(|id| id + 1));
        for (message, expected) in &held {
            assert_eq!(***message, *expected, "a held message changed");
        }
    }
}
