//! Questions about a device that no document answers, each with an experiment.
//!
//! An experiment may lose the device's context, take seconds, or be killed by the driver: ask each question in a
//! process of its own, as `gapless probe` does. The device benchmark shares `allocators` and `measure`.
//!
//! ```text
//! rules.rs      what the driver accepts and refuses   allocators.rs   the driver's own allocators
//! order.rs      what waits for what, captures, graphs
//! costs.rs      microseconds, limits, latency         measure.rs      bandwidth and latency of memory
//! ```

pub mod allocators;
mod costs;
mod measure;
mod order;
mod rules;

use std::time::{Duration, Instant};

use gapless::DeviceAddr;
use gapless::driver::cuda::{CudaBuilder, CudaDriver, OpenError};
use gapless::driver::{ChunkHandle, DriverError, DriverResult, MemoryDriver};
use serde_json::{Value, json};

pub use costs::reserve_at_most;
pub use measure::{ChaseLatency, Measurements, Pass};

/// A question, and the experiment that answers it.
pub struct Question {
    /// A short name that does not change between versions.
    pub id: &'static str,
    /// The question as a sentence.
    pub text: &'static str,
    experiment: fn(&CudaDriver) -> DriverResult<Value>,
}

/// What an experiment showed.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Answer {
    /// The question's id.
    pub id: &'static str,
    /// The question's text.
    pub question: &'static str,
    /// What was measured; `null` when the experiment itself failed.
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
        rules::SUB_SIZE_MAP,
        rules::UNMAP_TWO,
        rules::UNMAP_PART,
        rules::UNMAP_HOLE,
        rules::ACCESS_PART,
        rules::READ_ONLY,
        rules::FRESH_CONTENT,
        rules::EXPORT,
        rules::WITHOUT_CONTEXT,
        rules::MEMORY_INFO,
        order::BUSY,
        order::UNMAP_IN_USE,
        order::CAPTURE_SAME_THREAD,
        order::CAPTURE_OTHER_THREAD,
        order::CAPTURE_GUARDED,
        order::CAPTURE_WAIT,
        order::GRAPH_REMAP,
        costs::CALLS_BY_SIZE,
        costs::RANGED_ACCESS,
        costs::THREADS,
        costs::RESERVATION,
        costs::MAPPINGS,
        costs::LATENCY,
        costs::BANDWIDTH,
    ];

    /// Runs the experiment on a device that is opened for it alone. The experiment may leave the device unusable for
    /// this process and may leak memory: end the process afterwards.
    pub fn ask(&self, builder: CudaBuilder) -> Answer {
        let start = Instant::now();
        let outcome = builder.open().and_then(|driver| (self.experiment)(&driver).map_err(OpenError::from));
        let (value, error) = match outcome {
            Ok(value) => (value, None),
            Err(error) => (Value::Null, Some(error.to_string())),
        };
        Answer { id: self.id, question: self.text, value, error, seconds: start.elapsed().as_secs_f64() }
    }
}

/// The outcome of a call, as JSON: `"ok"`, or the result code and its name.
fn told<T>(outcome: &DriverResult<T>) -> Value {
    match outcome {
        Ok(_) => json!("ok"),
        Err(error) => refusal(error),
    }
}

/// A failed call, as JSON: the result code and its name.
fn refusal(error: &DriverError) -> Value {
    json!({ "code": error.code, "name": error.name })
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

/// The median; zero when there are none.
fn median(mut durations: Vec<Duration>) -> Duration {
    durations.sort_unstable();
    durations.get(durations.len() / 2).copied().unwrap_or_default()
}
