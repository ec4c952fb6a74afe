//! The budget of the device, shared by the main allocator and the pools.
//!
//! Where none was set, the device is the budget, and nothing has to be shared out: whoever runs short looks at what is free there.
//!
//! Else nobody may hold more than there is, and whoever needs memory may have what nobody holds. So a pool is lent a part of what
//! is left when it begins, and all of it when that was not enough; when it ends, and when the main allocator needs memory, the
//! loan is over.
//!
//! PyTorch's own allocator, beside gapless, counts as a pool that asks before each request ([`Pools::lend_beside`]).

use super::books::Books;
use super::{Pool, Pools};
use crate::driver::DeviceDriver;
use crate::error::Error;
use std::sync::Arc;

impl<D: DeviceDriver> Pools<D> {
    /// Changes the budget of the device: of the main allocator and all pools together.
    pub(crate) fn set_budget(&self, bytes: u64) -> Result<(), Error> {
        self.close_condemned(None);
        let mut books = self.books();
        if self.none() && books.elsewhere_bytes() == 0 {
            books.whole = None;
            return Ok(self.main.set_budget(bytes)?);
        }
        books.whole = Some(bytes);
        self.share_budget(&mut books);
        Ok(())
    }

    /// Ends the loans of all pools after they have given memory back: what they no longer hold, anybody may have who needs it.
    pub(crate) fn end_loans(&self) {
        if !self.none() {
            self.share_budget(&mut self.books());
        }
    }

    /// Lets the main allocator hold what pools do not.
    pub(super) fn share_budget(&self, books: &mut Books) {
        if books.follow_device(&self.main) {
            return;
        }
        let (whole, held) = (books.whole_budget(&self.main), self.restrict(None) + books.elsewhere_bytes());
        // Memory that cannot be returned now counts against the next request.
        let _ = self.main.set_budget(whole.saturating_sub(held));
        let shared = !self.none() || books.elsewhere_bytes() > 0;
        books.whole = shared.then_some(whole);
    }

    /// Lets a pool hold half of what nobody holds, beside what it has. The main allocator may hold the other half.
    pub(super) fn lend_half(&self, books: &mut Books, pool: &Arc<Pool<D>>) {
        self.lend(books, pool, |left| left / 2);
    }

    /// Lets a pool hold all that nobody holds.
    pub(super) fn lend_all(&self, books: &mut Books, pool: &Arc<Pool<D>>) {
        self.lend(books, pool, |left| left);
    }

    fn lend(&self, books: &mut Books, pool: &Arc<Pool<D>>, part: impl Fn(u64) -> u64) {
        if books.follow_device(&self.main) {
            return;
        }
        let others = self.restrict(Some(pool)) + books.elsewhere_bytes();
        let (held, held_by_main) = (pool.held(), self.main.reserved_bytes());
        let whole = books.whole_budget(&self.main);
        books.whole = Some(whole);
        let budget = held + part(whole.saturating_sub(others + held + held_by_main));
        let _ = self.main.set_budget(whole.saturating_sub(others + budget).max(held_by_main));
        let _ = pool.allocator.set_budget(budget);
    }

    /// Lends an allocator beside gapless all that gapless does not hold, and returns that; `None` where no budget was set.
    pub(crate) fn lend_beside(&self) -> Option<u64> {
        let mut books = self.books();
        if books.follow_device(&self.main) {
            return None;
        }
        let (whole, held_by_main) = (books.whole_budget(&self.main), self.main.reserved_bytes());
        let left = whole.saturating_sub(self.restrict(None) + books.closing_bytes + held_by_main);
        (books.whole, books.beside_bytes) = (Some(whole), left);
        let _ = self.main.set_budget(held_by_main);
        Some(left + books.segment_bytes)
    }

    /// Ends that loan: the allocator beside gapless holds so many bytes, with what it has from gapless.
    pub(crate) fn settle_beside(&self, bytes: u64) {
        let mut books = self.books();
        books.beside_bytes = bytes.saturating_sub(books.segment_bytes);
        self.share_budget(&mut books);
    }

    /// Lets the main allocator hold a segment of the allocator beside gapless out of that one's loan. Returns how much of the loan
    /// that is, for [`cancel_segment`](Self::cancel_segment).
    pub(crate) fn begin_segment(&self, bytes: u64) -> u64 {
        let mut books = self.books();
        let lent = bytes.min(books.beside_bytes);
        books.segment_bytes += bytes;
        books.beside_bytes -= lent;
        self.share_budget(&mut books);
        lent
    }

    /// Undoes [`begin_segment`](Self::begin_segment) where the segment could not be had.
    pub(crate) fn cancel_segment(&self, bytes: u64, lent: u64) {
        let mut books = self.books();
        books.segment_bytes = books.segment_bytes.saturating_sub(bytes);
        books.beside_bytes += lent;
        self.share_budget(&mut books);
    }

    /// The allocator beside gapless has a segment less from gapless. The main allocator may hold its bytes; what of them was lent
    /// is counted when [`settle_beside`](Self::settle_beside) ends the loan.
    pub(crate) fn end_segment(&self, bytes: u64) {
        let mut books = self.books();
        books.segment_bytes = books.segment_bytes.saturating_sub(bytes);
    }

    /// Ends the loans of all pools but one: none may hold more than it does. Returns what they hold.
    fn restrict(&self, but: Option<&Arc<Pool<D>>>) -> u64 {
        let pools: Vec<Arc<Pool<D>>> = self.list.read_recursive().clone();
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
