//! Regions of streams, and the arenas of addresses that they are cut from.
//!
//! The first streams get slots of the size that the geometry names. Each later arena for streams without regions has twice as
//! many slots of a quarter of the bytes, so that all of them together take no more than twice the addresses of the first,
//! until slots are as small as they get. What a stream gets besides is at least twice as large as what it has: a stream
//! that uses much memory has few regions, whenever it came.

use super::super::error::AllocError;
use super::super::kind::RegionKind;
use super::super::request::Request;
use super::super::streams::directory::{Arena, MAX_ARENAS, Owner};
use super::super::streams::live_bounds::LiveBounds;
use super::super::streams::region::Region;
use super::super::streams::state::Stream;
use super::SlowPath;
use crate::driver::{Driver, MemoryDriver};
use crate::heap::Heap;
use crate::units::DeviceAddr;

/// Pages of the smallest slot.
const LEAST_PAGES: u64 = 32;
/// Each arena for streams without regions has slots of this part of the bytes of the one before.
const SHRINK: u64 = 4;
/// Most slots of an arena.
const MOST_SLOTS: usize = 4096;

/// The result of a search for further addresses.
#[derive(Debug)]
pub enum Widened {
    /// The stream has another region.
    Yes,
    /// Another region would not help: one is untouched, or none is large enough.
    Needless,
    /// There are no addresses left.
    Refused(AllocError),
}

impl<D: Driver> SlowPath<'_, D> {
    /// Adds a region where those of the request's kind, if there are any, have no run of addresses for it.
    ///
    /// # Errors
    /// The error with which the device was lost.
    pub fn widen(&mut self, stream: &Stream, request: &Request) -> Result<Widened, AllocError> {
        let needed = self.addresses_for(request);
        let untouched = |region: &Region| {
            let segment = self.mapper.segment(region.segment);
            // Nothing is mapped, and nothing is asleep.
            let is_empty = || region.heap.unmapped_from(0).next() == Some((0, region.heap.extent()));
            segment.table.len() == 0 && segment.pages.bytes(segment.page_bytes) >= needed && is_empty()
        };
        if needed > self.shared.geometry.slot_bytes
            || stream.lock().regions.of_kind(request.kind).any(|(_, region)| untouched(region))
        {
            return Ok(Widened::Needless);
        }
        match self.add_region(stream, request.kind, needed) {
            Ok(()) => Ok(Widened::Yes),
            Err(AllocError::Driver(error)) if error.kind.is_sticky() => Err(error.into()),
            Err(error) => Ok(Widened::Refused(error)),
        }
    }

    /// Bytes of addresses that a request needs at worst: a slot starts at a page, wherever that is.
    fn addresses_for(&self, request: &Request) -> u64 {
        request.size.saturating_add(request.alignment.saturating_sub(self.page_bytes()))
    }

    /// Gives the stream another region of at least `needed` bytes, reserving addresses if need be.
    fn add_region(&mut self, stream: &Stream, kind: RegionKind, needed: u64) -> Result<(), AllocError> {
        let (owner, has) = {
            let state = stream.lock();
            let has = state.regions.of_kind(kind).map(|(_, region)| region.heap.extent()).max();
            (Owner { stream: stream.index, region: state.regions.next_id(kind) }, has)
        };
        let (slots, wanted) = self.arena_for(needed, has);
        let (base, bytes) = match self.take_slot(owner, wanted) {
            Some(slot) => slot,
            None => {
                let added = self.add_arena(slots, wanted, needed);
                // Where there are no addresses, a slot may be left that is smaller than it should be.
                self.take_slot(owner, needed).map_or_else(|| Err(added.expect_err("its slots are free")), Ok)?
            }
        };
        let page_bytes = self.page_bytes();
        let segment = self.mapper.add_segment(base, bytes);
        let (heap, bounds) = (Heap::new(bytes), LiveBounds::new(kind));
        stream.lock().regions.add(Region { kind, heap, bounds, base, segment, page_bytes });
        Ok(())
    }

    /// Takes the smallest free slot of at least `least` bytes. Returns its address and its bytes.
    fn take_slot(&self, owner: Owner, least: u64) -> Option<(DeviceAddr, u64)> {
        let fitting = self.shared.directory.arenas().filter(|arena| !arena.is_full() && arena.slot_bytes() >= least);
        let arena = fitting.min_by_key(|arena| arena.slot_bytes())?;
        Some((arena.take_slot(owner)?, arena.slot_bytes()))
    }

    /// Number and bytes of the slots of an arena for a stream that needs `needed` bytes and whose largest region of the kind,
    /// if it has any, has `has`.
    fn arena_for(&self, needed: u64, has: Option<u64>) -> (usize, u64) {
        let (slots, bytes) = self.mapper.next_arena();
        if has.is_none() && needed <= bytes {
            return (slots, bytes);
        }
        let largest = self.shared.geometry.slot_bytes;
        let wanted = needed.next_power_of_two().max(has.unwrap_or(0).saturating_mul(2)).min(largest);
        // As many as there are of that size: so there are few arenas.
        let as_large = self.shared.directory.arenas().filter(|arena| arena.slot_bytes() >= wanted);
        (as_large.map(Arena::slots).sum::<usize>().clamp(RegionKind::ALL.len(), MOST_SLOTS), wanted)
    }

    /// Reserves an arena of `slots` slots of `bytes` each; fewer, or smaller ones of at least `needed`, where the driver
    /// refuses, whatever it says, unless the device is lost.
    fn add_arena(&mut self, slots: usize, bytes: u64, needed: u64) -> Result<(), AllocError> {
        let page_bytes = self.page_bytes();
        let least = needed.next_power_of_two().max(page_bytes * LEAST_PAGES);
        let (mut fewer, mut smaller) = (slots, bytes);
        loop {
            match self.driver().reserve(smaller * fewer as u64, page_bytes) {
                Ok(base) => {
                    if self.shared.directory.add(Arena::new(base, smaller, fewer)) {
                        self.note_arena(slots, bytes);
                        return Ok(());
                    }
                    // Each kind of arena doubles its slots, so only small pieces of addresses can come to this.
                    self.driver().address_free(base, smaller * fewer as u64)?;
                    return Err(AllocError::AddressesFragmented { limit: MAX_ARENAS });
                }
                Err(error) if !error.kind.is_sticky() && fewer > 1 => fewer /= 2,
                Err(error) if !error.kind.is_sticky() && smaller > least => smaller /= 2,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// After an arena for streams without regions, the next one has more and smaller slots.
    fn note_arena(&mut self, slots: usize, bytes: u64) {
        if self.mapper.next_arena() == (slots, bytes) {
            let least = (self.page_bytes() * LEAST_PAGES).min(bytes);
            self.mapper.set_next_arena((slots * 2).min(MOST_SLOTS), (bytes / SHRINK).max(least));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::Allocator;
    use crate::driver::{ModelConfig, ModelDriver, WorkDriver};
    use std::sync::Arc;

    const PAGE: u64 = 2 << 20;
    const SLOT: u64 = 32 * PAGE;

    /// The addresses that are left come in more pieces of two slots than there may be arenas. What was reserved of one more goes
    /// back whole.
    #[test]
    fn addresses_beyond_the_last_arena_go_back() {
        let driver = Arc::new(ModelDriver::new(ModelConfig { address_bits: 37, ..ModelConfig::default() }));
        let pieces: Vec<_> = std::iter::from_fn(|| driver.reserve(2 * SLOT, PAGE).ok()).collect();
        while driver.reserve(PAGE, PAGE).is_ok() {}
        pieces.iter().step_by(2).for_each(|piece| driver.address_free(*piece, 2 * SLOT).unwrap());
        let before = driver.usage().address_bytes;
        let allocator = Allocator::builder(Arc::clone(&driver)).region_bytes(SLOT).build().unwrap();
        let alloc = || allocator.alloc_raw(PAGE, driver.create_stream().unwrap());
        let arenas = MAX_ARENAS as u64;
        for _ in 0..2 * arenas {
            alloc().unwrap();
        }
        let refused = alloc();
        assert!(matches!(&refused, Err(AllocError::AddressesFragmented { limit: MAX_ARENAS })), "{refused:?}");
        assert_eq!(driver.usage().address_bytes, before + 2 * arenas * SLOT);
        allocator.check();
    }
}
