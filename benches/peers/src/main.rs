//! `fanout` beside its peers, row by row, in one run: see README.md. This file has the arguments and the order of rounds.

mod audit;
mod chart;
mod latency;
mod machine;
mod peer;
mod peers;
mod report;
mod rows;

use std::{
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use crate::{
    audit::Fault,
    machine::Counting,
    report::{Cell, Report, Result as RowResult},
    rows::{Lane, Row},
};

#[global_allocator]
static HEAP: Counting = Counting;

const HELP: &str = "\
Usage: peers [OPTIONS]
  --rows A,B    only these rows (evict, drain/16, flood, two-publishers, ...)
  --peers A,B   only these peers (fanout, naive, array-queue, ...)
  --rounds N    rounds a peer and row (7)
  --quick       three short rounds: whether it works, not how fast
  --check       exit status 1 if a mark is missed or a row of fanout does not count
  --record      also write the table and a chart under benches/results
  --list        the rows and their peers
";

struct Options {
    rows: Vec<String>,
    peers: Vec<String>,
    rounds: usize,
    shortest: Duration,
    check: bool,
    record: bool,
    list: bool,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            rows: Vec::new(),
            peers: Vec::new(),
            rounds: 0,
            shortest: Duration::from_millis(50),
            check: false,
            record: false,
            list: false,
        };
        let mut quick = false;
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} wants a value"));
            match argument.as_str() {
                "--rows" => options.rows = value()?.split(',').map(|row| row.replace('-', " ")).collect(),
                "--peers" => options.peers = value()?.split(',').map(str::to_owned).collect(),
                "--rounds" => {
                    let rounds = value()?;
                    options.rounds = match rounds.parse() {
                        Ok(rounds) if rounds > 0 => rounds,
                        _ => return Err(format!("--rounds wants a number from 1 up, not {rounds}")),
                    };
                }
                "--quick" => quick = true,
                "--check" => options.check = true,
                "--record" => options.record = true,
                "--list" => options.list = true,
                _ => return Err(format!("{argument}?\n{HELP}")),
            }
        }
        if quick {
            options.shortest = Duration::from_millis(5);
        }
        if options.rounds == 0 {
            options.rounds = if quick { 3 } else { 7 };
        }
        Ok(options)
    }

    /// `evict` takes all of `evict/1`, `evict/16`, ...; a name in full takes its row only.
    fn wants_row(&self, name: &str) -> bool {
        let family = name.split('/').next().unwrap_or(name);
        let name = name.replace('-', " ");
        self.rows.is_empty() || self.rows.iter().any(|row| *row == name || *row == family.replace('-', " "))
    }

    fn wants_peer(&self, name: &str) -> bool {
        self.peers.is_empty() || self.peers.iter().any(|peer| peer == name)
    }

    /// The chosen rows, or what was named and is not there.
    fn choose(&self) -> Result<Vec<Row>, String> {
        let all = rows::all();
        for row in &self.rows {
            if !all.iter().any(|known| {
                let only = Self { rows: vec![row.clone()], peers: Vec::new(), ..*self };
                only.wants_row(known.name)
            }) {
                return Err(format!("no row {row}"));
            }
        }
        for peer in &self.peers {
            if !all.iter().flat_map(|row| &row.lanes).any(|lane| lane.peer == peer) {
                return Err(format!("no peer {peer}"));
            }
        }
        let mut chosen: Vec<_> = all.into_iter().filter(|row| self.wants_row(row.name)).collect();
        for row in &mut chosen {
            row.lanes.retain(|lane| self.wants_peer(lane.peer));
        }
        chosen.retain(|row| !row.lanes.is_empty());
        Ok(chosen)
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    let cores = machine::cores();
    if let Some(core) = cores.publisher {
        machine::pin(core);
    }
    #[cfg(target_os = "linux")]
    if arguments.next_if(|argument| argument == rows::frozen::ARGUMENT).is_some() {
        return frozen_child(arguments);
    }
    if arguments.next_if(|argument| argument == "--help" || argument == "-h").is_some() {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    match Options::parse(arguments).and_then(|options| options.choose().map(|rows| (options, rows))) {
        Ok((options, rows)) if options.list => list(&rows),
        Ok((options, rows)) => run(&options, rows),
        Err(what) => {
            eprintln!("{what}");
            ExitCode::from(2)
        }
    }
}

#[cfg(target_os = "linux")]
fn frozen_child(arguments: impl Iterator<Item = String>) -> ExitCode {
    let arguments: Vec<_> = arguments.collect();
    let run = |peer: &str, strikes: &str, core: &str| {
        let (strikes, core) = (strikes.parse().ok()?, core.parse().ok()?);
        Some(rows::frozen::child(peer, strikes, core))
    };
    match arguments.as_slice() {
        [peer, strikes, core] => match run(peer, strikes, core) {
            Some(Ok(())) => return ExitCode::SUCCESS,
            Some(Err(fault)) => println!("{fault}"),
            None => println!("{strikes} and {core} are not both numbers"),
        },
        _ => println!("{} wants a peer, a number of strikes and a core", rows::frozen::ARGUMENT),
    }
    ExitCode::FAILURE
}

fn list(rows: &[Row]) -> ExitCode {
    for row in rows {
        let peers: Vec<_> = row.lanes.iter().map(|lane| lane.peer).collect();
        println!("{}: {}", row.name, peers.join(", "));
    }
    ExitCode::SUCCESS
}

fn run(options: &Options, rows: Vec<Row>) -> ExitCode {
    let begun = Instant::now();
    let warnings = warnings(options);
    for warning in &warnings {
        eprintln!("warning: {warning}");
    }
    let mut report = Report::new(options.rounds, options.shortest, warnings);
    for row in rows {
        if row.crosses && machine::cores().consumer.is_none() {
            eprintln!("{}: left out, it needs two cores", row.name);
            continue;
        }
        eprintln!("{} ({:.0} s)", row.name, begun.elapsed().as_secs_f64());
        report.results.push(measure(row, options));
    }
    print!("{}", report.markdown());
    if options.record {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../results");
        match report.record(&folder) {
            Ok(files) => files.iter().for_each(|file| eprintln!("wrote {}", file.display())),
            Err(error) => {
                eprintln!("cannot write under {}: {error}", folder.display());
                return ExitCode::from(2);
            }
        }
    }
    let missed = report.missed();
    for what in &missed {
        eprintln!("missed: {what}");
    }
    if options.check && !missed.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// What makes the numbers of this run worth less.
fn warnings(options: &Options) -> Vec<String> {
    let mut warnings = Vec::new();
    let available = machine::cores().available;
    if available < 2 {
        warnings.push(format!("{available} core is available: rows between two cores are left out"));
    }
    if let Some(load) = machine::load().filter(|load| *load > 0.5) {
        warnings.push(format!("the load is {load:.2}: if other programs are at work, these numbers show it"));
    }
    if options.shortest < Duration::from_millis(50) || options.rounds < 7 {
        warnings.push("short or few rounds: this says whether it works, not how fast".into());
    }
    if cfg!(debug_assertions) {
        warnings.push("built without optimisation".into());
    }
    warnings
}

/// All rounds of a row: the peers take turns, and who begins changes from round to round.
fn measure(row: Row, options: &Options) -> RowResult {
    let mut cells: Vec<Cell> = row.lanes.iter().map(|lane| Cell::new(lane, row.figures.len())).collect();
    let mut amounts = vec![row.start; row.lanes.len()];
    for (at, lane) in row.lanes.iter().enumerate() {
        if let Err(fault) = calibrate(lane, &mut amounts[at], options.shortest) {
            cells[at].fault = Some(fault);
        }
    }
    for round in 0..options.rounds {
        for step in 0..row.lanes.len() {
            let at = (round + step) % row.lanes.len();
            if cells[at].fault.is_some() {
                continue;
            }
            match long_enough(&row.lanes[at], &mut amounts[at], options.shortest) {
                Ok(values) => cells[at].add(&values),
                Err(fault) => cells[at].fault = Some(fault),
            }
        }
    }
    RowResult { name: row.name, figures: row.figures, cells }
}

/// Finds out how much a lane has to do for a round of decent length.
fn calibrate(lane: &Lane, amount: &mut u64, shortest: Duration) -> Result<(), Fault> {
    loop {
        let took = (lane.round)(*amount)?.took;
        if took >= shortest {
            return Ok(());
        }
        // The first rounds are short and so say little: never more than tenfold at once.
        let factor = 1.3 * shortest.as_secs_f64() / took.as_secs_f64().max(1e-9);
        *amount = (*amount as f64 * factor.clamp(1.1, 10.0)).ceil() as u64;
    }
}

/// One round that counts. A lane that has become faster gets more to do and another try.
fn long_enough(lane: &Lane, amount: &mut u64, shortest: Duration) -> Result<Vec<f64>, Fault> {
    loop {
        let round = (lane.round)(*amount)?;
        if round.took >= shortest {
            return Ok(round.values);
        }
        *amount += (*amount / 4).max(1);
    }
}
