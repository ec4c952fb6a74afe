//! The memory that a replay holds over time, and where it lies at some moments: the data behind a picture.
//!
//! ```text
//!   trace ─▶ each policy on a simulated device ─┬▶ live and held bytes after every op ─▶ buckets (series)
//!                                               └▶ blocks at the chosen moments ─▶ cells (map)
//! ```
//!
//! - I1  the size of a [`Timeline`] is bounded whatever the trace: most buckets, streams, policies, moments, and cells of
//!   a map are constants of this module.
//!
//! Threads: replays run on their caller's thread. Cost: a replay for each policy, in which the driver is asked after
//! every op for what it has left.

mod map;
mod series;

pub use map::AddressMap;
pub use series::Series;

use crate::advice::Setting;
use crate::caching::{CachingAllocator, CachingSettings};
use crate::policy::{GaplessSettings, Policy, PolicyError, PolicyKind};
use crate::pooled::PooledGapless;
use crate::replay::{ReplayDriver, pool_streams, streams};
use crate::{Device, Op, ReplayError, Trace};
use gapless::driver::{MemoryDriver, ModelDriver};
use gapless::units::{DeviceAddr, StreamId};
use series::Buckets;
use std::sync::Arc;

/// A policy to draw, under a name.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The name that the policy is shown under.
    pub name: String,
    /// The policy.
    pub policy: PolicyKind,
    /// Settings of gapless, if it is the policy.
    pub gapless: GaplessSettings,
    /// Settings of the baseline, if it is the policy.
    pub caching: CachingSettings,
}

impl From<Setting> for Subject {
    fn from(setting: Setting) -> Self {
        let (policy, caching) = setting.policy();
        Self { name: setting.to_string(), policy, gapless: GaplessSettings::default(), caching }
    }
}

/// A trace and what policies make of it over time.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Timeline {
    /// Number of ops, marks included.
    pub ops: u64,
    /// Number of ops in each bucket of the series.
    pub ops_per_bucket: u64,
    /// Requested bytes that are live, whatever the policy.
    pub live: Series,
    /// The same for the streams with most allocations, at most [`MOST_STREAMS`], in the order of the trace.
    pub streams: Vec<StreamSeries>,
    /// Number of streams that are not in `streams`.
    pub streams_left_out: u64,
    /// The moments of the maps: indices of the first op that has not run, ascending.
    pub moments: Vec<u64>,
    /// The policies, at most [`MOST_POLICIES`].
    pub policies: Vec<PolicyTimeline>,
}

/// Requested bytes of one stream that are live.
#[derive(Clone, Debug, serde::Serialize)]
pub struct StreamSeries {
    /// The recorder's number of the stream.
    pub stream: u64,
    /// Its live bytes.
    pub live: Series,
}

/// The timeline of one policy.
#[derive(Clone, Debug, serde::Serialize)]
pub struct PolicyTimeline {
    /// Name of the [`Subject`].
    pub name: String,
    /// Bytes of the device that the policy holds.
    pub reserved: Series,
    /// Index of the op that failed, if one did: series and maps end there.
    pub oom_op: Option<u64>,
    /// The address space at each of the moments that the replay reached, and when it failed.
    pub maps: Vec<AddressMap>,
}

/// Replays `trace` on `device` through at most [`MOST_POLICIES`] of the subjects. There are maps for `moments`, of which
/// at most [`MOST_CHOSEN`] are taken, and for [`EVEN_MOMENTS`] others, evenly spaced.
///
/// # Errors
/// Returns the errors of [`replay`](crate::replay()).
pub fn timeline(
    trace: &Trace,
    device: &Device,
    subjects: &[Subject],
    moments: &[u64],
) -> Result<Timeline, ReplayError> {
    let ops = trace.ops().len() as u64;
    let buckets = Buckets::of(trace.ops().len());
    let mut all: Vec<u64> = (1..=EVEN_MOMENTS).map(|part| part * ops / EVEN_MOMENTS).collect();
    all.extend(moments.iter().take(MOST_CHOSEN).map(|&moment| moment.min(ops)));
    all.sort_unstable();
    all.dedup();
    let (live, streams, streams_left_out) = live_series(trace, buckets);
    let policies = subjects.iter().take(MOST_POLICIES).map(|subject| one(trace, device, subject, buckets, &all));
    Ok(Timeline {
        ops,
        ops_per_bucket: buckets.ops_each() as u64,
        live,
        streams,
        streams_left_out,
        policies: policies.collect::<Result<_, _>>()?,
        moments: all,
    })
}

/// Live bytes of the trace, of its busiest streams, and how many other streams there are.
fn live_series(trace: &Trace, buckets: Buckets) -> (Series, Vec<StreamSeries>, u64) {
    let mut allocations = vec![0_u64; trace.streams().len()];
    for op in trace.ops() {
        if let Op::Alloc { stream, .. } = *op {
            allocations[usize::from(stream)] += 1;
        }
    }
    let mut busiest: Vec<usize> = (0..allocations.len()).collect();
    busiest.sort_by_key(|&stream| std::cmp::Reverse(allocations[stream]));
    busiest.truncate(MOST_STREAMS);
    busiest.sort_unstable();
    let mut all = Series::default();
    let mut series = vec![Series::default(); busiest.len()];
    let mut live_of = vec![0_u64; allocations.len()];
    let mut blocks = vec![(0_u16, 0_u64); trace.slots() as usize];
    let mut live = 0;
    for (index, op) in trace.ops().iter().enumerate() {
        match *op {
            Op::Alloc { slot, stream, bytes } => {
                blocks[slot as usize] = (stream, bytes);
                live_of[usize::from(stream)] += bytes;
                live += bytes;
            }
            Op::Free { slot } => {
                let (stream, bytes) = blocks[slot as usize];
                live_of[usize::from(stream)] -= bytes;
                live -= bytes;
            }
            Op::Refused { .. } | Op::Mark { .. } => {}
        }
        let bucket = buckets.of_op(index);
        all.record(bucket, live);
        for (series, &stream) in series.iter_mut().zip(&busiest) {
            series.record(bucket, live_of[stream]);
        }
    }
    let left_out = (allocations.len() - busiest.len()) as u64;
    let named = busiest.iter().zip(series);
    let named = named.map(|(&stream, live)| StreamSeries { stream: trace.streams()[stream], live });
    (all, named.collect(), left_out)
}

fn one(
    trace: &Trace,
    device: &Device,
    subject: &Subject,
    buckets: Buckets,
    moments: &[u64],
) -> Result<PolicyTimeline, ReplayError> {
    let driver = Arc::new(device.model());
    let streams = streams(trace, &*driver)?;
    match subject.policy {
        PolicyKind::Gapless if trace.pools().is_empty() => {
            let built = subject.gapless.build(Arc::clone(&driver), device.capacity_bytes)?;
            follow(trace, &driver, &streams, built, subject, buckets, moments)
        }
        PolicyKind::Gapless => {
            let pools = pool_streams(trace, &streams);
            let pooled = PooledGapless::new(&subject.gapless, &driver, device.capacity_bytes, &pools)?;
            follow(trace, &driver, &streams, pooled, subject, buckets, moments)
        }
        PolicyKind::Caching => {
            let mut allocator = CachingAllocator::new(Arc::clone(&driver), subject.caching);
            allocator.keep_private(pool_streams(trace, &streams).into_iter().flatten());
            follow(trace, &driver, &streams, allocator, subject, buckets, moments)
        }
    }
}

fn follow<P: Policy>(
    trace: &Trace,
    driver: &ModelDriver,
    streams: &[StreamId],
    mut policy: P,
    subject: &Subject,
    buckets: Buckets,
    moments: &[u64],
) -> Result<PolicyTimeline, ReplayError> {
    let failed = |op_index, error| ReplayError::Policy { op_index, error };
    policy.keep_streams(streams).map_err(|error| failed(0, error))?;
    let at_start = driver.memory_info()?.free;
    let mut blocks = vec![DeviceAddr::default(); trace.slots() as usize];
    let mut found =
        PolicyTimeline { name: subject.name.clone(), reserved: Series::default(), oom_op: None, maps: Vec::new() };
    let mut next = moments.iter().copied().peekable();
    for (index, op) in trace.ops().iter().enumerate() {
        let op_index = index as u64;
        if next.next_if_eq(&op_index).is_some() {
            found.maps.push(AddressMap::of(op_index, policy.held_blocks()));
        }
        let outcome = match *op {
            Op::Alloc { slot, stream, bytes } => {
                policy.alloc(bytes, streams[usize::from(stream)]).map(|addr| blocks[slot as usize] = addr)
            }
            Op::Free { slot } => policy.free(blocks[slot as usize]),
            Op::Refused { stream, bytes } => {
                policy.ask(bytes, streams[usize::from(stream)], trace.refusal(op_index))
            }
            Op::Mark { .. } => policy.end_step(),
        };
        match outcome {
            Ok(()) => {}
            Err(PolicyError::OutOfMemory { .. }) => {
                found.oom_op = Some(op_index);
                if found.maps.last().is_none_or(|map| map.op != op_index) {
                    found.maps.push(AddressMap::of(op_index, policy.held_blocks()));
                }
                return Ok(found);
            }
            Err(error) => return Err(failed(op_index, error)),
        }
        ReplayDriver::advance(driver);
        found.reserved.record(buckets.of_op(index), at_start.saturating_sub(driver.memory_info()?.free));
    }
    if next.next().is_some() {
        found.maps.push(AddressMap::of(trace.ops().len() as u64, policy.held_blocks()));
    }
    Ok(found)
}

/// Most policies of a [`Timeline`].
pub const MOST_POLICIES: usize = 12;
/// Most streams of a [`Timeline`].
pub const MOST_STREAMS: usize = 8;
/// Number of moments with maps that are evenly spaced.
pub const EVEN_MOMENTS: u64 = 24;
/// Most moments with maps beside those.
pub const MOST_CHOSEN: usize = 14;
