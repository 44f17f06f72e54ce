//! What the machine is and can do at best: cores, pinning, the clock, the limits printed beside the table, and the allocator
//! that counts bytes for the footprint row.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    fs, hint,
    process::Command,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicIsize, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::audit::Padded;

/// The two cores of a run: publisher and consumer.
#[derive(Debug, Clone, Copy)]
pub struct Cores {
    pub publisher: Option<usize>,
    pub consumer: Option<usize>,
    pub available: usize,
}

pub fn cores() -> Cores {
    static CORES: OnceLock<Cores> = OnceLock::new();
    *CORES.get_or_init(|| {
        let ids = core_affinity::get_core_ids().unwrap_or_default();
        Cores {
            publisher: ids.first().map(|core| core.id),
            consumer: ids.get(1).map(|core| core.id),
            available: thread::available_parallelism().map_or(1, Into::into),
        }
    })
}

pub fn pin(core: usize) {
    assert!(core_affinity::set_for_current(core_affinity::CoreId { id: core }), "cannot pin to core {core}");
}

/// The calling thread's number in the system; never zero.
pub fn this_thread() -> i32 {
    #[cfg(target_os = "linux")]
    // SAFETY: takes no argument and cannot fail.
    return unsafe { libc::gettid() };
    #[cfg(not(target_os = "linux"))]
    1
}

/// Ticks of the fastest clock that both cores share: the time-stamp counter where it is invariant, else nanoseconds.
#[inline]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    if invariant_counter() {
        // SAFETY: every x86-64 processor has the counter.
        return unsafe { core::arch::x86_64::_rdtsc() };
    }
    epoch().elapsed().as_nanos() as u64
}

fn epoch() -> Instant {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn invariant_counter() -> bool {
    static INVARIANT: OnceLock<bool> = OnceLock::new();
    *INVARIANT.get_or_init(|| {
        // Bit 8 of leaf 0x8000_0007: the rate is constant and the same on all cores.
        core::arch::x86_64::__cpuid(0x8000_0007).edx & (1 << 8) != 0
    })
}

/// Nanoseconds per tick, measured once against the system's clock.
pub fn nanos_per_tick() -> f64 {
    static SCALE: OnceLock<f64> = OnceLock::new();
    *SCALE.get_or_init(|| {
        let (begun, first) = (Instant::now(), ticks());
        while begun.elapsed() < Duration::from_millis(50) {
            hint::spin_loop();
        }
        let (took, last) = (begun.elapsed(), ticks());
        took.as_nanos() as f64 / (last - first) as f64
    })
}

/// The physical limits of the rows, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// One cache line from one core to the other, one way; none with a single core.
    pub hand_over: Option<f64>,
    pub read_modify_write: f64,
    pub clock_read: f64,
}

pub fn limits() -> Limits {
    const COUNT: u32 = 1_000_000;
    let word = AtomicU64::new(0);
    let begun = Instant::now();
    for _ in 0..COUNT {
        hint::black_box(&word).fetch_add(1, Ordering::AcqRel);
    }
    let read_modify_write = per(begun.elapsed(), COUNT.into());

    let begun = Instant::now();
    for _ in 0..COUNT {
        hint::black_box(ticks());
    }
    let clock_read = per(begun.elapsed(), COUNT.into());
    Limits { hand_over: cores().consumer.map(hand_over), read_modify_write, clock_read }
}

/// Two threads pass one line to and fro. The best of several batches: a batch in which either was preempted says nothing.
fn hand_over(core: usize) -> f64 {
    const BATCHES: u64 = 10;
    const TRIPS: u64 = 2_000;
    let line = Padded(AtomicU64::new(0));
    let await_turn = |turn: u64| {
        while line.0.load(Ordering::Acquire) != turn {
            hint::spin_loop();
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            pin(core);
            for trip in 0..BATCHES * TRIPS {
                await_turn(2 * trip + 1);
                line.0.store(2 * trip + 2, Ordering::Release);
            }
        });
        let batch = |number: u64| {
            let begun = Instant::now();
            for trip in number * TRIPS..(number + 1) * TRIPS {
                line.0.store(2 * trip + 1, Ordering::Release);
                await_turn(2 * trip + 2);
            }
            per(begun.elapsed(), 2 * TRIPS)
        };
        (0..BATCHES).map(batch).fold(f64::INFINITY, f64::min)
    })
}

/// Nanoseconds for each of `count`.
pub fn per(took: Duration, count: u64) -> f64 {
    took.as_nanos() as f64 / count as f64
}

/// Runnable tasks over the last minute, where the system tells.
pub fn load() -> Option<f64> {
    fs::read_to_string("/proc/loadavg").ok()?.split_whitespace().next()?.parse().ok()
}

pub fn processor() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    info.lines()
        .find_map(|line| {
            line.strip_prefix("model name")?.split_once(':').map(|(_, name)| name.trim().to_owned())
        })
        .unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// The commit of the source, with a mark if it has been changed since.
pub fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output =
            Command::new("git").current_dir(env!("CARGO_MANIFEST_DIR")).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    match git(&["rev-parse", "--short=12", "HEAD"]) {
        Some(commit) if git(&["status", "--porcelain"]).is_some_and(|changes| changes.is_empty()) => commit,
        Some(commit) => format!("{commit}, changed"),
        None => "unknown".into(),
    }
}

/// Today, as the calendar writes it (UTC).
pub fn date() -> String {
    let days = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / 86_400);
    calendar(days)
}

fn calendar(days_since_1970: u64) -> String {
    // Years that begin in March put the leap day last (Hinnant, "chrono-compatible low-level date algorithms").
    let days = days_since_1970 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// The system's allocator, counting live bytes while a footprint is taken and otherwise out of the way.
pub struct Counting;

static COUNTS: AtomicBool = AtomicBool::new(false);
static LIVE: AtomicIsize = AtomicIsize::new(0);

fn count(change: isize) {
    if COUNTS.load(Ordering::Relaxed) {
        LIVE.fetch_add(change, Ordering::Relaxed);
    }
}

// SAFETY: every call is handed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(memory, layout, size) }
    }
}

/// The bytes by which `make` makes the heap grow, and what it made.
pub fn footprint<R>(make: impl FnOnce() -> R) -> (isize, R) {
    LIVE.store(0, Ordering::Relaxed);
    COUNTS.store(true, Ordering::Relaxed);
    let made = make();
    COUNTS.store(false, Ordering::Relaxed);
    (LIVE.load(Ordering::Relaxed), made)
}

#[cfg(test)]
mod tests {
    use super::calendar;

    #[test]
    fn days_become_dates() {
        assert_eq!(calendar(0), "1970-01-01");
        assert_eq!(calendar(59), "1970-03-01");
        assert_eq!(calendar(11_016), "2000-02-29");
        assert_eq!(calendar(11_017), "2000-03-01");
        assert_eq!(calendar(20_453), "2025-12-31");
    }
}
