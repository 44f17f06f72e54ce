//! Any script of pushes, takes and reclaims, at any position, leaves the ring and a queue that drops its oldest in the same state.
#![no_main]

use arbitrary::{Arbitrary, Result, Unstructured};
use fanout::__fuzz::ring::{Op, check};
use libfuzzer_sys::fuzz_target;

#[derive(Debug)]
struct Input {
    capacity: usize,
    spares: usize,
    start: u64,
    script: Vec<Op>,
}

impl<'a> Arbitrary<'a> for Input {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Result<Self> {
        let capacity = bytes.int_in_range(1..=9)?;
        Ok(Self {
            capacity,
            spares: bytes.int_in_range(1..=4)?,
            start: start(capacity, bytes.int_in_range(0..=64)?, bytes.arbitrary::<u8>()?),
            script: bytes.bytes(bytes.len())?.iter().map(op).collect(),
        })
    }
}

/// Just before the lap reaches a power of two: before one of them its field in a word wraps. No script gets from here to the end of the
/// positions, which no program reaches.
fn start(capacity: usize, bits: u32, before: u8) -> u64 {
    let wrap = (capacity as u128) << bits;
    wrap.min(u128::from(u64::MAX >> 1)) as u64 - u64::from(before).min(wrap as u64)
}

fn op(byte: &u8) -> Op {
    match byte % 8 {
        0..=3 => Op::Push,
        4..=6 => Op::Take(byte / 8),
        _ => Op::Reclaim,
    }
}

fuzz_target!(|input: Input| check(input.capacity, input.spares, input.start, &input.script));
