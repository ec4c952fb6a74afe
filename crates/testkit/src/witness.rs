//! Witness: a driver that knows which work is ordered behind which, and so sees a premature reuse even when it happens to
//! come out well.
//!
//! It keeps a vector clock for every stream, for every recorded event and for the host, and every use of every physical
//! byte. Two uses of the same bytes, one of them a write, must be ordered: by the stream they share, by a wait for an
//! event, or because the host knew of the first one's completion before it queued the second. An unmap or a release must
//! come after the host knew that all work through it had completed. What breaks this is an observation, kept until
//! [`take_observations`](Witness::take_observations).
//!
//! - W1  a clock's entry for stream `s` is the number of works of `s` that lie before the point it belongs to.
//!
//! It also answers what is behind an address ([`backing`](Witness::backing)), independent of the allocator's books.
//!
//! Threads: any; one lock, held during inner calls that do not wait.

use crate::device::Device;
use gapless::driver::{
    ChunkHandle, DriverResult, EventHandle, HoldStreams, MemoryDriver, MemoryInfo, Mismatch, StreamDriver, WorkDriver,
};
use gapless::units::{DeviceAddr, StreamId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::time::Duration;

/// A driver around `D` that watches the order of uses.
#[derive(Debug)]
pub struct Witness<D> {
    inner: D,
    books: Mutex<Books>,
}

/// How much of each stream's work lies before a point.
#[derive(Clone, Debug, Default)]
struct Clock(BTreeMap<StreamId, u64>);

#[derive(Debug, Default)]
struct Books {
    mappings: BTreeMap<u64, Mapped>,
    uses: HashMap<ChunkHandle, Vec<Use>>,
    streams: HashMap<StreamId, Clock>,
    events: HashMap<EventHandle, Clock>,
    host: Clock,
    observations: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
struct Mapped {
    bytes: u64,
    chunk: ChunkHandle,
    accessible: bool,
}

/// One work's use of a part of a chunk, through one mapping.
#[derive(Clone, Debug)]
struct Use {
    bytes: Range<u64>,
    addr: u64,
    stream: StreamId,
    number: u64,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
}

/// Uses of a chunk that are kept before those that the host knows to be over are dropped.
const KEPT_USES: usize = 32;

impl Clock {
    fn join(&mut self, other: &Self) {
        for (stream, number) in &other.0 {
            let own = self.0.entry(*stream).or_default();
            *own = (*own).max(*number);
        }
    }

    fn covers(&self, stream: StreamId, number: u64) -> bool {
        self.0.get(&stream).is_some_and(|known| *known >= number)
    }
}

impl Books {
    /// The stream's clock, the host's knowledge taken in.
    fn now(&mut self, stream: StreamId) -> &mut Clock {
        let clock = self.streams.entry(stream).or_default();
        clock.join(&self.host);
        clock
    }

    fn submit(&mut self, stream: StreamId, addr: DeviceAddr, bytes: u64, kind: Kind) {
        let clock = self.now(stream);
        let number = clock.0.get(&stream).copied().unwrap_or(0) + 1;
        clock.0.insert(stream, number);
        let clock = clock.clone();
        let Some(parts) = self.backing(addr.0, bytes) else {
            self.observations.push(format!("work of {stream:?} on {bytes} bytes at {addr}, not all accessible"));
            return;
        };
        for (chunk, part, at) in parts {
            let uses = self.uses.entry(chunk).or_default();
            if uses.len() > KEPT_USES {
                uses.retain(|earlier| !self.host.covers(earlier.stream, earlier.number));
            }
            for earlier in uses.iter() {
                let overlap = earlier.bytes.start < part.end && part.start < earlier.bytes.end;
                let conflict = earlier.kind == Kind::Write || kind == Kind::Write;
                if overlap && conflict && !clock.covers(earlier.stream, earlier.number) {
                    self.observations.push(format!(
                        "{kind:?} of {stream:?} at {addr} is not ordered behind work {} of {:?} on the same bytes \
                         ({:#x}..{:#x} of {chunk:?}, then at {:#x})",
                        earlier.number, earlier.stream, earlier.bytes.start, earlier.bytes.end, earlier.addr
                    ));
                }
            }
            uses.push(Use { bytes: part, addr: at, stream, number, kind });
        }
    }

    /// Chunk, range in it and address of each piece of `[addr, addr + bytes)`; none when a byte is not accessible.
    fn backing(&self, addr: u64, bytes: u64) -> Option<Vec<(ChunkHandle, Range<u64>, u64)>> {
        let end = addr + bytes;
        let mut parts = Vec::new();
        let mut at = addr;
        while at < end {
            let (start, mapped) = self.mappings.range(..=at).next_back()?;
            let stop = end.min(start + mapped.bytes);
            if stop <= at || !mapped.accessible {
                return None;
            }
            parts.push((mapped.chunk, at - start..stop - start, at));
            at = stop;
        }
        Some(parts)
    }

    /// Notes uses that the host does not know to be over, of chunks in the range or of one chunk.
    fn expect_over(&mut self, what: &str, concerned: impl Fn(&Use) -> bool, chunk: ChunkHandle) {
        for earlier in self.uses.get(&chunk).into_iter().flatten() {
            if concerned(earlier) && !self.host.covers(earlier.stream, earlier.number) {
                self.observations.push(format!(
                    "{what} while the host does not know that work {} of {:?} at {:#x} is over",
                    earlier.number, earlier.stream, earlier.addr
                ));
            }
        }
    }
}

impl<D> Witness<D> {
    /// Watches a driver.
    pub fn new(inner: D) -> Self {
        Self { inner, books: Mutex::default() }
    }

    /// The driver inside.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// What was seen since the last call that must not be.
    pub fn take_observations(&self) -> Vec<String> {
        std::mem::take(&mut self.books.lock().observations)
    }

    /// The chunk and the range in it behind each piece of a range of addresses; none when a byte is not accessible.
    pub fn backing(&self, addr: DeviceAddr, bytes: u64) -> Option<Vec<(ChunkHandle, Range<u64>)>> {
        let parts = self.books.lock().backing(addr.0, bytes)?;
        Some(parts.into_iter().map(|(chunk, range, _)| (chunk, range)).collect())
    }

    /// The chunk, and the offset in it, behind an address; none when it is not accessible.
    pub fn memory_at(&self, addr: DeviceAddr) -> Option<(ChunkHandle, u64)> {
        let parts = self.backing(addr, 1)?;
        parts.first().map(|(chunk, range)| (*chunk, range.start))
    }
}

impl<D: Device> Witness<D> {
    /// Orders what is queued on `later` from now on behind what is queued on `earlier`, as a caller would.
    pub fn order(&self, earlier: StreamId, later: StreamId) -> DriverResult<()> {
        let event = self.event_create()?;
        self.event_record(event, earlier)?;
        self.stream_wait(later, event)?;
        self.event_destroy(event)
    }
}

impl<D: MemoryDriver> MemoryDriver for Witness<D> {
    fn granularity(&self) -> u64 {
        self.inner.granularity()
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
        self.inner.create(bytes)
    }

    fn release(&self, chunk: ChunkHandle) -> DriverResult<()> {
        let mut books = self.books.lock();
        self.inner.release(chunk)?;
        books.expect_over("release", |_| true, chunk);
        books.uses.remove(&chunk);
        Ok(())
    }

    fn map(&self, addr: DeviceAddr, bytes: u64, chunk: ChunkHandle) -> DriverResult<()> {
        let mut books = self.books.lock();
        self.inner.map(addr, bytes, chunk)?;
        books.mappings.insert(addr.0, Mapped { bytes, chunk, accessible: false });
        Ok(())
    }

    fn set_access(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        let mut books = self.books.lock();
        self.inner.set_access(addr, bytes)?;
        for (_, mapped) in books.mappings.range_mut(addr.0..addr.0 + bytes) {
            mapped.accessible = true;
        }
        Ok(())
    }

    fn unmap(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        let mut books = self.books.lock();
        self.inner.unmap(addr, bytes)?;
        let range = addr.0..addr.0 + bytes;
        let gone: Vec<(u64, ChunkHandle)> =
            books.mappings.range(range.clone()).map(|(at, mapped)| (*at, mapped.chunk)).collect();
        for (at, chunk) in gone {
            books.expect_over("unmap", |earlier| range.contains(&earlier.addr), chunk);
            books.mappings.remove(&at);
        }
        Ok(())
    }
}

impl<D: StreamDriver> StreamDriver for Witness<D> {
    fn check_stream(&self, stream: StreamId) -> DriverResult<()> {
        self.inner.check_stream(stream)
    }

    fn is_capturing(&self, stream: StreamId) -> bool {
        self.inner.is_capturing(stream)
    }

    fn event_create(&self) -> DriverResult<EventHandle> {
        self.inner.event_create()
    }

    fn event_destroy(&self, event: EventHandle) -> DriverResult<()> {
        let mut books = self.books.lock();
        self.inner.event_destroy(event)?;
        books.events.remove(&event);
        Ok(())
    }

    fn event_record(&self, event: EventHandle, stream: StreamId) -> DriverResult<()> {
        let mut books = self.books.lock();
        self.inner.event_record(event, stream)?;
        let clock = books.now(stream).clone();
        books.events.insert(event, clock);
        Ok(())
    }

    fn event_query(&self, event: EventHandle) -> DriverResult<bool> {
        let mut books = self.books.lock();
        let over = self.inner.event_query(event)?;
        if over {
            let clock = books.events.get(&event).cloned().unwrap_or_default();
            books.host.join(&clock);
        }
        Ok(over)
    }

    fn event_synchronize(&self, event: EventHandle) -> DriverResult<()> {
        let clock = self.books.lock().events.get(&event).cloned().unwrap_or_default();
        self.inner.event_synchronize(event)?;
        self.books.lock().host.join(&clock);
        Ok(())
    }

    fn stream_wait(&self, stream: StreamId, event: EventHandle) -> DriverResult<()> {
        let mut books = self.books.lock();
        self.inner.stream_wait(stream, event)?;
        let clock = books.events.get(&event).cloned().unwrap_or_default();
        books.now(stream).join(&clock);
        Ok(())
    }
}

impl<D: WorkDriver> WorkDriver for Witness<D> {
    fn create_stream(&self) -> DriverResult<StreamId> {
        self.inner.create_stream()
    }

    fn destroy_stream(&self, stream: StreamId) -> DriverResult<()> {
        self.inner.destroy_stream(stream)?;
        let mut books = self.books.lock();
        let clock = books.now(stream).clone();
        books.host.join(&clock);
        Ok(())
    }

    fn fill(&self, stream: StreamId, addr: DeviceAddr, bytes: u64, seed: u64) -> DriverResult<()> {
        let mut books = self.books.lock();
        self.inner.fill(stream, addr, bytes, seed)?;
        books.submit(stream, addr, bytes, Kind::Write);
        Ok(())
    }

    fn verify(&self, stream: StreamId, addr: DeviceAddr, bytes: u64, seed: u64) -> DriverResult<()> {
        let mut books = self.books.lock();
        self.inner.verify(stream, addr, bytes, seed)?;
        books.submit(stream, addr, bytes, Kind::Read);
        Ok(())
    }

    fn copy(&self, stream: StreamId, target: DeviceAddr, source: DeviceAddr, bytes: u64) -> DriverResult<()> {
        let mut books = self.books.lock();
        self.inner.copy(stream, target, source, bytes)?;
        books.submit(stream, source, bytes, Kind::Read);
        books.submit(stream, target, bytes, Kind::Write);
        Ok(())
    }

    fn delay(&self, stream: StreamId, duration: Duration) -> DriverResult<()> {
        self.inner.delay(stream, duration)
    }

    fn synchronize(&self, stream: StreamId) -> DriverResult<()> {
        let clock = self.books.lock().now(stream).clone();
        self.inner.synchronize(stream)?;
        self.books.lock().host.join(&clock);
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
    fn unordered_uses_are_seen_though_they_come_out_well() {
        let (driver, addr, streams) = two_streams_on_one_page();
        driver.fill(streams[1], addr.offset(512), 512, 1).unwrap();
        assert!(driver.take_observations().is_empty(), "other bytes");
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
