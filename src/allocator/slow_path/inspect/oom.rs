//! How an out-of-memory report comes about.

use super::super::super::reports::{OutOfMemory, Pinned, StreamUse};
use super::super::super::request::Request;
use super::super::super::shared::Shared;
use super::super::super::streams::Streams;
use super::super::super::streams::state::{AllStates, Stream, StreamState};
use super::Holdings;
use crate::driver::{Driver, DriverError, MemoryDriver};
use crate::stream::StreamIndex;
use crate::units::round_down;

/// Number of the largest live allocations that a report lists.
const LISTED: usize = 8;

impl OutOfMemory {
    /// The report on a request of `stream` that could not be served, at the moment at which `states` and `holdings` were
    /// taken. `refusal` is the driver's answer when it had no memory although the budget allowed it.
    pub(super) fn new<D: Driver>(
        shared: &Shared<D>,
        states: &AllStates<'_>,
        holdings: &Holdings,
        request: &Request,
        stream: StreamIndex,
        refusal: Option<&DriverError>,
    ) -> Self {
        let streams = &shared.streams;
        let mut report = Self {
            requested_bytes: request.requested,
            stream: streams.get(stream).id(),
            satisfiable: false,
            satisfiable_by_whole_pages: false,
            page_bytes: holdings.page_bytes,
            device: streams.driver.memory_info().ok(),
            others_bytes: 0,
            elsewhere_bytes: 0,
            budget_bytes: shared.budget_bytes(),
            stopped_by_budget: false,
            stopped_by_capture: false,
            reserved_bytes: holdings.held_bytes,
            live_bytes: 0,
            live_block_bytes: 0,
            cached_bytes: 0,
            pending_bytes: 0,
            open_elsewhere_bytes: 0,
            holders: Vec::new(),
            range_bytes: holdings.range_bytes,
            registered_bytes: holdings.registered_bytes,
            asleep_bytes: holdings.asleep_bytes,
            live_asleep_bytes: 0,
            free_bytes: 0,
            free_without_budget_bytes: 0,
            obtainable_bytes: 0,
            pinned: Pinned::default(),
            streams: Vec::new(),
            largest: Vec::new(),
            driver_error: refusal.map(ToString::to_string),
        };
        for (stream, state) in streams.iter().zip(states) {
            report.add_stream(stream, state);
        }
        report.judge(holdings, request);
        report.stopped_by_budget = report.stopped_by_budget && !shared.follows_device();
        report
    }

    /// Lists the largest live allocations. No stream is locked for long.
    pub(in super::super) fn list_largest<D: Driver>(&mut self, streams: &Streams<D>) {
        self.largest = streams.largest_live(LISTED);
    }

    fn add_stream(&mut self, stream: &Stream, state: &StreamState) {
        let (live_bytes, pending_bytes) = (state.live_bytes, state.pending_bytes());
        let mut part = StreamUse { stream: stream.id(), live_bytes, cached_bytes: 0, pending_bytes };
        for (_, region) in state.regions.iter() {
            part.cached_bytes += region.heap.free_bytes();
            self.live_block_bytes += region.heap.live_block_bytes();
        }
        self.live_bytes += part.live_bytes;
        self.cached_bytes += part.cached_bytes;
        self.pending_bytes += part.pending_bytes;
        self.open_elsewhere_bytes += state.open_elsewhere_bytes;
        self.live_asleep_bytes += state.asleep_bytes;
        self.streams.push(part);
    }

    /// Works out what is free, what of it can be had, and whether that covers the request.
    fn judge(&mut self, holdings: &Holdings, request: &Request) {
        self.pending_bytes += holdings.unreleased_bytes;
        // The budget is no use where the device itself has less left.
        let device_free = self.device.map_or(u64::MAX, |info| info.free);
        let device_pages = self.device.map(|info| round_down(info.free, self.page_bytes));
        let creatable = device_pages.map_or(holdings.headroom_bytes, |free| holdings.headroom_bytes.min(free));
        let free_chunks = holdings.free_chunk_bytes + holdings.idle_bytes;
        let uncreated = self.budget_bytes.saturating_sub(self.reserved_bytes).min(device_free);
        self.others_bytes = self.device.map_or(0, |info| (info.total - info.free).saturating_sub(self.reserved_bytes));
        self.free_bytes = uncreated + self.cached_bytes + self.pending_bytes + holdings.idle_bytes;
        self.free_without_budget_bytes = self.free_bytes - uncreated + self.device.map_or(uncreated, |info| info.free);
        self.obtainable_bytes = free_chunks + creatable;
        self.satisfiable = self.free_bytes >= self.requested_bytes;
        self.satisfiable_by_whole_pages = self.obtainable_bytes >= request.size;
        self.stopped_by_budget =
            !self.satisfiable_by_whole_pages && device_pages.is_some_and(|free| free_chunks + free >= request.size);
        self.pinned.by_pending_bytes = self.pending_bytes;
        self.pinned.by_live_bytes =
            self.free_bytes.saturating_sub(self.obtainable_bytes + self.pinned.by_pending_bytes);
    }
}
