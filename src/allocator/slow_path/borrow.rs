//! Blocks that were kept for another use: of other streams, or of another kind of region.

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

/// Number of blocks that a stream borrows between two growths of its own, while there is headroom. Each is a way through the
/// slow path and an event; a block of its own costs that once.
const BORROW_AT_MOST: u32 = 4;

/// Number of streams that are looked at for a block to borrow, while there is headroom.
const LENDERS: usize = 64;

/// A free block that another stream could have.
#[derive(Clone, Copy, Debug)]
struct Lendable {
    region: RegionId,
    block: FreeBlock,
    /// Offset in the region at which the request would start.
    start: u64,
    /// The epoch of the block's last use.
    epoch: u64,
}

/// The free blocks in a stream's regions of `kind` that the request fits in, smallest first in each region.
fn lendable(state: &StreamState, kind: RegionKind, request: &Request) -> impl Iterator<Item = Lendable> {
    let (size, alignment) = (request.size, request.alignment);
    state.regions.of_kind(kind).flat_map(move |(id, region)| {
        region.heap.free_blocks_from(size).filter_map(move |block| {
            let start = round_up(region.base.0 + block.offset, alignment)? - region.base.0;
            let epoch = region.heap.block(block.offset).expect("indexed").epoch;
            let fits = start.checked_add(size)? <= block.offset + block.size;
            fits.then_some(Lendable { region: id, block, start, epoch: state.epoch_base + u64::from(epoch) })
        })
    })
}

/// Allocates in a free block of this stream's that was found.
fn take(state: &mut StreamState, found: Lendable, request: &Request) -> DeviceAddr {
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

    /// Takes a block of another stream that has passed its last use: one of the very size, or a piece of a page, but a few times
    /// only; once the budget is used up, any, since the alternative is to take the chunks from under it.
    pub fn borrow(&self, borrower: &Stream, request: &Request) -> Result<Option<DeviceAddr>, DriverError> {
        let tight = self.is_tight();
        if !self.rules().may_change_streams() || !(tight || borrower.lock().borrowed < BORROW_AT_MOST) {
            return Ok(None);
        }
        let suits = |size: u64| tight || size < self.page_bytes() || size == request.size;
        let lenders = self.shared.streams.iter().filter(|stream| stream.index != borrower.index);
        for lender in lenders.take(if tight { usize::MAX } else { LENDERS }) {
            let oldest = {
                let state = lender.lock();
                let candidates = lendable(&state, request.kind, request).take(LOOK_AT);
                candidates.filter(|it| suits(it.block.size)).map(|it| it.epoch).min()
            };
            // Only now that its memory is wanted, the stream is asked how far it is.
            let Some(oldest) = oldest else { continue };
            if !self.progress().may_have_passed(lender.index, oldest)? {
                continue;
            }
            let passed = lender.clock.lock().passed();
            let mut state = lender.lock();
            let found = lendable(&state, request.kind, request)
                .take(LOOK_AT)
                .find(|it| it.epoch <= passed && suits(it.block.size));
            if let Some(found) = found {
                let addr = self.lend(&mut state, found, borrower.index, request);
                drop(state);
                borrower.lock().borrowed += 1;
                return Ok(Some(addr));
            }
        }
        Ok(None)
    }

    /// The last resort before a refusal: any free block that is large enough, whatever it was kept for. The device runs
    /// later work of `stream` behind the block's last use.
    pub fn scavenge(&self, stream: &Stream, request: &Request) -> Result<Option<DeviceAddr>, DriverError> {
        let kinds = request.kind.then_others();
        for kind in kinds.clone() {
            let mut state = stream.lock();
            // Not as on the hot path, which looks at some of the blocks only.
            let found = lendable(&state, kind, request).next();
            if let Some(found) = found {
                return Ok(Some(take(&mut state, found, request)));
            }
        }
        if !self.rules().may_change_streams() {
            return Ok(None);
        }
        for lender in self.shared.streams.iter().filter(|other| other.index != stream.index) {
            for kind in kinds.clone() {
                if let Some(addr) = self.scavenge_from(lender, kind, stream, request)? {
                    return Ok(Some(addr));
                }
            }
        }
        Ok(None)
    }

    fn scavenge_from(
        &self,
        lender: &Stream,
        kind: RegionKind,
        stream: &Stream,
        request: &Request,
    ) -> Result<Option<DeviceAddr>, DriverError> {
        let mut latest = u64::MAX;
        loop {
            let found = lendable(&lender.lock(), kind, request).find(|it| it.epoch <= latest);
            let Some(found) = found else { return Ok(None) };
            let progress = self.progress();
            let ordered = progress.order_behind(stream.index, lender.index, found.epoch)?
                || progress.wait_until_passed(lender.index, found.epoch)?;
            if !ordered {
                // A capture is in progress: there is no order behind anything that has not passed.
                latest = lender.clock.lock().passed();
                continue;
            }
            let mut state = lender.lock();
            // Others may have taken it, or freed its neighbours, meanwhile.
            let still = lendable(&state, kind, request).find(|it| it.epoch <= found.epoch);
            if let Some(still) = still {
                return Ok(Some(self.lend(&mut state, still, stream.index, request)));
            }
        }
    }

    /// Hands a free block of one stream to another.
    fn lend(&self, lender: &mut StreamState, found: Lendable, borrower: StreamIndex, request: &Request) -> DeviceAddr {
        let addr = take(lender, found, request);
        let region = lender.region(found.region).expect("a block was found in it");
        region.heap.share(found.start).expect("just made live");
        lender.extras.insert((found.region, found.start), Extras::new(borrower));
        self.shared.counters.borrowed.fetch_add(1, Ordering::Relaxed);
        addr
    }
}
