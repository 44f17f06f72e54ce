//! A gate for handlers: it tells that one has come in, and holds it until the test lets it go.

use std::sync::{Arc, Condvar, Mutex};

use super::LIMIT;

#[derive(Default)]
struct State {
    entered: usize,
    allowed: usize,
    open: bool,
}

/// Clones are the same gate. Entries pass in any order, each of them once.
#[derive(Clone, Default)]
pub struct Gate(Arc<(Mutex<State>, Condvar)>);

impl Gate {
    pub fn new() -> Self {
        Self::default()
    }

    /// For the handler: signals "entered", then blocks until let through.
    pub fn pass(&self) {
        let (state, changed) = &*self.0;
        let mut state = state.lock().unwrap();
        state.entered += 1;
        changed.notify_all();
        while !state.open && state.allowed == 0 {
            state = changed.wait(state).unwrap();
        }
        state.allowed = state.allowed.saturating_sub(1);
    }

    /// For the test: returns once `entries` have come in, counted from the start.
    #[track_caller]
    pub fn wait_entered(&self, entries: usize) {
        let (state, changed) = &*self.0;
        let state = state.lock().unwrap();
        let (state, _) =
            changed.wait_timeout_while(state, LIMIT / 2, |state| state.entered < entries).unwrap();
        assert!(state.entered >= entries, "only {} of {entries} came to the gate", state.entered);
    }

    pub fn entered(&self) -> usize {
        self.0.0.lock().unwrap().entered
    }

    /// Lets a single entry through, one that waits or the next to come.
    pub fn let_one(&self) {
        let (state, changed) = &*self.0;
        state.lock().unwrap().allowed += 1;
        changed.notify_all();
    }

    /// Lets everything through, from now on.
    pub fn open(&self) {
        let (state, changed) = &*self.0;
        state.lock().unwrap().open = true;
        changed.notify_all();
    }
}
