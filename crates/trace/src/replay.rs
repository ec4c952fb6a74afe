//! Replay: one trace, one policy, one device; figures at the end.
//!
//! - I1  ops run in the trace's order, up to the first that runs out of memory.
//! - I2  figures are taken before the policy is torn down: what it gives back at its end does not count.
//!
//! Processor time per op is that of the replaying thread, less the time spent inside driver calls, so that it is the
//! allocator's own (with the engine's few nanoseconds). With work queued on the blocks, the queueing is not counted
//! either, but the clock readings around it are. Where driver calls are measured by the time that passes, what other
//! processes took of it is assumed to be spread evenly.
//!
//! Threads: a replay runs on its caller's thread; replays are independent of each other.

use crate::caching::CachingAllocator;
use crate::meter::{Clock, Meter, processor_time};
use crate::policy::{GaplessSettings, Policy, PolicyError, PolicyKind};
use crate::work::{Touch, Worker};
use crate::{Metered, Op, Trace};
use gapless::allocator::BuildError;
use gapless::driver::cuda::CudaDriver;
use gapless::driver::{DriverCalls, DriverError, HostDriver, Mismatch, ModelDriver, WorkDriver};
use gapless::units::{DeviceAddr, StreamId};
use serde::ser::{SerializeMap, Serializer};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A driver that traces can be replayed on.
pub trait ReplayDriver: WorkDriver {
    /// Its name in results.
    const NAME: &'static str;

    /// What to measure its calls by.
    const CLOCK: Clock;

    /// Another op has run: simulated streams move on.
    fn advance(&self) {}

    /// What the calls so far would have cost, if the driver has a clock for that.
    fn modelled_time(&self) -> Option<Duration> {
        None
    }

    /// Broken rules of the driver contract that it noted rather than panicked at.
    fn violations(&self) -> Vec<String> {
        Vec::new()
    }
}

impl ReplayDriver for ModelDriver {
    const NAME: &'static str = "model";
    const CLOCK: Clock = Clock::Wall;

    fn advance(&self) {
        Self::advance(self, 1);
    }

    fn modelled_time(&self) -> Option<Duration> {
        Some(Self::modelled_time(self))
    }
}

impl ReplayDriver for HostDriver {
    const NAME: &'static str = "host";
    const CLOCK: Clock = Clock::Processor;

    fn violations(&self) -> Vec<String> {
        self.take_violations().iter().map(ToString::to_string).collect()
    }
}

impl ReplayDriver for CudaDriver {
    const NAME: &'static str = "cuda";
    const CLOCK: Clock = Clock::Processor;
}

/// How to replay.
#[derive(Clone, Copy)]
pub struct ReplayOptions<'a> {
    /// The allocator.
    pub policy: PolicyKind,
    /// Its settings, if it is gapless.
    pub gapless: GaplessSettings,
    /// Bytes that it may hold.
    pub capacity_bytes: u64,
    /// What streams do with each block between its allocation and its free.
    pub touch: Touch,
    /// Told the number of ops run since it was last told.
    pub progress: Option<&'a (dyn Fn(u64) + Sync)>,
}

/// What a replay found. Serialised, it is one line of `gapless replay --json`.
#[derive(Clone, Debug, serde::Serialize)]
pub struct ReplayResult {
    /// The trace's name.
    pub trace: String,
    /// The policy.
    pub policy: PolicyKind,
    /// The driver's name.
    pub driver: &'static str,
    /// Bytes that the policy could hold.
    pub capacity_bytes: u64,
    /// Ops of the whole trace, marks included.
    pub ops: u64,
    /// Most requested bytes live at once in the whole trace.
    pub peak_live_bytes: u64,
    /// Most bytes of the device that the policy held at once.
    pub peak_reserved_bytes: u64,
    /// Smallest device that survives: absent unless searched for, null where none was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_capacity_bytes: Option<Option<u64>>,
    /// Smallest device from which on all that were tried survive: absent unless searched for, null where none was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub safe_capacity_bytes: Option<Option<u64>>,
    /// Where and why it ended early.
    pub oom: Option<OutOfMemoryAt>,
    /// Driver calls by kind. Serialized, only the kinds that [`DriverCalls::total`] adds up, and `total`.
    #[serde(serialize_with = "serialize_calls")]
    pub driver_calls: DriverCalls,
    /// The total of each step, one number for each mark reached.
    pub driver_calls_per_step: Vec<u64>,
    /// Times the host waited for the device.
    pub host_waits: u64,
    /// Marks reached.
    pub steps: u64,
    /// What the driver calls would have cost on a device; null on drivers without a cost table.
    pub modelled_driver_seconds: Option<f64>,
    /// Processor nanoseconds per op run, driver calls left out.
    pub ns_per_op: f64,
}

/// The request that ended a replay.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct OutOfMemoryAt {
    /// Index of the op, counted from 0, marks included.
    pub op_index: u64,
    /// Bytes asked for.
    pub requested_bytes: u64,
    /// Whether any allocator could have served it.
    pub satisfiable: bool,
    /// The policy's report, for a person.
    pub report: String,
}

/// Why a replay gives no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The settings give no allocator.
    #[error(transparent)]
    Settings(#[from] BuildError),
    /// The policy failed otherwise than for want of memory.
    #[error("op {op_index}: {error}")]
    Policy {
        /// Index of the op.
        op_index: u64,
        /// What the policy said.
        #[source]
        error: PolicyError,
    },
    /// The driver failed the replay itself.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// Blocks did not hold what was written to them: the policy handed out memory in use.
    #[error("{} checks found wrong bytes, the first {:?}", .0.len(), .0.first())]
    Mismatch(Vec<Mismatch>),
    /// The policy broke rules of the driver contract.
    #[error("{} rules of the driver were broken, the first: {}", .0.len(), .0.first().map_or("", String::as_str))]
    Violation(Vec<String>),
}

/// Replays `trace` on `driver`.
///
/// # Errors
/// [`ReplayError`]; running out of memory is a result, not an error.
pub fn replay<D: ReplayDriver>(
    trace: &Trace,
    driver: Arc<D>,
    options: &ReplayOptions<'_>,
) -> Result<ReplayResult, ReplayError> {
    let driver = Arc::new(Metered::with_hook(driver, Meter::new(D::CLOCK)));
    match options.policy {
        PolicyKind::Gapless => {
            let built = options.gapless.build(Arc::clone(&driver), options.capacity_bytes);
            run(trace, &driver, built?, options)
        }
        PolicyKind::Caching => run(trace, &driver, CachingAllocator::new(Arc::clone(&driver)), options),
    }
}

fn run<D: ReplayDriver, P: Policy>(
    trace: &Trace,
    driver: &Metered<D>,
    mut policy: P,
    options: &ReplayOptions<'_>,
) -> Result<ReplayResult, ReplayError> {
    let meter = driver.hook();
    let streams = streams(trace, driver)?;
    let mut worker = Worker::new(trace, driver, options.touch);
    let mut blocks = vec![DeviceAddr::default(); trace.slots() as usize];
    let mut calls_per_step = Vec::with_capacity(trace.labels().len());
    let mut calls_before_step = 0;
    let mut oom = None;
    let mut told = 0;
    let mut done = 0;
    let modelled_before = driver.inner().modelled_time();
    let driver_time_before = meter.time();
    let start = Stopwatch::start();
    for op in trace.ops() {
        match *op {
            Op::Alloc { slot, stream, bytes } => match policy.alloc(bytes, streams[usize::from(stream)]) {
                Ok(addr) => {
                    blocks[slot as usize] = addr;
                    if let Some(worker) = &mut worker {
                        worker.allocated(slot, streams[usize::from(stream)], addr, bytes)?;
                    }
                }
                Err(PolicyError::OutOfMemory { satisfiable, report }) => {
                    oom = Some(OutOfMemoryAt { op_index: done, requested_bytes: bytes, satisfiable, report });
                    break;
                }
                Err(error) => return Err(failed(done, error)),
            },
            Op::Free { slot } => {
                if let Some(worker) = &mut worker {
                    worker.freeing(slot)?;
                }
                policy.free(blocks[slot as usize]).map_err(|error| failed(done, error))?;
            }
            Op::Mark { .. } => {
                let calls = meter.calls().total();
                calls_per_step.push(calls - calls_before_step);
                calls_before_step = calls;
            }
        }
        done += 1;
        if worker.is_some() {
            meter.timed(|| driver.inner().advance());
        }
        if done - told == PROGRESS_OPS {
            if let Some(progress) = options.progress {
                progress(PROGRESS_OPS);
            }
            told = done;
        }
    }
    let own = start.elapsed_outside(meter.time() - driver_time_before, D::CLOCK);
    let stats = policy.stats();
    let driver_calls = meter.calls();
    let modelled = driver.inner().modelled_time();
    if let Some(worker) = worker {
        worker.finish(&streams)?;
    }
    let violations = driver.inner().violations();
    if !violations.is_empty() {
        return Err(ReplayError::Violation(violations));
    }
    Ok(ReplayResult {
        trace: trace.name().to_owned(),
        policy: options.policy,
        driver: D::NAME,
        capacity_bytes: options.capacity_bytes,
        ops: trace.ops().len() as u64,
        peak_live_bytes: trace.peak_live_bytes(),
        peak_reserved_bytes: stats.peak_reserved_bytes,
        min_capacity_bytes: None,
        safe_capacity_bytes: None,
        oom,
        driver_calls,
        steps: calls_per_step.len() as u64,
        driver_calls_per_step: calls_per_step,
        host_waits: stats.host_waits,
        modelled_driver_seconds: modelled.zip(modelled_before).map(|(end, start)| (end - start).as_secs_f64()),
        #[allow(clippy::cast_precision_loss, reason = "a figure for people; traces are far below 2^52 ops")]
        ns_per_op: own.as_nanos() as f64 / done.max(1) as f64,
    })
}

fn serialize_calls<S: Serializer>(calls: &DriverCalls, serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(DriverCalls::IN_TOTAL.len() + 1))?;
    for call in DriverCalls::IN_TOTAL {
        map.serialize_entry(&call, &calls[call])?;
    }
    map.serialize_entry("total", &calls.total())?;
    map.end()
}

/// The driver's stream for each of the trace's: number 0 is the default stream.
fn streams<D: WorkDriver>(trace: &Trace, driver: &D) -> Result<Vec<StreamId>, DriverError> {
    let stream = |&number: &u64| if number == 0 { Ok(StreamId::DEFAULT) } else { driver.create_stream() };
    trace.streams().iter().map(stream).collect()
}

const fn failed(op_index: u64, error: PolicyError) -> ReplayError {
    ReplayError::Policy { op_index, error }
}

/// Measures a stretch of one thread.
struct Stopwatch {
    passed: Instant,
    processor: Duration,
}

impl Stopwatch {
    fn start() -> Self {
        Self { passed: Instant::now(), processor: processor_time() }
    }

    /// Processor time since the start, less what was spent in the driver: `inside`, by `clock`.
    fn elapsed_outside(&self, inside: Duration, clock: Clock) -> Duration {
        let processor = processor_time().saturating_sub(self.processor);
        match clock {
            Clock::Processor => processor.saturating_sub(inside),
            Clock::Wall => {
                let passed = self.passed.elapsed();
                let share = processor.as_secs_f64() / passed.as_secs_f64().max(f64::MIN_POSITIVE);
                passed.saturating_sub(inside).mul_f64(share.clamp(0.0, 1.0))
            }
        }
    }
}

/// How often progress is told.
const PROGRESS_OPS: u64 = 1 << 13;
