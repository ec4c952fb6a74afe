//! Measurements with our kernels: bandwidth and latency over a range that the caller has mapped.

use std::time::{Duration, Instant};

use super::CudaDriver;
use super::kernels::{Kernel, Threads};
use super::streams::raw_stream;
use crate::driver::{DriverCall, DriverError, DriverErrorKind, DriverResult, WorkDriver};
use crate::units::{DeviceAddr, StreamId};

/// A way to stream over a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pass {
    /// Every byte is read once.
    Read,
    /// Every byte is written once.
    Write,
    /// The first half is copied to the second: every byte of the range is read or written once.
    Copy,
}

/// Latency of dependent loads.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct ChaseLatency {
    /// Cycles of the multiprocessor's clock for one load.
    pub cycles: f64,
    /// Host time for one load, launch included.
    pub nanoseconds: f64,
}

impl CudaDriver {
    /// Streams once over `[addr, addr + bytes)` on `stream` and waits; gives the host's time for it.
    /// `addr` and `bytes` are multiples of 32.
    ///
    /// # Errors
    /// `InvalidValue` for an unaligned range; what the driver answers otherwise.
    pub fn stream_over(&self, stream: StreamId, pass: Pass, addr: DeviceAddr, bytes: u64) -> DriverResult<Duration> {
        if !addr.is_aligned(PASS_ALIGNMENT) || !bytes.is_multiple_of(PASS_ALIGNMENT) {
            let text = format!("a pass needs address and size in multiples of {PASS_ALIGNMENT} bytes");
            return Err(DriverError::new(DriverCall::Work, DriverErrorKind::InvalidValue, text));
        }
        self.synchronize(stream)?;
        let start = Instant::now();
        self.with_kernels(|kernels| {
            let (kernel, items, parameters) = match pass {
                Pass::Read => (Kernel::BandwidthRead, bytes / 16, [addr.0, bytes, addr.0]),
                Pass::Write => (Kernel::BandwidthWrite, bytes / 16, [addr.0, bytes, 0x5a5a_5a5a_5a5a_5a5a]),
                Pass::Copy => (Kernel::BandwidthCopy, bytes / 32, [addr.offset(bytes / 2).0, addr.0, bytes / 2]),
            };
            // SAFETY: the kernels' parameters; the range is mapped until `synchronize` below returns (the caller's
            // promise, as for every `WorkDriver` call).
            unsafe { self.launch(kernels, kernel, stream, Threads::ForItems(items), &parameters) }
        })?;
        self.synchronize(stream)?;
        Ok(start.elapsed())
    }

    /// Follows `steps` dependent loads over `slots` (a power of two, at least 4) places, `stride` bytes apart
    /// (a multiple of 8, at least 16), from `addr` on, and waits. The range's content is overwritten.
    ///
    /// # Errors
    /// `InvalidValue` for other numbers; what the driver answers otherwise.
    pub fn pointer_chase(
        &self,
        stream: StreamId,
        addr: DeviceAddr,
        slots: u64,
        stride: u64,
        steps: u64,
    ) -> DriverResult<ChaseLatency> {
        if !slots.is_power_of_two() || slots < 4 || !stride.is_multiple_of(8) || stride < 16 || steps == 0 {
            let text = format!("a chase of {steps} steps over {slots} slots of {stride} bytes cannot be laid out");
            return Err(DriverError::new(DriverCall::Work, DriverErrorKind::InvalidValue, text));
        }
        // 1 mod 4 and about 0.62 of the cycle: neighbours in time are far apart in space.
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let multiplier = ((slots as f64 * 0.618) as u64 & !3) | 1;
        self.with_kernels(|kernels| {
            let parameters = [addr.0, slots, stride, multiplier];
            // SAFETY: the kernel's parameters; the range is mapped until this returns (the caller's promise).
            unsafe { self.launch(kernels, Kernel::PointerChaseLink, stream, Threads::ForItems(slots), &parameters) }
        })?;
        self.synchronize(stream)?;
        let result_at = self.measurement_slot()?;
        let start = Instant::now();
        self.with_kernels(|kernels| {
            let parameters = [addr.0, steps, result_at.0];
            // SAFETY: as above; the result has a place of its own.
            unsafe { self.launch(kernels, Kernel::PointerChase, stream, Threads::One, &parameters) }
        })?;
        self.synchronize(stream)?;
        let elapsed = start.elapsed();
        let mut result = [0_u64; 2];
        {
            let _guards = self.context.enter_outside_capture(DriverCall::Work)?;
            let target = (&raw mut result).cast();
            // SAFETY: both sides are 16 bytes long and live until the synchronisation below.
            let copied = unsafe {
                self.library.api().cuMemcpyDtoHAsync_v2(target, result_at.0, size_of_val(&result), raw_stream(stream))
            };
            self.library.check(DriverCall::Work, "cuMemcpyDtoHAsync", copied)?;
            self.synchronize(stream)?;
        }
        let steps = steps as f64;
        Ok(ChaseLatency { cycles: result[0] as f64 / steps, nanoseconds: elapsed.as_nanos() as f64 / steps })
    }
}

const PASS_ALIGNMENT: u64 = 32;
