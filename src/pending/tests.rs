use proptest::prelude::*;

use super::Verdict;
use super::model::{Op, check};

fn op() -> impl Strategy<Value = Op> {
    let verdict = prop::sample::select(vec![Verdict::Await, Verdict::Ack, Verdict::PutBack, Verdict::Remove]);
    prop_oneof![
        3 => Just(Op::Push),
        4 => Just(Op::Accept),
        5 => verdict.prop_map(Op::Conclude),
        2 => any::<u8>().prop_map(Op::Ack),
        2 => any::<u8>().prop_map(Op::Nack),
        2 => any::<u8>().prop_map(Op::Expire),
        2 => any::<u8>().prop_map(Op::Redeliver),
        1 => any::<u8>().prop_map(Op::Remove),
        2 => Just(Op::ReadMail),
    ]
}

proptest! {
    #[test]
    fn the_table_settles_as_its_model(entries in 1usize..5, script in prop::collection::vec(op(), 0..300)) {
        check(entries, &script);
    }
}
