//! Chunks that are exported and imported: within a process, and between two that share the simulated device's memory.

#[path = "simulated/processes.rs"]
mod processes;
mod simulated;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use gapless::StreamId;
use gapless::driver::cuda::{CudaDriver, Sharing};
use gapless::driver::{
    ChunkHandle, DriverCall, DriverErrorKind, Fault, FaultDriver, HostConfig, HostDriver, MemoryDriver, ModelConfig,
    ModelDriver, StreamDriver, WorkDriver,
};
use gapless::units::{DeviceAddr, MIB};
use processes::{Peer, given, say_and_wait, with_shared_device};

const MAIN: StreamId = StreamId::DEFAULT;
const PAGE: u64 = 2 * MIB;
const CAPACITY: u64 = 64 * MIB;
const OWN: u64 = PAGE;

fn host() -> HostDriver {
    HostDriver::new(HostConfig { capacity_bytes: CAPACITY, ..HostConfig::default() }).unwrap()
}

/// Opens the simulated device. From its first work on, a driver holds [`OWN`] bytes for what its checks find.
fn simulated() -> CudaDriver {
    let driver = simulated::open(simulated::builder()).unwrap();
    let chunk = driver.create(PAGE).unwrap();
    let addr = map(&driver, chunk, PAGE);
    fill(&driver, addr, PAGE, 0);
    assert!(holds(&driver, addr, PAGE, 0));
    driver.unmap(addr, PAGE).unwrap();
    driver.release(chunk).unwrap();
    driver.address_free(addr, PAGE).unwrap();
    driver
}

/// Maps a chunk with access in a reservation of its own.
fn map(driver: &impl MemoryDriver, chunk: ChunkHandle, bytes: u64) -> DeviceAddr {
    let addr = driver.reserve(bytes, PAGE).unwrap();
    driver.map(addr, bytes, chunk).unwrap();
    driver.set_access(addr, bytes).unwrap();
    addr
}

fn holds(driver: &impl WorkDriver, addr: DeviceAddr, bytes: u64, seed: u64) -> bool {
    driver.verify(MAIN, addr, bytes, seed).unwrap();
    driver.synchronize(MAIN).unwrap();
    driver.take_mismatches().is_empty()
}

fn fill(driver: &impl WorkDriver, addr: DeviceAddr, bytes: u64, seed: u64) {
    driver.fill(MAIN, addr, bytes, seed).unwrap();
    driver.synchronize(MAIN).unwrap();
}

fn free(driver: &impl MemoryDriver) -> u64 {
    driver.memory_info().unwrap().free
}

#[test]
fn an_exported_chunk_keeps_its_bytes_mappings_and_access() {
    let driver = host();
    let chunk = driver.create(PAGE).unwrap();
    let (first, second) = (map(&driver, chunk, PAGE), map(&driver, chunk, PAGE));
    let inaccessible = driver.reserve(PAGE, PAGE).unwrap();
    driver.map(inaccessible, PAGE, chunk).unwrap();
    fill(&driver, first, PAGE, 1);
    let descriptor = driver.export(chunk).unwrap();
    assert!(holds(&driver, first, PAGE, 1) && holds(&driver, second, PAGE, 1));
    fill(&driver, second, PAGE, 2);
    let again = driver.import(descriptor.as_fd(), PAGE).unwrap();
    let third = map(&driver, again, PAGE);
    assert!(holds(&driver, first, PAGE, 2) && holds(&driver, third, PAGE, 2));
    driver.fill(MAIN, inaccessible, PAGE, 3).unwrap_err();
    assert_eq!(driver.take_violations().len(), 1);

    // The memory is counted once, and free when the last handle and mapping are gone.
    assert_eq!((free(&driver), driver.shared_chunks().len()), (CAPACITY - PAGE, 1));
    driver.release(chunk).unwrap();
    for addr in [first, second, inaccessible] {
        driver.unmap(addr, PAGE).unwrap();
    }
    driver.unmap(third, PAGE).unwrap();
    assert_eq!(free(&driver), CAPACITY - PAGE);
    driver.release(again).unwrap();
    assert_eq!((free(&driver), driver.shared_chunks().len()), (CAPACITY, 0));
    driver.release(again).unwrap_err();
}

#[test]
fn work_that_is_queued_finds_the_bytes_that_moved() {
    let bytes = CAPACITY / 2;
    for seed in 1..10 {
        // Memory that was never written is slow to fill and quick to copy, so that the copy would overtake the fill.
        let driver = host();
        let chunk = driver.create(bytes).unwrap();
        let addr = map(&driver, chunk, bytes);
        let before = driver.event_create().unwrap();
        driver.event_record(before, MAIN).unwrap();
        driver.fill(MAIN, addr, bytes, seed).unwrap();
        driver.verify(MAIN, addr, bytes, seed).unwrap();
        driver.event_synchronize(before).unwrap();
        let descriptor = driver.export(chunk).unwrap();
        driver.synchronize(MAIN).unwrap();
        assert_eq!(driver.take_mismatches(), []);
        let other = host();
        let imported = other.import(descriptor.as_fd(), bytes).unwrap();
        assert!(holds(&other, map(&other, imported, bytes), bytes, seed));
    }
}

#[test]
fn an_import_outlives_the_exporting_driver() {
    let driver = host();
    let chunk = driver.create(PAGE).unwrap();
    fill(&driver, map(&driver, chunk, PAGE), PAGE, 1);
    let descriptor = driver.export(chunk).unwrap();
    let other = host();
    let imported = other.import(descriptor.as_fd(), PAGE).unwrap();
    drop((driver, descriptor));
    assert!(holds(&other, map(&other, imported, PAGE), PAGE, 1));
}

#[test]
fn other_descriptors_sizes_and_handles_are_refused() {
    let driver = host();
    let chunk = driver.create(PAGE).unwrap();
    let descriptor = driver.export(chunk).unwrap();
    let file = tempfile::tempfile().unwrap();
    file.set_len(PAGE).unwrap();
    for (descriptor, bytes) in [(descriptor.as_fd(), 2 * PAGE), (descriptor.as_fd(), 0), (file.as_fd(), PAGE)] {
        let error = driver.import(descriptor, bytes).unwrap_err();
        assert_eq!((error.call, error.kind), (DriverCall::Import, DriverErrorKind::InvalidValue));
    }
    driver.release(chunk).unwrap();
    let error = driver.export(chunk).unwrap_err();
    assert_eq!((error.call, error.kind), (DriverCall::Export, DriverErrorKind::InvalidValue));
    assert_eq!(driver.take_violations().len(), 1);

    let model = ModelDriver::new(ModelConfig::default());
    let chunk = model.create(model.granularity()).unwrap();
    assert_eq!(model.export(chunk).unwrap_err().kind, DriverErrorKind::NotSupported);
    assert_eq!(model.import(descriptor.as_fd(), PAGE).unwrap_err().kind, DriverErrorKind::NotSupported);
}

#[test]
fn injected_faults_change_nothing() {
    let driver = FaultDriver::new(host());
    let chunk = driver.create(PAGE).unwrap();
    driver.arm(Fault::nth(0, DriverErrorKind::OutOfMemory).only([DriverCall::Export]));
    assert_eq!(driver.export(chunk).unwrap_err().kind, DriverErrorKind::OutOfMemory);
    let descriptor = driver.export(chunk).unwrap();
    driver.arm(Fault::nth(0, DriverErrorKind::OutOfMemory).only([DriverCall::Import]));
    assert_eq!(driver.import(descriptor.as_fd(), PAGE).unwrap_err().kind, DriverErrorKind::OutOfMemory);
    let imported = driver.import(descriptor.as_fd(), PAGE).unwrap();
    driver.release(imported).unwrap();
    driver.release(chunk).unwrap();
    assert_eq!(free(&driver), CAPACITY);
}

#[test]
fn the_simulated_library_refuses_what_a_device_does() {
    let driver = simulated();
    let file = tempfile::tempfile().unwrap();
    assert_eq!(driver.import(file.as_fd(), PAGE).unwrap_err().kind, DriverErrorKind::InvalidValue);
    let private = simulated::open(simulated::builder().sharing(Sharing::Never)).unwrap();
    let chunk = private.create(PAGE).unwrap();
    assert_eq!(private.export(chunk).unwrap_err().kind, DriverErrorKind::InvalidValue);
    private.release(chunk).unwrap();

    let chunk = driver.create(PAGE).unwrap();
    let descriptor = driver.export(chunk).unwrap();
    let same = driver.import(descriptor.as_fd(), PAGE).unwrap();
    driver.release(chunk).unwrap();
    let addr = map(&driver, same, PAGE);
    fill(&driver, addr, PAGE, 1);
    assert!(holds(&driver, addr, PAGE, 1));
    driver.release(same).unwrap();
    driver.unmap(addr, PAGE).unwrap();
}

/// Returns what a peer finds an inherited descriptor by.
fn number_of(inherited: &OwnedFd) -> String {
    inherited.as_raw_fd().to_string()
}

/// Opens a descriptor of another process.
fn of_process(process: u32, number: &str) -> OwnedFd {
    let path = format!("/proc/{process}/fd/{number}");
    std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap().into()
}

#[test]
fn two_processes_write_to_the_same_memory() {
    let test = "two_processes_write_to_the_same_memory";
    let main = || {
        let driver = simulated();
        let chunk = driver.create(2 * PAGE).unwrap();
        let addr = map(&driver, chunk, 2 * PAGE);
        fill(&driver, addr, PAGE, 1);
        let descriptor = driver.export(chunk).unwrap();
        let inherited = rustix::io::dup(&descriptor).unwrap();
        let both = CAPACITY - 3 * PAGE - 2 * OWN;
        let mut peer = Peer::start(test, &number_of(&inherited));
        assert_eq!(peer.says(), both.to_string(), "a chunk counts once, the peer's own once more");
        assert_eq!(free(&driver), both);
        assert!(holds(&driver, addr.offset(PAGE), PAGE, 2) && holds(&driver, addr, PAGE, 1));
        let refused = driver.create(CAPACITY - 2 * PAGE).unwrap_err();
        assert_eq!(refused.kind, DriverErrorKind::OutOfMemory);
        // It stays the peer's when it is released here.
        driver.unmap(addr, 2 * PAGE).unwrap();
        driver.release(chunk).unwrap();
        drop((descriptor, inherited));
        assert_eq!(free(&driver), both);
        peer.end();
        assert_eq!(free(&driver), CAPACITY - OWN);
        let all = driver.create(CAPACITY - OWN).unwrap();
        driver.release(all).unwrap();
    };
    let peer = || {
        let driver = simulated();
        let number = given();
        let descriptor = of_process(std::process::id(), &number);
        let chunk = driver.import(descriptor.as_fd(), 2 * PAGE).unwrap();
        let addr = map(&driver, chunk, 2 * PAGE);
        assert!(holds(&driver, addr, PAGE, 1));
        fill(&driver, addr.offset(PAGE), PAGE, 2);
        let own = driver.create(PAGE).unwrap();
        say_and_wait(&free(&driver).to_string());
        driver.release(own).unwrap();
    };
    with_shared_device(test, "64MiB", main, peer);
}

#[test]
fn an_exporter_or_importer_that_is_killed_gives_its_memory_back() {
    let test = "an_exporter_or_importer_that_is_killed_gives_its_memory_back";
    let main = || {
        let driver = simulated();
        let mut exporter = Peer::start(test, "");
        let descriptor = of_process(exporter.id(), &exporter.says());
        assert_eq!(free(&driver), CAPACITY - 4 * PAGE - 2 * OWN);
        let chunk = driver.import(descriptor.as_fd(), PAGE).unwrap();
        let addr = map(&driver, chunk, PAGE);
        exporter.kill();
        assert_eq!(free(&driver), CAPACITY - PAGE - OWN, "its own memory is back, the imported chunk is not");
        assert!(holds(&driver, addr, PAGE, 1));

        let inherited = rustix::io::dup(&descriptor).unwrap();
        let mut importer = Peer::start(test, &number_of(&inherited));
        importer.says();
        assert_eq!(free(&driver), CAPACITY - 2 * PAGE - 2 * OWN);
        importer.kill();
        assert_eq!(free(&driver), CAPACITY - PAGE - OWN);
        assert!(holds(&driver, addr, PAGE, 2), "what it wrote is there");
        driver.unmap(addr, PAGE).unwrap();
        driver.release(chunk).unwrap();
        assert_eq!(free(&driver), CAPACITY - OWN);
    };
    let peer = || {
        let driver = simulated();
        let number = given();
        if number.is_empty() {
            let chunk = driver.create(PAGE).unwrap();
            fill(&driver, map(&driver, chunk, PAGE), PAGE, 1);
            let _own = driver.create(3 * PAGE).unwrap();
            say_and_wait(&driver.export(chunk).unwrap().as_raw_fd().to_string());
        } else {
            let descriptor = of_process(std::process::id(), &number);
            let chunk = driver.import(descriptor.as_fd(), PAGE).unwrap();
            fill(&driver, map(&driver, chunk, PAGE), PAGE, 2);
            let _own = driver.create(PAGE).unwrap();
            say_and_wait("written");
        }
    };
    with_shared_device(test, "64MiB", main, peer);
}
