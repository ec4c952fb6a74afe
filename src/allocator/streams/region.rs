//! Regions: heaps over slots of addresses. A stream has one for each kind of block, made on first use, and further ones
//! where the addresses of those are cut up by live blocks.

use super::super::kind::RegionKind;
use crate::heap::{BlockState, Heap};
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

/// A heap over one slot of addresses.
#[derive(Debug)]
pub struct Region {
    /// The kind of its blocks.
    pub kind: RegionKind,
    /// Which bytes are free.
    pub heap: Heap,
    /// Address of its first byte.
    pub base: DeviceAddr,
    /// Number of its segment.
    pub segment: usize,
    /// Bytes of a page.
    pub page_bytes: u64,
}

impl Region {
    /// Makes whole pages one block in state `to`, as [`Heap::set`] does. `first` is the offset of the block that the first
    /// page starts in.
    pub fn set_pages(&mut self, first: u64, pages: PageRange, to: BlockState) {
        let bytes = pages.bytes(self.page_bytes);
        self.heap.set(first, bytes.start, bytes.end - bytes.start, to, 0);
    }
}

/// The regions of one stream.
#[derive(Debug, Default)]
pub struct Regions {
    first: [Option<Region>; RegionKind::ALL.len()],
    further: Vec<Region>,
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
        let first = self.first.len();
        match self.first.get_mut(id.0 as usize) {
            Some(first) => first.as_mut(),
            None => self.further.get_mut(id.0 as usize - first),
        }
    }

    /// Those there are.
    pub fn iter(&self) -> impl Iterator<Item = (RegionId, &Region)> {
        let ids = (0..).map(RegionId);
        ids.zip(self.first.iter().map(Option::as_ref).chain(self.further.iter().map(Some)))
            .filter_map(|(id, region)| Some((id, region?)))
    }

    /// Those there are.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Region> {
        self.first.iter_mut().flatten().chain(&mut self.further)
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
            Some(_) => self.further.push(region),
        }
    }
}
