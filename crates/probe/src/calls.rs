//! The calls that are tried in captures, each on objects of its own.

use gapless::driver::cuda::CudaDriver;
use gapless::driver::cuda::raw::raw_stream;
use gapless::driver::cuda::sys::{
    CUevent, CUmemAllocationProp, CUmemAllocationType_enum as allocation_type, CUmemLocation,
    CUmemLocationType_enum as location_type, CUresult, CUstreamCaptureStatus_enum as capture_status,
};
use gapless::driver::{ChunkHandle, DriverCall, DriverResult, EventHandle, MemoryDriver, StreamDriver, WorkDriver};
use gapless::{DeviceAddr, StreamId};
use std::ptr::null_mut;

use crate::no_function;

/// A call that the allocator makes, or might make, while a stream is captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Reserve,
    Create,
    Map,
    SetAccess,
    Unmap,
    Release,
    AddressFree,
    MemoryInfo,
    EventCreate,
    EventRecord,
    EventQuery,
    EventSynchronize,
    EventDestroy,
    IsCapturing,
    CaptureInfo,
    StreamId,
    StreamContext,
    GreenContext,
    ContextId,
    StreamSynchronize,
}

/// The objects of the calls, made before a capture. Each field is `None` once it has been taken away again.
pub(super) struct Objects {
    bytes: u64,
    /// A stream that is not captured.
    other: StreamId,
    /// Recorded on the captured stream, before its capture, and completed.
    event: Option<EventHandle>,
    /// A reservation with nothing mapped in it.
    empty: Option<DeviceAddr>,
    /// A chunk that is not mapped.
    idle: Option<ChunkHandle>,
    /// A mapping without access, and its chunk.
    view: (DeviceAddr, ChunkHandle),
    view_is_mapped: bool,
    /// `idle` is mapped at `empty`.
    placed: bool,
    made_addr: Option<DeviceAddr>,
    made_chunk: Option<ChunkHandle>,
    made_event: Option<EventHandle>,
}

impl Objects {
    /// Makes what every call needs. `stream` is the one to be captured.
    pub(super) fn make(driver: &CudaDriver, stream: StreamId) -> DriverResult<Self> {
        let bytes = driver.granularity();
        let (event, other) = (driver.event_create()?, driver.create_stream()?);
        driver.event_record(event, stream)?;
        driver.event_synchronize(event)?;
        let view = (driver.reserve(bytes, bytes)?, driver.create(bytes)?);
        driver.map(view.0, bytes, view.1)?;
        Ok(Self {
            bytes,
            other,
            event: Some(event),
            empty: Some(driver.reserve(bytes, bytes)?),
            idle: Some(driver.create(bytes)?),
            view,
            view_is_mapped: true,
            placed: false,
            made_addr: None,
            made_chunk: None,
            made_event: None,
        })
    }

    /// Takes away what is still there.
    pub(super) fn undo(self, driver: &CudaDriver) -> DriverResult<()> {
        let bytes = self.bytes;
        if self.view_is_mapped {
            driver.unmap(self.view.0, bytes)?;
        }
        if let (true, Some(addr)) = (self.placed, self.empty) {
            driver.unmap(addr, bytes)?;
        }
        for chunk in [self.idle, self.made_chunk, Some(self.view.1)].into_iter().flatten() {
            driver.release(chunk)?;
        }
        for addr in [self.empty, self.made_addr, Some(self.view.0)].into_iter().flatten() {
            driver.address_free(addr, bytes)?;
        }
        for event in [self.event, self.made_event].into_iter().flatten() {
            driver.event_destroy(event)?;
        }
        driver.destroy_stream(self.other)
    }

    /// Notes what a call that succeeded has changed.
    fn note(&mut self, call: Call) {
        match call {
            Call::Map => self.placed = true,
            Call::Unmap => self.view_is_mapped = false,
            Call::Release => self.idle = None,
            Call::AddressFree => self.empty = None,
            Call::EventDestroy => self.event = None,
            _ => {}
        }
    }
}

impl Call {
    pub(super) const ALL: [Self; 20] = [
        Self::Reserve,
        Self::Create,
        Self::Map,
        Self::SetAccess,
        Self::Unmap,
        Self::Release,
        Self::AddressFree,
        Self::MemoryInfo,
        Self::EventCreate,
        Self::EventRecord,
        Self::EventQuery,
        Self::EventSynchronize,
        Self::EventDestroy,
        Self::IsCapturing,
        Self::CaptureInfo,
        Self::StreamId,
        Self::StreamContext,
        Self::GreenContext,
        Self::ContextId,
        Self::StreamSynchronize,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Reserve => "reserve",
            Self::Create => "create",
            Self::Map => "map",
            Self::SetAccess => "set_access",
            Self::Unmap => "unmap",
            Self::Release => "release",
            Self::AddressFree => "address_free",
            Self::MemoryInfo => "memory_info",
            Self::EventCreate => "event_create",
            Self::EventRecord => "event_record_on_another_stream",
            Self::EventQuery => "event_query_of_one_from_before",
            Self::EventSynchronize => "event_synchronize_of_one_from_before",
            Self::EventDestroy => "event_destroy",
            Self::IsCapturing => "is_capturing_of_another_stream",
            Self::CaptureInfo => "capture_info_of_another_stream",
            Self::StreamId => "id_of_another_stream",
            Self::StreamContext => "context_of_another_stream",
            Self::GreenContext => "green_context_of_another_stream",
            Self::ContextId => "id_of_the_context",
            Self::StreamSynchronize => "synchronize_another_stream",
        }
    }

    /// The function of the driver.
    #[cfg(test)]
    fn function(self) -> &'static str {
        match self {
            Self::Reserve => "cuMemAddressReserve",
            Self::Create => "cuMemCreate",
            Self::Map => "cuMemMap",
            Self::SetAccess => "cuMemSetAccess",
            Self::Unmap => "cuMemUnmap",
            Self::Release => "cuMemRelease",
            Self::AddressFree => "cuMemAddressFree",
            Self::MemoryInfo => "cuMemGetInfo_v2",
            Self::EventCreate => "cuEventCreate",
            Self::EventRecord => "cuEventRecord",
            Self::EventQuery => "cuEventQuery",
            Self::EventSynchronize => "cuEventSynchronize",
            Self::EventDestroy => "cuEventDestroy_v2",
            Self::IsCapturing => "cuStreamIsCapturing",
            Self::CaptureInfo => "cuStreamGetCaptureInfo_v3",
            Self::StreamId => "cuStreamGetId",
            Self::StreamContext => "cuStreamGetCtx",
            Self::GreenContext => "cuStreamGetCtx_v2",
            Self::ContextId => "cuCtxGetId",
            Self::StreamSynchronize => "cuStreamSynchronize",
        }
    }

    /// Makes the call as the driver of this crate makes it.
    pub(super) fn guarded(self, driver: &CudaDriver, objects: &mut Objects) -> DriverResult<()> {
        let (bytes, (view, _)) = (objects.bytes, objects.view);
        let outcome = match (self, objects.empty, objects.idle, objects.event) {
            (Self::Reserve, ..) => driver.reserve(bytes, bytes).map(|addr| objects.made_addr = Some(addr)),
            (Self::Create, ..) => driver.create(bytes).map(|chunk| objects.made_chunk = Some(chunk)),
            (Self::Map, Some(addr), Some(chunk), _) => driver.map(addr, bytes, chunk),
            (Self::SetAccess, ..) => driver.set_access(view, bytes),
            (Self::Unmap, ..) => driver.unmap(view, bytes),
            (Self::Release, _, Some(chunk), _) => driver.release(chunk),
            (Self::AddressFree, Some(addr), ..) => driver.address_free(addr, bytes),
            (Self::MemoryInfo, ..) => driver.memory_info().map(drop),
            (Self::EventCreate, ..) => driver.event_create().map(|event| objects.made_event = Some(event)),
            (Self::EventRecord, .., Some(event)) => driver.event_record(event, objects.other),
            (Self::EventQuery, .., Some(event)) => driver.event_query(event).map(drop),
            (Self::EventSynchronize, .., Some(event)) => driver.event_synchronize(event),
            (Self::EventDestroy, .., Some(event)) => driver.event_destroy(event),
            (Self::IsCapturing, ..) => {
                driver.is_capturing(objects.other);
                Ok(())
            }
            (Self::CaptureInfo, ..) => {
                driver.capture_of(objects.other);
                Ok(())
            }
            (Self::StreamId, ..) => driver.identify(objects.other).map(drop),
            (Self::StreamContext | Self::GreenContext, ..) => driver.check_stream(objects.other),
            // Every call begins with it.
            (Self::ContextId, ..) => driver.raw().enter(DriverCall::Open).map(drop),
            (Self::StreamSynchronize, ..) => driver.synchronize(objects.other),
            _ => unreachable!("objects are made for one call each"),
        };
        outcome.inspect(|()| objects.note(self))
    }

    /// Makes the call in the thread's own capture mode, which is the default one.
    pub(super) fn unguarded(self, driver: &CudaDriver, objects: &mut Objects) -> DriverResult<()> {
        let (raw, api, bytes) = (driver.raw(), driver.raw().api(), objects.bytes as usize);
        let _current = raw.enter(DriverCall::Open)?;
        let addr = objects.empty.unwrap_or_default().0;
        let chunk = objects.idle.map_or(0, |chunk| chunk.0);
        let view = objects.view.0.0;
        let event: CUevent = std::ptr::with_exposed_provenance_mut(objects.event.map_or(0, |event| event.0) as usize);
        let other = raw_stream(objects.other);
        let (mut made_addr, mut made_chunk) = (0, 0);
        let mut made_event: CUevent = std::ptr::null_mut();
        let (mut free, mut total) = (0, 0);
        let (mut id, mut context, mut green) = (0, null_mut(), null_mut());
        let mut status = capture_status::CU_STREAM_CAPTURE_STATUS_NONE;
        let (access, prop) = (raw.access(), prop_of(driver));
        let result: CUresult = match self {
            // SAFETY: a valid out-parameter.
            Self::Reserve => unsafe { api.cuMemAddressReserve(&raw mut made_addr, bytes, bytes, 0, 0) },
            // SAFETY: valid pointers.
            Self::Create => unsafe { api.cuMemCreate(&raw mut made_chunk, bytes, &raw const prop, 0) },
            // SAFETY: a reservation with nothing in it, and a chunk.
            Self::Map => unsafe { api.cuMemMap(addr, bytes, 0, chunk, 0) },
            // SAFETY: a mapping; one descriptor, valid for the call.
            Self::SetAccess => unsafe { api.cuMemSetAccess(view, bytes, &raw const access, 1) },
            // SAFETY: a mapping that nothing uses.
            Self::Unmap => unsafe { api.cuMemUnmap(view, bytes) },
            // SAFETY: a chunk that is not mapped, released once.
            Self::Release => unsafe { api.cuMemRelease(chunk) },
            // SAFETY: a reservation with nothing in it, freed once.
            Self::AddressFree => unsafe { api.cuMemAddressFree(addr, bytes) },
            // SAFETY: valid out-parameters.
            Self::MemoryInfo => unsafe { api.cuMemGetInfo_v2(&raw mut free, &raw mut total) },
            // SAFETY: a valid out-parameter; 2 is the flag for events without times.
            Self::EventCreate => unsafe { api.cuEventCreate(&raw mut made_event, 2) },
            // SAFETY: a live event and a live stream.
            Self::EventRecord => unsafe { api.cuEventRecord(event, other) },
            // SAFETY: a live event.
            Self::EventQuery => unsafe { api.cuEventQuery(event) },
            // SAFETY: a live event.
            Self::EventSynchronize => unsafe { api.cuEventSynchronize(event) },
            // SAFETY: a live event, destroyed once.
            Self::EventDestroy => unsafe { api.cuEventDestroy_v2(event) },
            // SAFETY: a live stream; a valid out-parameter.
            Self::IsCapturing => unsafe { api.cuStreamIsCapturing(other, &raw mut status) },
            Self::CaptureInfo => match &raw.optional().cuStreamGetCaptureInfo_v3 {
                // SAFETY: a live stream; the first two out-parameters are valid, the others may be null.
                Ok(info) => unsafe {
                    info(other, &raw mut status, &raw mut id, null_mut(), null_mut(), null_mut(), null_mut())
                },
                Err(_) => return Err(no_function(self.name())),
            },
            // SAFETY: a live stream; a valid out-parameter.
            Self::StreamId => unsafe { api.cuStreamGetId(other, &raw mut id) },
            // SAFETY: as above.
            Self::StreamContext => unsafe { api.cuStreamGetCtx(other, &raw mut context) },
            Self::GreenContext => match &raw.optional().cuStreamGetCtx_v2 {
                // SAFETY: as above, with two out-parameters.
                Ok(contexts) => unsafe { contexts(other, &raw mut context, &raw mut green) },
                Err(_) => return Err(no_function(self.name())),
            },
            // SAFETY: a context that is retained; a valid out-parameter.
            Self::ContextId => unsafe { api.cuCtxGetId(raw.context(), &raw mut id) },
            // SAFETY: a live stream.
            Self::StreamSynchronize => unsafe { api.cuStreamSynchronize(other) },
        };
        let outcome = raw.check(DriverCall::Open, self.name(), result);
        match (self, &outcome) {
            (Self::Reserve, Ok(())) => objects.made_addr = Some(DeviceAddr(made_addr)),
            (Self::Create, Ok(())) => objects.made_chunk = Some(ChunkHandle(made_chunk)),
            (Self::EventCreate, Ok(())) => objects.made_event = Some(EventHandle(made_event as u64)),
            (_, Ok(())) => objects.note(self),
            (_, Err(_)) => {}
        }
        outcome
    }
}

/// The properties of an ordinary chunk.
fn prop_of(driver: &CudaDriver) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: allocation_type::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: CUmemLocation { type_: location_type::CU_MEM_LOCATION_TYPE_DEVICE, id: driver.raw().device() },
        ..CUmemAllocationProp::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    /// Functions that the driver calls, and that no capture is there for, or that have a question of their own.
    const APART: [(&str, &str); 19] = [
        ("cuCtxGetCurrent", "the guard of every call"),
        ("cuCtxSetCurrent", "the guard of every call"),
        ("cuThreadExchangeStreamCaptureMode", "the guard of every call"),
        ("cuCtxGetDevice", "asked of the thread's context, which no capture is in"),
        ("cuCtxSynchronize", "capture_synchronize"),
        ("cuStreamWaitEvent", "capture_wait"),
        ("cuStreamCreate", "in a sleep, which a capture forbids"),
        ("cuStreamDestroy_v2", "when an allocator ends, after a wait for the device, which a capture forbids"),
        ("cuDevicePrimaryCtxRetain", "when a device is opened"),
        ("cuDevicePrimaryCtxRelease_v2", "when a device is closed"),
        ("cuMemGetAllocationGranularity", "when a device is opened"),
        ("cuMemExportToShareableHandle", "when another process opens a block"),
        ("cuMemImportFromShareableHandle", "when a block of another process is opened"),
        ("cuMemGetHandleForAddressRange", "when a block is registered"),
        ("cuMemAllocHost_v2", "in a sleep, which a capture forbids"),
        ("cuMemFreeHost", "in a wake, which a capture forbids"),
        ("cuMemcpyDtoHAsync_v2", "in a sleep, which a capture forbids"),
        ("cuMemcpyHtoDAsync_v2", "in a wake, which a capture forbids"),
        ("cuMemsetD8Async", "work on the caller's stream, as its kernels are: a node where that is captured"),
    ];

    /// Every function that the driver calls for the allocator is asked about, so that no function is believed harmless.
    #[test]
    fn every_function_that_the_allocator_calls_is_tried() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src/driver/cuda");
        let mut called = BTreeSet::new();
        for file in ["memory.rs", "streams.rs", "captures.rs", "context.rs", "plain.rs"] {
            let text = std::fs::read_to_string(sources.join(file)).unwrap();
            for part in ["api().", "api.", "optional()."] {
                for (at, _) in text.match_indices(part) {
                    let name: String = text[at + part.len()..]
                        .chars()
                        .take_while(|char| char.is_alphanumeric() || *char == '_')
                        .collect();
                    if name.starts_with("cu") {
                        called.insert(name);
                    }
                }
            }
        }
        // The plain mode has no pools, and cuMemAlloc is not called beside it.
        called.retain(|name| !name.starts_with("cuMemAlloc_") && !name.starts_with("cuMemFree_"));
        assert!(called.len() > 20, "{called:?}");
        let tried: BTreeSet<&str> = Call::ALL.iter().map(|call| call.function()).collect();
        for name in &called {
            let apart = APART.iter().any(|(other, _)| other == name);
            assert!(tried.contains(&**name) != apart, "{name} is to be tried, or has a reason not to be");
        }
        for (name, _) in APART {
            assert!(called.contains(name), "{name} is not called");
        }
    }
}
