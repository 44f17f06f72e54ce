//! A topic: its sequencer, its list of subscriptions, and the changes of that list.

mod handle;
mod publish;

use std::fmt;

use crossbeam_utils::CachePadded;

use crate::config::TimeStamps;
use crate::context::Context;
use crate::ring::Producer;
use crate::sequencer::{Sequenced, Sequencer};
use crate::snapshot::Snapshot;
use crate::subscription::Core;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::weak::Arc;
pub use handle::{Topic, WeakTopic};
pub use publish::{Published, PublishedBatch};
pub(crate) use publish::{Refusal, Wait};

/// The inside of a topic.
pub struct TopicCore<T> {
    hot: CachePadded<Hot<T>>,
    /// The list, for those who are not inside the sequencer. An addition shows here before it does inside, a removal after: whoever
    /// leaves the sequencer finds here every subscription that it pushed to, unless that one is ending.
    snapshot: Snapshot<List<T>>,
    /// One change of the list at a time.
    changes: Mutex<()>,
    /// `{ exact subscriptions: 32, handles: 32 }`, or `REMOVED`.
    users: AtomicU64,
    name: Arc<str>,
    incarnation: u64,
    context: Arc<Context<T>>,
}

/// What every publish reads and writes, on lines of its own.
struct Hot<T> {
    /// Entered by publishers and by changes of the list.
    sequencer: Sequencer<State<T>>,
    /// The next message's `seq`. Written inside the sequencer.
    published: AtomicU64,
    /// How long the list is, for clones made before the sequencer is entered. Written by changes of the list.
    length: AtomicUsize,
    stamps: TimeStamps,
}

/// What the sequencer guards.
struct State<T> {
    list: Arc<List<T>>,
    /// Publishes are refused: shut down, or removed from the registry.
    closed: Option<Closed>,
}

/// Why a topic takes no messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    ShutDown,
    Removed,
}

type List<T> = Box<[Arc<Edge<T>>]>;

/// One topic's way into one ring.
pub struct Edge<T> {
    pub core: Arc<Core<T>>,
    pub topic: Arc<TopicCore<T>>,
    producer: Sequenced<Producer<T>>,
    /// The subscription's number.
    id: u64,
}

/// What is counted in `users`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    Subscription,
    Handle,
}

impl User {
    fn unit(self) -> u64 {
        match self {
            Self::Subscription => 1 << 32,
            Self::Handle => 1,
        }
    }
}

const REMOVED: u64 = u64::MAX;

impl<T> TopicCore<T> {
    pub fn new(name: &str, incarnation: u64, context: Arc<Context<T>>) -> Self {
        let list: Arc<List<T>> = Arc::new(Box::default());
        let hot = CachePadded::new(Hot {
            sequencer: Sequencer::new(State { list: list.clone(), closed: None }),
            published: AtomicU64::new(0),
            length: AtomicUsize::new(0),
            stamps: context.stamps,
        });
        Self {
            hot,
            snapshot: Snapshot::new(list),
            changes: Mutex::new(()),
            users: AtomicU64::new(0),
            name: name.into(),
            incarnation,
            context,
        }
    }

    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    pub fn context(&self) -> &Arc<Context<T>> {
        &self.context
    }

    /// Messages published.
    pub fn published(&self) -> u64 {
        // Relaxed: a counter that is looked at.
        self.hot.published.load(Ordering::Relaxed)
    }

    /// Subscriptions in the list.
    pub fn subscriptions(&self) -> usize {
        // Relaxed: a number that is looked at; who needs the list takes it.
        self.hot.length.load(Ordering::Relaxed)
    }

    /// Counts one more user; false if the topic has been removed.
    pub fn enter(&self, user: User) -> bool {
        // Relaxed: the word alone decides between this and `remove`.
        let more = |users| if users == REMOVED { None } else { Some(users + user.unit()) };
        self.users.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// One user less.
    pub fn leave(&self, user: User) {
        // Relaxed: as in `enter`. Its user entered, so the topic has not been removed.
        self.users.fetch_sub(user.unit(), Ordering::Relaxed);
    }

    /// Makes the topic a removed one, if it has no users; else how many subscriptions and handles there are.
    pub fn remove(&self) -> Result<(), (usize, usize)> {
        // Relaxed: as in `enter`.
        match self.users.compare_exchange(0, REMOVED, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => {
                self.close(Closed::Removed);
                Ok(())
            }
            Err(users) => Err(((users >> 32) as usize, users as u32 as usize)),
        }
    }

    /// Refuses publishes from now on. When this returns, no publish is under way that was admitted before.
    pub fn close(&self, why: Closed) {
        self.hot.sequencer.lock().closed.get_or_insert(why);
    }

    /// Adds a subscription to the list; the first `seq` that it will see. The caller counts it as a user.
    pub fn attach(self: &Arc<Self>, core: &Arc<Core<T>>, producer: Producer<T>) -> (Arc<Edge<T>>, u64) {
        let producer = self.hot.sequencer.cell(producer);
        let edge =
            Arc::new(Edge { core: core.clone(), topic: self.clone(), producer, id: core.account.id.0 });
        let added = edge.clone();
        let first_seq = self.change(|list| Some(list.iter().cloned().chain([added]).collect()));
        (edge, first_seq)
    }

    /// Takes a subscription off the list, if it is there. When this returns, nothing is being pushed to it, nor ever will be.
    pub fn detach(&self, edge: &Arc<Edge<T>>) {
        self.change(|list| {
            let at = list.iter().position(|other| Arc::ptr_eq(other, edge))?;
            Some(list[..at].iter().chain(&list[at + 1..]).cloned().collect())
        });
    }

    /// Swaps the list for a changed one, if there is a change, and gives the next `seq` at that moment.
    fn change(&self, change: impl FnOnce(&List<T>) -> Option<List<T>>) -> u64 {
        let changes = self.changes.lock();
        // Nobody else changes it, so it is the one inside the sequencer too.
        let old = self.snapshot.load();
        let Some(new) = change(&old).map(Arc::new) else { return self.published() };
        let grows = new.len() > old.len();
        if grows {
            self.show(&new);
        }
        let mut guard = self.hot.sequencer.lock();
        let replaced = std::mem::replace(&mut guard.list, new.clone());
        let seq = self.published();
        if guard.unlock() {
            // A worker may have gone to sleep on the word while we were inside; no message is due, but the duty to look passed to us
            // if a publisher stopped between its release and its look.
            self.wake_sleepers();
        }
        if !grows {
            self.show(&new);
        }
        drop(changes);
        // The last references to an edge may go here, outside the locks: its ring is empty or about to be discarded.
        drop((old, replaced));
        seq
    }

    fn show(&self, list: &Arc<List<T>>) {
        // Relaxed: a hint; the list inside the sequencer decides.
        self.hot.length.store(list.len(), Ordering::Relaxed);
        drop(self.snapshot.swap(list.clone()));
    }

    /// Wakes the workers of this topic that sleep: after messages have been pushed, when the sequencer's word said that there are sleepers.
    #[cold]
    fn wake_sleepers(&self) {
        for edge in &*self.snapshot.load() {
            edge.core.parker.wake_if_parked();
        }
    }

    /// Says in the sequencer's word that a worker of this topic sleeps.
    pub fn add_sleeper(&self) {
        self.hot.sequencer.add_sleeper();
    }

    /// Takes it back.
    pub fn remove_sleeper(&self) {
        self.hot.sequencer.remove_sleeper();
    }
}

impl<T> Edge<T> {
    /// Takes the oldest message out of the ring, for a subscription that ends without its consumer. The list must not have it any more.
    pub fn reclaim(&self) -> Option<T> {
        let mut guard = self.topic.hot.sequencer.lock();
        let (_, mut key) = guard.open();
        self.producer.open(&mut key).reclaim()
    }
}

impl<T> fmt::Debug for TopicCore<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Topic")
            .field("name", &self.name)
            .field("incarnation", &self.incarnation)
            .field("published", &self.published())
            .field("subscriptions", &self.subscriptions())
            .finish_non_exhaustive()
    }
}
