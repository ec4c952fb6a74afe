//! Memory of a process's devices. Every front end comes through here, so that pools, the memory history, recordings,
//! sums and reports are about the memory of all of them.
//!
//! A front end adds the form of its calls and the words of its failures.
//!
//! - I1  an allocation is in the history after it was made, a free before it is done: events of one address are in order.
//!
//! Threads: any. Cost: that of `Recorded` and `Pools`, and for each call a load of an atomic for the history.

use crate::budget::Budget;
use crate::device::Device;
use crate::driver::{DeviceDriver, driver_of};
use crate::error::Error;
use crate::history::Action;
use crate::notice::notice;
use crate::pools::{PoolId, PoolKind, wants_room};
use crate::recorded::{Request, is_out_of_memory};
use crate::settings::whole_pages;
use crate::streams::StreamLives;
use gapless::allocator::{AllocError, FreeError, OutOfMemory, Trimmed};
use gapless::units::ByteSize;
use gapless::{DeviceAddr, StreamId};
use std::fmt::Display;

/// Where a request is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the open pool that it belongs to, else in the device's own memory.
    OpenPool,
    /// In the pool of that name, else in the device's own memory.
    Pool(PoolId),
    /// In the device's own memory, whatever pools are open.
    Main,
}

impl<D: DeviceDriver> Device<D> {
    /// Allocates from the open pool that the request belongs to, else from the device's allocator.
    ///
    /// # Errors
    /// The allocator's; a report of a lack of memory says what all of the device's allocators hold.
    pub fn alloc(&self, request: &Request) -> Result<DeviceAddr, AllocError> {
        self.alloc_worded(Place::OpenPool, request, |error| error)
    }

    /// As [`alloc`](Self::alloc), in a place of choice. `worded` makes of an error what the caller gets; with
    /// `report_on_failure:on` that goes to stderr, too.
    ///
    /// # Errors
    /// The allocator's, as `worded` words it.
    #[inline]
    pub fn alloc_worded<E: Display>(
        &self,
        place: Place,
        request: &Request,
        worded: impl FnOnce(AllocError) -> E,
    ) -> Result<DeviceAddr, E> {
        match self.alloc_cached(place, request) {
            Some(addr) => Ok(addr),
            None => self.alloc_uncached(place, request, worded),
        }
    }

    /// Allocates from what the device's own allocator has cached, where that serves the request as it is. Most requests end here,
    /// and none of them moves an error about, which is large.
    #[inline]
    fn alloc_cached(&self, place: Place, request: &Request) -> Option<DeviceAddr> {
        let for_main = match place {
            Place::Main => true,
            Place::OpenPool => self.pools.none_open(),
            Place::Pool(_) => false,
        };
        let as_it_is = request.lives == StreamLives::AsLongAsTheProcess && self.page_apart(request.bytes).is_none();
        if !(for_main && as_it_is) {
            return None;
        }
        self.settle_over();
        let addr = request.serve_cached(&self.main.allocator)?;
        self.note_alloc(addr, request.bytes, request.stream);
        Some(addr)
    }

    /// Notes an allocation in the recording and in the history.
    #[inline]
    fn note_alloc(&self, addr: DeviceAddr, bytes: u64, stream: StreamId) {
        self.main.note_alloc(addr, bytes, stream, |addr| self.tag_at(addr));
        self.history.note(Action::Alloc, self.ordinal, addr, bytes, stream);
    }

    #[inline(never)]
    fn alloc_uncached<E: Display>(
        &self,
        place: Place,
        request: &Request,
        worded: impl FnOnce(AllocError) -> E,
    ) -> Result<DeviceAddr, E> {
        let request = &self.laid_out(request);
        let in_pool = || match place {
            Place::OpenPool => self.pools.alloc(request),
            Place::Pool(id) => self.pools.alloc_in(id, request),
            Place::Main => None,
        };
        self.alloc_by(request, || in_pool().unwrap_or_else(|| self.alloc_from_main(request)), worded)
    }

    /// Bytes of a page, if a block of so many bytes is to have its chunks for itself.
    #[inline]
    pub(crate) fn page_apart(&self, bytes: u64) -> Option<u64> {
        self.private_page.filter(|page| bytes >= *page)
    }

    /// The request as it is served. A block that is to have its chunks for itself takes whole pages.
    #[inline]
    fn laid_out(&self, request: &Request) -> Request {
        match self.page_apart(request.bytes) {
            Some(page) => {
                let (bytes, alignment) = (whole_pages(request.bytes, page), request.alignment.max(page));
                Request { bytes, alignment, ..*request }
            }
            None => *request,
        }
    }

    /// Clears a block that is to have its chunks for itself: whoever is sent it sees nothing that was there before.
    #[inline]
    fn cleared(&self, request: &Request, addr: DeviceAddr) -> Result<DeviceAddr, AllocError> {
        if self.page_apart(request.bytes).is_none() {
            return Ok(addr);
        }
        match driver_of(&self.main.allocator).clear(request.stream, addr, request.bytes) {
            Ok(()) => Ok(addr),
            Err(error) => {
                // Nobody else knows of it yet.
                let _ = self.free_now(addr);
                Err(error.into())
            }
        }
    }

    #[inline]
    fn alloc_by<E: Display>(
        &self,
        request: &Request,
        serve: impl Fn() -> Result<DeviceAddr, AllocError>,
        worded: impl FnOnce(AllocError) -> E,
    ) -> Result<DeviceAddr, E> {
        self.settle_over();
        let mut outcome = serve();
        if matches!(outcome, Err(AllocError::OutOfMemory(_))) && self.foreign.has_deferred() {
            self.settle(self.foreign.wait());
            outcome = serve();
        }
        let outcome = outcome.and_then(|addr| self.cleared(request, addr)).map_err(|error| self.with_pools(error));
        match outcome {
            Ok(addr) => {
                self.note_alloc(addr, request.bytes, request.stream);
                Ok(addr)
            }
            Err(error) => {
                self.main.note_refusal(request, &error);
                if is_out_of_memory(&error) {
                    let free = error.report().and_then(|report| report.device).map_or(0, |info| info.free);
                    self.history.note(Action::Oom, self.ordinal, DeviceAddr(free), request.bytes, request.stream);
                }
                let failure = worded(error);
                if self.report_on_failure {
                    notice(format_args!("{failure}"));
                }
                self.log(|| format!("a request of {} failed", ByteSize(request.bytes)));
                Err(failure)
            }
        }
    }

    /// A failure of one of the device's allocators, with what the others hold.
    #[cold]
    pub(crate) fn with_pools(&self, error: AllocError) -> AllocError {
        let held = || self.main.allocator.reserved_bytes() + self.pools.held_bytes();
        self.with_elsewhere(error, |report| held().saturating_sub(report.reserved_bytes))
    }

    /// A failure of one of the device's allocators, with the bytes that the others hold, and who has open what was freed.
    #[cold]
    pub(crate) fn with_elsewhere(
        &self,
        mut error: AllocError,
        elsewhere: impl FnOnce(&OutOfMemory) -> u64,
    ) -> AllocError {
        if let AllocError::OutOfMemory(report) = &mut error {
            report.add_elsewhere(elsewhere(report));
            if report.open_elsewhere_bytes > 0 {
                report.holders = self.sharing.holders();
            }
            if self.has_budget() {
                report.budget_bytes = self.pools.whole_budget();
            }
        }
        error
    }

    /// Why a request that is larger than the addresses of a region fails: most of the time the device is far smaller.
    #[cold]
    pub fn explain_too_large(&self, bytes: u64, error: &AllocError) -> String {
        match driver_of(&self.main.allocator).memory_info() {
            Ok(device) if bytes > device.total => {
                format!("No allocator could have served this: the device has {} in all.", ByteSize(device.total))
            }
            _ => error.to_string(),
        }
    }

    /// Whether a budget was set. Else the device is the budget.
    pub fn has_budget(&self) -> bool {
        self.main.allocator.has_set_budget()
    }

    /// Sets the budget of the main allocator and of all pools together.
    ///
    /// # Errors
    /// The allocator's, where memory cannot be returned to the driver.
    pub fn set_budget(&self, bytes: u64) -> Result<(), Error> {
        self.pools.set_budget(bytes)
    }

    /// The same, as a part of the device's memory from 0 to 1. With 0, nothing more is allocated.
    ///
    /// # Errors
    /// [`Error::Fraction`] for a part that is none, else as [`set_budget`](Self::set_budget).
    pub fn set_budget_part(&self, part: f64) -> Result<(), Error> {
        let fraction = || Budget::fraction(part).ok_or(Error::Fraction(part));
        let budget = if part == 0.0 { Budget::Bytes(0) } else { fraction()? };
        let total = driver_of(&self.main.allocator).memory_info()?.total;
        self.set_budget(budget.of(total))
    }

    /// Lends an allocator beside gapless, such as PyTorch's own, all of the budget that gapless does not hold. Returns the most
    /// bytes that it may hold; `None` where no budget was set. Until [`settle_beside`](Self::settle_beside), gapless holds no more
    /// than it does.
    pub fn lend_beside(&self) -> Option<u64> {
        self.pools.lend_beside()
    }

    /// Records how many bytes an allocator beside gapless holds. They count against the budget.
    pub fn settle_beside(&self, bytes: u64) {
        self.pools.settle_beside(bytes);
    }

    #[inline]
    fn alloc_from_main(&self, request: &Request) -> Result<DeviceAddr, AllocError> {
        let outcome = request.serve(&self.main.allocator);
        if wants_room(&outcome, AllocError::report) { self.alloc_in_room(request, outcome) } else { outcome }
    }

    /// A request that the main allocator has refused: once more with what the pools give back, then from a pool that lends.
    #[cold]
    fn alloc_in_room(
        &self,
        request: &Request,
        mut outcome: Result<DeviceAddr, AllocError>,
    ) -> Result<DeviceAddr, AllocError> {
        if self.pools.make_room(request) {
            outcome = request.serve(&self.main.allocator);
        }
        if wants_room(&outcome, AllocError::report) {
            self.pools.alloc_lent(request).unwrap_or(outcome)
        } else {
            outcome
        }
    }

    /// Frees an allocation. `bytes` and `stream` are for the history: those of the allocation, or 0 where the front end
    /// does not know them. The allocator knows on which streams the memory was used.
    ///
    /// # Errors
    /// [`FreeError`] where no live allocation starts at the address.
    #[inline]
    pub fn free(&self, addr: DeviceAddr, bytes: u64, stream: StreamId) -> Result<(), FreeError> {
        self.settle_over();
        self.expect_not_deferred(addr)?;
        if self.history.is_on() && self.live_around(addr).is_some_and(|(_, live)| live.addr == addr) {
            self.history.note(Action::Free, self.ordinal, addr, bytes, stream);
        }
        self.main.note_free(addr);
        if self.foreign.defer_free(addr) { Ok(()) } else { self.free_now(addr) }
    }

    #[inline]
    fn free_now(&self, addr: DeviceAddr) -> Result<(), FreeError> {
        if self.is_of_main(addr) {
            return self.main.allocator.free(addr);
        }
        self.pools.free(addr).unwrap_or_else(|| self.main.allocator.free(addr))
    }

    /// Carries out deferred frees, of which the foreign uses are over.
    fn settle(&self, over: Vec<DeviceAddr>) {
        for addr in over {
            // It was live when its free was deferred, and nobody else frees it.
            let _ = self.free_now(addr);
        }
    }

    /// The tag of the pool that an address is of, if it has one.
    fn tag_at(&self, addr: DeviceAddr) -> Option<String> {
        if self.is_of_main(addr) { None } else { self.pools.owner(addr)?.tag() }
    }

    /// Records an allocation that was made again at its address.
    pub(crate) fn note_again(&self, addr: DeviceAddr, bytes: u64) {
        let stream = self.live_around(addr).map_or(StreamId::DEFAULT, |(_, live)| live.stream);
        self.note_alloc(addr, bytes, stream);
    }

    /// Carries out the frees that are deferred for streams of other devices, after a wait for these.
    pub(crate) fn settle_foreign(&self) {
        if self.foreign.has_deferred() {
            self.settle(self.foreign.wait());
        }
    }

    /// Carries out the frees that are deferred for streams of other devices, as far as these are done with the blocks.
    #[inline]
    pub(crate) fn settle_over(&self) {
        if self.foreign.has_deferred() {
            self.settle(self.foreign.take_over());
        }
    }

    /// Returns free memory to the driver until at most `keep_bytes` are held, after a wait for other devices that use it, and
    /// that of pools that were released. Ordinary pools each keep at most as much; what other pools hold stays. Neither counts.
    ///
    /// # Errors
    /// The allocator's.
    pub fn trim(&self, keep_bytes: u64) -> Result<Trimmed, AllocError> {
        self.settle_foreign();
        self.sharing.settle();
        let of_pools = self.pools.close_condemned(None);
        let mut trimmed = self.main.allocator.trim(keep_bytes)?;
        let pools = self.pools.all();
        let mut ordinary = pools.iter().filter(|pool| pool.kind() == PoolKind::Ordinary);
        let of_ordinary: Result<u64, AllocError> =
            ordinary.try_fold(0, |sum, pool| Ok(sum + pool.allocator.trim(keep_bytes)?.released_bytes));
        self.pools.end_loans();
        trimmed.released_bytes += of_pools + of_ordinary?;
        self.log(|| format!("released {}, {} held", ByteSize(trimmed.released_bytes), ByteSize(trimmed.held_bytes)));
        Ok(trimmed)
    }

    /// Returns the memory of pools that were released to the driver, after a wait for the device. Returns the bytes that went back;
    /// 0 while a pool may be open for a capture.
    pub fn close_released_pools(&self) -> u64 {
        self.pools.close_condemned(None)
    }
}
