//! The memory that a thread of the stress test keeps in place: freed blocks that are pinned, and registered blocks.

use super::shared::{Block, Random, Shared};
use crate::device::Device;
use crate::witness::Witness;
use gapless::allocator::{AllocError, Pin, RegisteredBlock};
use gapless::driver::{FaultDriver, WorkDriver};
use gapless::units::StreamId;

/// Most pins, and most registered blocks, of a thread.
const MOST: usize = 2;

/// A registered block, with the stream that has written to it, and the seed.
type Registered<D> = (RegisteredBlock<FaultDriver<Witness<D>>>, StreamId, u64);

/// The memory that one thread keeps in place.
pub(crate) struct Kept<D: Device> {
    /// Freed blocks, which nobody gets before the pin is gone.
    pinned: Vec<(Pin<FaultDriver<Witness<D>>>, Block)>,
    registered: Vec<Registered<D>>,
}

impl<D: Device> Default for Kept<D> {
    fn default() -> Self {
        Self { pinned: Vec::new(), registered: Vec::new() }
    }
}

impl<D: Device> Shared<'_, D> {
    pub(crate) fn step_kept(&self, random: &mut Random, kept: &mut Kept<D>, blocks: &mut Vec<Block>) {
        match random.below(4) {
            0 if kept.pinned.len() < MOST => {
                let Some(block) = blocks.pop() else { return };
                let pin = || self.allocator.pin(block.addr).expect("a live block can be pinned");
                let Some(pin) = self.with_memory(&block, pin) else { return blocks.push(block) };
                self.free_pinned(&block);
                kept.pinned.push((pin, block));
            }
            1 if !kept.pinned.is_empty() => {
                let (pin, block) = kept.pinned.swap_remove(0);
                self.unpin(pin, &block);
            }
            2 if kept.registered.len() < MOST => {
                let (stream, seed) = (self.stream(random), random.below(u64::MAX));
                match self.allocator.alloc_registered((1 + random.below(3)) * self.world.page_bytes, stream) {
                    Ok(block) => {
                        let result = self.witness().fill(stream, block.addr(), block.bytes(), seed);
                        result.expect("invariant 2: a registered block can be written");
                        kept.registered.push((block, stream, seed));
                    }
                    Err(AllocError::OutOfMemory(_)) => self.note_refusal(),
                    Err(error) => self.expect_injected(&error),
                }
            }
            3 if !kept.registered.is_empty() => {
                let (block, stream, seed) = kept.registered.swap_remove(0);
                self.free_registered(block, stream, seed);
            }
            _ => {}
        }
    }

    pub(crate) fn let_all_move(&self, kept: Kept<D>) {
        kept.pinned.into_iter().for_each(|(pin, block)| self.unpin(pin, &block));
        kept.registered.into_iter().for_each(|(block, stream, seed)| self.free_registered(block, stream, seed));
    }

    /// Invariant 8: the block has its bytes still. What looks at them has to be over before the pin is.
    fn unpin(&self, pin: Pin<FaultDriver<Witness<D>>>, block: &Block) {
        self.verify(block, block.last_user);
        self.witness().synchronize(block.last_user).expect("a stream that nobody captures");
        self.owned.lock().remove(&block.addr.0);
        drop(pin);
    }

    /// Invariant 7. The drop waits for the stream.
    fn free_registered(&self, block: RegisteredBlock<FaultDriver<Witness<D>>>, stream: StreamId, seed: u64) {
        let result = self.witness().verify(stream, block.addr(), block.bytes(), seed);
        result.expect("invariant 7: a registered block can be read");
        drop(block);
    }
}
