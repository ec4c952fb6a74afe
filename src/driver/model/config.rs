//! Settings of a model device, and the cost of its calls.

#[cfg(doc)]
use super::ModelDriver;
use crate::units::{GIB, MIB};

/// Settings of a [`ModelDriver`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelConfig {
    /// Physical bytes of the device.
    pub capacity_bytes: u64,
    /// The page size in bytes, a power of two.
    pub granularity: u64,
    /// The host time that each call costs.
    pub costs: CostTable,
    /// The number of ops after which queued work completes; 0 for at once.
    pub lag_ops: u64,
    /// Physical bytes that other processes hold at the start; see [`ModelDriver::set_external`].
    pub external_bytes: u64,
    /// The most mappings that may have access at a time.
    pub max_mappings: usize,
    /// The width of addresses: all of them are below `1 << address_bits`.
    pub address_bits: u32,
}

impl Default for ModelConfig {
    fn default() -> Self {
        Self {
            capacity_bytes: 80 * GIB,
            granularity: 2 * MIB,
            costs: CostTable::default(),
            lag_ops: 0,
            external_bytes: 0,
            max_mappings: 520_000,
            address_bits: 47,
        }
    }
}

/// The time that driver calls take on the calling thread, in microseconds. Calls not named here take none.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct CostTable {
    /// The fixed part of `create`, successful or not.
    pub create: f64,
    /// The part of `create` that grows with the size, for each MiB.
    pub create_per_mib: f64,
    /// The fixed part of `map`.
    pub map: f64,
    /// The part of `map` that grows with the size, for each MiB.
    pub map_per_mib: f64,
    /// The fixed part of `set_access`, for each mapping in the range.
    pub set_access_per_chunk: f64,
    /// The part of `set_access` that grows with the size, for each MiB in the range.
    pub set_access_per_mib: f64,
    /// The fixed part of `unmap`, for each mapping in the range.
    pub unmap_per_chunk: f64,
    /// The part of `unmap` that grows with the size, for each MiB in the range.
    pub unmap_per_mib: f64,
    /// The fixed part of `release`.
    pub release: f64,
    /// The part of `release` that grows with the size, for each MiB. It is that of freeing the memory: if the chunk is still
    /// mapped, the `unmap` of its last mapping takes it.
    pub release_per_mib: f64,
    /// One `reserve`.
    pub reserve: f64,
    /// One `address_free`.
    pub address_free: f64,
    /// One `event_record`.
    pub event_record: f64,
    /// One `event_query`.
    pub event_query: f64,
}

/// The costs that the literature names. They have not been measured.
impl Default for CostTable {
    fn default() -> Self {
        Self {
            create: 30.0,
            create_per_mib: 1.9,
            map: 1.5,
            map_per_mib: 0.0,
            set_access_per_chunk: 40.0,
            set_access_per_mib: 0.0,
            unmap_per_chunk: 30.0,
            unmap_per_mib: 0.0,
            release: 30.0,
            release_per_mib: 0.0,
            reserve: 5.0,
            address_free: 2.0,
            event_record: 1.0,
            event_query: 0.5,
        }
    }
}
