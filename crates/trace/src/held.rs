//! Blocks that an allocator of a replay holds.

use gapless::units::DeviceAddr;

/// A block with memory behind it, live or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldBlock {
    /// Its address.
    pub addr: DeviceAddr,
    /// Its size in bytes, rounding included.
    pub bytes: u64,
    /// Whether it is allocated.
    pub live: bool,
}
