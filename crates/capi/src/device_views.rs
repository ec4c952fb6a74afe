//! What a device's memory is made of: its allocator and its pools together, or one of them.
//!
//! Threads: any. Cost: that of the allocators' own reports.

use crate::device_memory::whole_pages;
use crate::pools::PoolId;
use crate::process::Device;
use crate::status::Answer;
use crate::torch_object::gapless_torch_figures;
use gapless::allocator::{LiveAllocation, Stats};
use gapless::driver::StreamDriver;
use gapless::driver::cuda::CudaDriver;
use gapless::{Allocator, DeviceAddr, StreamId};
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// The name that stands for memory of no pool.
const NO_POOL: PoolId = (0, 0);

impl Device {
    /// Shows the device's allocator and those of its pools to `look`, or that of one pool.
    pub fn each_allocator(&self, wanted: Option<PoolId>, mut look: impl FnMut(PoolId, &Allocator<CudaDriver>)) {
        if wanted.is_none() {
            look(NO_POOL, &self.main.allocator);
        }
        let pools = self.pools.all();
        let shown = pools.iter().filter(|pool| wanted.is_none_or(|wanted| pool.id == wanted));
        shown.for_each(|pool| look(pool.id, &pool.allocator));
    }

    /// The live allocation that an address lies in, and its pool.
    pub fn live_around(&self, addr: DeviceAddr) -> Option<(PoolId, LiveAllocation)> {
        if self.main.allocator.contains(addr) {
            return Some((NO_POOL, self.main.allocator.live_around(addr)?));
        }
        let pool = self.pools.owner(addr)?;
        Some((pool.id, pool.allocator.live_around(addr)?))
    }

    /// Sums over the device's allocator and its pools, or of one pool. `None` when there is no such pool.
    pub fn figures(&self, wanted: Option<PoolId>) -> Option<gapless_torch_figures> {
        // Before the sums: what is allocated meanwhile makes the freed bytes too low for this once, never too high.
        let allocated_bytes = self.main.allocated_bytes();
        let Some(id) = wanted else {
            let (pools, past) = self.pools.all_and_past();
            let mut sums = gapless_torch_figures::default();
            add(&mut sums, NO_POOL, &self.main.allocator.stats());
            let before_pools = sums;
            pools.iter().for_each(|pool| add(&mut sums, pool.id, &pool.allocator.stats()));
            // Peaks do not fall when a pool ends.
            sums.peak_live_bytes = sums.peak_live_bytes.max(before_pools.peak_live_bytes + past.peak_live_bytes);
            sums.peak_reserved_bytes =
                sums.peak_reserved_bytes.max(before_pools.peak_reserved_bytes + past.peak_reserved_bytes);
            sums.peak_chunks = sums.peak_chunks.max(before_pools.peak_chunks + past.peak_chunks);
            sums.allocs += past.allocs;
            sums.frees += past.frees;
            sums.created += past.created;
            sums.released += past.created;
            sums.created_bytes += past.created_bytes;
            sums.host_waits += past.host_waits;
            let freed_now = allocated_bytes.saturating_sub(sums.live_bytes);
            let freed_before = self.freed_bytes.fetch_max(freed_now, Ordering::Relaxed);
            sums.allocated_bytes = allocated_bytes;
            sums.freed_bytes = freed_now.max(freed_before);
            sums.out_of_memory = self.main.out_of_memory();
            return Some(sums);
        };
        let pool = self.pools.named(id)?;
        let mut sums = gapless_torch_figures::default();
        add(&mut sums, id, &pool.allocator.stats());
        Some(sums)
    }

    /// Allocates at an address that was handed out before, in whichever pool it is.
    pub fn alloc_again(&self, addr: DeviceAddr, bytes: u64) -> Answer<()> {
        self.settle_over();
        let bytes = self.private_page.filter(|page| bytes >= *page).map_or(bytes, |page| whole_pages(bytes, page));
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
    pub fn restore_pool(&self, id: PoolId, wanted: &[(DeviceAddr, u64)]) -> Answer<bool> {
        let Some(pool) = self.pools.named(id) else { return Ok(false) };
        self.settle_foreign();
        // What cannot be waited for is freed later: it is neither live nor free.
        let live: HashMap<DeviceAddr, u64> = pool.allocator.live().iter().map(|live| (live.addr, live.bytes)).collect();
        let wanted: HashMap<DeviceAddr, u64> = wanted.iter().copied().collect();
        let is_live = |addr: &DeviceAddr, bytes: &u64| live.get(addr) == Some(bytes) && !self.foreign.holds(*addr);
        let surplus = live.iter().filter(|(addr, bytes)| wanted.get(*addr) != Some(*bytes) && is_live(addr, bytes));
        let missing = wanted.iter().filter(|(addr, bytes)| !is_live(addr, bytes));
        // What is pinned keeps its memory when it is freed: it makes room for nothing, and could not be taken back.
        let (pinned, others): (Vec<_>, Vec<_>) = surplus.partition(|(addr, _)| self.pins.holds(**addr));
        let (mut freed, mut made) = (Vec::new(), Vec::new());
        let change = || -> Answer<()> {
            let mut free = |blocks: Vec<(&DeviceAddr, &u64)>| -> Answer<()> {
                for (addr, bytes) in blocks {
                    self.free(*addr, *bytes, StreamId(0))?;
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
    fn take_back(&self, allocator: &Allocator<CudaDriver>, addr: DeviceAddr, bytes: u64) -> bool {
        allocator.alloc_again(addr, bytes).is_ok() || {
            self.settle_foreign();
            // Refused during a capture: then the second try may fail, too.
            let _ = allocator.driver().synchronize_device();
            // No event tells of a stream that may be gone. This learns from a wait of its own, and releases nothing.
            let _ = allocator.trim(u64::MAX);
            allocator.alloc_again(addr, bytes).is_ok()
        }
    }
}

fn add(sums: &mut gapless_torch_figures, pool: PoolId, stats: &Stats) {
    sums.live_bytes += stats.live_bytes;
    sums.live_block_bytes += stats.live_block_bytes;
    sums.peak_live_bytes += stats.peak_live_bytes;
    sums.live_allocations += stats.live_allocations;
    sums.pending_bytes += stats.pending_bytes;
    sums.reserved_bytes += stats.reserved_bytes;
    sums.peak_reserved_bytes += stats.peak_reserved_bytes;
    sums.created_bytes += stats.created_bytes;
    // A pool keeps all that it has while it is alive.
    let returned = if pool == NO_POOL { stats.free_chunk_bytes } else { 0 };
    sums.kept_free_bytes += stats.cached_bytes.saturating_sub(returned);
    sums.chunks += stats.chunks;
    sums.peak_chunks += stats.peak_chunks;
    sums.created += stats.created_chunks;
    sums.released += stats.created_chunks - stats.chunks;
    sums.allocs += stats.allocs;
    sums.frees += stats.frees;
    sums.host_waits += stats.host_waits;
    sums.largest_bytes = sums.largest_bytes.max(stats.fragmentation.largest_with_remapping_bytes);
}
