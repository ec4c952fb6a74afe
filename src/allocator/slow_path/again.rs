//! An allocation at an address that was handed out before: what a program asks for that goes back to an earlier state of its
//! memory. Nothing is created or mapped for it: the memory at the address is free there, or was moved elsewhere in the meantime
//! and is free at that place.

use super::super::error::{AllocAgainError, AllocError, facts_of};
use super::super::request::Request;
use super::super::streams::directory::Owner;
use super::super::streams::region::Region;
use super::super::streams::state::StreamState;
use super::SlowPath;
use super::execute::Outcome;
use super::plan::{Allowance, Goal, Plan, Recreation, States, plan_again};
use crate::driver::Driver;
use crate::heap::{Block, BlockState};
use crate::pages::{PageCount, PageIndex};
use crate::stream::Reach;
use crate::units::DeviceAddr;

/// Where an allocation is wanted: a place in a region.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The region.
    pub owner: Owner,
    /// Offset in the region.
    pub offset: u64,
    /// The same as an address.
    pub addr: DeviceAddr,
}

impl<D: Driver> SlowPath<'_, D> {
    /// Allocates at an address.
    ///
    /// # Errors
    /// [`AllocAgainError::NotFree`], [`AllocError::CannotWait`] and the driver's; nothing has changed.
    pub fn alloc_again(&mut self, wanted: Wanted, request: Request) -> Result<(), AllocAgainError> {
        self.settle_pending()?;
        loop {
            let passed = self.wait_for_owner(wanted, request)?;
            if self.take_free(wanted, request, passed) {
                break;
            }
            match self.plan_again(wanted, request, passed) {
                Some(plan) => {
                    self.wait_for_moved(&plan)?;
                    match self.execute(plan)? {
                        Outcome::Done(_) => break,
                        // What stood in the way is barred now, so that the next plan is without it.
                        Outcome::Again => {}
                        Outcome::Refused(error) => return Err(error.into()),
                    }
                }
                // Another thread has freed a part of the bytes since.
                None if self.last_use(wanted, request) > passed => {}
                None => return Err(self.not_free(wanted, request)),
            }
        }
        self.note_peak(wanted.addr);
        Ok(())
    }

    /// Waits on the host for what the stream of the memory did with it, where that stream may have been destroyed: nobody can order
    /// work behind it then. What has moved away to other streams is waited for when it is brought back.
    ///
    /// Returns the last epoch of the stream after which memory may be handed out: it has passed, or what comes next on the stream
    /// runs behind it.
    fn wait_for_owner(&self, wanted: Wanted, request: Request) -> Result<u64, AllocError> {
        let stream = self.shared.streams.get(wanted.owner.stream);
        let (reach, open) = {
            let clock = stream.clock.lock();
            (clock.reach(), clock.open())
        };
        let (last_use, passed) = match reach {
            Reach::Kept => return Ok(u64::MAX),
            // It does nothing any more.
            Reach::Over { .. } => (open, u64::MAX),
            Reach::Given => {
                let last_use = self.last_use(wanted, request);
                (last_use, last_use)
            }
        };
        match self.progress().wait_until_passed(stream.index, last_use)? {
            true => Ok(passed),
            false => Err(AllocError::CannotWait { stream: stream.id() }),
        }
    }

    /// Waits for what that stream did, where it may have been destroyed, with memory that moved away to another of its addresses,
    /// and that a plan brings back.
    fn wait_for_moved(&self, plan: &Plan) -> Result<(), AllocError> {
        let stream = self.shared.streams.get(plan.goal.stream);
        if stream.clock.lock().reach() != Reach::Given {
            return Ok(());
        }
        let its_own = plan.moved().filter(|source| source.stream == stream.index);
        let waited = match its_own.map(|source| source.epoch).max() {
            Some(last_use) => self.progress().wait_until_passed(stream.index, last_use),
            None => Ok(true),
        };
        match waited {
            Ok(true) => Ok(()),
            refused => {
                self.abandon(plan);
                Err(refused.map_or_else(AllocError::from, |_| AllocError::CannotWait { stream: stream.id() }))
            }
        }
    }

    /// The epoch of the last use of the bytes that are free at the address.
    fn last_use(&self, wanted: Wanted, request: Request) -> u64 {
        last_use(&self.shared.streams.get(wanted.owner.stream).lock(), wanted, request)
    }

    /// Takes the bytes from a free block that has all of them, and that was not used after `passed`.
    fn take_free(&self, wanted: Wanted, request: Request, passed: u64) -> bool {
        let Wanted { owner, offset, .. } = wanted;
        let mut state = self.shared.streams.get(owner.stream).lock();
        if last_use(&state, wanted, request) > passed {
            return false;
        }
        let Some(region) = state.region(owner.region) else { return false };
        let around = region
            .heap
            .block_around(offset)
            .filter(|block| block.state == BlockState::Free && offset + request.size <= block.offset + block.size);
        let Some(block) = around else { return false };
        region.heap.take_live(block.offset, offset, request.size, request.waste());
        state.count_alloc(request.size, request.waste());
        true
    }

    /// A plan that brings back what has moved away from the address, unless what is free there was used after `until`.
    fn plan_again(&self, wanted: Wanted, request: Request, until: u64) -> Option<Plan> {
        let streams = &self.shared.streams;
        let passed = self.progress().passed();
        let mut states = States::together(streams);
        if states.with(wanted.owner.stream, |state| last_use(state, wanted, request)) > until {
            return None;
        }
        let nothing_new = Allowance {
            soft_pages: PageCount::ZERO,
            hard_pages: PageCount::ZERO,
            recreation: Recreation::WithoutWaiting,
        };
        let goal = Goal {
            request,
            stream: wanted.owner.stream,
            region: wanted.owner.region,
            allowance: nothing_new,
            rules: self.rules(),
            apart: false,
        };
        plan_again(&self.mapper, &mut states, &passed, goal, wanted.offset)
    }

    /// Why the bytes cannot be had.
    fn not_free(&self, wanted: Wanted, request: Request) -> AllocAgainError {
        let state = self.shared.streams.get(wanted.owner.stream).lock();
        let region = state.regions.get(wanted.owner.region);
        let is_asleep = |region: &Region, block: &Block| {
            let page = PageIndex::of(block.offset.max(wanted.offset), region.page_bytes);
            block.state == BlockState::Claimed && self.mapper.asleep().holds(region.segment, page)
        };
        let first = |region: &Region| blocks_of(region, wanted, request).find(|block| block.state != BlockState::Free);
        if region.is_some_and(|region| first(region).is_some_and(|block| is_asleep(region, &block))) {
            return AllocAgainError::Asleep { addr: wanted.addr, bytes: request.requested };
        }
        let in_the_way = region.and_then(|region| {
            let block = first(region)?;
            Some(match block.state {
                BlockState::Live => super::super::error::AddressFacts::Inside {
                    start: region.base.offset(block.offset),
                    bytes: block.size,
                },
                other => facts_of(other, region.base.offset(block.offset), block.size, true),
            })
        });
        let facts = in_the_way.unwrap_or(super::super::error::AddressFacts::NeverAllocated);
        AllocAgainError::NotFree { addr: wanted.addr, bytes: request.requested, facts }
    }
}

/// The epoch of the last use of what is free of the bytes.
fn last_use(state: &StreamState, wanted: Wanted, request: Request) -> u64 {
    let blocks =
        state.regions.get(wanted.owner.region).into_iter().flat_map(|region| blocks_of(region, wanted, request));
    let free = blocks.filter(|block| block.state == BlockState::Free).map(|block| u64::from(block.epoch));
    free.max().map_or(0, |epoch| state.epoch_base + epoch)
}

/// The blocks that the bytes lie in.
fn blocks_of(region: &Region, wanted: Wanted, request: Request) -> impl Iterator<Item = Block> {
    let end = wanted.offset + request.size;
    let around = region.heap.block_around(wanted.offset);
    around.into_iter().chain(region.heap.blocks_from(wanted.offset).take_while(move |block| block.offset < end))
}
