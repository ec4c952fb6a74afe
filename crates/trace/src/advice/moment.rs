//! The moment that is looked at: the recorded failure, or else where the native policy fails, or else when most bytes were live
//! and awake.

use super::stranded::{Requested, Stranded};
use crate::awake::Awake;
use crate::caching::{CachingAllocator, CachingSettings};
use crate::policy::PolicyError;
use crate::replay::{ReplayDriver, pool_streams, streams};
use crate::tagged::Tagged;
use crate::{Device, FailedRequest, Op, PrivatePool, ReplayError, Trace};
use gapless::driver::ModelDriver;
use gapless::units::{DeviceAddr, StreamId};
use std::sync::Arc;

/// A block that is live at the moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct LiveBlock {
    /// Index of the op that allocated it.
    pub op_index: u64,
    pub bytes: u64,
}

/// A moment of the trace: what is live then, and where the rest of the device is.
pub(super) struct Moment {
    /// Index of the first op that has not run.
    pub op_index: u64,
    pub live: Vec<LiveBlock>,
    /// Where the rest of the device is: as recorded, or else with the native policy. `None` if the recording does not say, and the
    /// native policy does not come as far as the moment.
    pub stranded: Option<Stranded>,
    /// Whether that is recorded.
    pub is_recorded: bool,
    /// The first request that the native policy cannot serve, of those before the moment or at it.
    pub native_fails: Option<FailedRequest>,
}

impl Moment {
    /// Finds the moment: the recorded failure; without one, the failure of the native policy on `device`, or else the peak of live
    /// bytes.
    pub(super) fn find(trace: &Trace, device: &Device) -> Result<Self, ReplayError> {
        if let Some(failed) = trace.failed_request() {
            let (native_fails, stranded) = replay_until(trace, device, failed.op_index)?;
            let reached = native_fails.is_none_or(|native| native.op_index >= failed.op_index);
            let native = Self::at(trace, failed.op_index, native_fails, reached.then_some(stranded));
            return Ok(match trace.layout() {
                None => native,
                Some(layout) => {
                    let live = native.live.iter().map(|block| block.bytes).sum();
                    let recorded = Stranded::recorded(layout, device, Requested { live, waiting: 0 });
                    Self { stranded: Some(recorded), is_recorded: true, ..native }
                }
            });
        }
        let (native_fails, stranded) = replay_until(trace, device, u64::MAX)?;
        if let Some(failed) = native_fails {
            return Ok(Self::at(trace, failed.op_index, native_fails, Some(stranded)));
        }
        let end = peak_op(trace) + 1;
        let (_, stranded) = replay_until(trace, device, end)?;
        Ok(Self::at(trace, end, None, Some(stranded)))
    }

    fn at(trace: &Trace, op_index: u64, native_fails: Option<FailedRequest>, stranded: Option<Stranded>) -> Self {
        Self { op_index, live: live_before(trace, op_index), stranded, is_recorded: false, native_fails }
    }
}

/// Returns the blocks that are live and awake before an op and that the program has not freed, in the order of their slots.
pub(super) fn live_before(trace: &Trace, end: u64) -> Vec<LiveBlock> {
    let mut blocks: Vec<Option<LiveBlock>> = vec![None; trace.slots() as usize];
    let mut awake = Awake::default();
    for (op_index, op) in (0..end).zip(trace.ops()) {
        match *op {
            Op::Alloc { slot, bytes, .. } => {
                blocks[slot as usize] = Some(LiveBlock { op_index, bytes }).filter(|_| !trace.waited(op_index));
            }
            Op::Free { slot } => blocks[slot as usize] = None,
            Op::Sleep { .. } | Op::Wake { .. } | Op::Refused { .. } | Op::Mark { .. } => {}
        }
        awake.run(op);
    }
    let of_slot = |(slot, block): (u32, Option<LiveBlock>)| block.filter(|_| awake.is_awake(slot));
    (0..).zip(blocks).filter_map(of_slot).collect()
}

/// Returns the blocks that are live and awake at the peak of such bytes, in the order of their slots.
pub(super) fn live_at_peak(trace: &Trace) -> Vec<LiveBlock> {
    live_before(trace, peak_op(trace) + 1)
}

/// Replays the ops before `end` natively, or up to the one that fails. Returns where the rest of the device is then, and the
/// request that fails, which may be the one at `end`.
fn replay_until(trace: &Trace, device: &Device, end: u64) -> Result<(Option<FailedRequest>, Stranded), ReplayError> {
    let driver = Arc::new(device.model());
    let mut native = Native::new(trace, Arc::clone(&driver))?;
    let mut failed = None;
    for (op_index, op) in (0..end).zip(trace.ops()) {
        failed = native.run(op_index, op)?;
        if failed.is_some() {
            break;
        }
        ReplayDriver::advance(&*driver);
    }
    let stranded = native.stranded(device);
    if failed.is_none()
        && let Some(op) = usize::try_from(end).ok().and_then(|index| trace.ops().get(index))
    {
        failed = native.run(end, op)?;
    }
    native.allocator.abandon();
    Ok((failed, stranded))
}

/// A replay through the native policy.
struct Native<'a> {
    trace: &'a Trace,
    allocator: Tagged<CachingAllocator<ModelDriver>>,
    streams: Vec<StreamId>,
    blocks: Vec<Block>,
    awake: Awake,
    /// What is requested of blocks that waited for streams when the run failed.
    waiting_bytes: u64,
}

/// The block in a slot.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    addr: DeviceAddr,
    bytes: u64,
    tag: u8,
    /// Whether it waited for streams when the run failed.
    waited: bool,
}

impl<'a> Native<'a> {
    fn new(trace: &'a Trace, driver: Arc<ModelDriver>) -> Result<Self, ReplayError> {
        let streams = streams(trace, &*driver)?;
        let pools = pool_streams(trace, &streams);
        let build = || Ok::<_, ReplayError>(CachingAllocator::with_pools(&driver, CachingSettings::default(), &pools));
        let allocator = Tagged::new(trace, build)?;
        Ok(Self {
            trace,
            streams,
            allocator,
            blocks: vec![Block::default(); trace.slots() as usize],
            awake: Awake::default(),
            waiting_bytes: 0,
        })
    }

    /// Runs an op. Returns the request if it has to be served and is not.
    fn run(&mut self, op_index: u64, op: &Op) -> Result<Option<FailedRequest>, ReplayError> {
        let wrong = |error| ReplayError::Policy { op_index, cause: error };
        let refused = |bytes, error| match error {
            PolicyError::OutOfMemory { .. } => Ok(Some(FailedRequest { op_index, bytes })),
            error => Err(wrong(error)),
        };
        match *op {
            Op::Alloc { slot, stream, tag, bytes } => {
                let waited = self.trace.waited(op_index);
                match self.allocator.alloc(bytes, self.streams[usize::from(stream)], tag) {
                    Ok(addr) => self.blocks[slot as usize] = Block { addr, bytes, tag, waited },
                    Err(error) => return refused(bytes, error),
                }
                self.waiting_bytes += if waited { bytes } else { 0 };
            }
            Op::Free { slot } => {
                let Block { addr, bytes, tag, waited } = self.blocks[slot as usize];
                self.allocator.free(addr, tag).map_err(wrong)?;
                self.waiting_bytes -= if waited { bytes } else { 0 };
            }
            Op::Refused { stream, bytes } => {
                let stream = self.streams[usize::from(stream)];
                if let Err(error) = self.allocator.ask(bytes, stream, self.trace.refusal(op_index)) {
                    return refused(bytes, error);
                }
            }
            Op::Sleep { tags, content } => drop(self.allocator.sleep(tags, content).map_err(wrong)?),
            Op::Wake { tags } => {
                if let Err(error) = self.allocator.wake(tags) {
                    return refused(self.awake.asleep_of(tags), error);
                }
            }
            Op::Mark { .. } => {}
        }
        self.awake.run(op);
        Ok(None)
    }

    fn stranded(&self, device: &Device) -> Stranded {
        let waiting = self.waiting_bytes;
        let requested = Requested { live: self.awake.bytes().saturating_sub(waiting), waiting };
        Stranded::of(self.allocator.policies(), device, requested, |stream| self.number(stream))
    }

    /// Returns the trace's number of a stream, or `None` for one of a private pool.
    fn number(&self, stream: StreamId) -> Option<u64> {
        let number =
            self.streams.iter().position(|&known| known == stream).map_or(0, |index| self.trace.streams()[index]);
        let is_private = |pool: &PrivatePool| pool.streams.iter().any(|(private, _)| *private == number);
        (!self.trace.pools().iter().any(is_private)).then_some(number)
    }
}

/// Returns the index of the first op after which most bytes are live and awake.
fn peak_op(trace: &Trace) -> u64 {
    let mut awake = Awake::default();
    let (mut peak, mut at) = (0, 0);
    for (index, op) in (0..).zip(trace.ops()) {
        awake.run(op);
        if awake.bytes() > peak {
            (peak, at) = (awake.bytes(), index);
        }
    }
    at
}
