//! The memory that a replay holds over time, and where it lies at some moments: the data behind a picture.
//!
//! ```text
//!   trace ─▶ each policy on a simulated device ─┬▶ live and held bytes after every op ─▶ buckets (series)
//!                                               └▶ blocks at the chosen moments ─▶ cells (map)
//! ```
//!
//! - I1  the size of a [`Timeline`] is bounded whatever the trace: most buckets, streams, policies, moments, blocks, and cells of
//!   a map are constants of this module.
//!
//! Threads: replays run on their caller's thread. Cost: a replay for each policy, in which the driver is asked after
//! every op for what it has left.

mod blocks;
mod map;
mod series;

pub use blocks::{LiveBlocks, MOST_BLOCKS};
pub use map::AddressMap;
pub use series::Series;

use crate::advice::Setting;
use crate::caching::{CachingAllocator, CachingSettings};
use crate::policy::{GaplessSettings, Policy, PolicyError, PolicyKind};
use crate::pooled::PooledGapless;
use crate::replay::{ReplayDriver, pool_streams, streams};
use crate::tagged::Tagged;
use crate::{Device, Op, ReplayError, Trace};
use gapless::driver::{MemoryDriver, ModelDriver};
use gapless::units::{DeviceAddr, StreamId};
use series::Buckets;
use std::collections::HashMap;
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
        let (policy, gapless, caching) = setting.policy();
        Self { name: setting.to_string(), policy, gapless, caching }
    }
}

/// A trace and what policies make of it over time.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct Timeline {
    /// Number of ops, marks included.
    pub ops: u64,
    /// Number of ops in each bucket of the series.
    pub ops_per_bucket: u64,
    /// The ranges of ops, the first and the one after the last, for which series have every op: around the moments that are looked
    /// at closely. Empty where each op has a bucket of its own.
    pub windows: Vec<[u64; 2]>,
    /// Requested bytes that are live, whatever the policy.
    pub live: Series,
    /// The same for the streams with the highest peaks, at most [`MOST_STREAMS`], in the order of the trace.
    pub streams: Vec<StreamSeries>,
    /// The same for all other streams together, if there are any.
    pub other_streams: Option<Series>,
    /// Number of streams that are not in `streams`.
    pub streams_left_out: u64,
    /// The live blocks at each of the moments that are looked at closely, or at all moments where blocks are few.
    pub blocks: Vec<LiveBlocks>,
    /// The moments of the maps: indices of the first op that has not run, ascending.
    pub moments: Vec<u64>,
    /// The policies, at most [`MOST_POLICIES`].
    pub policies: Vec<PolicyTimeline>,
}

/// Requested bytes of one stream that are live.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct StreamSeries {
    /// The recorder's number of the stream.
    pub stream: u64,
    /// Its live bytes.
    pub live: Series,
}

/// The timeline of one policy.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
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
/// at most [`MOST_CHOSEN`] are taken, and for [`EVEN_MOMENTS`] others, evenly spaced. The first [`MOST_CLOSE`] of `moments` are
/// looked at closely: op by op, and block by block.
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
    let mut close: Vec<u64> = moments.iter().take(MOST_CLOSE).map(|&moment| moment.min(ops)).collect();
    close.sort_unstable();
    close.dedup();
    let buckets = Buckets::of(trace.ops().len(), &close);
    let mut all: Vec<u64> = (1..=EVEN_MOMENTS).map(|part| part * ops / EVEN_MOMENTS).collect();
    all.extend(moments.iter().take(MOST_CHOSEN).map(|&moment| moment.min(ops)));
    all.sort_unstable();
    all.dedup();
    let blocks = listed_blocks(trace, &close, &all, subjects.len().min(MOST_POLICIES));
    let plot = Plot { trace, device, buckets: &buckets, moments: &all, blocks: &blocks };
    let policies = subjects.iter().take(MOST_POLICIES).map(|subject| plot.policy(subject)).collect::<Result<_, _>>()?;
    let (live, streams, other_streams) = live_series(trace, &buckets);
    Ok(Timeline {
        ops,
        ops_per_bucket: buckets.ops_each() as u64,
        windows: buckets.windows(),
        live,
        streams_left_out: (trace.streams().len() - streams.len()) as u64,
        streams,
        other_streams,
        policies,
        moments: all,
        blocks,
    })
}

/// The live blocks at `all` moments, or at the `close` ones where that would be too many for so many policies.
fn listed_blocks(trace: &Trace, close: &[u64], all: &[u64], policies: usize) -> Vec<LiveBlocks> {
    let before = |moments: &[u64]| -> Vec<LiveBlocks> {
        moments.iter().map(|&moment| LiveBlocks::before(trace, moment)).collect()
    };
    if trace.ops().len() <= MOST_OPS_LISTED {
        let everywhere = before(all);
        let blocks: usize = everywhere.iter().map(|blocks| blocks.allocated_at.len()).sum();
        if blocks * policies <= MOST_BLOCKS_IN_MAPS {
            return everywhere;
        }
    }
    before(close)
}

/// Live bytes of the trace, of its streams with the highest peaks, and of all others together.
fn live_series(trace: &Trace, buckets: &Buckets) -> (Series, Vec<StreamSeries>, Option<Series>) {
    let mut peaks = vec![0_u64; trace.streams().len()];
    let mut live = LiveBytes::of(trace);
    for op in trace.ops() {
        if let Some(stream) = live.run(op) {
            peaks[stream] = peaks[stream].max(live.of_stream[stream]);
        }
    }
    let mut largest: Vec<usize> = (0..peaks.len()).collect();
    largest.sort_by_key(|&stream| std::cmp::Reverse(peaks[stream]));
    largest.truncate(MOST_STREAMS);
    largest.sort_unstable();
    let mut all = Series::default();
    let mut others = Series::default();
    let mut series = vec![Series::default(); largest.len()];
    let mut live = LiveBytes::of(trace);
    for (index, op) in trace.ops().iter().enumerate() {
        live.run(op);
        all.record(buckets, index, live.all);
        let mut rest = live.all;
        for (series, &stream) in series.iter_mut().zip(&largest) {
            series.record(buckets, index, live.of_stream[stream]);
            rest -= live.of_stream[stream];
        }
        if peaks.len() > largest.len() {
            others.record(buckets, index, rest);
        }
    }
    let named = largest.iter().zip(series);
    let named = named.map(|(&stream, live)| StreamSeries { stream: trace.streams()[stream], live });
    (all, named.collect(), Some(others).filter(|_| peaks.len() > largest.len()))
}

/// The live bytes while the ops of a trace run.
struct LiveBytes {
    all: u64,
    /// By index of the stream.
    of_stream: Vec<u64>,
    /// The stream and the size of the block in each slot.
    blocks: Vec<(usize, u64)>,
}

impl LiveBytes {
    fn of(trace: &Trace) -> Self {
        Self { all: 0, of_stream: vec![0; trace.streams().len()], blocks: vec![(0, 0); trace.slots() as usize] }
    }

    /// Runs an op. Returns the index of the stream that has more or fewer live bytes then, if there is one.
    fn run(&mut self, op: &Op) -> Option<usize> {
        match *op {
            Op::Alloc { slot, stream, bytes, .. } => {
                let stream = usize::from(stream);
                self.blocks[slot as usize] = (stream, bytes);
                self.of_stream[stream] += bytes;
                self.all += bytes;
                Some(stream)
            }
            Op::Free { slot } => {
                let (stream, bytes) = self.blocks[slot as usize];
                self.of_stream[stream] -= bytes;
                self.all -= bytes;
                Some(stream)
            }
            Op::Sleep { .. } | Op::Wake { .. } | Op::Refused { .. } | Op::Mark { .. } => None,
        }
    }
}

/// What all policies are drawn with.
struct Plot<'a> {
    trace: &'a Trace,
    device: &'a Device,
    buckets: &'a Buckets,
    moments: &'a [u64],
    blocks: &'a [LiveBlocks],
}

impl Plot<'_> {
    fn policy(&self, subject: &Subject) -> Result<PolicyTimeline, ReplayError> {
        let (trace, capacity_bytes) = (self.trace, self.device.capacity_bytes);
        let driver = Arc::new(self.device.model());
        let streams = streams(trace, &*driver)?;
        match subject.policy {
            PolicyKind::Gapless if trace.pools().is_empty() => {
                let build = || subject.gapless.build(Arc::clone(&driver), capacity_bytes);
                self.follow(&driver, &streams, Tagged::new(trace, build)?, subject)
            }
            PolicyKind::Gapless => {
                let pools = pool_streams(trace, &streams);
                let build = || PooledGapless::new(&subject.gapless, &driver, capacity_bytes, &pools);
                self.follow(&driver, &streams, Tagged::new(trace, build)?, subject)
            }
            PolicyKind::Caching => {
                let pools = pool_streams(trace, &streams);
                let build = || Ok::<_, ReplayError>(CachingAllocator::with_pools(&driver, subject.caching, &pools));
                self.follow(&driver, &streams, Tagged::new(trace, build)?, subject)
            }
        }
    }

    fn follow<P: Policy>(
        &self,
        driver: &ModelDriver,
        streams: &[StreamId],
        mut policy: Tagged<P>,
        subject: &Subject,
    ) -> Result<PolicyTimeline, ReplayError> {
        let failed = |op_index, error| ReplayError::Policy { op_index, cause: error };
        policy.keep_streams(streams).map_err(|error| failed(0, error))?;
        let at_start = driver.memory_info()?.free;
        let mut found =
            PolicyTimeline { name: subject.name.clone(), reserved: Series::default(), oom_op: None, maps: Vec::new() };
        // The address of the block in each slot, and the index of the op that allocated it.
        let mut blocks = vec![(DeviceAddr::default(), u64::MAX); self.trace.slots() as usize];
        let mut tags = vec![0; self.trace.slots() as usize];
        let mut next = self.moments.iter().copied().peekable();
        for (index, op) in self.trace.ops().iter().enumerate() {
            let op_index = index as u64;
            if next.next_if_eq(&op_index).is_some() {
                found.maps.push(self.map(op_index, &policy, &blocks));
            }
            let outcome = match *op {
                Op::Alloc { slot, stream, tag, bytes } => {
                    tags[slot as usize] = tag;
                    policy
                        .alloc(bytes, streams[usize::from(stream)], tag)
                        .map(|addr| blocks[slot as usize] = (addr, op_index))
                }
                Op::Free { slot } => policy.free(blocks[slot as usize].0, tags[slot as usize]),
                Op::Refused { stream, bytes } => {
                    policy.ask(bytes, streams[usize::from(stream)], self.trace.refusal(op_index))
                }
                Op::Sleep { tags, content } => policy.sleep(tags, content).map(drop),
                Op::Wake { tags } => policy.wake(tags).map(drop),
                Op::Mark { .. } => policy.end_step(),
            };
            match outcome {
                Ok(()) => {}
                Err(PolicyError::OutOfMemory { .. }) => {
                    found.oom_op = Some(op_index);
                    if found.maps.last().is_none_or(|map| map.op != op_index) {
                        found.maps.push(self.map(op_index, &policy, &blocks));
                    }
                    return Ok(found);
                }
                Err(error) => return Err(failed(op_index, error)),
            }
            ReplayDriver::advance(driver);
            found.reserved.record(self.buckets, index, at_start.saturating_sub(driver.memory_info()?.free));
        }
        if next.next().is_some() {
            found.maps.push(self.map(self.trace.ops().len() as u64, &policy, &blocks));
        }
        Ok(found)
    }

    /// Draws what a policy holds before an op. `blocks` has the block in each slot, or the last one that was.
    fn map<P: Policy>(&self, op: u64, policy: &Tagged<P>, blocks: &[(DeviceAddr, u64)]) -> AddressMap {
        let listed = self.blocks.iter().find(|listed| listed.op == op).map_or(&[][..], |listed| &listed.allocated_at);
        let by_op: HashMap<u64, DeviceAddr> =
            if listed.is_empty() { HashMap::new() } else { blocks.iter().map(|&(addr, op)| (op, addr)).collect() };
        let listed: Vec<DeviceAddr> =
            listed.iter().map(|op| by_op.get(op).copied().unwrap_or(DeviceAddr(u64::MAX))).collect();
        AddressMap::of(op, policy.held_blocks(), &listed)
    }
}

/// Most policies of a [`Timeline`].
pub const MOST_POLICIES: usize = 12;
/// Most streams of a [`Timeline`].
pub const MOST_STREAMS: usize = 8;
/// Number of moments with maps that are evenly spaced.
pub const EVEN_MOMENTS: u64 = 24;
/// Most moments with maps beside those.
pub const MOST_CHOSEN: usize = 14;
/// Most ops of a trace whose blocks are listed at all moments.
const MOST_OPS_LISTED: usize = 1 << 15;
/// Most blocks in all maps together that are listed at all moments.
const MOST_BLOCKS_IN_MAPS: usize = 60_000;
/// Most moments that are looked at closely.
pub const MOST_CLOSE: usize = 2;
