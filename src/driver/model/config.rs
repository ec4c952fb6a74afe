//! Settings of a model device, and the cost of its calls.

#[cfg(doc)]
use super::ModelDriver;
use crate::units::{GIB, MIB};

/// Settings of a [`ModelDriver`]. Fields may be added in any release: write `..ModelConfig::default()`.
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
///
/// Fields may be added in any release: write `..CostTable::default()`.
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
    /// One `host_alloc`, for each MiB. Assumed: not taken from a document, and not measured.
    pub host_alloc_per_mib: f64,
    /// One copy between the device and the host, for each MiB: the host waits for them. Assumed as well.
    pub copy_per_mib: f64,
}

impl CostTable {
    /// Returns the costs on an NVIDIA H100 80GB HBM3 with driver 580.159.04, as measured in November 2026.
    ///
    /// `gapless probe --only calls_by_size` has the times of the calls for one chunk of 2 MiB, 8 MiB and so on, while the device
    /// does nothing else. The results are in `benches/results/nvidia-h100-80gb-hbm3`. For each call, the two parts are those of
    /// the line that fits the five sizes from 2 MiB to 512 MiB best, rounded: the sum of the squares of the relative deviations
    /// is least. The largest deviation from a measured time:
    ///
    /// | call | fixed part | for each MiB | largest deviation | at |
    /// |---|--:|--:|--:|--:|
    /// | `create` | 11.4 us | 0.061 us | 22 % | 128 MiB |
    /// | `map` | 7.8 us | 0.002 us | 6 % | 2 MiB |
    /// | `set_access` | 30 us | 0.073 us | 29 % | 32 MiB |
    /// | `unmap` | 27 us | 0.028 us | 18 % | 32 MiB |
    /// | `release` | 12.9 us | 0.6 us | 20 % | 32 MiB |
    ///
    /// What the table does not say:
    ///
    /// - `reserve` and `address_free` are those of 4 TiB (`--only reserve_4_tib`). For 2 MiB to 512 MiB they took 1 to 5 us.
    /// - The calls about events have not been measured. They cost what they do in the default table.
    /// - Many chunks of 2 MiB at adjacent addresses (`--only ranged_access`) took less for each: `map` 5 us, `set_access` 19 to
    ///   21 us, `unmap` 18 to 20 us. One call over all of them was at most 3 % cheaper than one for each.
    /// - Above 512 MiB the lines do not hold. At 2 GiB, `unmap` took 60 us where they say 84, and `create` 206 where they say 136.
    /// - Beside a running kernel (`--only busy`), the five calls took 4 to 6 times as long.
    #[must_use]
    pub const fn h100() -> Self {
        Self {
            create: 11.4,
            create_per_mib: 0.061,
            map: 7.8,
            map_per_mib: 0.002,
            set_access_per_chunk: 30.0,
            set_access_per_mib: 0.073,
            unmap_per_chunk: 27.0,
            unmap_per_mib: 0.028,
            release: 12.9,
            release_per_mib: 0.6,
            reserve: 7.4,
            address_free: 2.9,
            event_record: 1.0,
            event_query: 0.5,
            host_alloc_per_mib: 250.0,
            copy_per_mib: 20.0,
        }
    }

    /// Returns the name of the table: `literature` for the default one, `h100` for that of [`h100`](Self::h100), and `custom`
    /// for every other.
    #[must_use]
    pub fn name(&self) -> &'static str {
        if *self == Self::default() {
            "literature"
        } else if *self == Self::h100() {
            "h100"
        } else {
            "custom"
        }
    }
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
            host_alloc_per_mib: 250.0,
            copy_per_mib: 20.0,
        }
    }
}
