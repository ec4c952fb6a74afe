//! The part of a device's driver that the memory of a process needs, beyond what an allocator does.
//!
//! Threads: every method may be called from any thread.

use gapless::driver::cuda::{Capture, CudaDriver, DeviceInfo, OpenError};
use gapless::driver::{Driver, DriverResult, Hook, HostDriver, Intercepted, ModelDriver};
use gapless::{Allocator, StreamId};
use gapless_share::Uuid;
use std::sync::Arc;

/// A driver of one of a process's devices.
///
/// The methods that have a default are those that a device alone, which captures nothing, need not have.
pub trait DeviceDriver: Driver {
    /// Returns the name of the device, for people.
    fn name(&self) -> String;

    /// Returns the physical bytes of the device, 0 where they are not known.
    fn total_bytes(&self) -> u64 {
        self.memory_info().map_or(0, |info| info.total)
    }

    /// Returns the capture into a graph that a stream belongs to. One that has become invalid is none.
    fn capture_of(&self, stream: StreamId) -> Option<Capture> {
        self.is_capturing(stream).then_some(Capture::Unknown)
    }

    /// Returns the number of the device that a stream belongs to, whichever that is.
    ///
    /// # Errors
    /// The driver's, for a handle that is no stream.
    fn device_of_stream(&self, stream: StreamId) -> DriverResult<u32> {
        self.check_stream(stream).map(|()| self.ordinal())
    }

    /// Returns the number in this process of the physical device that has this [UUID](gapless::driver::MemoryDriver::uuid); `None`
    /// where the process does not see it.
    fn ordinal_of(&self, uuid: Uuid) -> Option<u32> {
        (self.uuid() == Some(uuid)).then(|| self.ordinal())
    }

    /// Gives another device access to every mapping that is made from now on. Nothing for one that has it.
    ///
    /// # Errors
    /// [`OpenError::NoPeerAccess`] where that one cannot reach the memory, [`OpenError::NoSuchDevice`] where there is none of that
    /// number, else the driver's. Nothing has changed.
    fn add_peer(&self, peer: u32) -> Result<(), OpenError> {
        Err(OpenError::NoPeerAccess { ordinal: self.ordinal(), peer })
    }

    /// Leaves a device out of what is mapped from now on. Where it has access, it keeps it.
    fn remove_peer(&self, peer: u32) {
        let _ = peer;
    }

    /// Returns the other devices that get access to every mapping.
    fn peers(&self) -> Vec<u32> {
        Vec::new()
    }
}

/// Returns the driver of an allocator.
#[expect(unsafe_code, reason = "safe code gets a driver only where it looks at what it gets")]
pub(crate) fn driver_of<D: DeviceDriver>(allocator: &Allocator<D>) -> &Arc<D> {
    // SAFETY: this crate ends nothing that an allocator uses, and the streams that it names are its callers', who vouch for them.
    unsafe { allocator.driver_unchecked() }
}

impl DeviceDriver for CudaDriver {
    fn name(&self) -> String {
        self.info().name.clone()
    }

    fn total_bytes(&self) -> u64 {
        self.info().total.0
    }

    #[inline]
    fn capture_of(&self, stream: StreamId) -> Option<Capture> {
        Self::capture_of(self, stream)
    }

    fn device_of_stream(&self, stream: StreamId) -> DriverResult<u32> {
        Self::device_of_stream(self, stream)
    }

    fn ordinal_of(&self, uuid: Uuid) -> Option<u32> {
        let library = self.library();
        let is_it = |ordinal: &u32| DeviceInfo::query(library, *ordinal).is_ok_and(|info| info.uuid == Some(uuid));
        (0..library.device_count().ok()?).find(is_it)
    }

    fn add_peer(&self, peer: u32) -> Result<(), OpenError> {
        self.add_peers([peer])
    }

    fn remove_peer(&self, peer: u32) {
        self.remove_peers([peer]);
    }

    fn peers(&self) -> Vec<u32> {
        Self::peers(self)
    }
}

impl DeviceDriver for ModelDriver {
    fn name(&self) -> String {
        "model".to_owned()
    }
}

impl DeviceDriver for HostDriver {
    fn name(&self) -> String {
        "host".to_owned()
    }
}

/// With the hook around what an allocator does; what only a process asks goes past it.
impl<D: DeviceDriver, H: Hook> DeviceDriver for Intercepted<D, H> {
    fn name(&self) -> String {
        self.inner().name()
    }

    fn total_bytes(&self) -> u64 {
        self.inner().total_bytes()
    }

    fn ordinal_of(&self, uuid: Uuid) -> Option<u32> {
        self.inner().ordinal_of(uuid)
    }

    fn capture_of(&self, stream: StreamId) -> Option<Capture> {
        self.inner().capture_of(stream)
    }

    fn device_of_stream(&self, stream: StreamId) -> DriverResult<u32> {
        self.inner().device_of_stream(stream)
    }

    fn add_peer(&self, peer: u32) -> Result<(), OpenError> {
        self.inner().add_peer(peer)
    }

    fn remove_peer(&self, peer: u32) {
        self.inner().remove_peer(peer);
    }

    fn peers(&self) -> Vec<u32> {
        self.inner().peers()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless::driver::{FaultDriver, HostConfig, ModelConfig, WorkDriver};
    use gapless::units::MIB;

    /// A device that knows of no other says so.
    fn is_alone<D: DeviceDriver + WorkDriver>(driver: &D, name: &str) {
        assert_eq!((driver.name().as_str(), driver.total_bytes(), driver.peers()), (name, 64 * MIB, Vec::new()));
        assert_eq!(driver.ordinal_of([0; 16]), None, "it has no UUID");
        let refused = driver.add_peer(1);
        assert!(matches!(refused, Err(OpenError::NoPeerAccess { ordinal: 0, peer: 1 })), "{refused:?}");
        let stream = driver.create_stream().unwrap();
        assert_eq!((driver.capture_of(stream), driver.device_of_stream(stream).ok()), (None, Some(0)));
        // A handle that this device has not given out yet.
        let other = ModelDriver::default();
        let unknown = [(); 9].map(|()| other.create_stream().unwrap())[8];
        assert!(driver.device_of_stream(unknown).is_err());
    }

    #[test]
    fn a_device_alone() {
        let model = || ModelDriver::new(ModelConfig { capacity_bytes: 64 * MIB, ..ModelConfig::default() });
        let host = || HostDriver::new(HostConfig { capacity_bytes: 64 * MIB, ..HostConfig::default() }).unwrap();
        is_alone(&model(), "model");
        is_alone(&host(), "host");
        is_alone(&FaultDriver::new(model()), "model");
        is_alone(&FaultDriver::new(host()), "host");
    }

    #[test]
    fn a_capture_that_nobody_numbers() {
        let driver = FaultDriver::new(ModelDriver::default());
        let stream = driver.create_stream().unwrap();
        driver.inner().begin_capture(stream);
        assert_eq!(driver.inner().capture_of(stream), Some(Capture::Unknown));
        assert_eq!(driver.capture_of(stream), Some(Capture::Unknown));
        driver.inner().end_capture(stream);
        assert_eq!(driver.capture_of(stream), None);
    }
}
