//! What the topics and subscriptions of one broker share.

use std::collections::BTreeMap;

use crate::account::Count;
use crate::buffer::Pool;
use crate::clock::Clock;
use crate::config::TimeStamps;
use crate::control::STOP;
use crate::event::Event;
use crate::panics::contain;
use crate::subscription::Core;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::thread;
use crate::sync::weak::Arc;
use crate::topic::{TopicCore, Wait};
use crate::worker::thread_name;

/// The hook of a broker.
pub type Hook = Box<dyn Fn(&Event) + Send + Sync>;

/// What needs `T: Clone + Send + 'static` where no bound says so: a receiver's calls and the handles of a subscription have none.
pub struct Payload<T> {
    pub clone: fn(&T) -> T,
    /// Publishes a dead letter, also after a shutdown; gives it back if its topic has been removed.
    pub publish: fn(&TopicCore<T>, T) -> Result<(), T>,
    /// Sees a drain to its end on a thread of its own.
    pub drain_in_background: fn(Arc<Core<T>>, u64),
}

impl<T: Clone + Send + 'static> Payload<T> {
    pub fn new() -> Self {
        let publish = |topic: &TopicCore<T>, payload| match topic.publish(payload, Wait::Yes, true) {
            Ok(_) => Ok(()),
            Err((payload, _)) => Err(payload),
        };
        let drain_in_background = |core: Arc<Core<T>>, time| {
            let draining = core.clone();
            // Without a thread the worker sees to its deadline itself, as soon as it is not in a call.
            let _ = core.context.in_background(move || draining.end_drain(time));
        };
        Self { clone: T::clone, publish, drain_in_background }
    }
}

/// Clock, hook, pool, totals, and the subscriptions that have not ended.
pub struct Context<T> {
    pub name: String,
    pub clock: Clock,
    pub stamps: TimeStamps,
    pub hook: Option<Hook>,
    pub pool: Pool<T>,
    pub payload: Payload<T>,
    /// `Broker` and `Topic` handles.
    handles: AtomicUsize,
    /// Shut down. Raised under the lock of `members`, and of the registry.
    closed: AtomicBool,
    pub members: Mutex<Members<T>>,
    pub payload_panics: Count,
    pub hook_panics: Count,
}

/// The subscriptions that have not ended, and what ended ones leave behind.
pub struct Members<T> {
    pub cores: BTreeMap<u64, Arc<Core<T>>>,
    /// Of those that have ended.
    pub dropped: u64,
    pub payload_panics: u64,
}

impl<T> Context<T> {
    pub fn new(name: String, clock: Clock, stamps: TimeStamps, hook: Option<Hook>) -> Self
    where
        T: Clone + Send + 'static,
    {
        let cores = BTreeMap::new();
        Self {
            name,
            clock,
            stamps,
            hook,
            pool: Pool::new(8),
            payload: Payload::new(),
            handles: AtomicUsize::new(1),
            closed: AtomicBool::new(false),
            members: Mutex::new(Members { cores, dropped: 0, payload_panics: 0 }),
            payload_panics: Count::default(),
            hook_panics: Count::default(),
        }
    }

    /// Whether it has been shut down.
    pub fn is_closed(&self) -> bool {
        // Acquire (SHUTDOWN): whoever sees it sees what was done before.
        self.closed.load(Ordering::Acquire)
    }

    /// Shuts it down: no subscription is admitted any more. Those that there are, and whether this call was the first. If it is to `stop` them, none
    /// begins another call once the context says that it is closed.
    pub fn close(&self, stop: bool) -> (Vec<Arc<Core<T>>>, bool) {
        let members = self.members.lock();
        if stop {
            for core in members.cores.values() {
                core.control.raise(STOP);
            }
        }
        // Release (SHUTDOWN). Acquire is for its own sake: one call is the first.
        let first = !self.closed.swap(true, Ordering::AcqRel);
        (members.cores.values().cloned().collect(), first)
    }

    /// One more `Broker` or `Topic` handle, from one that exists.
    pub fn add_handle(&self) {
        // Relaxed: as a reference count, a new one is made from an old one.
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    /// One more handle, unless the last is gone.
    pub fn try_add_handle(&self) -> bool {
        // Relaxed: what the last handle did is not looked at here.
        let more = |handles| if handles == 0 { None } else { Some(handles + 1) };
        self.handles.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Runs `f` on a thread of its own, for what must not be waited for here.
    pub fn in_background(&self, f: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        thread::spawn(&thread_name(&format!("{}-drain", self.name)), None, f).map(drop)
    }

    /// Runs the hook, if there is one; its panic is counted.
    pub fn emit(&self, event: impl FnOnce() -> Event) {
        if let Some(hook) = &self.hook
            && contain(|| hook(&event())).is_err()
        {
            self.hook_panics.add();
        }
    }

    /// Counts a payload whose destructor panicked: for the subscription that it was evicted from, or else for the broker.
    #[cold]
    pub fn count_payload_panic(&self, owner: Option<u64>) {
        let mut members = self.members.lock();
        match owner {
            None => self.payload_panics.add(),
            Some(id) => match members.cores.get(&id) {
                Some(core) => core.account.shared.payload_panics.add(),
                // It has ended meanwhile.
                None => members.payload_panics += 1,
            },
        }
    }

    /// All subscriptions that have not ended.
    pub fn cores(&self) -> Vec<Arc<Core<T>>> {
        self.members.lock().cores.values().cloned().collect()
    }
}

impl<T> Context<T> {
    /// One handle less. With the last one, every subscription is told that nobody is left who could publish.
    pub fn drop_handle(&self) {
        // AcqRel (HANDLES): whoever drops the last one has seen all that was done through the others.
        if self.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            for core in self.cores() {
                core.orphan();
            }
        }
    }
}

impl<T> std::fmt::Debug for Context<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("name", &self.name)
            .field("clock", &self.clock)
            .finish_non_exhaustive()
    }
}
