//! The device that a trace is replayed on.

use crate::Trace;
use gapless::driver::cuda::CudaDriver;
use gapless::driver::{
    ChunkHandle, DriverError, DriverResult, HostConfig, HostDriver, MemoryDriver, ModelConfig, ModelDriver,
};
use gapless::units::{ByteSize, MIB, round_down, round_up};
use std::sync::Arc;

/// What a device offers a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Bytes that the allocator may hold.
    pub capacity_bytes: u64,
    /// Bytes of the device beside them, which others hold.
    pub external_bytes: u64,
    /// Work on a stream completes this many ops after it was queued.
    pub lag_ops: u64,
}

impl Device {
    /// A device of `capacity_bytes` to itself, where work completes at once.
    pub const fn of(capacity_bytes: u64) -> Self {
        Self { capacity_bytes, external_bytes: 0, lag_ops: 0 }
    }

    /// The device that the header describes: its capacity, less what others held and what the driver did not give.
    /// Without one, `DEFAULT_CAPACITY_PERCENT` percent of peak live bytes, in whole pages.
    ///
    /// # Errors
    /// A header where others hold more than there is, or a trace too large for any device.
    pub fn for_trace(trace: &Trace) -> Result<Self, DeviceError> {
        let header = trace.header();
        let Some(total) = header.capacity_bytes else {
            let peak = trace.peak_live_bytes();
            return peak
                .checked_add(peak.div_ceil(100).saturating_mul(DEFAULT_CAPACITY_PERCENT - 100))
                .and_then(|bytes| round_up(bytes.max(1), PAGE_BYTES))
                .map(Self::of)
                .ok_or(DeviceError::TooLarge { peak_live_bytes: peak });
        };
        let external = header.external_bytes.unwrap_or(0);
        let unusable = header.driver_unusable_bytes.unwrap_or(0);
        let others = external.checked_add(unusable);
        let capacity = others.and_then(|others| total.checked_sub(others));
        match (capacity, others) {
            (Some(capacity_bytes), Some(external_bytes)) => Ok(Self { capacity_bytes, external_bytes, lag_ops: 0 }),
            _ => Err(DeviceError::NothingLeft { total, external, unusable }),
        }
    }

    /// A simulated device like this.
    pub fn model(&self) -> ModelDriver {
        ModelDriver::new(ModelConfig {
            capacity_bytes: self.capacity_bytes.saturating_add(self.external_bytes),
            external_bytes: self.external_bytes,
            lag_ops: self.lag_ops,
            granularity: PAGE_BYTES,
            ..ModelConfig::default()
        })
    }

    /// Real memory of this machine in the role of a device like this. Streams run on threads; the lag plays no part.
    /// Memory is taken only where work writes.
    ///
    /// # Errors
    /// Where the kernel gives no file in memory or no thread.
    pub fn host(&self) -> DriverResult<HostDriver> {
        HostDriver::new(HostConfig {
            capacity_bytes: self.capacity_bytes.saturating_add(self.external_bytes),
            external_bytes: self.external_bytes,
            granularity: PAGE_BYTES,
            ..HostConfig::default()
        })
    }
}

/// A real GPU in the role of a device with less memory: the rest is held, and given back with this.
#[derive(Debug)]
pub struct Ballast {
    driver: Arc<CudaDriver>,
    chunk: Option<ChunkHandle>,
}

impl Ballast {
    /// Leaves `capacity_bytes` of the GPU's free memory, and less than a page more.
    ///
    /// # Errors
    /// [`BallastError::TooSmall`] when less than that is free, and what the driver answers.
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
            // Where it fails, the context is lost and the memory is gone with the process.
            let _ = self.driver.release(chunk);
        }
    }
}

/// Why a GPU cannot stand for a smaller one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BallastError {
    /// It has less memory free than the device that is wanted.
    #[error(
        "the GPU has {} free, the device of this trace has {}: give a smaller --capacity, or free memory of the GPU",
        ByteSize(*.free), ByteSize(*.wanted)
    )]
    TooSmall {
        /// Bytes free.
        free: u64,
        /// Bytes wanted.
        wanted: u64,
    },
    /// A driver call failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// Why a trace gives no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The header's figures do not add up.
    #[error(
        "the header's device of {} is less than what it says others hold ({} external, {} unusable): give --capacity",
        ByteSize(*.total), ByteSize(*.external), ByteSize(*.unusable)
    )]
    NothingLeft {
        /// `capacity_bytes`.
        total: u64,
        /// `external_bytes`.
        external: u64,
        /// `driver_unusable_bytes`.
        unusable: u64,
    },
    /// Beyond 64 bits.
    #[error("no device holds {}, the peak of live bytes", ByteSize(*.peak_live_bytes))]
    TooLarge {
        /// The trace's peak.
        peak_live_bytes: u64,
    },
}

/// The page size of simulated devices: that of every current GPU.
pub(crate) const PAGE_BYTES: u64 = 2 * MIB;
/// Capacity of the default device, in percent of peak live bytes.
const DEFAULT_CAPACITY_PERCENT: u64 = 105;

#[cfg(test)]
mod tests {
    use super::*;

    fn device(text: &str) -> Result<Device, DeviceError> {
        Device::for_trace(&Trace::read("t", text.as_bytes()).unwrap())
    }

    #[test]
    fn the_header_decides_else_the_peak() {
        let header = "# capacity_bytes 1000\n# external_bytes 300\n# driver_unusable_bytes 7\n";
        assert_eq!(device(header), Ok(Device { capacity_bytes: 693, external_bytes: 307, lag_ops: 0 }));
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
