//! The publish path.

use crate::buffer::{Buffer, Room};
use crate::config::TimeStamps;
use crate::panics::drop_contained;
use crate::sequencer::{Guard, Key};
use crate::sync::atomic::Ordering;
use crate::topic::{Closed, Edge, State, TopicCore};

/// What a publish did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// The message's number in its topic: from 0, without holes.
    pub seq: u64,
    /// Rings that took it.
    pub delivered_to: usize,
    /// Messages that were evicted from those rings by this very call.
    pub dropped: usize,
}

/// What a batch did; the sums over its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishedBatch {
    /// The first message's number; `None` for an empty batch.
    pub first_seq: Option<u64>,
    /// Messages published.
    pub count: usize,
    /// Rings that took one, summed over the messages.
    pub delivered_to: usize,
    /// Messages that were evicted by this very call.
    pub dropped: usize,
}

/// Whether to wait for whoever is inside the sequencer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    Yes,
    No,
}

/// Why nothing was published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    Closed(Closed),
    Contended,
}

/// One message in this many has a time stamp under [`TimeStamps::Sampled`].
const SAMPLING: u64 = 64;
/// Payloads of a batch that enter the sequencer together.
pub const CHUNK: usize = 32;

impl<T> Edge<T> {
    /// Pushes under the sequencer's lock; true if the oldest message made way.
    #[inline(always)]
    fn push(&self, key: &mut Key<'_>, value: T, stamp: u64, buffer: &mut Buffer<'_, T>) -> bool {
        self.producer.open(key).push(value, stamp, |old| buffer.keep(old, self.id))
    }
}

impl<T: Clone> TopicCore<T> {
    /// Publishes one payload. `internal`: also after a shutdown, for dead letters.
    #[inline]
    pub fn publish(&self, payload: T, wait: Wait, internal: bool) -> Result<Published, (T, Refusal)> {
        let stamp = self.stamp(1);
        let mut room = Room::new();
        let mut buffer = Buffer::new(&mut room, 1);
        let mut guard = match self.enter_with(&mut buffer, std::slice::from_ref(&payload), wait, internal) {
            Ok(guard) => guard,
            Err(refusal) => return Err((payload, refusal)),
        };
        let seq = self.next_seq(1);
        let (state, mut key) = guard.open();
        let (delivered_to, mut dropped) = (state.list.len(), 0);
        let unheard = if let Some((last, others)) = state.list.split_last() {
            for edge in others {
                let value = buffer.take();
                dropped += usize::from(edge.push(&mut key, value, stamp, &mut buffer));
            }
            dropped += usize::from(last.push(&mut key, payload, stamp, &mut buffer));
            None
        } else {
            Some(payload)
        };
        if guard.unlock() {
            self.wake_sleepers();
        }
        self.clean_up(&mut buffer, unheard);
        Ok(Published { seq, delivered_to, dropped })
    }

    /// Publishes `chunk`, contiguously, and leaves it empty; or leaves it as it is.
    pub fn publish_chunk(&self, chunk: &mut Vec<T>) -> Result<PublishedBatch, Refusal> {
        let mut stamp = self.stamp(chunk.len() as u64);
        let mut room = Room::new();
        let mut buffer = Buffer::new(&mut room, chunk.len());
        let mut guard = self.enter_with(&mut buffer, chunk, Wait::Yes, false)?;
        let count = chunk.len();
        let first_seq = self.next_seq(count as u64);
        let (state, mut key) = guard.open();
        let (delivered_to, mut dropped) = (count * state.list.len(), 0);
        if let Some((last, others)) = state.list.split_last() {
            for payload in chunk.drain(..) {
                for edge in others {
                    let value = buffer.take();
                    dropped += usize::from(edge.push(&mut key, value, stamp, &mut buffer));
                }
                dropped += usize::from(last.push(&mut key, payload, stamp, &mut buffer));
                if self.hot.stamps == TimeStamps::Sampled {
                    // One of the chunk is enough.
                    stamp = 0;
                }
            }
        }
        if guard.unlock() {
            self.wake_sleepers();
        }
        for unheard in chunk.drain(..) {
            self.clean_up(&mut buffer, Some(unheard));
        }
        self.clean_up(&mut buffer, None);
        Ok(PublishedBatch { first_seq: Some(first_seq), count, delivered_to, dropped })
    }

    /// Enters the sequencer with a clone of each payload for every subscription but the last, and room for what is evicted. Clones are made
    /// outside, and again if the list has changed meanwhile so that they do not fit: each further round means that a subscribe or unsubscribe has
    /// succeeded.
    #[inline(always)]
    fn enter_with<'a>(
        &'a self,
        buffer: &mut Buffer<'_, T>,
        payloads: &[T],
        wait: Wait,
        internal: bool,
    ) -> Result<Guard<'a, State<T>>, Refusal> {
        let mut length = self.subscriptions();
        loop {
            if length > 1 || std::mem::needs_drop::<T>() && !buffer.has_room(payloads.len()) {
                self.make_clones(buffer, payloads, length);
            }
            let guard = match wait {
                Wait::Yes => self.hot.sequencer.lock(),
                Wait::No => self.hot.sequencer.try_lock().ok_or(Refusal::Contended)?,
            };
            match guard.closed {
                Some(Closed::ShutDown) if internal => {}
                Some(why) => return Err(Refusal::Closed(why)),
                None => {}
            }
            let listed = guard.list.len();
            // Fewer than expected is as good for one payload; the clones of several lie in the order of the list that they were made for.
            if listed <= 1 || listed == length || listed < length && payloads.len() == 1 {
                return Ok(guard);
            }
            length = listed;
        }
    }

    /// Clones for `length` subscriptions, payload by payload.
    #[inline(never)]
    fn make_clones(&self, buffer: &mut Buffer<'_, T>, payloads: &[T], length: usize) {
        let others = length.max(1) - 1;
        if payloads.len() > 1 && buffer.clones() > 0 {
            // Made for a shorter list, so in another order.
            self.clean_up(buffer, None);
        }
        let pool = &self.context.pool;
        match payloads {
            [payload] => buffer.fill(others, pool, |_| payload.clone()),
            _ => buffer.fill(others * payloads.len(), pool, |at| payloads[at / others].clone()),
        }
    }

    /// Drops what was evicted, clones that nobody needed, and a payload that nobody heard.
    #[inline(always)]
    fn clean_up(&self, buffer: &mut Buffer<'_, T>, unheard: Option<T>) {
        buffer.clear(&self.context.pool, |owner| self.context.count_payload_panic(owner));
        if let Some(payload) = unheard
            && drop_contained(payload)
        {
            self.context.count_payload_panic(None);
        }
    }

    #[inline(always)]
    fn next_seq(&self, count: u64) -> u64 {
        // Relaxed: written inside the sequencer, whose lock orders the writers.
        let seq = self.hot.published.load(Ordering::Relaxed);
        self.hot.published.store(seq + count, Ordering::Relaxed);
        seq
    }

    /// The time stamp of the first of `count` messages that are about to be published, 0 for none. Before the sequencer is entered.
    #[inline(always)]
    fn stamp(&self, count: u64) -> u64 {
        match self.hot.stamps {
            TimeStamps::Off => 0,
            // Unless a multiple of the sampling is among their numbers.
            TimeStamps::Sampled if self.published().wrapping_neg() % SAMPLING >= count => 0,
            _ => self.context.clock.nanos() + 1,
        }
    }
}
