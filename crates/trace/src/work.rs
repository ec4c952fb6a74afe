//! Work that a replay queues on its blocks, to detect memory that is reused, remapped or unmapped too early.
//!
//! A block is written after its allocation and checked before its free, both on its stream. The model driver only
//! records that the range is in use until the stream has passed; drivers with real memory write and read the bytes.

use crate::replay_error::ReplayError;
use crate::{Metered, Trace};
use gapless::driver::WorkDriver;
use gapless::units::{DeviceAddr, KIB, MIB, StreamId};

/// Which bytes of the blocks a replay uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Touch {
    /// None, for speed.
    Nothing,
    /// Every byte of every block, for drivers without real memory.
    Whole,
    /// The first and the last [`EDGE_BYTES`] bytes of blocks. If a trace has very many blocks, only of every n-th one,
    /// to limit the use of real memory.
    Edges,
}

impl Touch {
    /// Returns the setting for a model whose work completes after `lag_ops` ops. Without a lag, no work is ever in
    /// flight.
    #[must_use]
    pub const fn for_model(lag_ops: u64) -> Self {
        if lag_ops == 0 { Self::Nothing } else { Self::Whole }
    }
}

/// Queues the work of one replay.
pub(crate) struct Worker<'a, D> {
    driver: &'a Metered<D>,
    touch: Touch,
    /// One in this many blocks is used.
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
    /// Creates a worker, or returns `None` if no work is to be queued.
    pub(crate) fn new(trace: &Trace, driver: &'a Metered<D>, touch: Touch) -> Option<Self> {
        let stride = match touch {
            Touch::Nothing => return None,
            Touch::Whole => 1,
            // Each edge makes the host use one or two pages of 4 KiB.
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

    /// The bytes of the block in a slot are lost.
    pub(crate) fn discarded(&mut self, slot: u32) {
        self.blocks[slot as usize] = None;
    }

    pub(crate) fn freeing(&mut self, slot: u32) -> Result<(), ReplayError> {
        let Some(touched) = self.blocks[slot as usize].take() else { return Ok(()) };
        self.for_each_range(touched, |driver, addr, bytes, seed| driver.verify(touched.stream, addr, bytes, seed))?;
        self.queued += 1;
        if self.touch == Touch::Edges && self.queued.is_multiple_of(QUEUE_BLOCKS) {
            // Real streams run concurrently: do not let the queue grow without limit.
            self.driver.synchronize(touched.stream)?;
        }
        Ok(())
    }

    /// Waits for all work and returns an error if a check found wrong bytes.
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

/// Number of bytes used at each end of a block.
pub const EDGE_BYTES: u64 = KIB;
/// Approximate limit of the real memory for the edges of a whole trace, in bytes.
const EDGE_BUDGET_BYTES: u64 = 256 * MIB;
/// Number of blocks after which the replay waits for the streams.
const QUEUE_BLOCKS: u64 = 4096;
