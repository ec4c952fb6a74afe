//! Handles of streams: whether their values come back, what a dead one answers, and which stream the handle 2 is.

use std::collections::HashSet;
use std::time::Duration;

use gapless::StreamId;
use gapless::driver::cuda::raw::raw_stream;
use gapless::driver::cuda::{CudaDriver, LEGACY_STREAM, PER_THREAD_STREAM};
use gapless::driver::{DriverCall, DriverResult, MemoryDriver, StreamDriver, WorkDriver};
use serde_json::{Value, json};

use crate::graphs::{begin, destroy_graph, end};
use crate::{Question, WHOLE, refusal, reported};

pub(super) const STREAM_VALUES: Question = Question {
    id: "stream_values",
    text: "Does a new stream get the handle's value of a stream that was destroyed, idle or with work in flight?",
    parts: WHOLE,
    experiment: |driver| {
        let idle = reused(driver, Duration::ZERO, IDLE_ROUNDS)?;
        let busy = reused(driver, BUSY_FOR, BUSY_ROUNDS)?;
        Ok(json!({ "idle": idle, "with_work_in_flight": busy }))
    },
};

pub(super) const DEAD_STREAM: Question = Question {
    id: "dead_stream",
    text: "What does each call return for the handle of a stream that was destroyed? (A process for each: it may crash.)",
    parts: DEAD_CALLS,
    experiment: |driver| {
        let Some(part) = driver.settings.part.as_deref() else { return Ok(json!("asked call by call")) };
        let (stream, event) = (driver.create_stream()?, driver.event_create()?);
        // Loads the kernels, and gives the stream something to have been for.
        driver.delay(stream, Duration::from_micros(1))?;
        driver.event_record(event, stream)?;
        driver.synchronize(stream)?;
        destroy_now(driver, stream)?;
        let answer = call_with_dead(driver, part, stream, event.0)?;
        let alive = driver.create(driver.granularity()).and_then(|chunk| driver.release(chunk));
        driver.event_destroy(event)?;
        Ok(json!({ "answer": answer, "create_afterwards": reported(&alive) }))
    },
};

pub(super) const STREAM_IDS: Question = Question {
    id: "stream_ids",
    text: "Which ids do streams have: the default ones, the handle 2 on several threads, and during captures?",
    parts: WHOLE,
    experiment: |driver| {
        let stream = driver.create_stream()?;
        let here = ids_of(driver, stream);
        let elsewhere = on_another_thread(|| ids_of(driver, stream));
        let after_its_end = on_another_thread(|| ids_of(driver, stream));
        // One capture for each call, since a call that is refused may end it.
        let (created, two, legacy) = ((stream, "created"), (PER_THREAD_STREAM, "2"), (StreamId::DEFAULT, "0"));
        let mut captures = Vec::new();
        for (captured, asked) in [(created, created), (created, two), (created, legacy), (two, two), (two, legacy)] {
            for (thread, by) in [(Thread::Same, "the capturing one"), (Thread::Another, "another")] {
                let (id, capture) = id_during(driver, captured.0, asked.0, thread)?;
                captures.push(json!({
                    "captured": captured.1, "asked": asked.1, "thread": by, "id": id, "capture": capture,
                }));
            }
        }
        driver.destroy_stream(stream)?;
        Ok(json!({
            "one_thread": here,
            "another_thread": elsewhere,
            "a_third_thread_after_its_end": after_its_end,
            "during_captures": captures,
        }))
    },
};

#[derive(Clone, Copy)]
enum Thread {
    Same,
    Another,
}

/// Asks for an id while a stream is captured by this thread; says what became of the capture too.
fn id_during(driver: &CudaDriver, captured: StreamId, asked: StreamId, thread: Thread) -> DriverResult<(Value, Value)> {
    if let Err(error) = begin(driver, captured) {
        return Ok((Value::Null, json!({ "begin": refusal(&error) })));
    }
    let ask = || id_of(driver, asked).map_or_else(|error| refusal(&error), |id| json!(id));
    let answer = match thread {
        Thread::Same => ask(),
        Thread::Another => on_another_thread(ask),
    };
    let ended = end(driver, captured);
    if let Ok(graph) = ended {
        destroy_graph(driver, graph)?;
    }
    Ok((answer, reported(&ended)))
}

/// Creates and destroys streams in turn, each with a kernel of `work` in flight; says how often the next one got the value
/// of the one before, and whether ids tell them apart.
fn reused(driver: &CudaDriver, work: Duration, rounds: u32) -> DriverResult<Value> {
    let event = driver.event_create()?;
    let (mut same_value, mut same_id, mut in_flight, mut values) = (0, 0, 0, HashSet::new());
    for _ in 0..rounds {
        let old = driver.create_stream()?;
        let old_id = id_of(driver, old);
        if !work.is_zero() {
            driver.delay(old, work)?;
            driver.event_record(event, old)?;
        }
        destroy_now(driver, old)?;
        let new = driver.create_stream()?;
        if !work.is_zero() {
            in_flight += u32::from(!driver.event_query(event)?);
        }
        if new == old {
            same_value += 1;
            same_id += u32::from(old_id.is_ok() && id_of(driver, new) == old_id);
        }
        values.extend([old, new]);
        driver.destroy_stream(new)?;
        driver.synchronize_device()?;
    }
    driver.event_destroy(event)?;
    Ok(json!({
        "rounds": rounds,
        "same_value": same_value,
        "same_value_and_id": same_id,
        "different_values": values.len(),
        "work_in_flight_when_the_new_one_was_there": in_flight,
    }))
}

/// Makes the call named `part` with a handle whose stream is gone.
fn call_with_dead(driver: &CudaDriver, part: &str, dead: StreamId, event: u64) -> DriverResult<Value> {
    let (raw, api) = (driver.raw(), driver.raw().api());
    let _current = raw.enter(DriverCall::Stream)?;
    let stream = raw_stream(dead);
    let event = std::ptr::with_exposed_provenance_mut(event as usize);
    let mut status = gapless::driver::cuda::sys::CUstreamCaptureStatus_enum(0);
    let mut context = std::ptr::null_mut();
    // None of these calls is allowed. What they do is the question, and this process is there for it.
    let result = match part {
        // SAFETY: see above; the pointers are valid for the call.
        "is_capturing" => unsafe { api.cuStreamIsCapturing(stream, &raw mut status) },
        // SAFETY: see above; the pointers are valid for the call.
        "query" => unsafe { api.cuStreamQuery(stream) },
        // SAFETY: see above; the pointers are valid for the call.
        "synchronize" => unsafe { api.cuStreamSynchronize(stream) },
        // SAFETY: see above; the pointers are valid for the call.
        "event_record" => unsafe { api.cuEventRecord(event, stream) },
        // SAFETY: see above; the pointers are valid for the call.
        "wait_for_event" => unsafe { api.cuStreamWaitEvent(stream, event, 0) },
        // SAFETY: see above; the pointers are valid for the call.
        "get_context" => unsafe { api.cuStreamGetCtx(stream, &raw mut context) },
        // SAFETY: see above; the pointers are valid for the call.
        "destroy_again" => unsafe { api.cuStreamDestroy_v2(stream) },
        _ => return Ok(reported(&id_of(driver, dead))),
    };
    Ok(reported(&raw.check(DriverCall::Stream, part, result)))
}

const DEAD_CALLS: &[&str] = &[
    "is_capturing",
    "query",
    "synchronize",
    "event_record",
    "wait_for_event",
    "get_context",
    "get_id",
    "destroy_again",
];

/// Destroys a stream without waiting for its work, as programs do.
fn destroy_now(driver: &CudaDriver, stream: StreamId) -> DriverResult<()> {
    let _current = driver.raw().enter(DriverCall::Stream)?;
    // SAFETY: a stream that was made here, destroyed once.
    let result = unsafe { driver.raw().api().cuStreamDestroy_v2(raw_stream(stream)) };
    driver.raw().check(DriverCall::Stream, "cuStreamDestroy", result)
}

/// The id of a stream, as the calling thread sees it.
fn id_of(driver: &CudaDriver, stream: StreamId) -> DriverResult<u64> {
    let _current = driver.raw().enter(DriverCall::Stream)?;
    let mut id = 0;
    // SAFETY: a stream of this device, or a dead one where that is the question; a valid out-parameter.
    let result = unsafe { driver.raw().api().cuStreamGetId(raw_stream(stream), &raw mut id) };
    driver.raw().check(DriverCall::Stream, "cuStreamGetId", result).map(|()| id)
}

/// The ids of the default streams and of `created`, as the calling thread sees them.
fn ids_of(driver: &CudaDriver, created: StreamId) -> Value {
    let id = |stream| match id_of(driver, stream) {
        Ok(id) => json!(id),
        Err(error) => refusal(&error),
    };
    json!({
        "0": id(StreamId::DEFAULT),
        "1": id(LEGACY_STREAM),
        "2": id(PER_THREAD_STREAM),
        "created": id(created),
    })
}

fn on_another_thread(ask: impl Fn() -> Value + Send) -> Value {
    std::thread::scope(|scope| scope.spawn(ask).join()).unwrap_or_else(|_| json!("the thread panicked"))
}

const IDLE_ROUNDS: u32 = 32;
const BUSY_ROUNDS: u32 = 8;
/// Longer than a destruction and a creation take.
const BUSY_FOR: Duration = Duration::from_millis(30);
