//! A global allocator that counts, for the binaries that install it.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst},
};

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static LIVE_BYTES: AtomicI64 = AtomicI64::new(0);

pub struct Counting;

// SAFETY: every call goes on to the system's allocator as it came in.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, SeqCst);
        LIVE_BYTES.fetch_add(layout.size() as i64, SeqCst);
        // SAFETY: the caller keeps the contract of this function, which is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        LIVE_BYTES.fetch_sub(layout.size() as i64, SeqCst);
        // SAFETY: as in `alloc`; the place came from the system's allocator.
        unsafe { System.dealloc(place, layout) }
    }
}

/// How often the process has allocated so far.
pub fn count() -> u64 {
    ALLOCATIONS.load(SeqCst)
}

/// What is allocated now, in bytes.
pub fn live_bytes() -> i64 {
    LIVE_BYTES.load(SeqCst)
}

/// How often the process allocates, on any thread, while `body` runs.
pub fn during(body: impl FnOnce()) -> u64 {
    let before = count();
    body();
    count() - before
}
