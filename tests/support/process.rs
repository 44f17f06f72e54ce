//! What the operating system says about this process, and ways to run a test again as a process of its own.

use std::{
    fs, io,
    process::{Command, ExitStatus},
    thread,
    time::{Duration, Instant},
};

/// Names the part that a test plays when it runs as a child of itself.
const PART: &str = "FANOUT_TEST_PART";

/// The number of threads of this process.
pub fn threads() -> usize {
    status_field(&fs::read_to_string("/proc/self/status").unwrap(), "Threads").parse().unwrap()
}

/// The CPU time, in user and system mode, of every thread that runs now but the caller's.
pub fn cpu_time_of_others() -> Duration {
    let times = others("schedstat");
    let first = |stat: &String| stat.split_whitespace().next().unwrap().parse::<u64>().unwrap();
    Duration::from_nanos(times.iter().map(first).sum())
}

/// How often those threads have given up the CPU or lost it.
pub fn context_switches_of_others() -> u64 {
    let fields = ["voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"];
    let switches = |status: &String| fields.map(|field| status_field(status, field).parse::<u64>().unwrap());
    others("status").iter().flat_map(switches).sum()
}

/// Whether they all sleep.
pub fn others_sleep() -> bool {
    others("stat").iter().all(|stat| stat[stat.rfind(')').unwrap() + 2..].starts_with('S'))
}

/// Their names.
pub fn names_of_others() -> Vec<String> {
    others("comm").iter().map(|name| name.trim_end_matches('\n').to_owned()).collect()
}

/// Of the calling thread: the name that the system knows.
pub fn thread_name() -> String {
    fs::read_to_string("/proc/thread-self/comm").unwrap().trim_end_matches('\n').to_owned()
}

/// Of the calling thread: the cores that it may run on, as `0-3,7`.
pub fn allowed_cores() -> String {
    status_field(&fs::read_to_string("/proc/thread-self/status").unwrap(), "Cpus_allowed_list").to_owned()
}

/// That file of every thread but the caller's.
fn others(file: &str) -> Vec<String> {
    let own = fs::read_link("/proc/thread-self").unwrap();
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap());
    let others = tasks.filter(|task| Some(&*task.file_name()) != own.file_name());
    // A thread may end between the listing and the reading.
    others
        .filter_map(|task| fs::read_to_string(task.path().join(file)).ok())
        .filter(|text| !text.is_empty())
        .collect()
}

fn status_field<'a>(status: &'a str, field: &str) -> &'a str {
    let line = status.lines().find(|line| line.split(':').next() == Some(field));
    line.and_then(|line| line.split(':').nth(1)).unwrap_or_else(|| panic!("no {field} in the status")).trim()
}

/// The part to play, in a process that `play` has started.
pub fn part() -> Option<String> {
    std::env::var(PART).ok()
}

/// A command that runs `test` of this binary again, alone, with that part to play.
pub fn play(test: &str, part: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(PART, part);
    command
}

/// Runs the command to its end; `None` if it had to be killed at the limit.
pub fn run(mut command: Command, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let mut child = command.spawn()?;
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::yield_now();
    }
}
