//! Times of single events: a histogram in clock ticks read in nanoseconds, and a pace to publish at.

use std::hint;

use hdrhistogram::Histogram;

use crate::machine::{nanos_per_tick, ticks};

/// Beyond any time a round can take, in ticks.
const LONGEST: u64 = 1 << 40;

#[derive(Debug, Clone)]
pub struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        Self(Histogram::new_with_bounds(1, LONGEST, 3).expect("good bounds"))
    }
}

impl Latencies {
    /// Records the time from `stamp` to now.
    #[inline]
    pub fn since(&mut self, stamp: u64) {
        self.record(ticks().saturating_sub(stamp));
    }

    #[inline]
    pub fn record(&mut self, ticks: u64) {
        self.0.saturating_record(ticks);
    }

    pub fn record_all(&mut self, samples: &[u64]) {
        for sample in samples {
            self.record(*sample);
        }
    }

    /// The quantile, in nanoseconds.
    pub fn at(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 * nanos_per_tick()
    }
}

/// Spins from one due time to the next. A late event does not hurry the next one: that would measure a burst.
pub struct Pace {
    due: u64,
    every: u64,
}

impl Pace {
    pub fn every(nanos: f64) -> Self {
        let every = (nanos / nanos_per_tick()) as u64;
        Self { due: ticks() + every, every }
    }

    #[inline]
    pub fn wait(&mut self) {
        while ticks() < self.due {
            hint::spin_loop();
        }
        self.due = ticks() + self.every;
    }
}
