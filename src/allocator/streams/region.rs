//! Regions: heaps over slots of addresses. A stream has one for each kind of block, made on first use, and further ones
//! where the addresses of those are cut up by live blocks.

use super::super::kind::RegionKind;
use super::live_bounds::LiveBounds;
use super::roomy::Roomy;
use crate::heap::{BlockState, GRANULE, Heap};
use crate::pages::PageRange;
use crate::units::DeviceAddr;

/// The number of a region among its stream's: the first of each kind have the numbers of their kinds, further regions come
/// after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(u32);

impl RegionId {
    /// The first region of a kind.
    #[inline]
    pub const fn first(kind: RegionKind) -> Self {
        Self(kind as u32)
    }
}

/// A heap over one slot of addresses. Its fields are in the order of their use, as those of a stream's state are.
#[derive(Debug)]
#[repr(C)]
pub struct Region {
    /// The kind of its blocks.
    pub kind: RegionKind,
    /// How large the live blocks are at most.
    pub bounds: LiveBounds,
    /// Address of its first byte.
    pub base: DeviceAddr,
    /// Number of its segment.
    pub segment: usize,
    /// The heap that knows which bytes are free.
    pub heap: Heap,
    /// Bytes of a page.
    pub page_bytes: u64,
}

impl Region {
    /// Takes a free block of `size` bytes; `waste` of them were not requested.
    #[inline]
    pub fn take(&mut self, size: u64, waste: u16, alignment: u64) -> Option<DeviceAddr> {
        let offset = match alignment {
            GRANULE => self.heap.alloc(size, waste)?,
            _ => self.heap.alloc_aligned(size, waste, alignment, self.base.0)?,
        };
        self.bounds.note(offset, size - u64::from(waste));
        Some(self.base.offset(offset))
    }

    /// Makes whole pages one block in state `to`, as [`Heap::set`] does. `first` is the offset of the block that the first
    /// page starts in.
    pub fn set_pages(&mut self, first: u64, pages: PageRange, to: BlockState) {
        let bytes = pages.bytes(self.page_bytes);
        self.heap.set(first, bytes.start, bytes.end - bytes.start, to, 0);
    }
}

/// The regions of one stream.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Regions {
    first: [Option<Region>; RegionKind::ALL.len()],
    further: Vec<Region>,
    /// Which further regions have room, by kind. Every mutable access to one is noted there.
    roomy: [Roomy; RegionKind::ALL.len()],
}

impl Regions {
    /// A region, if it was made.
    #[inline]
    pub fn get(&self, id: RegionId) -> Option<&Region> {
        match self.first.get(id.0 as usize) {
            Some(first) => first.as_ref(),
            None => self.further.get(id.0 as usize - self.first.len()),
        }
    }

    /// A region, if it was made.
    #[inline]
    pub fn get_mut(&mut self, id: RegionId) -> Option<&mut Region> {
        if (id.0 as usize) < self.first.len() { self.first[id.0 as usize].as_mut() } else { self.further_mut(id) }
    }

    /// The first region of a kind, if it was made.
    #[inline]
    pub fn first_mut(&mut self, kind: RegionKind) -> Option<&mut Region> {
        self.first[kind as usize].as_mut()
    }

    #[inline(never)]
    fn further_mut(&mut self, id: RegionId) -> Option<&mut Region> {
        let number = id.0 as usize - self.first.len();
        let region = self.further.get_mut(number)?;
        self.roomy[region.kind as usize].touch(number);
        Some(region)
    }

    /// Whether there are further regions.
    #[inline]
    pub fn has_further(&self) -> bool {
        !self.further.is_empty()
    }

    /// The first further region of a kind, after the one with number `after` if that is given, with a free block of `size`
    /// bytes or more.
    pub fn with_room(&mut self, kind: RegionKind, size: u64, after: Option<RegionId>) -> Option<RegionId> {
        let first = self.first.len();
        let largest = largest_of(&self.further, kind);
        let roomy = &mut self.roomy[kind as usize];
        roomy.refresh(largest);
        let from = after.map_or(0, |after| after.0 as usize + 1 - first);
        let number = roomy.first_from(from, size)?;
        Some(RegionId(u32::try_from(first + number).expect("fewer regions than pages")))
    }

    /// Restarts the 32-bit epochs of the blocks, as [`Heap::renumber`] does.
    pub fn renumber(&mut self, by: u32) {
        // Sizes stay as they are, so nothing is noted for the search.
        for region in self.first.iter_mut().flatten().chain(&mut self.further) {
            region.heap.renumber(by);
        }
    }

    /// Those there are.
    pub fn iter(&self) -> impl Iterator<Item = (RegionId, &Region)> {
        let ids = (0..).map(RegionId);
        ids.zip(self.first.iter().map(Option::as_ref).chain(self.further.iter().map(Some)))
            .filter_map(|(id, region)| Some((id, region?)))
    }

    /// The region `last`, or the last one, and those before it, in descending order.
    pub fn down_from(&self, last: Option<RegionId>) -> impl Iterator<Item = (RegionId, &Region)> {
        let count = last.map_or(self.first.len() + self.further.len(), |last| last.0 as usize + 1);
        let numbers = 0..u32::try_from(count).expect("fewer regions than pages");
        numbers.rev().map(RegionId).filter_map(|id| Some((id, self.get(id)?)))
    }

    /// Those of a kind, the first first.
    pub fn of_kind(&self, kind: RegionKind) -> impl Iterator<Item = (RegionId, &Region)> {
        self.iter().filter(move |(_, region)| region.kind == kind)
    }

    /// The numbers of those of a kind, the first first.
    pub fn ids_of(&self, kind: RegionKind) -> impl Iterator<Item = RegionId> {
        self.of_kind(kind).map(|(id, _)| id)
    }

    /// The number that the next region of a kind gets.
    pub fn next_id(&self, kind: RegionKind) -> RegionId {
        if self.first[kind as usize].is_none() {
            return RegionId::first(kind);
        }
        RegionId(u32::try_from(self.first.len() + self.further.len()).expect("fewer regions than pages"))
    }

    /// Adds a region under [`next_id`](Self::next_id) of its kind.
    pub fn add(&mut self, region: Region) {
        match &mut self.first[region.kind as usize] {
            none @ None => *none = Some(region),
            Some(_) => {
                self.roomy.iter_mut().for_each(|roomy| roomy.touch(self.further.len()));
                self.further.push(region);
            }
        }
    }

    /// Asserts I1 of the search for further regions, and of that for the largest blocks.
    ///
    /// # Panics
    /// Panics if the invariant does not hold.
    pub fn check(&self) {
        for kind in RegionKind::ALL {
            self.roomy[kind as usize].check(self.further.len(), largest_of(&self.further, kind));
        }
        self.iter().for_each(|(_, region)| region.bounds.check(region.heap.blocks()));
    }
}

/// The size of the largest free block of a further region, if it is of this kind.
fn largest_of(further: &[Region], kind: RegionKind) -> impl Fn(usize) -> u64 {
    move |number| match &further[number] {
        region if region.kind == kind => region.heap.largest_free().map_or(0, |block| block.size),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Break, assert_noticed};

    const BYTES: u64 = 1 << 20;

    /// A region of large blocks and three further ones, each with one free block: of 2, 1, 3 and 4 parts in 4.
    fn regions() -> Regions {
        let mut regions = Regions::default();
        for (number, parts) in [2, 1, 3, 4].into_iter().enumerate() {
            let mut heap = Heap::new(BYTES);
            heap.set(0, 0, parts * BYTES / 4, BlockState::Free, 0);
            let base = DeviceAddr(BYTES * number as u64);
            let bounds = LiveBounds::new(RegionKind::Large);
            regions.add(Region { kind: RegionKind::Large, heap, bounds, base, segment: number, page_bytes: BYTES });
        }
        regions
    }

    #[test]
    fn each_further_region_with_room_is_found_once() {
        let mut regions = regions();
        let mut found = |size| {
            let mut found = Vec::new();
            while let Some(id) = regions.with_room(RegionKind::Large, size, found.last().copied()) {
                assert!(found.len() < 3, "{id:?} after {found:?}");
                found.push(id);
            }
            found
        };
        let all = found(1);
        assert_eq!((all.len(), all[0]), (3, RegionId(RegionKind::ALL.len() as u32)));
        assert_eq!((found(BYTES / 2), found(BYTES)), (all[1..].to_vec(), all[2..].to_vec()));
        assert_eq!(regions.with_room(RegionKind::Small, 1, None), None);
        regions.check();
    }

    #[test]
    fn check_names_what_is_broken() {
        let breaks: &[Break<Regions>] = &[("I1: the largest free block of further region 1", |regions| {
            regions.further[1].heap.alloc(BYTES / 2, 0).unwrap();
        })];
        let searched = || {
            let mut regions = regions();
            regions.with_room(RegionKind::Large, 1, None);
            regions
        };
        assert_noticed(searched, Regions::check, breaks);
    }
}
