//! The budget of the device, shared by the main allocator and the pools.
//!
//! Where none was set, the device is the budget, and nothing has to be shared out: whoever runs short looks at what is free there.
//!
//! Else nobody may hold more than there is, and whoever needs memory may have what nobody holds. So a pool is lent a part of what
//! is left when it begins, and all of it when that was not enough; when it ends, and when the main allocator needs memory, the
//! loan is over.

use super::past::Past;
use super::{Pool, Pools};
use crate::instance::Instance;
use crate::status::Answer;
use std::sync::Arc;

/// What is known of the device's budget.
#[derive(Debug, Default)]
pub(super) struct Books {
    /// The device's budget while there are pools: what the main allocator may hold without them.
    whole: Option<u64>,
    /// Bytes of pools that are being closed, and in no list.
    pub closing_bytes: u64,
    /// Counts of the pools that were closed.
    pub past: Past,
}

impl Books {
    /// Whether the device is the budget. A budget that was set stays the device's while there are pools: `main` has a part of it.
    pub fn follow_device(&self, main: &Instance) -> bool {
        self.whole.is_none() && !main.allocator.has_set_budget()
    }

    /// The device's budget.
    pub fn whole_budget(&self, main: &Instance) -> u64 {
        self.whole.unwrap_or_else(|| main.allocator.budget())
    }
}

impl Pools {
    /// Changes the budget of the device: of the main allocator and all pools together.
    pub fn set_budget(&self, main: &Instance, bytes: u64) -> Answer<()> {
        self.close_condemned(main, None);
        let mut books = self.books();
        if self.none() && books.closing_bytes == 0 {
            books.whole = None;
            return Ok(main.allocator.set_budget(bytes)?);
        }
        books.whole = Some(bytes);
        self.share_budget(&mut books, main);
        Ok(())
    }

    /// Lets the main allocator hold what pools do not.
    pub(super) fn share_budget(&self, books: &mut Books, main: &Instance) {
        if books.follow_device(main) {
            return;
        }
        let (whole, held) = (books.whole_budget(main), self.restrict(None) + books.closing_bytes);
        // Memory that cannot be returned now counts against the next request.
        let _ = main.allocator.set_budget(whole.saturating_sub(held));
        let shared = !self.none() || books.closing_bytes > 0;
        books.whole = shared.then_some(whole);
    }

    /// Lets a pool hold half of what nobody holds, beside what it has. The main allocator may hold the other half.
    pub(super) fn lend_half(&self, books: &mut Books, main: &Instance, pool: &Arc<Pool>) {
        self.lend(books, main, pool, |left| left / 2);
    }

    /// Lets a pool hold all that nobody holds.
    pub(super) fn lend_all(&self, books: &mut Books, main: &Instance, pool: &Arc<Pool>) {
        self.lend(books, main, pool, |left| left);
    }

    fn lend(&self, books: &mut Books, main: &Instance, pool: &Arc<Pool>, part: impl Fn(u64) -> u64) {
        if books.follow_device(main) {
            return;
        }
        let others = self.restrict(Some(pool)) + books.closing_bytes;
        let (held, held_by_main) = (pool.held(), main.allocator.reserved_bytes());
        let whole = books.whole_budget(main);
        books.whole = Some(whole);
        let budget = held + part(whole.saturating_sub(others + held + held_by_main));
        let _ = main.allocator.set_budget(whole.saturating_sub(others + budget).max(held_by_main));
        let _ = pool.allocator.set_budget(budget);
    }

    /// Ends the loans of all pools but one: none may hold more than it does. Returns what they hold.
    fn restrict(&self, but: Option<&Arc<Pool>>) -> u64 {
        let pools: Vec<Arc<Pool>> = self.list.read_recursive().clone();
        let others = pools.iter().filter(|pool| but.is_none_or(|but| !Arc::ptr_eq(but, pool)));
        others
            .map(|pool| {
                let held = pool.held();
                let _ = pool.allocator.set_budget(held);
                held
            })
            .sum()
    }
}
