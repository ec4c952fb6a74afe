//! What programs have beside the primary context: green contexts, contexts of their own, and its reset.

use std::ptr::null_mut;
use std::time::Duration;

use gapless::driver::cuda::CudaDriver;
use gapless::driver::cuda::raw::raw_stream;
use gapless::driver::cuda::sys::{
    CUcontext, CUdevResource, CUdevResourceDesc, CUdevResourceType, CUgreenCtx, CUgreenCtxCreate_flags as green_flags,
    CUmemAllocationProp, CUmemAllocationType_enum as allocation_type, CUmemLocation,
    CUmemLocationType_enum as location_type, CUstream_flags_enum as stream_flags,
    CUstreamCaptureStatus_enum as capture_status,
};
use gapless::driver::{DriverCall, DriverResult, MemoryDriver, StreamDriver, WorkDriver};
use gapless::units::{GIB, round_down};
use gapless::{DeviceAddr, StreamId};
use serde_json::{Value, json};

use crate::{Question, Subject, WHOLE, no_function, place, reported, skipped, take_away};

pub(super) const GREEN_STREAMS: Question = Question {
    id: "green_streams",
    text: "Do streams of a green context take the primary context's events, waits, kernels and memory?",
    parts: WHOLE,
    experiment: |driver| match Green::make(driver) {
        Ok(green) => {
            let answer = green.ask(driver);
            green.destroy(driver);
            answer
        }
        Err(error) => Ok(skipped(error.to_string())),
    },
};

pub(super) const SECOND_CONTEXT: Question = Question {
    id: "second_context",
    text: "Does an event of the primary context on the stream 0 wait for what another context has queued on its own?",
    parts: WHOLE,
    experiment: |driver| {
        let optional = driver.raw().optional();
        let (Ok(create), Ok(destroy)) = (&optional.cuCtxCreate_v4, &optional.cuCtxDestroy_v2) else {
            return Ok(skipped("the library has no cuCtxCreate_v4"));
        };
        let api = driver.raw().api();
        let check = |name, result| driver.raw().check(DriverCall::Stream, name, result);
        let bytes = round_down((driver.memory_info()?.free / 8).min(8 * GIB), driver.granularity());
        let (addr, chunk) = place(driver, bytes)?;
        let (event, theirs) = (driver.event_create()?, &mut null_mut());
        let mut context: CUcontext = null_mut();
        // SAFETY: a valid out-parameter; no parameters and no flags.
        check("cuCtxCreate", unsafe { create(&raw mut context, null_mut(), 0, driver.raw().device()) })?;
        // SAFETY: a valid out-parameter. The new context is current on this thread.
        check("cuEventCreate", unsafe { api.cuEventCreate(theirs, 2) })?;
        for value in 0..SETS {
            // SAFETY: memory with access for every context of the device, until the wait below.
            check("cuMemsetD8Async", unsafe { api.cuMemsetD8Async(addr.0, value, bytes as usize, null_mut()) })?;
        }
        // SAFETY: an event of the current context, and its default stream.
        check("cuEventRecord", unsafe { api.cuEventRecord(*theirs, null_mut()) })?;
        // These enter the primary context.
        let recorded = driver.event_record(event, StreamId::DEFAULT);
        let waited = driver.event_synchronize(event);
        // SAFETY: a live event.
        let still_works = check("cuEventQuery", unsafe { api.cuEventQuery(*theirs) });
        let owns = driver.owns_default_stream();
        let synchronized = driver.synchronize_device();
        // SAFETY: as above.
        let works_after_wait = check("cuEventQuery", unsafe { api.cuEventQuery(*theirs) });
        // SAFETY: a live event.
        check("cuEventSynchronize", unsafe { api.cuEventSynchronize(*theirs) })?;
        // SAFETY: as above, destroyed once.
        check("cuEventDestroy", unsafe { api.cuEventDestroy_v2(*theirs) })?;
        // SAFETY: made above, destroyed once.
        check("cuCtxDestroy", unsafe { destroy(context) })?;
        driver.event_destroy(event)?;
        take_away(driver, addr, chunk, bytes)?;
        Ok(json!({
            "event_record": reported(&recorded),
            "event_synchronize": reported(&waited),
            "their_work_when_our_event_had_passed": reported(&still_works),
            "wait_for_the_primary_context": reported(&synchronized),
            "their_work_after_that_wait": reported(&works_after_wait),
            "driver_says_the_default_stream_is_its_own": owns,
        }))
    },
};

pub(super) const CONTEXT_RESET: Question = Question {
    id: "context_reset",
    text: "What does each call return after a reset of the primary context? (A process for each: it may crash.)",
    parts: RESET_CALLS,
    experiment: |driver| {
        let Some(part) = driver.settings.part.as_deref() else { return Ok(json!("asked call by call")) };
        let Ok(reset) = &driver.raw().optional().cuDevicePrimaryCtxReset_v2 else {
            return Err(no_function("cuDevicePrimaryCtxReset"));
        };
        let page = driver.granularity();
        let (stream, event) = (driver.create_stream()?, driver.event_create()?);
        let (addr, chunk) = place(driver, 32 * page)?;
        driver.fill(stream, addr, page, 1)?;
        driver.event_record(event, stream)?;
        driver.synchronize(stream)?;
        let id_before = context_id(driver);
        let (raw, api) = (driver.raw(), driver.raw().api());
        let event = std::ptr::with_exposed_provenance_mut(event.0 as usize);
        let bytes = 32 * page as usize;
        let (mut made, mut free, mut total) = (0, 0, 0);
        let mut status = capture_status::CU_STREAM_CAPTURE_STATUS_NONE;
        let (elsewhere, plain) = (driver.reserve(32 * page, page)?, properties(driver));
        // SAFETY: the device of this driver. Everything in its primary context ends.
        let result = unsafe { reset(raw.device()) };
        raw.check(DriverCall::Open, "cuDevicePrimaryCtxReset", result)?;
        // SAFETY: whether this is a context still is a part of the question, and this process is there for it.
        let set_current = unsafe { api.cuCtxSetCurrent(raw.context()) };
        // What the calls do with objects of a context that was reset is the question.
        let result = match part {
            // SAFETY: see above; the pointers are valid for the call.
            "memory_info" => unsafe { api.cuMemGetInfo_v2(&raw mut free, &raw mut total) },
            // SAFETY: see above.
            "create" => unsafe { api.cuMemCreate(&raw mut made, page as usize, &raw const plain, 0) },
            // SAFETY: see above.
            "map" => unsafe { api.cuMemMap(elsewhere.0, bytes, 0, chunk.0, 0) },
            // SAFETY: see above.
            "unmap" => unsafe { api.cuMemUnmap(addr.0, bytes) },
            // SAFETY: see above.
            "release" => unsafe { api.cuMemRelease(chunk.0) },
            // SAFETY: see above.
            "address_free" => unsafe { api.cuMemAddressFree(elsewhere.0, bytes) },
            // SAFETY: see above.
            "event_query" => unsafe { api.cuEventQuery(event) },
            // SAFETY: see above; the pointer is valid for the call.
            "stream_is_capturing" => unsafe { api.cuStreamIsCapturing(raw_stream(stream), &raw mut status) },
            // SAFETY: see above.
            "memset" => unsafe { api.cuMemsetD8Async(addr.0, 2, bytes, null_mut()) },
            _ => {
                let same = id_before.is_ok() && context_id(driver) == id_before;
                return Ok(json!({ "answer": reported(&context_id(driver)), "same_id": same }));
            }
        };
        // SAFETY: see above.
        let synchronize = unsafe { api.cuCtxSynchronize() };
        let check = |result| reported(&raw.check(DriverCall::Open, part, result));
        Ok(json!({
            "set_current": check(set_current),
            "answer": check(result),
            "synchronize_afterwards": check(synchronize),
            "free_bytes": free,
        }))
    },
};

const RESET_CALLS: &[&str] = &[
    "context_id",
    "memory_info",
    "create",
    "map",
    "unmap",
    "release",
    "address_free",
    "event_query",
    "stream_is_capturing",
    "memset",
];
/// How often the memory is written in the other context: longer than an event takes.
const SETS: u8 = 64;
/// Multiprocessors of the green context: the least of every device that has them.
const MULTIPROCESSORS: u32 = 8;
/// Longer than the calls beside it take.
const WORK_FOR: Duration = Duration::from_millis(100);

/// Plain memory of the device.
fn properties(driver: &CudaDriver) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: allocation_type::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: CUmemLocation { type_: location_type::CU_MEM_LOCATION_TYPE_DEVICE, id: driver.raw().device() },
        ..CUmemAllocationProp::default()
    }
}

fn context_id(driver: &CudaDriver) -> DriverResult<u64> {
    let mut id = 0;
    // SAFETY: the context that the driver has opened; a valid out-parameter.
    let result = unsafe { driver.raw().api().cuCtxGetId(driver.raw().context(), &raw mut id) };
    driver.raw().check(DriverCall::Open, "cuCtxGetId", result).map(|()| id)
}

/// A green context of some multiprocessors, and a stream of it.
struct Green {
    green: CUgreenCtx,
    context: CUcontext,
    stream: StreamId,
}

impl Green {
    fn make(driver: &CudaDriver) -> DriverResult<Self> {
        let optional = driver.raw().optional();
        let (Ok(resource_of), Ok(split), Ok(describe)) = (
            &optional.cuDeviceGetDevResource,
            &optional.cuDevSmResourceSplitByCount,
            &optional.cuDevResourceGenerateDesc,
        ) else {
            return Err(no_function("cuDeviceGetDevResource"));
        };
        let (Ok(create), Ok(context_of), Ok(create_stream)) =
            (&optional.cuGreenCtxCreate, &optional.cuCtxFromGreenCtx, &optional.cuGreenCtxStreamCreate)
        else {
            return Err(no_function("cuGreenCtxCreate"));
        };
        let check = |name, result| driver.raw().check(DriverCall::Stream, name, result);
        let _current = driver.raw().enter(DriverCall::Stream)?;
        let (mut all, mut some, mut rest) =
            (CUdevResource::default(), CUdevResource::default(), CUdevResource::default());
        let kind = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
        let (device, mut groups) = (driver.raw().device(), 1);
        // SAFETY: a valid out-parameter.
        check("cuDeviceGetDevResource", unsafe { resource_of(device, &raw mut all, kind) })?;
        let (some_at, rest_at) = (&raw mut some, &raw mut rest);
        // SAFETY: valid pointers; room for one group, as `groups` says.
        let outcome = unsafe { split(some_at, &raw mut groups, &raw const all, rest_at, 0, MULTIPROCESSORS) };
        check("cuDevSmResourceSplitByCount", outcome)?;
        let mut described: CUdevResourceDesc = null_mut();
        // SAFETY: valid pointers; one resource.
        check("cuDevResourceGenerateDesc", unsafe { describe(&raw mut described, &raw mut some, 1) })?;
        let (mut green, mut context, mut stream) = (null_mut(), null_mut(), null_mut());
        let flags = green_flags::CU_GREEN_CTX_DEFAULT_STREAM.0;
        // SAFETY: a description that was made above; a valid out-parameter.
        check("cuGreenCtxCreate", unsafe { create(&raw mut green, described, device, flags) })?;
        // SAFETY: a live green context; a valid out-parameter.
        check("cuCtxFromGreenCtx", unsafe { context_of(&raw mut context, green) })?;
        let flags = stream_flags::CU_STREAM_NON_BLOCKING.0;
        // SAFETY: a live green context; a valid out-parameter.
        check("cuGreenCtxStreamCreate", unsafe { create_stream(&raw mut stream, green, flags, 0) })?;
        // SAFETY: it is destroyed with this.
        let stream = unsafe { StreamId::from_raw(stream as u64) };
        Ok(Self { green, context, stream })
    }

    fn ask(&self, driver: &Subject) -> DriverResult<Value> {
        let page = driver.granularity();
        let (addr, chunk) = place(driver, page)?;
        let (event, before, other) = (driver.event_create()?, driver.event_create()?, driver.create_stream()?);
        // The kernels are loaded before the clock matters.
        driver.delay(other, Duration::from_micros(1))?;
        driver.event_record(before, other)?;
        let contexts = self.contexts(driver)?;
        let accepted = driver.check_stream(self.stream);
        let kernel = driver.fill(self.stream, addr, page, 5).and_then(|()| driver.synchronize(self.stream));
        let read = driver.verify(other, addr, page, 5).and_then(|()| driver.synchronize(other));
        let right = driver.take_mismatches().is_empty();
        let waits = driver.stream_wait(self.stream, before);
        driver.delay(self.stream, WORK_FOR)?;
        let records = driver.event_record(event, self.stream);
        let early = driver.event_query(event);
        let synchronized = driver.synchronize_device();
        let late = driver.event_query(event);
        let request = request_on(driver, self.stream);
        let inside = self.null_stream(driver)?;
        driver.event_destroy(event)?;
        driver.event_destroy(before)?;
        driver.destroy_stream(other)?;
        take_away(driver, addr, chunk, page)?;
        Ok(json!({
            "contexts": contexts,
            "this_driver_accepts_it": reported(&accepted),
            "kernel_of_the_primary": reported(&kernel),
            "what_it_wrote_is_read": read.is_ok() && right,
            "waits_for_an_event_of_the_primary": reported(&waits),
            "records_an_event_of_the_primary": reported(&records),
            "event_before_and_after_a_wait_for_the_primary": [json!(early.ok()), json!(late.ok())],
            "wait_for_the_primary": reported(&synchronized),
            "request": reported(&request),
            "with_the_green_context_current": inside,
        }))
    }

    /// What the driver says the stream's context is.
    fn contexts(&self, driver: &CudaDriver) -> DriverResult<Value> {
        let _current = driver.raw().enter(DriverCall::Stream)?;
        let (mut context, mut green) = (null_mut(), null_mut());
        let name = |context: CUcontext| match context {
            context if context == driver.raw().context() => "the primary one",
            context if context == self.context => "the green one's",
            _ => "another",
        };
        // SAFETY: a live stream; a valid out-parameter.
        let result = unsafe { driver.raw().api().cuStreamGetCtx(raw_stream(self.stream), &raw mut context) };
        let first = driver.raw().check(DriverCall::Stream, "cuStreamGetCtx", result).map(|()| name(context));
        let Ok(function) = &driver.raw().optional().cuStreamGetCtx_v2 else {
            return Ok(json!({ "first": first.ok() }));
        };
        // SAFETY: a live stream; valid out-parameters.
        let result = unsafe { function(raw_stream(self.stream), &raw mut context, &raw mut green) };
        let second = driver.raw().check(DriverCall::Stream, "cuStreamGetCtx_v2", result).map(|()| name(context));
        Ok(
            json!({ "cuStreamGetCtx": first.ok(), "cuStreamGetCtx_v2": second.ok(), "its_green_context": green == self.green }),
        )
    }

    /// What the stream 0 is while the green context is current.
    fn null_stream(&self, driver: &CudaDriver) -> DriverResult<Value> {
        let api = driver.raw().api();
        let check = |name, result| driver.raw().check(DriverCall::Stream, name, result);
        let (mut before, mut event) = (null_mut(), null_mut());
        // SAFETY: a valid out-parameter.
        check("cuCtxGetCurrent", unsafe { api.cuCtxGetCurrent(&raw mut before) })?;
        // SAFETY: a live context.
        check("cuCtxSetCurrent", unsafe { api.cuCtxSetCurrent(self.context) })?;
        let owns = driver.owns_default_stream();
        // SAFETY: a valid out-parameter.
        let created = check("cuEventCreate", unsafe { api.cuEventCreate(&raw mut event, 2) });
        // SAFETY: the event that was just created, if it was; the default stream of the current context.
        let recorded = check("cuEventRecord", unsafe { api.cuEventRecord(event, null_mut()) });
        // SAFETY: as above; the event is destroyed once.
        let on_stream = check("cuEventRecord", unsafe { api.cuEventRecord(event, raw_stream(self.stream)) });
        if !event.is_null() {
            // SAFETY: created above, destroyed once.
            unsafe { api.cuEventDestroy_v2(event) };
        }
        // SAFETY: the context that was current before.
        check("cuCtxSetCurrent", unsafe { api.cuCtxSetCurrent(before) })?;
        Ok(json!({
            "driver_says_the_default_stream_is_its_own": owns,
            "event_create": reported(&created),
            "event_record_on_0": reported(&recorded),
            "event_record_on_the_stream": reported(&on_stream),
        }))
    }

    fn destroy(self, driver: &CudaDriver) {
        let optional = driver.raw().optional();
        // SAFETY: made in `make`, destroyed once, its stream first.
        unsafe { driver.raw().api().cuStreamDestroy_v2(raw_stream(self.stream)) };
        if let Ok(destroy) = &optional.cuGreenCtxDestroy {
            // SAFETY: as above.
            unsafe { destroy(self.green) };
        }
    }
}

/// An allocation of an allocator that has never seen the stream, and its free.
fn request_on(driver: &Subject, stream: StreamId) -> DriverResult<()> {
    let failed = |error: &dyn std::error::Error| {
        gapless::driver::DriverError::new(
            DriverCall::Stream,
            gapless::driver::DriverErrorKind::Other,
            error.to_string(),
        )
    };
    let builder = driver.builder.clone().allocator().map_err(|error| failed(&error))?;
    let allocator = builder.budget(8 * driver.granularity()).build();
    let allocator = allocator.map_err(|error| failed(&error))?;
    let block: DeviceAddr = allocator.alloc_raw(driver.granularity(), stream).map_err(|error| failed(&error))?;
    allocator.free(block).map_err(|error| failed(&error))
}
