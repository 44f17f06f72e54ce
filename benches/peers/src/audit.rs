//! The books of a round. A row counts only if every subscription got, in order, what was published less what its peer says
//! was dropped, and if the words of what arrived add up.

use std::{
    fmt, hint,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use crate::peer::{Consumer, Flow, Handler, Publish, Receive};

/// What travels: 32 bytes, plain data.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Payload {
    pub seq: u64,
    /// Clock ticks at publish in the latency rows, else zero: a clock read costs as much as a publish.
    pub stamp: u64,
    /// A function of `seq` whose sum has a closed form.
    pub word: u64,
    /// The source, and the flags below.
    pub tag: u64,
}

impl Payload {
    pub fn mark_last(&mut self) {
        self.tag |= SIGNAL | LAST;
    }
}

const LANES: u64 = 2;
const LAST: u64 = 1 << 63;
const SIGNAL: u64 = 1 << 62;

const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
const OFFSET: u64 = 0xd1b5_4a32_d192_ed03;

/// The sum of the words of `0..published`.
fn sum_of_words(published: u64) -> u64 {
    sum_of_range(0, published)
}

fn sum_of_range(from: u64, to: u64) -> u64 {
    let count = u128::from(to - from);
    let seqs = count * (u128::from(from) + u128::from(to.saturating_sub(1))) / 2;
    (seqs as u64).wrapping_mul(FACTOR).wrapping_add((count as u64).wrapping_mul(OFFSET))
}

/// Makes the payloads of one publisher.
#[derive(Debug, Clone)]
pub struct Source {
    next: u64,
    lane: u64,
}

impl Source {
    pub fn new(lane: u64) -> Self {
        assert!(lane < LANES);
        Self { next: 0, lane }
    }

    #[inline]
    pub fn next(&mut self) -> Payload {
        let seq = self.next;
        self.next += 1;
        Payload { seq, stamp: 0, word: seq.wrapping_mul(FACTOR).wrapping_add(OFFSET), tag: self.lane }
    }

    /// A message whose arrival the handler reports through `Progress`.
    pub fn signal(&mut self) -> Payload {
        let mut payload = self.next();
        payload.tag |= SIGNAL;
        payload
    }

    /// The message that ends the consumer.
    pub fn last(&mut self) -> Payload {
        let mut payload = self.next();
        payload.mark_last();
        payload
    }

    pub fn published(&self) -> u64 {
        self.next
    }
}

/// Why a round does not count.
#[derive(Debug, Clone)]
pub struct Fault(pub String);

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What one subscription has seen.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    next: [u64; LANES as usize],
    pub received: u64,
    missed: u64,
    sum: u64,
    missed_sum: u64,
    disorder: bool,
}

impl Tally {
    #[inline]
    pub fn see(&mut self, payload: &Payload) {
        let next = &mut self.next[(payload.tag % LANES) as usize];
        if payload.seq != *next {
            if payload.seq < *next {
                self.disorder = true;
            } else {
                self.missed += payload.seq - *next;
                self.missed_sum = self.missed_sum.wrapping_add(sum_of_range(*next, payload.seq));
            }
        }
        *next = payload.seq + 1;
        self.received += 1;
        self.sum = self.sum.wrapping_add(payload.word);
    }

    /// Closes the books of one subscription and gives what it missed. `published` per lane.
    pub fn close(mut self, published: [u64; LANES as usize]) -> Result<u64, Fault> {
        let mut expected = 0u64;
        for (next, published) in self.next.iter().zip(published) {
            if *next > published {
                return Err(Fault("received what was never published".into()));
            }
            self.missed += published - next;
            self.missed_sum = self.missed_sum.wrapping_add(sum_of_range(*next, published));
            expected = expected.wrapping_add(sum_of_words(published));
        }
        if self.disorder {
            return Err(Fault("received out of order or twice".into()));
        }
        if self.received + self.missed != published.iter().sum::<u64>() {
            return Err(Fault("received + missed is not what was published".into()));
        }
        if self.sum.wrapping_add(self.missed_sum) != expected {
            return Err(Fault("the payloads do not add up".into()));
        }
        Ok(self.missed)
    }
}

/// Compares what the subscriptions missed with what the peer says it dropped.
pub fn settle(missed: u64, dropped: u64) -> Result<(), Fault> {
    if missed == dropped {
        Ok(())
    } else {
        Err(Fault(format!("{missed} messages are missing, {dropped} were said to be dropped")))
    }
}

/// Empties the receivers and settles: the end of a round that drains by hand.
pub fn audit<P: Publish, R: Receive>(
    publishers: &[&P],
    receivers: Vec<R>,
    tallies: Vec<Tally>,
    published: [u64; LANES as usize],
) -> Result<(), Fault> {
    let mut missed = 0;
    let mut dropped: u64 = publishers.iter().map(|publisher| publisher.dropped()).sum();
    for (mut receiver, mut tally) in receivers.into_iter().zip(tallies) {
        while let Some(payload) = receiver.take() {
            tally.see(&payload);
        }
        missed += tally.close(published)?;
        dropped += receiver.dropped();
    }
    settle(missed, dropped)
}

/// Keeps a word off its neighbours' lines, also from the adjacent-line prefetcher.
#[repr(align(128))]
#[derive(Debug, Default)]
pub struct Padded<T>(pub T);

/// How far a consumer is, written by its handler.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Padded<AtomicU64>>);

impl Progress {
    #[inline]
    pub fn set(&self, messages: u64) {
        self.0.0.store(messages, Ordering::Release);
    }

    /// One more; for several consumers that share a count.
    pub fn bump(&self) {
        self.0.0.fetch_add(1, Ordering::Release);
    }

    #[inline]
    pub fn get(&self) -> u64 {
        self.0.0.load(Ordering::Acquire)
    }

    /// Spins until the consumer is past `messages`; a consumer that never gets there voids the round.
    pub fn wait(&self, messages: u64) -> Result<(), Fault> {
        let begun = Instant::now();
        while self.get() < messages {
            hint::spin_loop();
            if begun.elapsed() > Duration::from_secs(20) {
                return Err(Fault(format!("message {messages} did not arrive in 20 s")));
            }
        }
        Ok(())
    }
}

/// The books of a consuming thread, sent home when its handler is dropped.
struct Ledger<N: Default> {
    tally: Tally,
    notes: N,
    home: mpsc::Sender<(Tally, N)>,
}

impl<N: Default> Drop for Ledger<N> {
    fn drop(&mut self) {
        let books = (std::mem::take(&mut self.tally), std::mem::take(&mut self.notes));
        // A round that has been given up listens no longer.
        let _ = self.home.send(books);
    }
}

/// A consumer under audit: its progress, and its books once it has ended.
pub struct Audited<N> {
    pub progress: Progress,
    books: mpsc::Receiver<(Tally, N)>,
}

/// Which messages a handler reports through `Progress` beside the marked ones: those whose `seq` has all of these bits.
#[derive(Debug, Clone, Copy)]
pub struct Reports(u64);

impl Reports {
    pub const MARKED: Self = Self(u64::MAX);
    pub const EACH: Self = Self(0);
    /// Seldom enough to leave a publisher that waits for room the line it waits on.
    pub const EVERY_32: Self = Self(31);
}

/// Wraps what a row does per message into a handler that keeps the books.
pub fn audited<N: Send + Default + 'static>(
    reports: Reports,
    notes: N,
    mut each: impl FnMut(&Payload, &mut N) + Send + 'static,
) -> (Audited<N>, impl Handler) {
    let (home, books) = mpsc::channel();
    let progress = Progress::default();
    let told = progress.clone();
    let mut ledger = Ledger { tally: Tally::default(), notes, home };
    let handler = move |payload: &Payload| {
        let ledger = &mut ledger;
        each(payload, &mut ledger.notes);
        ledger.tally.see(payload);
        if payload.seq & reports.0 == reports.0 || payload.tag & SIGNAL != 0 {
            told.set(payload.seq + 1);
        }
        if payload.tag & LAST != 0 { Flow::Ends } else { Flow::On }
    };
    (Audited { progress, books }, handler)
}

impl<N> Audited<N> {
    /// Ends the round: stops the consumer and closes its books. Gives what was received, and the row's notes.
    pub fn close(
        self,
        publisher: impl Publish,
        consumer: Consumer,
        published: u64,
    ) -> Result<(u64, N), Fault> {
        let (received, missed, dropped, notes) = self.collect(consumer, published, || {
            let dropped = publisher.dropped();
            drop(publisher);
            dropped
        })?;
        settle(missed, dropped)?;
        Ok((received, notes))
    }

    /// The same for one consumer of several; `end` ends the publisher and gives its count of drops.
    pub fn collect(
        self,
        consumer: Consumer,
        published: u64,
        end: impl FnOnce() -> u64,
    ) -> Result<(u64, u64, u64, N), Fault> {
        let dropped = consumer.stop() + end();
        let (tally, notes) = self
            .books
            .recv_timeout(Duration::from_secs(20))
            .map_err(|_| Fault("a handler outlived its consumer by 20 s".into()))?;
        let received = tally.received;
        let missed = tally.close([published, 0])?;
        Ok((received, missed, dropped, notes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(payloads: &[Payload]) -> Tally {
        let mut tally = Tally::default();
        payloads.iter().for_each(|payload| tally.see(payload));
        tally
    }

    fn some(count: usize) -> Vec<Payload> {
        let mut source = Source::new(0);
        (0..count).map(|_| source.next()).collect()
    }

    #[test]
    fn what_is_missing_is_counted_at_the_front_in_the_middle_and_at_the_end() {
        let all = some(10);
        assert_eq!(seen(&all).close([10, 0]).unwrap(), 0);
        assert_eq!(seen(&[&all[2..4], &all[7..9]].concat()).close([10, 0]).unwrap(), 6);
        assert_eq!(seen(&[]).close([10, 0]).unwrap(), 10);
    }

    #[test]
    fn lanes_are_counted_apart() {
        let (mut one, mut other) = (Source::new(0), Source::new(1));
        let mixed = [one.next(), other.next(), other.next(), one.next()];
        assert_eq!(seen(&mixed).close([2, 3]).unwrap(), 1);
    }

    #[test]
    fn books_that_do_not_balance_do_not_close() {
        let all = some(4);
        let mut torn = all.clone();
        torn[2].word = torn[1].word;
        assert!(seen(&torn).close([4, 0]).is_err());
        assert!(seen(&[all[1], all[0]]).close([4, 0]).is_err());
        assert!(seen(&[all[0], all[0]]).close([4, 0]).is_err());
        assert!(seen(&all).close([3, 0]).is_err());
        assert!(settle(3, 2).is_err());
    }
}
