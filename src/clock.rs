//! The broker's monotonic clock: the system's, or one that is moved by hand.
//!
//! Inside, a time is a `u64` of nanoseconds since the clock's start, and [`NEVER`] is a time that does not come.

use std::fmt;
use std::time::Duration;

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::time::{self, Instant};
use crate::sync::weak::{Arc, Weak};

/// A time that does not come.
pub const NEVER: u64 = u64::MAX;

/// `duration` in nanoseconds; what does not fit (584 years) is [`NEVER`].
pub fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(NEVER)
}

/// Something that sleeps until a time of a [`ManualClock`], and is rung awake when that time has come.
pub trait Alarm: Send + Sync {
    /// Wakes the sleeper, also one that is about to sleep.
    fn ring(&self);
}

/// A monotonic clock for a broker: [`Clock::default`] is the system's, and a [`ManualClock`] converts into one.
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    System { start: Instant },
    Manual(ManualClock),
}

/// When a sleeper is due, in the terms of its clock.
#[derive(Debug)]
pub enum Due<'a> {
    /// Not before it is woken.
    Never,
    /// At an instant of the system's clock.
    At(Instant),
    /// When the hand of this clock gets there.
    ByHand(&'a ManualClock, u64),
}

impl Clock {
    /// The time since this clock's start. One clock read: about 25 ns for the system's clock, 1 ns for a manual one.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos())
    }

    /// The time since this clock's start, in nanoseconds; never the last one.
    #[inline]
    pub fn nanos(&self) -> u64 {
        match &self.0 {
            Source::System { start } => {
                nanoseconds(time::now().saturating_duration_since(*start)).min(NEVER - 1)
            }
            Source::Manual(clock) => clock.nanos(),
        }
    }

    /// Whether a read costs next to nothing.
    pub fn is_cheap(&self) -> bool {
        matches!(self.0, Source::Manual(_))
    }

    /// What to wait for to be there at `time`.
    pub fn due(&self, time: u64) -> Due<'_> {
        match &self.0 {
            _ if time == NEVER => Due::Never,
            Source::System { start } => {
                start.checked_add(Duration::from_nanos(time)).map_or(Due::Never, Due::At)
            }
            Source::Manual(clock) => Due::ByHand(clock, time),
        }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self(Source::System { start: time::now() })
    }
}

impl From<ManualClock> for Clock {
    fn from(clock: ManualClock) -> Self {
        Self(Source::Manual(clock))
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = if self.is_cheap() { "manual" } else { "system" };
        f.debug_struct("Clock").field("source", &source).field("now", &self.now()).finish()
    }
}

/// A clock that stands still until it is moved, for tests of timeouts without sleeping. Clones share one hand.
///
/// ```
/// use std::time::Duration;
/// let clock = fanout::ManualClock::new();
/// let broker = fanout::Broker::<u32>::builder().clock(clock.clone()).build();
/// clock.advance(Duration::from_secs(30)); // whatever was due has been woken
/// assert_eq!(clock.now(), Duration::from_secs(30));
/// # drop(broker);
/// ```
#[derive(Clone, Default)]
pub struct ManualClock(Arc<Hand>);

#[derive(Default)]
struct Hand {
    now: AtomicU64,
    sleepers: Mutex<Vec<(u64, Weak<dyn Alarm>)>>,
}

impl ManualClock {
    /// A clock at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// How far it has been moved.
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos())
    }

    fn nanos(&self) -> u64 {
        // Acquire (HAND): who sees a time also sees what was done before the hand was moved there.
        self.0.now.load(Ordering::Acquire)
    }

    /// Moves the clock on, and returns after every worker that is due has been woken (not after it has run). Time past
    /// 584 years is clamped.
    pub fn advance(&self, by: Duration) {
        let mut due = Vec::new();
        {
            let mut sleepers = self.0.sleepers.lock();
            let now = self.nanos().saturating_add(nanoseconds(by)).min(NEVER - 1);
            // Release (HAND): see `nanos`. Under the lock: a sleeper that registers later looks at the new time.
            self.0.now.store(now, Ordering::Release);
            sleepers.retain(|(time, sleeper)| {
                if *time <= now {
                    due.extend(sleeper.upgrade());
                }
                *time > now && sleeper.strong_count() > 0
            });
        }
        for sleeper in due {
            sleeper.ring();
        }
    }

    /// Lets `sleeper` be rung once the hand gets to `time`; false if it is there already. A sleeper with one thread has one registration, the newest;
    /// with `many` there is one for each time.
    pub(crate) fn register(&self, time: u64, sleeper: &Weak<dyn Alarm>, many: bool) -> bool {
        let mut sleepers = self.0.sleepers.lock();
        let replaced = |other: &(u64, Weak<dyn Alarm>)| other.1.ptr_eq(sleeper) && (!many || other.0 == time);
        sleepers.retain(|other| !replaced(other) && other.1.strong_count() > 0);
        if self.nanos() >= time {
            return false;
        }
        sleepers.push((time, sleeper.clone()));
        true
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManualClock").field("now", &self.now()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::atomic::AtomicUsize;

    #[derive(Default)]
    struct Bell(AtomicUsize);

    impl Alarm for Bell {
        fn ring(&self) {
            // Relaxed: read by the same thread.
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_sleeper_is_rung_once_and_only_when_due() {
        let clock = ManualClock::new();
        let bell = Arc::new(Bell::default());
        let as_alarm: Arc<dyn Alarm> = bell.clone();
        assert!(clock.register(10, &Arc::downgrade(&as_alarm), false));
        assert!(
            clock.register(20, &Arc::downgrade(&as_alarm), false),
            "a second registration replaces the first"
        );
        let rung = |clock: &ManualClock, by| {
            clock.advance(Duration::from_nanos(by));
            bell.0.load(Ordering::Relaxed)
        };
        assert_eq!(rung(&clock, 10), 0);
        assert_eq!(rung(&clock, 10), 1);
        assert_eq!(rung(&clock, 10), 1);
        assert!(!clock.register(30, &Arc::downgrade(&as_alarm), false), "that time has come already");
    }

    #[test]
    fn the_end_of_time_is_clamped_and_never_is_never() {
        let clock = ManualClock::new();
        clock.advance(Duration::MAX);
        clock.advance(Duration::MAX);
        assert!(clock.nanos() < NEVER);
        assert!(matches!(Clock::from(clock).due(nanoseconds(Duration::MAX)), Due::Never));
        assert!(matches!(Clock::default().due(NEVER), Due::Never));
    }
}
