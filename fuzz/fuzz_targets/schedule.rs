//! Any script of acceptances, put-backs, expiries and settlements leaves the schedule of redelivery and a plain list in the same state.
#![no_main]

use arbitrary::{Arbitrary, Result, Unstructured};
use fanout::__fuzz::schedule::{Op, check};
use libfuzzer_sys::fuzz_target;

#[derive(Debug)]
struct Input {
    entries: u32,
    script: Vec<Op>,
}

impl<'a> Arbitrary<'a> for Input {
    fn arbitrary(bytes: &mut Unstructured<'a>) -> Result<Self> {
        let entries = bytes.int_in_range(1..=6)?;
        let mut script = Vec::new();
        while !bytes.is_empty() {
            script.push(op(bytes)?);
        }
        Ok(Self { entries, script })
    }
}

/// Small numbers, so that times, places and entries meet.
fn op(bytes: &mut Unstructured<'_>) -> Result<Op> {
    let [kind, number] = bytes.arbitrary::<[u8; 2]>()?;
    let (which, small) = (usize::from(number % 8), u64::from(number / 8));
    Ok(match kind % 10 {
        0 | 1 => Op::Accept { tag: small },
        2 => Op::AwaitAck { which, timeout: (small < 28).then_some(small) },
        3 => Op::PutBack { which, delay: small, behind: u64::from(kind / 10 % 3) },
        4 => Op::BeginPass,
        5 => Op::Ripen { by: small },
        6 => Op::Expire { suspend: number % 2 == 0 },
        7 => Op::Redeliver,
        8 => {
            if number % 4 == 0 {
                Op::Suspend { which }
            } else {
                Op::Release { which }
            }
        }
        _ => Op::Publish,
    })
}

fuzz_target!(|input: Input| check(input.entries, &input.script));
