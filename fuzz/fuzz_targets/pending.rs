//! Any script of deliveries, acks, nacks, expiries and mail leaves the pending table and a list of messages in the same state.
#![no_main]

use fanout::__fuzz::Verdict;
use fanout::__fuzz::pending::{Op, check};
use libfuzzer_sys::fuzz_target;

fn op(bytes: &[u8]) -> Op {
    let number = bytes[1];
    match bytes[0] % 12 {
        0 | 1 => Op::Push,
        2 | 3 => Op::Accept,
        4 | 5 => Op::Conclude(
            [Verdict::Await, Verdict::Ack, Verdict::PutBack, Verdict::Remove][usize::from(number % 4)],
        ),
        6 => Op::Ack(number),
        7 => Op::Nack(number),
        8 => Op::Expire(number),
        9 => Op::Redeliver(number),
        10 => Op::Remove(number),
        _ => Op::ReadMail,
    }
}

fuzz_target!(|bytes: &[u8]| {
    if let Some((first, script)) = bytes.split_first() {
        let script: Vec<Op> = script.chunks_exact(2).map(op).collect();
        check(usize::from(first % 4) + 1, &script);
    }
});
