//! A payload whose values are counted: made, cloned, dropped, and dropped twice.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

#[derive(Default, Debug)]
struct Book {
    next: u64,
    made: u64,
    cloned: u64,
    dropped: u64,
    /// Which id each value that still exists carries.
    alive: HashMap<u64, u64>,
    /// Ids of values that were dropped more than once.
    doubled: Vec<u64>,
}

/// The books of one test. Clones are the same ledger.
#[derive(Clone, Default, Debug)]
pub struct Ledger(Arc<Mutex<Book>>);

impl Ledger {
    pub fn new() -> Self {
        Self::default()
    }

    /// A new value that carries `id`.
    pub fn live(&self, id: u64) -> Live {
        let mut book = self.book();
        book.made += 1;
        Live { id, value: Self::enter(&mut book, id), ledger: self.clone() }
    }

    pub fn alive(&self) -> usize {
        self.book().alive.len()
    }

    pub fn alive_of(&self, id: u64) -> usize {
        self.book().alive.values().filter(|&&other| other == id).count()
    }

    pub fn made(&self) -> u64 {
        self.book().made
    }

    pub fn cloned(&self) -> u64 {
        self.book().cloned
    }

    #[track_caller]
    pub fn assert_no_double_drop(&self) {
        let book = self.book();
        assert!(book.doubled.is_empty(), "dropped twice: ids {:?}", book.doubled);
    }

    /// Every value has been dropped, exactly once.
    #[track_caller]
    pub fn assert_all_dropped(&self) {
        self.assert_no_double_drop();
        let book = self.book();
        let mut left: Vec<_> = book.alive.values().collect();
        left.sort_unstable();
        assert!(
            left.is_empty(),
            "still alive: {} values, of ids {:?}",
            left.len(),
            &left[..left.len().min(20)]
        );
        assert_eq!(book.made + book.cloned, book.dropped);
    }

    fn enter(book: &mut Book, id: u64) -> u64 {
        let value = book.next;
        book.next += 1;
        book.alive.insert(value, id);
        value
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A counted value. Clones carry the same id and are values of their own.
#[derive(Debug)]
pub struct Live {
    pub id: u64,
    value: u64,
    ledger: Ledger,
}

impl Clone for Live {
    fn clone(&self) -> Self {
        let mut book = self.ledger.book();
        book.cloned += 1;
        Live { id: self.id, value: Ledger::enter(&mut book, self.id), ledger: self.ledger.clone() }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let mut book = self.ledger.book();
        book.dropped += 1;
        if book.alive.remove(&self.value).is_none() {
            book.doubled.push(self.id);
        }
    }
}
