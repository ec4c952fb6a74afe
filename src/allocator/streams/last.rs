//! The last block that a stream handed out, so that freeing it and asking for the same again takes no search.
//!
//! A best fit is a function of the free blocks. If nothing has changed since a block was taken but that it was freed, the same
//! request takes the same block again. So a free of it is put off: the heap has the block as live still, and the next request of
//! its size gets it without a look at the heap. Whoever else locks the stream finds the block free, as if it had been so from the
//! start: `StreamState::settle_last` comes first.
//!
//! - I1  while the heap has a block as live that the last one says is free, nobody sees the state but the hot path.

use super::super::kind::RegionKind;
use super::region::RegionId;
use crate::units::DeviceAddr;

/// The last block that was handed out, since when its region has not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct LastBlock {
    /// Its address; that of no block where something has changed.
    addr: DeviceAddr,
    /// Bytes of it.
    size: u64,
    /// The region that it is in.
    region: RegionId,
    /// Those of its bytes that were not requested.
    waste: u16,
    /// Whether it was freed since, which the heap does not know.
    is_free: bool,
}

impl LastBlock {
    /// Where nothing is known of the last block.
    pub const NONE: Self = Self {
        addr: DeviceAddr(u64::MAX),
        size: 0,
        region: RegionId::first(RegionKind::Small),
        waste: 0,
        is_free: false,
    };

    /// A block of `size` bytes that was just handed out, `waste` of which were not requested.
    #[inline]
    pub fn taken(addr: DeviceAddr, size: u64, waste: u16, region: RegionId) -> Self {
        Self { addr, size, region, waste, is_free: false }
    }

    /// Forgets it, once something is about to change. It is not free.
    #[inline]
    pub fn forget(&mut self) {
        self.addr = Self::NONE.addr;
    }

    /// Whether it was freed, and the heap has it as live.
    #[inline]
    pub fn is_free(&self) -> bool {
        self.is_free
    }

    /// Hands it out again, if it was freed and is what a request for so many bytes takes.
    #[inline]
    pub fn take_again(&mut self, size: u64, waste: u16) -> Option<DeviceAddr> {
        let fits = self.is_free && (self.size, self.waste) == (size, waste);
        self.is_free &= !fits;
        fits.then_some(self.addr)
    }

    /// Notes that the block at `addr` is freed, if that is the last one and was not freed yet. Returns the bytes that were
    /// requested.
    #[inline]
    pub fn free(&mut self, addr: DeviceAddr) -> Option<u64> {
        let is_it = self.addr == addr && !self.is_free;
        self.is_free |= is_it;
        is_it.then_some(self.size - u64::from(self.waste))
    }

    /// The region and the address of the block.
    pub fn place(&self) -> (RegionId, DeviceAddr) {
        (self.region, self.addr)
    }
}
