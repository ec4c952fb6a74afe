//! Regions of streams, and the arenas of addresses that they are cut from.

use super::super::error::AllocError;
use super::super::geometry::Geometry;
use super::super::kind::RegionKind;
use super::super::request::Request;
use super::super::streams::directory::{Arena, MAX_ARENAS, Owner};
use super::super::streams::region::Region;
use super::super::streams::state::Stream;
use super::SlowPath;
use crate::driver::{Driver, MemoryDriver};
use crate::heap::Heap;
use crate::segment::Segment;

/// Number of slots of the first arena: enough for two streams.
const FIRST_ARENA_SLOTS: usize = 4;
/// Number of slots of an arena whose slots are not of the full size yet: enough for one stream.
const GROWING_ARENA_SLOTS: usize = 2;

/// Number and bytes of the slots of an allocator's first arena.
pub fn first_arena(geometry: &Geometry) -> (usize, u64) {
    let growing = geometry.first_slot_bytes < geometry.slot_bytes;
    (if growing { GROWING_ARENA_SLOTS } else { FIRST_ARENA_SLOTS }, geometry.first_slot_bytes)
}

impl<D: Driver> SlowPath<'_, D> {
    /// Makes sure that the stream has a region of the request's kind.
    pub fn ensure_region(&mut self, stream: &Stream, request: &Request) -> Result<(), AllocError> {
        if stream.lock().regions.of_kind(request.kind).next().is_some() {
            return Ok(());
        }
        match self.add_region(stream, request.kind, self.addresses_for(request)) {
            // Without so many addresses the request may be refused with a report, and smaller ones served.
            Err(AllocError::Driver(error)) if !error.kind.is_sticky() => self.add_region(stream, request.kind, 0),
            added => added,
        }
    }

    /// Adds a region where those of the request's kind have no run of addresses for it. Returns false when another region
    /// would not help, since one is untouched or none is large enough, and when the driver has no addresses left.
    pub fn widen(&mut self, stream: &Stream, request: &Request) -> Result<bool, AllocError> {
        let needed = self.addresses_for(request);
        let untouched = |region: &Region| {
            let segment = &self.mapper.segments[region.segment];
            segment.table.len() == 0 && segment.pages.bytes(segment.page_bytes) >= needed
        };
        if needed > self.shared.geometry.slot_bytes
            || stream.lock().regions.of_kind(request.kind).any(|(_, region)| untouched(region))
        {
            return Ok(false);
        }
        match self.add_region(stream, request.kind, needed) {
            Ok(()) => Ok(true),
            Err(AllocError::AddressesFragmented { .. }) => Ok(false),
            Err(AllocError::Driver(error)) if !error.kind.is_sticky() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Bytes of addresses that a request needs at worst: a slot starts at a page, wherever that is.
    fn addresses_for(&self, request: &Request) -> u64 {
        request.size.saturating_add(request.alignment.saturating_sub(self.page_bytes()))
    }

    /// Gives the stream another region of at least `needed` bytes, as far as slots are as large, reserving addresses if need
    /// be.
    fn add_region(&mut self, stream: &Stream, kind: RegionKind, needed: u64) -> Result<(), AllocError> {
        let needed = needed.min(self.shared.geometry.slot_bytes);
        let owner = Owner { stream: stream.index, region: stream.lock().regions.next_id(kind) };
        let directory = &self.shared.directory;
        let (base, bytes) = loop {
            let mut fitting = directory.arenas().filter(|arena| arena.slot_bytes() >= needed);
            let slot = fitting.find_map(|arena| Some((arena.take_slot(owner)?, arena.slot_bytes())));
            match slot {
                Some(slot) => break slot,
                None => self.add_arena(needed)?,
            }
        };
        let page_bytes = self.page_bytes();
        let segment = self.mapper.segments.len();
        self.mapper.segments.push(Segment::new(base, bytes, page_bytes));
        stream.lock().regions.add(Region { kind, heap: Heap::new(bytes), base, segment, page_bytes });
        Ok(())
    }

    /// Reserves another arena with slots of at least `needed` bytes: with larger slots or more of them than the last, or fewer
    /// or smaller ones where the driver refuses, whatever it says, unless the device is lost.
    fn add_arena(&mut self, needed: u64) -> Result<(), AllocError> {
        let page_bytes = self.page_bytes();
        let least = needed.next_power_of_two().max(page_bytes * 32);
        let (mut slots, next_bytes) = self.mapper.next_arena;
        let mut slot_bytes = next_bytes.max(needed.next_power_of_two());
        loop {
            match self.driver().reserve(slot_bytes * slots as u64, page_bytes) {
                Ok(base) => {
                    if self.shared.directory.add(Arena::new(base, slot_bytes, slots)) {
                        self.mapper.next_arena = self.arena_after(slots, slot_bytes);
                        return Ok(());
                    }
                    // Arenas double in size, so only small pieces of addresses can come to this.
                    self.driver().address_free(base, slot_bytes * slots as u64)?;
                    return Err(AllocError::AddressesFragmented { limit: MAX_ARENAS });
                }
                Err(error) if !error.kind.is_sticky() && slots > 1 => slots /= 2,
                Err(error) if !error.kind.is_sticky() && slot_bytes > least => slot_bytes /= 2,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Number and bytes of the slots of the arena after one of `slots` slots of `slot_bytes`.
    fn arena_after(&self, slots: usize, slot_bytes: u64) -> (usize, u64) {
        let (_, next_bytes) = self.mapper.next_arena;
        let full = self.shared.geometry.slot_bytes;
        if next_bytes < full { (GROWING_ARENA_SLOTS, (slot_bytes * 2).min(full)) } else { (slots * 2, full) }
    }
}
