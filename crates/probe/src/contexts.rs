//! Calls on a thread without a current context.

use gapless::StreamId;
use gapless::driver::cuda::CudaDriver;
use gapless::driver::cuda::raw::raw_stream;
use gapless::driver::cuda::sys::{
    CUevent, CUmemAllocationHandleType_enum as handle_type, CUmemAllocationProp,
    CUmemAllocationType_enum as allocation_type, CUmemLocation, CUmemLocationType_enum as location_type, CUresult,
    CUstreamCaptureMode_enum as capture_mode,
};
use gapless::driver::{DriverCall, EventHandle, MemoryDriver, StreamDriver, WorkDriver};
use serde_json::{Value, json};

use crate::{Question, WHOLE, reported};

pub(super) const EVENTS_WITHOUT_CONTEXT: Question = Question {
    id: "events_without_context",
    text: "What do the calls about events and streams return on a thread that never had a context?",
    parts: WHOLE,
    experiment: |driver| {
        let (stream, event) = (driver.create_stream()?, driver.event_create()?);
        driver.event_record(event, stream)?;
        driver.synchronize(stream)?;
        let asked = std::thread::scope(|scope| scope.spawn(|| ask_all(driver, stream, event)).join());
        let answer = asked.unwrap_or_else(|_| json!("the thread panicked"));
        driver.event_destroy(event)?;
        driver.destroy_stream(stream)?;
        Ok(answer)
    },
};

pub(super) const WITHOUT_CONTEXT: Question = Question {
    id: "without_context",
    text: "What do the calls return when no context is current?",
    parts: WHOLE,
    experiment: |driver| {
        let (raw, access) = (driver.raw(), driver.raw().access());
        let api = raw.api();
        let check = |call, result| reported(&raw.check(call, DriverCall::name(call), result));
        let page = driver.granularity() as usize;
        // SAFETY: no context is current on this thread from here on; every guard of the driver restores that.
        let _ = unsafe { api.cuCtxSetCurrent(std::ptr::null_mut()) };
        let mut prop = CUmemAllocationProp {
            type_: allocation_type::CU_MEM_ALLOCATION_TYPE_PINNED,
            location: CUmemLocation { type_: location_type::CU_MEM_LOCATION_TYPE_DEVICE, id: raw.device() },
            ..CUmemAllocationProp::default()
        };
        prop.requestedHandleTypes = handle_type::CU_MEM_HANDLE_TYPE_NONE;
        let (mut addr, mut handle, mut free, mut total) = (0, 0, 0, 0);
        // SAFETY: a valid out-parameter.
        let reserve = unsafe { api.cuMemAddressReserve(&raw mut addr, page, page, 0, 0) };
        // SAFETY: valid pointers.
        let create = unsafe { api.cuMemCreate(&raw mut handle, page, &raw const prop, 0) };
        // SAFETY: what was reserved and created above, or zeros, which the driver refuses.
        let map = unsafe { api.cuMemMap(addr, page, 0, handle, 0) };
        // SAFETY: one descriptor, valid for the call.
        let access = unsafe { api.cuMemSetAccess(addr, page, &raw const access, 1) };
        // SAFETY: a mapping that nothing uses.
        let unmap = unsafe { api.cuMemUnmap(addr, page) };
        let release = if handle == 0 {
            Value::Null
        } else {
            // SAFETY: created above, released once.
            check(DriverCall::Release, unsafe { api.cuMemRelease(handle) })
        };
        // SAFETY: a reservation with nothing mapped in it.
        let address_free = unsafe { api.cuMemAddressFree(addr, page) };
        // SAFETY: valid out-parameters.
        let info = unsafe { api.cuMemGetInfo_v2(&raw mut free, &raw mut total) };
        Ok(json!({
            "reserve": check(DriverCall::Reserve, reserve),
            "create": check(DriverCall::Create, create),
            "map": check(DriverCall::Map, map),
            "set_access": check(DriverCall::SetAccess, access),
            "unmap": check(DriverCall::Unmap, unmap),
            "release": release,
            "address_free": check(DriverCall::AddressFree, address_free),
            "memory_info": check(DriverCall::MemoryInfo, info),
        }))
    },
};

/// Asks every call, on a thread without a context.
fn ask_all(driver: &CudaDriver, stream: StreamId, event: EventHandle) -> Value {
    let api = driver.raw().api();
    let check = |call, result: CUresult| reported(&driver.raw().check(call, DriverCall::name(call), result));
    let (stream, event) = (raw_stream(stream), std::ptr::with_exposed_provenance_mut(event.0 as usize));
    let mut status = capture_mode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    let mut capturing = gapless::driver::cuda::sys::CUstreamCaptureStatus_enum(0);
    let mut context = std::ptr::null_mut();
    let mut made: CUevent = std::ptr::null_mut();
    // SAFETY: a live event.
    let query = unsafe { api.cuEventQuery(event) };
    // SAFETY: as above.
    let synchronize = unsafe { api.cuEventSynchronize(event) };
    // SAFETY: a live event and a live stream.
    let record = unsafe { api.cuEventRecord(event, stream) };
    // SAFETY: as above.
    let wait = unsafe { api.cuStreamWaitEvent(stream, event, 0) };
    // SAFETY: a live stream; a valid out-parameter.
    let is_capturing = unsafe { api.cuStreamIsCapturing(stream, &raw mut capturing) };
    // SAFETY: as above.
    let get_context = unsafe { api.cuStreamGetCtx(stream, &raw mut context) };
    // SAFETY: a live stream.
    let stream_synchronize = unsafe { api.cuStreamSynchronize(stream) };
    // SAFETY: the parameter is valid; the mode is the one that the thread has.
    let exchange = unsafe { api.cuThreadExchangeStreamCaptureMode(&raw mut status) };
    // SAFETY: a valid out-parameter.
    let create = unsafe { api.cuEventCreate(&raw mut made, 2) };
    if !made.is_null() {
        // SAFETY: made above, destroyed once.
        let _ = unsafe { api.cuEventDestroy_v2(made) };
    }
    json!({
        "event_query": check(DriverCall::EventQuery, query),
        "event_synchronize": check(DriverCall::EventSynchronize, synchronize),
        "event_record": check(DriverCall::EventRecord, record),
        "stream_wait": check(DriverCall::StreamWait, wait),
        "stream_is_capturing": check(DriverCall::Stream, is_capturing),
        "stream_get_context": check(DriverCall::Stream, get_context),
        "stream_synchronize": check(DriverCall::Stream, stream_synchronize),
        "exchange_capture_mode": check(DriverCall::Stream, exchange),
        "event_create": check(DriverCall::EventCreate, create),
    })
}
