//! Planning a growth: where a request is to be placed and which chunks are to be put behind it. No driver call is made
//! here; what a plan takes is marked as claimed in the heaps, so that nobody else takes it meanwhile.
//!
//! A *room* is a run of free blocks and holes in the request's region. A *placement* is a stretch of a room; its cost is
//! what has to be mapped. Holes are cut into pieces by what is mapped in them:
//!
//! - *empty* pages need a chunk;
//! - a stale view whose chunk is completely free is taken up again for nothing (*reusable*);
//! - a stale view whose chunk is in use has to be unmapped first (*busy*), if its last use has completed.

mod fill;

use super::mapper::Mapper;
use super::region::{Region, RegionId, RegionKind};
use super::state::AllStates;
use crate::heap::{BlockState, Heap};
use crate::physical::{ChunkId, ViewAt};
use crate::segment::{PageTable, View, ViewState};
use crate::stream::{Fence, StreamIndex};
use crate::units::round_up;
use fill::Filler;
use std::collections::BTreeMap;

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The stream that asks.
    pub stream: StreamIndex,
    /// What kind of block.
    pub kind: RegionKind,
    /// In which of the stream's regions.
    pub region: RegionId,
    /// Bytes, in whole granules.
    pub size: u64,
    /// Alignment of the address.
    pub alignment: u64,
}

impl Request {
    /// A request in the first region of its kind.
    pub fn new(stream: StreamIndex, size: u64, alignment: u64) -> Self {
        let kind = RegionKind::of(size);
        Self { stream, kind, region: RegionId::first(kind), size, alignment }
    }
}

/// How much may be created.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    /// Pages that may be created before anything is harvested.
    pub soft_pages: u64,
    /// Pages that may be created at all.
    pub hard_pages: u64,
    /// Whether the host may wait for free chunks to go back to the driver, to be created again in the sizes needed.
    pub recreate: bool,
}

/// A completely free chunk that a plan takes from where it is.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// The chunk.
    pub chunk: ChunkId,
    /// The stream whose heap it is taken from.
    pub stream: StreamIndex,
    /// The region there.
    pub region: RegionId,
    /// The free block that it lies in.
    pub block: u64,
    /// Its active view.
    pub page: u64,
    /// Its pages.
    pub pages: u32,
    /// The last free in that block.
    pub epoch: u64,
}

/// Where the memory for some pages comes from.
#[derive(Clone, Copy, Debug)]
pub enum Backing {
    /// A chunk that nothing maps.
    Idle(ChunkId),
    /// A new chunk.
    Create,
    /// A free chunk from elsewhere: the plan's source of this number.
    Harvest(usize),
}

/// One mapping to make.
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    /// First page in the target segment.
    pub page: u64,
    /// Pages.
    pub pages: u32,
    /// What to map there.
    pub backing: Backing,
}

/// A piece of the target as it was before it was claimed.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    /// Start.
    pub start: u64,
    /// Bytes.
    pub len: u64,
    /// Free or hole.
    pub state: BlockState,
    /// The block's epoch.
    pub epoch: u32,
}

/// A growth, planned and claimed.
#[derive(Debug)]
pub struct Plan {
    /// What was asked for.
    pub request: Request,
    /// Where the block will start.
    pub start: u64,
    /// The claimed stretch around it: start and bytes.
    pub claim: (u64, u64),
    /// What the claimed stretch consisted of.
    pub before: Vec<Before>,
    /// Chunks taken from elsewhere; claimed there.
    pub sources: Vec<Source>,
    /// Stale views in the target to take up again: first page, and the source of this number.
    pub reuse: Vec<(u64, usize)>,
    /// Stale views in the target to unmap first.
    pub drop: Vec<View>,
    /// Mappings to make.
    pub fill: Vec<Fill>,
    /// Sources that go back to the driver first: numbers.
    pub release: Vec<usize>,
}

/// What a stretch of a room is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PieceKind {
    Free,
    Empty,
    Reusable(usize),
    Busy,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    start: u64,
    end: u64,
    kind: PieceKind,
    /// The block that it is part of.
    block: u64,
}

/// Cost of an empty page; the others are relative to it.
const EMPTY_PAGE: u64 = 1000;
/// Cost of a page in a reusable view: next to nothing, but no placement takes more of them than it needs.
const REUSABLE_PAGE: u64 = 1;
/// Cost of a page behind a stale view that has to be unmapped.
const BUSY_PAGE: u64 = 8000;

/// Plans `request` over all streams' heaps, whose stream `i` is known to have passed epoch `passed[i]`, and claims what
/// it takes. `None` when it cannot be served within `allowance`.
pub fn plan(
    mapper: &Mapper,
    states: &mut AllStates<'_>,
    passed: &[u64],
    request: Request,
    allowance: Allowance,
) -> Option<Plan> {
    let region = states[request.stream.0 as usize].regions.get(request.region)?;
    let segment = &mapper.segments[region.segment];
    // Looking for free chunks costs more than all the rest. While enough may be created and there is no stale view that
    // could be taken up again, none is needed.
    let enough = request.size / segment.page_bytes + 2 <= allowance.soft_pages;
    let sources = if enough && segment.table.stale() == 0 { Vec::new() } else { free_chunks(mapper, states) };
    let mut of_chunk = vec![None; if sources.is_empty() { 0 } else { mapper.pool.id_bound() }];
    for (number, source) in sources.iter().enumerate() {
        of_chunk[source.chunk.0 as usize] = Some(number);
    }
    let survey = Survey { mapper, passed, sources: &sources, of_chunk: &of_chunk, request, allowance };
    let rooms = survey.rooms(region);
    let mut best: Option<(u64, u64, usize)> = None;
    for (number, room) in rooms.iter().enumerate() {
        if let Some((cost, start)) = survey.cheapest(region, room)
            && best.is_none_or(|(least, lowest, _)| (cost, start) < (least, lowest))
        {
            best = Some((cost, start, number));
        }
    }
    let draft = best.and_then(|(_, start, number)| survey.draft(region, &rooms[number], start)).or_else(|| {
        // The best room may not be tiled by the chunks there are; past the last mapping there is always room.
        let room = rooms.last()?;
        let tail = room.iter().rposition(|piece| piece.kind != PieceKind::Empty).map_or(0, |last| last + 1);
        let start = round_up(region.base.0 + room.get(tail)?.start, request.alignment)? - region.base.0;
        survey.draft(region, room, start)
    })?;
    Some(claim(states, &sources, draft, request))
}

/// All completely free chunks, wherever they are.
pub fn free_chunks(mapper: &Mapper, states: &AllStates<'_>) -> Vec<Source> {
    let mut sources = Vec::new();
    for (number, state) in states.iter().enumerate() {
        let stream = StreamIndex(u32::try_from(number).expect("stream numbers are 32 bits"));
        for (id, region) in state.regions.iter() {
            let segment = &mapper.segments[region.segment];
            let page_bytes = segment.page_bytes;
            for block in region.heap.free_blocks_from(page_bytes) {
                let first = block.offset.div_ceil(page_bytes);
                let end = (block.offset + block.size) / page_bytes;
                if first >= end {
                    continue;
                }
                let epoch = region.heap.block(block.offset).expect("indexed").epoch;
                let epoch = state.epoch_base + u64::from(epoch);
                sources.extend(
                    segment
                        .table
                        .views_in(first, end)
                        .filter(|view| view.page >= first && view.end() <= end && !mapper.pool.is_barred(view.chunk))
                        .map(|view| Source {
                            chunk: view.chunk,
                            stream,
                            region: id,
                            block: block.offset,
                            page: view.page,
                            pages: view.pages,
                            epoch,
                        }),
                );
            }
        }
    }
    sources
}

/// What a plan is made from.
struct Survey<'a> {
    mapper: &'a Mapper,
    passed: &'a [u64],
    sources: &'a [Source],
    of_chunk: &'a [Option<usize>],
    request: Request,
    allowance: Allowance,
}

/// A plan before anything is claimed.
struct Draft {
    start: u64,
    claim: (u64, u64),
    before: Vec<Before>,
    first_block: u64,
    used: Vec<usize>,
    reuse: Vec<(u64, usize)>,
    drop: Vec<View>,
    fill: Vec<Fill>,
    release: Vec<usize>,
}

impl Survey<'_> {
    fn table(&self, region: &Region) -> &PageTable {
        &self.mapper.segments[region.segment].table
    }

    fn page_bytes(&self, region: &Region) -> u64 {
        self.mapper.segments[region.segment].page_bytes
    }

    /// The rooms of a region: runs of free blocks and holes with at least one hole, in pieces.
    fn rooms(&self, region: &Region) -> Vec<Vec<Piece>> {
        let heap = &region.heap;
        let mut rooms: Vec<Vec<Piece>> = Vec::new();
        let mut done = 0;
        for (offset, _) in heap.holes() {
            if offset < done {
                continue;
            }
            let hole = heap.block(offset).expect("I3: holes are blocks");
            let first = heap.before(hole).filter(|before| before.state == BlockState::Free).unwrap_or(hole);
            let mut room = Vec::new();
            let mut next = Some(*first);
            while let Some(block) = next {
                match block.state {
                    BlockState::Free => room.push(Piece {
                        start: block.offset,
                        end: block.offset + block.size,
                        kind: PieceKind::Free,
                        block: block.offset,
                    }),
                    BlockState::Hole => self.cut_hole(region, block.offset, block.size, &mut room, &mut rooms),
                    BlockState::Live | BlockState::Pending | BlockState::Claimed => break,
                }
                done = block.offset + block.size;
                next = heap.after(&block).copied();
            }
            if !room.is_empty() {
                rooms.push(room);
            }
        }
        rooms
    }

    /// Cuts a hole into pieces. A stale view that can neither be used nor removed ends the room.
    fn cut_hole(&self, region: &Region, offset: u64, size: u64, room: &mut Vec<Piece>, rooms: &mut Vec<Vec<Piece>>) {
        let page_bytes = self.page_bytes(region);
        let end = offset + size;
        let mut at = offset;
        let empty = |start, end| Piece { start, end, kind: PieceKind::Empty, block: offset };
        for view in self.table(region).views_in(offset / page_bytes, end / page_bytes) {
            let (start, view_end) = (view.page * page_bytes, view.end() * page_bytes);
            if start > at {
                room.push(empty(at, start));
            }
            at = view_end;
            let kind = match (self.of_chunk.get(view.chunk.0 as usize).copied().flatten(), view.state) {
                (Some(source), _) => PieceKind::Reusable(source),
                (None, ViewState::Stale(fence)) if fence.epoch <= self.passed[fence.stream.0 as usize] => {
                    PieceKind::Busy
                }
                _ => {
                    if !room.is_empty() {
                        rooms.push(std::mem::take(room));
                    }
                    continue;
                }
            };
            room.push(Piece { start, end: view_end, kind, block: offset });
        }
        if at < end {
            room.push(empty(at, end));
        }
    }

    /// The cheapest placement in a room, the lowest of several: cost and start.
    fn cheapest(&self, region: &Region, room: &[Piece]) -> Option<(u64, u64)> {
        let page_bytes = self.page_bytes(region);
        let (room_start, room_end) = (room.first()?.start, room.last()?.end);
        let size = self.request.size;
        if room_end - room_start < size {
            return None;
        }
        let mut sums = Vec::with_capacity(room.len() + 1);
        sums.push(0u64);
        for piece in room {
            sums.push(sums[sums.len() - 1] + piece.cost(piece.start, piece.end, page_bytes));
        }
        let cost = |start: u64| {
            let end = start + size;
            let first = room.partition_point(|piece| piece.end <= start);
            let last = room.partition_point(|piece| piece.start < end) - 1;
            if first == last {
                return room[first].cost(start, end, page_bytes);
            }
            room[first].cost(start, room[first].end, page_bytes)
                + (sums[last] - sums[first + 1])
                + room[last].cost(room[last].start, end, page_bytes)
        };
        let mut best: Option<(u64, u64)> = None;
        let mut consider = |start: Option<u64>| {
            let Some(start) = start.and_then(|start| round_up(region.base.0 + start, self.request.alignment)) else {
                return;
            };
            let start = start - region.base.0;
            if start >= room_start && start.checked_add(size).is_some_and(|end| end <= room_end) {
                let found = (cost(start), start);
                if best.is_none_or(|best| found < best) {
                    best = Some(found);
                }
            }
        };
        for piece in room {
            consider(Some(piece.start));
            if piece.kind != PieceKind::Empty {
                consider(piece.end.checked_sub(size));
            }
        }
        best
    }

    /// True when a free chunk can go back to the driver without waiting.
    fn can_go_back(&self, source: &Source) -> bool {
        let passed = |fence: Fence| fence.epoch <= self.passed[fence.stream.0 as usize];
        passed(Fence { stream: source.stream, epoch: source.epoch })
            && self.mapper.pool.get(source.chunk).stale.iter().all(|at| match self.mapper.view(*at).state {
                ViewState::Stale(fence) => passed(fence),
                ViewState::Active => true,
            })
    }

    /// Works a placement out: what has to be mapped, and from where. `None` when the chunks do not suffice.
    fn draft(&self, region: &Region, room: &[Piece], start: u64) -> Option<Draft> {
        let page_bytes = self.page_bytes(region);
        let end = start.checked_add(self.request.size)?;
        if start < room.first()?.start || end > room.last()?.end {
            return None;
        }
        let mut used = vec![false; self.sources.len()];
        // What the placement itself stands on is not to be taken from under it.
        for (number, source) in self.sources.iter().enumerate() {
            let (from, to) = (source.page * page_bytes, (source.page + u64::from(source.pages)) * page_bytes);
            if (source.stream, source.region) == (self.request.stream, self.request.region) && from < end && to > start
            {
                used[number] = true;
            }
        }
        let mut taken = Vec::new();
        let (mut reuse, mut drop) = (Vec::new(), Vec::new());
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        let (mut claim_start, mut claim_end) = (start, end);
        for piece in room.iter().filter(|piece| piece.start < end && piece.end > start) {
            match piece.kind {
                PieceKind::Free => continue,
                PieceKind::Reusable(source) if !used[source] => {
                    used[source] = true;
                    taken.push(source);
                    reuse.push((piece.start / page_bytes, source));
                    claim_start = claim_start.min(piece.start);
                    claim_end = claim_end.max(piece.end);
                    continue;
                }
                PieceKind::Reusable(_) | PieceKind::Busy => {
                    let view = *self.table(region).view(piece.start / page_bytes).expect("a piece of a view");
                    let ViewState::Stale(fence) = view.state else { return None };
                    if fence.epoch > self.passed[fence.stream.0 as usize] {
                        return None;
                    }
                    drop.push(view);
                }
                PieceKind::Empty => {}
            }
            let from = piece.start.max(start) / page_bytes;
            let to = piece.end.min(end).div_ceil(page_bytes);
            claim_start = claim_start.min(from * page_bytes);
            match ranges.last_mut() {
                Some(last) if last.1 == from => last.1 = to,
                _ => ranges.push((from, to)),
            }
        }
        let mut filler = Filler::new(self, &used);
        let mut fill = Vec::new();
        for (number, (from, to)) in ranges.iter().enumerate() {
            // Behind the last range a larger chunk may reach into empty pages.
            let spare = if number + 1 == ranges.len() && to * page_bytes >= end {
                room.iter()
                    .find(|piece| {
                        piece.kind == PieceKind::Empty && (piece.start..piece.end).contains(&(to * page_bytes))
                    })
                    .map_or(0, |piece| piece.end / page_bytes - to)
            } else {
                0
            };
            let filled = filler.fill(*from, to - from, spare, &mut fill)?;
            claim_end = claim_end.max(filled * page_bytes);
        }
        taken.extend(filler.taken.iter().copied());
        let before = pieces_before(&region.heap, room, claim_start, claim_end);
        let first_block = room.iter().find(|piece| piece.end > claim_start)?.block;
        Some(Draft {
            start,
            claim: (claim_start, claim_end - claim_start),
            before,
            first_block,
            used: taken,
            reuse,
            drop,
            fill,
            release: filler.release,
        })
    }
}

impl Piece {
    /// Cost of the part `[start, end)` of the piece.
    fn cost(&self, start: u64, end: u64, page_bytes: u64) -> u64 {
        match self.kind {
            PieceKind::Free => 0,
            PieceKind::Empty => (end.div_ceil(page_bytes) - start / page_bytes) * EMPTY_PAGE,
            PieceKind::Reusable(_) => (self.end - self.start) / page_bytes * REUSABLE_PAGE,
            PieceKind::Busy => (self.end - self.start) / page_bytes * BUSY_PAGE,
        }
    }
}

/// What `[start, end)` of a room consists of, block by block.
fn pieces_before(heap: &Heap, room: &[Piece], start: u64, end: u64) -> Vec<Before> {
    let mut before: Vec<Before> = Vec::new();
    let mut last_block = None;
    for piece in room.iter().filter(|piece| piece.start < end && piece.end > start) {
        if last_block == Some(piece.block) {
            continue;
        }
        last_block = Some(piece.block);
        let block = heap.block(piece.block).expect("a piece of a block");
        let from = block.offset.max(start);
        let to = (block.offset + block.size).min(end);
        before.push(Before { start: from, len: to - from, state: block.state, epoch: block.epoch });
    }
    before
}

/// Claims what a draft takes, sources first.
fn claim(states: &mut AllStates<'_>, all: &[Source], draft: Draft, request: Request) -> Plan {
    let numbers: BTreeMap<usize, usize> = draft.used.iter().enumerate().map(|(new, old)| (*old, new)).collect();
    let sources: Vec<Source> = draft.used.iter().map(|number| all[*number]).collect();
    claim_sources(states, &sources);
    let state = &mut states[request.stream.0 as usize];
    let epoch = state.epoch;
    let region = state.region(request.region).expect("the plan was made for it");
    let first = walk_to(&region.heap, draft.first_block, draft.claim.0);
    region.heap.set(first, draft.claim.0, draft.claim.1, BlockState::Claimed, epoch);
    let number = |old: usize| numbers[&old];
    Plan {
        request,
        start: draft.start,
        claim: draft.claim,
        before: draft.before,
        reuse: draft.reuse.into_iter().map(|(page, source)| (page, number(source))).collect(),
        drop: draft.drop,
        fill: draft
            .fill
            .into_iter()
            .map(|fill| match fill.backing {
                Backing::Harvest(source) => Fill { backing: Backing::Harvest(number(source)), ..fill },
                Backing::Idle(_) | Backing::Create => fill,
            })
            .collect(),
        release: draft.release.into_iter().map(number).collect(),
        sources,
    }
}

/// Marks completely free chunks as claimed where they are.
pub fn claim_sources(states: &mut AllStates<'_>, sources: &[Source]) {
    for source in sources {
        let state = &mut states[source.stream.0 as usize];
        let region = state.region(source.region).expect("sources come from regions");
        let (start, len) = (source.page * region.page_bytes, u64::from(source.pages) * region.page_bytes);
        let first = walk_to(&region.heap, source.block, start);
        region.heap.set(first, start, len, BlockState::Claimed, 0);
    }
}

/// The block that `offset` lies in, from a block at or before it on.
fn walk_to(heap: &Heap, from: u64, offset: u64) -> u64 {
    let mut block = *heap.block(from).expect("a block to start from");
    while block.offset + block.size <= offset {
        block = *heap.after(&block).expect("the offset lies in the heap");
    }
    block.offset
}

/// A chunk's place as its pool knows it.
pub fn view_at(segment: usize, page: u64) -> ViewAt {
    ViewAt { segment: u32::try_from(segment).expect("segment numbers are 32 bits"), page }
}
