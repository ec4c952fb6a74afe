//! Looking without changing anything: statistics, snapshots, and the report on a request that failed.

mod holdings;
mod oom;
mod snapshot;
mod stats;
mod waiting;

use super::super::error::AllocError;
use super::super::reports::{Asleep, ChunkSnapshot, OutOfMemory, RegionSnapshot, Snapshot, Stats};
use super::super::request::Request;
use super::super::shared::Shared;
use super::mapper::Mapper;
use super::plan::{States, free_chunks, free_pages};
use super::{Door, SlowPath};
use crate::driver::{Driver, DriverError};
use crate::pages::PageCount;
use crate::physical::{LentTo, ViewAt};
use crate::stream::StreamIndex;
use crate::sync::Ordering;
pub use holdings::Holdings;

impl Door {
    /// Figures of all streams at one moment, and of what is held. Waits for nobody in the slow path.
    pub fn stats<D: Driver>(&self, shared: &Shared<D>) -> Stats {
        // Which chunks are completely free can be determined while nobody is moving them.
        let mapper = self.mapper.try_lock();
        let free =
            mapper.as_ref().map(|mapper| (free_chunk_bytes(shared, mapper), waiting_chunk_bytes(shared, mapper)));
        // Locked until all streams have been looked at: nothing that has been mapped since is handed out before.
        let mut holdings = self.holdings.lock();
        if let Some((free, waiting)) = free {
            holdings.free_chunk_bytes = free;
            holdings.waiting_chunk_bytes = waiting;
        }
        Stats::new(shared, &holdings)
    }

    /// Bytes of all chunks.
    pub fn held_bytes(&self) -> u64 {
        self.holdings.lock().held_bytes
    }

    /// What is asleep. Waits for nobody in the slow path.
    pub fn asleep<D: Driver>(&self, shared: &Shared<D>) -> Asleep {
        let Holdings { asleep_bytes, backup_bytes, file_bytes, .. } = *self.holdings.lock();
        let live_bytes = shared.streams.iter().map(|stream| stream.lock().asleep_bytes).sum();
        Asleep { asleep_bytes, live_bytes, backup_bytes, file_bytes }
    }

    /// Resets the peaks to current values.
    pub fn reset_peaks<D: Driver>(&self, shared: &Shared<D>) {
        let mut mapper = self.lock();
        mapper.reset_peak();
        self.holdings.lock().update(&mapper);
        shared.streams.peak.reset(&mut shared.streams.lock_all());
        shared.shown.reset();
    }

    /// Every region, block and chunk. Locks one stream after the other, for a piece of a region at a time. O(blocks).
    pub fn snapshot<D: Driver>(&self, shared: &Shared<D>) -> Snapshot {
        let mapper = self.lock();
        let mut regions = Vec::new();
        for stream in shared.streams.iter() {
            let of_stream = stream.region_ids();
            regions
                .extend(of_stream.iter().filter_map(|id| RegionSnapshot::new(&shared.streams, &mapper, stream, *id)));
        }
        Snapshot {
            page_bytes: shared.geometry.page_bytes,
            budget_bytes: shared.budget_bytes(),
            regions,
            chunks: chunk_snapshots(&mapper),
        }
    }
}

impl<D: Driver> SlowPath<'_, D> {
    /// The error for a request of `stream` that could not be served, which counts. The largest allocations are still to be listed.
    #[cold]
    pub fn out_of_memory(&self, request: &Request, stream: StreamIndex, refusal: Option<&DriverError>) -> AllocError {
        self.shared.counters.failed_allocs.fetch_add(1, Ordering::Relaxed);
        self.shortage(request, stream, refusal)
    }

    /// The same error, of what is no request of a caller.
    #[cold]
    pub fn shortage(&self, request: &Request, stream: StreamIndex, refusal: Option<&DriverError>) -> AllocError {
        let free = free_pages(&self.mapper, &mut self.states());
        let in_bytes = |pages: PageCount| pages.bytes(self.page_bytes());
        let holdings = Holdings { free_chunk_bytes: in_bytes(free.in_free_chunks), ..Holdings::new(&self.mapper) };
        let states = self.shared.streams.lock_all();
        let mut report = OutOfMemory::new(self.shared, &states, &holdings, request, stream, refusal);
        // Counted before the states were locked.
        let cached_beside = report.cached_bytes.saturating_sub(holdings.free_chunk_bytes);
        report.pinned.whole_page_bytes = in_bytes(free.beside_others).min(cached_beside);
        let after_the_capture = report.free_bytes + self.left_behind_bytes();
        report.stopped_by_capture =
            after_the_capture >= report.requested_bytes && self.shared.streams.waits_forbidden() > self.waits_forbidden;
        AllocError::OutOfMemory(Box::new(report))
    }
}

/// Bytes of completely free chunks. Locks one stream after the other, for a piece of its free blocks at a time.
fn free_chunk_bytes<D: Driver>(shared: &Shared<D>, mapper: &Mapper) -> u64 {
    let mut states = States::in_pieces(&shared.streams);
    free_chunks(mapper, &mut states).pages().bytes(mapper.chunks().page_bytes())
}

/// Bytes of chunks that are free but for blocks that wait for streams.
fn waiting_chunk_bytes<D: Driver>(shared: &Shared<D>, mapper: &Mapper) -> u64 {
    waiting::waiting_pages(shared, mapper).bytes(mapper.chunks().page_bytes())
}

fn chunk_snapshots(mapper: &Mapper) -> Vec<ChunkSnapshot> {
    let address = |at: ViewAt| mapper.segment(at.segment as usize).address(at.page);
    mapper
        .chunks()
        .iter()
        .map(|(_, chunk)| ChunkSnapshot {
            handle: chunk.handle.0,
            bytes: chunk.pages.bytes(mapper.chunks().page_bytes()),
            active: chunk.active.map(address),
            stale: chunk.stale.iter().copied().map(address).collect(),
            in_range: chunk.lent_out == Some(LentTo::Range),
            registered: chunk.lent_out == Some(LentTo::RegisteredBlock),
        })
        .collect()
}
