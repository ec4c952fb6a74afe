//! Work that a replay queues on its blocks, so that memory reused, remapped or unmapped too early shows.
//!
//! A block is written when it is allocated and checked right before it is freed, both on its stream. On the model both
//! are only notes that the range is in use until the stream has passed; on real memory they move bytes.

use crate::replay::ReplayError;
use crate::{Metered, Trace};
use gapless::driver::WorkDriver;
use gapless::units::{DeviceAddr, KIB, MIB, StreamId};

/// Which bytes of which blocks are touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// None: for speed.
    Nothing,
    /// Every byte of every block: for drivers without bytes.
    Whole,
    /// The first and the last [`EDGE_BYTES`] of blocks, of as many as real memory bears: every n-th where a trace has
    /// very many.
    Edges,
}

impl Touch {
    /// What a model whose work completes after `lag_ops` ops needs: without a lag nothing is ever in flight.
    pub const fn for_model(lag_ops: u64) -> Self {
        if lag_ops == 0 { Self::Nothing } else { Self::Whole }
    }
}

/// Queues the work of one replay.
pub(crate) struct Worker<'a, D> {
    driver: &'a Metered<D>,
    touch: Touch,
    /// One in so many blocks is touched.
    stride: u64,
    count: u64,
    queued: u64,
    blocks: Vec<Option<Touched>>,
}

#[derive(Clone, Copy)]
struct Touched {
    stream: StreamId,
    addr: DeviceAddr,
    bytes: u64,
    seed: u64,
}

impl<'a, D: WorkDriver> Worker<'a, D> {
    /// `None` when there is nothing to do.
    pub(crate) fn new(trace: &Trace, driver: &'a Metered<D>, touch: Touch) -> Option<Self> {
        let stride = match touch {
            Touch::Nothing => return None,
            Touch::Whole => 1,
            // A touched edge makes the host back a page of 4 KiB or two with memory.
            Touch::Edges => (trace.allocations() * 16 * KIB).div_ceil(EDGE_BUDGET_BYTES).max(1),
        };
        Some(Self { driver, touch, stride, count: 0, queued: 0, blocks: vec![None; trace.slots() as usize] })
    }

    pub(crate) fn allocated(
        &mut self,
        slot: u32,
        stream: StreamId,
        addr: DeviceAddr,
        bytes: u64,
    ) -> Result<(), ReplayError> {
        self.count += 1;
        let touched = Touched { stream, addr, bytes, seed: self.count };
        let chosen = bytes > 0 && self.count.is_multiple_of(self.stride);
        self.blocks[slot as usize] = chosen.then_some(touched);
        if chosen {
            self.for_each_range(touched, |driver, addr, bytes, seed| driver.fill(stream, addr, bytes, seed))?;
        }
        Ok(())
    }

    pub(crate) fn freeing(&mut self, slot: u32) -> Result<(), ReplayError> {
        let Some(touched) = self.blocks[slot as usize].take() else { return Ok(()) };
        self.for_each_range(touched, |driver, addr, bytes, seed| driver.verify(touched.stream, addr, bytes, seed))?;
        self.queued += 1;
        if self.touch == Touch::Edges && self.queued.is_multiple_of(QUEUE_BLOCKS) {
            // Real streams run on threads of their own: do not let the queue grow without end.
            self.driver.synchronize(touched.stream)?;
        }
        Ok(())
    }

    /// Waits for everything and looks at what the checks found.
    pub(crate) fn finish(self, streams: &[StreamId]) -> Result<(), ReplayError> {
        for &stream in streams {
            self.driver.synchronize(stream)?;
        }
        let mismatches = self.driver.take_mismatches();
        if mismatches.is_empty() { Ok(()) } else { Err(ReplayError::Mismatch(mismatches)) }
    }

    fn for_each_range(
        &self,
        block: Touched,
        mut work: impl FnMut(&Metered<D>, DeviceAddr, u64, u64) -> gapless::driver::DriverResult<()>,
    ) -> Result<(), ReplayError> {
        let Touched { addr, bytes, seed, .. } = block;
        if self.touch == Touch::Whole || bytes <= 2 * EDGE_BYTES {
            work(self.driver, addr, bytes, seed)?;
        } else {
            work(self.driver, addr, EDGE_BYTES, seed)?;
            work(self.driver, addr.offset(bytes - EDGE_BYTES), EDGE_BYTES, !seed)?;
        }
        Ok(())
    }
}

/// Bytes written at each end of a block.
pub const EDGE_BYTES: u64 = KIB;
/// About how much real memory the edges of a whole trace may take.
const EDGE_BUDGET_BYTES: u64 = 256 * MIB;
/// After so many blocks the replay waits for the streams to catch up.
const QUEUE_BLOCKS: u64 = 4096;
