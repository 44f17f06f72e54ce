//! The two things that look at the clock: the limit on the rate, and the line of progress.

use std::io::{IsTerminal, Write, stderr};
use std::thread;
use std::time::{Duration, Instant};

/// Spaces publishes evenly. After a pause of the input it does not try to catch up.
pub struct Pacer {
    interval: Duration,
    due: Instant,
}

impl Pacer {
    const CATCH_UP: Duration = Duration::from_millis(100);

    pub fn new(rate: u64) -> Self {
        let interval = Duration::from_secs_f64(1.0 / rate as f64);
        Self { interval, due: Instant::now() }
    }

    pub fn wait(&mut self) {
        let now = Instant::now();
        match self.due.checked_duration_since(now) {
            Some(early) => thread::sleep(early),
            None if now - self.due > Self::CATCH_UP => self.due = now,
            None => {}
        }
        self.due += self.interval;
    }
}

/// One line on standard error, renewed in place while a person looks at it.
pub struct Progress {
    shown: bool,
    next: Option<Instant>,
    began: Instant,
}

impl Progress {
    const EVERY: Duration = Duration::from_millis(100);

    pub fn new() -> Self {
        let began = Instant::now();
        let next = stderr().is_terminal().then(|| began + Self::EVERY);
        Self { shown: false, next, began }
    }

    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    pub fn update(&mut self, published: u64, dropped: u64) {
        let Some(next) = self.next else { return };
        let now = Instant::now();
        if now < next {
            return;
        }
        let rate = published as f64 / (now - self.began).as_secs_f64();
        eprint!("\r\x1b[K{published} published, {rate:.0} a second, {dropped} dropped");
        let _ = stderr().flush();
        self.shown = true;
        self.next = Some(now + Self::EVERY);
    }

    pub fn clear(&mut self) {
        if self.shown {
            eprint!("\r\x1b[K");
            self.shown = false;
        }
    }
}
