//! Which streams use a block, its own device's and others': recorded, and named when it is freed.
//!
//! Threads: any. Cost: that of the allocators; a stream that is none of the block's device is asked for at the driver.

use crate::device::Device;
use crate::driver::{DeviceDriver, driver_of};
use crate::error::Error;
use crate::process::Process;
use crate::streams::StreamLives;
use gapless::allocator::{FreeError, StreamError};
use gapless::driver::cuda::{LEGACY_STREAM, PER_THREAD_STREAM};
use gapless::driver::{DriverError, DriverErrorKind};
use gapless::{Allocator, DeviceAddr, StreamId};

impl<D: DeviceDriver> Process<D> {
    /// Records that `stream` also uses an allocation. The stream may be one of another device. A default stream's handle does
    /// not say of which device, so it stands for that of every device in use.
    ///
    /// # Errors
    /// [`Error::Free`] where no live allocation is at the address, [`Error::Foreign`] for a handle that is no stream, and what
    /// making the other device's allocator gives.
    pub fn record_stream(
        &self,
        device: &Device<D>,
        addr: DeviceAddr,
        stream: StreamId,
        lives: StreamLives,
    ) -> Result<(), Error> {
        device.expect_not_deferred(addr)?;
        match record_own_stream(device, addr, stream, lives) {
            Ok(()) if is_default(stream) => {
                for other in self.devices().filter(|other| other.ordinal != device.ordinal) {
                    let allocator = &other.main.allocator;
                    device.foreign.record(addr, other.ordinal, allocator, stream, lives).map_err(FreeError::from)?;
                }
                Ok(())
            }
            Err(FreeError::Stream(StreamError::Foreign { cause, .. }))
                if cause.kind == DriverErrorKind::InvalidHandle && !is_default(stream) =>
            {
                self.record_foreign(device, addr, stream, lives, cause)
            }
            own => Ok(own?),
        }
    }

    /// Records that `stream`, which is one of `user`, also uses an allocation of `device`: for callers who know, so that a default
    /// stream's handle stands for one stream.
    ///
    /// # Errors
    /// As [`record_stream`](Self::record_stream).
    pub fn record_stream_of(
        &self,
        device: &Device<D>,
        addr: DeviceAddr,
        user: u32,
        stream: StreamId,
        lives: StreamLives,
    ) -> Result<(), Error> {
        if !is_default(stream) {
            return self.record_stream(device, addr, stream, lives);
        }
        device.expect_not_deferred(addr)?;
        if user == device.ordinal {
            return Ok(record_own_stream(device, addr, stream, lives)?);
        }
        device.allocator_of(addr).unwrap_or_else(|| device.main.allocator.clone()).expect_live(addr)?;
        let its = &self.device(user)?.main.allocator;
        Ok(device.foreign.record(addr, user, its, stream, lives).map_err(FreeError::from)?)
    }

    /// Records a stream that is none of this device, as `cause` says.
    #[cold]
    fn record_foreign(
        &self,
        device: &Device<D>,
        addr: DeviceAddr,
        stream: StreamId,
        lives: StreamLives,
        cause: DriverError,
    ) -> Result<(), Error> {
        let allocator = device.allocator_of(addr).unwrap_or_else(|| device.main.allocator.clone());
        allocator.expect_live(addr)?;
        let ordinal = device.ordinal;
        let refused = |cause: StreamError| Error::Foreign { ordinal, stream, cause };
        let cause = match driver_of(&device.main.allocator).device_of_stream(stream) {
            Ok(other) if other != ordinal => {
                let user = self.device(other)?;
                let its = &user.main.allocator;
                return device.foreign.record(addr, other, its, stream, lives).map_err(refused);
            }
            // A stream of another context of the same device.
            Ok(_) => cause,
            Err(error) => error,
        };
        Err(refused(StreamError::Foreign { stream, cause }))
    }

    /// Frees an allocation whose last use was on `stream`, where a default stream's handle means that of this device. Where the
    /// stream cannot be recorded, the host waits for all devices in use: it may be another one's. Nothing has happened if one
    /// cannot be waited for, since a graph is being captured.
    ///
    /// # Errors
    /// [`Error::Free`] where no live allocation is at the address, [`Error::Driver`] for a device that cannot be waited for.
    pub fn free_on(&self, device: &Device<D>, addr: DeviceAddr, bytes: u64, stream: StreamId) -> Result<(), Error> {
        device.expect_not_deferred(addr)?;
        let recorded = match is_default(stream) {
            true => record_own_stream(device, addr, stream, StreamLives::Unknown).map_err(Error::from),
            false => self.record_stream(device, addr, stream, StreamLives::Unknown),
        };
        match recorded {
            Ok(()) => {}
            Err(error @ Error::Free(FreeError::NotAllocated { .. })) => return Err(error),
            Err(_) => self.devices().try_for_each(Device::synchronize)?,
        }
        Ok(device.free(addr, bytes, stream)?)
    }
}

/// Records a stream of the block's own device.
fn record_own_stream<D: DeviceDriver>(
    device: &Device<D>,
    addr: DeviceAddr,
    stream: StreamId,
    lives: StreamLives,
) -> Result<(), FreeError> {
    let record = |allocator: &Allocator<D>| {
        if lives == StreamLives::AsLongAsTheProcess {
            allocator.keep_stream(stream)?;
        }
        allocator.record_stream(addr, stream)
    };
    let pool = if device.is_of_main(addr) { None } else { device.pools.owner(addr) };
    match pool {
        Some(pool) => record(&pool.allocator),
        None => record(&device.main.allocator),
    }
}

/// Whether a handle stands for a default stream, whichever device's.
fn is_default(stream: StreamId) -> bool {
    [StreamId::DEFAULT, LEGACY_STREAM, PER_THREAD_STREAM].contains(&stream)
}
