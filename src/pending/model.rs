//! What a pending table must do, one message a line; the property test and the fuzz target run both side by side, on one thread.

use std::collections::VecDeque;
use std::rc::Rc;

use super::{Concluded, Mail, Nack, Table, Ticket, Verdict};
use crate::ring::{Taken, ring};

/// One step of a script. Numbers name a message, modulo those that there have been.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// A message into the ring.
    Push,
    /// The next message out of it, into a call.
    Accept,
    /// The call ends.
    Conclude(Verdict),
    /// Somebody acks.
    Ack(u8),
    /// Somebody nacks.
    Nack(u8),
    /// The owner finds that its time for an ack is over.
    Expire(u8),
    /// The owner delivers it again.
    Redeliver(u8),
    /// The owner gives it up.
    Remove(u8),
    /// The owner reads its mail.
    ReadMail,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    InCall,
    InCallAcked,
    InCallNacked,
    Awaiting,
    PutBack,
    /// Whether the owner has not read of it yet.
    Nacked {
        mailed: bool,
    },
    /// Acked, and the owner has not read of it yet.
    Mailed,
    Gone,
}

struct Line {
    ticket: Ticket,
    value: u64,
    state: State,
}

/// A message and the call that it is in.
type Call = (usize, Taken<(u64, Rc<()>)>);

const CAPACITY: usize = 3;
const NACK: Nack = Nack { delay: 7, at: 8, mark: 9 };

/// Runs `script` on a table of `entries`, and on the model.
///
/// # Panics
///
/// If they differ, or a payload is not dropped when it has to be.
pub fn check(entries: usize, script: &[Op]) {
    let live = Rc::new(());
    let (mut producer, mut cursor, spares) =
        ring::<(u64, Rc<()>)>(CAPACITY, entries, false).expect("a small ring");
    let table = Table::new(spares).expect("a small table");
    let mut queue = VecDeque::new();
    let mut lines: Vec<Line> = Vec::new();
    let mut mail: Vec<usize> = Vec::new();
    let mut call: Option<Call> = None;
    let mut pushed = 0;
    for &op in script {
        let pick = |which: u8| (!lines.is_empty()).then(|| usize::from(which) % lines.len());
        match op {
            Op::Push => {
                producer.push((pushed, live.clone()), 0, drop);
                queue.push_back(pushed);
                if queue.len() > CAPACITY {
                    queue.pop_front();
                }
                pushed += 1;
            }
            Op::Accept => {
                let used = |entry: u32| {
                    lines.iter().any(|line| line.ticket.entry == entry && line.state != State::Gone)
                };
                let free = (0..table.len()).find(|&entry| !used(entry));
                if let (None, Some(entry)) = (&call, free) {
                    let accepted = table.accept(entry, &mut cursor, |_| true);
                    assert_eq!(accepted.as_ref().map(|(_, taken)| taken.0), queue.pop_front());
                    if let Some((ticket, taken)) = accepted {
                        assert!(lines.iter().all(|line| line.ticket != ticket), "an id came twice");
                        call = Some((lines.len(), taken));
                        lines.push(Line {
                            ticket,
                            value: call.as_ref().map_or(0, |(_, taken)| taken.0),
                            state: State::InCall,
                        });
                    }
                }
            }
            Op::Conclude(verdict) => {
                if let Some((at, taken)) = call.take() {
                    let line = &mut lines[at];
                    assert_eq!(taken.0, line.value, "the message changed");
                    let mut counted = false;
                    let concluded = table.conclude(line.ticket, taken, verdict, || counted = true);
                    let (state, counts) = match (concluded, line.state, verdict) {
                        (Concluded::AckedBefore(false), State::InCallAcked, _) => (State::Gone, false),
                        (Concluded::Removed(taken), State::InCall | State::InCallNacked, Verdict::Remove) => {
                            table.restore(line.ticket, taken.into_inner().1);
                            (State::Gone, true)
                        }
                        (Concluded::Nacked(NACK), State::InCallNacked, _) => {
                            (State::Nacked { mailed: false }, false)
                        }
                        (Concluded::Acked(false), State::InCall, Verdict::Ack) => (State::Gone, true),
                        (Concluded::Awaiting, State::InCall, Verdict::Await) => (State::Awaiting, false),
                        (Concluded::PutBack, State::InCall, Verdict::PutBack) => (State::PutBack, false),
                        (concluded, state, _) => panic!("{concluded:?} after {state:?} and {verdict:?}"),
                    };
                    assert_eq!(counted, counts);
                    line.state = state;
                }
            }
            Op::Ack(which) => {
                if let Some(at) = pick(which) {
                    let line = &mut lines[at];
                    let next = match line.state {
                        State::InCall => Some(State::InCallAcked),
                        State::Awaiting | State::PutBack => Some(State::Mailed),
                        _ => None,
                    };
                    let mut counted = false;
                    let acked = table.ack(line.ticket, || counted = true);
                    assert_eq!(
                        (acked.is_ok(), counted),
                        (next.is_some(), next.is_some()),
                        "{:?}",
                        line.state
                    );
                    line.state = next.unwrap_or(line.state);
                    if next == Some(State::Mailed) {
                        mail.push(at);
                    }
                }
            }
            Op::Nack(which) => {
                if let Some(at) = pick(which) {
                    let line = &mut lines[at];
                    let next = match line.state {
                        State::InCall => Some(State::InCallNacked),
                        State::Awaiting => Some(State::Nacked { mailed: true }),
                        _ => None,
                    };
                    assert_eq!(table.nack(line.ticket, NACK).is_ok(), next.is_some(), "{:?}", line.state);
                    line.state = next.unwrap_or(line.state);
                    if next == Some(State::Nacked { mailed: true }) {
                        mail.push(at);
                    }
                }
            }
            Op::Expire(which) => {
                if let Some(at) = pick(which) {
                    let line = &mut lines[at];
                    assert_eq!(table.expire(line.ticket), line.state == State::Awaiting);
                    if line.state == State::Awaiting {
                        line.state = State::PutBack;
                    }
                }
            }
            Op::Redeliver(which) => {
                // What is in the mail has no turn before it is read.
                let at = pick(which).filter(|&at| lines[at].state != State::Nacked { mailed: true });
                if let (None, Some(at)) = (&call, at) {
                    let line = &mut lines[at];
                    let waits = matches!(line.state, State::PutBack | State::Nacked { .. });
                    let again = table.redeliver(line.ticket);
                    assert_eq!(again.is_some(), waits, "{:?}", line.state);
                    if let Some(taken) = again {
                        line.state = State::InCall;
                        call = Some((at, taken));
                    }
                }
            }
            Op::Remove(which) => {
                if let Some(at) = pick(which).filter(|&at| lines[at].state != State::Nacked { mailed: true })
                {
                    let line = &mut lines[at];
                    let waits = matches!(line.state, State::Awaiting | State::PutBack | State::Nacked { .. });
                    let removed = table.remove(line.ticket, || ());
                    assert_eq!(removed.is_some(), waits, "{:?}", line.state);
                    if let Some(taken) = removed {
                        assert_eq!(taken.0, line.value);
                        table.restore(line.ticket, taken.into_inner().1);
                        line.state = State::Gone;
                    }
                }
            }
            Op::ReadMail => {
                assert_eq!(table.has_mail(), !mail.is_empty());
                table.read_mail(|entry, news| {
                    let line = &mut lines[mail.pop().expect("mail that nobody sent")];
                    assert_eq!(entry, line.ticket.entry);
                    let expected = match line.state {
                        State::Mailed => Mail::Freed,
                        _ => Mail::Nacked(line.ticket, NACK),
                    };
                    assert_eq!(news, expected);
                    line.state =
                        if news == Mail::Freed { State::Gone } else { State::Nacked { mailed: false } };
                });
                assert!(mail.is_empty(), "mail was lost");
            }
        }
        let held = lines.iter().filter(|line| !matches!(line.state, State::Mailed | State::Gone)).count();
        assert_eq!(Rc::strong_count(&live), 1 + queue.len() + held, "a payload stayed, or went early");
    }
    let waiting =
        |line: &&Line| matches!(line.state, State::Awaiting | State::PutBack | State::Nacked { .. });
    let (expected, mut discarded) = (lines.iter().filter(waiting).count(), 0);
    table.discard_all(|panicked| discarded += usize::from(!panicked));
    assert_eq!(discarded, expected);
    drop((producer, table, call));
    assert_eq!(Rc::strong_count(&live), 1);
}
