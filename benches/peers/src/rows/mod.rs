//! What is measured. A row is one kind of round, run by a lane per peer; a round gives one value for each of the row's figures.

pub mod cross;
pub mod footprint;
pub mod frozen;
pub mod isolation;
pub mod one_thread;
pub mod publishers;
pub mod scale;
pub mod sleepers;

use std::time::Duration;

use crate::{
    audit::Fault,
    peer::{Kind, Named},
};

/// One run of a lane: how long its timed part took, and its values in the order of the row's figures. A peer that cannot
/// give the last figures leaves them out.
pub struct Round {
    pub took: Duration,
    pub values: Vec<f64>,
}

pub type Outcome = Result<Round, Fault>;

/// One peer in one row. The argument is how much to do, in the row's own unit.
pub struct Lane {
    pub peer: &'static str,
    pub kind: Kind,
    pub round: Box<dyn Fn(u64) -> Outcome>,
}

impl Lane {
    pub fn of<P: Named>(round: impl Fn(u64) -> Outcome + 'static) -> Self {
        Self { peer: P::NAME, kind: P::KIND, round: Box::new(round) }
    }
}

/// What a mark compares with; less is better in every figure.
#[derive(Debug, Clone, Copy)]
pub enum Of {
    /// The best drop-oldest peer.
    Best,
    /// The peer of that name.
    Peer(&'static str),
    /// Another figure of `fanout`'s own.
    Own(&'static str),
    /// Nothing: the value itself.
    Value,
}

#[derive(Debug, Clone, Copy)]
pub struct Mark {
    pub at_most: f64,
    pub of: Of,
}

pub const fn mark(at_most: f64, of: Of) -> Mark {
    Mark { at_most, of }
}

pub struct Figure {
    pub name: String,
    pub unit: &'static str,
    pub marks: Vec<Mark>,
}

impl Figure {
    pub fn new(name: impl Into<String>, unit: &'static str, marks: &[Mark]) -> Self {
        Self { name: name.into(), unit, marks: marks.to_vec() }
    }
}

pub struct Row {
    pub name: &'static str,
    pub figures: Vec<Figure>,
    pub lanes: Vec<Lane>,
    /// Needs a second core for its spinning consumer or second publisher.
    pub crosses: bool,
    /// How much to do in the first trial round.
    pub start: u64,
}

/// A lane for each of the peers: `lanes!(peer, amount => round(peer, amount); Fanout, Naive)`, where `peer` is a
/// `PhantomData` that carries the type.
macro_rules! lanes {
    ($peer:ident, $amount:ident => $round:expr; $($type:ty),+ $(,)?) => {
        vec![$($crate::rows::Lane::of::<$type>(move |$amount| {
            let $peer = std::marker::PhantomData::<$type>;
            $round
        })),+]
    };
}
pub(crate) use lanes;

/// The same for `fanout`, all drop-oldest peers, the yardstick, and those that are named beside.
macro_rules! all_lanes {
    ($peer:ident, $amount:ident => $round:expr $(; $($more:ty),+)?) => {
        $crate::rows::lanes!($peer, $amount => $round;
            $crate::peers::Fanout, $crate::peers::Naive, $crate::peers::ArrayQueue, $crate::peers::Tokio,
            $crate::peers::RingChannel, $crate::peers::AsyncBroadcast, $crate::peers::CrossbeamChannel,
            $crate::peers::PhotonRing $($(, $more)+)?)
    };
}
pub(crate) use all_lanes;

/// Every row, in the order of the table.
pub fn all() -> Vec<Row> {
    let mut rows = one_thread::rows();
    rows.extend(cross::rows());
    rows.push(sleepers::parked());
    rows.push(publishers::row());
    rows.push(frozen::row());
    rows.push(isolation::row());
    rows.push(sleepers::many());
    rows.extend(scale::rows());
    rows.push(footprint::row());
    rows
}
