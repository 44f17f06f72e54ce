use proptest::prelude::*;

use super::model::{Op, check};
use super::*;

fn op() -> impl Strategy<Value = Op> {
    let which = any::<usize>;
    prop_oneof![
        6 => (0_u64..3).prop_map(|tag| Op::Accept { tag }),
        4 => (which(), prop::option::weighted(0.9, 0_u64..20)).prop_map(|(which, timeout)| Op::AwaitAck { which, timeout }),
        4 => (which(), 0_u64..20, 0_u64..3).prop_map(|(which, delay, behind)| Op::PutBack { which, delay, behind }),
        3 => Just(Op::BeginPass),
        4 => (0_u64..10).prop_map(|by| Op::Ripen { by }),
        3 => any::<bool>().prop_map(|suspend| Op::Expire { suspend }),
        5 => Just(Op::Redeliver),
        1 => which().prop_map(|which| Op::Suspend { which }),
        2 => which().prop_map(|which| Op::Release { which }),
        4 => Just(Op::Publish),
    ]
}

proptest! {
    #[test]
    fn the_schedule_answers_as_its_model(entries in 1_u32..7, script in prop::collection::vec(op(), 0..200)) {
        check(entries, &script);
    }
}

#[test]
fn a_message_that_fails_without_a_delay_lets_the_others_go_first() {
    let mut schedule = Schedule::new(2).unwrap();
    let tickets = [0, 1].map(|position| {
        let ticket = Ticket { entry: schedule.free_entry().unwrap(), generation: 1 };
        schedule.accept(ticket, position, 0);
        ticket
    });
    // Both at the same place of the ring, the older one in each of its turns again.
    for ticket in [tickets[0], tickets[1]] {
        schedule.begin_pass();
        schedule.put_back(ticket.entry, 0, 0, 2);
    }
    for turn in 0..6 {
        let (ticket, mark) = schedule.next().unwrap();
        assert_eq!((ticket, mark), (tickets[turn % 2], 2));
        schedule.redeliver(ticket.entry);
        schedule.begin_pass();
        schedule.put_back(ticket.entry, 0, 0, 2);
    }
    assert_eq!(schedule.record(tickets[0].entry).attempts, 4);
}

#[test]
fn attempts_do_not_wrap() {
    let mut schedule = Schedule::new(1).unwrap();
    let ticket = Ticket { entry: 0, generation: 1 };
    schedule.accept(ticket, 0, 0);
    schedule.records[0].attempts = u32::MAX - 1;
    schedule.redeliver(0);
    schedule.redeliver(0);
    assert_eq!(schedule.record(0).attempts, u32::MAX);
}
