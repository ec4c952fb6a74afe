//! Blocks at addresses that were handed out before: a pool that goes back to an earlier state.
//!
//! Threads: any.

use crate::device::Device;
use crate::driver::{DeviceDriver, driver_of};
use crate::error::Error;
use crate::pools::PoolId;
use crate::settings::whole_pages;
use gapless::{Allocator, DeviceAddr, StreamId};
use std::collections::HashMap;

impl<D: DeviceDriver> Device<D> {
    /// Allocates at an address that was handed out before, in whichever pool it is.
    ///
    /// # Errors
    /// [`Error::AllocAgain`] where the memory is not free. Nothing has changed.
    pub fn alloc_again(&self, addr: DeviceAddr, bytes: u64) -> Result<(), Error> {
        self.settle_over();
        let bytes = self.page_apart(bytes).map_or(bytes, |page| whole_pages(bytes, page));
        let allocator = self.allocator_of(addr).unwrap_or_else(|| self.main.allocator.clone());
        allocator.alloc_again(addr, bytes)?;
        self.note_again(addr, bytes);
        Ok(())
    }

    /// Makes a pool hold exactly these allocations, as addresses and requested bytes, after a wait for other devices that use
    /// blocks which were freed. Returns false when there is no such pool.
    ///
    /// # Errors
    /// An allocation that cannot be had, or a block that cannot be freed. The pool is as it was then, after a wait for the device
    /// where its streams use what was freed, unless another thread has taken that meanwhile. A block that was freed in
    /// between and is back is recorded on no other stream.
    pub fn restore_pool(&self, id: PoolId, wanted: &[(DeviceAddr, u64)]) -> Result<bool, Error> {
        let Some(pool) = self.pools.named(id) else { return Ok(false) };
        self.settle_foreign();
        // What cannot be waited for is freed later: it is neither live nor free.
        let live: HashMap<DeviceAddr, u64> = pool.allocator.live().iter().map(|live| (live.addr, live.bytes)).collect();
        let wanted: HashMap<DeviceAddr, u64> = wanted.iter().copied().collect();
        let is_live =
            |addr: &DeviceAddr, bytes: &u64| live.get(addr) == Some(bytes) && !self.foreign.is_deferred(*addr);
        let surplus = live.iter().filter(|(addr, bytes)| wanted.get(*addr) != Some(*bytes) && is_live(addr, bytes));
        let missing = wanted.iter().filter(|(addr, bytes)| !is_live(addr, bytes));
        // What is pinned keeps its memory when it is freed: it makes room for nothing, and could not be taken back.
        let (pinned, others): (Vec<_>, Vec<_>) = surplus.partition(|(addr, _)| self.pins.holds(**addr));
        let (mut freed, mut made) = (Vec::new(), Vec::new());
        let change = || -> Result<(), Error> {
            let mut free = |blocks: Vec<(&DeviceAddr, &u64)>| -> Result<(), Error> {
                for (addr, bytes) in blocks {
                    self.free(*addr, *bytes, StreamId::DEFAULT)?;
                    freed.push((*addr, *bytes));
                }
                Ok(())
            };
            free(others)?;
            for (addr, bytes) in missing {
                pool.allocator.alloc_again(*addr, *bytes)?;
                made.push((*addr, *bytes));
            }
            free(pinned)
        };
        let outcome = change();
        if outcome.is_err() {
            for (addr, _) in made.drain(..) {
                let _ = pool.allocator.free(addr);
            }
            made.extend(freed.into_iter().filter(|(addr, bytes)| self.take_back(&pool.allocator, *addr, *bytes)));
        }
        made.iter().for_each(|(addr, bytes)| self.note_again(*addr, *bytes));
        outcome.map(|()| true)
    }

    /// Makes an allocation again that was freed just now. Streams may use it still: then the host waits for them.
    fn take_back(&self, allocator: &Allocator<D>, addr: DeviceAddr, bytes: u64) -> bool {
        allocator.alloc_again(addr, bytes).is_ok() || {
            self.settle_foreign();
            // Refused during a capture: then the second try may fail, too.
            let _ = driver_of(allocator).synchronize_device();
            // No event reports on a stream that may be gone. This learns from a wait of its own, and releases nothing.
            let _ = allocator.trim(u64::MAX);
            allocator.alloc_again(addr, bytes).is_ok()
        }
    }
}
