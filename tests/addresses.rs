//! Address reservations of an allocator when few addresses are left.

use gapless::allocator::AllocError;
use gapless::driver::{
    DriverCall, DriverErrorKind, Fault, FaultDriver, MemoryDriver, ModelConfig, ModelDriver, WorkDriver,
};
use gapless::units::{MIB, StreamId};
use gapless::{Allocator, allocator::ChunkPolicy};
use std::sync::Arc;

const PAGE: u64 = 2 * MIB;

/// Returns a device with `bytes` bytes of unreserved addresses, plus a few pages between reservations.
fn model_with_addresses(bytes: u64) -> Arc<ModelDriver> {
    let driver = Arc::new(ModelDriver::new(ModelConfig { address_bits: 37, ..ModelConfig::default() }));
    let mut step = 1 << 37;
    while step >= PAGE {
        while driver.reserve(step, PAGE).is_ok() {}
        step /= 2;
    }
    // This device has no addresses left, so its total is known. Another one gets the same total minus `bytes`.
    let limited = Arc::new(ModelDriver::new(ModelConfig { address_bits: 37, ..ModelConfig::default() }));
    let all = driver.usage().address_bytes;
    limited.reserve(all - bytes, PAGE).unwrap();
    limited
}

#[test]
fn a_reservation_backs_off_until_it_fits() {
    // Four slots, then two, then one, then smaller slots down to 32 pages.
    let steps = [(1900, 1024), (900, 512), (450, 256), (200, 128), (80, 64)];
    for (room, expected) in steps {
        let driver = model_with_addresses(room * MIB);
        let before = driver.usage().address_bytes;
        let builder = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE));
        let allocator = builder.region_bytes(256 * MIB).build().unwrap();
        let block = allocator.alloc_raw(PAGE, StreamId::DEFAULT).unwrap();
        assert_eq!(driver.usage().address_bytes - before, expected * MIB, "{room} MiB of addresses");
        allocator.free(block).unwrap();
        allocator.check();
        allocator.close().unwrap();
        assert_eq!(driver.usage().address_bytes, before);
    }
    // Slots do not get smaller: a region of a few pages would be too small for most requests.
    let driver = model_with_addresses(36 * MIB);
    let allocator = Allocator::builder(Arc::clone(&driver)).region_bytes(256 * MIB).build().unwrap();
    let result = allocator.alloc_raw(PAGE, StreamId::DEFAULT);
    assert!(
        matches!(&result, Err(AllocError::Driver(error)) if error.kind == DriverErrorKind::OutOfMemory),
        "{result:?}"
    );
    allocator.check();
}

#[test]
fn later_streams_have_smaller_regions() {
    let driver = Arc::new(ModelDriver::new(ModelConfig::default()));
    let allocator = Allocator::builder(Arc::clone(&driver)).region_bytes(256 * MIB).build().unwrap();
    let mut reserved = Vec::new();
    for stream in 0..20 {
        let stream = if stream == 0 { StreamId::DEFAULT } else { driver.create_stream().unwrap() };
        for bytes in [100, PAGE] {
            let block = allocator.alloc_raw(bytes, stream).unwrap();
            allocator.free(block).unwrap();
            reserved.push(driver.usage().address_bytes / (256 * MIB));
        }
    }
    reserved.dedup();
    assert_eq!(reserved, [4, 6, 10, 18], "4 slots, then 8, 16 and 32 of a quarter of the size, the smallest");
    allocator.check();
}

/// The remaining addresses are pieces of one region each, more than the maximum number of arenas: the allocator returns
/// an error and leaks no addresses.
#[test]
fn running_out_of_arenas_is_an_error() {
    const PIECE: u64 = 64 * MIB;
    let driver = Arc::new(ModelDriver::new(ModelConfig { address_bits: 37, ..ModelConfig::default() }));
    let pieces: Vec<_> = std::iter::from_fn(|| driver.reserve(PIECE, PAGE).ok()).collect();
    while driver.reserve(PAGE, PAGE).is_ok() {}
    for piece in pieces.iter().step_by(2) {
        driver.address_free(*piece, PIECE).unwrap();
    }
    let before = driver.usage().address_bytes;
    let allocator = Allocator::builder(Arc::clone(&driver)).region_bytes(PIECE).build().unwrap();
    let mut streams = 0;
    let result = loop {
        let stream = driver.create_stream().unwrap();
        if let Err(error) = allocator.alloc_raw(PAGE, stream) {
            break error;
        }
        streams += 1;
    };
    assert!(matches!(&result, AllocError::AddressesFragmented { limit: 64 }), "{result}");
    assert_eq!(driver.usage().address_bytes, before + streams * PIECE);
    assert_eq!(streams, 64);
    allocator.check();
}

/// The first regions are small. Each reservation has larger ones, and a large request gets a region that it fits in.
#[test]
fn regions_grow() {
    let driver = Arc::new(ModelDriver::new(ModelConfig::default()));
    let builder = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE)).keep_mappings();
    let allocator = builder.region_bytes(1024 * MIB).first_region_bytes(64 * MIB).build().unwrap();
    let reserved = || driver.usage().address_bytes / MIB;
    let alloc = |bytes| allocator.alloc_raw(bytes, StreamId::DEFAULT).unwrap();
    let mut blocks = vec![alloc(100), alloc(PAGE)];
    assert_eq!(reserved(), 2 * 64, "a region for small blocks, and one for large ones");
    blocks.push(alloc(60 * MIB));
    assert_eq!(reserved(), 2 * 64);
    blocks.push(alloc(100 * MIB));
    assert_eq!(reserved(), 2 * 64 + 2 * 128);
    blocks.push(alloc(100 * MIB));
    let some = 2 * 64 + 2 * 128 + 2 * 256;
    assert_eq!(reserved(), some, "twice as large as the last");
    blocks.push(alloc(600 * MIB));
    assert_eq!(reserved(), some + 2 * 1024, "a request that is larger than the next region");
    blocks.extend([alloc(1000 * MIB), alloc(1000 * MIB)]);
    assert_eq!(reserved(), some + 4 * 1024, "the other slot, and two more of the largest");
    allocator.check();
    let largest = allocator.alloc_raw(1025 * MIB, StreamId::DEFAULT);
    assert!(matches!(&largest, Err(AllocError::TooLarge { .. })), "{largest:?}");
    // The first request may be larger than the first regions.
    let builder = Allocator::builder(Arc::clone(&driver)).region_bytes(1024 * MIB).first_region_bytes(64 * MIB);
    let other = builder.build().unwrap();
    let before = reserved();
    let block = other.alloc_raw(500 * MIB, StreamId::DEFAULT).unwrap();
    assert_eq!(reserved() - before, 2 * 512);
    other.free(block).unwrap();
    blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
}

/// Whatever the driver says to a reservation, a smaller one is tried, unless the device is lost.
#[test]
fn any_refusal_means_smaller() {
    let kinds = [
        DriverErrorKind::OutOfMemory,
        DriverErrorKind::InvalidValue,
        DriverErrorKind::NotSupported,
        DriverErrorKind::Other,
        DriverErrorKind::DeviceLost,
    ];
    for kind in kinds {
        let driver = Arc::new(FaultDriver::new(ModelDriver::new(ModelConfig::default())));
        let allocator = Allocator::builder(Arc::clone(&driver)).region_bytes(256 * MIB).build().unwrap();
        driver.arm(Fault::nth(0, kind).only([DriverCall::Reserve]));
        let result = allocator.alloc_raw(PAGE, StreamId::DEFAULT);
        if kind == DriverErrorKind::DeviceLost {
            assert!(matches!(&result, Err(AllocError::Driver(error)) if error.kind == kind), "{result:?}");
            continue;
        }
        allocator.free(result.unwrap()).unwrap();
        assert_eq!(driver.inner().usage().address_bytes, 2 * 256 * MIB, "half of four regions, after {kind:?}");
        allocator.check();
    }
}
