//! Conversions for users of [`cuda_driver_sys`]: its `CUdeviceptr`, `CUstream` and `CUevent`.

use crate::driver::EventHandle;
use crate::units::{DeviceAddr, StreamId};
use ::cuda_driver_sys::{CUdeviceptr, CUevent, CUstream};

/// Converts a stream of the driver API to one of gapless.
///
/// # Safety
/// That of [`StreamId::from_raw`].
pub unsafe fn stream_id(stream: CUstream) -> StreamId {
    StreamId(stream as u64)
}

impl From<StreamId> for CUstream {
    fn from(stream: StreamId) -> Self {
        std::ptr::with_exposed_provenance_mut(stream.0 as usize)
    }
}

impl From<CUevent> for EventHandle {
    fn from(event: CUevent) -> Self {
        Self(event as u64)
    }
}

impl From<EventHandle> for CUevent {
    fn from(event: EventHandle) -> Self {
        std::ptr::with_exposed_provenance_mut(event.0 as usize)
    }
}

/// Converts an address of gapless to one of the driver API.
pub const fn device_pointer(addr: DeviceAddr) -> CUdeviceptr {
    addr.0
}

/// Converts an address of the driver API to one of gapless.
pub const fn device_addr(pointer: CUdeviceptr) -> DeviceAddr {
    DeviceAddr(pointer)
}
