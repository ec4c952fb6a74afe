//! Mapper: what only the slow path touches. One per allocator, behind one lock, so that at most one thread talks to the driver
//! about mappings: the driver serialises such calls anyway.

use super::super::geometry::Geometry;
use super::super::mappings::Mappings;
use super::sleep::Batches;
use crate::pages::PageCount;
use crate::physical::{ChunkId, ChunkSizes};
use crate::units::DeviceAddr;
use std::ops::{Deref, DerefMut};

/// The mappings, which it stands for, and what the slow path needs to know besides.
#[derive(Debug)]
pub struct Mapper {
    mappings: Mappings,
    sizes: ChunkSizes,
    left_behind: Vec<(DeviceAddr, u64)>,
    next_arena: (usize, u64),
    asleep: Batches,
    unreleased: Vec<ChunkId>,
}

impl Mapper {
    /// Nothing is held, nothing is mapped.
    pub fn new(geometry: &Geometry, budget_bytes: u64) -> Self {
        Self {
            mappings: Mappings::new(geometry, budget_bytes),
            sizes: ChunkSizes::new(geometry.chunk_policy, geometry.page_bytes),
            left_behind: Vec::new(),
            next_arena: geometry.first_slots,
            asleep: Batches::default(),
            unreleased: Vec::new(),
        }
    }

    /// How large new chunks are.
    pub fn sizes(&self) -> &ChunkSizes {
        &self.sizes
    }

    /// Reservations of dropped ranges that could not be returned to the driver yet: address and bytes.
    pub fn left_behind(&self) -> &[(DeviceAddr, u64)] {
        &self.left_behind
    }

    /// Notes a reservation that cannot be returned now.
    pub fn leave_behind(&mut self, addr: DeviceAddr, bytes: u64) {
        self.left_behind.push((addr, bytes));
    }

    /// Forgets a reservation that has been returned after all.
    pub fn forget_left_behind(&mut self, gone: (DeviceAddr, u64)) {
        self.left_behind.retain(|other| *other != gone);
    }

    /// Pages of the exposed chunks that the driver refused to take back. They are withheld.
    pub fn unreleased_pages(&self) -> PageCount {
        self.unreleased.iter().map(|chunk| self.chunks().get(*chunk).pages).sum()
    }

    /// These chunks.
    pub fn unreleased_mut(&mut self) -> &mut Vec<ChunkId> {
        &mut self.unreleased
    }

    /// What is asleep.
    pub fn asleep(&self) -> &Batches {
        &self.asleep
    }

    /// What is asleep, to be changed.
    pub fn asleep_mut(&mut self) -> &mut Batches {
        &mut self.asleep
    }

    /// Number and bytes of the slots of the next arena for streams without regions.
    pub fn next_arena(&self) -> (usize, u64) {
        self.next_arena
    }

    /// Decides on the next arena.
    pub fn set_next_arena(&mut self, slots: usize, bytes: u64) {
        self.next_arena = (slots, bytes);
    }
}

impl Deref for Mapper {
    type Target = Mappings;

    fn deref(&self) -> &Mappings {
        &self.mappings
    }
}

impl DerefMut for Mapper {
    fn deref_mut(&mut self) -> &mut Mappings {
        &mut self.mappings
    }
}
