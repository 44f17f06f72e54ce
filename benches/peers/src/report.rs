//! From rounds to medians, ratios and verdicts, and to Markdown.

use std::{
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    audit::Fault,
    chart,
    machine::{self, Limits},
    peer::Kind,
    rows::{Figure, Lane, Mark, Of},
};

/// What one peer gave in one row: its rounds, figure by figure.
pub struct Cell {
    pub peer: &'static str,
    pub kind: Kind,
    pub fault: Option<Fault>,
    rounds: Vec<Vec<f64>>,
}

impl Cell {
    pub fn new(lane: &Lane, figures: usize) -> Self {
        Self { peer: lane.peer, kind: lane.kind, fault: None, rounds: vec![Vec::new(); figures] }
    }

    pub fn add(&mut self, values: &[f64]) {
        for (rounds, value) in self.rounds.iter_mut().zip(values) {
            rounds.push(*value);
        }
    }

    /// The median and half the distance between the quartiles. None if a round did not count.
    fn summary(&self, figure: usize) -> Option<(f64, f64)> {
        let mut sorted = self.rounds[figure].clone();
        if self.fault.is_some() || sorted.is_empty() {
            return None;
        }
        sorted.sort_by(f64::total_cmp);
        let at = |part: f64| {
            let place = part * (sorted.len() - 1) as f64;
            let (low, high) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
            low + (high - low) * place.fract()
        };
        Some((at(0.5), (at(0.75) - at(0.25)) / 2.0))
    }

    fn median(&self, figure: usize) -> Option<f64> {
        self.summary(figure).map(|(median, _)| median)
    }
}

/// A row with its rounds.
pub struct Result {
    pub name: &'static str,
    pub figures: Vec<Figure>,
    pub cells: Vec<Cell>,
}

/// `fanout` against one mark.
pub struct Verdict {
    pub ratio: f64,
    pub at_most: f64,
    pub against: String,
}

impl Verdict {
    pub fn passes(&self) -> bool {
        self.ratio <= self.at_most
    }
}

impl Result {
    fn subject(&self) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.kind == Kind::Subject)
    }

    fn best(&self, figure: usize) -> Option<(&'static str, f64)> {
        self.cells
            .iter()
            .filter(|cell| cell.kind == Kind::DropOldest)
            .filter_map(|cell| Some((cell.peer, cell.median(figure)?)))
            .min_by(|one, other| one.1.total_cmp(&other.1))
    }

    fn of_peer(&self, peer: &str, figure: usize) -> Option<f64> {
        self.cells.iter().find(|cell| cell.peer == peer)?.median(figure)
    }

    /// None if `fanout` or what the mark compares with was not measured.
    fn verdict(&self, figure: usize, mark: &Mark, all: &[Self]) -> Option<Verdict> {
        let value = self.subject()?.median(figure)?;
        let (against, reference) = match mark.of {
            Of::Best => self.best(figure).map(|(peer, value)| (format!("{peer} (best)"), value))?,
            Of::Peer(peer) => (peer.to_owned(), self.of_peer(peer, figure)?),
            Of::Own(other) => (other.to_owned(), all.iter().find_map(|result| result.own(other))?),
            Of::Value => (String::new(), 1.0),
        };
        Some(Verdict { ratio: value / reference, at_most: mark.at_most, against })
    }

    fn own(&self, name: &str) -> Option<f64> {
        let figure = self.figures.iter().position(|figure| figure.name == name)?;
        self.subject()?.median(figure)
    }
}

pub struct Report {
    date: String,
    commit: String,
    rounds: usize,
    shortest: Duration,
    warnings: Vec<String>,
    limits: Limits,
    pub results: Vec<Result>,
}

impl Report {
    pub fn new(rounds: usize, shortest: Duration, warnings: Vec<String>) -> Self {
        Self {
            date: machine::date(),
            commit: machine::commit(),
            rounds,
            shortest,
            warnings,
            limits: machine::limits(),
            results: Vec::new(),
        }
    }

    fn verdicts(&self, result: &Result, figure: usize) -> Vec<Verdict> {
        let marks = result.figures[figure].marks.iter();
        marks.filter_map(|mark| result.verdict(figure, mark, &self.results)).collect()
    }

    /// Every mark that `fanout` misses, and every row of it that does not count.
    pub fn missed(&self) -> Vec<String> {
        let mut missed = Vec::new();
        for result in &self.results {
            if let Some(fault) = result.subject().and_then(|cell| cell.fault.as_ref()) {
                missed.push(format!("{}: {fault}", result.name));
            }
            for (at, figure) in result.figures.iter().enumerate() {
                for verdict in self.verdicts(result, at).iter().filter(|verdict| !verdict.passes()) {
                    missed.push(format!("{}: {}", figure.name, judged(verdict)));
                }
            }
        }
        missed
    }

    pub fn markdown(&self) -> String {
        let mut text = String::new();
        self.head(&mut text);
        self.marks(&mut text);
        self.peers(&mut text);
        text
    }

    fn head(&self, text: &mut String) {
        let Limits { hand_over, read_modify_write, clock_read } = self.limits;
        let hand_over =
            hand_over.map_or("not measured (one core)".into(), |nanos| format!("{} ns", digits(nanos)));
        let _ = writeln!(
            text,
            "# fanout beside its peers\n\n\
             {}, commit {}, {} ({} cores available). Medians of {} rounds of at least {} ms, peers by turns.\n\n\
             Limits of this machine in this hour: a cache line from one core to the other {hand_over}, an uncontended \
             read-modify-write {} ns, a clock read {} ns.\n",
            self.date,
            self.commit,
            machine::processor(),
            machine::cores().available,
            self.rounds,
            self.shortest.as_millis(),
            digits(read_modify_write),
            digits(clock_read),
        );
        for warning in &self.warnings {
            let _ = writeln!(text, "**Warning:** {warning}.\n");
        }
    }

    fn marks(&self, text: &mut String) {
        if !self.results.iter().any(|result| result.subject().is_some()) {
            return;
        }
        text.push_str("## fanout and its marks\n\n");
        text.push_str(
            "| figure | unit | fanout | best drop-oldest peer | x best | x photon-ring | marks |\n",
        );
        text.push_str("| --- | --- | ---: | --- | ---: | ---: | --- |\n");
        for result in &self.results {
            let Some(subject) = result.subject() else { continue };
            for (at, figure) in result.figures.iter().enumerate() {
                let value = cell_text(subject, at);
                let best = result.best(at);
                let best_text = best.map_or("".into(), |(peer, value)| format!("{peer} {}", digits(value)));
                let over = |reference: Option<f64>| {
                    let ratio = reference.zip(subject.median(at)).map(|(reference, value)| value / reference);
                    ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"))
                };
                let marks: Vec<_> = self.verdicts(result, at).iter().map(judged).collect();
                let _ = writeln!(
                    text,
                    "| {} | {} | {value} | {best_text} | {} | {} | {} |",
                    figure.name,
                    figure.unit,
                    over(best.map(|(_, value)| value)),
                    over(result.of_peer("photon-ring", at)),
                    marks.join("; "),
                );
            }
        }
        text.push('\n');
    }

    fn peers(&self, text: &mut String) {
        let mut peers: Vec<&str> = Vec::new();
        for cell in self.results.iter().flat_map(|result| &result.cells) {
            if !peers.contains(&cell.peer) {
                peers.push(cell.peer);
            }
        }
        text.push_str("## All peers\n\n| figure |");
        peers.iter().for_each(|peer| {
            let _ = write!(text, " {peer} |");
        });
        text.push_str("\n| --- |");
        text.push_str(&" ---: |".repeat(peers.len()));
        text.push('\n');
        for result in &self.results {
            for (at, figure) in result.figures.iter().enumerate() {
                let _ = write!(text, "| {} ({}) |", figure.name, figure.unit);
                for peer in &peers {
                    let cell = result.cells.iter().find(|cell| cell.peer == *peer);
                    let _ = write!(text, " {} |", cell.map_or(String::new(), |cell| cell_text(cell, at)));
                }
                text.push('\n');
            }
        }
        text.push_str("\nBeside each median: half the distance between the quartiles, in per cent of it.\n");
    }

    /// Writes the table and the chart, named by the day.
    pub fn record(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        fs::create_dir_all(folder)?;
        let name = format!("peers-{}", self.date);
        let (table, picture) = (folder.join(format!("{name}.md")), folder.join(format!("{name}.svg")));
        fs::write(&table, self.markdown() + &format!("\n![fanout relative to its marks]({name}.svg)\n"))?;
        fs::write(&picture, self.chart())?;
        Ok(vec![table, picture])
    }

    fn chart(&self) -> String {
        let caption = format!("{}, {}, commit {}", self.date, machine::processor(), self.commit);
        let mut bars = Vec::new();
        for result in &self.results {
            for (at, figure) in result.figures.iter().enumerate() {
                for verdict in
                    self.verdicts(result, at).into_iter().filter(|verdict| !verdict.against.is_empty())
                {
                    bars.push(chart::Bar { name: figure.name.clone(), verdict });
                }
            }
        }
        chart::draw(&caption, &bars)
    }
}

fn judged(verdict: &Verdict) -> String {
    let result = if verdict.passes() { "pass" } else { "**miss**" };
    let (ratio, at_most) = (digits(verdict.ratio), digits(verdict.at_most));
    if verdict.against.is_empty() {
        format!("{ratio} of at most {at_most}: {result}")
    } else {
        format!("{ratio} of at most {at_most} x {}: {result}", verdict.against)
    }
}

fn cell_text(cell: &Cell, figure: usize) -> String {
    match (&cell.fault, cell.summary(figure)) {
        (Some(fault), _) => fault.to_string(),
        (None, Some((median, spread))) => format!("{} ±{:.0}%", digits(median), 100.0 * spread / median),
        (None, None) => String::new(),
    }
}

/// Three digits that count.
fn digits(value: f64) -> String {
    match value.abs() {
        size if size < 10.0 => format!("{value:.2}"),
        size if size < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}
