//! Spinning before sleeping: how long it pays, per machine.

use crate::sync::{hint, thread};

/// Rounds that a waiter spins before it sleeps, where another processor can make progress meanwhile.
const ROUNDS: u32 = 64;

/// A budget of spinning. None on one processor: whoever is waited for cannot run while we spin.
#[derive(Debug)]
pub struct Spin {
    left: u32,
}

impl Spin {
    /// A fresh budget.
    #[inline]
    pub fn new() -> Self {
        Self { left: if thread::processors() > 1 { ROUNDS } else { 0 } }
    }

    /// Spins for a moment; false when the budget is used up.
    #[inline]
    pub fn once(&mut self) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        hint::spin_loop();
        true
    }
}
