//! Bandwidth and latency over a range that the caller has mapped, measured with kernels made for it.

use std::ffi::CStr;
use std::time::{Duration, Instant};

use gapless::driver::cuda::CudaDriver;
use gapless::driver::cuda::raw::{Kernel, Module, Threads, raw_stream};
use gapless::driver::{DriverCall, DriverError, DriverErrorKind, DriverResult, WorkDriver};
use gapless::{DeviceAddr, StreamId};

/// The measuring kernels, loaded on a device. They are unloaded when this is dropped.
pub struct Measurements<'a> {
    driver: &'a CudaDriver,
    modules: Vec<Module>,
    read: Kernel,
    write: Kernel,
    copy: Kernel,
    link: Kernel,
    chase: Kernel,
    /// Device memory for the two words that the chase returns.
    result: DeviceAddr,
}

/// A way to stream over a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

impl<'a> Measurements<'a> {
    /// Loads the kernels.
    ///
    /// # Errors
    /// Returns the driver's error if the kernels cannot be loaded or their memory cannot be allocated.
    pub fn new(driver: &'a CudaDriver) -> DriverResult<Self> {
        let raw = driver.raw();
        let (bandwidth, [read, write, copy]) = raw.load(BANDWIDTH.0, BANDWIDTH.1)?;
        let mut modules = vec![bandwidth];
        let rest = raw.load(POINTER_CHASE.0, POINTER_CHASE.1).and_then(|(pointer_chase, kernels)| {
            modules.push(pointer_chase);
            Ok((kernels, raw.mem_alloc(size_of::<[u64; 2]>() as u64)?))
        });
        match rest {
            Ok(([link, chase], result)) => Ok(Self { driver, modules, read, write, copy, link, chase, result }),
            Err(error) => {
                modules.into_iter().for_each(|module| raw.unload(module));
                Err(error)
            }
        }
    }

    /// Streams once over `[addr, addr + bytes)` on `stream` and waits; returns the time that this took on the host.
    /// `addr` and `bytes` are multiples of 32.
    ///
    /// # Errors
    /// `InvalidValue` for an unaligned range; what the driver answers otherwise.
    pub fn stream_over(&self, stream: StreamId, pass: Pass, addr: DeviceAddr, bytes: u64) -> DriverResult<Duration> {
        if !addr.is_aligned(PASS_ALIGNMENT) || !bytes.is_multiple_of(PASS_ALIGNMENT) {
            let text = format!("a pass needs address and size in multiples of {PASS_ALIGNMENT} bytes");
            return Err(DriverError::new(DriverCall::Work, DriverErrorKind::InvalidValue, text));
        }
        let (kernel, items, parameters) = match pass {
            Pass::Read => (self.read, bytes / 16, [addr.0, bytes, addr.0]),
            Pass::Write => (self.write, bytes / 16, [addr.0, bytes, 0x5a5a_5a5a_5a5a_5a5a]),
            Pass::Copy => (self.copy, bytes / 32, [addr.offset(bytes / 2).0, addr.0, bytes / 2]),
        };
        self.driver.synchronize(stream)?;
        let start = Instant::now();
        // SAFETY: a loaded kernel and its parameters; the range is mapped until `synchronize` below returns (the
        // caller's promise, as for every `WorkDriver` call).
        unsafe { self.driver.raw().launch(kernel, stream, Threads::ForItems(items), &parameters) }?;
        self.driver.synchronize(stream)?;
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
        let raw = self.driver.raw();
        let parameters = [addr.0, slots, stride, multiplier];
        // SAFETY: a loaded kernel and its parameters; the range is mapped until this returns (the caller's promise).
        unsafe { raw.launch(self.link, stream, Threads::ForItems(slots), &parameters) }?;
        self.driver.synchronize(stream)?;
        let start = Instant::now();
        // SAFETY: as above; the result has a place of its own.
        unsafe { raw.launch(self.chase, stream, Threads::One, &[addr.0, steps, self.result.0]) }?;
        self.driver.synchronize(stream)?;
        let elapsed = start.elapsed();
        let mut result = [0_u64; 2];
        {
            let _current = raw.enter(DriverCall::Work)?;
            let target = (&raw mut result).cast();
            // SAFETY: both sides are 16 bytes long and live until the synchronisation below.
            let copied = unsafe {
                raw.api().cuMemcpyDtoHAsync_v2(target, self.result.0, size_of_val(&result), raw_stream(stream))
            };
            raw.check(DriverCall::Work, "cuMemcpyDtoHAsync", copied)?;
            self.driver.synchronize(stream)?;
        }
        let steps = steps as f64;
        Ok(ChaseLatency { cycles: result[0] as f64 / steps, nanoseconds: elapsed.as_nanos() as f64 / steps })
    }
}

impl Drop for Measurements<'_> {
    fn drop(&mut self) {
        // Where the context is lost, this memory is gone with it.
        let _ = self.driver.raw().mem_free(self.result);
        for module in self.modules.drain(..) {
            self.driver.raw().unload(module);
        }
    }
}

/// Parameters: data, bytes, sink; data, bytes, value; target, source, bytes.
const BANDWIDTH: (&str, [&CStr; 3]) =
    (include_str!("../../../kernels/bandwidth.ptx"), [c"bandwidth_read", c"bandwidth_write", c"bandwidth_copy"]);

/// Parameters: data, slots, stride, multiplier; data, steps, result.
const POINTER_CHASE: (&str, [&CStr; 2]) =
    (include_str!("../../../kernels/pointer_chase.ptx"), [c"pointer_chase_link", c"pointer_chase"]);

const PASS_ALIGNMENT: u64 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_in_its_source() {
        let entries = BANDWIDTH.1.map(|entry| (BANDWIDTH.0, entry)).into_iter();
        for (ptx, entry) in entries.chain(POINTER_CHASE.1.map(|entry| (POINTER_CHASE.0, entry))) {
            let line = format!(".visible .entry {}(", entry.to_str().unwrap());
            assert!(ptx.contains(&line), "{entry:?}");
        }
    }
}
