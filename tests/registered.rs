//! Registered blocks: one chunk each, in a mapping of its own that stays as it is.

use gapless::allocator::AllocError;
use gapless::driver::{
    DriverCall, DriverErrorKind, Fault, FaultDriver, HoldStreams, HostConfig, HostDriver, ModelConfig, ModelDriver,
    WorkDriver,
};
use gapless::{Allocator, ChunkPolicy, StreamId};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const PAGE: u64 = 2 << 20;
const MAIN: StreamId = StreamId::DEFAULT;

type Device = FaultDriver<ModelDriver>;

fn device(pages: u64) -> Arc<Device> {
    Arc::new(FaultDriver::new(ModelDriver::new(ModelConfig { capacity_bytes: pages * PAGE, ..ModelConfig::default() })))
}

fn allocator(device: &Arc<Device>) -> Allocator<Device> {
    Allocator::builder(Arc::clone(device)).chunk_policy(ChunkPolicy::Fixed(PAGE)).build().unwrap()
}

#[test]
fn absurd_sizes_are_out_of_memory() {
    let device = device(16);
    let allocator = allocator(&device);
    for bytes in [u64::MAX, u64::MAX - PAGE, u64::MAX / 2, 17 * PAGE] {
        let refused = allocator.alloc_registered(bytes, MAIN);
        assert!(
            matches!(&refused, Err(AllocError::OutOfMemory(report)) if report.requested_bytes == bytes),
            "{refused:?}"
        );
    }
    allocator.check();
}

#[test]
fn a_registered_block_is_one_chunk_at_whole_pages() {
    let device = device(16);
    let allocator = allocator(&device);
    for (bytes, pages) in [(0, 1), (1, 1), (PAGE, 1), (PAGE + 1, 2), (5 * PAGE, 5)] {
        let block = allocator.alloc_registered(bytes, MAIN).unwrap();
        assert_eq!((block.bytes(), block.addr().0 % PAGE), (pages * PAGE, 0));
        let usage = device.inner().usage();
        assert_eq!((usage.chunks, usage.mappings, usage.bytes), (1, 1, pages * PAGE), "{bytes} bytes");
        let stats = allocator.stats();
        assert_eq!((stats.registered_bytes, stats.range_bytes, stats.live_bytes), (pages * PAGE, 0, 0));
        let snapshot = allocator.snapshot();
        assert!(snapshot.chunks[0].registered && !snapshot.chunks[0].in_range);
        device.fill(MAIN, block.addr(), block.bytes(), 1).unwrap();
        allocator.check();
        drop(block);
        assert_eq!(allocator.stats().registered_bytes, 0);
        allocator.trim(0).unwrap();
        assert_eq!(device.inner().usage().bytes, 0);
    }
    allocator.close().unwrap();
    assert!(device.inner().usage().is_empty());
}

#[test]
fn it_is_neither_taken_nor_moved_nor_released() {
    let device = device(16);
    let allocator = allocator(&device);
    let block = allocator.alloc_registered(4 * PAGE, MAIN).unwrap();
    let chunk = allocator.snapshot().chunks[0].clone();
    let others: Vec<_> = (0..12).map(|_| allocator.alloc_raw(PAGE, MAIN).unwrap()).collect();
    others.iter().step_by(2).for_each(|block| allocator.free(*block).unwrap());
    allocator.alloc_raw(6 * PAGE, MAIN).unwrap();
    allocator.trim(0).unwrap();
    allocator.set_budget(PAGE).unwrap();
    match allocator.alloc_raw(PAGE, MAIN) {
        Err(AllocError::OutOfMemory(report)) => {
            assert_eq!(report.registered_bytes, 4 * PAGE);
            assert!(report.to_string().contains("held by registered blocks"), "{report}");
        }
        other => panic!("{other:?}"),
    }
    allocator.check();
    let found = allocator.snapshot().chunks.into_iter().find(|other| other.handle == chunk.handle);
    assert_eq!(found, Some(chunk));
    drop(block);
}

/// Free chunks are single pages: they are released so that one of four pages can be created.
#[test]
fn free_memory_goes_back_for_it() {
    let device = device(8);
    let allocator = allocator(&device);
    let blocks: Vec<_> = (0..8).map(|_| allocator.alloc_raw(PAGE, MAIN).unwrap()).collect();
    blocks.iter().take(5).for_each(|block| allocator.free(*block).unwrap());
    let created = allocator.stats().created_bytes;
    let registered = allocator.alloc_registered(4 * PAGE, MAIN).unwrap();
    assert_eq!(allocator.stats().created_bytes, created + 4 * PAGE);
    assert_eq!(device.inner().usage().bytes, 8 * PAGE, "no more was released than needed");
    let refused = allocator.alloc_registered(2 * PAGE, MAIN);
    assert!(matches!(refused, Err(AllocError::OutOfMemory(_))), "{refused:?}");
    drop(registered);
    // The chunk is idle: as it is for the next, else in other sizes.
    let chunks = allocator.stats().chunks;
    let registered = allocator.alloc_registered(4 * PAGE, MAIN).unwrap();
    assert_eq!((allocator.stats().chunks, allocator.stats().created_bytes), (chunks, created + 4 * PAGE));
    drop(registered);
    allocator.alloc_raw(3 * PAGE, MAIN).unwrap();
    allocator.check();
}

#[test]
fn its_end_waits_for_the_streams_that_use_it() {
    let device = device(8);
    let allocator = allocator(&device);
    let (one, two) = (device.create_stream().unwrap(), device.create_stream().unwrap());
    allocator.keep_stream(one).unwrap();
    allocator.keep_stream(two).unwrap();
    let mut block = allocator.alloc_registered(PAGE, one).unwrap();
    block.record_stream(two).unwrap();
    // SAFETY: the driver looks at what it gets.
    let unknown = unsafe { StreamId::from_raw(99) };
    assert!(matches!(block.record_stream(unknown), Err(AllocError::Stream(_))));
    device.fill(one, block.addr(), PAGE, 1).unwrap();
    device.fill(two, block.addr(), PAGE, 1).unwrap();
    device.hold(one);
    device.hold(two);
    // The model panics where work is queued in what is unmapped.
    drop(block);
    assert!(device.host_waits() >= 2);
    assert_eq!(device.inner().usage().mappings, 0);
}

/// Whatever call fails, nothing is lost: the next request is served, and the end gives everything back.
#[test]
fn a_failure_at_any_call_is_undone() {
    for kind in [DriverErrorKind::OutOfMemory, DriverErrorKind::Other] {
        for n in 0.. {
            let device = device(8);
            let allocator = allocator(&device);
            let blocks: Vec<_> = (0..6).map(|_| allocator.alloc_raw(PAGE, MAIN).unwrap()).collect();
            blocks.iter().take(4).for_each(|block| allocator.free(*block).unwrap());
            device.arm(Fault::nth(n, kind));
            let served = allocator.alloc_registered(5 * PAGE, MAIN);
            let struck = device.fired() > 0;
            if served.is_err() {
                assert_eq!(allocator.stats().registered_bytes, 0, "call {n}");
            }
            drop(served);
            device.disarm();
            allocator.check();
            let served = allocator.alloc_registered(5 * PAGE, MAIN).unwrap_or_else(|error| panic!("{n}: {error}"));
            allocator.check();
            drop(served);
            blocks.iter().skip(4).for_each(|block| allocator.free(*block).unwrap());
            allocator.close().unwrap();
            assert!(device.inner().usage().is_empty(), "{n}: {:?}", device.inner().usage());
            if !struck {
                break;
            }
        }
    }
}

#[test]
fn what_cannot_be_undone_is_left_behind() {
    for call in [DriverCall::Unmap, DriverCall::AddressFree] {
        let device = device(8);
        let allocator = allocator(&device);
        let ears = Arc::new(Refuses);
        let listener = allocator.listeners().add(ears).unwrap();
        device.arm(Fault::nth(0, DriverErrorKind::Other).only([call]));
        assert!(allocator.alloc_registered(PAGE, MAIN).is_err());
        device.disarm();
        allocator.check();
        allocator.listeners().remove(listener).unwrap();
        assert_eq!(allocator.stats().registered_bytes, 0);
        drop(allocator.alloc_registered(PAGE, MAIN).unwrap());
        allocator.close().unwrap();
        assert!(device.inner().usage().is_empty(), "{call:?}: {:?}", device.inner().usage());
    }
}

struct Refuses;

impl gapless::allocator::MapListener for Refuses {
    fn on_map(&self, _: gapless::allocator::MappedRange) -> Result<(), gapless::allocator::Refusal> {
        Err(gapless::allocator::Refusal::new("no"))
    }

    fn before_unmap(&self, _: gapless::allocator::MappedRange) -> Result<(), gapless::allocator::Refusal> {
        Ok(())
    }
}

/// The bytes behind a dma-buf are those of the block; one that a driver does not have is said.
#[test]
fn a_dma_buf_is_the_memory_of_the_block() {
    let device = Arc::new(FaultDriver::new(HostDriver::new(HostConfig::default()).unwrap()));
    let allocator = Allocator::builder(Arc::clone(&device)).build().unwrap();
    let block = allocator.alloc_registered(3 * PAGE, MAIN).unwrap();
    device.fill(MAIN, block.addr(), block.bytes(), 1).unwrap();
    device.synchronize(MAIN).unwrap();

    device.arm(Fault::nth(0, DriverErrorKind::NotSupported).only([DriverCall::ExportDmaBuf]));
    match block.dma_buf() {
        Err(AllocError::Driver(error)) => assert_eq!(error.kind, DriverErrorKind::NotSupported),
        other => panic!("{other:?}"),
    }
    let file = File::from(block.dma_buf().unwrap());
    assert_eq!(file.metadata().unwrap().len(), 3 * PAGE);
    device.verify(MAIN, block.addr(), block.bytes(), 1).unwrap();
    device.synchronize(MAIN).unwrap();
    assert!(device.take_mismatches().is_empty(), "the bytes are there still");
    // What the hardware writes is in the block.
    file.write_all_at(&[0xff; 64], PAGE).unwrap();
    device.verify(MAIN, block.addr(), block.bytes(), 1).unwrap();
    device.synchronize(MAIN).unwrap();
    assert_eq!(device.take_mismatches().len(), 1);
    allocator.check();
    drop(block);
    allocator.close().unwrap();
    assert!(device.inner().usage().is_empty());

    let model = self::device(16);
    let block = self::allocator(&model).alloc_registered(PAGE, MAIN).unwrap();
    assert!(matches!(block.dma_buf(), Err(AllocError::Driver(error)) if error.kind == DriverErrorKind::NotSupported));
}
