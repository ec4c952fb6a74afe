//! What waits for what; captures and graphs.

use std::time::Duration;

use gapless::driver::cuda::CudaDriver;
use gapless::driver::cuda::raw::raw_stream;
use gapless::driver::cuda::sys::{
    CUgraph, CUgraphExec, CUmemAllocationProp, CUmemAllocationType_enum as allocation_type, CUmemLocation,
    CUmemLocationType_enum as location_type, CUstreamCaptureMode_enum as capture_mode,
};
use gapless::driver::{DriverCall, DriverError, DriverErrorKind, DriverResult, MemoryDriver, StreamDriver, WorkDriver};
use gapless::{DeviceAddr, StreamId};
use serde_json::{Value, json};

use super::{Question, micros, place, put, refusal, timed, told};

/// Much longer than any call takes.
const BUSY_FOR: Duration = Duration::from_millis(300);

pub(super) const BUSY: Question = Question {
    id: "busy",
    text: "Do the calls wait for a running kernel, and how long do they take meanwhile?",
    experiment: |driver| {
        let page = driver.granularity();
        let stream = driver.create_stream()?;
        let (old_addr, _) = place(driver, page)?;
        let new_addr = driver.reserve(page, page)?;
        // The kernels are loaded before the clock matters.
        driver.delay(stream, Duration::from_micros(1))?;
        driver.synchronize(stream)?;
        let event = driver.event_create()?;
        let mut steps = serde_json::Map::new();
        let mut step = |name: &str, duration: Duration| -> DriverResult<()> {
            let finished = driver.event_query(event)?;
            steps.insert(name.to_owned(), json!({ "us": micros(duration), "kernel_finished_meanwhile": finished }));
            Ok(())
        };
        driver.delay(stream, BUSY_FOR)?;
        driver.event_record(event, stream)?;
        let (chunk, duration) = timed(|| driver.create(page))?;
        step("create", duration)?;
        let ((), duration) = timed(|| driver.map(new_addr, page, chunk))?;
        step("map", duration)?;
        let ((), duration) = timed(|| driver.set_access(new_addr, page))?;
        step("set_access", duration)?;
        let ((), duration) = timed(|| driver.unmap(old_addr, page))?;
        step("unmap", duration)?;
        let ((), duration) = timed(|| driver.release(chunk))?;
        step("release", duration)?;
        driver.synchronize(stream)?;
        Ok(json!({ "kernel_us": micros(BUSY_FOR), "calls": steps }))
    },
};

pub(super) const UNMAP_IN_USE: Question = Question {
    id: "unmap_in_use",
    text: "Does unmapping memory that queued work will write to wait, fail, or lose the context?",
    experiment: |driver| {
        let page = driver.granularity();
        let stream = driver.create_stream()?;
        let (addr, _) = place(driver, page)?;
        driver.fill(stream, addr, page, 1)?;
        driver.synchronize(stream)?;
        driver.delay(stream, BUSY_FOR)?;
        driver.fill(stream, addr, page, 2)?;
        let start = std::time::Instant::now();
        let outcome = driver.unmap(addr, page);
        let duration = start.elapsed();
        Ok(json!({
            "unmap": told(&outcome),
            "us": micros(duration),
            "synchronize": told(&driver.synchronize(stream)),
            "create_afterwards": told(&driver.create(page)),
        }))
    },
};

pub(super) const CAPTURE_SAME_THREAD: Question = Question {
    id: "capture_same_thread",
    text: "Which calls break a capture in the global mode, made by the capturing thread without a guard?",
    experiment: |driver| captured(driver, unguarded_calls),
};

pub(super) const CAPTURE_OTHER_THREAD: Question = Question {
    id: "capture_other_thread",
    text: "Which calls break a capture in the global mode, made by another thread without a guard?",
    experiment: |driver| {
        captured(driver, |driver| {
            std::thread::scope(|scope| scope.spawn(|| unguarded_calls(driver)).join())
                .unwrap_or_else(|_| Ok(json!("the thread panicked")))
        })
    },
};

pub(super) const CAPTURE_GUARDED: Question = Question {
    id: "capture_guarded",
    text: "Does a capture in the global mode survive the calls of an allocation, guarded as this driver guards them?",
    experiment: |driver| {
        let page = driver.granularity();
        let before = driver.event_create()?;
        let (addr, unused) = (driver.reserve(page, page)?, driver.create(page)?);
        captured_on(
            driver,
            |driver, stream| driver.event_record(before, stream),
            |driver, _| {
                let chunk = driver.create(page)?;
                Ok(json!({
                    "map": told(&driver.map(addr, page, chunk)),
                    "set_access": told(&driver.set_access(addr, page)),
                    "unmap": told(&driver.unmap(addr, page)),
                    "release": told(&driver.release(unused)),
                    "memory_info": told(&driver.memory_info()),
                    "query_event_from_before": told(&driver.event_query(before)),
                    "wait_for_event_from_before": told(&driver.event_synchronize(before)),
                }))
            },
        )
    },
};

pub(super) const CAPTURE_WAIT: Question = Question {
    id: "capture_wait",
    text: "Does a capture survive when its stream is made to wait for an event of another stream?",
    experiment: |driver| {
        let (other, event) = (driver.create_stream()?, driver.event_create()?);
        driver.event_record(event, other)?;
        captured_on(
            driver,
            |_, _| Ok(()),
            |driver, stream| Ok(json!({ "stream_wait": told(&driver.stream_wait(stream, event)) })),
        )
    },
};

pub(super) const GRAPH_REMAP: Question = Question {
    id: "graph_remap",
    text: "Does a graph write to the memory mapped at its addresses at its launch, or at its capture?",
    experiment: |driver| {
        let page = driver.granularity();
        let stream = driver.create_stream()?;
        let (addr, old) = place(driver, page)?;
        driver.fill(stream, addr, page, 1)?;
        driver.synchronize(stream)?;
        let Some(graph) = capture(driver, stream, || driver.fill(stream, addr, page, 9))? else {
            return Ok(json!("the library has no graphs"));
        };
        let exec = instantiate(driver, graph)?;
        driver.unmap(addr, page)?;
        put(driver, addr, page)?;
        let launched = launch(driver, exec, stream);
        let finished = driver.synchronize(stream);
        let alias = driver.reserve(page, page)?;
        driver.map(alias, page, old)?;
        driver.set_access(alias, page)?;
        let holds = |at: DeviceAddr, seed| -> DriverResult<bool> {
            driver.verify(stream, at, page, seed)?;
            driver.synchronize(stream)?;
            Ok(driver.take_mismatches().is_empty())
        };
        Ok(json!({
            "launch": told(&launched),
            "synchronize": told(&finished),
            "new_chunk_was_written": holds(addr, 9)?,
            "old_chunk_is_untouched": holds(alias, 1)?,
        }))
    },
};

/// Runs `calls` while a stream is captured; reports whether the capture survived.
fn captured(driver: &CudaDriver, calls: impl FnOnce(&CudaDriver) -> DriverResult<Value>) -> DriverResult<Value> {
    captured_on(driver, |_, _| Ok(()), |driver, _| calls(driver))
}

/// As [`captured`], with the stream passed on; `first` may queue work on it before the capture.
fn captured_on(
    driver: &CudaDriver,
    first: impl FnOnce(&CudaDriver, StreamId) -> DriverResult<()>,
    calls: impl FnOnce(&CudaDriver, StreamId) -> DriverResult<Value>,
) -> DriverResult<Value> {
    let stream = driver.create_stream()?;
    first(driver, stream)?;
    let mut answer = Value::Null;
    let graph = capture(driver, stream, || {
        answer = calls(driver, stream)?;
        Ok(())
    });
    Ok(match graph {
        Ok(Some(_)) => json!({ "calls": answer, "capture": "ok" }),
        Ok(None) => json!("the library has no captures"),
        Err(error) => json!({ "calls": answer, "capture": refusal(&error) }),
    })
}

/// One call of each kind without a guard: the thread's capture mode is the default one.
fn unguarded_calls(driver: &CudaDriver) -> DriverResult<Value> {
    let (raw, access) = (driver.raw(), driver.raw().access());
    let api = raw.api();
    let check = |call, result| told(&raw.check(call, DriverCall::name(call), result));
    let page = driver.granularity() as usize;
    let _current = driver.raw().enter(DriverCall::Open)?;
    let prop = CUmemAllocationProp {
        type_: allocation_type::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: CUmemLocation { type_: location_type::CU_MEM_LOCATION_TYPE_DEVICE, id: raw.device() },
        ..CUmemAllocationProp::default()
    };
    let (mut addr, mut handle, mut free, mut total) = (0, 0, 0, 0);
    let mut event = std::ptr::null_mut();
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
    // SAFETY: valid out-parameters.
    let info = unsafe { api.cuMemGetInfo_v2(&raw mut free, &raw mut total) };
    // SAFETY: a valid out-parameter.
    let event_create = unsafe { api.cuEventCreate(&raw mut event, 2) };
    let event_query = if event.is_null() {
        Value::Null
    } else {
        // SAFETY: created above.
        check(DriverCall::EventQuery, unsafe { api.cuEventQuery(event) })
    };
    Ok(json!({
        "reserve": check(DriverCall::Reserve, reserve),
        "create": check(DriverCall::Create, create),
        "map": check(DriverCall::Map, map),
        "set_access": check(DriverCall::SetAccess, access),
        "unmap": check(DriverCall::Unmap, unmap),
        "memory_info": check(DriverCall::MemoryInfo, info),
        "event_create": check(DriverCall::EventCreate, event_create),
        "event_query": event_query,
    }))
}

/// Captures what `queue` queues on `stream` as a graph; `None` if the library has no captures.
fn capture(
    driver: &CudaDriver,
    stream: StreamId,
    queue: impl FnOnce() -> DriverResult<()>,
) -> DriverResult<Option<CUgraph>> {
    let optional = driver.raw().optional();
    let (Ok(begin), Ok(end)) = (&optional.cuStreamBeginCapture_v2, &optional.cuStreamEndCapture) else {
        return Ok(None);
    };
    // The kernels are loaded before the capture begins.
    driver.delay(stream, Duration::from_micros(1))?;
    driver.synchronize(stream)?;
    let _current = driver.raw().enter(DriverCall::Stream)?;
    // SAFETY: a live stream of this context.
    let result = unsafe { begin(raw_stream(stream), capture_mode::CU_STREAM_CAPTURE_MODE_GLOBAL) };
    driver.raw().check(DriverCall::Stream, "cuStreamBeginCapture", result)?;
    let queued = queue();
    let mut graph = std::ptr::null_mut();
    // SAFETY: the stream of the capture above; a valid out-parameter.
    let result = unsafe { end(raw_stream(stream), &raw mut graph) };
    driver.raw().check(DriverCall::Stream, "cuStreamEndCapture", result)?;
    queued.map(|()| Some(graph))
}

fn instantiate(driver: &CudaDriver, graph: CUgraph) -> DriverResult<CUgraphExec> {
    let Ok(function) = &driver.raw().optional().cuGraphInstantiateWithFlags else {
        return Err(no_function("cuGraphInstantiateWithFlags"));
    };
    let _current = driver.raw().enter(DriverCall::Work)?;
    let mut exec = std::ptr::null_mut();
    // SAFETY: a graph of this process; a valid out-parameter.
    let result = unsafe { function(&raw mut exec, graph, 0) };
    driver.raw().check(DriverCall::Work, "cuGraphInstantiateWithFlags", result)?;
    Ok(exec)
}

fn launch(driver: &CudaDriver, exec: CUgraphExec, stream: StreamId) -> DriverResult<()> {
    let Ok(function) = &driver.raw().optional().cuGraphLaunch else { return Err(no_function("cuGraphLaunch")) };
    let _current = driver.raw().enter(DriverCall::Work)?;
    // SAFETY: instantiated above; a live stream.
    let result = unsafe { function(exec, raw_stream(stream)) };
    driver.raw().check(DriverCall::Work, "cuGraphLaunch", result)
}

fn no_function(name: &str) -> DriverError {
    DriverError::new(DriverCall::Work, DriverErrorKind::NotSupported, format!("the library has no {name}"))
}
