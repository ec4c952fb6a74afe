//! A request for memory, as the slow path carries it.

use super::kind::RegionKind;

/// What a caller asked for.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Bytes that the caller asked for.
    pub requested: u64,
    /// Bytes to allocate: `requested`, rounded up to whole granules (whole pages, for a raw range).
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
