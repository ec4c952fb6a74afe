//! Witness: a driver that tracks which work is ordered after which, and so detects a premature reuse even if it happens
//! to cause no error.
//!
//! It keeps a vector clock for every stream, every recorded event and the host, and all uses of every physical byte.
//! Two uses of the same bytes, at least one of them a write, must be ordered: because they are on the same stream, by a
//! wait for an event, or because the host knew that the first was complete before it queued the second. Memory may be
//! unmapped or released only when the host knows that all work with it is complete. A violation becomes an observation,
//! which is kept until [`take_observations`](Witness::take_observations) is called.
//!
//! - W1  a clock's entry for stream `s` is the number of items of work on `s` that come before the clock's point in
//!   time.
//!
//! It also knows which memory is mapped at an address ([`backing`](Witness::backing)), independently of the allocator, and
//! which devices have access there.
//!
//! Several devices of one process have a witness each, and one state: what the host knows of the work of one counts for the
//! memory of all, and work of one device may use the memory of another ([`beside`](Witness::beside)).
//!
//! Threads: any; one lock, held during calls of the inner driver that do not wait.

mod state;

pub use state::Made;

use crate::device::{Device, stream_of};
use gapless::driver::{
    CheckedDriver, ChunkHandle, DriverResult, EventHandle, HoldStreams, HostMemory, MemoryDriver, MemoryInfo, Mismatch,
    PER_THREAD_STREAM, StreamDriver, StreamIdentity, WorkDriver,
};
use gapless::units::{DeviceAddr, StreamId};
use parking_lot::Mutex;
use state::{Chunk, Clock, Devices, Kind, Lane, Mapped, State};

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

/// The numbers of streams: the device does not tell them at all times.
#[derive(Debug, Default)]
struct Numbers {
    /// Of the streams that were created, by their handles.
    created: HashMap<StreamId, StreamId>,
    /// Of the streams that threads have of their own.
    own: HashMap<ThreadId, StreamId>,
}

impl Numbers {
    /// Forgets a stream that was destroyed. Another one may have its handle already.
    fn forget(&mut self, stream: StreamId, number: StreamId) {
        if self.created.get(&stream) == Some(&number) {
            self.created.remove(&stream);
        }
    }
}

/// A driver that wraps `D` and tracks the order of uses.
#[derive(Debug)]
pub struct Witness<D> {
    inner: D,
    /// The device's number among those that share the state.
    device: u32,
    state: Arc<Mutex<State>>,
    numbers: Mutex<Numbers>,
}

impl<D> Witness<D> {
    /// Wraps a driver.
    pub fn new(inner: D) -> Self {
        Self { inner, device: 0, state: Arc::default(), numbers: Mutex::default() }
    }

    /// Wraps the driver of a further device, of that number, which no other device has beside this one.
    pub fn beside(&self, inner: D, device: u32) -> Self {
        Self { inner, device, state: Arc::clone(&self.state), numbers: Mutex::default() }
    }

    /// Returns the wrapped driver.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Returns the violations observed since the last call.
    pub fn take_observations(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().observations)
    }

    /// Returns the chunk and the range in it for each piece of a range of addresses, or `None` if a byte is not
    /// accessible.
    pub fn backing(&self, addr: DeviceAddr, bytes: u64) -> Option<Vec<(ChunkHandle, Range<u64>)>> {
        let parts = self.state.lock().backing(addr.0, bytes)?;
        Some(parts.into_iter().map(|((_, chunk), range, _)| (chunk, range)).collect())
    }

    /// As [`backing`](Self::backing), whether or not anybody was given access.
    pub fn mapped(&self, addr: DeviceAddr, bytes: u64) -> Option<Vec<(ChunkHandle, Range<u64>)>> {
        let state = self.state.lock();
        let (start, mapped) = state.mappings.range(..=addr.0).next_back()?;
        let from = addr.0 - start;
        (from + bytes <= mapped.bytes).then(|| vec![(mapped.chunk.1, from..from + bytes)])
    }

    /// Returns the number of chunks created so far.
    pub fn created(&self) -> u64 {
        self.state.lock().created
    }

    /// Returns how a chunk was created, if it has not been released.
    pub fn chunk(&self, chunk: ChunkHandle) -> Option<Made> {
        self.state.lock().chunks.get(&(self.device, chunk)).copied()
    }

    /// Returns the values of the handles of all chunks of the device, in order.
    pub fn chunks(&self) -> Vec<u64> {
        let state = self.state.lock();
        state.chunks.keys().filter(|(device, _)| *device == self.device).map(|(_, chunk)| chunk.0).collect()
    }

    /// Notes that the driver gives a peer access with every call of `set_access`.
    pub(crate) fn name_peer(&self, peer: u8) {
        let mut state = self.state.lock();
        let named = state.named.entry(self.device).or_default();
        *named = named.with(Devices::peer(peer));
    }

    /// Ends what [`name_peer`](Self::name_peer) and [`rely_on_peer`](Self::rely_on_peer) began.
    pub(crate) fn leave_peer_out(&self, peer: u8) {
        let mut state = self.state.lock();
        let State { named, relied_on, .. } = &mut *state;
        for peers in [named, relied_on] {
            let peers = peers.entry(self.device).or_default();
            *peers = peers.without(Devices::peer(peer));
        }
    }

    /// From now on, nothing counts as accessible that is not accessible to the peer.
    pub fn rely_on_peer(&self, peer: u8) {
        let mut state = self.state.lock();
        let relied_on = state.relied_on.entry(self.device).or_default();
        *relied_on = relied_on.with(Devices::peer(peer));
    }

    /// Returns the chunk mapped at an address and the offset in it, or `None` if the address is not accessible.
    pub fn memory_at(&self, addr: DeviceAddr) -> Option<(ChunkHandle, u64)> {
        self.state.lock().memory_at(addr.0)
    }
}

impl<D: Device> Witness<D> {
    /// Gives a peer access to everything for which `set_access` is called from now on.
    pub fn add_peer(&self, peer: u8) {
        self.inner.add_peer(peer);
        self.name_peer(peer);
    }

    /// Ends what [`add_peer`](Self::add_peer) and [`rely_on_peer`](Self::rely_on_peer) began.
    pub fn remove_peer(&self, peer: u8) {
        self.leave_peer_out(peer);
        self.inner.remove_peer(peer);
    }

    /// Queues work on `stream` that fills memory, as work of a peer if one has access.
    pub fn fill_as_foreign(&self, stream: StreamId, addr: DeviceAddr, bytes: u64, seed: u64) -> DriverResult<()> {
        let mut state = self.state.lock();
        let relied_on = state.relied_on.get(&self.device).copied().unwrap_or_default();
        match (0..self.inner.peers()).find(|peer| relied_on.contains(Devices::peer(*peer))) {
            Some(peer) => self.inner.fill_as_peer(peer, stream, addr, bytes, seed)?,
            None => self.inner.fill(stream, addr, bytes, seed)?,
        }
        state.submit(self.lane(stream), addr, bytes, Kind::Write);
        Ok(())
    }
}

impl<D: WorkDriver> Witness<D> {
    /// Queues work on `stream` that uses memory of another device with the same state. The work takes a moment and moves no bytes:
    /// a simulated device cannot reach those of another.
    pub fn use_elsewhere(&self, stream: StreamId, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        let mut state = self.state.lock();
        self.inner.delay(stream, Duration::from_micros(1))?;
        state.submit(self.lane(stream), addr, bytes, Kind::Write);
        Ok(())
    }
}

impl<D: StreamDriver> Witness<D> {
    /// Orders work queued on `later` from now on after the work already queued on `earlier`, as a caller would.
    pub fn order(&self, earlier: StreamId, later: StreamId) -> DriverResult<()> {
        let event = self.event_create()?;
        self.event_record(event, earlier)?;
        self.stream_wait(later, event)?;
        self.event_destroy(event)
    }

    /// Returns the number of the stream that a handle stands for. Handles are used again; the numbers are not.
    fn lane(&self, stream: StreamId) -> Lane {
        let mut numbers = self.numbers.lock();
        let number = match numbers.created.get(&stream) {
            Some(number) => Some(*number),
            None => self.inner.identify(stream).ok().map(|identity| stream_of(identity.number)),
        };
        let number = if stream == PER_THREAD_STREAM {
            let thread = std::thread::current().id();
            numbers.own.extend(number.map(|number| (thread, number)));
            numbers.own.get(&thread).copied()
        } else {
            number
        };
        Lane { device: self.device, number: number.unwrap_or(stream) }
    }

    /// Returns the number of the stream that a handle stands for, whether or not the device tells it now.
    pub(crate) fn number(&self, stream: StreamId) -> u64 {
        self.lane(stream).number.as_raw()
    }
}

// SAFETY: each call goes to a checked driver.
unsafe impl<D: CheckedDriver> CheckedDriver for Witness<D> {}

impl<D: MemoryDriver> MemoryDriver for Witness<D> {
    fn granularity(&self) -> u64 {
        self.inner.granularity()
    }

    fn ordinal(&self) -> u32 {
        self.inner.ordinal()
    }

    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        self.inner.memory_info()
    }

    fn reserve(&self, bytes: u64, alignment: u64) -> DriverResult<DeviceAddr> {
        self.inner.reserve(bytes, alignment)
    }

    fn address_free(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.inner.address_free(addr, bytes)
    }

    fn create(&self, bytes: u64) -> DriverResult<ChunkHandle> {
        let mut state = self.state.lock();
        let chunk = self.inner.create(bytes)?;
        state.created += 1;
        let number = state.created;
        state.chunks.insert((self.device, chunk), Made { bytes, number });
        Ok(chunk)
    }

    fn release(&self, chunk: ChunkHandle) -> DriverResult<()> {
        let mut state = self.state.lock();
        self.inner.release(chunk)?;
        let chunk = (self.device, chunk);
        state.expect_over("release", |_| true, chunk);
        state.uses.remove(&chunk);
        state.chunks.remove(&chunk);
        Ok(())
    }

    fn map(&self, addr: DeviceAddr, bytes: u64, chunk: ChunkHandle) -> DriverResult<()> {
        let mut state = self.state.lock();
        self.inner.map(addr, bytes, chunk)?;
        state.mappings.insert(addr.0, Mapped { bytes, chunk: (self.device, chunk), access: Devices::default() });
        Ok(())
    }

    fn set_access(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        let mut state = self.state.lock();
        self.inner.set_access(addr, bytes)?;
        // Who had access before, keeps it.
        let named = state.named.get(&self.device).copied().unwrap_or_default().with(Devices::OWN);
        for (_, mapped) in state.mappings.range_mut(addr.0..addr.0 + bytes) {
            mapped.access = mapped.access.with(named);
        }
        Ok(())
    }

    fn unmap(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        let mut state = self.state.lock();
        self.inner.unmap(addr, bytes)?;
        let range = addr.0..addr.0 + bytes;
        let gone: Vec<(u64, Chunk)> =
            state.mappings.range(range.clone()).map(|(at, mapped)| (*at, mapped.chunk)).collect();
        for (at, chunk) in gone {
            state.expect_over("unmap", |earlier| range.contains(&earlier.addr), chunk);
            state.mappings.remove(&at);
        }
        Ok(())
    }

    fn host_alloc(&self, bytes: u64) -> DriverResult<HostMemory> {
        self.inner.host_alloc(bytes)
    }

    fn host_free(&self, memory: HostMemory) -> DriverResult<()> {
        self.inner.host_free(memory)
    }

    fn host_read(&self, memory: HostMemory, offset: u64, bytes: u64, read: &mut dyn FnMut(&[u8])) -> DriverResult<()> {
        self.inner.host_read(memory, offset, bytes, read)
    }

    fn host_write(
        &self,
        memory: HostMemory,
        offset: u64,
        bytes: u64,
        write: &mut dyn FnMut(&mut [u8]),
    ) -> DriverResult<()> {
        self.inner.host_write(memory, offset, bytes, write)
    }

    fn host_memory_has_bytes(&self) -> bool {
        self.inner.host_memory_has_bytes()
    }
}

impl<D: StreamDriver> StreamDriver for Witness<D> {
    fn check_stream(&self, stream: StreamId) -> DriverResult<()> {
        self.inner.check_stream(stream)
    }

    fn identify(&self, stream: StreamId) -> DriverResult<StreamIdentity> {
        self.inner.identify(stream)
    }

    fn owns_default_stream(&self) -> bool {
        self.inner.owns_default_stream()
    }

    fn is_capturing(&self, stream: StreamId) -> bool {
        self.inner.is_capturing(stream)
    }

    fn event_create(&self) -> DriverResult<EventHandle> {
        self.inner.event_create()
    }

    fn event_destroy(&self, event: EventHandle) -> DriverResult<()> {
        let mut state = self.state.lock();
        self.inner.event_destroy(event)?;
        state.events.remove(&(self.device, event));
        Ok(())
    }

    fn event_record(&self, event: EventHandle, stream: StreamId) -> DriverResult<()> {
        let mut state = self.state.lock();
        self.inner.event_record(event, stream)?;
        let clock = state.now(self.lane(stream)).clone();
        state.events.insert((self.device, event), clock);
        Ok(())
    }

    fn event_query(&self, event: EventHandle) -> DriverResult<bool> {
        let mut state = self.state.lock();
        let over = self.inner.event_query(event)?;
        if over {
            let clock = state.events.get(&(self.device, event)).cloned().unwrap_or_default();
            state.host.join(&clock);
        }
        Ok(over)
    }

    fn event_synchronize(&self, event: EventHandle) -> DriverResult<()> {
        let clock = self.state.lock().events.get(&(self.device, event)).cloned().unwrap_or_default();
        self.inner.event_synchronize(event)?;
        self.state.lock().host.join(&clock);
        Ok(())
    }

    fn stream_wait(&self, stream: StreamId, event: EventHandle) -> DriverResult<()> {
        let mut state = self.state.lock();
        self.inner.stream_wait(stream, event)?;
        let clock = state.events.get(&(self.device, event)).cloned().unwrap_or_default();
        state.now(self.lane(stream)).join(&clock);
        Ok(())
    }

    fn synchronize_device(&self) -> DriverResult<()> {
        let all: Vec<Clock> = self.state.lock().of_device(self.device);
        self.inner.synchronize_device()?;
        let mut state = self.state.lock();
        for clock in &all {
            state.host.join(clock);
        }
        Ok(())
    }

    fn create_copy_stream(&self) -> DriverResult<StreamId> {
        let stream = self.inner.create_copy_stream()?;
        let number = stream_of(self.inner.identify(stream)?.number);
        self.numbers.lock().created.insert(stream, number);
        Ok(stream)
    }

    fn destroy_copy_stream(&self, stream: StreamId) -> DriverResult<()> {
        let lane = self.lane(stream);
        self.inner.destroy_copy_stream(stream)?;
        self.numbers.lock().forget(stream, lane.number);
        Ok(())
    }

    fn copy_out(
        &self,
        stream: StreamId,
        target: HostMemory,
        offset: u64,
        source: DeviceAddr,
        bytes: u64,
    ) -> DriverResult<()> {
        let mut state = self.state.lock();
        self.inner.copy_out(stream, target, offset, source, bytes)?;
        state.submit(self.lane(stream), source, bytes, Kind::Read);
        Ok(())
    }

    fn copy_in(
        &self,
        stream: StreamId,
        target: DeviceAddr,
        source: HostMemory,
        offset: u64,
        bytes: u64,
    ) -> DriverResult<()> {
        let mut state = self.state.lock();
        self.inner.copy_in(stream, target, source, offset, bytes)?;
        state.submit(self.lane(stream), target, bytes, Kind::Write);
        Ok(())
    }

    fn clear(&self, stream: StreamId, target: DeviceAddr, bytes: u64) -> DriverResult<()> {
        let mut state = self.state.lock();
        self.inner.clear(stream, target, bytes)?;
        state.submit(self.lane(stream), target, bytes, Kind::Write);
        Ok(())
    }
}

impl<D: WorkDriver> WorkDriver for Witness<D> {
    fn create_stream(&self) -> DriverResult<StreamId> {
        let stream = self.inner.create_stream()?;
        let number = stream_of(self.inner.identify(stream)?.number);
        self.numbers.lock().created.insert(stream, number);
        Ok(stream)
    }

    fn destroy_stream(&self, stream: StreamId) -> DriverResult<()> {
        let lane = self.lane(stream);
        self.inner.destroy_stream(stream)?;
        self.numbers.lock().forget(stream, lane.number);
        let mut state = self.state.lock();
        let clock = state.now(lane).clone();
        state.host.join(&clock);
        Ok(())
    }

    fn abandon_stream(&self, stream: StreamId) -> DriverResult<()> {
        let lane = self.lane(stream);
        self.inner.abandon_stream(stream)?;
        self.numbers.lock().forget(stream, lane.number);
        Ok(())
    }

    fn fill(&self, stream: StreamId, addr: DeviceAddr, bytes: u64, seed: u64) -> DriverResult<()> {
        let mut state = self.state.lock();
        self.inner.fill(stream, addr, bytes, seed)?;
        state.submit(self.lane(stream), addr, bytes, Kind::Write);
        Ok(())
    }

    fn verify(&self, stream: StreamId, addr: DeviceAddr, bytes: u64, seed: u64) -> DriverResult<()> {
        let mut state = self.state.lock();
        self.inner.verify(stream, addr, bytes, seed)?;
        state.submit(self.lane(stream), addr, bytes, Kind::Read);
        Ok(())
    }

    fn copy(&self, stream: StreamId, target: DeviceAddr, source: DeviceAddr, bytes: u64) -> DriverResult<()> {
        let mut state = self.state.lock();
        self.inner.copy(stream, target, source, bytes)?;
        state.submit(self.lane(stream), source, bytes, Kind::Read);
        state.submit(self.lane(stream), target, bytes, Kind::Write);
        Ok(())
    }

    fn delay(&self, stream: StreamId, duration: Duration) -> DriverResult<()> {
        self.inner.delay(stream, duration)
    }

    fn synchronize(&self, stream: StreamId) -> DriverResult<()> {
        let clock = self.state.lock().now(self.lane(stream)).clone();
        self.inner.synchronize(stream)?;
        self.state.lock().host.join(&clock);
        Ok(())
    }

    fn take_mismatches(&self) -> Vec<Mismatch> {
        self.inner.take_mismatches()
    }
}

impl<D: HoldStreams> HoldStreams for Witness<D> {
    fn hold(&self, stream: StreamId) {
        self.inner.hold(stream);
    }

    fn complete(&self, stream: StreamId) {
        self.inner.complete(stream);
    }

    fn resume(&self, stream: StreamId) {
        self.inner.resume(stream);
    }

    fn host_waits(&self) -> u64 {
        self.inner.host_waits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Model, World};

    fn two_streams_on_one_page() -> (Witness<Model>, DeviceAddr, [StreamId; 2]) {
        let driver = Witness::new(Model::open(&World::default()));
        let page = driver.granularity();
        let addr = driver.reserve(page, page).unwrap();
        let chunk = driver.create(page).unwrap();
        driver.map(addr, page, chunk).unwrap();
        driver.set_access(addr, page).unwrap();
        let streams = [StreamId::DEFAULT, driver.create_stream().unwrap()];
        driver.fill(streams[0], addr, 512, 1).unwrap();
        (driver, addr, streams)
    }

    #[test]
    fn unordered_uses_are_detected_even_if_harmless() {
        let (driver, addr, streams) = two_streams_on_one_page();
        driver.fill(streams[1], addr.offset(512), 512, 1).unwrap();
        assert!(driver.take_observations().is_empty(), "they use different bytes");
        driver.fill(streams[1], addr, 512, 1).unwrap();
        assert_eq!(driver.take_observations().len(), 1);
        driver.unmap(addr, driver.granularity()).unwrap();
        assert_eq!(driver.take_observations().len(), 3);
    }

    #[test]
    fn every_kind_of_order_counts() {
        let (driver, addr, streams) = two_streams_on_one_page();
        driver.order(streams[0], streams[1]).unwrap();
        driver.verify(streams[1], addr, 512, 1).unwrap();
        let event = driver.event_create().unwrap();
        driver.event_record(event, streams[1]).unwrap();
        assert!(driver.event_query(event).unwrap());
        driver.fill(streams[0], addr, 512, 2).unwrap();
        driver.synchronize(streams[0]).unwrap();
        driver.unmap(addr, driver.granularity()).unwrap();
        assert_eq!(driver.take_observations(), [""; 0]);
    }
}
