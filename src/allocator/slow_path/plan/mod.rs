//! Planning a growth: where a request is placed, and which chunks are mapped behind it. No driver call is made here. A plan is
//! made from copies, while no stream is locked; what it takes is then claimed in the heaps, so that nobody else takes it
//! meanwhile.
//!
//! ```text
//! states.rs     the streams' states, in pieces or together
//! copies.rs     what is copied of them
//! target.rs     the region that a plan places a request in
//! sources.rs    the completely free chunks
//! near.rs       those that are looked at first
//! rooms.rs      where the region has addresses, and what a placement there costs
//! placement.rs  a placement worked out: what is reused, unmapped, mapped
//! apart.rs      a placement in one new chunk, apart from all others
//! fill.rs       chunks for the pages without a mapping
//! claims.rs     what a plan takes is claimed, or given back
//! ```

mod apart;
mod claims;
mod copies;
mod fill;
mod near;
mod placement;
mod rooms;
mod sources;
mod states;
mod target;

pub use claims::{Overtaken, claim, claim_free, unclaim, unclaim_target};
pub use copies::Copies;
pub use sources::{Source, free_chunks, free_pages};
pub use states::{PIECE, States};

use super::super::request::Request;
use super::super::rules::Rules;
use super::super::streams::directory::Directory;
use super::super::streams::region::RegionId;
use super::mapper::Mapper;
use crate::driver::Driver;
use crate::pages::{PageCount, PageIndex, PageRange};
use crate::physical::ChunkId;
use crate::segment::{PageTable, ViewState};
use crate::stream::{Fence, StreamIndex};
use claims::Before;
use rooms::{Candidate, PieceKind, Room};
use sources::Sources;
use std::ops::Range;
use target::Target;

/// The goal of a plan: a request, and where and how it may be served.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    /// The request.
    pub request: Request,
    /// The stream that it is for.
    pub stream: StreamIndex,
    /// The region to place it in.
    pub region: RegionId,
    /// How much may be created.
    pub allowance: Allowance,
    /// Rules that the plan has to keep: whether anything is unmapped or released, and whether chunks move between streams.
    pub rules: Rules,
    /// Whether it is to be one new chunk, apart from all others.
    pub apart: bool,
}

impl Goal {
    /// The stream that all chunks have to come from, if it may not be any.
    pub fn source_stream(&self) -> Option<StreamIndex> {
        (!self.rules.may_change_streams()).then_some(self.stream)
    }
}

/// How much may be created.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    /// Number of pages that may be created before anything is remapped.
    pub soft_pages: PageCount,
    /// Number of pages that may be created at all.
    pub hard_pages: PageCount,
    /// How free chunks may be replaced by new ones of other sizes.
    pub recreation: Recreation,
}

/// When a free chunk may be released so that chunks of other sizes can be created in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recreation {
    /// When the host need not wait for its last use.
    WithoutWaiting,
    /// Always; the host may wait.
    Waiting,
}

/// Where the memory for some pages comes from.
#[derive(Clone, Copy, Debug)]
pub enum Backing {
    /// A chunk that nothing maps.
    Idle(ChunkId),
    /// A new chunk.
    Create,
    /// A free chunk from elsewhere.
    Remap(Source),
}

impl Backing {
    /// The free chunk, if it is one from elsewhere.
    pub fn source(&self) -> Option<&Source> {
        match self {
            Self::Remap(source) => Some(source),
            Self::Idle(_) | Self::Create => None,
        }
    }
}

/// One mapping to make.
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    /// The pages of the target segment.
    pub pages: PageRange,
    /// The memory to map there.
    pub backing: Backing,
}

/// A stale view in the target segment that becomes active again.
#[derive(Clone, Copy, Debug)]
pub struct Reuse {
    /// Its first page.
    pub page: PageIndex,
    /// Its chunk, where that is active now.
    pub source: Source,
}

/// A growth, planned.
#[derive(Debug)]
pub struct Plan {
    /// The goal that it serves.
    pub goal: Goal,
    /// Number of the region's segment.
    pub segment: usize,
    /// Offset at which the block will start.
    pub start: u64,
    /// The offsets around it that are claimed.
    pub claim: Range<u64>,
    /// The blocks that the claimed offsets consisted of before, once they are claimed.
    pub before: Vec<Before>,
    /// Stale views in the target that become active again.
    pub reuse: Vec<Reuse>,
    /// First pages of stale views in the target that are unmapped first.
    pub unmap: Vec<PageIndex>,
    /// Free chunks that are released first, so that others can be created.
    pub release: Vec<Source>,
    /// Mappings to make.
    pub fill: Vec<Fill>,
}

impl Plan {
    /// The chunks that move to the target.
    pub fn moved(&self) -> impl Iterator<Item = &Source> {
        let remapped = self.fill.iter().filter_map(|fill| fill.backing.source());
        self.reuse.iter().map(|reuse| &reuse.source).chain(remapped)
    }

    /// All chunks that are taken from where they are; claimed there.
    pub fn sources(&self) -> impl Iterator<Item = &Source> {
        self.moved().chain(&self.release)
    }
}

/// What a plan is made from, beside the states of the streams: what only the slow path changes.
#[derive(Clone, Copy, Debug)]
pub struct World<'a> {
    /// What is mapped where.
    pub mapper: &'a Mapper,
    /// Which region an address is in.
    pub directory: &'a Directory,
    /// Stream `i` is known to have passed epoch `passed[i]`.
    pub passed: &'a [u64],
}

/// Plans towards `goal`. What `copies` lacks is copied. `None` when the goal cannot be reached; where `copies` do not
/// [have all sources](Copies::have_all_sources), that is of the near ones.
pub fn plan<D: Driver>(world: &World<'_>, states: &mut States<'_, D>, copies: &mut Copies, goal: Goal) -> Option<Plan> {
    let World { mapper, passed, .. } = *world;
    let segment = mapper.segment(copies.target(states, &goal).segment);
    // Looking for free chunks costs more than all the rest. While enough may be created and there is no stale view that
    // could become active again, none is needed; a new chunk needs none in any case.
    let pages = PageCount::within(goal.request.size, segment.page_bytes) + PageCount(2);
    if goal.apart || pages <= goal.allowance.soft_pages && segment.table.stale() == 0 {
        let (sources, reach) = (&Sources::default(), Reach::All);
        let survey = Survey { mapper, target: copies.target(states, &goal), passed, goal, sources, reach };
        return if goal.apart { survey.plan_apart() } else { survey.plan().ok() };
    }
    if let Some(sources) = copies.near(world, states, &goal) {
        let (sources, reach) = (&sources, Reach::Near);
        let survey = Survey { mapper, target: copies.target(states, &goal), passed, goal, sources, reach };
        match survey.plan() {
            Ok(plan) => return Some(plan),
            Err(Lacking::Room) => return None,
            Err(Lacking::Chunks) => {}
        }
    }
    copies.sources(mapper, states, &goal);
    let (sources, target) = copies.both(goal.region);
    Survey { mapper, target: target?, passed, goal, sources: sources?, reach: Reach::All }.plan().ok()
}

/// Plans an allocation at `start`, where the memory was handed out before, and claims what it takes: as [`plan`], but nothing is
/// mapped for it. The streams are locked together.
pub fn plan_again<D: Driver>(
    mapper: &Mapper,
    states: &mut States<'_, D>,
    passed: &[u64],
    goal: Goal,
    start: u64,
) -> Option<Plan> {
    let mut copies = Copies::default();
    copies.target(states, &goal);
    copies.sources(mapper, states, &goal);
    let (sources, target) = copies.both(goal.region);
    let survey = Survey { mapper, target: target?, passed, goal, sources: sources?, reach: Reach::All };
    let mut plan = survey.rooms().iter().find_map(|room| survey.place(room, start))?;
    let brings_back = plan.fill.is_empty() && plan.unmap.is_empty() && plan.release.is_empty();
    // Nobody overtakes a plan while all streams are locked.
    (brings_back && claim(mapper, states, &mut plan).is_ok()).then_some(plan)
}

/// The data that a plan is made from.
struct Survey<'a> {
    mapper: &'a Mapper,
    target: &'a Target,
    passed: &'a [u64],
    goal: Goal,
    sources: &'a Sources,
    reach: Reach,
}

/// Which of the completely free chunks are among the sources of a survey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// All.
    All,
    /// The near ones. Others may fit better where these do not fit as they are.
    Near,
}

/// What a survey lacks that finds no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lacking {
    /// A room that is large enough.
    Room,
    /// Chunks.
    Chunks,
}

impl Survey<'_> {
    /// The cheapest placement, worked out.
    fn plan(&self) -> Result<Plan, Lacking> {
        let rooms = self.rooms();
        let best = rooms.iter().filter_map(|room| Some((self.cheapest(room)?, room))).min_by_key(|(found, _)| *found);
        let (Candidate { start, .. }, room) = best.ok_or(Lacking::Room)?;
        let placed = self.place(room, start).or_else(|| {
            // The best room may not be tiled by the chunks there are; past the last mapping there are always addresses.
            let room = rooms.last().filter(|_| self.reach == Reach::All)?;
            self.place(room, self.align(tail(room)?)?)
        });
        placed.ok_or(Lacking::Chunks)
    }

    fn table(&self) -> &PageTable {
        &self.mapper.segment(self.target.segment).table
    }

    fn page_bytes(&self) -> u64 {
        self.target.page_bytes
    }

    /// Whether a fence is known to have passed.
    fn has_passed(&self, fence: Fence) -> bool {
        fence.epoch <= self.passed[fence.stream.0 as usize]
    }

    /// Whether a stale view whose last use ends with `fence` can be unmapped without waiting.
    fn can_unmap(&self, fence: Fence) -> bool {
        self.goal.rules.may_unmap() && self.has_passed(fence)
    }

    /// Whether a free chunk can be released without waiting.
    fn can_go_back(&self, source: &Source) -> bool {
        self.can_unmap(source.last_use())
            && self.mapper.chunks().get(source.chunk).stale.iter().all(|at| match self.mapper.view(*at).state {
                ViewState::Stale(fence) => self.has_passed(fence),
                ViewState::Active => true,
            })
    }
}

/// Where the empty end of a room starts.
fn tail(room: &Room) -> Option<u64> {
    let last = room.pieces.iter().rposition(|piece| piece.kind != PieceKind::Empty);
    Some(room.pieces.get(last.map_or(0, |last| last + 1))?.start)
}

#[cfg(test)]
mod tests {
    use crate::allocator::Allocator;
    use crate::driver::{ModelConfig, ModelDriver, WorkDriver};
    use crate::testing::{cancel_interruption, interrupt_after};
    use crate::units::{GIB, MIB, StreamId};
    use std::sync::Arc;

    /// While enough may be created, a growth looks at its own region, and at no free memory of any stream.
    #[test]
    fn free_chunks_are_not_looked_for_while_enough_may_be_created() {
        let config = ModelConfig { capacity_bytes: 64 * GIB, ..ModelConfig::default() };
        let driver = Arc::new(ModelDriver::new(config));
        let other = driver.create_stream().unwrap();
        let allocator = Allocator::builder(driver).slack(f64::INFINITY).build().unwrap();
        for stream in [StreamId::DEFAULT, other] {
            allocator.alloc_raw(8 * MIB, stream).unwrap();
        }
        interrupt_after(1, || {});
        allocator.alloc_raw(8 * MIB, StreamId::DEFAULT).unwrap();
        assert!(cancel_interruption(), "more than one copy was made");
    }
}
