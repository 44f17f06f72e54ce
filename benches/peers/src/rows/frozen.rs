//! A consumer that the system stops in the middle of its work, while the publisher goes round the ring again and again.
//!
//! No public interface lets anybody stop a thread inside a pop. A signal can: its handler runs wherever the thread happens to be,
//! and blocks there. A thread that is let go sets a timer for its next stop, some microseconds ahead; by then it is at work on the
//! full ring that it found, at a chance moment of taking message after message, so that among some hundred strikes many
//! fall into a pop. A peer whose publisher waits for a reader then waits for ever, so every peer runs in a process of its own,
//! which watches itself.

#[cfg(target_os = "linux")]
pub use linux::child;

use std::{marker::PhantomData, process::Command, time::Instant};

use crate::{
    audit::Fault,
    machine::cores,
    peer::Spinning,
    rows::{Figure, Of, Outcome, Round, Row, all_lanes, mark},
};

/// The argument by which this program runs itself: `--frozen PEER STRIKES CORE`. The consumer's core is said, since a process may
/// find out no other cores than those of the thread that started it, which is the publisher's one.
pub const ARGUMENT: &str = "--frozen";

pub fn row() -> Row {
    let runs = "frozen consumer: p99.99 while it runs";
    Row {
        name: "frozen consumer",
        figures: vec![
            Figure::new(runs, "ns a publish", &[]),
            Figure::new(
                "frozen consumer: p99.99 while it is stopped",
                "ns a publish",
                &[mark(2.0, Of::Own(runs))],
            ),
        ],
        lanes: all_lanes!(peer, amount => frozen(peer, amount)),
        crosses: true,
        start: 100,
    }
}

fn frozen<P: Spinning>(_: PhantomData<P>, strikes: u64) -> Outcome {
    let (true, Some(core)) = (cfg!(target_os = "linux"), cores().consumer) else {
        return Err(Fault("needs Linux and two cores".into()));
    };
    let begun = Instant::now();
    let numbers = [strikes.to_string(), core.to_string()];
    let run = || Command::new(std::env::current_exe()?).args([ARGUMENT, P::NAME]).args(numbers).output();
    let output = run().map_err(|error| Fault(error.to_string()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let why = if text.is_empty() { output.status.to_string() } else { text.trim().to_owned() };
        return Err(Fault(why));
    }
    let values: Vec<f64> = text.split_whitespace().filter_map(|value| value.parse().ok()).collect();
    Ok(Round { took: begun.elapsed(), values })
}

#[cfg(target_os = "linux")]
mod linux {
    use std::{
        ffi::{c_int, c_long, c_void},
        hint,
        sync::atomic::{AtomicBool, AtomicI32, AtomicI64, AtomicPtr, AtomicU64, Ordering},
        thread,
        time::{Duration, Instant},
    };

    use crate::{
        audit::{Fault, Payload, Reports, Source, audited},
        latency::Latencies,
        machine::ticks,
        peer::{CAPACITY, Named, Publish, Seat, Spinning},
        peers::{
            ArrayQueue, AsyncBroadcast, CrossbeamChannel, Fanout, Naive, PhotonRing, RingChannel, Tokio,
        },
    };

    /// Publishes while the consumer is stopped.
    const LAPS: usize = 10 * CAPACITY;
    /// A strike comes at most so many nanoseconds after a release: less than a worker needs for a ring.
    const JITTER: u64 = 12_000;
    /// After so long there are no more strikes, if at least `FEWEST` have found the worker at work.
    const LONGEST: Duration = Duration::from_secs(8);
    const FEWEST: u64 = 10;
    /// A publisher that has not come round for so long, with its consumer stopped, hangs.
    const PATIENCE: Duration = Duration::from_secs(5);

    static FROZEN: AtomicBool = AtomicBool::new(false);
    static STRUCK: AtomicU64 = AtomicU64::new(0);
    static DELAY: AtomicI64 = AtomicI64::new(0);
    static TIMER: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    static GATE: AtomicI32 = AtomicI32::new(-1);
    static LAPS_MADE: AtomicU64 = AtomicU64::new(0);

    /// Ends the process, whose publisher cannot, if that one is stuck.
    fn watch() {
        let mut seen = (0, Instant::now());
        loop {
            thread::sleep(PATIENCE / 50);
            let made = LAPS_MADE.load(Ordering::Relaxed);
            if made != seen.0 {
                seen = (made, Instant::now());
            } else if seen.1.elapsed() > PATIENCE {
                println!(
                    "{}",
                    if FROZEN.load(Ordering::Acquire) { "hangs" } else { "stuck, but not by a strike" }
                );
                std::process::exit(1);
            }
        }
    }

    /// Blocks the thread that it strikes until a byte comes, and then sets the time of the next strike. It uses nothing that a
    /// signal handler may not.
    extern "C" fn freeze(_: c_int) {
        FROZEN.store(true, Ordering::Release);
        STRUCK.fetch_add(1, Ordering::Release);
        let mut byte = 0u8;
        // SAFETY: one byte into a variable of this frame; a bad descriptor only ends the wait.
        unsafe { libc::read(GATE.load(Ordering::Acquire), (&raw mut byte).cast(), 1) };
        FROZEN.store(false, Ordering::Release);
        arm();
    }

    /// Sets the timer, if there is a next strike.
    fn arm() {
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let due = libc::timespec { tv_nsec: DELAY.load(Ordering::Acquire) as c_long, ..zero };
        let once = libc::itimerspec { it_interval: zero, it_value: due };
        // SAFETY: the timer is made before the first strike and never deleted; a zero time only disarms it.
        unsafe { libc::timer_settime(TIMER.load(Ordering::Acquire), 0, &once, std::ptr::null_mut()) };
    }

    /// The end of the pipe that lets a struck thread go.
    struct Freezer(c_int);

    impl Freezer {
        fn new(thread: i32) -> Self {
            let mut pipe = [0; 2];
            let mut timer = std::ptr::null_mut();
            // SAFETY: `pipe` has room for two descriptors; the action and the event are valid when zero, and written before use.
            unsafe {
                assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0, "no pipe");
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = freeze as *const () as usize;
                action.sa_flags = libc::SA_RESTART;
                assert_eq!(
                    libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()),
                    0,
                    "no signal action"
                );
                let mut event: libc::sigevent = std::mem::zeroed();
                event.sigev_notify = libc::SIGEV_THREAD_ID;
                event.sigev_signo = libc::SIGUSR1;
                event.sigev_notify_thread_id = thread;
                assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer), 0, "no timer");
            }
            GATE.store(pipe[0], Ordering::Release);
            TIMER.store(timer, Ordering::Release);
            Self(pipe[1])
        }

        /// Has the thread stopped after `delay` nanoseconds, counted from when it goes on if it stands; waits until it stands.
        fn strike(&self, delay: u64) {
            let number = STRUCK.load(Ordering::Acquire);
            DELAY.store(delay as i64, Ordering::Release);
            if FROZEN.load(Ordering::Acquire) {
                self.release();
            } else {
                arm();
            }
            while STRUCK.load(Ordering::Acquire) == number {
                hint::spin_loop();
            }
            DELAY.store(0, Ordering::Release);
        }

        fn release(&self) {
            let byte = 1u8;
            // SAFETY: one byte out of a variable of this frame.
            let written = unsafe { libc::write(self.0, (&raw const byte).cast(), 1) };
            assert_eq!(written, 1, "the pipe is gone");
        }
    }

    /// Runs in the child: prints the two figures, or why there are none.
    pub fn child(peer: &str, strikes: u64, core: usize) -> Result<(), Fault> {
        thread::spawn(watch);
        let [runs, stopped] = match peer {
            Fanout::NAME => strike::<Fanout>(strikes, core),
            Naive::NAME => strike::<Naive>(strikes, core),
            ArrayQueue::NAME => strike::<ArrayQueue>(strikes, core),
            Tokio::NAME => strike::<Tokio>(strikes, core),
            RingChannel::NAME => strike::<RingChannel>(strikes, core),
            AsyncBroadcast::NAME => strike::<AsyncBroadcast>(strikes, core),
            CrossbeamChannel::NAME => strike::<CrossbeamChannel>(strikes, core),
            PhotonRing::NAME => strike::<PhotonRing>(strikes, core),
            _ => Err(Fault(format!("no peer {peer}"))),
        }?;
        println!("{runs} {stopped}");
        Ok(())
    }

    fn strike<P: Spinning>(strikes: u64, core: usize) -> Result<[f64; 2], Fault> {
        // Every message is reported, to tell a worker at work from one that waits.
        let (audited, handler) = audited(Reports::EACH, (), |_: &Payload, ()| {});
        let seat = Seat::at(Some(core));
        let thread = seat.thread.clone();
        let (mut publisher, consumer) = P::spinning(CAPACITY, seat, handler);
        let mut source = Source::new(0);
        publisher.publish(source.signal());
        audited.progress.wait(1)?;

        let freezer = Freezer::new(thread.get());
        let (mut runs, mut stopped) = (Latencies::default(), Latencies::default());
        let mut samples = vec![0; LAPS];
        let mut laps = |source: &mut Source, publisher: &mut P::Publisher, into: &mut Latencies| {
            for sample in &mut samples {
                let payload = source.next();
                let stamp = ticks();
                publisher.publish(payload);
                *sample = ticks() - stamp;
            }
            into.record_all(&samples);
            LAPS_MADE.fetch_add(1, Ordering::Relaxed);
        };
        for _ in 0..strikes {
            laps(&mut source, &mut publisher, &mut runs);
        }
        let (begun, mut at_work, mut strikes_made) = (Instant::now(), 0, 0u64);
        freezer.strike(1);
        while at_work < strikes && begun.elapsed() < LONGEST {
            laps(&mut source, &mut publisher, &mut stopped);
            // Nothing is published from here to the next strike: a worker at work on its own backlog spends most of its time
            // in a pop, one that waits for its publisher does not.
            let handled = audited.progress.get();
            strikes_made += 1;
            freezer.strike(1 + strikes_made.wrapping_mul(0x9e37_79b9_7f4a_7c15) % JITTER);
            let now_handled = audited.progress.get();
            at_work += u64::from(handled < now_handled && now_handled < source.published());
        }
        laps(&mut source, &mut publisher, &mut stopped);
        freezer.release();
        if at_work < FEWEST.min(strikes) {
            return Err(Fault(format!("only {at_work} of {strikes_made} strikes found the worker at work")));
        }
        publisher.publish(source.last());
        audited.progress.wait(source.published())?;
        audited.close(publisher, consumer, source.published())?;
        Ok([runs.at(0.9999), stopped.at(0.9999)])
    }
}
