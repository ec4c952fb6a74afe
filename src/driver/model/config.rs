//! What a model device is like, and what its calls cost.

#[cfg(doc)]
use super::ModelDriver;
use crate::units::{GIB, MIB};

/// What a [`ModelDriver`] is like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelConfig {
    /// Physical bytes of the device.
    pub capacity_bytes: u64,
    /// The page size in bytes, a power of two.
    pub granularity: u64,
    /// What each call costs the host.
    pub costs: CostTable,
    /// How many ops after it was queued work completes; 0: at once.
    pub lag_ops: u64,
    /// Physical bytes that other processes hold at first; see [`ModelDriver::set_external`].
    pub external_bytes: u64,
    /// How many mappings may have access at a time.
    pub max_mappings: usize,
    /// Addresses are below `1 << address_bits`.
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

/// What driver calls cost the calling thread, in microseconds. Calls not named here cost nothing.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct CostTable {
    /// `create`, whatever the size, successful or not.
    pub create: f64,
    /// `create`, for each MiB.
    pub create_per_mib: f64,
    /// `map`.
    pub map: f64,
    /// `set_access`, for each mapping in the range.
    pub set_access_per_chunk: f64,
    /// `unmap`, for each mapping in the range.
    pub unmap_per_chunk: f64,
    /// `release`.
    pub release: f64,
    /// `reserve`.
    pub reserve: f64,
    /// `address_free`.
    pub address_free: f64,
    /// `event_record`.
    pub event_record: f64,
    /// `event_query`.
    pub event_query: f64,
}

impl Default for CostTable {
    fn default() -> Self {
        Self {
            create: 30.0,
            create_per_mib: 1.9,
            map: 1.5,
            set_access_per_chunk: 40.0,
            unmap_per_chunk: 30.0,
            release: 30.0,
            reserve: 5.0,
            address_free: 2.0,
            event_record: 1.0,
            event_query: 0.5,
        }
    }
}
