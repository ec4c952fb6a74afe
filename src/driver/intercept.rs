//! A driver around another one, with a hook that runs around every call.
//!
//! What is public here is so with the feature `testing`; the allocator itself counts its calls by it.
//!
//! This is the only place of this crate that passes the four driver traits on call by call. What is done around a call is a
//! [`Hook`]: [`CallCounter`](super::CallCounter) counts calls, [`Faults`](super::Faults) makes them fail or be late.
//!
//! Only calls that can fail and that the slow path makes go through the hook, and `identify` through one of its own. The others are
//! passed on as they are: `granularity`, `is_capturing`, `take_mismatches`, and holding streams.
//!
//! Threads: as the inner driver and the hook allow. Cost: the hook's.

use super::{
    CheckedDriver, ChunkHandle, DriverCall, DriverResult, EventHandle, HostMemory, MemoryDriver, MemoryInfo,
    StreamDriver, StreamIdentity,
};
#[cfg(feature = "testing")]
use super::{HoldStreams, Mismatch, WorkDriver};
use crate::sync::Arc;
use crate::units::{DeviceAddr, StreamId};
use std::os::fd::{BorrowedFd, OwnedFd};
#[cfg(feature = "testing")]
use std::time::Duration;

/// The actions of an [`Intercepted`] driver around each call. With the feature `testing`.
pub trait Hook: Send + Sync + 'static {
    /// Does the call by calling `run`, or fails it instead; returns what the caller gets.
    ///
    /// # Errors
    /// That of `run`, or one that the hook makes up.
    fn around<T>(&self, call: DriverCall, run: impl FnOnce() -> DriverResult<T>) -> DriverResult<T>;

    /// As [`around`](Self::around), for the question which stream a handle stands for: it is asked at most calls of the allocator,
    /// so that those who count calls leave it alone.
    ///
    /// # Errors
    /// As of [`around`](Self::around).
    fn identify(&self, run: impl FnOnce() -> DriverResult<StreamIdentity>) -> DriverResult<StreamIdentity> {
        run()
    }
}

/// A driver that passes every call on to `D`, through a hook. With the feature `testing`.
#[derive(Debug)]
pub struct Intercepted<D, H> {
    inner: Arc<D>,
    hook: H,
}

impl<D, H> Intercepted<D, H> {
    /// Wraps `inner`.
    pub const fn with_hook(inner: Arc<D>, hook: H) -> Self {
        Self { inner, hook }
    }

    /// Returns the driver inside. Calls made to it directly do not go through the hook.
    pub const fn inner(&self) -> &Arc<D> {
        &self.inner
    }

    /// Returns the hook.
    pub const fn hook(&self) -> &H {
        &self.hook
    }
}

impl<D, H: Hook> Intercepted<D, H> {
    #[inline]
    fn call<T>(&self, call: DriverCall, run: impl FnOnce(&D) -> DriverResult<T>) -> DriverResult<T> {
        self.hook.around(call, || run(&self.inner))
    }
}

// SAFETY: each call goes to a checked driver as it came.
unsafe impl<D: CheckedDriver, H: Hook> CheckedDriver for Intercepted<D, H> {}

impl<D: MemoryDriver, H: Hook> MemoryDriver for Intercepted<D, H> {
    fn granularity(&self) -> u64 {
        self.inner.granularity()
    }

    fn ordinal(&self) -> u32 {
        self.inner.ordinal()
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        self.inner.uuid()
    }

    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        self.call(DriverCall::MemoryInfo, D::memory_info)
    }

    fn reserve(&self, bytes: u64, alignment: u64) -> DriverResult<DeviceAddr> {
        self.call(DriverCall::Reserve, |inner| inner.reserve(bytes, alignment))
    }

    fn address_free(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.call(DriverCall::AddressFree, |inner| inner.address_free(addr, bytes))
    }

    fn create(&self, bytes: u64) -> DriverResult<ChunkHandle> {
        self.call(DriverCall::Create, |inner| inner.create(bytes))
    }

    fn release(&self, chunk: ChunkHandle) -> DriverResult<()> {
        self.call(DriverCall::Release, |inner| inner.release(chunk))
    }

    fn map(&self, addr: DeviceAddr, bytes: u64, chunk: ChunkHandle) -> DriverResult<()> {
        self.call(DriverCall::Map, |inner| inner.map(addr, bytes, chunk))
    }

    fn set_access(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.call(DriverCall::SetAccess, |inner| inner.set_access(addr, bytes))
    }

    fn unmap(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.call(DriverCall::Unmap, |inner| inner.unmap(addr, bytes))
    }

    fn export(&self, chunk: ChunkHandle) -> DriverResult<OwnedFd> {
        self.call(DriverCall::Export, |inner| inner.export(chunk))
    }

    fn import(&self, descriptor: BorrowedFd<'_>, bytes: u64) -> DriverResult<ChunkHandle> {
        self.call(DriverCall::Import, |inner| inner.import(descriptor, bytes))
    }

    fn export_dma_buf(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<OwnedFd> {
        self.call(DriverCall::ExportDmaBuf, |inner| inner.export_dma_buf(addr, bytes))
    }

    fn host_alloc(&self, bytes: u64) -> DriverResult<HostMemory> {
        self.call(DriverCall::HostAlloc, |inner| inner.host_alloc(bytes))
    }

    fn host_free(&self, memory: HostMemory) -> DriverResult<()> {
        self.call(DriverCall::HostFree, |inner| inner.host_free(memory))
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

impl<D: StreamDriver, H: Hook> StreamDriver for Intercepted<D, H> {
    fn check_stream(&self, stream: StreamId) -> DriverResult<()> {
        self.call(DriverCall::Stream, |inner| inner.check_stream(stream))
    }

    fn identify(&self, stream: StreamId) -> DriverResult<StreamIdentity> {
        self.hook.identify(|| self.inner.identify(stream))
    }

    #[inline]
    fn owns_default_stream(&self) -> bool {
        self.inner.owns_default_stream()
    }

    fn is_capturing(&self, stream: StreamId) -> bool {
        self.inner.is_capturing(stream)
    }

    fn event_create(&self) -> DriverResult<EventHandle> {
        self.call(DriverCall::EventCreate, D::event_create)
    }

    fn event_destroy(&self, event: EventHandle) -> DriverResult<()> {
        self.call(DriverCall::EventDestroy, |inner| inner.event_destroy(event))
    }

    fn event_record(&self, event: EventHandle, stream: StreamId) -> DriverResult<()> {
        self.call(DriverCall::EventRecord, |inner| inner.event_record(event, stream))
    }

    fn event_query(&self, event: EventHandle) -> DriverResult<bool> {
        self.call(DriverCall::EventQuery, |inner| inner.event_query(event))
    }

    fn event_synchronize(&self, event: EventHandle) -> DriverResult<()> {
        self.call(DriverCall::EventSynchronize, |inner| inner.event_synchronize(event))
    }

    fn stream_wait(&self, stream: StreamId, event: EventHandle) -> DriverResult<()> {
        self.call(DriverCall::StreamWait, |inner| inner.stream_wait(stream, event))
    }

    fn synchronize_device(&self) -> DriverResult<()> {
        self.call(DriverCall::Synchronize, D::synchronize_device)
    }

    fn create_copy_stream(&self) -> DriverResult<StreamId> {
        self.call(DriverCall::Stream, D::create_copy_stream)
    }

    fn destroy_copy_stream(&self, stream: StreamId) -> DriverResult<()> {
        self.call(DriverCall::Stream, |inner| inner.destroy_copy_stream(stream))
    }

    fn copy_out(
        &self,
        stream: StreamId,
        target: HostMemory,
        offset: u64,
        source: DeviceAddr,
        bytes: u64,
    ) -> DriverResult<()> {
        self.call(DriverCall::CopyOut, |inner| inner.copy_out(stream, target, offset, source, bytes))
    }

    fn copy_in(
        &self,
        stream: StreamId,
        target: DeviceAddr,
        source: HostMemory,
        offset: u64,
        bytes: u64,
    ) -> DriverResult<()> {
        self.call(DriverCall::CopyIn, |inner| inner.copy_in(stream, target, source, offset, bytes))
    }

    fn clear(&self, stream: StreamId, target: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.call(DriverCall::Clear, |inner| inner.clear(stream, target, bytes))
    }
}

#[cfg(feature = "testing")]
impl<D: WorkDriver, H: Hook> WorkDriver for Intercepted<D, H> {
    fn create_stream(&self) -> DriverResult<StreamId> {
        self.call(DriverCall::Stream, D::create_stream)
    }

    fn destroy_stream(&self, stream: StreamId) -> DriverResult<()> {
        self.call(DriverCall::Stream, |inner| inner.destroy_stream(stream))
    }

    fn abandon_stream(&self, stream: StreamId) -> DriverResult<()> {
        self.call(DriverCall::Stream, |inner| inner.abandon_stream(stream))
    }

    fn fill(&self, stream: StreamId, addr: DeviceAddr, bytes: u64, seed: u64) -> DriverResult<()> {
        self.call(DriverCall::Work, |inner| inner.fill(stream, addr, bytes, seed))
    }

    fn verify(&self, stream: StreamId, addr: DeviceAddr, bytes: u64, seed: u64) -> DriverResult<()> {
        self.call(DriverCall::Work, |inner| inner.verify(stream, addr, bytes, seed))
    }

    fn copy(&self, stream: StreamId, target: DeviceAddr, source: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.call(DriverCall::Work, |inner| inner.copy(stream, target, source, bytes))
    }

    fn delay(&self, stream: StreamId, duration: Duration) -> DriverResult<()> {
        self.call(DriverCall::Work, |inner| inner.delay(stream, duration))
    }

    fn synchronize(&self, stream: StreamId) -> DriverResult<()> {
        self.call(DriverCall::Stream, |inner| inner.synchronize(stream))
    }

    fn take_mismatches(&self) -> Vec<Mismatch> {
        self.inner.take_mismatches()
    }
}

#[cfg(feature = "testing")]
impl<D: HoldStreams, H: Hook> HoldStreams for Intercepted<D, H> {
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
    use crate::driver::{DriverCalls, DriverError, DriverErrorKind, HostConfig, HostDriver};
    use crate::sync::unseen::Mutex;
    use std::os::fd::AsFd;

    const PAGE: u64 = 64 << 10;
    /// A seed that nothing was filled with.
    const WRONG_SEED: u64 = 2;

    /// Notes every call and, when `fails`, fails it instead of doing it.
    struct Notes {
        fails: bool,
        calls: Mutex<Vec<DriverCall>>,
    }

    impl Hook for Notes {
        fn around<T>(&self, call: DriverCall, run: impl FnOnce() -> DriverResult<T>) -> DriverResult<T> {
            self.calls.lock().push(call);
            if self.fails { Err(DriverError::new(call, DriverErrorKind::Other, "")) } else { run() }
        }
    }

    type Subject = Intercepted<HostDriver, Notes>;

    fn subject(fails: bool) -> Subject {
        let host = HostDriver::new(HostConfig { granularity: PAGE, ..HostConfig::default() }).unwrap();
        Intercepted::with_hook(Arc::new(host), Notes { fails, calls: Mutex::default() })
    }

    /// The calls made to a subject.
    struct Script<'a> {
        driver: &'a Subject,
        kinds: Vec<DriverCall>,
    }

    impl Script<'_> {
        /// Notes that a call of this kind gave `result`; returns its value, or `or` in place of one.
        fn call<T>(&mut self, kind: DriverCall, result: DriverResult<T>, or: T) -> T {
            assert_eq!(result.is_err(), self.driver.hook.fails, "{kind:?}");
            self.kinds.push(kind);
            result.unwrap_or(or)
        }
    }

    /// Makes every call that can fail, in an order that the contract allows; returns the kinds of calls.
    fn make_every_call(driver: &Subject) -> Vec<DriverCall> {
        use DriverCall as C;
        let mut script = Script { driver, kinds: Vec::new() };
        script.call(C::MemoryInfo, driver.memory_info(), MemoryInfo { free: 0, total: 0 });
        let addr = script.call(C::Reserve, driver.reserve(4 * PAGE, PAGE), DeviceAddr::default());
        let next = addr.offset(PAGE);
        let chunk = script.call(C::Create, driver.create(2 * PAGE), ChunkHandle(0));
        script.call(C::Map, driver.map(addr, 2 * PAGE, chunk), ());
        script.call(C::SetAccess, driver.set_access(addr, 2 * PAGE), ());
        let nothing = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let dma_buf = script.call(C::ExportDmaBuf, driver.export_dma_buf(addr, 2 * PAGE), nothing.try_clone().unwrap());
        drop(dma_buf);
        let exported = script.call(C::Export, driver.export(chunk), nothing);
        let imported = script.call(C::Import, driver.import(exported.as_fd(), 2 * PAGE), chunk);
        script.call(C::Release, driver.release(imported), ());
        let stream = script.call(C::Stream, driver.create_stream(), StreamId::DEFAULT);
        script.call(C::Stream, driver.check_stream(stream), ());
        script.call(C::Work, driver.fill(stream, addr, PAGE, 1), ());
        script.call(C::Work, driver.copy(stream, next, addr, PAGE), ());
        script.call(C::Work, driver.verify(stream, next, PAGE, 1), ());
        script.call(C::Work, driver.verify(stream, next, PAGE, WRONG_SEED), ());
        script.call(C::Work, driver.delay(stream, Duration::ZERO), ());
        let event = script.call(C::EventCreate, driver.event_create(), EventHandle(0));
        script.call(C::EventRecord, driver.event_record(event, stream), ());
        script.call(C::StreamWait, driver.stream_wait(StreamId::DEFAULT, event), ());
        script.call(C::EventQuery, driver.event_query(event), false);
        script.call(C::EventSynchronize, driver.event_synchronize(event), ());
        script.call(C::EventDestroy, driver.event_destroy(event), ());
        script.call(C::Synchronize, driver.synchronize_device(), ());
        script.call(C::Stream, driver.synchronize(stream), ());
        script.call(C::Stream, driver.destroy_stream(stream), ());
        let other = script.call(C::Stream, driver.create_stream(), StreamId::DEFAULT);
        script.call(C::Stream, driver.abandon_stream(other), ());
        let lane = script.call(C::Stream, driver.create_copy_stream(), StreamId::DEFAULT);
        let memory = script.call(C::HostAlloc, driver.host_alloc(PAGE), HostMemory(0));
        script.call(C::CopyOut, driver.copy_out(lane, memory, 0, addr, PAGE), ());
        script.call(C::CopyIn, driver.copy_in(lane, next, memory, 0, PAGE), ());
        script.call(C::Clear, driver.clear(lane, next, PAGE), ());
        script.call(C::Stream, driver.destroy_copy_stream(lane), ());
        script.call(C::HostFree, driver.host_free(memory), ());
        script.call(C::Unmap, driver.unmap(addr, 2 * PAGE), ());
        script.call(C::Release, driver.release(chunk), ());
        script.call(C::AddressFree, driver.address_free(addr, 4 * PAGE), ());
        script.kinds
    }

    #[test]
    fn every_call_goes_through_the_hook_and_on_to_the_same_call() {
        let driver = subject(false);
        let made = make_every_call(&driver);
        assert_eq!(*driver.hook.calls.lock(), made);
        for call in DriverCall::ALL {
            let count = made.iter().filter(|&&kind| kind == call).count();
            assert_eq!(driver.inner.calls()[call], count as u64, "{call:?}");
            assert_eq!(count == 0, call == DriverCall::Open, "{call:?}: only opening is not a method");
        }
        assert!(driver.inner.usage().is_empty());
        assert_eq!(driver.inner.take_violations(), []);
        let found: Vec<_> = driver.take_mismatches().iter().map(|mismatch| mismatch.seed).collect();
        assert_eq!(found, [WRONG_SEED], "the other check finds what was filled and copied");
    }

    #[test]
    fn a_call_that_the_hook_fails_does_not_reach_the_inner_driver() {
        let driver = subject(true);
        let made = make_every_call(&driver);
        assert_eq!(*driver.hook.calls.lock(), made);
        assert_eq!(driver.inner.calls(), DriverCalls::default());
    }

    #[test]
    fn what_cannot_fail_does_not_ask_the_hook() {
        let driver = subject(true);
        driver.inner.begin_capture(StreamId::DEFAULT);
        assert_eq!((driver.granularity(), driver.is_capturing(StreamId::DEFAULT)), (PAGE, true));
        driver.inner.end_capture(StreamId::DEFAULT);
        driver.hold(StreamId::DEFAULT);
        driver.inner.delay(StreamId::DEFAULT, Duration::ZERO).unwrap();
        driver.complete(StreamId::DEFAULT);
        driver.resume(StreamId::DEFAULT);
        driver.inner.synchronize(StreamId::DEFAULT).unwrap();
        assert_eq!(driver.host_waits(), driver.inner.host_waits());
        assert_eq!(driver.take_mismatches(), []);
        assert_eq!(*driver.hook.calls.lock(), []);
    }
}
