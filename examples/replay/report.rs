//! What is printed at the end, and the accounts that must balance.

use std::io::{self, Write};
use std::time::Duration;

use fanout::{AgeSummary, ShutdownReport, SubscriptionMetrics};

use crate::market::{Market, Watcher};

/// The final numbers of one subscription.
struct Line {
    metrics: SubscriptionMetrics,
    count: u64,
    misplaced: u64,
    average: Option<f64>,
    min: f64,
    max: f64,
}

impl Line {
    fn read(watcher: &Watcher) -> Self {
        let seen = watcher.seen();
        Self {
            metrics: watcher.subscription.metrics(),
            count: seen.count,
            misplaced: seen.misplaced,
            average: seen.moving_average(),
            min: seen.min,
            max: seen.max,
        }
    }
}

/// Collects what does not balance.
#[derive(Default)]
pub struct Accounts {
    pub broken: Vec<String>,
}

impl Accounts {
    pub fn equal(&mut self, whose: &str, what: &str, left: u64, right: u64) {
        if left != right {
            self.broken.push(format!("{whose}: {what} does not hold: {left}, {right}"));
        }
    }
}

pub struct Report {
    fast: Vec<Line>,
    slow: Vec<Line>,
    published: u64,
    dropped: u64,
    totals: (u64, u64),
    alerts: (u64, u64, u64),
    still_running: usize,
}

impl Report {
    pub fn new(market: &Market, end: &ShutdownReport) -> Self {
        Self {
            fast: market.feeds.iter().map(|feed| Line::read(&feed.fast)).collect(),
            slow: market.feeds.iter().map(|feed| Line::read(&feed.slow)).collect(),
            published: market.published,
            dropped: market.dropped,
            totals: market.broker_totals(),
            alerts: market.alerts.totals(),
            still_running: end.still_running,
        }
    }

    fn lines(&self) -> impl Iterator<Item = &Line> {
        self.fast.iter().zip(&self.slow).flat_map(|(fast, slow)| [fast, slow])
    }

    pub fn accounts(&self) -> Accounts {
        let mut accounts = Accounts::default();
        for line in self.lines() {
            let m = &line.metrics;
            let ended = m.delivered + m.dropped + m.discarded + m.depth as u64;
            accounts.equal(&m.name, "enqueued = delivered + dropped + discarded + depth", m.enqueued, ended);
            accounts.equal(&m.name, "delivered = messages that the handler saw", m.delivered, line.count);
            accounts.equal(&m.name, "out of order, or a wrong dropped_before = 0", line.misplaced, 0);
        }
        let sum = |lines: &[Line], of: fn(&SubscriptionMetrics) -> u64| -> u64 {
            lines.iter().map(|line| of(&line.metrics)).sum()
        };
        let (alerts_dropped, dead_dropped, dead_letters) = self.alerts;
        let dropped = sum(&self.fast, |m| m.dropped) + sum(&self.slow, |m| m.dropped) + alerts_dropped;
        accounts.equal("fast", "published = enqueued", self.published, sum(&self.fast, |m| m.enqueued));
        accounts.equal("slow", "published = enqueued", self.published, sum(&self.slow, |m| m.enqueued));
        accounts.equal("all", "sum of Published::dropped = sum of dropped", self.dropped, dropped);
        accounts.equal("broker", "published = total published", self.published + dead_letters, self.totals.0);
        accounts.equal("broker", "dropped = total dropped", dropped + dead_dropped, self.totals.1);
        accounts.equal("broker", "handlers that outlast the drain = 0", self.still_running as u64, 0);
        accounts
    }

    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let wide = self.lines().map(|line| line.metrics.name.chars().count()).max();
        let wide = wide.unwrap_or(0).max("subscription".len());
        writeln!(
            out,
            "{:wide$} {:>10} {:>10} {:>10} {:>9} {:>6} {:>8} {:>9} {:>9}",
            "subscription",
            "enqueued",
            "delivered",
            "dropped",
            "discarded",
            "depth",
            "panicked",
            "age p50",
            "age p99",
        )?;
        for Line { metrics: m, .. } in self.lines() {
            writeln!(
                out,
                "{:wide$} {:>10} {:>10} {:>10} {:>9} {:>6} {:>8} {:>9} {:>9}",
                m.name,
                m.enqueued,
                m.delivered,
                m.dropped,
                m.discarded,
                m.depth,
                m.panicked,
                age(&m.age, |age| age.p50),
                age(&m.age, |age| age.p99),
            )?;
        }
        writeln!(out)?;
        writeln!(out, "{:wide$} {:>12} {:>12} {:>12}", "subscription", "average(12)", "minimum", "maximum")?;
        for line in self.lines() {
            let name = &line.metrics.name;
            match line.average {
                Some(average) => {
                    writeln!(out, "{name:wide$} {average:>12.2} {:>12.2} {:>12.2}", line.min, line.max)?
                }
                None => writeln!(out, "{name:wide$} {:>12} {:>12} {:>12}", "-", "-", "-")?,
            }
        }
        writeln!(out)
    }
}

fn age(summary: &Option<AgeSummary>, of: fn(&AgeSummary) -> Duration) -> String {
    match summary {
        Some(summary) => format!("{:.1?}", of(summary)),
        None => "-".into(),
    }
}
