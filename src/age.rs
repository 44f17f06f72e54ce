//! A histogram of delivery ages: fixed size, one writer, read at any time.

use std::time::Duration;

use crate::metrics::AgeSummary;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Parts that each power of two is cut into: a bucket is at most one eighth wide.
const PARTS_LOG: u32 = 3;
/// Ages from 2^40 ns (18 minutes) on share the last bucket.
const TOP: u32 = 40;
const BUCKETS: usize = ((TOP - PARTS_LOG + 1) << PARTS_LOG) as usize + 1;

/// Counts per bucket, 8 to an octave.
#[derive(Debug)]
pub struct Ages {
    buckets: Box<[AtomicU32]>,
    last: AtomicU64,
    max: AtomicU64,
    count: AtomicU64,
}

/// The bucket of an age: `{ octave, part }`, below 8 ns one bucket a nanosecond.
fn bucket(nanos: u64) -> usize {
    let octave = 63 - (nanos | 1).leading_zeros();
    if octave < PARTS_LOG {
        return nanos as usize;
    }
    if octave >= TOP {
        return BUCKETS - 1;
    }
    let part = (nanos >> (octave - PARTS_LOG)) as usize & ((1 << PARTS_LOG) - 1);
    (((octave - PARTS_LOG + 1) as usize) << PARTS_LOG) + part
}

/// The largest age of a bucket.
fn upper(bucket: usize) -> u64 {
    if bucket < 1 << PARTS_LOG {
        return bucket as u64;
    }
    let octave = (bucket >> PARTS_LOG) as u32 + PARTS_LOG - 1;
    let part = (bucket & ((1 << PARTS_LOG) - 1)) as u64;
    let width = 1u64 << (octave - PARTS_LOG);
    (1u64 << octave) + (part + 1) * width - 1
}

impl Ages {
    /// An empty histogram.
    pub fn new() -> Self {
        Self {
            buckets: (0..BUCKETS).map(|_| AtomicU32::new(0)).collect(),
            last: AtomicU64::new(0),
            max: AtomicU64::new(0),
            count: AtomicU64::new(0),
        }
    }

    /// Adds one age. For the one thread that delivers.
    pub fn record(&self, nanos: u64) {
        // Relaxed, all of it: one writer, and a summary is a look at moving numbers.
        let bucket = &self.buckets[bucket(nanos)];
        bucket.store(bucket.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
        self.last.store(nanos, Ordering::Relaxed);
        self.max.store(self.max.load(Ordering::Relaxed).max(nanos), Ordering::Relaxed);
        self.count.store(self.count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// The summary; `None` before the first age.
    pub fn summary(&self) -> Option<AgeSummary> {
        // Relaxed: see `record`.
        let counts: Vec<u64> =
            self.buckets.iter().map(|count| count.load(Ordering::Relaxed).into()).collect();
        let total: u64 = counts.iter().sum();
        let max = self.max.load(Ordering::Relaxed);
        let quantile = |thousandths: u64| {
            let rank = (total * thousandths).div_ceil(1000).max(1);
            let mut seen = 0;
            let found = counts.iter().position(|count| {
                seen += count;
                seen >= rank
            });
            // The last bucket has no upper end but the maximum.
            let nanos = found.filter(|&at| at + 1 < BUCKETS).map_or(max, upper).min(max);
            Duration::from_nanos(nanos)
        };
        (total > 0).then(|| AgeSummary {
            last: Duration::from_nanos(self.last.load(Ordering::Relaxed)),
            p50: quantile(500),
            p99: quantile(990),
            max: Duration::from_nanos(max),
            count: self.count.load(Ordering::Relaxed),
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bucket_holds_its_ages_within_an_eighth(nanos in 0u64..(1 << TOP)) {
            let end = upper(bucket(nanos));
            prop_assert!(nanos <= end && end - nanos <= nanos / 8, "{nanos} {end}");
            prop_assert_eq!(bucket(end), bucket(nanos));
            prop_assert_eq!(bucket(end + 1), bucket(nanos) + 1);
        }
    }

    #[test]
    fn quantiles_never_exceed_the_maximum() {
        let ages = Ages::new();
        assert!(ages.summary().is_none());
        for nanos in [5, 1_000, 1_000_000, u64::MAX] {
            ages.record(nanos);
        }
        let summary = ages.summary().unwrap();
        assert_eq!((summary.count, summary.last, summary.max), (4, summary.p99, summary.p99));
        assert!(summary.p50 >= Duration::from_nanos(1_000) && summary.p50 < Duration::from_nanos(1_125));
    }
}
