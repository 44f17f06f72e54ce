//! The command line.

use std::ffi::OsString;

use crate::input::Source;

pub const USAGE: &str = "\
usage: replay [FILE | -] [--repeat N] [--rate MSGS_PER_SECOND]

Replays lines of `symbol,date,price` through a broker and prints what each subscription got.

  FILE          a file of such lines; `-` is standard input; without it, the bundled stock prices
  --repeat N    replay the file N times (not for standard input)
  --rate N      publish at most N messages a second

exit status: 0 all accounts balance, 1 one does not, 2 bad arguments or input that cannot be read
";

pub struct Options {
    pub source: Source,
    pub repeat: u64,
    pub rate: Option<u64>,
}

pub enum Command {
    Help,
    Replay(Options),
}

pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Command, String> {
    let mut args = args.into_iter();
    let (mut source, mut repeat, mut rate) = (None, None, None);
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("--help" | "-h") => return Ok(Command::Help),
            Some("--repeat") => set(&mut repeat, "--repeat", number("--repeat", args.next())?)?,
            Some("--rate") => set(&mut rate, "--rate", number("--rate", args.next())?)?,
            Some("-") => set(&mut source, "FILE", Source::Stdin)?,
            Some(option) if option.starts_with('-') => {
                return Err(format!("unknown option {option}"));
            }
            _ => set(&mut source, "FILE", Source::File(arg.into()))?,
        }
    }
    if repeat.is_some() && matches!(source, Some(Source::Stdin)) {
        return Err("standard input can be read only once: no --repeat with it".into());
    }
    Ok(Command::Replay(Options {
        source: source.unwrap_or(Source::Bundled),
        repeat: repeat.unwrap_or(1),
        rate,
    }))
}

fn set<V>(slot: &mut Option<V>, what: &str, value: V) -> Result<(), String> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("{what} is given twice")),
    }
}

fn number(option: &str, value: Option<OsString>) -> Result<u64, String> {
    let value = value.ok_or_else(|| format!("{option} needs a number"))?;
    match value.to_str().and_then(|text| text.parse().ok()) {
        Some(number) if number > 0 => Ok(number),
        _ => Err(format!("{option} needs a whole number from 1 up, not {value:?}")),
    }
}
