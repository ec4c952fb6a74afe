//! The slow path of an allocation, in the order that costs least: memory that other streams are done with, a growth, a
//! wait, any block that was kept for something else, and in the end the report.

use super::Inner;
use super::error::AllocError;
use super::execute::Outcome;
use super::mapper::Mapper;
use super::plan::{Allowance, Request, free_chunks, plan};
use super::state::{AllStates, StreamHeap, live_bytes};
use crate::driver::{Driver, DriverError};
use crate::physical::ChunkId;
use crate::units::DeviceAddr;

impl<D: Driver> Inner<D> {
    /// Serves a request that the cached blocks of its own stream could not serve.
    #[cold]
    pub(super) fn alloc_slow(
        &self,
        heap: &StreamHeap,
        bytes: u64,
        size: u64,
        waste: u16,
        alignment: u64,
    ) -> Result<DeviceAddr, AllocError> {
        let request = Request::new(heap.index, size, alignment);
        if self.is_forked() {
            return Err(AllocError::Forked { built_in: self.process });
        }
        if let Some(error) = self.poison.get() {
            return Err(error.clone().into());
        }
        let mut mapper = self.mapper.lock();
        self.ensure_region(&mut mapper, heap, request.kind)?;
        let mut created = Vec::new();
        let result = self.search(&mut mapper, heap, request, bytes, waste, &mut created);
        mapper.pool.lift_bars();
        if result.is_err() {
            // What this call created and could not use goes back: nothing has changed.
            for chunk in created {
                if mapper.pool.idle().any(|idle| idle == chunk) {
                    self.release_idle(&mut mapper, chunk);
                }
            }
        }
        drop(mapper);
        if let Err(AllocError::Driver(error)) = &result
            && error.kind.is_sticky()
        {
            let _ = self.poison.set(error.clone());
        }
        result
    }

    fn search(
        &self,
        mapper: &mut Mapper,
        heap: &StreamHeap,
        request: Request,
        bytes: u64,
        waste: u16,
        created: &mut Vec<ChunkId>,
    ) -> Result<DeviceAddr, AllocError> {
        let mut refused: Option<DriverError> = None;
        let mut recreate = false;
        loop {
            self.settle_pending()?;
            if let Some(addr) = self.alloc_cached(heap, request, waste) {
                return Ok(addr);
            }
            let tight = mapper.pool.headroom_pages() == 0;
            let beyond_slack = mapper.pool.held_pages() >= self.slack_pages(self.peak.peak());
            self.refresh_clocks(heap.index, tight || beyond_slack)?;
            if let Some(addr) = self.borrow(heap.index, request, waste, tight) {
                return Ok(addr);
            }
            if tight && let Some(addr) = self.alloc_fragment(heap, request, waste) {
                return Ok(addr);
            }
            let passed: Vec<u64> = self.streams.iter().map(|stream| stream.clock.lock().passed()).collect();
            let short_of_addresses;
            let planned = {
                let mut states = self.lock_all();
                let mut allowance = self.allowance(mapper, &states, request.size, recreate);
                if refused.is_some() {
                    (allowance.soft_pages, allowance.hard_pages) = (0, 0);
                }
                let regions: Vec<_> = states[heap.index.0 as usize].regions.ids_of(request.kind).collect();
                let planned = regions
                    .into_iter()
                    .find_map(|region| plan(mapper, &mut states, &passed, Request { region, ..request }, allowance));
                short_of_addresses = planned.is_none() && enough_chunks(mapper, &states, request, allowance);
                planned
            };
            match planned {
                Some(plan) => match self.execute(mapper, plan, waste, created)? {
                    Outcome::Done(addr) => return Ok(addr),
                    Outcome::Refused(error) if refused.is_none() => refused = Some(error),
                    Outcome::Refused(error) => {
                        return self.end_search(mapper, heap, request, bytes, waste, Some(&error));
                    }
                    Outcome::Again => {}
                },
                None if short_of_addresses && self.widen(mapper, heap, request)? => {}
                None if !recreate => recreate = true,
                None if self.wait_for_pending()? => {}
                None if self.settle_left_behind(mapper)? => {}
                None => return self.end_search(mapper, heap, request, bytes, waste, refused.as_ref()),
            }
        }
    }

    /// No memory can be mapped for a request.
    fn end_search(
        &self,
        mapper: &Mapper,
        heap: &StreamHeap,
        request: Request,
        bytes: u64,
        waste: u16,
        refused: Option<&DriverError>,
    ) -> Result<DeviceAddr, AllocError> {
        match self.scavenge(heap, request, waste)? {
            Some(addr) => Ok(addr),
            None => Err(self.out_of_memory(mapper, bytes, request, refused)),
        }
    }

    /// What may be created now.
    fn allowance(&self, mapper: &Mapper, states: &AllStates<'_>, size: u64, recreate: bool) -> Allowance {
        let hard_pages = mapper.pool.headroom_pages();
        let peak = self.peak.peak().max(live_bytes(states).saturating_add(size));
        let limit = self.slack_pages(peak);
        let soft_pages = hard_pages.min(limit.saturating_sub(mapper.pool.held_pages()));
        Allowance { soft_pages, hard_pages, recreate }
    }

    /// Pages that may be held before what is free is remapped, with this peak of live bytes.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a bound")]
    fn slack_pages(&self, peak_live_bytes: u64) -> u64 {
        (peak_live_bytes as f64 * self.geometry.slack / self.geometry.page_bytes as f64).min(1e18) as u64
    }

    /// The hot path once more, under the mapper's lock and in all regions.
    fn alloc_cached(&self, heap: &StreamHeap, request: Request, waste: u16) -> Option<DeviceAddr> {
        heap.lock().take_any(request.kind, request.size, waste, request.alignment)
    }
}

/// True when free chunks and those that may be created come to the pages of a request.
fn enough_chunks(mapper: &Mapper, states: &AllStates<'_>, request: Request, allowance: Allowance) -> bool {
    let page_bytes = mapper.pool.page_bytes();
    let free: u64 = free_chunks(mapper, states).iter().map(|source| u64::from(source.pages)).sum();
    free + mapper.pool.idle_bytes() / page_bytes + allowance.hard_pages >= request.size.div_ceil(page_bytes)
}
