//! Replays a trace through a policy on a device, and measures it.
//!
//! - I1  ops run in the trace's order, up to the first one that runs out of memory. A request that the recorded run was refused
//!   and survived may fail again; the one that it failed at has to be served.
//! - I2  figures are taken before the policy is dropped: the memory that it releases then does not count.
//!
//! Processor time per op is that of the replaying thread minus the time spent in driver calls, so it is the allocator's
//! own (plus a few nanoseconds of the replay). The time for queueing work on the blocks does not count either, except
//! for reading the clock. If driver calls are measured in wall time, other processes' share of it is assumed to be
//! spread evenly.
//!
//! Threads: a replay runs on its caller's thread. Replays are independent of each other.

use crate::awake::Awake;
use crate::caching::{CachingAllocator, CachingSettings};
use crate::capacity::CapacityDriver;
use crate::meter::{Clock, Meter, processor_time};
use crate::policy::{GaplessSettings, PhaseBytes, Policy, PolicyError, PolicyKind};
use crate::pooled::PooledGapless;
use crate::replay_error::ReplayError;
use crate::search_result::SearchResult;
use crate::tagged::Tagged;
use crate::work::{Touch, Worker};
use crate::{Content, Device, Metered, Op, PrivatePool, Tags, Trace};
use gapless::driver::cuda::CudaDriver;
use gapless::driver::{DriverCalls, DriverError, HostDriver, ModelDriver, WorkDriver};
use gapless::units::{DeviceAddr, StreamId};
use serde::ser::{SerializeMap, Serializer};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A driver that traces can be replayed on.
pub trait ReplayDriver: WorkDriver {
    /// Its name in results.
    const NAME: &'static str;

    /// The clock to measure its calls by.
    const CLOCK: Clock;

    /// Another op has run: simulated streams move on.
    fn advance(&self) {}

    /// Returns the time that the calls so far would have taken, if the driver has a clock for that.
    fn modelled_time(&self) -> Option<Duration> {
        None
    }

    /// Returns the name of the table that [`modelled_time`](Self::modelled_time) follows, if the driver has a clock for that.
    fn costs(&self) -> Option<&'static str> {
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

    fn costs(&self) -> Option<&'static str> {
        Some(Self::costs(self).name())
    }
}

impl ReplayDriver for CapacityDriver {
    const NAME: &'static str = "capacity";
    const CLOCK: Clock = Clock::Nothing;
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

/// Options of [`replay`].
#[derive(Clone, Copy)]
pub struct ReplayOptions<'a> {
    /// The policy to replay through.
    pub policy: PolicyKind,
    /// Settings of gapless, if it is the policy.
    pub gapless: GaplessSettings,
    /// Settings of the baseline, if it is the policy.
    pub caching: CachingSettings,
    /// Memory that the policy may hold, in bytes.
    pub capacity_bytes: u64,
    /// The bytes of each block that streams use between its allocation and its free.
    pub touch: Touch,
    /// Called with the number of ops that ran since the last call.
    pub progress: Option<&'a (dyn Fn(u64) + Sync)>,
}

impl fmt::Debug for ReplayOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplayOptions").field("policy", &self.policy).finish_non_exhaustive()
    }
}

/// The result of a replay. Serialized, it is one line of `gapless replay --json`.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct ReplayResult {
    /// Name of the trace.
    pub trace: String,
    /// Policy that the trace was replayed through.
    pub policy: PolicyKind,
    /// Name of the driver.
    pub driver: &'static str,
    /// Memory that the policy was allowed to hold, in bytes.
    pub capacity_bytes: u64,
    /// Number of ops in the whole trace, including marks.
    pub ops: u64,
    /// Peak of requested bytes that are live in the whole trace.
    pub peak_live_bytes: u64,
    /// Peak of requested bytes that are live and not asleep in the whole trace.
    pub peak_awake_bytes: u64,
    /// Peak of the device memory that the policy held, in bytes.
    pub peak_reserved_bytes: u64,
    /// The smallest devices, where they were searched for: serialized, fields of this object, absent unless searched for.
    #[serde(flatten)]
    pub search: Option<SearchResult>,
    /// The request that ended the replay early, if any.
    pub oom: Option<OutOfMemoryAt>,
    /// Driver calls by kind. Serialized, only the kinds that [`DriverCalls::total`] adds up, and `total`.
    #[serde(serialize_with = "serialize_calls")]
    pub driver_calls: DriverCalls,
    /// The total of each step, one entry per mark reached.
    pub driver_calls_per_step: Vec<u64>,
    /// Number of times the host waited for the device.
    pub host_waits: u64,
    /// Number of marks reached.
    pub steps: u64,
    /// Modelled time of the driver calls on a device, in seconds; null on drivers without a cost table.
    pub modelled_driver_seconds: Option<f64>,
    /// Name of the cost table that this time follows ([`CostTable::name`]); null on drivers without one.
    ///
    /// [`CostTable::name`]: gapless::driver::CostTable::name
    pub costs: Option<&'static str>,
    /// The sleeps and wakes that ran, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<Phase>,
    /// Processor time per op that ran, without driver calls, in nanoseconds.
    pub ns_per_op: f64,
}

/// The request that ended a replay.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct OutOfMemoryAt {
    /// Index of the op, counted from 0, including marks.
    pub op_index: u64,
    /// Number of bytes requested.
    pub requested_bytes: u64,
    /// Whether an allocator could have served the request.
    pub satisfiable: bool,
    /// The policy's report, for people.
    pub report: String,
}

/// A sleep or a wake.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct Phase {
    /// Index of the op.
    pub op_index: u64,
    /// Which of the two it is.
    pub kind: PhaseKind,
    /// Requested bytes of the blocks that it put to sleep or woke.
    pub live_bytes: u64,
    /// Bytes that lost their memory, or got memory.
    pub mapped_bytes: u64,
    /// Bytes that were copied between the device and the host.
    pub copied_bytes: u64,
    /// Modelled time of its driver calls, copies included, in seconds; null on drivers without a cost table.
    pub modelled_driver_seconds: Option<f64>,
}

/// What a [`Phase`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PhaseKind {
    /// Memory goes back to the device.
    Sleep,
    /// It comes again.
    Wake,
}

/// Replays `trace` on `driver`.
///
/// # Errors
/// Returns [`ReplayError`] if the replay has no result. Running out of memory is a result, not an error.
pub fn replay<D: ReplayDriver>(
    trace: &Trace,
    driver: Arc<D>,
    options: &ReplayOptions<'_>,
) -> Result<ReplayResult, ReplayError> {
    replay_by(D::CLOCK, AtTheEnd::GiveBack, trace, driver, options)
}

/// A policy and the settings of each, of which those of the other one do not matter.
pub(crate) type PolicySettings = (PolicyKind, GaplessSettings, CachingSettings);

/// Replays `trace` on a simulated device of its own. The time of an op includes its driver calls.
pub(crate) fn replay_alone(
    trace: &Trace,
    device: &Device,
    policy: PolicySettings,
) -> Result<ReplayResult, ReplayError> {
    alone(trace, Arc::new(device.model()), device, policy)
}

/// As [`replay_alone`], on a device of which only the capacity is simulated, as far as that says what happens: the result is the
/// same, but for what it says of the driver and of time. Returns also the capacities of the devices that would have served and
/// refused every request for physical memory as this one did.
pub(crate) fn probe(
    trace: &Trace,
    device: &Device,
    policy: PolicySettings,
) -> Result<(ReplayResult, Range<u64>), ReplayError> {
    if device.lag_ops == 0 {
        let driver = Arc::new(CapacityDriver::new(device));
        let result = alone(trace, Arc::clone(&driver), device, policy);
        if !driver.is_at_its_limits() {
            return Ok((result?, driver.alike_capacities()));
        }
    }
    let only_this = device.capacity_bytes..device.capacity_bytes.saturating_add(1);
    Ok((replay_alone(trace, device, policy)?, only_this))
}

fn alone<D: ReplayDriver>(
    trace: &Trace,
    driver: Arc<D>,
    device: &Device,
    (policy, gapless, caching): PolicySettings,
) -> Result<ReplayResult, ReplayError> {
    let options = ReplayOptions {
        policy,
        gapless,
        caching,
        capacity_bytes: device.capacity_bytes,
        touch: Touch::for_model(device.lag_ops),
        progress: None,
    };
    replay_by(Clock::Nothing, AtTheEnd::Abandon, trace, driver, &options)
}

/// What becomes of the memory that a policy holds at the end of a replay.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AtTheEnd {
    /// It goes back to the device, which others may use.
    GiveBack,
    /// The device is dropped as it is.
    Abandon,
}

fn replay_by<D: ReplayDriver>(
    clock: Clock,
    at_the_end: AtTheEnd,
    trace: &Trace,
    driver: Arc<D>,
    options: &ReplayOptions<'_>,
) -> Result<ReplayResult, ReplayError> {
    let driver = Arc::new(Metered::with_hook(driver, Meter::new(clock)));
    let streams = streams(trace, &*driver)?;
    match options.policy {
        PolicyKind::Gapless if trace.pools().is_empty() => {
            let build = || options.gapless.build(Arc::clone(&driver), options.capacity_bytes);
            run(trace, &driver, &streams, Tagged::new(trace, build)?, at_the_end, options)
        }
        PolicyKind::Gapless => {
            let pools = pool_streams(trace, &streams);
            let build = || PooledGapless::new(&options.gapless, &driver, options.capacity_bytes, &pools);
            run(trace, &driver, &streams, Tagged::new(trace, build)?, at_the_end, options)
        }
        PolicyKind::Caching => {
            let pools = pool_streams(trace, &streams);
            let build = || Ok::<_, ReplayError>(CachingAllocator::with_pools(&driver, options.caching, &pools));
            run(trace, &driver, &streams, Tagged::new(trace, build)?, at_the_end, options)
        }
    }
}

fn run<D: ReplayDriver, P: Policy>(
    trace: &Trace,
    driver: &Metered<D>,
    streams: &[StreamId],
    mut policy: Tagged<P>,
    at_the_end: AtTheEnd,
    options: &ReplayOptions<'_>,
) -> Result<ReplayResult, ReplayError> {
    let meter = driver.hook();
    policy.keep_streams(streams).map_err(|error| failed(0, error))?;
    let mut worker = Worker::new(trace, driver, options.touch);
    let mut awake = Awake::default();
    // The block in each slot, and its tag.
    let mut blocks = vec![(DeviceAddr::default(), 0); trace.slots() as usize];
    let mut phases = Vec::new();
    let mut calls_per_step = Vec::with_capacity(trace.labels().len());
    let mut calls_before_step = 0;
    let mut oom = None;
    let mut reported = 0;
    let mut done = 0;
    let modelled_before = driver.inner().modelled_time();
    let driver_time_before = meter.time();
    let start = Stopwatch::start();
    for op in trace.ops() {
        let mut refused = |bytes, error| match error {
            PolicyError::OutOfMemory { satisfiable, report } => {
                oom = Some(OutOfMemoryAt { op_index: done, requested_bytes: bytes, satisfiable, report });
                Ok(())
            }
            error => Err(failed(done, error)),
        };
        match *op {
            Op::Alloc { slot, stream, tag, bytes } => match policy.alloc(bytes, streams[usize::from(stream)], tag) {
                Ok(addr) => {
                    blocks[slot as usize] = (addr, tag);
                    if let Some(worker) = &mut worker {
                        worker.allocated(slot, streams[usize::from(stream)], addr, bytes)?;
                    }
                }
                Err(error) => {
                    refused(bytes, error)?;
                    break;
                }
            },
            Op::Free { slot } => {
                if let Some(worker) = worker.as_mut().filter(|_| awake.is_awake(slot)) {
                    worker.freeing(slot)?;
                }
                let (addr, tag) = blocks[slot as usize];
                policy.free(addr, tag).map_err(|error| failed(done, error))?;
            }
            Op::Refused { stream, bytes } => {
                if let Err(error) = policy.ask(bytes, streams[usize::from(stream)], trace.refusal(done)) {
                    refused(bytes, error)?;
                    break;
                }
            }
            Op::Sleep { tags, content } => {
                if let Some(worker) = worker.as_mut().filter(|_| content == Content::Discard) {
                    discard(worker, &awake, tags, &blocks);
                }
                let phase = Phase::begin(done, PhaseKind::Sleep, awake.awake_of(tags), &**driver.inner());
                let slept = policy.sleep(tags, content).map_err(|error| failed(done, error))?;
                phases.push(phase.end(slept, &**driver.inner()));
            }
            Op::Wake { tags } => {
                let asleep = awake.asleep_of(tags);
                let phase = Phase::begin(done, PhaseKind::Wake, asleep, &**driver.inner());
                match policy.wake(tags) {
                    Ok(woken) => phases.push(phase.end(woken, &**driver.inner())),
                    Err(error) => {
                        refused(asleep, error)?;
                        break;
                    }
                }
            }
            Op::Mark { .. } => {
                policy.end_step().map_err(|error| failed(done, error))?;
                let calls = meter.calls().total();
                calls_per_step.push(calls - calls_before_step);
                calls_before_step = calls;
            }
        }
        awake.run(op);
        done += 1;
        if worker.is_some() {
            meter.timed(|| driver.inner().advance());
        }
        if done - reported == PROGRESS_OPS {
            if let Some(progress) = options.progress {
                progress(PROGRESS_OPS);
            }
            reported = done;
        }
    }
    let own = start.elapsed_outside(meter.time() - driver_time_before, meter.clock());
    let stats = policy.stats();
    let driver_calls = meter.calls();
    let modelled = driver.inner().modelled_time();
    if let Some(worker) = worker {
        worker.finish(streams)?;
    }
    let violations = driver.inner().violations();
    if !violations.is_empty() {
        return Err(ReplayError::Violation(violations));
    }
    if at_the_end == AtTheEnd::Abandon {
        policy.abandon();
    }
    Ok(ReplayResult {
        trace: trace.name().to_owned(),
        policy: options.policy,
        driver: D::NAME,
        capacity_bytes: options.capacity_bytes,
        ops: trace.ops().len() as u64,
        peak_live_bytes: trace.peak_live_bytes(),
        peak_awake_bytes: trace.peak_awake_bytes(),
        peak_reserved_bytes: stats.peak_reserved_bytes,
        search: None,
        oom,
        driver_calls,
        steps: calls_per_step.len() as u64,
        driver_calls_per_step: calls_per_step,
        host_waits: stats.host_waits,
        modelled_driver_seconds: modelled.zip(modelled_before).map(|(end, start)| (end - start).as_secs_f64()),
        costs: driver.inner().costs(),
        phases,
        #[allow(clippy::cast_precision_loss, reason = "traces have far fewer than 2^52 ops")]
        ns_per_op: own.as_nanos() as f64 / done.max(1) as f64,
    })
}

impl ReplayResult {
    /// Returns the sleeps, or the wakes, that concerned live memory.
    pub fn phases_of(&self, kind: PhaseKind) -> impl Iterator<Item = &Phase> {
        self.phases.iter().filter(move |phase| phase.kind == kind && phase.live_bytes > 0)
    }
}

impl Phase {
    fn begin<D: ReplayDriver>(op_index: u64, kind: PhaseKind, live_bytes: u64, driver: &D) -> Self {
        let modelled_driver_seconds = driver.modelled_time().map(|before| before.as_secs_f64());
        Self { op_index, kind, live_bytes, mapped_bytes: 0, copied_bytes: 0, modelled_driver_seconds }
    }

    fn end<D: ReplayDriver>(self, done: PhaseBytes, driver: &D) -> Self {
        let after = driver.modelled_time().map(|after| after.as_secs_f64());
        Self {
            mapped_bytes: done.mapped_bytes,
            copied_bytes: done.copied_bytes,
            modelled_driver_seconds: after.zip(self.modelled_driver_seconds).map(|(after, before)| after - before),
            ..self
        }
    }
}

/// The bytes of the blocks of tags that are awake are lost.
fn discard<D: WorkDriver>(worker: &mut Worker<'_, D>, awake: &Awake, tags: Tags, blocks: &[(DeviceAddr, u8)]) {
    for (slot, (_, tag)) in (0..).zip(blocks) {
        let is_asked = tags == Tags::All || tags == Tags::One(*tag);
        if is_asked && awake.knows(slot) && awake.is_awake(slot) {
            worker.discarded(slot);
        }
    }
}

fn serialize_calls<S: Serializer>(calls: &DriverCalls, serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(DriverCalls::IN_TOTAL.len() + 1))?;
    for call in DriverCalls::IN_TOTAL {
        map.serialize_entry(&call, &calls[call])?;
    }
    map.serialize_entry("total", &calls.total())?;
    map.end()
}

/// Returns the driver's stream for each stream of the trace. Number 0 is the default stream.
pub(crate) fn streams<D: WorkDriver>(trace: &Trace, driver: &D) -> Result<Vec<StreamId>, DriverError> {
    let stream = |&number: &u64| if number == 0 { Ok(StreamId::DEFAULT) } else { driver.create_stream() };
    trace.streams().iter().map(stream).collect()
}

/// Returns the driver's streams of each private pool.
pub(crate) fn pool_streams(trace: &Trace, streams: &[StreamId]) -> Vec<Vec<StreamId>> {
    let of_number = |number: u64| trace.streams().iter().position(|known| *known == number).map(|index| streams[index]);
    let of_pool = |pool: &PrivatePool| pool.streams.iter().filter_map(|(number, _)| of_number(*number)).collect();
    trace.pools().iter().map(of_pool).collect()
}

const fn failed(op_index: u64, error: PolicyError) -> ReplayError {
    ReplayError::Policy { op_index, cause: error }
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
            Clock::Processor | Clock::Nothing => processor.saturating_sub(inside),
            Clock::Wall => {
                let passed = self.passed.elapsed();
                let share = processor.as_secs_f64() / passed.as_secs_f64().max(f64::MIN_POSITIVE);
                passed.saturating_sub(inside).mul_f64(share.clamp(0.0, 1.0))
            }
        }
    }
}

/// Number of ops after which progress is reported.
const PROGRESS_OPS: u64 = 1 << 13;
