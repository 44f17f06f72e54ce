//! The schedule beside a model of it: a plain list, searched anew at each question. The property test and the fuzz target run both side by
//! side.

use super::{Record, Schedule};
use crate::clock::NEVER;
use crate::pending::Ticket;

/// One step of a script; which message it is about is a number modulo those that are in question.
#[derive(Debug, Clone, Copy)]
pub enum Op {
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

/// Runs `script` on a schedule of `entries`, and on the model.
///
/// # Panics
///
/// If they differ.
pub fn check(entries: u32, script: &[Op]) {
    let mut schedule = Schedule::new(entries).expect("a small table");
    let mut model = Model::default();
    for op in script {
        let pick = |which: usize| {
            (!model.items.is_empty()).then(|| model.items[which % model.items.len()].ticket.entry)
        };
        match *op {
            Op::Accept { tag } => {
                if let Some(entry) = schedule.free_entry() {
                    assert!(entry < entries && model.items.iter().all(|item| item.ticket.entry != entry));
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
                    assert_eq!(Some(ticket), model.expired());
                    if suspend {
                        schedule.suspend(ticket.entry);
                        model.item(ticket.entry).place = Where::Nowhere;
                    } else {
                        schedule.put_back(ticket.entry, model.now, model.now, model.end);
                        model.put_back(ticket.entry, model.now, model.end);
                    }
                    gone.push(ticket.entry);
                }
                assert_eq!(model.expired(), None, "after {:?}", gone);
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
        assert_eq!(schedule.next(), model.next());
        assert_eq!(schedule.expired(model.now), model.expired());
        assert_eq!(schedule.next_time(), model.next_time());
        assert_eq!(schedule.free_entry().is_none(), model.items.len() == entries as usize);
        for item in &model.items {
            let Record { ticket, position, tag, attempts, .. } = *schedule.record(item.ticket.entry);
            assert_eq!(
                (ticket, position, tag, attempts),
                (item.ticket, item.position, item.tag, item.attempts)
            );
        }
    }
}
