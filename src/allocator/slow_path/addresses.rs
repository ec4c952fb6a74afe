//! Regions of streams, and the arenas of addresses that they are cut from.

use super::super::error::AllocError;
use super::super::kind::RegionKind;
use super::super::request::Request;
use super::super::streams::directory::{Arena, MAX_ARENAS, Owner};
use super::super::streams::region::Region;
use super::super::streams::state::Stream;
use super::SlowPath;
use crate::driver::{Driver, DriverErrorKind, MemoryDriver};
use crate::heap::Heap;
use crate::segment::Segment;

/// Number of slots of the first arena: enough for two streams.
pub const FIRST_ARENA_SLOTS: usize = 4;

impl<D: Driver> SlowPath<'_, D> {
    /// Makes sure that the stream has a region of this kind.
    pub fn ensure_region(&mut self, stream: &Stream, kind: RegionKind) -> Result<(), AllocError> {
        if stream.lock().regions.of_kind(kind).next().is_some() {
            return Ok(());
        }
        self.add_region(stream, kind)
    }

    /// Adds a region where those of the request's kind have no run of addresses for it. Returns false when another region
    /// would not help, since one is untouched or none is large enough, and when the driver has no addresses left.
    pub fn widen(&mut self, stream: &Stream, request: &Request) -> Result<bool, AllocError> {
        // A slot starts at a page, wherever that is.
        let at_worst = request.size.saturating_add(request.alignment.saturating_sub(self.page_bytes()));
        let untouched = |region: &Region| self.mapper.segments[region.segment].table.len() == 0;
        if at_worst > self.shared.geometry.slot_bytes
            || stream.lock().regions.of_kind(request.kind).any(|(_, region)| untouched(region))
        {
            return Ok(false);
        }
        match self.add_region(stream, request.kind) {
            Ok(()) => Ok(true),
            Err(AllocError::AddressesFragmented { .. }) => Ok(false),
            Err(AllocError::Driver(error)) if error.kind == DriverErrorKind::OutOfMemory => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Gives the stream another region, reserving addresses if need be.
    fn add_region(&mut self, stream: &Stream, kind: RegionKind) -> Result<(), AllocError> {
        let owner = Owner { stream: stream.index, region: stream.lock().regions.next_id(kind) };
        let directory = &self.shared.directory;
        let (base, bytes) = loop {
            let slot = directory.arenas().find_map(|arena| Some((arena.take_slot(owner)?, arena.slot_bytes())));
            match slot {
                Some(slot) => break slot,
                None => self.add_arena()?,
            }
        };
        let page_bytes = self.page_bytes();
        let segment = self.mapper.segments.len();
        self.mapper.segments.push(Segment::new(base, bytes, page_bytes));
        stream.lock().regions.add(Region { kind, heap: Heap::new(bytes), base, segment, page_bytes });
        Ok(())
    }

    /// Reserves another arena: with twice the slots of the last, or fewer or smaller ones where the driver has no such addresses.
    fn add_arena(&mut self) -> Result<(), AllocError> {
        let page_bytes = self.page_bytes();
        let (mut slot_bytes, mut slots) = (self.shared.geometry.slot_bytes, self.mapper.next_arena_slots);
        loop {
            match self.driver().reserve(slot_bytes * slots as u64, page_bytes) {
                Ok(base) => {
                    if self.shared.directory.add(Arena::new(base, slot_bytes, slots)) {
                        self.mapper.next_arena_slots = slots * 2;
                        return Ok(());
                    }
                    // Arenas double in size, so only small pieces of addresses can come to this.
                    self.driver().address_free(base, slot_bytes * slots as u64)?;
                    return Err(AllocError::AddressesFragmented { limit: MAX_ARENAS });
                }
                Err(error) if error.kind == DriverErrorKind::OutOfMemory && slots > 1 => slots /= 2,
                Err(error) if error.kind == DriverErrorKind::OutOfMemory && slot_bytes > page_bytes * 32 => {
                    slot_bytes /= 2;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}
