//! Geometry: the settings that hold for an allocator's life.

use super::rules::Rules;
use crate::physical::ChunkPolicy;

/// Settings that hold for an allocator's life, in the form that the parts use.
#[derive(Clone, Debug)]
pub struct Geometry {
    /// Bytes of a page, a power of two.
    pub page_bytes: u64,
    /// Most bytes of addresses for each region of each stream: a power of two.
    pub slot_bytes: u64,
    /// Number and bytes of the slots of the first reservation; the bytes are a power of two, at most `slot_bytes`.
    pub first_slots: (usize, u64),
    /// Memory of the device in bytes, as far as it is known: a budget above it allows no more.
    pub device_bytes: u64,
    /// Held bytes over the peak of live bytes above which chunks are remapped rather than created.
    pub slack: f64,
    /// How large new chunks are.
    pub chunk_policy: ChunkPolicy,
    /// Number of mappings above which stale ones are removed.
    pub mapping_limit: usize,
    /// Rules for mapped memory and for the placement of blocks.
    pub rules: Rules,
    /// Epoch of a stream's blocks at which they are renumbered.
    pub epoch_limit: u32,
    /// Most bytes of a slot that backups pass through.
    pub copy_slot_bytes: u64,
}
