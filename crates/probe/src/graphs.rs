//! Graphs: how they are captured here, and what they write to.

use std::time::{Duration, Instant};

use gapless::driver::cuda::CudaDriver;
use gapless::driver::cuda::raw::raw_stream;
use gapless::driver::cuda::sys::{CUgraph, CUgraphExec, CUstreamCaptureMode_enum as capture_mode};
use gapless::driver::{DriverCall, DriverResult, MemoryDriver, StreamDriver, WorkDriver};
use gapless::{DeviceAddr, StreamId};
use serde_json::json;

use crate::{Question, WHOLE, micros, no_function, place, put, reported, take_away, timed};

pub(super) const GRAPH_DROP: Question = Question {
    id: "graph_drop",
    text: "May a graph be destroyed behind its running replay, and its memory unmapped after a wait for the context?",
    parts: WHOLE,
    experiment: |driver| {
        let page = driver.granularity();
        let (stream, event) = (driver.create_stream()?, driver.event_create()?);
        let (addr, chunk) = place(driver, page)?;
        driver.fill(stream, addr, page, 1)?;
        driver.synchronize(stream)?;
        let graph = capture(driver, stream, || {
            driver.delay(stream, REPLAY_FOR)?;
            driver.fill(stream, addr, page, 9)
        })?;
        let exec = instantiate(driver, graph)?;
        launch(driver, exec, stream)?;
        driver.event_record(event, stream)?;
        let ((), destroy) = timed(|| {
            destroy_exec(driver, exec)?;
            destroy_graph(driver, graph)
        })?;
        let running = !driver.event_query(event)?;
        let start = Instant::now();
        let waited = driver.synchronize_device();
        let wait = start.elapsed();
        let finished = driver.event_query(event)?;
        let complete = holds(driver, stream, addr, page, 9)?;
        take_away(driver, addr, chunk, page)?;
        let context = driver.synchronize_device();
        driver.event_destroy(event)?;
        driver.destroy_stream(stream)?;
        Ok(json!({
            "replay_us": micros(REPLAY_FOR),
            "destroy_us": micros(destroy),
            "replay_runs_after_destroy": running,
            "wait_for_context": reported(&waited),
            "wait_us": micros(wait),
            "replay_finished_after_wait": finished,
            "replay_wrote_everything": complete,
            "context_after_unmap": reported(&context),
        }))
    },
};

pub(super) const GRAPH_REMAP: Question = Question {
    id: "graph_remap",
    text: "Does a graph write to the memory mapped at its addresses at its launch, or at its capture?",
    parts: WHOLE,
    experiment: |driver| {
        let page = driver.granularity();
        let stream = driver.create_stream()?;
        let (addr, old) = place(driver, page)?;
        driver.fill(stream, addr, page, 1)?;
        driver.synchronize(stream)?;
        let graph = capture(driver, stream, || driver.fill(stream, addr, page, 9))?;
        let exec = instantiate(driver, graph)?;
        driver.unmap(addr, page)?;
        let new = put(driver, addr, page)?;
        let launched = launch(driver, exec, stream);
        let finished = driver.synchronize(stream);
        let alias = driver.reserve(page, page)?;
        driver.map(alias, page, old)?;
        driver.set_access(alias, page)?;
        let (new_written, old_untouched) =
            (holds(driver, stream, addr, page, 9)?, holds(driver, stream, alias, page, 1)?);
        destroy_exec(driver, exec)?;
        destroy_graph(driver, graph)?;
        take_away(driver, addr, new, page)?;
        take_away(driver, alias, old, page)?;
        driver.destroy_stream(stream)?;
        Ok(json!({
            "launch": reported(&launched),
            "synchronize": reported(&finished),
            "new_chunk_was_written": new_written,
            "old_chunk_is_untouched": old_untouched,
        }))
    },
};

/// Captures what `queue` queues on `stream` as a graph, in the global mode.
pub(super) fn capture(
    driver: &CudaDriver,
    stream: StreamId,
    queue: impl FnOnce() -> DriverResult<()>,
) -> DriverResult<CUgraph> {
    // The kernels are loaded before the capture begins.
    driver.delay(stream, Duration::from_micros(1))?;
    driver.synchronize(stream)?;
    begin(driver, stream)?;
    let queued = queue();
    let graph = end(driver, stream);
    queued.and(graph)
}

/// Begins a capture of `stream` in the global mode.
pub(super) fn begin(driver: &CudaDriver, stream: StreamId) -> DriverResult<()> {
    begin_in(driver, stream, capture_mode::CU_STREAM_CAPTURE_MODE_GLOBAL)
}

/// Begins a capture of `stream`.
pub(super) fn begin_in(driver: &CudaDriver, stream: StreamId, mode: capture_mode) -> DriverResult<()> {
    let Ok(function) = &driver.raw().optional().cuStreamBeginCapture_v2 else {
        return Err(no_function("cuStreamBeginCapture"));
    };
    let _current = driver.raw().enter(DriverCall::Stream)?;
    // SAFETY: a live stream of this context.
    let result = unsafe { function(raw_stream(stream), mode) };
    driver.raw().check(DriverCall::Stream, "cuStreamBeginCapture", result)
}

/// Ends the capture of `stream`. The error says what became of it.
pub(super) fn end(driver: &CudaDriver, stream: StreamId) -> DriverResult<CUgraph> {
    let Ok(function) = &driver.raw().optional().cuStreamEndCapture else {
        return Err(no_function("cuStreamEndCapture"));
    };
    let _current = driver.raw().enter(DriverCall::Stream)?;
    let mut graph = std::ptr::null_mut();
    // SAFETY: a stream of this context; a valid out-parameter.
    let result = unsafe { function(raw_stream(stream), &raw mut graph) };
    driver.raw().check(DriverCall::Stream, "cuStreamEndCapture", result).map(|()| graph)
}

pub(super) fn instantiate(driver: &CudaDriver, graph: CUgraph) -> DriverResult<CUgraphExec> {
    let Ok(function) = &driver.raw().optional().cuGraphInstantiateWithFlags else {
        return Err(no_function("cuGraphInstantiateWithFlags"));
    };
    let _current = driver.raw().enter(DriverCall::Work)?;
    let mut exec = std::ptr::null_mut();
    // SAFETY: a graph of this process; a valid out-parameter.
    let result = unsafe { function(&raw mut exec, graph, 0) };
    driver.raw().check(DriverCall::Work, "cuGraphInstantiateWithFlags", result).map(|()| exec)
}

pub(super) fn launch(driver: &CudaDriver, exec: CUgraphExec, stream: StreamId) -> DriverResult<()> {
    let Ok(function) = &driver.raw().optional().cuGraphLaunch else { return Err(no_function("cuGraphLaunch")) };
    let _current = driver.raw().enter(DriverCall::Work)?;
    // SAFETY: instantiated above; a live stream.
    let result = unsafe { function(exec, raw_stream(stream)) };
    driver.raw().check(DriverCall::Work, "cuGraphLaunch", result)
}

pub(super) fn destroy_graph(driver: &CudaDriver, graph: CUgraph) -> DriverResult<()> {
    let Ok(function) = &driver.raw().optional().cuGraphDestroy else { return Err(no_function("cuGraphDestroy")) };
    let _current = driver.raw().enter(DriverCall::Work)?;
    // SAFETY: a graph of this process, destroyed once.
    driver.raw().check(DriverCall::Work, "cuGraphDestroy", unsafe { function(graph) })
}

pub(super) fn destroy_exec(driver: &CudaDriver, exec: CUgraphExec) -> DriverResult<()> {
    let Ok(function) = &driver.raw().optional().cuGraphExecDestroy else {
        return Err(no_function("cuGraphExecDestroy"));
    };
    let _current = driver.raw().enter(DriverCall::Work)?;
    // SAFETY: an executable graph of this process, destroyed once.
    driver.raw().check(DriverCall::Work, "cuGraphExecDestroy", unsafe { function(exec) })
}

/// Whether `[addr, addr + bytes)` holds the pattern of `seed`.
fn holds(driver: &CudaDriver, stream: StreamId, addr: DeviceAddr, bytes: u64, seed: u64) -> DriverResult<bool> {
    driver.verify(stream, addr, bytes, seed)?;
    driver.synchronize(stream)?;
    Ok(driver.take_mismatches().is_empty())
}

/// Longer than a destruction and an unmap take.
const REPLAY_FOR: Duration = Duration::from_millis(150);
