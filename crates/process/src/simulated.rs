//! Several simulated devices of one process: a driver of tests that knows its number.
//!
//! A [`ModelDriver`] or [`HostDriver`] takes itself for the only device there is: two have streams of the same handles, and two
//! models the same addresses. Around one of them, this says of which device a stream is, and keeps the addresses of several
//! models apart.
//!
//! - I1  no two streams of two devices have the same handle, but for default streams, which stand for those of every device.
//! - I2  no two models have addresses in common.
//!
//! Threads: any. Cost: none beyond the inner driver's.

use crate::driver::DeviceDriver;
use gapless::driver::cuda::{Capture, LEGACY_STREAM, OpenError, PER_THREAD_STREAM};
use gapless::driver::{
    CheckedDriver, ChunkHandle, DriverCall, DriverError, DriverErrorKind, DriverResult, EventHandle, HoldStreams,
    HostConfig, HostDriver, HostMemory, MemoryDriver, MemoryInfo, Mismatch, ModelConfig, ModelDriver, StreamDriver,
    StreamIdentity, WorkDriver,
};
use gapless::{DeviceAddr, StreamId};
use parking_lot::Mutex;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

/// A simulated device of a process that has several.
#[derive(Debug)]
pub struct Simulated<D> {
    inner: D,
    ordinal: u32,
    /// The bytes that are added to the inner driver's addresses.
    shift: u64,
    peers: Mutex<Vec<u32>>,
}

impl Simulated<ModelDriver> {
    /// A model device of that number, with at most `1 << 42` bytes of addresses.
    ///
    /// # Panics
    /// As [`ModelDriver::new`], and for a number of 32 and more, which has no addresses.
    pub fn model(ordinal: u32, config: ModelConfig) -> Self {
        assert!(ordinal < 1 << (ADDRESS_BITS - MODEL_BITS), "there are no addresses for a model {ordinal}");
        let config = ModelConfig { address_bits: config.address_bits.min(MODEL_BITS), ..config };
        Self::around(ModelDriver::new(config), ordinal, u64::from(ordinal) << MODEL_BITS)
    }
}

impl Simulated<HostDriver> {
    /// A device of that number whose memory is the host's.
    ///
    /// # Errors
    /// As [`HostDriver::new`].
    pub fn host(ordinal: u32, config: HostConfig) -> DriverResult<Self> {
        Ok(Self::around(HostDriver::new(config)?, ordinal, 0))
    }
}

impl<D> Simulated<D> {
    fn around(inner: D, ordinal: u32, shift: u64) -> Self {
        Self { inner, ordinal, shift, peers: Mutex::default() }
    }

    /// The driver inside, which counts addresses and streams by itself.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    fn code(&self) -> u64 {
        u64::from(self.ordinal + 1) << STREAM_BITS
    }

    /// The handle of a stream as others see it.
    fn outer(&self, stream: StreamId) -> StreamId {
        if is_of_every_device(stream) { stream } else { renamed(stream.as_raw() | self.code()) }
    }

    /// The handle of a stream as the inner driver sees it; an error for one of another device.
    fn own(&self, stream: StreamId) -> DriverResult<StreamId> {
        match stream {
            LEGACY_STREAM => Ok(StreamId::DEFAULT),
            _ if is_of_every_device(stream) => Ok(stream),
            _ if stream.as_raw() >> STREAM_BITS == self.code() >> STREAM_BITS => {
                Ok(renamed(stream.as_raw() ^ self.code()))
            }
            _ => {
                let text = format!("{stream:?} is no stream of device {}", self.ordinal);
                Err(DriverError::new(DriverCall::Stream, DriverErrorKind::InvalidHandle, text))
            }
        }
    }

    fn inside(&self, addr: DeviceAddr) -> DeviceAddr {
        DeviceAddr(addr.0.wrapping_sub(self.shift))
    }

    fn outside(&self, addr: DeviceAddr) -> DeviceAddr {
        DeviceAddr(addr.0 + self.shift)
    }
}

/// The stream inside or outside that stands for one.
#[expect(unsafe_code, reason = "the driver inside looks at what it gets")]
fn renamed(handle: u64) -> StreamId {
    // SAFETY: it goes to a checked driver, or comes from one.
    unsafe { StreamId::from_raw(handle) }
}

/// Whether a handle says nothing of a device: a default stream's, and the key of a thread's.
fn is_of_every_device(stream: StreamId) -> bool {
    [StreamId::DEFAULT, LEGACY_STREAM, PER_THREAD_STREAM].contains(&stream) || stream.as_raw() >= THREAD_KEYS
}

impl<D: DeviceDriver> DeviceDriver for Simulated<D> {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn capture_of(&self, stream: StreamId) -> Option<Capture> {
        self.inner.capture_of(self.own(stream).ok()?)
    }

    fn device_of_stream(&self, stream: StreamId) -> DriverResult<u32> {
        if let Ok(own) = self.own(stream) {
            return self.inner.check_stream(own).map(|()| self.ordinal);
        }
        u32::try_from((stream.as_raw() >> STREAM_BITS).wrapping_sub(1))
            .or_else(|_| self.own(stream).map(|_| self.ordinal))
    }

    fn add_peer(&self, peer: u32) -> Result<(), OpenError> {
        let mut peers = self.peers.lock();
        if !peers.contains(&peer) {
            peers.push(peer);
        }
        Ok(())
    }

    fn remove_peer(&self, peer: u32) {
        self.peers.lock().retain(|other| *other != peer);
    }

    fn peers(&self) -> Vec<u32> {
        self.peers.lock().clone()
    }
}

#[expect(unsafe_code, reason = "the trait says what a driver does with wrong handles")]
// SAFETY: each call goes to a checked driver.
unsafe impl<D: CheckedDriver> CheckedDriver for Simulated<D> {}

impl<D: MemoryDriver> MemoryDriver for Simulated<D> {
    fn granularity(&self) -> u64 {
        self.inner.granularity()
    }

    fn ordinal(&self) -> u32 {
        self.ordinal
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        self.inner.uuid()
    }

    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        self.inner.memory_info()
    }

    fn reserve(&self, bytes: u64, alignment: u64) -> DriverResult<DeviceAddr> {
        self.inner.reserve(bytes, alignment).map(|addr| self.outside(addr))
    }

    fn address_free(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.inner.address_free(self.inside(addr), bytes)
    }

    fn create(&self, bytes: u64) -> DriverResult<ChunkHandle> {
        self.inner.create(bytes)
    }

    fn release(&self, chunk: ChunkHandle) -> DriverResult<()> {
        self.inner.release(chunk)
    }

    fn map(&self, addr: DeviceAddr, bytes: u64, chunk: ChunkHandle) -> DriverResult<()> {
        self.inner.map(self.inside(addr), bytes, chunk)
    }

    fn set_access(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.inner.set_access(self.inside(addr), bytes)
    }

    fn unmap(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.inner.unmap(self.inside(addr), bytes)
    }

    fn export(&self, chunk: ChunkHandle) -> DriverResult<OwnedFd> {
        self.inner.export(chunk)
    }

    fn import(&self, descriptor: BorrowedFd<'_>, bytes: u64) -> DriverResult<ChunkHandle> {
        self.inner.import(descriptor, bytes)
    }

    fn export_dma_buf(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<OwnedFd> {
        self.inner.export_dma_buf(self.inside(addr), bytes)
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

impl<D: StreamDriver> StreamDriver for Simulated<D> {
    fn check_stream(&self, stream: StreamId) -> DriverResult<()> {
        self.inner.check_stream(self.own(stream)?)
    }

    fn identify(&self, stream: StreamId) -> DriverResult<StreamIdentity> {
        let identity = self.inner.identify(self.own(stream)?)?;
        Ok(StreamIdentity { key: self.outer(identity.key), ..identity })
    }

    fn owns_default_stream(&self) -> bool {
        self.inner.owns_default_stream()
    }

    fn is_capturing(&self, stream: StreamId) -> bool {
        self.own(stream).is_ok_and(|own| self.inner.is_capturing(own))
    }

    fn event_create(&self) -> DriverResult<EventHandle> {
        self.inner.event_create()
    }

    fn event_destroy(&self, event: EventHandle) -> DriverResult<()> {
        self.inner.event_destroy(event)
    }

    fn event_record(&self, event: EventHandle, stream: StreamId) -> DriverResult<()> {
        self.inner.event_record(event, self.own(stream)?)
    }

    fn event_query(&self, event: EventHandle) -> DriverResult<bool> {
        self.inner.event_query(event)
    }

    fn event_synchronize(&self, event: EventHandle) -> DriverResult<()> {
        self.inner.event_synchronize(event)
    }

    fn stream_wait(&self, stream: StreamId, event: EventHandle) -> DriverResult<()> {
        self.inner.stream_wait(self.own(stream)?, event)
    }

    fn synchronize_device(&self) -> DriverResult<()> {
        self.inner.synchronize_device()
    }

    fn create_copy_stream(&self) -> DriverResult<StreamId> {
        self.inner.create_copy_stream().map(|stream| self.outer(stream))
    }

    fn destroy_copy_stream(&self, stream: StreamId) -> DriverResult<()> {
        self.inner.destroy_copy_stream(self.own(stream)?)
    }

    fn copy_out(
        &self,
        stream: StreamId,
        target: HostMemory,
        offset: u64,
        source: DeviceAddr,
        bytes: u64,
    ) -> DriverResult<()> {
        self.inner.copy_out(self.own(stream)?, target, offset, self.inside(source), bytes)
    }

    fn copy_in(
        &self,
        stream: StreamId,
        target: DeviceAddr,
        source: HostMemory,
        offset: u64,
        bytes: u64,
    ) -> DriverResult<()> {
        self.inner.copy_in(self.own(stream)?, self.inside(target), source, offset, bytes)
    }

    fn clear(&self, stream: StreamId, target: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.inner.clear(self.own(stream)?, self.inside(target), bytes)
    }
}

impl<D: WorkDriver> WorkDriver for Simulated<D> {
    fn create_stream(&self) -> DriverResult<StreamId> {
        self.inner.create_stream().map(|stream| self.outer(stream))
    }

    fn destroy_stream(&self, stream: StreamId) -> DriverResult<()> {
        self.inner.destroy_stream(self.own(stream)?)
    }

    fn abandon_stream(&self, stream: StreamId) -> DriverResult<()> {
        self.inner.abandon_stream(self.own(stream)?)
    }

    fn fill(&self, stream: StreamId, addr: DeviceAddr, bytes: u64, seed: u64) -> DriverResult<()> {
        self.inner.fill(self.own(stream)?, self.inside(addr), bytes, seed)
    }

    fn verify(&self, stream: StreamId, addr: DeviceAddr, bytes: u64, seed: u64) -> DriverResult<()> {
        self.inner.verify(self.own(stream)?, self.inside(addr), bytes, seed)
    }

    fn copy(&self, stream: StreamId, target: DeviceAddr, source: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.inner.copy(self.own(stream)?, self.inside(target), self.inside(source), bytes)
    }

    fn delay(&self, stream: StreamId, duration: Duration) -> DriverResult<()> {
        self.inner.delay(self.own(stream)?, duration)
    }

    fn synchronize(&self, stream: StreamId) -> DriverResult<()> {
        self.inner.synchronize(self.own(stream)?)
    }

    fn take_mismatches(&self) -> Vec<Mismatch> {
        let found = self.inner.take_mismatches().into_iter();
        found.map(|one| Mismatch { stream: self.outer(one.stream), addr: self.outside(one.addr), ..one }).collect()
    }
}

/// # Panics
/// For a stream of another device.
impl<D: HoldStreams> HoldStreams for Simulated<D> {
    fn hold(&self, stream: StreamId) {
        self.inner.hold(self.own(stream).expect("a stream of this device"));
    }

    fn complete(&self, stream: StreamId) {
        self.inner.complete(self.own(stream).expect("a stream of this device"));
    }

    fn resume(&self, stream: StreamId) {
        self.inner.resume(self.own(stream).expect("a stream of this device"));
    }

    fn host_waits(&self) -> u64 {
        self.inner.host_waits()
    }
}

/// The bits of a stream's handle that the inner driver has.
const STREAM_BITS: u32 = 40;
/// From here on, keys of streams are those of threads.
const THREAD_KEYS: u64 = 1 << 63;
/// The width of addresses of a device.
const ADDRESS_BITS: u32 = 47;
/// The width of addresses of one model among several.
const MODEL_BITS: u32 = 42;

#[cfg(test)]
mod tests {
    use super::*;
    use gapless::units::MIB;

    fn host(ordinal: u32) -> Simulated<HostDriver> {
        Simulated::host(ordinal, HostConfig { capacity_bytes: 64 * MIB, ..HostConfig::default() }).unwrap()
    }

    /// Maps a chunk of 2 MiB with access.
    fn mapped(driver: &impl MemoryDriver) -> DeviceAddr {
        let addr = driver.reserve(2 * MIB, 2 * MIB).unwrap();
        driver.map(addr, 2 * MIB, driver.create(2 * MIB).unwrap()).unwrap();
        driver.set_access(addr, 2 * MIB).unwrap();
        addr
    }

    #[test]
    fn a_device_knows_its_number_and_its_streams() {
        let devices = [0, 5, 31].map(|ordinal| Simulated::model(ordinal, ModelConfig::default()));
        let streams = devices.each_ref().map(|device| device.create_stream().unwrap());
        for device in &devices {
            assert_eq!((device.ordinal(), device.uuid(), device.owns_default_stream()), (device.ordinal, None, true));
            for (stream, owner) in streams.iter().zip(&devices) {
                assert_eq!(device.check_stream(*stream).is_ok(), device.ordinal == owner.ordinal);
                assert_eq!(device.device_of_stream(*stream), Ok(owner.ordinal));
                let key = device.identify(*stream).map(|identity| identity.key);
                assert_eq!(key.ok(), (device.ordinal == owner.ordinal).then_some(*stream));
            }
            for of_every_device in [StreamId::DEFAULT, LEGACY_STREAM] {
                device.check_stream(of_every_device).unwrap();
                assert_eq!(device.identify(of_every_device).unwrap().key, StreamId::DEFAULT);
            }
        }
    }

    /// A model takes what it is told to have of addresses, and never those of another one.
    #[test]
    fn addresses_of_models() {
        for ordinal in [0, 1, 31] {
            let device = Simulated::model(ordinal, ModelConfig::default());
            let first = u64::from(ordinal) << MODEL_BITS;
            let addr = device.reserve(1 << (MODEL_BITS - 1), 2 * MIB).unwrap();
            assert!((first..first + (1 << (MODEL_BITS - 1))).contains(&addr.0), "{addr:?} of device {ordinal}");
            assert!(device.reserve(1 << MODEL_BITS, 2 * MIB).is_err(), "not all of them are left");
        }
    }

    #[test]
    fn a_capture_is_that_of_its_stream() {
        let device = Simulated::model(1, ModelConfig::default());
        let [captured, other] = [(); 2].map(|()| device.create_stream().unwrap());
        device.inner().begin_capture(device.own(captured).unwrap());
        assert_eq!([captured, other].map(|stream| device.is_capturing(stream)), [true, false]);
        assert_eq!([captured, other].map(|stream| device.capture_of(stream)), [Some(Capture::Unknown), None]);
    }

    /// What is held completes when it is told to, and the host waits for what is not.
    fn a_hold_ends<D: HoldStreams>(device: &D) {
        let stream = device.create_stream().unwrap();
        let behind = || {
            let event = device.event_create().unwrap();
            device.event_record(event, stream).unwrap();
            event
        };
        device.hold(stream);
        let addr = mapped(device);
        device.fill(stream, addr, 512, 1).unwrap();
        let first = behind();
        assert_eq!((device.event_query(first), device.host_waits()), (Ok(false), 0));
        device.complete(stream);
        // A host's stream is a thread of its own. A wait would complete what is held.
        for _ in 0..10_000 {
            if device.event_query(first).unwrap() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(device.event_query(first), Ok(true));
        device.fill(stream, addr, 512, 2).unwrap();
        let second = behind();
        assert_eq!(device.event_query(second), Ok(false), "the hold is there still");
        device.resume(stream);
        device.event_synchronize(second).unwrap();
        assert_eq!(device.event_query(second), Ok(true));
    }

    #[test]
    fn streams_are_held() {
        a_hold_ends(&Simulated::model(1, ModelConfig::default()));
        a_hold_ends(&host(1));
        let device = Simulated::model(1, ModelConfig::default());
        let stream = device.create_stream().unwrap();
        device.hold(stream);
        device.fill(stream, mapped(&device), 512, 1).unwrap();
        device.synchronize(stream).unwrap();
        device.fill(stream, mapped(&device), 512, 1).unwrap();
        device.synchronize(stream).unwrap();
        assert_eq!(device.host_waits(), 2);
    }

    /// A check that fails says on which stream and at which address, as the caller knows them.
    #[test]
    fn mismatches_are_as_the_caller_sees_them() {
        let device = host(1);
        let (stream, addr) = (device.create_stream().unwrap(), mapped(&device));
        device.fill(stream, addr, 1024, 1).unwrap();
        device.verify(stream, addr.offset(512), 512, 2).unwrap();
        device.synchronize(stream).unwrap();
        let found = device.take_mismatches();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].stream, found[0].addr, found[0].bytes), (stream, addr.offset(512), 512));
        assert!(device.take_mismatches().is_empty());
    }
}
