//! The schedule beside a model of it: a plain list, searched anew at each question.

use proptest::prelude::*;

use super::*;

/// One step of a script; which message it is about is a number modulo those that are in question.
#[derive(Debug, Clone, Copy)]
enum Op {
    Accept {
        tag: u64,
    },
    /// With this timeout from now, or none.
    AwaitAck {
        which: usize,
        timeout: Option<u64>,
    },
    PutBack {
        which: usize,
        delay: u64,
        behind: u64,
    },
    BeginPass,
    /// Time passes, and what is due gets its turn.
    Ripen {
        by: u64,
    },
    /// What has expired is suspended, or put back.
    Expire {
        suspend: bool,
    },
    Redeliver,
    Suspend {
        which: usize,
    },
    Release {
        which: usize,
    },
    Publish,
}

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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Where {
    Nowhere,
    Awaiting { deadline: u64, turn: u64 },
    PutBack { due: u64, mark: u64, pass: u64, ripe: bool },
}

#[derive(Debug, Clone, Copy)]
struct Item {
    ticket: Ticket,
    position: u64,
    tag: u64,
    attempts: u32,
    place: Where,
}

#[derive(Debug, Default)]
struct Model {
    items: Vec<Item>,
    now: u64,
    end: u64,
    pass: u64,
    turns: u64,
}

impl Model {
    fn item(&mut self, entry: u32) -> &mut Item {
        self.items.iter_mut().find(|item| item.ticket.entry == entry).unwrap()
    }

    fn next(&self) -> Option<(Ticket, u64)> {
        let ready = self.items.iter().filter_map(|item| match item.place {
            Where::PutBack { mark, pass, ripe: true, .. } => Some(((mark, pass, item.position), item.ticket)),
            _ => None,
        });
        ready.min_by_key(|(order, _)| *order).map(|((mark, ..), ticket)| (ticket, mark))
    }

    fn awaiting(&self) -> impl Iterator<Item = (u64, u64, Ticket)> {
        self.items.iter().filter_map(|item| match item.place {
            Where::Awaiting { deadline, turn } => Some((turn, deadline, item.ticket)),
            _ => None,
        })
    }

    fn expired(&self) -> Option<Ticket> {
        let (_, deadline, ticket) = self.awaiting().min_by_key(|(turn, ..)| *turn)?;
        (deadline <= self.now).then_some(ticket)
    }

    fn next_time(&self) -> u64 {
        let delayed = self.items.iter().filter_map(|item| match item.place {
            Where::PutBack { due, ripe: false, .. } => Some(due),
            _ => None,
        });
        self.awaiting().map(|(_, deadline, _)| deadline).chain(delayed).min().unwrap_or(NEVER)
    }

    fn put_back(&mut self, entry: u32, due: u64, mark: u64) {
        let (pass, ripe) = (self.pass, due <= self.now);
        self.item(entry).place = Where::PutBack { due, mark, pass, ripe };
    }
}

fn run(entries: u32, script: &[Op]) -> Result<(), TestCaseError> {
    let mut schedule = Schedule::new(entries).expect("a small table");
    let mut model = Model::default();
    for op in script {
        let pick = |which: usize| {
            (!model.items.is_empty()).then(|| model.items[which % model.items.len()].ticket.entry)
        };
        match *op {
            Op::Accept { tag } => {
                if let Some(entry) = schedule.free_entry() {
                    prop_assert!(
                        entry < entries && model.items.iter().all(|item| item.ticket.entry != entry)
                    );
                    let ticket = Ticket { entry, generation: model.end };
                    let position = model.end;
                    model.end += 1;
                    schedule.accept(ticket, position, tag);
                    model.items.push(Item { ticket, position, tag, attempts: 1, place: Where::Nowhere });
                }
            }
            Op::AwaitAck { which, timeout } => {
                if let Some(entry) = pick(which) {
                    let deadline = timeout.map_or(NEVER, |timeout| model.now + timeout);
                    schedule.await_ack(entry, deadline);
                    // Nothing expires before its turn.
                    model.item(entry).place = Where::Nowhere;
                    let latest = model.awaiting().map(|(_, deadline, _)| deadline).max().unwrap_or(0);
                    model.turns += 1;
                    let (deadline, turn) = (deadline.max(latest), model.turns);
                    model.item(entry).place = Where::Awaiting { deadline, turn };
                }
            }
            Op::PutBack { which, delay, behind } => {
                if let Some(entry) = pick(which) {
                    // Asked for a while ago, as by a nack that was read late.
                    let (due, mark) = (model.now + delay, model.end.saturating_sub(behind));
                    schedule.put_back(entry, due, model.now, mark);
                    model.put_back(entry, due, mark);
                }
            }
            Op::BeginPass => {
                schedule.begin_pass();
                model.pass += 1;
            }
            Op::Ripen { by } => {
                model.now += by;
                schedule.ripen(model.now);
                let now = model.now;
                for item in &mut model.items {
                    if let Where::PutBack { due, ripe, .. } = &mut item.place {
                        *ripe |= *due <= now;
                    }
                }
            }
            Op::Expire { suspend } => {
                let mut gone = Vec::new();
                while let Some(ticket) = schedule.expired(model.now) {
                    prop_assert_eq!(Some(ticket), model.expired());
                    if suspend {
                        schedule.suspend(ticket.entry);
                        model.item(ticket.entry).place = Where::Nowhere;
                    } else {
                        schedule.put_back(ticket.entry, model.now, model.now, model.end);
                        model.put_back(ticket.entry, model.now, model.end);
                    }
                    gone.push(ticket.entry);
                }
                prop_assert_eq!(model.expired(), None, "after {:?}", gone);
            }
            Op::Redeliver => {
                if let Some((ticket, _)) = schedule.next() {
                    schedule.redeliver(ticket.entry);
                    let item = model.item(ticket.entry);
                    item.attempts += 1;
                    item.place = Where::Nowhere;
                }
            }
            Op::Suspend { which } => {
                if let Some(entry) = pick(which) {
                    schedule.suspend(entry);
                    model.item(entry).place = Where::Nowhere;
                }
            }
            Op::Release { which } => {
                if let Some(entry) = pick(which) {
                    schedule.release(entry);
                    model.items.retain(|item| item.ticket.entry != entry);
                }
            }
            Op::Publish => model.end += 1,
        }
        prop_assert_eq!(schedule.next(), model.next());
        prop_assert_eq!(schedule.expired(model.now), model.expired());
        prop_assert_eq!(schedule.next_time(), model.next_time());
        prop_assert_eq!(schedule.free_entry().is_none(), model.items.len() == entries as usize);
        for item in &model.items {
            let Record { ticket, position, tag, attempts, .. } = *schedule.record(item.ticket.entry);
            prop_assert_eq!(
                (ticket, position, tag, attempts),
                (item.ticket, item.position, item.tag, item.attempts)
            );
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn the_schedule_answers_as_its_model(entries in 1_u32..7, script in prop::collection::vec(op(), 0..200)) {
        run(entries, &script)?;
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
