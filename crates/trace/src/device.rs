//! The device that a trace is replayed on.

use crate::Trace;
use gapless::driver::cuda::CudaDriver;
use gapless::driver::{
    ChunkHandle, CostTable, DriverError, DriverResult, HostConfig, HostDriver, MemoryDriver, ModelConfig, ModelDriver,
};
use gapless::units::{ByteSize, MIB, round_down, round_up};
use std::sync::Arc;

/// The memory and the speed of the device that a trace is replayed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    /// Memory that the allocator may hold, in bytes.
    pub capacity_bytes: u64,
    /// Further memory of the device, held by others, in bytes.
    pub external_bytes: u64,
    /// Number of ops after which work queued on a stream completes.
    pub lag_ops: u64,
}

impl Device {
    /// Memory of the largest device that policies are tried on, in bytes. PyTorch's expandable segments have a handle for every 20
    /// MiB, so a bound keeps replays short.
    pub const MOST_BYTES: u64 = 4 << 40;

    /// Creates a device with `capacity_bytes` for the allocator alone, on which work completes immediately.
    #[must_use]
    pub const fn of(capacity_bytes: u64) -> Self {
        Self { capacity_bytes, external_bytes: 0, lag_ops: 0 }
    }

    /// Returns the device that the trace's header describes: its capacity minus the memory that others held or that the driver
    /// could not provide, and at most the budget of the recorded allocator. If the header has no capacity, it is
    /// `DEFAULT_CAPACITY_PERCENT` percent of the peak of bytes that are live and awake, and at least what the recorded allocator
    /// held, rounded up to whole pages.
    ///
    /// # Errors
    /// Returns [`DeviceError`] if according to the header others hold more memory than the device has, or if the trace
    /// is too large for any device.
    pub fn for_trace(trace: &Trace) -> Result<Self, DeviceError> {
        let header = trace.header();
        let Some(total) = header.capacity_bytes else {
            let peak = trace.peak_awake_bytes();
            let held = trace.history().held_at_most_bytes.unwrap_or(0);
            return peak
                .checked_add(peak.div_ceil(100).saturating_mul(DEFAULT_CAPACITY_PERCENT - 100))
                .and_then(|bytes| round_up(bytes.max(held).max(1), PAGE_BYTES))
                .map(Self::of)
                .ok_or(DeviceError::TooLarge { peak_live_bytes: peak });
        };
        let external = header.external_bytes.unwrap_or(0);
        let unusable = header.driver_unusable_bytes.unwrap_or(0);
        let others = external.checked_add(unusable);
        let capacity = others.and_then(|others| total.checked_sub(others));
        match (capacity, others) {
            (Some(capacity), Some(external_bytes)) => {
                let capacity_bytes = capacity.min(header.budget_bytes.unwrap_or(u64::MAX));
                Ok(Self { capacity_bytes, external_bytes, lag_ops: 0 })
            }
            _ => Err(DeviceError::NothingLeft { total, external, unusable }),
        }
    }

    /// Creates a simulated device with these properties, whose calls cost what the default table says.
    #[must_use]
    pub fn model(&self) -> ModelDriver {
        self.model_with_costs(CostTable::default())
    }

    /// Creates a simulated device with these properties and another table of costs.
    #[must_use]
    pub fn model_with_costs(&self, costs: CostTable) -> ModelDriver {
        ModelDriver::new(ModelConfig {
            costs,
            capacity_bytes: self.capacity_bytes.saturating_add(self.external_bytes),
            external_bytes: self.external_bytes,
            lag_ops: self.lag_ops,
            granularity: PAGE_BYTES,
            ..ModelConfig::default()
        })
    }

    /// Creates a device with these properties, except for the lag, in this machine's own memory. Its streams are
    /// threads. Physical memory is used only where work writes.
    ///
    /// # Errors
    /// Returns an error if the kernel cannot create an in-memory file or a thread.
    pub fn host(&self) -> DriverResult<HostDriver> {
        HostDriver::new(HostConfig {
            capacity_bytes: self.capacity_bytes.saturating_add(self.external_bytes),
            external_bytes: self.external_bytes,
            granularity: PAGE_BYTES,
            ..HostConfig::default()
        })
    }
}

/// Memory that makes a real GPU behave like a device with less memory. It is released when the value is dropped.
#[derive(Debug)]
pub struct Ballast {
    driver: Arc<CudaDriver>,
    chunk: Option<ChunkHandle>,
}

impl Ballast {
    /// Allocates the GPU's free memory except for `capacity_bytes`, plus less than a page.
    ///
    /// # Errors
    /// Returns [`BallastError::TooSmall`] if less than `capacity_bytes` is free, and otherwise the driver's error.
    pub fn leave(driver: &Arc<CudaDriver>, capacity_bytes: u64) -> Result<Self, BallastError> {
        let free = driver.memory_info()?.free;
        if free < capacity_bytes {
            return Err(BallastError::TooSmall { free, wanted: capacity_bytes });
        }
        let rest = free - capacity_bytes;
        let bytes = round_down(rest, driver.granularity());
        let chunk = if bytes == 0 { None } else { Some(driver.create(bytes)?) };
        Ok(Self { driver: Arc::clone(driver), chunk })
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        if let Some(chunk) = self.chunk {
            // If this fails, the context is lost, and the memory is released when the process ends.
            let _ = self.driver.release(chunk);
        }
    }
}

/// The error returned when a GPU cannot behave like a device with less memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BallastError {
    /// The GPU has less free memory than the device of the trace.
    #[error(
        "the GPU has {} free, the device of this trace has {}: take a smaller device, or free memory of the GPU",
        ByteSize(*.free), ByteSize(*.wanted)
    )]
    TooSmall {
        /// Free memory of the GPU in bytes.
        free: u64,
        /// Capacity of the trace's device in bytes.
        wanted: u64,
    },
    /// A driver call failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// The error returned when a trace describes no possible device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The header's values contradict each other.
    #[error(
        "the header's device of {} is smaller than the memory that others hold ({} external, {} unusable): \
         give another capacity",
        ByteSize(*.total), ByteSize(*.external), ByteSize(*.unusable)
    )]
    NothingLeft {
        /// The header's `capacity_bytes`.
        total: u64,
        /// The header's `external_bytes`.
        external: u64,
        /// The header's `driver_unusable_bytes`.
        unusable: u64,
    },
    /// The capacity does not fit in 64 bits.
    #[error("no device holds {}, the peak of live bytes", ByteSize(*.peak_live_bytes))]
    TooLarge {
        /// The trace's peak of live bytes.
        peak_live_bytes: u64,
    },
}

/// The page size of simulated devices in bytes, which is that of every current GPU.
pub(crate) const PAGE_BYTES: u64 = 2 * MIB;
/// Capacity of the default device in percent of the peak of live bytes.
const DEFAULT_CAPACITY_PERCENT: u64 = 105;

#[cfg(test)]
mod tests {
    use super::*;

    fn device(text: &str) -> Result<Device, DeviceError> {
        Device::for_trace(&Trace::read("t", text.as_bytes()).unwrap())
    }

    #[test]
    fn the_capacity_is_from_the_header_or_the_peak() {
        let header = "# capacity_bytes 1000\n# external_bytes 300\n# driver_unusable_bytes 7\n";
        assert_eq!(device(header), Ok(Device { capacity_bytes: 693, external_bytes: 307, lag_ops: 0 }));
        let budgeted = format!("# device_bytes 1000\n# budget_bytes 600\n{}", "a 1 100 0\n");
        assert_eq!(device(&budgeted), Ok(Device { capacity_bytes: 600, external_bytes: 0, lag_ops: 0 }));
        assert_eq!(device("a 1 104857600 0\n").unwrap().capacity_bytes, 106 * MIB);
        assert_eq!(device("m empty\n").unwrap().capacity_bytes, PAGE_BYTES);
    }

    #[test]
    fn impossible_devices_are_refused() {
        assert!(device("# capacity_bytes 10\n# external_bytes 11\n").is_err());
        assert!(
            device("# capacity_bytes 10\n# external_bytes 18446744073709551615\n# driver_unusable_bytes 1\n").is_err()
        );
        assert!(device("a 1 18446744073709551615 0\n").is_err());
    }
}
