//! What `gapless probe` and the device benchmark share, through the simulated driver library.

#[path = "../../../tests/simulated/mod.rs"]
mod simulated;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gapless::StreamId;
use gapless::driver::MemoryDriver;
use gapless::driver::cuda::CudaDriver;
use gapless_cli::experiments::{Measurements, Pass, reserve_at_most};

/// Opens the one device of the process, for one test at a time: what another test holds would count as this one's.
fn open() -> (CudaDriver, MutexGuard<'static, ()>) {
    static DEVICE: Mutex<()> = Mutex::new(());
    let alone = DEVICE.lock().unwrap_or_else(PoisonError::into_inner);
    (CudaDriver::builder().library(simulated::library()).open().unwrap(), alone)
}

#[test]
fn reservations_back_off() {
    let (driver, _alone) = open();
    let page = driver.granularity();
    let (addr, bytes) = reserve_at_most(&driver, 1 << 60, page, page).unwrap();
    assert!((1 << 30..1 << 60).contains(&bytes), "{bytes}");
    driver.address_free(addr, bytes).unwrap();
}

#[test]
fn measurements_run() {
    let (driver, _alone) = open();
    let before = driver.memory_info().unwrap().free;
    let bytes = 4 * driver.granularity();
    let addr = driver.reserve(bytes, driver.granularity()).unwrap();
    let chunk = driver.create(bytes).unwrap();
    driver.map(addr, bytes, chunk).unwrap();
    driver.set_access(addr, bytes).unwrap();
    driver.release(chunk).unwrap();

    let measurements = Measurements::new(&driver).unwrap();
    for pass in [Pass::Write, Pass::Copy, Pass::Read] {
        assert!(measurements.stream_over(StreamId::DEFAULT, pass, addr, bytes).unwrap() > Duration::ZERO);
    }
    assert!(measurements.stream_over(StreamId::DEFAULT, Pass::Read, addr.offset(8), 64).is_err());
    let latency = measurements.pointer_chase(StreamId::DEFAULT, addr, 1024, 4096, 10_000).unwrap();
    assert!(latency.cycles > 0.0 && latency.nanoseconds > 0.0);
    assert!(measurements.pointer_chase(StreamId::DEFAULT, addr, 1000, 4096, 1).is_err());

    drop(measurements);
    driver.unmap(addr, bytes).unwrap();
    assert_eq!(driver.memory_info().unwrap().free, before);
}
