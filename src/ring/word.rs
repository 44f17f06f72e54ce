//! The arithmetic of a ring: entry words, laps and cursors, as pure functions.
//!
//! An entry word is `{ lap, slot, tagged, full }` from the top bit down. `slot` and the two flags take just the bits that the
//! ring needs, and `lap` has all the rest, so that the wrapping difference of two words' laps is the wrapping difference of
//! their tops. Laps are compared by that difference, never by `<`: a lap field may wrap. (Only a reader that sleeps through
//! an exact multiple of all laps of the field, 2^52 of them for a ring of 1 024, could mistake one for another.)

/// Set in a word whose slot holds a message.
pub const FULL: u64 = 1;
/// Set in a word whose slot has a tag (see [`super::Producer::push`]).
pub const TAGGED: u64 = 2;
const FLAG_BITS: u32 = 2;

/// The most slots a ring may have: what keeps at least 30 bits for the lap.
pub const MAX_SLOTS: usize = 1 << 31;

/// How a ring's words are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    capacity: u32,
    lap_shift: u32,
    /// Everything below the lap.
    below: u64,
}

impl Shape {
    /// For `capacity` entries over `slots` slots.
    pub fn new(capacity: u32, slots: u32) -> Self {
        debug_assert!(capacity > 0 && slots > capacity && slots as usize <= MAX_SLOTS);
        let lap_shift = FLAG_BITS + (u32::BITS - (slots - 1).leading_zeros());
        Self { capacity, lap_shift, below: (1 << lap_shift) - 1 }
    }

    /// The entries of the ring.
    #[inline(always)]
    pub fn capacity(self) -> u32 {
        self.capacity
    }

    /// `{ lap: 1, slot: 0, tagged: 0, full: 0 }`.
    #[inline(always)]
    fn one_lap(self) -> u64 {
        self.below + 1
    }

    /// `{ lap, slot, flags }`.
    #[inline(always)]
    pub fn word(self, cursor: &Cursor, slot: u32, flags: u64) -> u64 {
        debug_assert!(u64::from(slot) << FLAG_BITS <= self.below);
        cursor.lap | u64::from(slot) << FLAG_BITS | flags
    }

    /// `{ lap: that of word, slot, tagged: 0, full: 0 }`.
    #[inline(always)]
    pub fn with_slot(self, word: u64, slot: u32) -> u64 {
        debug_assert!(u64::from(slot) << FLAG_BITS <= self.below);
        word & !self.below | u64::from(slot) << FLAG_BITS
    }

    /// The `slot` of `word`.
    #[inline(always)]
    pub fn slot(self, word: u64) -> u32 {
        // The cast drops nothing: a slot has at most 31 bits.
        ((word & self.below) >> FLAG_BITS) as u32
    }

    /// By how many laps `word` is ahead of `cursor`, wrapping: -1 for an entry that this lap has not reached.
    #[inline(always)]
    pub fn laps_ahead(self, word: u64, cursor: &Cursor) -> i64 {
        (word & !self.below).wrapping_sub(cursor.lap).cast_signed() >> self.lap_shift
    }

    /// The word of entry `at` before any push of a ring that starts at `cursor`: the lap before, empty.
    pub fn first_word(self, start: &Cursor, at: u32) -> u64 {
        let before = if at < start.at { start.lap } else { start.lap.wrapping_sub(self.one_lap()) };
        before | u64::from(at) << FLAG_BITS
    }

    /// The cursor of `position`.
    pub fn cursor(self, position: u64) -> Cursor {
        let (lap, at) = (position / u64::from(self.capacity), position % u64::from(self.capacity));
        Cursor { lap: lap << self.lap_shift, at: at as u32, position }
    }

    /// The first position of the last lap before the lap field wraps: where tests begin.
    #[cfg(test)]
    pub fn position_of_last_lap(self) -> u64 {
        (u64::MAX >> self.lap_shift) * u64::from(self.capacity)
    }

    /// Moves `cursor` on by one.
    #[inline(always)]
    pub fn advance(self, cursor: &mut Cursor) {
        cursor.position = cursor.position.wrapping_add(1);
        cursor.at += 1;
        if cursor.at == self.capacity {
            cursor.at = 0;
            cursor.lap = cursor.lap.wrapping_add(self.one_lap());
        }
    }

    /// Moves a `cursor` that was lapped by `laps` to the oldest position that can be queued still: the entry under it has
    /// been pushed `laps` laps later, at position p, so everything up to p - capacity is gone.
    pub fn catch_up(self, cursor: &mut Cursor, laps: i64) {
        debug_assert!(laps > 0);
        let skipped =
            laps.cast_unsigned().wrapping_mul(u64::from(self.capacity)) - u64::from(self.capacity) + 1;
        cursor.position = cursor.position.wrapping_add(skipped);
        cursor.lap = cursor.lap.wrapping_add((laps - 1).cast_unsigned() << self.lap_shift);
        cursor.at += 1;
        if cursor.at == self.capacity {
            cursor.at = 0;
            cursor.lap = cursor.lap.wrapping_add(self.one_lap());
        }
    }
}

/// A place in the endless sequence of pushes: `position`, and the entry (`at`) and lap (shifted into its field) that follow
/// from it. Kept together, since a division a push would cost more than the push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    lap: u64,
    at: u32,
    position: u64,
}

impl Cursor {
    /// Pushes before this place, since the ring's start; wraps.
    #[inline(always)]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The entry at this place.
    #[inline(always)]
    pub fn at(&self) -> usize {
        self.at as usize
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_do_not_touch() {
        for (capacity, slots) in [(1, 3), (1, 4), (2, 5), (1024, 1026), (65_536, 65_540), (1, 1 << 31)] {
            let shape = Shape::new(capacity, slots);
            let cursor = shape.cursor(u64::from(capacity) * 5);
            for slot in [0, 1, slots / 2, slots - 1] {
                for flags in [0, FULL, TAGGED, FULL | TAGGED] {
                    let word = shape.word(&cursor, slot, flags);
                    assert_eq!(
                        (shape.slot(word), word & 3, shape.laps_ahead(word, &cursor)),
                        (slot, flags, 0)
                    );
                }
            }
        }
    }

    #[test]
    fn before_the_first_push_every_entry_is_a_lap_behind() {
        for start in 0..7 {
            let shape = Shape::new(3, 6);
            let mut cursor = shape.cursor(start);
            let begin = cursor.clone();
            for _ in 0..3 {
                assert_eq!(shape.laps_ahead(shape.first_word(&begin, cursor.at), &cursor), -1);
                shape.advance(&mut cursor);
            }
        }
    }

    proptest! {
        #[test]
        fn advancing_is_adding_one(capacity in 1u32..70, start in 0u64..1_000_000, steps in 0usize..300) {
            let shape = Shape::new(capacity, capacity + 2);
            let mut cursor = shape.cursor(start);
            for _ in 0..steps {
                shape.advance(&mut cursor);
            }
            prop_assert_eq!(cursor, shape.cursor(start + steps as u64));
        }

        #[test]
        fn catching_up_lands_one_capacity_behind_the_push(capacity in 1u32..70, h in 0u64..1_000_000, laps in 1i64..9) {
            let shape = Shape::new(capacity, capacity + 2);
            let mut cursor = shape.cursor(h);
            shape.catch_up(&mut cursor, laps);
            let pushed = h + laps as u64 * u64::from(capacity);
            prop_assert_eq!(cursor, shape.cursor(pushed - u64::from(capacity) + 1));
        }

        #[test]
        fn laps_compare_by_wrapping_difference(capacity in 1u32..70, back in 0u64..200, ahead in -1i64..5) {
            let shape = Shape::new(capacity, capacity + 2);
            // A place just before the lap field wraps.
            let mut cursor = shape.cursor(0);
            cursor.lap = 0u64.wrapping_sub((back % 4) << shape.lap_shift);
            let mut word = shape.word(&cursor, 1, FULL);
            word = word.wrapping_add(ahead.cast_unsigned() << shape.lap_shift);
            prop_assert_eq!(shape.laps_ahead(word, &cursor), ahead);
        }
    }
}
