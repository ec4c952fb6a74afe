//! A mapping in the driver's terms.

use crate::driver::ChunkHandle;
use crate::units::DeviceAddr;

/// One mapping, made or to make, as the driver sees it.
#[derive(Clone, Copy, Debug)]
pub struct Mapping {
    /// Address of the mapping's first byte.
    pub addr: DeviceAddr,
    /// Size of the mapping in bytes, which is the size of the chunk.
    pub bytes: u64,
    /// The chunk to map.
    pub chunk: ChunkHandle,
}
