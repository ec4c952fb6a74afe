//! Host driver: a simulated device with real memory on the CPU, so that tests check bytes.
//!
//! With the feature `testing`.
//!
//! Chunks are ranges of one sparse file in memory, reservations are address space without access, mapping is `mmap` of
//! the file over it, access is `mprotect`: aliases and remapping are real. Streams are threads that run their queue
//! later: a block that is used again too early is overwritten under the earlier user, and `verify` sees it.
//!
//! A broken rule of the driver contract is an `InvalidValue` error without effect, and is also kept as a [`Violation`]
//! until [`take_violations`](HostDriver::take_violations): a caller that ignores errors is found out all the same. That
//! includes an unmap under queued or running work: it is refused, so that no stream ever faults. Capacity, other
//! processes' memory and the limit of mappings are settings; the kernel's own limits are reported as `OutOfMemory`. A chunk
//! that is exported moves to a file of its own, which other processes can map.
//!
//! Threads: any, plus one per stream. Locks: queues, then `running`, then books; none but the second is held while work runs.
//! Cost: a system call or two each; work is limited by the memory (the first touch of a page is by far the slowest).

mod books;
mod bytes;
mod pages;
mod pinned;
mod queues;
mod shared_files;
mod sharing;
mod streams;
mod task;

pub use shared_files::SharedChunk;

use super::handles::{Handles, NoStream, is_default, is_of_thread};
use super::ledger::{Ledger, Refusal};
use super::{
    CheckedDriver, ChunkHandle, DriverCall, DriverCalls, DriverError, DriverErrorKind, DriverResult, DriverUsage,
    EventHandle, HostMemory, MemoryDriver, MemoryInfo,
};
use crate::sync::Arc;
use crate::sync::unseen::{Mutex, MutexGuard, RwLock};
use crate::units::{ByteSize, DeviceAddr, GIB, MIB, StreamId};
use books::{Books, SharedBooks, Work};
use pages::Pages;
use queues::{NoEvent, PushError, Queues};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::os::fd::{BorrowedFd, OwnedFd};
use task::Task;

/// A simulated device with real memory behind it. See the module documentation.
///
/// An isolated mapping costs two of those that the kernel grants a process (65,530 by default). `map` is refused with
/// `OutOfMemory` while there is still some room: at the limit proper, not even an unmap succeeds, and the process's own
/// heap cannot grow.
///
/// Dropping it discards queued work, ends its threads and frees all memory and addresses.
#[derive(Debug)]
pub struct HostDriver {
    granularity: u64,
    kernel_limit: usize,
    queues: Arc<Queues<Work>>,
    books: Arc<SharedBooks>,
}

/// Settings of a [`HostDriver`]. Fields may be added in any release: write `..HostConfig::default()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostConfig {
    /// Physical bytes of the device. They take memory of the host only once work writes to them.
    pub capacity_bytes: u64,
    /// The page size in bytes, a power of two and a multiple of the host's page size.
    pub granularity: u64,
    /// Physical bytes that other processes hold at the start; see [`HostDriver::set_external`].
    pub external_bytes: u64,
    /// The most mappings that may have access at a time. The kernel's limit is lower unless it was raised; see
    /// [`HostDriver`].
    pub max_mappings: usize,
}

impl Default for HostConfig {
    fn default() -> Self {
        Self { capacity_bytes: GIB, granularity: 2 * MIB, external_bytes: 0, max_mappings: 520_000 }
    }
}

/// A rule of the driver contract that a caller broke; the call was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// The call that was refused.
    pub call: DriverCall,
    /// The rule, and where it was broken.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call.name(), self.text)
    }
}

impl HostDriver {
    /// Creates a device with nothing on it and starts its default stream.
    ///
    /// # Errors
    /// When the kernel refuses a file in memory or a thread, and `InvalidValue` when the granularity is not a power of
    /// two and a multiple of the host's page size.
    pub fn new(config: HostConfig) -> DriverResult<Self> {
        let page = u64::try_from(rustix::param::page_size()).unwrap_or(u64::MAX);
        if !config.granularity.is_power_of_two() || config.granularity < page {
            let text = format!("{} is no multiple of the host's page, {page} bytes", ByteSize(config.granularity));
            return Err(DriverError::new(DriverCall::Open, DriverErrorKind::InvalidValue, text));
        }
        let books = Arc::new(SharedBooks {
            books: Mutex::new(Books {
                ledger: Ledger::new(
                    config.granularity,
                    config.capacity_bytes,
                    config.external_bytes,
                    config.max_mappings,
                ),
                pages: Pages::new().map_err(|errno| kernel(DriverCall::Open, errno))?,
                host_memory: HashMap::new(),
                shown: Vec::new(),
                in_flight: HashMap::new(),
                handles: Handles::new(),
                capturing: HashSet::new(),
                captured: HashMap::new(),
                next_ticket: 0,
                mismatches: Vec::new(),
                violations: Vec::new(),
                calls: DriverCalls::default(),
            }),
            running: RwLock::new(()),
        });
        let queues = Arc::new(Queues::new());
        let kernel_limit = pages::mapping_limit();
        let driver = Self { granularity: config.granularity, kernel_limit, queues, books };
        driver.new_lane(DriverCall::Open)?;
        Ok(driver)
    }

    /// Sets the number of bytes of the device that other processes hold. If they leave less than is held, nothing is
    /// free.
    pub fn set_external(&self, bytes: u64) {
        self.books.lock().ledger.set_external(bytes);
    }

    /// Starts a capture of `stream`: until it ends, making the stream wait is refused, and so is querying or waiting for
    /// an event that is recorded on it. Work runs as if the graph were launched at once; events recorded before may
    /// still be queried and waited for.
    ///
    /// # Panics
    /// This method and the others that control a stream panic when there is no such stream.
    pub fn begin_capture(&self, stream: StreamId) {
        let lane = self.existing(stream);
        self.books.lock().capturing.insert(lane);
    }

    /// Ends the capture of `stream`.
    pub fn end_capture(&self, stream: StreamId) {
        let lane = self.existing(stream);
        self.books.lock().capturing.remove(&lane);
    }

    /// Returns the calls made so far, failed ones included.
    #[must_use]
    pub fn calls(&self) -> DriverCalls {
        self.books.lock().calls
    }

    /// Returns what is alive on the device.
    #[must_use]
    pub fn usage(&self) -> DriverUsage {
        let events = self.queues.event_count();
        let books = self.books.lock();
        DriverUsage { events, streams: books.handles.created(), ..books.ledger.usage() }
    }

    /// Returns the rules that callers have broken since the last call.
    #[must_use]
    pub fn take_violations(&self) -> Vec<Violation> {
        std::mem::take(&mut self.books.lock().violations)
    }

    fn new_lane(&self, call: DriverCall) -> DriverResult<StreamId> {
        self.queues.create_stream(Arc::clone(&self.books)).map_err(|error| no_thread(call, &error))
    }

    /// Locks the books for one call, which is counted.
    fn call(&self, call: DriverCall) -> MutexGuard<'_, Books> {
        let mut books = self.books.lock();
        books.calls[call] += 1;
        books
    }

    /// Counts one call that the books have no other part in.
    fn count(&self, call: DriverCall) {
        self.books.lock().calls[call] += 1;
    }

    fn work(&self, stream: StreamId, task: Task) -> DriverResult<()> {
        self.queue(DriverCall::Work, stream, |_| Ok(task))
    }

    fn queue(
        &self,
        call: DriverCall,
        stream: StreamId,
        task: impl FnOnce(&mut Books) -> DriverResult<Task>,
    ) -> DriverResult<()> {
        self.count(call);
        let lane = self.lane(call, stream)?;
        let admit = || {
            let books = &mut *self.books.lock();
            let task = task(books)?;
            books.admit(call, lane, task)
        };
        self.queues.work(lane, admit).map_err(|error| match error {
            PushError::NoStream => no_stream(call, stream),
            PushError::Refused(error) => error,
        })
    }

    /// Returns the lane of a stream, that of a thread's own stream from its first use. The handle of a destroyed stream is
    /// written down as a violation.
    fn lane(&self, call: DriverCall, stream: StreamId) -> DriverResult<StreamId> {
        let found = self.books.lock().handles.lane(stream);
        if let Ok(lane) = found
            && is_of_thread(lane)
        {
            self.queues.add_stream(lane, &self.books).map_err(|error| no_thread(call, &error))?;
        }
        let mut books = self.books.lock();
        match found {
            Ok(lane) => Ok(lane),
            Err(NoStream::Unknown) => Err(no_stream(call, stream)),
            Err(NoStream::Destroyed) => {
                let text = format!("{stream:?} has been destroyed");
                books.violations.push(Violation { call, text: text.clone() });
                Err(DriverError::new(call, DriverErrorKind::InvalidHandle, text))
            }
        }
    }

    fn destroy(&self, stream: StreamId) -> DriverResult<StreamId> {
        if is_default(stream) {
            let text = "a default stream cannot be destroyed";
            return Err(DriverError::new(DriverCall::Stream, DriverErrorKind::InvalidHandle, text));
        }
        let lane = self.lane(DriverCall::Stream, stream)?;
        let _ = self.books.lock().handles.destroy(stream);
        Ok(lane)
    }

    fn existing(&self, stream: StreamId) -> StreamId {
        self.lane(DriverCall::Stream, stream).unwrap_or_else(|_| panic!("there is no {stream:?}"))
    }

    /// An event of a capture is an error, and a broken rule while the capture lasts, which would be lost.
    fn not_captured(&self, call: DriverCall, event: EventHandle) -> DriverResult<()> {
        let mut books = self.books.lock();
        let Some(lane) = books.captured.get(&event).copied() else { return Ok(()) };
        let text = format!("{event:?} was recorded in a capture of {lane:?}");
        if books.capturing.contains(&lane) {
            books.violations.push(Violation { call, text: text.clone() });
        }
        Err(DriverError::new(call, DriverErrorKind::Capturing, text))
    }

    fn no_event(&self, call: DriverCall, event: EventHandle) -> DriverError {
        let text = format!("{event:?} was destroyed or is not an event of this driver");
        self.books.lock().violations.push(Violation { call, text: text.clone() });
        DriverError::new(call, DriverErrorKind::InvalidHandle, text)
    }

    fn not_capturing(&self, call: DriverCall, lane: StreamId) -> DriverResult<()> {
        let mut books = self.books.lock();
        let answer = match books.capturing.contains(&lane) {
            true => Err(Refusal::Misuse(format!("{lane:?} is being captured"))),
            false => Ok(()),
        };
        books.enforce(call, answer)
    }

    fn event_error(
        &self,
        call: DriverCall,
        stream: StreamId,
        event: EventHandle,
    ) -> impl FnOnce(PushError<NoEvent>) -> DriverError {
        move |error| match error {
            PushError::NoStream => no_stream(call, stream),
            PushError::Refused(NoEvent) => self.no_event(call, event),
        }
    }
}

impl Drop for HostDriver {
    fn drop(&mut self) {
        // The threads end before the memory that their work touches goes, with the books.
        self.queues.close();
    }
}

impl MemoryDriver for HostDriver {
    fn granularity(&self) -> u64 {
        self.granularity
    }

    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        Ok(self.call(DriverCall::MemoryInfo).ledger.memory_info())
    }

    fn reserve(&self, bytes: u64, alignment: u64) -> DriverResult<DeviceAddr> {
        const CALL: DriverCall = DriverCall::Reserve;
        let mut books = self.call(CALL);
        if let Err(Refusal::Misuse(text) | Refusal::Shortage(text)) = books.ledger.check_reserve(bytes, alignment) {
            return Err(DriverError::new(CALL, DriverErrorKind::InvalidValue, text));
        }
        let addr = books.pages.reserve(bytes, alignment).map_err(|errno| kernel(CALL, errno))?;
        books.ledger.reserve(addr, bytes);
        Ok(DeviceAddr(addr))
    }

    fn address_free(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        let mut books = self.call(DriverCall::AddressFree);
        let answer = books.ledger.check_address_free(addr, bytes);
        books.enforce(DriverCall::AddressFree, answer)?;
        books.ledger.address_free(addr);
        books.pages.unreserve(addr.0, bytes);
        Ok(())
    }

    fn create(&self, bytes: u64) -> DriverResult<ChunkHandle> {
        const CALL: DriverCall = DriverCall::Create;
        let mut books = self.call(CALL);
        let answer = books.ledger.check_create(bytes);
        books.enforce(CALL, answer)?;
        let offset = books.pages.create(bytes).map_err(|errno| kernel(CALL, errno))?;
        Ok(books.ledger.create(bytes, offset))
    }

    fn release(&self, chunk: ChunkHandle) -> DriverResult<()> {
        let mut books = self.call(DriverCall::Release);
        let answer = books.ledger.release(chunk);
        if let Some(freed) = books.enforce(DriverCall::Release, answer)? {
            books.pages.free(freed.tag, freed.bytes);
        }
        Ok(())
    }

    fn map(&self, addr: DeviceAddr, bytes: u64, chunk: ChunkHandle) -> DriverResult<()> {
        const CALL: DriverCall = DriverCall::Map;
        let mut books = self.call(CALL);
        let answer = books.ledger.check_map(addr, bytes, chunk);
        let offset = books.enforce(CALL, answer)?;
        if books.ledger.mapping_count() >= self.kernel_limit {
            let text = format!("{} mappings are what the host's kernel has room for", self.kernel_limit);
            return Err(DriverError::new(CALL, DriverErrorKind::OutOfMemory, text));
        }
        books.pages.map(addr.0, bytes, offset).map_err(|errno| kernel(CALL, errno))?;
        books.ledger.map(addr, bytes, chunk);
        Ok(())
    }

    fn set_access(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        const CALL: DriverCall = DriverCall::SetAccess;
        let mut books = self.call(CALL);
        let answer = books.ledger.check_set_access(addr, bytes);
        books.enforce(CALL, answer)?;
        books.pages.allow(addr.0, bytes).map_err(|errno| kernel(CALL, errno))?;
        books.ledger.set_access(addr, bytes);
        Ok(())
    }

    fn unmap(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        const CALL: DriverCall = DriverCall::Unmap;
        let mut guard = self.call(CALL);
        let books = &mut *guard;
        let answer = books.ledger.check_unmap(addr, bytes).and_then(|_| books.check_idle(addr, bytes));
        books.enforce(CALL, answer)?;
        books.pages.unmap(addr.0, bytes).map_err(|errno| kernel(CALL, errno))?;
        books.ledger.unmap(addr, bytes, |freed| books.pages.free(freed.tag, freed.bytes));
        Ok(())
    }

    fn export(&self, chunk: ChunkHandle) -> DriverResult<OwnedFd> {
        self.export_labelled(chunk, "")
    }

    fn import(&self, descriptor: BorrowedFd<'_>, bytes: u64) -> DriverResult<ChunkHandle> {
        self.import_chunk(descriptor, bytes)
    }

    fn export_dma_buf(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<OwnedFd> {
        self.export_mapping(addr, bytes)
    }

    fn host_alloc(&self, bytes: u64) -> DriverResult<HostMemory> {
        self.alloc_pinned(bytes)
    }

    fn host_free(&self, memory: HostMemory) -> DriverResult<()> {
        self.free_pinned(memory)
    }

    fn host_read(&self, memory: HostMemory, offset: u64, bytes: u64, read: &mut dyn FnMut(&[u8])) -> DriverResult<()> {
        self.read_pinned(memory, offset, bytes, read)
    }

    fn host_write(
        &self,
        memory: HostMemory,
        offset: u64,
        bytes: u64,
        write: &mut dyn FnMut(&mut [u8]),
    ) -> DriverResult<()> {
        self.write_pinned(memory, offset, bytes, write)
    }
}

// SAFETY: reservations hold nothing but device memory, and work is admitted where memory is mapped and stays so until it has run.
// Memory of the host is found by its name; what is shown is neither freed nor used by anything else meanwhile.
unsafe impl CheckedDriver for HostDriver {}

fn no_stream(call: DriverCall, stream: StreamId) -> DriverError {
    DriverError::new(call, DriverErrorKind::InvalidHandle, format!("there is no {stream:?}"))
}

fn no_thread(call: DriverCall, error: &std::io::Error) -> DriverError {
    DriverError::new(call, DriverErrorKind::OutOfMemory, format!("no thread: {error}"))
}

/// Translates an error of the kernel: no memory or mappings left, or an error that should not occur.
fn kernel(call: DriverCall, errno: Errno) -> DriverError {
    let kind = match errno {
        Errno::NOMEM | Errno::NOSPC | Errno::FBIG => DriverErrorKind::OutOfMemory,
        _ => DriverErrorKind::Other,
    };
    DriverError::new(call, kind, format!("the host's kernel says: {errno}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{HoldStreams, StreamDriver, WorkDriver};
    use crate::units::KIB;
    use std::time::Duration;
    use std::time::Instant;

    pub(super) const PAGE: u64 = 64 * KIB;
    pub(super) const MAIN: StreamId = StreamId::DEFAULT;

    pub(super) fn host() -> HostDriver {
        HostDriver::new(HostConfig { granularity: PAGE, ..HostConfig::default() }).unwrap()
    }

    pub(super) fn mapped(driver: &HostDriver) -> DeviceAddr {
        let addr = driver.reserve(PAGE, PAGE).unwrap();
        let chunk = driver.create(PAGE).unwrap();
        driver.map(addr, PAGE, chunk).unwrap();
        driver.set_access(addr, PAGE).unwrap();
        driver.release(chunk).unwrap();
        addr
    }

    #[test]
    fn pages_smaller_than_the_hosts_are_refused() {
        for granularity in [0, 512, 3 * PAGE] {
            let error = HostDriver::new(HostConfig { granularity, ..HostConfig::default() }).unwrap_err();
            assert_eq!((error.call, error.kind), (DriverCall::Open, DriverErrorKind::InvalidValue));
        }
    }

    #[test]
    fn the_hosts_memory_is_given_back_with_the_chunk() {
        let driver = host();
        let addr = mapped(&driver);
        assert_eq!(driver.books.lock().pages.backed(), 0);
        driver.fill(MAIN, addr, PAGE, 1).unwrap();
        driver.synchronize(MAIN).unwrap();
        assert_eq!(driver.books.lock().pages.backed(), PAGE);
        driver.unmap(addr, PAGE).unwrap();
        assert_eq!(driver.books.lock().pages.backed(), 0);
    }

    #[test]
    fn dropping_forgets_held_and_slow_work() {
        let start = Instant::now();
        for hold in [true, false] {
            let driver = host();
            let addr = mapped(&driver);
            let other = driver.create_stream().unwrap();
            if hold {
                driver.hold(MAIN);
            }
            driver.delay(MAIN, Duration::from_secs(3600)).unwrap();
            let event = driver.event_create().unwrap();
            driver.event_record(event, MAIN).unwrap();
            driver.stream_wait(other, event).unwrap();
            driver.fill(other, addr, PAGE, 1).unwrap();
        }
        assert!(start.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn refused_unmaps_leave_the_work_its_memory() {
        let driver = host();
        let addr = mapped(&driver);
        driver.hold(MAIN);
        driver.fill(MAIN, addr, PAGE, 1).unwrap();
        driver.unmap(addr, PAGE).unwrap_err();
        let text = driver.take_violations()[0].to_string();
        assert!(text.starts_with("cuMemUnmap: unmap of 65536 bytes at") && text.contains("while a fill in flight"));
        driver.synchronize(MAIN).unwrap();
        driver.unmap(addr, PAGE).unwrap();
        assert_eq!((driver.take_violations(), driver.host_waits()), (Vec::new(), 1));
    }

    #[test]
    fn events_of_a_capture_are_not_queried() {
        let driver = HostDriver::new(HostConfig::default()).unwrap();
        let (event, late) = (driver.event_create().unwrap(), driver.event_create().unwrap());
        driver.event_record(event, MAIN).unwrap();
        driver.begin_capture(MAIN);
        assert!(driver.is_capturing(MAIN));
        driver.event_synchronize(event).unwrap();
        driver.event_record(late, MAIN).unwrap();
        driver.event_query(late).unwrap_err();
        driver.stream_wait(MAIN, event).unwrap_err();
        let violations = driver.take_violations();
        assert!(violations.len() == 2 && violations[0].text.contains("recorded in a capture"), "{violations:?}");
        driver.end_capture(MAIN);
        driver.stream_wait(MAIN, event).unwrap();
        assert_eq!(driver.event_query(late).unwrap_err().kind, DriverErrorKind::Capturing);
        driver.event_record(late, MAIN).unwrap();
        driver.event_synchronize(late).unwrap();
        assert_eq!(driver.take_violations(), Vec::new());
    }
}
