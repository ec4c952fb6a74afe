//! An exporter and an importer in one process, on drivers of their own.

mod exposed;
mod holders;
mod keep_closed;

use gapless::allocator::{Backup, FreeError};
use gapless::driver::{DriverCall, DriverErrorKind, Fault, FaultDriver, HostConfig, HostDriver, WorkDriver};
use gapless::units::{DeviceAddr, GIB, StreamId};
use gapless::{Allocator, ChunkPolicy};
use gapless_share::{Exporter, FOLDER, HANDLE_BYTES, Handle, Importer, MOST_DESCRIPTORS, ShareError};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const PAGE: u64 = 2 << 20;
const MAIN: StreamId = StreamId::DEFAULT;

type Device = FaultDriver<HostDriver>;

/// One test at a time, since descriptors of the process are counted, with a folder for sockets.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    static PLACE: LazyLock<tempfile::TempDir> = LazyLock::new(|| tempfile::tempdir().unwrap());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: whatever else this process does at the same time reads the environment through std, if at all, which locks it.
    unsafe { std::env::set_var(FOLDER, PLACE.path().join("sockets")) };
    turn
}

fn device(capacity_bytes: u64) -> Arc<Device> {
    Arc::new(FaultDriver::new(HostDriver::new(HostConfig { capacity_bytes, ..HostConfig::default() }).unwrap()))
}

fn allocator(capacity: u64, chunk: u64) -> Allocator<Device> {
    Allocator::builder(device(capacity)).chunk_policy(ChunkPolicy::Fixed(chunk)).build().unwrap()
}

fn fill(driver: &Device, addr: DeviceAddr, bytes: u64, seed: u64) {
    driver.fill(MAIN, addr, bytes, seed).unwrap();
    driver.synchronize(MAIN).unwrap();
}

fn holds(driver: &Device, addr: DeviceAddr, bytes: u64, seed: u64) -> bool {
    driver.verify(MAIN, addr, bytes, seed).unwrap();
    driver.synchronize(MAIN).unwrap();
    driver.take_mismatches().is_empty()
}

/// Number of descriptors that this process has open, without those of sockets and events.
fn descriptors() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|entry| entry.path().read_link().ok());
    links.filter(|link| link.to_string_lossy().contains("memfd")).count()
}

/// Waits until the exporter's thread has seen something.
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let mut waited = 0;
    while !holds() {
        assert!(waited < 2000, "{what}");
        waited += 1;
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_same_bytes_on_both_sides() {
    let _turn = turn();
    let (allocator, exporter) = (allocator(64 * PAGE, PAGE), Exporter::new());
    let target = device(64 * PAGE);
    let importer = Importer::new(Arc::clone(&target));
    let block = allocator.alloc_raw(5 * PAGE, MAIN).unwrap();
    fill(allocator.driver(), block, 5 * PAGE, 1);
    let handle = exporter.export(&allocator, block).unwrap();
    assert_eq!(exporter.export(&allocator, block).unwrap(), handle, "one block, one handle");
    let handle = Handle::from_bytes(&handle.to_bytes()).unwrap();

    let shared = importer.open(&handle).unwrap();
    assert_eq!((shared.bytes(), shared.mapped_bytes(), importer.imported_chunks()), (5 * PAGE, 5 * PAGE, 5));
    assert!(holds(&target, shared.addr(), 5 * PAGE, 1));
    fill(&target, shared.addr(), 5 * PAGE, 2);
    assert!(holds(allocator.driver(), block, 5 * PAGE, 2));

    // Open already: no call to the driver.
    let before = target.passed();
    let again = importer.open(&handle).unwrap();
    assert_eq!(again.addr(), shared.addr());
    drop(shared);
    assert_eq!(target.passed(), before);

    // The owner frees it: it is a block no more, but stays as it is until it is closed.
    allocator.free(block).unwrap();
    allocator.trim(0).unwrap();
    assert_eq!(allocator.stats().reserved_bytes, 5 * PAGE);
    let next = allocator.alloc_raw(5 * PAGE, MAIN).unwrap();
    fill(allocator.driver(), next, 5 * PAGE, 3);
    assert!(holds(&target, again.addr(), 5 * PAGE, 2));
    drop(again);
    assert!(target.inner().usage().is_empty(), "{:?}", target.inner().usage());
    assert!(matches!(importer.open(&handle), Err(ShareError::Gone)));
    allocator.free(next).unwrap();
    allocator.trim(0).unwrap();
    assert_eq!(allocator.stats().reserved_bytes, 0);
    allocator.check();
}

/// An offer of a block that sleeps is gone, and good again after the wake, when the block is in other chunks. One that is open
/// stays awake.
#[test]
fn a_block_that_has_slept_is_opened_where_it_is() {
    let _turn = turn();
    let (allocator, exporter) = (allocator(64 * PAGE, PAGE), Exporter::new());
    let target = device(64 * PAGE);
    let importer = Importer::new(Arc::clone(&target));
    let block = allocator.alloc_raw(3 * PAGE, MAIN).unwrap();
    fill(allocator.driver(), block, 3 * PAGE, 1);
    let handle = exporter.export(&allocator, block).unwrap();
    allocator.sleep(Backup::Pinned).unwrap();
    assert!(matches!(importer.open(&handle), Err(ShareError::Gone)));
    let refused = exporter.export(&allocator, block).unwrap_err();
    assert!(matches!(refused, ShareError::NotAllocated(FreeError::Asleep { .. })), "{refused}");
    // The chunks that it was in are others' now.
    let other = allocator.alloc_raw(3 * PAGE, MAIN).unwrap();
    fill(allocator.driver(), other, 3 * PAGE, 2);
    allocator.wake(Duration::ZERO).unwrap();
    let shared = importer.open(&handle).unwrap();
    assert!(holds(&target, shared.addr(), 3 * PAGE, 1), "other memory than that of the block");
    assert_eq!(exporter.export(&allocator, block).unwrap(), handle, "one block, one handle");
    let slept = allocator.sleep(Backup::Pinned).unwrap();
    assert_eq!(slept.left_awake.pinned_bytes, 3 * PAGE);
    fill(&target, shared.addr(), 3 * PAGE, 3);
    assert!(holds(allocator.driver(), block, 3 * PAGE, 3));
    allocator.wake(Duration::ZERO).unwrap();
    drop(shared);
    [block, other].iter().for_each(|block| allocator.free(*block).unwrap());
    allocator.check();
}

#[test]
fn a_freed_block_is_gone_and_never_another_one() {
    let _turn = turn();
    let (allocator, exporter) = (allocator(64 * PAGE, PAGE), Exporter::new());
    let importer = Importer::new(device(64 * PAGE));
    let block = allocator.alloc_raw(PAGE, MAIN).unwrap();
    let stale = exporter.export(&allocator, block).unwrap();
    allocator.free(block).unwrap();
    assert!(matches!(importer.open(&stale), Err(ShareError::Gone)));
    // The next block has its address, its memory and a handle of its own.
    assert_eq!(allocator.alloc_raw(PAGE, MAIN).unwrap(), block);
    let handle = exporter.export(&allocator, block).unwrap();
    assert_ne!(handle, stale);
    assert!(matches!(importer.open(&stale), Err(ShareError::Gone)));
    assert_eq!(importer.open(&handle).unwrap().bytes(), PAGE);
    assert!(matches!(
        exporter.export(&allocator, block.offset(512)),
        Err(ShareError::NotAllocated(FreeError::NotAllocated { .. }))
    ));
}

#[test]
fn forged_handles_open_nothing() {
    let _turn = turn();
    let (allocator, exporter) = (allocator(64 * PAGE, PAGE), Exporter::new());
    let importer = Importer::new(device(64 * PAGE));
    let block = allocator.alloc_raw(PAGE, MAIN).unwrap();
    let good = exporter.export(&allocator, block).unwrap().to_bytes();
    for bit in 24 * 8..40 * 8 {
        let mut forged = good;
        forged[bit / 8] ^= 1 << (bit % 8);
        let handle = Handle::from_bytes(&forged).unwrap();
        assert!(matches!(importer.open(&handle), Err(ShareError::Gone)), "bit {bit} of the token");
    }
    for length in [0, 8, 191] {
        assert!(matches!(Handle::from_bytes(&good[..length]), Err(ShareError::NoHandle)));
    }
    // The last one is the last of the path; the device follows.
    for at in [0, 7, 40, 41, HANDLE_BYTES - 17] {
        let mut forged = good;
        forged[at] = 0xff - forged[at];
        assert!(matches!(Handle::from_bytes(&forged), Err(ShareError::NoHandle)), "byte {at}");
    }
    assert!(importer.open(&Handle::from_bytes(&good).unwrap()).is_ok());
}

#[test]
fn an_exporter_that_ended_is_said_at_once() {
    let _turn = turn();
    let allocator = allocator(64 * PAGE, PAGE);
    let importer = Importer::new(device(64 * PAGE));
    let block = allocator.alloc_raw(PAGE, MAIN).unwrap();
    fill(allocator.driver(), block, PAGE, 1);
    let exporter = Exporter::new();
    let handle = exporter.export(&allocator, block).unwrap();
    let shared = importer.open(&handle).unwrap();
    let other = allocator.alloc_raw(PAGE, MAIN).unwrap();
    let other = exporter.export(&allocator, other).unwrap();
    drop(exporter);
    for _ in 0..2 {
        assert!(matches!(importer.open(&other), Err(ShareError::ExporterGone(_))));
    }
    // What is open stays, and its memory is nobody else's, though nobody counts any more.
    allocator.free(block).unwrap();
    let target = importer.open(&handle).unwrap();
    assert_eq!(target.addr(), shared.addr());
    let more = allocator.alloc_raw(PAGE, MAIN).unwrap();
    assert_ne!(more, block);
}

/// Every call of both sides fails once: the error is the injected one, nothing is left of it, and the next try succeeds.
#[test]
fn every_call_fails_once() {
    let _turn = turn();
    let (allocator, exporter) = (allocator(256 * PAGE, PAGE), Exporter::new());
    let source = Arc::clone(allocator.driver());
    let target = device(256 * PAGE);
    let importer = Importer::new(Arc::clone(&target));
    // Another block is open all the time, in part on the same chunks.
    let pages = MOST_DESCRIPTORS as u64 + 3;
    let neighbour = allocator.alloc_raw(PAGE / 2, MAIN).unwrap();
    let block = allocator.alloc_raw(pages * PAGE, MAIN).unwrap();
    fill(&source, block, pages * PAGE, 1);
    let neighbour = exporter.export(&allocator, neighbour).unwrap();
    let handle = exporter.export(&allocator, block).unwrap();
    let open = importer.open(&neighbour).unwrap();
    // On host memory a chunk that was exported has a file of its own from then on.
    drop(importer.open(&handle).unwrap());
    let (usage, files) = (target.inner().usage(), descriptors());
    let mut failed = 0;
    for side in [&source, &target] {
        for kind in [DriverErrorKind::OutOfMemory, DriverErrorKind::Other] {
            for nth in 0.. {
                let opening = [
                    DriverCall::Export,
                    DriverCall::Import,
                    DriverCall::Reserve,
                    DriverCall::Map,
                    DriverCall::SetAccess,
                ];
                side.arm(Fault::nth(nth, kind).only(opening));
                let opened = importer.open(&handle);
                let fired = side.fired() > 0;
                side.disarm();
                if !fired {
                    assert!(holds(&target, opened.unwrap().addr(), pages * PAGE, 1));
                    break;
                }
                failed += 1;
                match opened {
                    Err(ShareError::Driver(error)) => assert_eq!(error.kind, kind),
                    Err(ShareError::Refused(_)) => {}
                    other => panic!("{other:?}"),
                }
                assert_eq!(target.inner().usage(), usage, "call {nth}");
                eventually("the exporter has no descriptors left", || descriptors() == files);
                assert_eq!(importer.imported_chunks(), 1);
                allocator.check();
            }
        }
    }
    assert!(failed > 4 * 67, "{failed} calls failed");
    // What cannot be unmapped stays, and goes with the next one.
    let shared = importer.open(&handle).unwrap();
    target.arm(Fault::nth(0, DriverErrorKind::Other).only([DriverCall::Unmap]));
    drop(shared);
    target.disarm();
    allocator.free(block).unwrap();
    allocator.trim(0).unwrap();
    assert_eq!(allocator.stats().pending_bytes, pages * PAGE, "what is mapped there is pinned here");
    assert!(matches!(importer.open(&handle), Err(ShareError::Gone)));
    drop(open);
    assert!(target.inner().usage().is_empty());
    assert_eq!((allocator.stats().pending_bytes, importer.imported_chunks()), (0, 0));
}

/// Where a map fails and the driver does not unmap what was mapped before, its addresses are not given back.
#[test]
fn addresses_of_what_stays_mapped_stay_reserved() {
    let _turn = turn();
    let (allocator, exporter) = (allocator(64 * PAGE, PAGE), Exporter::new());
    let target = device(64 * PAGE);
    let importer = Importer::new(Arc::clone(&target));
    let block = allocator.alloc_raw(2 * PAGE, MAIN).unwrap();
    let handle = exporter.export(&allocator, block).unwrap();
    target.arm(Fault::nth(1, DriverErrorKind::Other).only([DriverCall::Map, DriverCall::Unmap]).from_then_on());
    assert!(matches!(importer.open(&handle), Err(ShareError::Driver(_))));
    assert_eq!(target.fired(), 2, "a map and an unmap");
    target.disarm();
    assert_eq!(target.passed()[DriverCall::AddressFree], 0);
    drop(importer.open(&handle).unwrap());
    assert_eq!(target.passed()[DriverCall::AddressFree], 1);
    allocator.free(block).unwrap();
}

/// A bucket of weights: 170 tensors in 115 chunks, ten rounds. The figures are the ones to compare with one import for each segment
/// and round.
#[test]
fn a_bucket_of_tensors() {
    let _turn = turn();
    let (allocator, exporter) = (allocator(256 * PAGE, PAGE), Exporter::new());
    let target = device(256 * PAGE);
    let importer = Importer::new(Arc::clone(&target));
    let bytes = 115 * PAGE / 170 / 512 * 512;
    let tensors: Vec<DeviceAddr> = (0..170).map(|_| allocator.alloc_raw(bytes, MAIN).unwrap()).collect();
    let handles: Vec<Handle> = tensors.iter().map(|addr| exporter.export(&allocator, *addr).unwrap()).collect();
    let chunks = allocator.stats().reserved_bytes / PAGE;
    assert_eq!(chunks, 115);
    for (keeping, kept) in [("all", true), ("none", false), ("none, but closed blocks stay mapped", false)] {
        let stay_mapped = keeping.contains("mapped");
        importer.keep_closed(if stay_mapped { u64::MAX } else { 0 });
        let before = target.passed()[DriverCall::Import];
        let mut all = Vec::new();
        let (mut most, mut files) = (0, Vec::new());
        for round in 0..10_u64 {
            if !kept {
                all.clear();
            }
            for (tensor, handle) in tensors.iter().zip(&handles) {
                fill(allocator.driver(), *tensor, bytes, round);
                let shared = importer.open(handle).unwrap();
                assert!(holds(&target, shared.addr(), bytes, round));
                most = most.max(importer.imported_chunks());
                all.push(shared);
            }
            files.push(descriptors());
        }
        assert!(files.windows(2).all(|pair| pair[0] == pair[1]), "descriptors after each round: {files:?}");
        let imports = target.passed()[DriverCall::Import] - before;
        println!("170 tensors in {chunks} chunks, 10 rounds, the receiver keeps {keeping}: {imports} imports");
        assert!(imports <= if kept || stay_mapped { chunks } else { 10 * chunks } && most as u64 == chunks);
    }
    importer.keep_closed(0);
    assert!(target.inner().usage().is_empty(), "{:?}", target.inner().usage());
}

/// A block in the middle of a chunk is as large here as there.
#[test]
fn a_block_that_does_not_begin_with_its_chunk() {
    let _turn = turn();
    let (allocator, exporter) = (allocator(8 * PAGE, PAGE), Exporter::new());
    let target = device(8 * PAGE);
    let importer = Importer::new(Arc::clone(&target));
    let blocks = [(); 2].map(|()| allocator.alloc_raw(PAGE / 4, MAIN).unwrap());
    for (seed, block) in (1..).zip(blocks) {
        fill(allocator.driver(), block, PAGE / 4, seed);
    }
    let shared = blocks.map(|block| importer.open(&exporter.export(&allocator, block).unwrap()).unwrap());
    for (seed, one) in (1..).zip(&shared) {
        assert_eq!((one.bytes(), one.mapped_bytes()), (PAGE / 4, PAGE));
        assert!(holds(&target, one.addr(), PAGE / 4, seed));
    }
}

/// An opening that fails does not count as one: once its neighbour is closed too, nothing in the chunk is open.
#[test]
fn a_failed_opening_keeps_no_chunk() {
    let _turn = turn();
    let (allocator, exporter) = (allocator(8 * PAGE, PAGE), Exporter::new());
    let target = device(8 * PAGE);
    let importer = Importer::new(Arc::clone(&target));
    importer.keep_closed(u64::MAX);
    let blocks = [(); 2].map(|()| allocator.alloc_raw(PAGE / 4, MAIN).unwrap());
    let [neighbour, handle] = blocks.map(|block| exporter.export(&allocator, block).unwrap());
    let open = importer.open(&neighbour).unwrap();
    target.arm(Fault::nth(0, DriverErrorKind::Other).only([DriverCall::Map]));
    assert!(matches!(importer.open(&handle), Err(ShareError::Driver(_))));
    target.disarm();
    drop(open);
    // The exporter may have another chunk of that number by now.
    let before = target.passed()[DriverCall::Import];
    drop(importer.open(&handle).unwrap());
    assert_eq!(target.passed()[DriverCall::Import] - before, 1);
}

/// An import takes addresses for the chunks under the block.
#[test]
fn addresses_of_an_import() {
    let _turn = turn();
    let builder = Allocator::builder(device(80 * GIB));
    let (allocator, exporter) = (builder.build().unwrap(), Exporter::new());
    let target = device(80 * GIB);
    let importer = Importer::new(Arc::clone(&target));
    let small = allocator.alloc_raw(4096, MAIN).unwrap();
    let tensor = allocator.alloc_raw(PAGE, MAIN).unwrap();
    let shared = importer.open(&exporter.export(&allocator, tensor).unwrap()).unwrap();
    let reserved = target.inner().usage().address_bytes;
    println!("a tensor of 2 MiB on a device of 80 GiB: {} MiB of addresses", reserved >> 20);
    let chunks: u64 = allocator.pin(tensor).unwrap().chunks().unwrap().iter().map(|chunk| chunk.bytes).sum();
    assert!(reserved == shared.mapped_bytes() && reserved <= chunks + 2 * PAGE);
    allocator.free(small).unwrap();
}

/// Memory that others have open stays where it is while all the rest is moved.
#[test]
fn defragmentation_goes_on_around_what_is_shared() {
    let _turn = turn();
    let (allocator, exporter) = (allocator(64 * PAGE, PAGE), Exporter::new());
    let target = device(64 * PAGE);
    let importer = Importer::new(Arc::clone(&target));
    let blocks: Vec<DeviceAddr> = (0..64).map(|_| allocator.alloc_raw(PAGE, MAIN).unwrap()).collect();
    let mut shared = Vec::new();
    for (number, block) in blocks.iter().enumerate() {
        fill(allocator.driver(), *block, PAGE, number as u64);
        if number % 8 == 0 {
            shared.push((number as u64, importer.open(&exporter.export(&allocator, *block).unwrap()).unwrap()));
        } else if number % 2 == 1 {
            allocator.free(*block).unwrap();
        }
    }
    // 32 pages are free, one by one.
    let large = allocator.alloc_raw(32 * PAGE, MAIN).unwrap();
    fill(allocator.driver(), large, 32 * PAGE, 1000);
    assert!(allocator.stats().harvested_chunks >= 31);
    for (seed, one) in &shared {
        assert!(holds(&target, one.addr(), PAGE, *seed));
        assert!(holds(allocator.driver(), blocks[usize::try_from(*seed).unwrap()], PAGE, *seed));
    }
    allocator.check();
}

#[test]
fn a_consumer_that_ends_gives_back_what_it_had_open() {
    let _turn = turn();
    let (allocator, exporter) = (allocator(64 * PAGE, PAGE), Exporter::new());
    let block = allocator.alloc_raw(PAGE, MAIN).unwrap();
    let handle = exporter.export(&allocator, block).unwrap();
    let importer = Importer::new(device(64 * PAGE));
    let shared = importer.open(&handle).unwrap();
    allocator.free(block).unwrap();
    assert_eq!(allocator.stats().pending_bytes, PAGE);
    // The importer's end closes its connection; the mapping keeps it until then.
    drop(importer);
    assert_eq!(allocator.stats().pending_bytes, PAGE);
    drop(shared);
    eventually("the page is back", || {
        allocator.trim(0).unwrap();
        allocator.stats().reserved_bytes == 0
    });
}

/// A block that a forked process drops is its parent's.
#[test]
fn a_block_that_is_dropped_in_a_forked_process_stays_open() {
    let _turn = turn();
    let (allocator, exporter) = (allocator(8 * PAGE, PAGE), Exporter::new());
    let block = allocator.alloc_raw(PAGE, MAIN).unwrap();
    fill(allocator.driver(), block, PAGE, 1);
    let target = device(8 * PAGE);
    let importer = Importer::new(Arc::clone(&target));
    let shared = importer.open(&exporter.export(&allocator, block).unwrap()).unwrap();
    let addr = shared.addr();
    // SAFETY: the child drops a block and ends at once, without what runs at the end of a process.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(shared);
        // SAFETY: no condition.
        unsafe { libc::_exit(0) };
    }
    let mut status = 1;
    // SAFETY: the out-parameter is valid.
    assert_eq!((unsafe { libc::waitpid(child, &raw mut status, 0) }, status), (child, 0));
    allocator.free(block).unwrap();
    assert_eq!(allocator.stats().pending_bytes, PAGE, "it is open still");
    assert!(holds(&target, addr, PAGE, 1));
    drop(shared);
    assert_eq!(allocator.stats().pending_bytes, 0);
}

/// A profiler's timer, a debugger and a garbage collector interrupt system calls: the call is made again.
#[test]
fn signals_interrupt_no_import() {
    extern "C" fn interrupt(_: libc::c_int) {}
    let _turn = turn();
    // SAFETY: all zeroes is an action: the default one, no flags, so that interrupted calls are not made again.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = interrupt as *const () as usize;
    // SAFETY: the action is complete, and its handler does nothing.
    assert_eq!(unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()) }, 0);
    let (allocator, exporter) = (allocator(8 * PAGE, PAGE), Exporter::new());
    let block = allocator.alloc_raw(4 * PAGE, MAIN).unwrap();
    let handle = exporter.export(&allocator, block).unwrap();
    let is_over = AtomicBool::new(false);
    // SAFETY: no condition.
    let importing = unsafe { libc::pthread_self() };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                // SAFETY: the thread is alive until the scope ends.
                unsafe { libc::pthread_kill(importing, libc::SIGUSR1) };
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        let target = device(64 * PAGE);
        let opened: Vec<_> = (0..100).map(|_| Importer::new(Arc::clone(&target)).open(&handle)).collect();
        is_over.store(true, Ordering::Relaxed);
        assert!(opened.iter().all(Result::is_ok), "{:?}", opened.iter().find(|opened| opened.is_err()));
    });
}
