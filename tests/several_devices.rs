//! Several devices in one process: who may access whose memory, with the simulated `libcuda.so.1`.

mod simulated;

use gapless::driver::cuda::sys::{CUcontext, Required, cudaError_enum as code};
use gapless::driver::cuda::{CudaDriver, OpenError};
use gapless::driver::{DriverCall, DriverErrorKind, MemoryDriver, WorkDriver};
use gapless::units::MIB;
use gapless::{Allocator, ChunkPolicy, DeviceAddr, StreamId};
use simulated::{library, mapped, with_settings};
use std::sync::Arc;

const MAIN: StreamId = StreamId::DEFAULT;
const TWO: (&str, &str) = ("GAPLESS_SIM_DEVICES", "2");

fn open(ordinal: u32, peers: &[u32]) -> CudaDriver {
    simulated::open(simulated::builder().device(ordinal).peers(peers.iter().copied())).unwrap()
}

/// The library's functions, for calls that the driver does not offer.
fn api() -> Required {
    // SAFETY: the simulated library's functions have the types of cuda.h.
    unsafe { Required::new(library()) }.unwrap()
}

/// The library, for functions that gapless has no binding of.
fn raw() -> libloading::Library {
    // SAFETY: loading the simulated library runs nothing.
    unsafe { libloading::Library::new(library()) }.unwrap()
}

fn context_of(api: &Required, device: i32) -> CUcontext {
    let mut context = std::ptr::null_mut();
    // SAFETY: the out-parameter is a valid pointer for the call.
    assert_eq!(unsafe { api.cuDevicePrimaryCtxRetain(&raw mut context, device) }, code::CUDA_SUCCESS);
    context
}

#[test]
fn memory_of_another_device_needs_a_grant() {
    for work in ["fill", "read", "write"] {
        let settings = [TWO, ("CASE", work)];
        with_settings("memory_of_another_device_needs_a_grant", &settings, || {
            let (one, two) = (open(0, &[]), open(1, &[]));
            let (theirs, ours) = (mapped(&one, 2 * MIB), mapped(&two, 2 * MIB));
            two.fill(MAIN, ours, 4096, 1).unwrap();
            two.synchronize(MAIN).unwrap();
            match std::env::var("CASE").unwrap().as_str() {
                "fill" => two.fill(MAIN, theirs, 4096, 1).unwrap(),
                "read" => two.copy(MAIN, ours, theirs, 4096).unwrap(),
                _ => two.copy(MAIN, theirs, ours, 4096).unwrap(),
            }
            let error = two.synchronize(MAIN).unwrap_err();
            assert_eq!((error.kind, error.code), (DriverErrorKind::DeviceLost, 700));
            // The device whose memory it was goes on.
            one.fill(MAIN, theirs, 4096, 2).unwrap();
            one.synchronize(MAIN).unwrap();
            let event = gapless::driver::StreamDriver::event_create(&one).unwrap();
            assert!(gapless::driver::StreamDriver::event_query(&one, event).unwrap());
        });
        if std::env::var_os("GAPLESS_TEST_INNER").is_some() {
            break;
        }
    }
}

#[test]
fn a_grant_reaches_what_it_covers() {
    with_settings("a_grant_reaches_what_it_covers", &[TWO], || {
        let (one, two) = (open(0, &[1]), open(1, &[]));
        let (theirs, ours) = (mapped(&one, 2 * MIB), mapped(&two, 2 * MIB));
        one.fill(MAIN, theirs, 4096, 1).unwrap();
        one.synchronize(MAIN).unwrap();
        two.copy(MAIN, ours, theirs, 4096).unwrap();
        two.verify(MAIN, ours, 4096, 1).unwrap();
        two.verify(MAIN, theirs, 4096, 1).unwrap();
        two.synchronize(MAIN).unwrap();
        assert_eq!(two.take_mismatches(), []);
        // The grant goes in one direction.
        one.copy(MAIN, theirs, ours, 4096).unwrap();
        assert!(one.synchronize(MAIN).unwrap_err().kind.is_sticky());
    });
}

#[test]
fn devices_without_a_path_copy_through_the_driver() {
    with_settings("devices_without_a_path_copy_through_the_driver", &[TWO, ("GAPLESS_SIM_PEERS", "none")], || {
        let error = simulated::open(simulated::builder().device(0).peers([1])).unwrap_err();
        assert!(matches!(error, OpenError::NoPeerAccess { ordinal: 0, peer: 1 }), "{error}");
        let (api, raw) = (api(), raw());
        let (one, two) = (open(0, &[]), open(1, &[]));
        let (theirs, ours) = (mapped(&one, 2 * MIB), mapped(&two, 2 * MIB));
        one.fill(MAIN, theirs, 4096, 7).unwrap();
        one.synchronize(MAIN).unwrap();
        let (from, to) = (context_of(&api, 0), context_of(&api, 1));
        type Copy = unsafe extern "C" fn(u64, CUcontext, u64, CUcontext, usize, *mut std::ffi::c_void) -> u32;
        // SAFETY: the function has this type.
        let copy = unsafe { raw.get::<Copy>(b"cuMemcpyPeerAsync\0") }.unwrap();
        // SAFETY: retained above.
        unsafe { api.cuCtxSetCurrent(to) };
        // SAFETY: both ranges are mapped until the work has run.
        assert_eq!(unsafe { copy(ours.0, to, theirs.0, from, 4096, std::ptr::null_mut()) }, 0);
        two.verify(MAIN, ours, 4096, 7).unwrap();
        two.synchronize(MAIN).unwrap();
        assert_eq!(two.take_mismatches(), []);
    });
}

/// `cuCtxEnablePeerAccess` is about memory of `cuMemAlloc`, and about no mapping.
#[test]
fn enabled_peers_reach_plain_memory_only() {
    with_settings("enabled_peers_reach_plain_memory_only", &[TWO], || {
        let (api, raw) = (api(), raw());
        let (one, two) = (open(0, &[]), open(1, &[]));
        let (first, second) = (context_of(&api, 0), context_of(&api, 1));
        let mut plain = 0;
        // SAFETY: retained above.
        unsafe { api.cuCtxSetCurrent(first) };
        // SAFETY: the out-parameter is a valid pointer for the call.
        assert_eq!(unsafe { api.cuMemAlloc_v2(&raw mut plain, 4096) }, code::CUDA_SUCCESS);
        // SAFETY: retained above.
        unsafe { api.cuCtxSetCurrent(second) };
        // SAFETY: the function has this type.
        let enable = unsafe { raw.get::<unsafe extern "C" fn(CUcontext, u32) -> u32>(b"cuCtxEnablePeerAccess\0") };
        let enable = enable.unwrap();
        // SAFETY: a context of the library.
        assert_eq!(unsafe { enable(first, 0) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { enable(first, 0) }, 704, "enabled already");
        two.fill(MAIN, DeviceAddr(plain), 4096, 1).unwrap();
        two.synchronize(MAIN).unwrap();
        let theirs = mapped(&one, 2 * MIB);
        two.fill(MAIN, theirs, 4096, 1).unwrap();
        assert!(two.synchronize(MAIN).unwrap_err().kind.is_sticky());
    });
}

/// A peer that is added later reaches everything: blocks, what is mapped a second time, what was stale when it came and is
/// used again, growable ranges, and what is mapped afterwards.
#[test]
fn a_peer_that_is_added_reaches_everything() {
    with_settings("a_peer_that_is_added_reaches_everything", &[TWO], || {
        let (one, two) = (Arc::new(open(0, &[])), open(1, &[]));
        let page = one.granularity();
        let builder = Allocator::builder(Arc::clone(&one)).budget(8 * page).chunk_policy(ChunkPolicy::Fixed(page));
        let allocator = builder.build().unwrap();
        let mut blocks: Vec<_> = (0..4).map(|_| allocator.alloc_raw(page, MAIN).unwrap()).collect();
        let mut range = allocator.reserve_range(4 * page).unwrap();
        range.grow(4 * page, MAIN).unwrap();
        // Two pages move behind the fourth block, and the views they leave are stale.
        allocator.free(blocks.remove(2)).unwrap();
        allocator.free(blocks.remove(0)).unwrap();
        let joined = allocator.alloc_raw(2 * page, MAIN).unwrap();

        assert_eq!(one.peers(), []);
        one.add_peers([0, 1, 1]).unwrap();
        assert_eq!(one.peers(), [1]);
        let before = allocator.stats().driver_calls;
        allocator.renew_access().unwrap();
        let calls = allocator.stats().driver_calls.since(&before);
        assert_eq!(calls[DriverCall::SetAccess], 2, "one for each run, with all devices");
        allocator.check();

        let reach = |addr: DeviceAddr, bytes: u64, seed: u64| {
            two.fill(MAIN, addr, bytes, seed).unwrap();
            two.verify(MAIN, addr, bytes, seed).unwrap();
            two.synchronize(MAIN).unwrap();
        };
        for (seed, block) in blocks.iter().enumerate() {
            reach(*block, page, seed as u64);
        }
        reach(joined, 2 * page, 7);
        reach(range.addr(), 4 * page, 8);
        allocator.free(joined).unwrap();
        let before = allocator.stats().driver_calls;
        // Back at the first addresses: through the views that were stale.
        let again: Vec<_> = (0..2).map(|_| allocator.alloc_raw(page, MAIN).unwrap()).collect();
        again.iter().for_each(|block| reach(*block, page, 9));
        assert_eq!(allocator.stats().driver_calls.since(&before).total(), 0, "served from what was mapped");
        let small = allocator.alloc_raw(100, MAIN);
        assert!(small.is_err(), "all is in use");
        allocator.free(again[0]).unwrap();
        let small = allocator.alloc_raw(100, MAIN).unwrap();
        reach(small, 100, 10);
        assert_eq!(two.take_mismatches(), []);
        assert_eq!(two.synchronize(MAIN), Ok(()));

        one.remove_peers([0, 1]);
        assert_eq!(one.peers(), []);
        assert!(matches!(one.add_peers([2]), Err(OpenError::NoSuchDevice { ordinal: 2, count: 2 })));
    });
}

/// Memory that was mapped before a peer was left out stays within its reach; memory that is mapped afterwards is not.
#[test]
fn a_peer_that_is_removed_keeps_what_it_has() {
    with_settings("a_peer_that_is_removed_keeps_what_it_has", &[TWO], || {
        let (one, two) = (open(0, &[1]), open(1, &[]));
        let before = mapped(&one, 2 * MIB);
        one.remove_peers([1]);
        let after = mapped(&one, 2 * MIB);
        two.fill(MAIN, before, 4096, 1).unwrap();
        two.synchronize(MAIN).unwrap();
        two.fill(MAIN, after, 4096, 1).unwrap();
        assert_eq!(two.synchronize(MAIN).unwrap_err().code, 700);
    });
}

/// A peer that the trial, or a run of mappings, refuses.
#[test]
fn a_peer_that_is_refused_changes_nothing() {
    // The first call is of the trial at opening, the second of the allocation, the third of the new peer's trial.
    let settings = [TWO, ("GAPLESS_SIM_FAIL", "cuMemSetAccess:3:999,cuMemSetAccess:5:2")];
    with_settings("a_peer_that_is_refused_changes_nothing", &settings, || {
        let one = Arc::new(open(0, &[]));
        let allocator = Allocator::builder(Arc::clone(&one)).build().unwrap();
        let block = allocator.alloc_raw(5 * MIB, MAIN).unwrap();
        let error = one.add_peers([1]).unwrap_err();
        assert!(matches!(&error, OpenError::Driver(error) if error.code == 999), "{error}");
        assert_eq!(one.peers(), []);
        one.add_peers([1]).unwrap();
        let error = allocator.renew_access().unwrap_err();
        assert!(error.to_string().contains("cuMemSetAccess"), "{error}");
        allocator.check();
        allocator.renew_access().unwrap();
        allocator.free(block).unwrap();
        allocator.close().unwrap();
        assert_eq!(one.memory_info().unwrap().free, one.memory_info().unwrap().total, "the trials left nothing");
    });
}
