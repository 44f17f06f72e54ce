//! A reference to a subscription's account that one message passes on to the next.
//!
//! A message that a receiver returned must be able to say where it came from after its receiver is gone, so it holds a reference; counting one up
//! and down would be the two dearest instructions of a receive. So a thread keeps the reference of the last message that it dropped, and the next
//! message of the same subscription takes that one over: a thread that takes and drops messages one by one counts nothing.

use std::cell::Cell;
use std::ops::Deref;

use crate::account::Account;
use crate::sync::thread::thread_local;
use crate::sync::weak::Arc;

/// The reference.
#[derive(Debug)]
pub struct Lease(
    /// `None` only while it is being dropped.
    Option<Arc<Account>>,
);

thread_local! {
    /// Of the last message that this thread dropped.
    static LAST: Cell<Option<Arc<Account>>> = const { Cell::new(None) };
}

impl Lease {
    /// A reference to `account`.
    #[inline]
    pub fn new(account: &Arc<Account>) -> Self {
        let last = LAST.try_with(Cell::take).ok().flatten();
        Self(Some(last.filter(|last| Arc::ptr_eq(last, account)).unwrap_or_else(|| account.clone())))
    }

    /// The account, counted.
    pub fn account(&self) -> &Arc<Account> {
        self.0.as_ref().expect("only a drop takes it")
    }
}

impl Deref for Lease {
    type Target = Account;

    #[inline]
    fn deref(&self) -> &Account {
        self.account()
    }
}

impl Drop for Lease {
    #[inline]
    fn drop(&mut self) {
        let mine = self.0.take();
        // A thread whose locals are gone keeps nothing. The one that makes way is dropped outside of the cell.
        drop(LAST.try_with(|last| last.replace(mine)));
    }
}
