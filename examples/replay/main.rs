//! Replays stock prices through a broker: one topic for each symbol, each with a fast subscriber that keeps up and a
//! slow one that loses its oldest messages, and a third that must settle every price jump; at the end an account of
//! every message.
//!
//! ```sh
//! cargo run --release --example replay -- [FILE | -] [--repeat N] [--rate MSGS_PER_SECOND]
//! ```
// The crate forbids these to itself; an example prints, and uses the standard library as any program does.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod alerts;
mod args;
mod input;
mod market;
mod pace;
mod report;

use std::error::Error;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use args::{Command, Options, USAGE};
use market::Market;
use pace::{Pacer, Progress};
use report::Report;

fn main() -> ExitCode {
    let options = match args::parse(std::env::args_os().skip(1)) {
        Ok(Command::Replay(options)) => options,
        Ok(Command::Help) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(problem) => {
            eprint!("replay: {problem}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("replay: {error}");
            ExitCode::from(2)
        }
    }
}

/// Replays, prints, and says whether all accounts balance.
fn run(options: &Options) -> Result<bool, Box<dyn Error>> {
    let mut market = Market::open()?;
    let mut progress = Progress::new();
    let skipped = replay(options, &mut market, &mut progress);
    progress.clear();
    let skipped = skipped?;
    let publishing = progress.elapsed();
    let end = market.close();
    let draining = progress.elapsed() - publishing;

    let report = Report::new(&market, &end);
    let mut accounts = report.accounts();
    market.alerts.check(market.published, &mut accounts);
    let mut out = io::stdout().lock();
    let printed = report.print(&mut out).and_then(|()| {
        market.alerts.print(&mut out)?;
        writeln!(
            out,
            "{} published, {skipped} skipped, in {publishing:.1?}; drained in {draining:.1?}; {}",
            market.published,
            if accounts.broken.is_empty() { "all accounts balance" } else { "ACCOUNTS DO NOT BALANCE" },
        )
    });
    match printed {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(error.into()),
        _ => {}
    }
    for account in &accounts.broken {
        eprintln!("replay: {account}");
    }
    Ok(accounts.broken.is_empty())
}

/// Publishes every good line and returns how many were skipped.
fn replay(options: &Options, market: &mut Market, progress: &mut Progress) -> Result<u64, Box<dyn Error>> {
    let mut pacer = options.rate.map(Pacer::new);
    let mut line = Vec::new();
    let mut skipped = 0;
    for round in 0..options.repeat {
        let unreadable = |error| format!("{}: {error}", options.source);
        let mut input = options.source.open().map_err(unreadable)?;
        let mut number = 0_u64;
        while let Some(line) = input::read_line(&mut *input, &mut line).map_err(unreadable)? {
            number += 1;
            if input::is_header(line) {
                continue;
            }
            let problem = match input::parse(line) {
                Ok(quote) => {
                    if let Some(pacer) = &mut pacer {
                        pacer.wait();
                    }
                    market.publish(quote.symbol, quote.price)?
                }
                Err(problem) => Some(problem),
            };
            if let Some(problem) = problem {
                skipped += 1;
                // The same lines come in every round: one report of each is enough.
                if round == 0 {
                    progress.clear();
                    eprintln!("line {number}: {problem}");
                }
            }
            progress.update(market.published, market.dropped);
        }
    }
    Ok(skipped)
}
