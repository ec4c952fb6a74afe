//! Addresses: arenas, and the regions in their slots.

use super::directory::{Arena, MAX_ARENAS, Owner};
use super::mapper::Mapper;
use super::plan::Request;
use super::region::{Region, RegionKind};
use super::state::StreamHeap;
use super::{AllocError, Inner};
use crate::driver::{Driver, DriverErrorKind, MemoryDriver};
use crate::heap::Heap;
use crate::segment::Segment;

/// Slots of the first arena: two streams.
pub const FIRST_ARENA_SLOTS: usize = 4;

impl<D: Driver> Inner<D> {
    /// Makes sure that the stream has a region of this kind.
    pub(super) fn ensure_region(
        &self,
        mapper: &mut Mapper,
        heap: &StreamHeap,
        kind: RegionKind,
    ) -> Result<(), AllocError> {
        if heap.lock().regions.of_kind(kind).next().is_some() {
            return Ok(());
        }
        self.add_region(mapper, heap, kind)
    }

    /// Adds a region where those of the request's kind have no stretch of addresses for it. False when another would not
    /// help, since one is untouched or none is large enough, and when the driver has no addresses left.
    pub(super) fn widen(&self, mapper: &mut Mapper, heap: &StreamHeap, request: Request) -> Result<bool, AllocError> {
        // A slot starts at a page, wherever that is.
        let at_worst = request.size.saturating_add(request.alignment.saturating_sub(self.geometry.page_bytes));
        let untouched = |region: &Region| mapper.segments[region.segment].table.len() == 0;
        if at_worst > self.geometry.slot_bytes
            || heap.lock().regions.of_kind(request.kind).any(|(_, region)| untouched(region))
        {
            return Ok(false);
        }
        match self.add_region(mapper, heap, request.kind) {
            Ok(()) => Ok(true),
            Err(AllocError::AddressesFragmented { .. }) => Ok(false),
            Err(AllocError::Driver(error)) if error.kind == DriverErrorKind::OutOfMemory => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Gives the stream another region, reserving addresses if need be.
    fn add_region(&self, mapper: &mut Mapper, heap: &StreamHeap, kind: RegionKind) -> Result<(), AllocError> {
        let owner = Owner { stream: heap.index, region: heap.lock().regions.next_id(kind) };
        let (base, bytes) = loop {
            let slot = self.directory.arenas().find_map(|arena| Some((arena.take_slot(owner)?, arena.slot_bytes())));
            match slot {
                Some(slot) => break slot,
                None => self.add_arena(mapper)?,
            }
        };
        let page_bytes = self.geometry.page_bytes;
        let segment = mapper.segments.len();
        mapper.segments.push(Segment::new(base, bytes, page_bytes));
        heap.lock().regions.add(Region { kind, heap: Heap::new(bytes), base, segment, page_bytes });
        Ok(())
    }

    /// Reserves another arena: as many slots as wished, fewer or smaller ones where the driver has no room for them.
    fn add_arena(&self, mapper: &mut Mapper) -> Result<(), AllocError> {
        let (mut slot_bytes, mut slots) = (self.geometry.slot_bytes, mapper.next_arena_slots);
        loop {
            match self.driver.reserve(slot_bytes * slots as u64, self.geometry.page_bytes) {
                Ok(base) => {
                    if self.directory.add(Arena::new(base, slot_bytes, slots)) {
                        mapper.next_arena_slots = slots * 2;
                        return Ok(());
                    }
                    // Arenas double in size, so only small pieces of addresses can come to this.
                    self.driver.address_free(base, slot_bytes * slots as u64)?;
                    return Err(AllocError::AddressesFragmented { limit: MAX_ARENAS });
                }
                Err(error) if error.kind == DriverErrorKind::OutOfMemory && slots > 1 => slots /= 2,
                Err(error)
                    if error.kind == DriverErrorKind::OutOfMemory && slot_bytes > self.geometry.page_bytes * 32 =>
                {
                    slot_bytes /= 2;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}
