//! What a peer can do, split by capability. Everything a timed loop calls is a static call, so that no peer pays for the
//! abstraction; what only sets up or ends a round may box.

use std::{
    hint,
    sync::{
        Arc,
        atomic::{AtomicI32, Ordering},
    },
    thread::{self, JoinHandle},
};

use crate::{audit::Payload, machine};

/// Capacity of every ring, unless a row says otherwise.
pub const CAPACITY: usize = 1024;

/// Where a peer stands in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `fanout` itself.
    Subject,
    /// Bounded, drops its oldest: the peers that "best peer" means.
    DropOldest,
    /// Bounded, makes the publisher wait: lossless and latency rows only.
    Lossless,
    /// Gives up what a broker promises; shows what that buys.
    Yardstick,
}

pub trait Named: 'static {
    const NAME: &'static str;
    const KIND: Kind;
}

/// The sending half. `&mut self`, since some peers have a single producer; a row clones it for a second publisher.
pub trait Publish: Send + 'static {
    fn publish(&mut self, payload: Payload);

    /// What this side has counted as dropped, summed over the subscriptions.
    fn dropped(&self) -> u64 {
        0
    }
}

/// The receiving half of one subscription, drained by hand.
pub trait Receive: Send + 'static {
    /// Takes one message if there is one. What waits stays evictable, so drop-oldest peers never take several.
    fn take(&mut self) -> Option<Payload>;

    /// What this side has counted as dropped.
    fn dropped(&self) -> u64 {
        0
    }
}

/// A drop-oldest topic with receivers.
pub trait Topic: Named {
    type Publisher: Publish + Clone;
    type Receiver: Receive;

    fn topic(capacity: usize, subscriptions: usize) -> (Self::Publisher, Vec<Self::Receiver>);
}

/// One topic, one subscription, one consuming thread that spins.
pub trait Spinning: Named {
    type Publisher: Publish;

    /// For a lossless peer `publish` waits for room, so `capacity` bounds what is in flight.
    fn spinning(capacity: usize, seat: Seat, handler: impl Handler) -> (Self::Publisher, Consumer);
}

/// `Spinning` with a publisher that sends many at a time.
pub trait Batching: Named {
    type Publisher: Send + 'static;

    fn batching(capacity: usize, seat: Seat, handler: impl Handler) -> (Self::Publisher, Consumer);
    fn publish_batch(publisher: &mut Self::Publisher, payloads: &[Payload]);
}

/// A topic whose consumers sleep while there is nothing to do, each on a thread of its own, with receivers beside them.
pub trait Parking: Topic {
    fn parking<H: Handler>(
        capacity: usize,
        receivers: usize,
        seat: &Seat,
        handlers: Vec<H>,
    ) -> (Self::Publisher, Vec<Self::Receiver>, Vec<Consumer>);
}

/// A handler tells whether its consumer goes on: it ends with the message marked as the last.
pub trait Handler: FnMut(&Payload) -> Flow + Send + 'static {}
impl<F: FnMut(&Payload) -> Flow + Send + 'static> Handler for F {}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    On,
    Ends,
}

/// Where a consuming thread sits, and how another thread can signal it.
#[derive(Debug, Clone, Default)]
pub struct Seat {
    pub core: Option<usize>,
    pub thread: ThreadSlot,
}

impl Seat {
    pub fn at(core: Option<usize>) -> Self {
        Self { core, thread: ThreadSlot::default() }
    }

    /// Called by the consuming thread.
    pub fn take(&self) {
        if let Some(core) = self.core {
            machine::pin(core);
        }
        self.thread.fill();
    }
}

/// Holds a consuming thread's identity once it runs; zero before.
#[derive(Debug, Clone, Default)]
pub struct ThreadSlot(Arc<AtomicI32>);

impl ThreadSlot {
    /// Called on the consuming thread.
    pub fn fill(&self) {
        self.0.store(machine::this_thread(), Ordering::Release);
    }

    pub fn get(&self) -> i32 {
        self.0.load(Ordering::Acquire)
    }
}

/// A running consumer. The row has seen its handler take the last message before it calls `stop`.
pub struct Consumer(Box<dyn FnOnce() -> u64 + Send>);

impl Consumer {
    pub fn new(stop: impl FnOnce() -> u64 + Send + 'static) -> Self {
        Self(Box::new(stop))
    }

    /// Ends it and tells what it has counted as dropped.
    pub fn stop(self) -> u64 {
        (self.0)()
    }

    fn of_thread(thread: JoinHandle<u64>) -> Self {
        Self::new(move || thread.join().expect("a consumer panicked"))
    }
}

/// Polls without a pause this often before it eases off. A pause costs up to 140 cycles, more than a hand-over of a line.
const BARE_POLLS: u32 = 64;

/// A thread that polls a receiver: how a peer without threads of its own is consumed while spinning.
pub fn spin(mut receiver: impl Receive, seat: Seat, mut handler: impl Handler) -> Consumer {
    Consumer::of_thread(thread::spawn(move || {
        seat.take();
        let mut idle = 0;
        loop {
            match receiver.take() {
                Some(payload) => {
                    idle = 0;
                    if handler(&payload) == Flow::Ends {
                        return receiver.dropped();
                    }
                }
                None if idle < BARE_POLLS => idle += 1,
                None => hint::spin_loop(),
            }
        }
    }))
}

/// A thread that waits in the peer's own blocking receive. `next` gives a message, and what was dropped before it.
pub fn sleep(
    mut next: impl FnMut() -> (Payload, u64) + Send + 'static,
    seat: Seat,
    mut handler: impl Handler,
) -> Consumer {
    Consumer::of_thread(thread::spawn(move || {
        seat.take();
        let mut dropped = 0;
        loop {
            let (payload, before) = next();
            dropped += before;
            if handler(&payload) == Flow::Ends {
                return dropped;
            }
        }
    }))
}
