//! Looking without changing anything: statistics, snapshots, and the report on a request that failed.

mod holdings;
mod oom;
mod snapshot;
mod stats;

use super::super::error::AllocError;
use super::super::reports::{ChunkSnapshot, OutOfMemory, RegionSnapshot, Snapshot, Stats};
use super::super::request::Request;
use super::super::shared::Shared;
use super::mapper::Mapper;
use super::plan::free_pages_of;
use super::{Door, SlowPath};
use crate::driver::{Driver, DriverError};
use crate::pages::PageCount;
use crate::physical::ViewAt;
use crate::stream::StreamIndex;
use crate::sync::Ordering;
use holdings::Holdings;

impl Door {
    /// Figures of one moment: locks all streams together, so that sums agree however many threads allocate.
    pub fn stats<D: Driver>(&self, shared: &Shared<D>) -> Stats {
        let mapper = self.mapper.lock();
        let holdings = holdings(shared, &mapper);
        Stats::new(shared, &shared.streams.lock_all(), &holdings)
    }

    /// Bytes of all chunks.
    pub fn held_bytes(&self) -> u64 {
        self.mapper.lock().pool.held_bytes()
    }

    /// Resets the peaks of live and held bytes to their current values.
    pub fn reset_peaks<D: Driver>(&self, shared: &Shared<D>) {
        let mut mapper = self.mapper.lock();
        mapper.pool.reset_peak();
        shared.streams.peak.reset(&mut shared.streams.lock_all());
    }

    /// Every region, block and chunk. Locks one stream after the other, for a piece of a region at a time. O(blocks).
    pub fn snapshot<D: Driver>(&self, shared: &Shared<D>) -> Snapshot {
        let mapper = self.mapper.lock();
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
    /// The error for a request of `stream` that could not be served.
    #[cold]
    pub fn out_of_memory(&self, request: &Request, stream: StreamIndex, refusal: Option<&DriverError>) -> AllocError {
        self.shared.counters.failed_allocs.fetch_add(1, Ordering::Relaxed);
        let holdings = holdings(self.shared, &self.mapper);
        let states = self.shared.streams.lock_all();
        let mut report = OutOfMemory::new(self.shared, &states, &holdings, request, stream, refusal);
        drop(states);
        report.list_largest(&self.shared.streams);
        AllocError::OutOfMemory(Box::new(report))
    }
}

/// What is held. Locks one stream after the other, for the time that its free chunks take.
fn holdings<D: Driver>(shared: &Shared<D>, mapper: &Mapper) -> Holdings {
    let pool = &mapper.pool;
    let page_bytes = pool.page_bytes();
    let free_pages: PageCount = shared.streams.iter().map(|stream| free_pages_of(mapper, &stream.lock())).sum();
    let tables = mapper.segments.iter().map(|segment| segment.table.metadata_bytes());
    Holdings {
        page_bytes,
        held_bytes: pool.held_bytes(),
        peak_held_bytes: pool.peak_held_bytes(),
        created_bytes: pool.created_bytes(),
        idle_bytes: pool.idle_bytes(),
        range_bytes: pool.lent_out_bytes(),
        headroom_bytes: pool.headroom_pages().bytes(page_bytes),
        free_chunk_bytes: free_pages.bytes(page_bytes),
        chunks: pool.len() as u64,
        peak_chunks: pool.peak_len() as u64,
        mappings: mapper.mappings() as u64,
        harvested_chunks: mapper.harvested_chunks,
        reused_views: mapper.reused_views,
        poisoned: mapper.poisoned,
        metadata_bytes: pool.metadata_bytes() + tables.sum::<u64>(),
    }
}

fn chunk_snapshots(mapper: &Mapper) -> Vec<ChunkSnapshot> {
    let address = |at: ViewAt| mapper.segments[at.segment as usize].address(at.page);
    mapper
        .pool
        .iter()
        .map(|(_, chunk)| ChunkSnapshot {
            handle: chunk.handle.0,
            bytes: chunk.pages.bytes(mapper.pool.page_bytes()),
            active: chunk.active.map(address),
            stale: chunk.stale.iter().copied().map(address).collect(),
            in_range: chunk.lent_out,
        })
        .collect()
}
