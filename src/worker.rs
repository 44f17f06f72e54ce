//! The thread of a subscription: takes one message at a time, calls the handler, and ends at a message boundary.

use std::cell::Cell;

use crate::config::{IntoOutcome, ThreadStart};
use crate::control::{STARTED, STOP};
use crate::message::Message;
use crate::panics::{contain, drop_contained};
use crate::ring::Cursor;
use crate::station::{Ending, Mode, Next, Station};
use crate::subscription::Core;
use crate::sync::thread;
use crate::sync::weak::Arc;

thread::thread_local! {
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs a worker of this crate, of any broker: calls that would wait for a worker do not wait here.
pub fn on_worker_thread() -> bool {
    // A thread whose locals are gone is ending; it may be a worker.
    IS_WORKER.try_with(Cell::get).unwrap_or(true)
}

/// Calls `f`, foreign code on behalf of a subscription, as if this thread were its worker: in a receiver's call it is.
pub fn as_worker<R>(f: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            let _ = IS_WORKER.try_with(|flag| flag.set(self.0));
        }
    }
    let _restore = Restore(IS_WORKER.try_with(|flag| flag.replace(true)).unwrap_or(true));
    f()
}

/// Starts the worker's thread. It waits until the subscription starts, or is stopped.
pub fn spawn<T, R, H>(
    core: &Arc<Core<T>>,
    cursor: Cursor,
    mode: Mode<T>,
    start: Option<ThreadStart>,
    handler: H,
) -> std::io::Result<()>
where
    T: Clone + Send + 'static,
    R: IntoOutcome,
    H: FnMut(&Message<T>) -> R + Send + 'static,
{
    let settings = &core.settings;
    let name = settings
        .thread_name
        .clone()
        .unwrap_or_else(|| format!("{}-{}", core.context.name, core.account.name));
    let its = core.clone();
    let thread = thread::spawn(&thread_name(&name), settings.pin_to_core, move || {
        IS_WORKER.with(|is_worker| is_worker.set(true));
        run(its, cursor, mode, start, handler);
    })?;
    core.set_thread(thread);
    Ok(())
}

/// What the system keeps of a thread's name: 15 bytes, no NUL.
pub fn thread_name(name: &str) -> String {
    let mut kept = String::new();
    for c in name.chars().filter(|c| *c != '\0') {
        if kept.len() + c.len_utf8() > 15 {
            break;
        }
        kept.push(c);
    }
    kept
}

fn run<T, R, H>(core: Arc<Core<T>>, cursor: Cursor, mode: Mode<T>, start: Option<ThreadStart>, mut handler: H)
where
    T: Clone + Send + 'static,
    R: IntoOutcome,
    H: FnMut(&Message<T>) -> R,
{
    core.control.wait_for(STARTED | STOP);
    // Contained as a whole, though it contains all foreign code piece by piece: whatever happens, the end is told, and nobody waits for ever.
    let _ = contain(|| {
        let Some(mut station) = Station::new(core.clone(), cursor, mode) else { return };
        if let Some(hook) = &start
            && contain(|| hook()).is_err()
        {
            core.context.hook_panics.add();
        }
        if station.is_pending() {
            deliver::<true, _, _, _>(&mut station, &mut handler);
        } else {
            deliver::<false, _, _, _>(&mut station, &mut handler);
        }
        core.unlist();
        station.discard();
    });
    // The captures go before the end is told: who waits for it finds them dropped.
    if drop_contained(handler) | drop_contained(start) {
        core.context.hook_panics.add();
    }
    core.finish();
}

/// The delivery loop.
fn deliver<const PENDING: bool, T, R, H>(station: &mut Station<T>, handler: &mut H)
where
    T: Clone + Send + 'static,
    R: IntoOutcome,
    H: FnMut(&Message<T>) -> R,
{
    let mut message = Message::empty(station.core.clone());
    loop {
        match station.next::<PENDING>() {
            Next::Deliver(taken, meta) => {
                station.begin::<PENDING>(&meta);
                message.fill(taken, meta);
                let ending = match contain(|| handler(&message).into_outcome()) {
                    Ok(outcome) => Ending::Returned(outcome),
                    Err(panic) => Ending::Panicked(panic),
                };
                station.conclude::<PENDING>(meta.ticket(), message.take(), ending);
            }
            Next::Wait(sleep) => station.wait(sleep, None),
            Next::End => return,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn thread_names_fit_and_are_text() {
        assert_eq!(thread_name("fanout-orders.eu#12"), "fanout-orders.e");
        assert_eq!(thread_name("ääääääääää"), "äääääää");
        assert_eq!(thread_name("a\0b"), "ab");
    }
}
