//! Topics by name: look-ups without a lock, additions and removals one at a time.
//!
//! `papaya` frees what was removed late, on anybody's thread. What is in it owns no payload, handler or ring by then: a topic is removed
//! only when its list is empty. Under loom a mutex stands in, which loom can see.

use crate::sync::weak::Arc;

/// The map.
pub struct Registry<V> {
    #[cfg(not(loom))]
    map: papaya::HashMap<Box<str>, Arc<V>>,
    #[cfg(loom)]
    map: crate::sync::Mutex<std::collections::BTreeMap<Box<str>, Arc<V>>>,
}

#[cfg(not(loom))]
impl<V> Registry<V> {
    /// An empty one.
    pub fn new() -> Self {
        Self { map: papaya::HashMap::new() }
    }

    /// Calls `f` with the topic of this name. Lock-free; `f` may run anything.
    #[inline]
    pub fn with<R>(&self, name: &str, f: impl FnOnce(&Arc<V>) -> R) -> Option<R> {
        let map = self.map.pin();
        map.get(name).map(f)
    }

    /// Whether there is one of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.with(name, |_| ()).is_some()
    }

    /// Adds a topic.
    pub fn insert(&self, name: &str, value: Arc<V>) {
        self.map.pin().insert(name.into(), value);
    }

    /// Takes a topic out.
    pub fn remove(&self, name: &str) {
        self.map.pin().remove(name);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// All of them, by name.
    pub fn all(&self) -> Vec<Arc<V>> {
        let map = self.map.pin();
        let mut all: Vec<_> = map.iter().collect();
        all.sort_unstable_by_key(|(name, _)| *name);
        all.into_iter().map(|(_, value)| value.clone()).collect()
    }
}

#[cfg(loom)]
impl<V> Registry<V> {
    /// An empty one.
    pub fn new() -> Self {
        Self { map: crate::sync::Mutex::default() }
    }

    /// Calls `f` with the topic of this name.
    pub fn with<R>(&self, name: &str, f: impl FnOnce(&Arc<V>) -> R) -> Option<R> {
        let found = self.map.lock().get(name).cloned();
        found.as_ref().map(f)
    }

    /// Whether there is one of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.with(name, |_| ()).is_some()
    }

    /// Adds a topic.
    pub fn insert(&self, name: &str, value: Arc<V>) {
        self.map.lock().insert(name.into(), value);
    }

    /// Takes a topic out.
    pub fn remove(&self, name: &str) {
        self.map.lock().remove(name);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.map.lock().len()
    }

    /// All of them, by name.
    pub fn all(&self) -> Vec<Arc<V>> {
        self.map.lock().values().cloned().collect()
    }
}

impl<V> std::fmt::Debug for Registry<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registry").field("topics", &self.len()).finish_non_exhaustive()
    }
}
