//! Questions about a device that no document answers, each with an experiment.
//!
//! An experiment may lose the device's context, take seconds, or be killed by the driver: ask each question in a
//! process of its own, as `gapless probe` does. The device benchmark shares `allocators` and `measure`.
//!
//! ```text
//! handles.rs     streams: values, dead handles, ids    addresses.rs    reservations
//! contexts.rs    calls without a current context       order.rs        what waits for what
//! captures.rs    what breaks a capture                 coherence.rs    two mappings of one chunk
//! graphs.rs      graphs and what they write to         costs.rs        microseconds, limits
//! rules.rs       what the driver accepts and refuses   peers.rs        access for other devices
//! calls.rs       the calls that captures.rs tries      speed.rs        latency and bandwidth of memory
//! allocators.rs  the driver's own allocators           measure.rs      the kernels behind speed.rs
//! neighbours.rs  green and other contexts, resets      backups.rs      pinned memory of the host, copies
//! ```

mod addresses;
pub mod allocators;
mod backups;
mod calls;
mod captures;
mod coherence;
mod contexts;
mod costs;
mod graphs;
mod handles;
mod measure;
mod neighbours;
mod order;
mod peers;
mod rules;
mod speed;

use std::ops::Deref;
use std::time::{Duration, Instant};

use gapless::DeviceAddr;
use gapless::driver::cuda::{CudaBuilder, CudaDriver, OpenError};
use gapless::driver::{ChunkHandle, DriverCall, DriverError, DriverErrorKind, DriverResult, MemoryDriver};
use serde_json::{Value, json};

pub use addresses::reserve_at_most;
pub use measure::{ChaseLatency, Measurements, Pass};

/// A question, and the experiment that answers it.
pub struct Question {
    /// A short name that does not change between versions.
    pub id: &'static str,
    /// The question as a sentence.
    pub text: &'static str,
    /// The parts of the question, if each part needs a process of its own; else empty.
    pub parts: &'static [&'static str],
    experiment: fn(&Subject) -> DriverResult<Value>,
}

/// How a question is asked.
#[derive(Debug, Clone)]
pub struct Settings {
    /// How often an experiment repeats what has to go right every time.
    pub rounds: u64,
    /// The part of a question that has [`parts`](Question::parts).
    pub part: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { rounds: ROUNDS, part: None }
    }
}

/// The subject of an experiment: a driver that is open for it alone, and how it is asked.
struct Subject {
    driver: CudaDriver,
    /// The settings with which the driver was opened.
    builder: CudaBuilder,
    settings: Settings,
}

impl Deref for Subject {
    type Target = CudaDriver;

    fn deref(&self) -> &CudaDriver {
        &self.driver
    }
}

/// The result of an experiment.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Answer {
    /// The question's id.
    pub id: &'static str,
    /// The question's text.
    pub question: &'static str,
    /// The measured value; `null` when the experiment itself failed.
    pub value: Value,
    /// Why the experiment failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How long the experiment took, including the start of the driver.
    pub seconds: f64,
}

impl Question {
    /// Every question, in the order in which they are asked.
    pub const ALL: &[Self] = &[
        handles::STREAM_VALUES,
        handles::DEAD_STREAM,
        handles::STREAM_IDS,
        contexts::EVENTS_WITHOUT_CONTEXT,
        captures::CAPTURED_EVENT,
        graphs::GRAPH_DROP,
        captures::CAPTURE_SYNCHRONIZE,
        addresses::RESERVE_4_TIB,
        order::BUSY,
        coherence::ALIAS_COHERENCE,
        costs::RANGED_ACCESS,
        peers::PEER_DESCRIPTOR,
        captures::CAPTURE_SAME_THREAD,
        captures::CAPTURE_OTHER_THREAD,
        captures::CAPTURE_GUARDED,
        captures::CAPTURE_REQUEST,
        captures::CAPTURE_WAIT,
        captures::CAPTURE_BLOCKING,
        graphs::GRAPH_REMAP,
        order::UNMAP_IN_USE,
        rules::SUB_SIZE_MAP,
        rules::UNMAP_TWO,
        rules::UNMAP_PART,
        rules::UNMAP_HOLE,
        rules::ACCESS_PART,
        rules::READ_ONLY,
        rules::FRESH_CONTENT,
        rules::EXPORT,
        contexts::WITHOUT_CONTEXT,
        neighbours::GREEN_STREAMS,
        neighbours::SECOND_CONTEXT,
        neighbours::CONTEXT_RESET,
        rules::MEMORY_INFO,
        costs::CALLS_BY_SIZE,
        costs::CREATION_FLAGS,
        costs::THREADS,
        addresses::RESERVATION,
        costs::MAPPINGS,
        speed::LATENCY,
        speed::BANDWIDTH,
        backups::HOST_MEMORY,
        backups::COPY_OVER_MAPPINGS,
    ];

    /// Runs the experiment on a device that is opened for it alone. The experiment may leave the device unusable for
    /// this process, may leak memory, and may end the process: end it afterwards.
    pub fn ask(&self, builder: CudaBuilder, settings: &Settings) -> Answer {
        let start = Instant::now();
        // SAFETY: an experiment breaks a rule only where that is the question, in a process of its own.
        let opened = unsafe { builder.clone().open() };
        let outcome = opened.and_then(|driver| {
            (self.experiment)(&Subject { driver, builder, settings: settings.clone() }).map_err(OpenError::from)
        });
        let (value, error) = match outcome {
            Ok(value) => (value, None),
            Err(error) => (Value::Null, Some(error.to_string())),
        };
        Answer { id: self.id, question: self.text, value, error, seconds: start.elapsed().as_secs_f64() }
    }
}

/// The outcome of a call, as JSON: `"ok"`, or the result code and its name.
fn reported<T>(outcome: &DriverResult<T>) -> Value {
    match outcome {
        Ok(_) => json!("ok"),
        Err(error) => refusal(error),
    }
}

/// A failed call, as JSON: the result code and its name.
fn refusal(error: &DriverError) -> Value {
    json!({ "code": error.code, "name": error.name })
}

/// An answer that is not given, and why.
fn skipped(why: impl Into<String>) -> Value {
    json!({ "skipped": why.into() })
}

/// The error of a function that the library does not have.
fn no_function(name: &str) -> DriverError {
    DriverError::new(DriverCall::Work, DriverErrorKind::NotSupported, format!("the library has no {name}"))
}

/// A chunk of `bytes`, mapped with access at `addr`; its handle is kept.
fn put(driver: &CudaDriver, addr: DeviceAddr, bytes: u64) -> DriverResult<ChunkHandle> {
    let chunk = driver.create(bytes)?;
    driver.map(addr, bytes, chunk)?;
    driver.set_access(addr, bytes)?;
    Ok(chunk)
}

/// A chunk of `bytes` at an address of its own.
fn place(driver: &CudaDriver, bytes: u64) -> DriverResult<(DeviceAddr, ChunkHandle)> {
    let addr = driver.reserve(bytes, driver.granularity())?;
    Ok((addr, put(driver, addr, bytes)?))
}

/// Undoes [`place`].
fn take_away(driver: &CudaDriver, addr: DeviceAddr, chunk: ChunkHandle, bytes: u64) -> DriverResult<()> {
    driver.unmap(addr, bytes)?;
    driver.release(chunk)?;
    driver.address_free(addr, bytes)
}

/// How long `call` took, beside its result.
fn timed<T>(call: impl FnOnce() -> DriverResult<T>) -> DriverResult<(T, Duration)> {
    let start = Instant::now();
    let value = call()?;
    Ok((value, start.elapsed()))
}

/// Microseconds, to a tenth.
fn micros(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e7).round() / 10.0
}

/// GB/s, to a tenth.
fn gb_per_s(bytes: u64, duration: Duration) -> f64 {
    (bytes as f64 / duration.as_secs_f64() / 1e8).round() / 10.0
}

/// The median; zero when there are none.
fn median(mut durations: Vec<Duration>) -> Duration {
    durations.sort_unstable();
    durations.get(durations.len() / 2).copied().unwrap_or_default()
}

/// The parts of a question that is asked as a whole.
const WHOLE: &[&str] = &[];

/// Enough to see what goes wrong once in ten thousand times.
const ROUNDS: u64 = 100_000;
