//! A growth: what a request goes through that no cached block of its stream serves. The steps come in the order that costs
//! least: memory that other streams are done with, a new mapping, a wait, any block kept for another use, and at last the
//! report.

use super::super::error::AllocError;
use super::super::request::Request;
use super::super::streams::region::RegionId;
use super::super::streams::state::Stream;
use super::SlowPath;
use super::addresses::Widened;
use super::execute::Outcome;
use super::plan::{Allowance, Copies, Goal, Overtaken, Plan, Recreation, States, World, claim, plan};
use crate::driver::{Driver, DriverError};
use crate::pages::PageCount;
use crate::physical::ChunkId;
use crate::units::DeviceAddr;

/// A request on its way through the slow path.
pub struct Growth<'p, 'a, D: Driver> {
    path: &'p mut SlowPath<'a, D>,
    stream: &'p Stream,
    request: Request,
    /// The driver's answer when it had no memory to create a chunk from.
    refused: Option<DriverError>,
    /// Most pages that may be created since then: what the device says to have left, and none once it has refused that too.
    left_on_device: PageCount,
    /// Number of times that the device may still be queried for its free memory.
    looks: u8,
    /// The last error for want of addresses.
    no_addresses: Option<AllocError>,
    recreation: Recreation,
}

/// Pages that each of several streams may keep before they are taken for others: a few for each kind of region.
const PAGES_OF_A_STREAM: u64 = 8;

/// Number of times that others may take memory which a plan counts on before they have to wait while one is made.
const OVERTAKEN_AT_MOST: u32 = 3;

/// Why there is no plan.
enum NoPlan {
    /// The chunks or the addresses do not suffice.
    Short(Shortage),
    /// Others were faster.
    Overtaken,
}

/// Number of times that a request that runs short queries the device: before it waits for anything, and before it fails.
const LOOKS: u8 = 2;

/// The result of a round.
enum Round {
    /// The request is served.
    Served(DeviceAddr),
    /// Something has changed that another round can use.
    Again,
    /// No memory can be mapped for the request.
    Exhausted,
}

/// The reason that there is no plan: chunks or addresses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shortage {
    /// Chunks: free ones and those that may be created are too few.
    Chunks,
    /// Addresses: there are chunks enough, but no run of addresses to map them at.
    Addresses,
}

impl<'p, 'a, D: Driver> Growth<'p, 'a, D> {
    /// A growth of `stream` for `request`.
    pub fn new(path: &'p mut SlowPath<'a, D>, stream: &'p Stream, request: Request) -> Self {
        Self {
            path,
            stream,
            request,
            refused: None,
            left_on_device: PageCount(u64::MAX),
            looks: LOOKS,
            no_addresses: None,
            recreation: Recreation::WithoutWaiting,
        }
    }

    /// Serves the request. Every round starts from the beginning, since other threads go on allocating and freeing.
    ///
    /// # Errors
    /// [`AllocError`]; what was mapped and claimed has been undone.
    pub fn serve(mut self) -> Result<DeviceAddr, AllocError> {
        loop {
            #[cfg(test)]
            self.path.shared.counters.rounds.fetch_add(1, crate::sync::Ordering::Relaxed);
            self.path.settle_pending()?;
            if let Some(addr) = self.take_cached() {
                return Ok(addr);
            }
            self.refresh_clocks()?;
            if let Some(addr) = self.reuse_across_streams()? {
                return Ok(addr);
            }
            if let Some(addr) = self.take_fragment() {
                return Ok(addr);
            }
            let round = match self.plan() {
                Ok(plan) => self.execute(plan)?,
                Err(shortage) => self.remedy(shortage)?,
            };
            match round {
                Round::Served(addr) => return Ok(addr),
                Round::Again => {}
                Round::Exhausted => break,
            }
        }
        match self.reuse_any()? {
            Some(addr) => Ok(addr),
            None => Err(self.failure()),
        }
    }

    /// Tries the remedies for a plan that was not found, in this order.
    fn remedy(&mut self, shortage: Shortage) -> Result<Round, AllocError> {
        let another_round = (shortage == Shortage::Addresses && self.widen()?)
            || (self.looks == LOOKS && self.refused.is_none() && self.look_at_device())
            || self.release_idle()
            || self.allow_recreation()
            || self.wait_for_pending()?
            || self.wait_for_device()?
            || self.settle_failures()?
            || self.look_at_device();
        Ok(if another_round { Round::Again } else { Round::Exhausted })
    }

    /// The hot path once more, under the mapper's lock and in all regions.
    fn take_cached(&self) -> Option<DeviceAddr> {
        let Request { kind, size, alignment, .. } = self.request;
        self.stream.lock().take_any(kind, size, self.request.waste(), alignment)
    }

    /// Learns how far the streams are. Events are recorded for it when free chunks may have to move or be released.
    fn refresh_clocks(&self) -> Result<(), DriverError> {
        let streams = &self.path.shared.streams;
        let beyond_slack = self.path.mapper.chunks().held_pages() >= self.slack_pages(streams.peak.peak());
        self.path.progress().refresh_clocks(self.path.is_tight() || beyond_slack)
    }

    fn reuse_across_streams(&self) -> Result<Option<DeviceAddr>, DriverError> {
        self.path.reuse_across_streams(self.stream, &self.request)
    }

    fn take_fragment(&self) -> Option<DeviceAddr> {
        if self.path.is_tight() { self.path.take_fragment(self.stream, &self.request) } else { None }
    }

    /// Plans a mapping in the first of the stream's regions that has a place, and claims what it takes.
    fn plan(&self) -> Result<Plan, Shortage> {
        let regions: Vec<RegionId> = self.stream.lock().regions.ids_of(self.request.kind).collect();
        if regions.is_empty() {
            return Err(Shortage::Addresses);
        }
        let (mapper, streams) = (&self.path.mapper, &self.path.shared.streams);
        let passed = self.path.progress().passed();
        let allowance = self.allowance();
        let mut goals: Vec<Goal> = regions.iter().map(|region| self.goal(*region, allowance)).collect();
        if self.path.rules().places_apart(self.request.kind) {
            // Before anything else, as long as it may be created.
            goals = goals.iter().map(|goal| Goal { apart: true, ..*goal }).chain(goals.iter().copied()).collect();
        }
        for _ in 0..OVERTAKEN_AT_MOST {
            let mut copies = Copies::default();
            let mut planned = self.plan_from(&mut self.path.states(), &mut copies, &passed, &goals);
            if let Err(NoPlan::Short(shortage)) = planned {
                // Said of streams at different moments, it may not be true: free memory may have been where nobody looked any
                // more. Of one moment it is.
                if !copies.catch_up(mapper, &mut States::together(streams), &goals[0]) {
                    return Err(shortage);
                }
                planned = self.plan_from(&mut self.path.states(), &mut copies, &passed, &goals);
            }
            match planned {
                Ok(plan) => return Ok(plan),
                Err(NoPlan::Short(shortage)) => return Err(shortage),
                Err(NoPlan::Overtaken) => {}
            }
        }
        // Others have to wait, since they are faster else.
        match self.plan_from(&mut States::together(streams), &mut Copies::default(), &passed, &goals) {
            Ok(plan) => Ok(plan),
            Err(NoPlan::Short(shortage)) => Err(shortage),
            Err(NoPlan::Overtaken) => unreachable!("all streams are locked"),
        }
    }

    fn plan_from(
        &self,
        states: &mut States<'_, D>,
        copies: &mut Copies,
        passed: &[u64],
        goals: &[Goal],
    ) -> Result<Plan, NoPlan> {
        let mapper = &self.path.mapper;
        let world = World { mapper, directory: &self.path.shared.directory, passed };
        let mut planned = goals.iter().find_map(|goal| plan(&world, states, copies, *goal));
        if planned.is_none() && !copies.have_all_sources() {
            copies.sources(mapper, states, &goals[0]);
            planned = goals.iter().find_map(|goal| plan(&world, states, copies, *goal));
        }
        match planned {
            Some(mut plan) => claim(mapper, states, &mut plan).map(|()| plan).map_err(|Overtaken| NoPlan::Overtaken),
            None => {
                let free = copies.sources(mapper, states, &goals[0]).pages();
                Err(NoPlan::Short(self.shortage(free, goals[0].allowance)))
            }
        }
    }

    fn execute(&mut self, plan: Plan) -> Result<Round, AllocError> {
        let released = !plan.release.is_empty();
        Ok(match self.path.execute(plan)? {
            Outcome::Done(addr) => {
                self.stream.lock().reuses = 0;
                Round::Served(addr)
            }
            Outcome::Again => Round::Again,
            Outcome::Refused(error) => self.refused(error, released),
        })
    }

    /// The chunk that the driver had no memory for may have been larger than what it has. Where free chunks were released for
    /// it, others took their memory: the next plan does with fewer, and so less and less is held.
    fn refused(&mut self, error: DriverError, released: bool) -> Round {
        self.refused = Some(error);
        if self.left_on_device == PageCount::ZERO {
            return if released { Round::Again } else { Round::Exhausted };
        }
        let left = self.path.look_at_device().unwrap_or(PageCount::ZERO);
        self.left_on_device = if left < self.left_on_device { left } else { PageCount::ZERO };
        Round::Again
    }

    /// Others may have given memory back since the device was last asked. Returns whether more may be created than before.
    fn look_at_device(&mut self) -> bool {
        let before = self.path.mapper.chunks().headroom_pages().min(self.left_on_device);
        // A budget that was set does not change with the device.
        let may_grow = self.path.shared.follows_device() || self.refused.is_some();
        if self.looks == 0 || !may_grow {
            return false;
        }
        self.looks -= 1;
        let Some(now) = self.path.look_at_device().filter(|now| *now > before) else { return false };
        self.refused = None;
        self.left_on_device = now;
        true
    }

    fn widen(&mut self) -> Result<bool, AllocError> {
        self.no_addresses = None;
        match self.path.widen(self.stream, &self.request)? {
            Widened::Yes => return Ok(true),
            Widened::Needless => {}
            Widened::Refused(error) => self.no_addresses = Some(error),
        }
        Ok(false)
    }

    fn goal(&self, region: RegionId, allowance: Allowance) -> Goal {
        let rules = self.path.rules();
        Goal { request: self.request, stream: self.stream.index, region, allowance, rules, apart: false }
    }

    /// Idle chunks that are larger than what they are needed for go back to the driver: smaller ones can be created then.
    fn release_idle(&mut self) -> bool {
        if !self.path.rules().may_unmap() {
            return false;
        }
        let idle: Vec<ChunkId> = self.path.mapper.chunks().idle().collect();
        let before = self.path.mapper.chunks().held_pages();
        idle.into_iter().for_each(|chunk| self.path.release_idle(chunk));
        let released = before - self.path.mapper.chunks().held_pages();
        if self.refused.is_some() {
            self.left_on_device += released;
        }
        released > PageCount::ZERO
    }

    /// One more round in which the host may wait until free chunks can be released and created in other sizes.
    fn allow_recreation(&mut self) -> bool {
        if !self.path.rules().may_unmap() {
            return false;
        }
        let before = std::mem::replace(&mut self.recreation, Recreation::Waiting);
        before == Recreation::WithoutWaiting
    }

    fn wait_for_pending(&self) -> Result<bool, DriverError> {
        self.path.progress().wait_for_pending()
    }

    fn wait_for_device(&mut self) -> Result<bool, DriverError> {
        self.path.wait_for_device()
    }

    fn settle_failures(&mut self) -> Result<bool, AllocError> {
        self.path.settle_failures()
    }

    fn reuse_any(&self) -> Result<Option<DeviceAddr>, DriverError> {
        self.path.reuse_any(self.stream, &self.request)
    }

    /// Why the request is not served: where the stream has no region at all, there are no addresses; else the report says.
    fn failure(&mut self) -> AllocError {
        let has_region = self.stream.lock().regions.of_kind(self.request.kind).next().is_some();
        match self.no_addresses.take() {
            Some(error) if !has_region => error,
            _ => self.out_of_memory(),
        }
    }

    fn out_of_memory(&self) -> AllocError {
        let Request { requested, size, alignment, .. } = self.request;
        let region_bytes = self.path.shared.geometry.slot_bytes;
        if size.max(alignment) > region_bytes {
            return AllocError::TooLarge { requested, alignment, region_bytes };
        }
        self.path.out_of_memory(&self.request, self.stream.index, self.refused.as_ref())
    }

    /// Returns how many pages may be created now.
    fn allowance(&self) -> Allowance {
        let recreation = self.recreation;
        let pool = self.path.mapper.chunks();
        let hard_pages = pool.headroom_pages().min(self.left_on_device);
        let live = self.path.shared.streams.live_bytes(self.stream.index);
        let peak = self.path.shared.streams.peak.peak().max(live.saturating_add(self.request.size));
        let soft_pages = hard_pages.min(self.slack_pages(peak).saturating_sub(pool.held_pages()));
        Allowance { soft_pages, hard_pages, recreation }
    }

    /// Number of pages that may be held before free ones are remapped, with this peak of live bytes.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a bound")]
    fn slack_pages(&self, peak_live_bytes: u64) -> PageCount {
        let geometry = &self.path.shared.geometry;
        let beside_peak = (peak_live_bytes as f64 * geometry.slack / geometry.page_bytes as f64).min(1e18) as u64;
        let streams = self.path.shared.streams.count() as u64;
        let for_streams = if streams > 1 { streams * PAGES_OF_A_STREAM } else { 0 };
        PageCount(beside_peak.max(for_streams))
    }

    /// Returns whether chunks or addresses are missing, where there is no plan and `free` pages are in free chunks.
    fn shortage(&self, free: PageCount, allowance: Allowance) -> Shortage {
        let pool = self.path.mapper.chunks();
        let idle = PageCount::within(pool.idle_bytes(), pool.page_bytes());
        let needed = PageCount::covering(self.request.size, pool.page_bytes());
        if free + idle + allowance.hard_pages >= needed { Shortage::Addresses } else { Shortage::Chunks }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::error::AllocError;
    use super::super::super::reports::OutOfMemory;
    use crate::allocator::{Allocator, ChunkPolicy};
    use crate::driver::{
        DriverCall, DriverError, DriverErrorKind, Fault, FaultDriver, ModelConfig, ModelDriver, WorkDriver,
    };
    use crate::testing::{BusyDevice, busy};
    use crate::units::{DeviceAddr, StreamId};
    use std::sync::Arc;

    const PAGE: u64 = 2 << 20;
    const MAIN: StreamId = StreamId::DEFAULT;

    fn model(pages: u64) -> ModelDriver {
        ModelDriver::new(ModelConfig { capacity_bytes: pages * PAGE, ..ModelConfig::default() })
    }

    /// A device of so many pages, of which others hold some, and an allocator whose budget it is.
    fn device(pages: u64, of_others: u64) -> (Arc<ModelDriver>, Allocator<BusyDevice>) {
        let model = Arc::new(model(pages));
        model.set_external(of_others * PAGE);
        let builder = Allocator::builder(busy(&model)).chunk_policy(ChunkPolicy::Fixed(PAGE));
        (model, builder.slack(f64::INFINITY).build().unwrap())
    }

    fn report(served: Result<DeviceAddr, AllocError>) -> OutOfMemory {
        match served {
            Err(AllocError::OutOfMemory(report)) => *report,
            other => panic!("{other:?}"),
        }
    }

    /// A request that is short looks at the device before it waits for anything, and once more after it has waited: what others
    /// gave back in the meantime serves it.
    #[test]
    fn what_others_give_back_during_a_wait_is_found() {
        let (model, allocator) = device(4, 2);
        let user = model.create_stream().unwrap();
        allocator.keep_stream(user).unwrap();
        model.hold(user);
        let block = allocator.alloc_raw(PAGE, MAIN).unwrap();
        allocator.record_stream(block, user).unwrap();
        allocator.free(block).unwrap();
        let given_back = Arc::clone(&model);
        allocator.driver().meanwhile(move |call| {
            if call == Some(DriverCall::EventSynchronize) {
                given_back.set_external(0);
            }
            Ok(())
        });
        let block = allocator.alloc_raw(4 * PAGE, MAIN).unwrap();
        allocator.check();
        allocator.free(block).unwrap();
    }

    /// Free chunks of four pages are released for a request of six, and others take their memory before new ones are created.
    /// The request goes on with what is left, until nobody is faster.
    #[test]
    fn a_request_survives_others_who_take_what_is_released_for_it() {
        let (model, allocator) = device(20, 0);
        let mut live = Vec::new();
        let four_pages = [(); 4].map(|()| {
            drop(allocator.alloc_registered(4 * PAGE, MAIN).unwrap());
            let block = allocator.alloc_raw(4 * PAGE, MAIN).unwrap();
            live.push(allocator.alloc_raw(PAGE, MAIN).unwrap());
            block
        });
        assert_eq!((allocator.stats().chunks, allocator.stats().reserved_bytes), (8, 20 * PAGE));
        four_pages.into_iter().for_each(|block| allocator.free(block).unwrap());
        let mut taken = 0;
        allocator.driver().meanwhile(move |call| {
            if call == Some(DriverCall::Release) && taken < 8 {
                taken += 4;
                model.set_external(taken * PAGE);
            }
            Ok(())
        });
        live.push(allocator.alloc_raw(6 * PAGE, MAIN).unwrap());
        assert_eq!(allocator.stats().failed_driver_calls, 2, "others were faster twice");
        allocator.check();
        live.into_iter().for_each(|block| allocator.free(block).unwrap());
    }

    /// A driver that refuses what it says to have is not asked for ever: twice, and once after each further look at the device.
    #[test]
    fn a_driver_that_goes_on_refusing_is_believed() {
        let (_, allocator) = device(16, 0);
        let mut refusals = 0;
        allocator.driver().meanwhile(move |call| {
            if call == Some(DriverCall::Create) && refusals < 20 {
                refusals += 1;
                return Err(DriverError::new(
                    DriverCall::Create,
                    DriverErrorKind::OutOfMemory,
                    "no memory, whatever is free",
                ));
            }
            Ok(())
        });
        let report = report(allocator.alloc_raw(PAGE, MAIN));
        assert!(report.satisfiable && report.driver_error.is_some());
        assert_eq!(allocator.stats().driver_calls[DriverCall::Create], 4);
        allocator.check();
    }

    /// Others give a page back whenever the device is asked: two looks find two pages, and one is for the report.
    #[test]
    fn a_request_looks_at_the_device_twice_whatever_it_finds() {
        let (model, allocator) = device(16, 16);
        let mut of_others = 16;
        allocator.driver().meanwhile(move |call| {
            if call == Some(DriverCall::MemoryInfo) {
                of_others -= 1;
                model.set_external(of_others * PAGE);
            }
            Ok(())
        });
        assert_eq!(report(allocator.alloc_raw(4 * PAGE, MAIN)).budget_bytes, 2 * PAGE);
        assert_eq!(allocator.stats().driver_calls[DriverCall::MemoryInfo], 3);
        allocator.check();
    }

    /// A budget that was set does not change with the device. Only for the report the device is asked.
    #[test]
    fn a_set_budget_saves_the_look_at_the_device() {
        let (_, allocator) = device(16, 0);
        allocator.set_budget(4 * PAGE).unwrap();
        assert!(report(allocator.alloc_raw(5 * PAGE, MAIN)).stopped_by_budget);
        assert_eq!(allocator.stats().driver_calls[DriverCall::MemoryInfo], 1);
    }

    /// The budget allows a page, and the device has none: a further look at it does not make the report forget what the driver
    /// said.
    #[test]
    fn the_drivers_refusal_is_in_the_report() {
        let (model, allocator) = device(16, 0);
        allocator.set_budget(4 * PAGE).unwrap();
        model.set_external(16 * PAGE);
        let report = report(allocator.alloc_raw(PAGE, MAIN));
        assert!(report.driver_error.is_some_and(|error| error.contains("0 B of 32 MiB free")));
        assert_eq!(allocator.stats().driver_calls[DriverCall::Create], 1);
    }

    /// Where a stream has regions, the report says what is missing. That the driver refused addresses is said of a stream without.
    #[test]
    fn without_further_addresses_a_full_region_is_reported() {
        let driver = Arc::new(FaultDriver::new(ModelDriver::default()));
        let builder = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE));
        let allocator = builder.region_bytes(32 * PAGE).build().unwrap();
        let blocks = [(); 4].map(|()| allocator.alloc_raw(32 * PAGE, MAIN).unwrap());
        driver.arm(Fault::nth(0, DriverErrorKind::NotSupported).only([DriverCall::Reserve]).from_then_on());
        assert!(report(allocator.alloc_raw(PAGE, MAIN)).satisfiable_by_whole_pages);
        match allocator.alloc_raw(512, MAIN) {
            Err(AllocError::Driver(error)) => assert_eq!(error.kind, DriverErrorKind::NotSupported),
            other => panic!("{other:?}"),
        }
        allocator.check();
        blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
    }

    /// A request of just a region's addresses is not too large for one.
    #[test]
    fn a_request_as_large_as_a_region_runs_out_of_memory() {
        let allocator = Allocator::builder(Arc::new(model(16))).region_bytes(32 * PAGE).build().unwrap();
        assert_eq!(report(allocator.alloc_raw(32 * PAGE, MAIN)).requested_bytes, 32 * PAGE);
        let refused = allocator.alloc_raw(32 * PAGE + 1, MAIN);
        assert!(matches!(&refused, Err(AllocError::TooLarge { .. })), "{refused:?}");
    }
}
