//! A request for memory, as the slow path carries it.

use super::kind::RegionKind;
use crate::heap::GRANULE;
use crate::units::round_up;

/// The block that a number of requested bytes takes.
#[derive(Clone, Copy, Debug)]
pub struct Rounded {
    /// Bytes of the block: whole granules.
    pub size: u64,
    /// Bytes of it that were not requested. Rounding adds less than a granule; a request of 0 bytes wastes a whole one.
    pub waste: u16,
}

impl Rounded {
    /// Rounds `requested` bytes up. `None` where there is no such number.
    #[inline]
    pub fn new(requested: u64) -> Option<Self> {
        let size = round_up(requested.max(1), GRANULE)?;
        Some(Self { size, waste: (size - requested) as u16 })
    }
}

/// A request of a caller.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Bytes that the caller asked for.
    pub requested: u64,
    /// Bytes to allocate: `requested`, rounded up to whole granules (whole pages, for a growable range).
    pub size: u64,
    /// The address is a multiple of this many bytes.
    pub alignment: u64,
    /// The kind of region that a block of this size belongs to.
    pub kind: RegionKind,
}

impl Request {
    /// A request for `requested` bytes, which `size` bytes serve.
    pub fn new(requested: u64, size: u64, alignment: u64) -> Self {
        Self { requested, size, alignment, kind: RegionKind::of(size) }
    }

    /// Bytes of the block that the caller did not ask for. Rounding to granules adds at most one granule.
    pub fn waste(&self) -> u16 {
        let waste = self.size - self.requested;
        debug_assert!(waste <= u64::from(u16::MAX), "a block wastes {waste} bytes, more than its record holds");
        waste as u16
    }
}
