//! Blocks that were kept for something else: of other streams, or of the own one's other region.

use super::Inner;
use super::plan::Request;
use super::region::{Region, RegionId, RegionKind};
use super::state::{Sharers, StreamHeap, StreamState};
use crate::driver::{Driver, DriverError};
use crate::heap::FreeBlock;
use crate::stream::StreamIndex;
use crate::sync::Ordering;
use crate::units::{DeviceAddr, round_up};

/// Of other streams' free blocks that fit, how many are looked at.
const LOOK_AT: usize = 8;

/// A free block that another stream could have.
#[derive(Clone, Copy, Debug)]
struct Lendable {
    region: RegionId,
    block: FreeBlock,
    /// Where in the heap the request would start.
    start: u64,
    /// The last use of the block.
    epoch: u64,
}

impl StreamState {
    /// A cached block of any region of a kind.
    pub(super) fn take_any(&mut self, kind: RegionKind, size: u64, waste: u16, alignment: u64) -> Option<DeviceAddr> {
        let regions: Vec<RegionId> = self.regions.ids_of(kind).collect();
        regions.into_iter().find_map(|region| self.take(region, size, waste, alignment))
    }

    /// The free blocks of regions of a kind that a request fits, smallest first in each.
    fn lendable(&self, kind: RegionKind, request: Request) -> impl Iterator<Item = Lendable> {
        self.regions.of_kind(kind).flat_map(move |(id, region)| {
            region.heap.free_blocks_from(request.size).filter_map(move |block| {
                let start = round_up(region.base.0 + block.offset, request.alignment)? - region.base.0;
                let epoch = region.heap.block(block.offset).expect("indexed").epoch;
                let fits = start.checked_add(request.size)? <= block.offset + block.size;
                fits.then_some(Lendable { region: id, block, start, epoch: self.epoch_base + u64::from(epoch) })
            })
        })
    }
}

impl<D: Driver> Inner<D> {
    /// For a small request when there is no room left: a free block among the large ones that is smaller than a page.
    /// Its pages are pinned already, so nothing is lost.
    pub(super) fn alloc_fragment(&self, heap: &StreamHeap, request: Request, waste: u16) -> Option<DeviceAddr> {
        if request.kind == RegionKind::Large {
            return None;
        }
        let mut state = heap.lock();
        let of_a_page = |region: &Region| {
            region.heap.best_fit(request.size).is_some_and(|found| found.size < self.geometry.page_bytes)
        };
        let (id, _) = state.regions.of_kind(RegionKind::Large).find(|(_, region)| of_a_page(region))?;
        state.take(id, request.size, waste, request.alignment)
    }

    /// Takes a block of another stream that has passed its last use: one of the very size, or a piece of a page; once
    /// there is no room left, any, since the alternative is to take the chunks from under it.
    pub(super) fn borrow(
        &self,
        borrower: StreamIndex,
        request: Request,
        waste: u16,
        tight: bool,
    ) -> Option<DeviceAddr> {
        let page_bytes = self.geometry.page_bytes;
        let fits = |size: u64| tight || size < page_bytes || size == request.size;
        for lender in self.streams.iter().filter(|stream| stream.index != borrower) {
            let passed = lender.clock.lock().passed();
            let mut state = lender.lock();
            let found = state
                .lendable(request.kind, request)
                .take(LOOK_AT)
                .find(|it| it.epoch <= passed && fits(it.block.size));
            if let Some(found) = found {
                return Some(self.lend(&mut state, found, borrower, request, waste));
            }
        }
        None
    }

    /// The last resort before a refusal: any free block that is large enough, whatever it was kept for. The device runs
    /// later work of the caller's stream behind its last use.
    pub(super) fn scavenge(
        &self,
        heap: &StreamHeap,
        request: Request,
        waste: u16,
    ) -> Result<Option<DeviceAddr>, DriverError> {
        let kinds = [request.kind, request.kind.other()];
        for kind in kinds {
            if let Some(addr) = heap.lock().take_any(kind, request.size, waste, request.alignment) {
                return Ok(Some(addr));
            }
        }
        for lender in self.streams.iter().filter(|stream| stream.index != heap.index) {
            for kind in kinds {
                let mut latest = u64::MAX;
                loop {
                    let found = lender.lock().lendable(kind, request).find(|it| it.epoch <= latest);
                    let Some(found) = found else { break };
                    if !self.order_behind(heap.index, lender.index, found.epoch)? {
                        // A capture is in progress: there is no order behind anything that has not passed.
                        latest = lender.clock.lock().passed();
                        continue;
                    }
                    let mut state = lender.lock();
                    // Others may have taken it, or freed its neighbours, meanwhile.
                    let still = state.lendable(kind, request).find(|it| it.epoch <= found.epoch);
                    if let Some(still) = still {
                        return Ok(Some(self.lend(&mut state, still, heap.index, request, waste)));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Hands a free block of one stream to another.
    fn lend(
        &self,
        lender: &mut StreamState,
        found: Lendable,
        borrower: StreamIndex,
        request: Request,
        waste: u16,
    ) -> DeviceAddr {
        let region = lender.region(found.region).expect("a block was found in it");
        region.heap.take_live(found.block.offset, found.start, request.size, waste);
        region.heap.share(found.start).expect("just made live");
        let addr = region.base.offset(found.start);
        lender.sharers.insert((found.region, found.start), Sharers { home: borrower, others: Vec::new() });
        lender.count_alloc(request.size, waste);
        self.counters.borrowed.fetch_add(1, Ordering::Relaxed);
        addr
    }
}
