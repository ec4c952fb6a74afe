//! Free blocks that were kept for another use: cross-stream reuse, and blocks of another kind of region.

use super::super::kind::RegionKind;
use super::super::request::Request;
use super::super::streams::extras::Extras;
use super::super::streams::region::{Region, RegionId};
use super::super::streams::state::{Stream, StreamState};
use super::SlowPath;
use crate::driver::{Driver, DriverError};
use crate::heap::FreeBlock;
use crate::stream::StreamIndex;
use crate::sync::Ordering;
use crate::units::{DeviceAddr, round_up};

/// Number of fitting free blocks of another stream that are looked at.
const LOOK_AT: usize = 8;

/// Number of blocks of other streams that a stream reuses between two growths of its own, while there is headroom. Each costs a
/// pass through the slow path and an event; a block of its own costs that once.
const REUSES_AT_MOST: u32 = 4;

/// Number of streams that are searched for a block to reuse, while there is headroom.
const SEARCHED_STREAMS: usize = 64;

/// A free block that a request fits in.
#[derive(Clone, Copy, Debug)]
struct Fitting {
    region: RegionId,
    block: FreeBlock,
    /// Offset in the region at which the request would start.
    start: u64,
    /// The epoch of the block's last use.
    epoch: u64,
}

/// The free blocks in a stream's regions of `kind` that the request fits in, smallest first in each region.
fn fitting(state: &StreamState, kind: RegionKind, request: &Request) -> impl Iterator<Item = Fitting> {
    let (size, alignment) = (request.size, request.alignment);
    state.regions.of_kind(kind).flat_map(move |(id, region)| {
        region.heap.free_blocks_from(size).filter_map(move |block| {
            let start = round_up(region.base.0 + block.offset, alignment)? - region.base.0;
            let epoch = region.heap.block(block.offset).expect("indexed").epoch;
            let fits = start.checked_add(size)? <= block.offset + block.size;
            fits.then_some(Fitting { region: id, block, start, epoch: state.epoch_base + u64::from(epoch) })
        })
    })
}

/// Allocates in a free block that was found in the regions of this stream.
fn take(state: &mut StreamState, found: Fitting, request: &Request) -> DeviceAddr {
    let region = state.region(found.region).expect("a block was found in it");
    region.heap.take_live(found.block.offset, found.start, request.size, request.waste());
    let addr = region.base.offset(found.start);
    state.count_alloc(request.size, request.waste());
    addr
}

impl<D: Driver> SlowPath<'_, D> {
    /// For a small request when the budget is used up: a free block among the large ones that is smaller than a page. Its
    /// pages are pinned already, so nothing is lost.
    pub fn take_fragment(&self, stream: &Stream, request: &Request) -> Option<DeviceAddr> {
        if request.kind != RegionKind::Small {
            return None;
        }
        let mut state = stream.lock();
        let below_a_page =
            |region: &Region| region.heap.best_fit(request.size).is_some_and(|found| found.size < self.page_bytes());
        let (id, _) = state.regions.of_kind(RegionKind::Large).find(|(_, region)| below_a_page(region))?;
        state.take(id, request.size, request.waste(), request.alignment)
    }

    /// Cross-stream reuse: takes a free block of another stream whose last use has passed. It has to be of exactly the requested
    /// size or smaller than a page, and a stream gets only a few of them. Once the budget is used up, any block that fits is
    /// taken, since the alternative is to remap the chunks below it.
    pub fn reuse_across_streams(&self, user: &Stream, request: &Request) -> Result<Option<DeviceAddr>, DriverError> {
        let tight = self.is_tight();
        if !self.rules().may_change_streams() || !(tight || user.lock().reuses < REUSES_AT_MOST) {
            return Ok(None);
        }
        let suits = |size: u64| tight || size < self.page_bytes() || size == request.size;
        let owners = self.shared.streams.iter().filter(|stream| stream.index != user.index);
        for owner in owners.take(if tight { usize::MAX } else { SEARCHED_STREAMS }) {
            let oldest = {
                let state = owner.lock();
                let candidates = fitting(&state, request.kind, request).take(LOOK_AT);
                candidates.filter(|it| suits(it.block.size)).map(|it| it.epoch).min()
            };
            // The progress of the stream is queried only now, since its memory is wanted.
            let Some(oldest) = oldest else { continue };
            if !self.progress().may_have_passed(owner.index, oldest)? {
                continue;
            }
            let passed = owner.clock.lock().passed();
            let mut state = owner.lock();
            let found = fitting(&state, request.kind, request)
                .take(LOOK_AT)
                .find(|it| it.epoch <= passed && suits(it.block.size));
            if let Some(found) = found {
                let addr = self.hand_over(&mut state, found, user.index, request);
                drop(state);
                user.lock().reuses += 1;
                return Ok(Some(addr));
            }
        }
        Ok(None)
    }

    /// The last resort before a refusal: takes any free block that is large enough, of whatever stream and kind of region. The
    /// device runs later work of `stream` behind the block's last use.
    pub fn reuse_any(&self, stream: &Stream, request: &Request) -> Result<Option<DeviceAddr>, DriverError> {
        let kinds = request.kind.then_others();
        for kind in kinds.clone() {
            let mut state = stream.lock();
            // Not as on the hot path, which looks at some of the blocks only.
            let found = fitting(&state, kind, request).next();
            if let Some(found) = found {
                return Ok(Some(take(&mut state, found, request)));
            }
        }
        if !self.rules().may_change_streams() {
            return Ok(None);
        }
        for owner in self.shared.streams.iter().filter(|other| other.index != stream.index) {
            for kind in kinds.clone() {
                if let Some(addr) = self.reuse_any_of(owner, kind, stream, request)? {
                    return Ok(Some(addr));
                }
            }
        }
        Ok(None)
    }

    fn reuse_any_of(
        &self,
        owner: &Stream,
        kind: RegionKind,
        stream: &Stream,
        request: &Request,
    ) -> Result<Option<DeviceAddr>, DriverError> {
        let mut latest = u64::MAX;
        loop {
            let found = fitting(&owner.lock(), kind, request).find(|it| it.epoch <= latest);
            let Some(found) = found else { return Ok(None) };
            let progress = self.progress();
            let ordered = progress.order_behind(stream.index, owner.index, found.epoch)?
                || progress.wait_until_passed(owner.index, found.epoch)?;
            if !ordered {
                // A capture is in progress: there is no order behind anything that has not passed.
                latest = owner.clock.lock().passed();
                continue;
            }
            let mut state = owner.lock();
            // Others may have taken it, or freed its neighbours, meanwhile.
            let still = fitting(&state, kind, request).find(|it| it.epoch <= found.epoch);
            if let Some(still) = still {
                return Ok(Some(self.hand_over(&mut state, still, stream.index, request)));
            }
        }
    }

    /// Allocates in a free block of `owner` on the stream `user`.
    fn hand_over(&self, owner: &mut StreamState, found: Fitting, user: StreamIndex, request: &Request) -> DeviceAddr {
        let addr = take(owner, found, request);
        let region = owner.region(found.region).expect("a block was found in it");
        region.heap.share(found.start).expect("just made live");
        owner.extras.insert((found.region, found.start), Extras::new(user));
        self.shared.counters.cross_stream_reuses.fetch_add(1, Ordering::Relaxed);
        addr
    }
}
