//! The calls that break a capture. Every call is made in a capture of its own, since the first one that is refused ends a capture
//! for the others too, and with objects that were made before it.

use gapless::StreamId;
use gapless::driver::cuda::CudaDriver;
use gapless::driver::cuda::sys::{
    CUstreamCaptureMode_enum as capture_mode, CUstreamCaptureStatus_enum as capture_status,
};
use gapless::driver::{
    DriverCall, DriverError, DriverErrorKind, DriverResult, EventHandle, MemoryDriver, StreamDriver, WorkDriver,
};
use serde_json::{Map, Value, json};
use std::ptr::null_mut;

use crate::calls::{Call, Objects};
use crate::graphs::{begin, begin_in, destroy_graph, end};
use crate::{Question, WHOLE, no_function, reported};

pub(super) const CAPTURE_SAME_THREAD: Question = Question {
    id: "capture_same_thread",
    text: "Which calls break a capture in the global mode, made by the capturing thread without a guard?",
    parts: WHOLE,
    experiment: |driver| each_call(driver, |call, objects| call.unguarded(driver, objects)),
};

pub(super) const CAPTURE_OTHER_THREAD: Question = Question {
    id: "capture_other_thread",
    text: "Which calls break a capture in the global mode, made by another thread without a guard?",
    parts: WHOLE,
    experiment: |driver| each_call(driver, |call, objects| by_another_thread(|| call.unguarded(driver, objects))),
};

pub(super) const CAPTURE_GUARDED: Question = Question {
    id: "capture_guarded",
    text: "Does a capture in the global mode survive the calls of an allocation, guarded as this driver guards them?",
    parts: WHOLE,
    experiment: |driver| each_call(driver, |call, objects| call.guarded(driver, objects)),
};

pub(super) const CAPTURE_REQUEST: Question = Question {
    id: "capture_request",
    text: "Does a capture survive a request on its stream, of an allocator that has never seen the stream?",
    parts: WHOLE,
    experiment: |driver| {
        let mut answers = Map::new();
        for (name, mode) in MODES {
            for elsewhere in [false, true] {
                let builder = driver.builder.clone().allocator().map_err(|error| unopened(&error))?;
                let builder = builder.budget(PAGES * driver.granularity());
                let pool = builder.keep_mappings().build().map_err(|error| unopened(&error))?;
                let stream = driver.create_stream()?;
                let request = || {
                    let block = pool.alloc_raw(driver.granularity(), stream).map_err(|error| unopened(&error))?;
                    pool.free(block).map_err(|error| unopened(&error))
                };
                begin_in(driver, stream, mode)?;
                let outcome = match elsewhere {
                    true => by_another_thread(request),
                    false => request(),
                };
                let captured = end(driver, stream);
                if let Ok(graph) = captured {
                    destroy_graph(driver, graph)?;
                }
                let thread = if elsewhere { "another_thread" } else { "same_thread" };
                let answer = json!({ "request": reported(&outcome), "capture": reported(&captured) });
                answers.insert(format!("{name}_{thread}"), answer);
                driver.destroy_stream(stream)?;
            }
        }
        Ok(Value::Object(answers))
    },
};

const MODES: [(&str, capture_mode); 3] = [
    ("global", capture_mode::CU_STREAM_CAPTURE_MODE_GLOBAL),
    ("thread_local", capture_mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
    ("relaxed", capture_mode::CU_STREAM_CAPTURE_MODE_RELAXED),
];
/// The budget of the allocator, in pages.
const PAGES: u64 = 8;

/// Returns the error that kept an allocator from an answer, as one of the driver.
fn unopened(error: &dyn std::error::Error) -> DriverError {
    DriverError::new(DriverCall::Open, DriverErrorKind::Other, error.to_string())
}

pub(super) const CAPTURE_WAIT: Question = Question {
    id: "capture_wait",
    text: "Does a capture survive when its stream is made to wait for an event of another stream?",
    parts: WHOLE,
    experiment: |driver| {
        let (stream, other, event) = (driver.create_stream()?, driver.create_stream()?, driver.event_create()?);
        driver.event_record(event, other)?;
        let answer = during(driver, stream, || driver.stream_wait(stream, event))?;
        driver.event_destroy(event)?;
        driver.destroy_stream(other)?;
        driver.destroy_stream(stream)?;
        Ok(answer)
    },
};

pub(super) const CAPTURE_SYNCHRONIZE: Question = Question {
    id: "capture_synchronize",
    text: "Does a wait for the whole context or for another stream, in the relaxed mode, break a capture?",
    parts: WHOLE,
    experiment: |driver| {
        let (stream, other) = (driver.create_stream()?, driver.create_stream()?);
        let answer = json!({
            "context_by_another_thread": during(driver, stream, || by_another_thread(|| driver.synchronize_device()))?,
            "context_by_the_same_thread": during(driver, stream, || driver.synchronize_device())?,
            "stream_by_another_thread": during(driver, stream, || by_another_thread(|| driver.synchronize(other)))?,
            "stream_by_the_same_thread": during(driver, stream, || driver.synchronize(other))?,
        });
        driver.destroy_stream(other)?;
        driver.destroy_stream(stream)?;
        Ok(answer)
    },
};

pub(super) const CAPTURED_EVENT: Question = Question {
    id: "captured_event",
    text: "What do calls about an event that was recorded in a capture return, and do they break the capture?",
    parts: WHOLE,
    experiment: |driver| {
        let mut answers = Map::new();
        for (name, call) in EVENT_CALLS {
            let (stream, other, event) = (driver.create_stream()?, driver.create_stream()?, driver.event_create()?);
            begin(driver, stream)?;
            let recorded = driver.event_record(event, stream);
            let outcome = recorded.and_then(|()| call(driver, event, other));
            let captured = end(driver, stream);
            let afterwards = driver.event_query(event);
            let synchronized = driver.event_synchronize(event);
            let fresh = driver.create_stream()?;
            let waited = driver.stream_wait(fresh, event);
            driver.destroy_stream(fresh)?;
            if let Ok(graph) = captured {
                destroy_graph(driver, graph)?;
            }
            let again = driver.event_record(event, other).and_then(|()| driver.event_synchronize(event));
            answers.insert(
                name.to_owned(),
                json!({
                    "call": reported(&outcome),
                    "capture": reported(&captured),
                    "query_afterwards": reported(&afterwards),
                    "synchronize_afterwards": reported(&synchronized),
                    "wait_afterwards": reported(&waited),
                    "recorded_again_outside": reported(&again),
                }),
            );
            driver.event_destroy(event)?;
            // Where the capture has spread to it, this stream is still captured.
            let _ = driver.destroy_stream(other);
            driver.destroy_stream(stream)?;
        }
        Ok(Value::Object(answers))
    },
};

pub(super) const CAPTURE_BLOCKING: Question = Question {
    id: "capture_blocking",
    text: "Which calls about the legacy stream break the capture of a blocking stream by another thread in the relaxed mode?",
    parts: WHOLE,
    experiment: |driver| {
        let mut answers = Map::new();
        for (name, call) in LEGACY_CALLS {
            let (stream, event) = (create_blocking(driver)?, driver.event_create()?);
            driver.event_record(event, StreamId::DEFAULT)?;
            driver.event_synchronize(event)?;
            let relaxed = || {
                let mut mode = capture_mode::CU_STREAM_CAPTURE_MODE_RELAXED;
                // SAFETY: a valid parameter; the thread ends with its mode.
                let result = unsafe { driver.raw().api().cuThreadExchangeStreamCaptureMode(&raw mut mode) };
                driver.raw().check(DriverCall::Stream, "cuThreadExchangeStreamCaptureMode", result)?;
                let _current = driver.raw().enter(DriverCall::Stream)?;
                call(driver, event)
            };
            answers.insert(name.to_owned(), during(driver, stream, || by_another_thread(relaxed))?);
            driver.event_destroy(event)?;
            driver.destroy_stream(stream)?;
        }
        Ok(Value::Object(answers))
    },
};

/// A call about the legacy stream, or about an event that was recorded on it.
type LegacyCall = fn(&CudaDriver, EventHandle) -> DriverResult<()>;

const LEGACY_CALLS: [(&str, LegacyCall); 8] = [
    ("is_capturing", |driver, _| {
        let mut status = capture_status::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the legacy stream; a valid out-parameter.
        let result = unsafe { driver.raw().api().cuStreamIsCapturing(null_mut(), &raw mut status) };
        driver.raw().check(DriverCall::Stream, "cuStreamIsCapturing", result)
    }),
    ("capture_info", |driver, _| {
        let Ok(function) = &driver.raw().optional().cuStreamGetCaptureInfo_v3 else {
            return Err(no_function("cuStreamGetCaptureInfo_v3"));
        };
        let (mut status, mut id) = (capture_status::CU_STREAM_CAPTURE_STATUS_NONE, 0);
        let nothing = (null_mut(), null_mut(), null_mut(), null_mut());
        // SAFETY: the legacy stream; valid out-parameters, and null where that is allowed.
        let result =
            unsafe { function(null_mut(), &raw mut status, &raw mut id, nothing.0, nothing.1, nothing.2, nothing.3) };
        driver.raw().check(DriverCall::Stream, "cuStreamGetCaptureInfo", result)
    }),
    ("id", |driver, _| {
        let mut id = 0;
        // SAFETY: the legacy stream; a valid out-parameter.
        let result = unsafe { driver.raw().api().cuStreamGetId(null_mut(), &raw mut id) };
        driver.raw().check(DriverCall::Stream, "cuStreamGetId", result)
    }),
    ("query", |driver, _| {
        // SAFETY: the legacy stream.
        let result = unsafe { driver.raw().api().cuStreamQuery(null_mut()) };
        driver.raw().check(DriverCall::Stream, "cuStreamQuery", result)
    }),
    ("event_record", |driver, event| driver.event_record(event, StreamId::DEFAULT)),
    ("event_query_of_one_from_before", |driver, event| driver.event_query(event).map(drop)),
    ("event_synchronize_of_one_from_before", |driver, event| driver.event_synchronize(event)),
    ("stream_wait", |driver, event| driver.stream_wait(StreamId::DEFAULT, event)),
];

/// A stream that waits for the legacy one, and the reverse.
fn create_blocking(driver: &CudaDriver) -> DriverResult<StreamId> {
    let _current = driver.raw().enter(DriverCall::Stream)?;
    let mut stream = null_mut();
    // SAFETY: a valid out-parameter.
    let result = unsafe { driver.raw().api().cuStreamCreate(&raw mut stream, 0) };
    driver.raw().check(DriverCall::Stream, "cuStreamCreate", result)?;
    // SAFETY: who asks for it destroys it, and uses it no more.
    Ok(unsafe { StreamId::from_raw(stream as u64) })
}

/// A call about a captured event, with another stream.
type EventCall = fn(&CudaDriver, EventHandle, StreamId) -> DriverResult<()>;

const EVENT_CALLS: [(&str, EventCall); 4] = [
    ("none", |_, _, _| Ok(())),
    ("query_in_relaxed_mode", |driver, event, _| driver.event_query(event).map(drop)),
    ("query_in_default_mode", |driver, event, _| {
        let event = std::ptr::with_exposed_provenance_mut(event.0 as usize);
        // SAFETY: a live event.
        let result = unsafe { driver.raw().api().cuEventQuery(event) };
        driver.raw().check(DriverCall::EventQuery, "cuEventQuery", result)
    }),
    ("synchronize_in_relaxed_mode", |driver, event, _| driver.event_synchronize(event)),
];

/// Makes every call, each in a capture of its own; says what it returned and what became of the capture.
fn each_call(driver: &CudaDriver, make: impl Fn(Call, &mut Objects) -> DriverResult<()>) -> DriverResult<Value> {
    let mut answers = Map::new();
    for call in Call::ALL {
        let stream = driver.create_stream()?;
        let mut objects = Objects::make(driver, stream)?;
        let answer = during(driver, stream, || make(call, &mut objects))?;
        objects.undo(driver)?;
        driver.destroy_stream(stream)?;
        answers.insert(call.name().to_owned(), answer);
    }
    Ok(Value::Object(answers))
}

/// Makes one call while `stream` is captured in the global mode; says what it returned and what became of the capture.
fn during(driver: &CudaDriver, stream: StreamId, call: impl FnOnce() -> DriverResult<()>) -> DriverResult<Value> {
    begin(driver, stream)?;
    let outcome = call();
    let captured = end(driver, stream);
    if let Ok(graph) = captured {
        destroy_graph(driver, graph)?;
    }
    Ok(json!({ "call": reported(&outcome), "capture": reported(&captured) }))
}

/// Makes a call on a thread of its own.
fn by_another_thread<T: Send>(call: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(call).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
