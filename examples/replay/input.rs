//! Where the lines come from, and what a good line is.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::PathBuf;

const BUNDLED: &str = include_str!("../data/stocks.csv");
const HEADER: &[u8] = b"symbol,date,price";
const BUFFER: usize = 64 * 1024;

pub enum Source {
    Bundled,
    Stdin,
    File(PathBuf),
}

impl Source {
    pub fn open(&self) -> io::Result<Box<dyn BufRead>> {
        Ok(match self {
            Source::Bundled => Box::new(BUNDLED.as_bytes()),
            Source::Stdin => Box::new(BufReader::with_capacity(BUFFER, io::stdin().lock())),
            Source::File(path) => Box::new(BufReader::with_capacity(BUFFER, File::open(path)?)),
        })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Bundled => f.write_str("the bundled data"),
            Source::Stdin => f.write_str("standard input"),
            Source::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Reads one line into `line`, without its end and surrounding blanks; `None` at the end of the input.
pub fn read_line<'a>(input: &mut dyn BufRead, line: &'a mut Vec<u8>) -> io::Result<Option<&'a [u8]>> {
    line.clear();
    let read = input.read_until(b'\n', line)?;
    Ok((read > 0).then(|| line.trim_ascii()))
}

pub fn is_header(line: &[u8]) -> bool {
    line == HEADER
}

#[derive(Debug)]
pub struct Quote<'a> {
    pub symbol: &'a str,
    pub price: f64,
}

pub fn parse(line: &[u8]) -> Result<Quote<'_>, &'static str> {
    let line = str::from_utf8(line).map_err(|_| "not UTF-8 text")?;
    let mut fields = line.split(',').map(str::trim);
    let (Some(symbol), Some(date), Some(price), None) =
        (fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return Err("not three fields");
    };
    // The symbol becomes one token of a topic's name.
    if symbol.is_empty() || symbol.contains('.') || symbol == "*" || symbol == ">" {
        return Err("the symbol cannot be a token of a topic name");
    }
    if date.is_empty() {
        return Err("no date");
    }
    match price.parse() {
        Ok(price) if f64::is_finite(price) => Ok(Quote { symbol, price }),
        _ => Err("the price is not a number"),
    }
}
