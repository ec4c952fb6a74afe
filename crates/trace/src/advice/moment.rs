//! The moment that is looked at: when a request failed, or else when most bytes were live. The native policy is
//! replayed up to it.

use super::stranded::Stranded;
use crate::caching::{CachingAllocator, CachingError, CachingSettings};
use crate::policy::PolicyError;
use crate::replay::{ReplayDriver, streams};
use crate::{Device, FailedRequest, Op, ReplayError, Trace};
use gapless::units::{DeviceAddr, StreamId};
use std::sync::Arc;

/// A block that is live at the moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct LiveBlock {
    /// Index of the op that allocated it.
    pub op_index: u64,
    pub bytes: u64,
}

/// What the native policy holds at the moment.
pub(super) struct Moment {
    /// Index of the first op that has not run.
    pub op_index: u64,
    /// The request that the native policy refused, if it did so before the moment or at it.
    pub failed: Option<FailedRequest>,
    pub live: Vec<LiveBlock>,
    pub stranded: Stranded,
}

impl Moment {
    /// Replays `trace` natively on `device` up to the recorded failure; without one, to the end, and if nothing fails, once
    /// more up to the peak of live bytes.
    pub(super) fn find(trace: &Trace, device: &Device) -> Result<Self, ReplayError> {
        if let Some(failed) = trace.failed_request() {
            return Self::until(trace, device, failed.op_index);
        }
        let end = Self::until(trace, device, u64::MAX)?;
        if end.failed.is_some() { Ok(end) } else { Self::until(trace, device, peak_op(trace) + 1) }
    }

    /// Replays the ops before `end`, or up to the one that fails.
    fn until(trace: &Trace, device: &Device, end: u64) -> Result<Self, ReplayError> {
        let driver = Arc::new(device.model());
        let streams = streams(trace, &*driver)?;
        let mut allocator = CachingAllocator::new(Arc::clone(&driver), CachingSettings::default());
        let mut blocks: Vec<Option<(DeviceAddr, LiveBlock)>> = vec![None; trace.slots() as usize];
        let mut failed = None;
        let mut op_index = 0;
        for op in trace.ops().iter().take(usize::try_from(end).unwrap_or(usize::MAX)) {
            match *op {
                Op::Alloc { slot, stream, bytes } => match allocator.alloc(bytes, streams[usize::from(stream)]) {
                    Ok(addr) => blocks[slot as usize] = Some((addr, LiveBlock { op_index, bytes })),
                    Err(CachingError::OutOfMemory(_)) => {
                        failed = Some(FailedRequest { op_index, bytes });
                        break;
                    }
                    Err(error) => return Err(wrong(op_index, error)),
                },
                Op::Free { slot } => {
                    let (addr, _) = blocks[slot as usize].take().expect("a trace frees live blocks only");
                    allocator.free(addr).map_err(|error| wrong(op_index, error))?;
                }
                Op::Mark { .. } => {}
            }
            ReplayDriver::advance(&*driver);
            op_index += 1;
        }
        let live: Vec<LiveBlock> = blocks.iter().flatten().map(|(_, block)| *block).collect();
        let stranded = Stranded::of(&allocator, device, requested(&live), |stream| number(trace, &streams, stream));
        Ok(Self { op_index, failed, live, stranded })
    }
}

fn requested(live: &[LiveBlock]) -> u64 {
    live.iter().map(|block| block.bytes).sum()
}

/// Returns the trace's number of a stream.
fn number(trace: &Trace, streams: &[StreamId], stream: StreamId) -> u64 {
    streams.iter().position(|&known| known == stream).map_or(0, |index| trace.streams()[index])
}

/// Returns the index of the first op after which most bytes are live.
fn peak_op(trace: &Trace) -> u64 {
    let mut bytes_of = vec![0; trace.slots() as usize];
    let (mut live, mut peak, mut at) = (0, 0, 0);
    for (index, op) in (0..).zip(trace.ops()) {
        match *op {
            Op::Alloc { slot, bytes, .. } => {
                bytes_of[slot as usize] = bytes;
                live += bytes;
                if live > peak {
                    (peak, at) = (live, index);
                }
            }
            Op::Free { slot } => live -= bytes_of[slot as usize],
            Op::Mark { .. } => {}
        }
    }
    at
}

fn wrong(op_index: u64, error: CachingError) -> ReplayError {
    let error = match error {
        CachingError::Driver(error) => PolicyError::Driver(error),
        other => PolicyError::Failed(other.to_string()),
    };
    ReplayError::Policy { op_index, error }
}
