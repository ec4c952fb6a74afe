//! gapless for a trace with private pools: an allocator of its own for each, which keeps its mappings, beside the one for all other
//! requests, as in `gapless-process`.
//!
//! All share one device. What a pool has held stays its own, so the rest of a device is what the others can have.

use crate::Content;
use crate::held::HeldBlock;
use crate::policy::{GaplessSettings, PhaseBytes, Policy, PolicyError, PolicyStats};
use gapless::Allocator;
use gapless::allocator::BuildError;
use gapless::driver::Driver;
use gapless::units::{DeviceAddr, StreamId};
use std::collections::HashMap;
use std::sync::Arc;

/// An allocator for each private pool, and one for the rest.
pub(crate) struct PooledGapless<D: Driver> {
    rest: Allocator<D>,
    pools: Vec<Allocator<D>>,
    /// The pool of each stream that is in one.
    pool_of: HashMap<StreamId, usize>,
    budget_bytes: u64,
}

impl<D: Driver> PooledGapless<D> {
    /// Creates the allocators on `driver`, for pools with these streams.
    pub fn new(
        settings: &GaplessSettings,
        driver: &Arc<D>,
        budget_bytes: u64,
        pools: &[Vec<StreamId>],
    ) -> Result<Self, BuildError> {
        let pool_of = (0..).zip(pools).flat_map(|(pool, streams)| streams.iter().map(move |stream| (*stream, pool)));
        Ok(Self {
            rest: settings.builder(Arc::clone(driver), budget_bytes).build()?,
            pools: pools
                .iter()
                .map(|_| settings.builder(Arc::clone(driver), budget_bytes).keep_mappings().build())
                .collect::<Result<_, _>>()?,
            pool_of: pool_of.collect(),
            budget_bytes,
        })
    }

    fn of_stream(&mut self, stream: StreamId) -> &mut Allocator<D> {
        match self.pool_of.get(&stream) {
            Some(&pool) => &mut self.pools[pool],
            None => &mut self.rest,
        }
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Allocator<D>> {
        std::iter::once(&mut self.rest).chain(&mut self.pools)
    }

    fn all(&self) -> impl Iterator<Item = &Allocator<D>> {
        std::iter::once(&self.rest).chain(&self.pools)
    }
}

impl<D: Driver> Policy for PooledGapless<D> {
    fn keep_streams(&mut self, streams: &[StreamId]) -> Result<(), PolicyError> {
        streams.iter().try_for_each(|stream| self.of_stream(*stream).keep_streams(&[*stream]))
    }

    fn alloc(&mut self, bytes: u64, stream: StreamId) -> Result<DeviceAddr, PolicyError> {
        Policy::alloc(self.of_stream(stream), bytes, stream)
    }

    fn free(&mut self, addr: DeviceAddr) -> Result<(), PolicyError> {
        let pool = self.pools.iter_mut().find(|pool| pool.contains(addr));
        Policy::free(pool.unwrap_or(&mut self.rest), addr)
    }

    fn sleep(&mut self, content: Content) -> Result<PhaseBytes, PolicyError> {
        self.all_mut().try_fold(PhaseBytes::default(), |sum, pool| Ok(sum + Policy::sleep(pool, content)?))
    }

    fn wake(&mut self) -> Result<PhaseBytes, PolicyError> {
        self.all_mut().try_fold(PhaseBytes::default(), |sum, pool| Ok(sum + Policy::wake(pool)?))
    }

    fn give_back(&mut self) -> Result<(), PolicyError> {
        self.all_mut().try_for_each(Policy::give_back)
    }

    fn reserved_bytes(&self) -> u64 {
        self.all().map(Policy::reserved_bytes).sum()
    }

    fn stats(&self) -> PolicyStats {
        let each = self.all().map(Policy::stats);
        let sum = each.fold(PolicyStats::default(), |sum, stats| PolicyStats {
            peak_reserved_bytes: sum.peak_reserved_bytes + stats.peak_reserved_bytes,
            host_waits: sum.host_waits + stats.host_waits,
        });
        // The peaks of different allocators may be at different times.
        PolicyStats { peak_reserved_bytes: sum.peak_reserved_bytes.min(self.budget_bytes), ..sum }
    }

    fn held_blocks(&self) -> Vec<HeldBlock> {
        self.all().flat_map(Policy::held_blocks).collect()
    }

    fn abandon(self) {
        std::iter::once(self.rest).chain(self.pools).for_each(Allocator::abandon);
    }
}
