//! Two simulated devices: pools, foreign uses, budgets, peers and figures, without a GPU and without C.

use gapless::StreamId;
use gapless::allocator::{AddressFacts, AllocError, FreeError};
use gapless::driver::{
    CheckedDriver, DriverCall, DriverErrorKind, Fault, FaultDriver, HoldStreams, HostConfig, HostDriver, MemoryDriver,
    ModelConfig, ModelDriver, StreamDriver, WorkDriver,
};
use gapless::units::MIB;
use gapless_process::{
    Action, Before, Block, BlockUse, Contents, DeviceDriver, Error, Place, Process, Request, Simulated, StreamLives,
};
use gapless_trace::Op;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const POOL: (u64, u64) = (3, 4);

fn models() -> Process<Simulated<ModelDriver>> {
    let process = Process::new(|ordinal, _| {
        Ok(Simulated::model(ordinal, ModelConfig { capacity_bytes: 64 * MIB, ..ModelConfig::default() }))
    });
    process.configure("").expect("no device is in use");
    process
}

/// Returns the stream that has a handle, or none.
const fn stream_of(handle: u64) -> StreamId {
    // SAFETY: the drivers here look at what they get.
    unsafe { StreamId::from_raw(handle) }
}

fn request(mib: u64) -> Request {
    Request::new(mib * MIB, StreamId::DEFAULT)
}

/// The free of a block is deferred for a stream of the other device, of whichever driver.
fn defer_a_free<D: CheckedDriver + DeviceDriver + HoldStreams>(process: &Process<D>) {
    let (first, second) = (process.device(0).unwrap(), process.device(1).unwrap());
    assert!(first.reaches(second) && second.reaches(first));
    let driver = second.allocator().driver();
    let reader = driver.create_stream().unwrap();
    driver.hold(reader);
    let addr = first.alloc(&request(2)).unwrap();
    driver.delay(reader, std::time::Duration::from_micros(1)).unwrap();
    process.record_stream(first, addr, reader, StreamLives::Unknown).unwrap();
    first.free(addr, 0, StreamId::DEFAULT).unwrap();
    match first.free(addr, 0, StreamId::DEFAULT) {
        Err(FreeError::NotAllocated { facts: AddressFacts::Freed { pending: true }, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(first.figures(None).unwrap().live_bytes, 2 * MIB);
    assert_eq!(first.blocks(None).iter().filter(|block| block.state == BlockUse::Waiting).count(), 1);
    assert!(first.live_blocks(None).is_empty() && first.block_around(addr).is_none());
    driver.resume(reader);
    driver.synchronize(reader).unwrap();
    assert_eq!(first.trim(0).unwrap().held_bytes, 0);
    assert_eq!(first.figures(None).unwrap().live_bytes, 0);
    let none = stream_of(0x7700);
    let addr = first.alloc(&request(2)).unwrap();
    match process.record_stream(first, addr, none, StreamLives::Unknown) {
        Err(Error::Foreign { ordinal: 0, stream, .. }) => assert_eq!(stream, none),
        other => panic!("{other:?}"),
    }
    process.free_on(first, addr, 0, none).unwrap();
}

#[test]
fn a_stream_of_the_other_device_holds_a_block_back() {
    defer_a_free(&models());
    let config = || HostConfig { capacity_bytes: 64 * MIB, ..HostConfig::default() };
    let host: Process<Simulated<HostDriver>> = Process::new(|_, _| unreachable!("the devices are added"));
    host.configure("").unwrap();
    for ordinal in [0, 1] {
        let driver = Arc::new(Simulated::host(ordinal, config()).unwrap());
        host.add(ordinal, Arc::clone(&driver)).unwrap();
        assert!(matches!(host.add(ordinal, driver), Err(Error::DeviceInUse(_))));
    }
    defer_a_free(&host);
}

#[test]
fn an_address_is_of_one_device() {
    let process = models();
    let [first, second] = [0, 1].map(|ordinal| process.device(ordinal).unwrap());
    let (here, there) = (first.alloc(&request(1)).unwrap(), second.alloc(&request(1)).unwrap());
    assert_eq!(process.owner_of(here).unwrap().ordinal(), 0);
    assert_eq!(process.owner_of(there).unwrap().ordinal(), 1);
    assert!(matches!(process.device(64), Err(Error::NotADevice(64))));
    assert!(matches!(process.configure("log:off"), Err(Error::Configured)));
    assert!(matches!(models().configure("lag:1"), Err(Error::Conf(_))));
}

#[test]
fn figures_are_those_of_the_device_and_its_pools() {
    let process = models();
    process.history().record(10, Before::Forgotten);
    let device = process.device(0).unwrap();
    let own = device.alloc(&request(8)).unwrap();
    device.pools().begin(POOL).unwrap();
    let pooled = device.alloc(&request(32)).unwrap();
    device.pools().end(POOL);
    let sums = device.figures(None).unwrap();
    assert_eq!((sums.live_bytes, sums.live_allocations), (40 * MIB, 2));
    assert_eq!(device.figures(Some(POOL)).unwrap().live_bytes, 32 * MIB);
    assert_eq!(device.figures(Some((9, 9))), None);
    let report = serde_json::to_value(device.report(Contents::Figures)).unwrap();
    assert_eq!(report["pools"][0]["stats"]["live_bytes"], 32 * MIB);
    device.set_budget(48 * MIB).unwrap();
    match device.alloc_worded(Place::Main, &request(16), |error| error) {
        Err(AllocError::OutOfMemory(report)) => assert_eq!(report.budget_bytes, 48 * MIB),
        other => panic!("{other:?}"),
    }
    device.free(pooled, 32 * MIB, StreamId::DEFAULT).unwrap();
    device.pools().release(POOL);
    let again = device.alloc(&request(32)).unwrap();
    assert_eq!(device.pools().users(POOL), 0);
    for addr in [own, again] {
        device.free(addr, 0, StreamId::DEFAULT).unwrap();
    }
    let events: Vec<Action> = process.history().events().iter().map(|event| event.action).collect();
    use Action::{Alloc, Free, Oom};
    assert_eq!(events, [Alloc, Alloc, Oom, Free, Alloc, Free, Free]);
}

/// A pool whose memory is all live adds nothing to what the device's allocator has free, whether the device or a budget is the
/// limit.
#[test]
fn what_is_free_beside_a_pool() {
    let process = models();
    let device = process.device(0).unwrap();
    let is_of_main = || {
        assert_eq!(device.stats().fragmentation.free_bytes, device.allocator().stats().fragmentation.free_bytes);
    };
    let [own, freed] = [8, 4].map(|mib| device.alloc(&request(mib)).unwrap());
    device.free(freed, 0, StreamId::DEFAULT).unwrap();
    is_of_main();
    device.pools().begin(POOL).unwrap();
    let pooled = device.alloc(&request(4)).unwrap();
    assert!(!device.pools().named(POOL).unwrap().allocator().has_set_budget(), "the device is the pool's limit, too");
    device.pools().end(POOL);
    is_of_main();
    device.free(pooled, 0, StreamId::DEFAULT).unwrap();
    device.pools().release(POOL);
    device.trim(0).unwrap();
    device.set_budget(48 * MIB).unwrap();
    device.allocator().driver().inner().set_external(40 * MIB);
    is_of_main();
    device.free(own, 0, StreamId::DEFAULT).unwrap();
}

#[test]
fn blocks_one_by_one() {
    let process = models();
    let device = process.device(0).unwrap();
    let [large, small] = [3 * MIB, 600].map(|bytes| device.alloc(&Request::new(bytes, StreamId::DEFAULT)).unwrap());
    for (addr, bytes, is_small) in [(large, 3 * MIB, false), (small, 600, true)] {
        let live = |block: &&Block| block.addr == addr && block.state == BlockUse::Live;
        let blocks = device.blocks(None);
        let block = blocks.iter().find(live).unwrap();
        assert_eq!((block.small, block.requested_bytes), (is_small, bytes));
        for (offset, is_inside) in [(0, true), (bytes - 1, true), (bytes, false)] {
            let found = device.allocation_around(addr.offset(offset));
            assert_eq!(found.is_some(), is_inside, "byte {offset} of {bytes}");
        }
        device.free(addr, 0, StreamId::DEFAULT).unwrap();
    }
}

/// A stream that was promised to live is waited for by its events; once it is forgotten, nobody waits for it.
#[test]
fn a_stream_that_is_forgotten() {
    let process = models();
    let device = process.device(0).unwrap();
    let driver = device.allocator().driver();
    let stream = driver.create_stream().unwrap();
    device.keep_stream(stream).unwrap();
    let block = device.alloc(&Request::new(64 * MIB, stream)).unwrap();
    driver.fill(stream, block, 512, 1).unwrap();
    device.forget_stream(stream).unwrap();
    driver.destroy_stream(stream).unwrap();
    device.free(block, 0, StreamId::DEFAULT).unwrap();
    let all = device.alloc(&request(64)).unwrap();
    let stats = device.stats();
    assert_eq!((stats.host_waits, stats.driver_calls[DriverCall::Synchronize]), (0, 0));
    device.free(all, 0, StreamId::DEFAULT).unwrap();
}

/// With `ipc:private`, blocks of a page and more take whole pages, also at addresses that they had before.
#[test]
fn private_blocks_come_back_whole() {
    let process = Process::new(|ordinal, _| {
        Ok(Simulated::model(ordinal, ModelConfig { capacity_bytes: 64 * MIB, ..ModelConfig::default() }))
    });
    process.configure("ipc:private").unwrap();
    let device = process.device(0).unwrap();
    for (bytes, taken) in [(3 * MIB, 4 * MIB), (2 * MIB, 2 * MIB), (4096, 4096)] {
        let addr = device.alloc(&Request::new(bytes, StreamId::DEFAULT)).unwrap();
        let live = device.live_blocks(None);
        assert_eq!((live.len(), live[0].bytes), (1, taken));
        device.free(addr, 0, StreamId::DEFAULT).unwrap();
        device.alloc_again(addr, bytes).unwrap();
        assert_eq!(device.live_blocks(None), live);
        device.free(addr, 0, StreamId::DEFAULT).unwrap();
    }
}

/// With `ipc:private`, nothing is left of earlier blocks in one of a page and more, not even where it was not asked for.
#[test]
fn private_blocks_are_cleared() {
    let process = Process::new(|_, _| {
        let host = HostDriver::new(HostConfig { capacity_bytes: 64 * MIB, ..HostConfig::default() });
        Ok(FaultDriver::new(host.expect("memory")))
    });
    process.configure("ipc:private").unwrap();
    let device = process.device(0).unwrap();
    let driver = device.allocator().driver();
    let (stream, request) = (StreamId::DEFAULT, Request::new(3 * MIB, StreamId::DEFAULT));
    let bytes_at = |addr| {
        let memory = driver.host_alloc(4 * MIB).unwrap();
        driver.copy_out(stream, memory, 0, addr, 4 * MIB).unwrap();
        driver.synchronize(stream).unwrap();
        let mut seen = Vec::new();
        driver.host_read(memory, 0, 4 * MIB, &mut |bytes| seen = bytes.to_vec()).unwrap();
        driver.host_free(memory).unwrap();
        seen
    };
    let block = device.alloc(&request).unwrap();
    driver.fill(stream, block, 4 * MIB, 1).unwrap();
    device.free(block, 0, stream).unwrap();
    let again = device.alloc(&request).unwrap();
    assert_eq!(again, block);
    assert!(bytes_at(again).iter().all(|byte| *byte == 0));
    device.free(again, 0, stream).unwrap();
    driver.arm(Fault::nth(0, DriverErrorKind::Other).only([DriverCall::Clear]));
    let refused = device.alloc(&request).unwrap_err();
    assert!(matches!(&refused, AllocError::Driver(error) if error.call == DriverCall::Clear), "{refused}");
    assert_eq!(device.live_blocks(None).len(), 0);
    // A small block lies beside others, which it shows as ever.
    let before = driver.passed()[DriverCall::Clear];
    let small = device.alloc(&Request::new(4096, stream)).unwrap();
    assert_eq!(driver.passed()[DriverCall::Clear], before);
    device.free(small, 0, stream).unwrap();
}

/// A thread that has ended has begun no capture for the pool that it left open without a request.
#[test]
fn a_pool_left_open_by_a_thread_that_has_ended_keeps_no_other() {
    let process = models();
    let device = process.device(0).unwrap();
    std::thread::scope(|scope| scope.spawn(|| device.pools().begin((1, 1)).unwrap()).join().unwrap());
    device.pools().begin(POOL).unwrap();
    let block = device.alloc(&request(40)).unwrap();
    device.free(block, 0, StreamId::DEFAULT).unwrap();
    device.pools().end(POOL);
    device.pools().release(POOL);
    let all = device.alloc(&request(64)).unwrap();
    device.free(all, 0, StreamId::DEFAULT).unwrap();
    device.pools().end((1, 1));
    device.pools().release((1, 1));
    device.trim(0).unwrap();
    assert_eq!(device.figures(None).unwrap().reserved_bytes, 0);
}

/// All of the budget was lent to a pool that could not be served by it either, and which holds nothing when it ends.
#[test]
fn a_pool_that_got_nothing_gives_its_loan_back() {
    let process = models();
    let device = process.device(0).unwrap();
    device.pools().add_user(POOL).unwrap();
    device.set_budget(2 * MIB).unwrap();
    assert!(device.alloc_worded(Place::Pool(POOL), &request(4), |error| error).is_err());
    device.pools().release(POOL);
    device.alloc(&request(2)).unwrap();
}

#[test]
fn a_request_that_several_allocators_refuse_failed_once() {
    let process = models();
    let device = process.device(0).unwrap();
    device.pools().begin(POOL).unwrap();
    device.alloc(&request(65)).unwrap_err();
    device.pools().end(POOL);
    assert_eq!(device.stats().failed_allocs, 1);
}

#[test]
fn counts_outlive_a_pool_and_can_be_reset_for_pytorch() {
    let process = models();
    let device = process.device(0).unwrap();
    let own = device.alloc(&request(8)).unwrap();
    device.pools().begin(POOL).unwrap();
    let pooled = device.alloc(&request(16)).unwrap();
    device.pools().end(POOL);
    let held = device.stats();
    device.free(pooled, 0, StreamId::DEFAULT).unwrap();
    device.pools().release(POOL);
    device.trim(0).unwrap();
    let ended = device.figures(None).unwrap();
    assert_eq!((ended.live_bytes, ended.allocated_bytes, ended.freed_bytes), (8 * MIB, 24 * MIB, 16 * MIB));
    assert_eq!((ended.allocs, ended.frees, ended.live_allocations), (2, 1, 1));
    assert_eq!((ended.created_bytes, ended.created_chunks), (held.created_bytes, held.created_chunks));
    assert_eq!(ended.released_bytes, held.reserved_bytes - ended.reserved_bytes);
    assert_eq!((ended.peak_live_bytes, ended.peak_reserved_bytes), (24 * MIB, held.reserved_bytes));
    assert_eq!((ended.peak_live_allocations, ended.peak_active_bytes), (2, 24 * MIB), "what `held` has shown");

    device.reset_counts();
    let since = device.figures_since_reset(None).unwrap();
    assert_eq!((since.allocs, since.frees, since.allocated_bytes, since.released_bytes), (0, 0, 0, 0));
    assert_eq!((since.live_bytes, since.peak_live_bytes), (8 * MIB, 24 * MIB), "only counts are reset");
    assert_eq!(device.figures(None).unwrap(), ended, "the others go on");
    device.free(own, 0, StreamId::DEFAULT).unwrap();
    let since = device.figures_since_reset(None).unwrap();
    assert_eq!((since.allocs, since.frees, since.freed_bytes), (0, 1, 8 * MIB));
    device.reset_peaks();
    let now = device.figures(None).unwrap();
    assert_eq!((now.peak_live_bytes, now.peak_live_allocations, now.peak_active_bytes), (0, 0, 0));
}

#[test]
fn pinned_registered_and_recorded() {
    let process = models();
    let device = process.device(0).unwrap();
    let addr = device.alloc(&request(4)).unwrap();
    device.pin(addr).unwrap();
    device.free(addr, 0, StreamId::DEFAULT).unwrap();
    assert!(device.trim(0).unwrap().held_bytes > 0, "what is pinned stays");
    device.unpin(addr).unwrap();
    assert!(matches!(device.unpin(addr), Err(Error::NotPinned(_))));
    let block = device.alloc_registered(1, StreamId::DEFAULT).unwrap();
    device.record_registered(block, StreamId::DEFAULT).unwrap();
    match device.registered_dma_buf(block) {
        Err(Error::Alloc(AllocError::Driver(error))) => assert_eq!(error.kind, DriverErrorKind::NotSupported),
        other => panic!("{other:?}"),
    }
    device.free_registered(block).unwrap();
    assert!(matches!(device.free_registered(block), Err(Error::NotRegistered(_))));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.trace");
    device.main().record(&path).unwrap();
    assert!(matches!(device.main().record(&path), Err(Error::Recording)));
    let addr = device.alloc(&request(4)).unwrap();
    device.free(addr, 0, StreamId::DEFAULT).unwrap();
    process.end();
    assert!(matches!(device.main().stop_recording(), Err(Error::NotRecording)));
    assert!(std::fs::read_to_string(path).unwrap().contains("device model"));
}

/// Several threads work with one registered block: it is there for each of them, until one frees it.
#[test]
fn a_registered_block_is_there_while_others_work_with_it() {
    let process = models();
    let device = process.device(0).unwrap();
    for _ in 0..20 {
        let block = device.alloc_registered(1, StreamId::DEFAULT).unwrap();
        let missing = AtomicUsize::new(0);
        let use_it = || {
            for _ in 0..2_000 {
                let recorded = device.record_registered(block, StreamId::DEFAULT);
                let exported = device.registered_dma_buf(block);
                let is_missing = |error: &Error| matches!(error, Error::NotRegistered(_));
                let count = usize::from(recorded.is_err_and(|error| is_missing(&error)))
                    + usize::from(exported.is_err_and(|error| is_missing(&error)));
                missing.fetch_add(count, Ordering::Relaxed);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(use_it);
            }
        });
        assert_eq!(missing.into_inner(), 0, "of 12,000");
        // Freed while others work with it, it is freed, and once.
        let freed: usize = std::thread::scope(|scope| {
            let recorder = scope.spawn(|| while device.record_registered(block, StreamId::DEFAULT).is_ok() {});
            let frees = [(); 2].map(|()| scope.spawn(|| usize::from(device.free_registered(block).is_ok())));
            recorder.join().unwrap();
            frees.into_iter().map(|free| free.join().unwrap()).sum()
        });
        assert_eq!((freed, device.allocator().stats().registered_bytes), (1, 0));
    }
}

/// A recording has every allocation and free, those at a former address and the marks of steps too.
#[test]
fn a_recording_has_all_that_happened() {
    let process = models();
    let device = process.device(0).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.trace");
    device.main().record(&path).unwrap();
    let addr = device.alloc(&request(4)).unwrap();
    device.free(addr, 0, StreamId::DEFAULT).unwrap();
    device.main().mark("step");
    device.alloc_again(addr, 4 * MIB).unwrap();
    device.free(addr, 0, StreamId::DEFAULT).unwrap();
    device.main().stop_recording().unwrap();
    let trace = gapless_trace::Trace::open(&path).unwrap();
    let (alloc, free) = (Op::Alloc { slot: 0, stream: 0, tag: 0, bytes: 4 * MIB }, Op::Free { slot: 0 });
    assert_eq!(trace.ops(), [alloc, free, Op::Mark { label: 0 }, alloc, free]);
}

/// A recording says which request was refused, on which device, and distinguishes the default streams of threads.
#[test]
fn a_recording_has_what_advice_needs() {
    let process = models();
    let device = process.device(0).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.trace");
    device.main().record(&path).unwrap();
    let per_thread = Request::new(4 * MIB, stream_of(2));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| device.alloc(&per_thread).unwrap()).join().unwrap();
        }
    });
    assert!(matches!(device.alloc(&request(1 << 30)), Err(AllocError::OutOfMemory(_) | AllocError::TooLarge { .. })));
    device.main().stop_recording().unwrap();
    let trace = gapless_trace::Trace::open(&path).unwrap();
    assert_eq!(trace.streams(), [1, 2, 0]);
    assert_eq!(trace.failed_request().map(|failed| failed.bytes), Some(1 << 50));
    let total = device.main().allocator().driver().total_bytes();
    assert_eq!(trace.header().capacity_bytes, Some(total));
    let budget = device.main().allocator().budget();
    assert_eq!(gapless_trace::Device::for_trace(&trace).unwrap().capacity_bytes, total.min(budget));
}
