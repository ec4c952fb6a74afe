//! Reaches the kernel's limit of mappings. The only test in its process, which gets close to the limit.

use gapless::driver::{DriverErrorKind, HostConfig, HostDriver, MemoryDriver};
use gapless::units::KIB;

#[test]
fn reaching_the_kernels_limit_is_out_of_memory() {
    let limit: usize = match std::fs::read_to_string("/proc/sys/vm/max_map_count") {
        Ok(text) => text.trim().parse().unwrap(),
        Err(error) => return eprintln!("skipped: the limit cannot be read: {error}"),
    };
    if limit > 100_000 {
        return eprintln!("skipped: the limit of {limit} mappings was raised");
    }
    const PAGE: u64 = 64 * KIB;
    let config = HostConfig { granularity: PAGE, ..HostConfig::default() };
    let driver = HostDriver::new(config).unwrap();
    let pages = 2 * limit as u64;
    let addr = driver.reserve(pages * PAGE, PAGE).unwrap();
    let chunk = driver.create(PAGE).unwrap();
    // Map every second page, so that each mapping splits the reservation again.
    let at = |index: u64| addr.offset(2 * index * PAGE);
    let mut mapped = 0;
    let error = loop {
        let step = driver.map(at(mapped), PAGE, chunk).and_then(|()| {
            mapped += 1;
            driver.set_access(at(mapped - 1), PAGE)
        });
        if let Err(error) = step {
            break error;
        }
    };
    let usage = driver.usage();
    for index in 0..mapped {
        driver.unmap(at(index), PAGE).unwrap();
    }
    assert_eq!(error.kind, DriverErrorKind::OutOfMemory, "{error}");
    assert_eq!(usage.mappings as u64, mapped);
    assert!(mapped > limit as u64 / 3, "{mapped} mappings at a limit of {limit}");
    driver.map(addr, PAGE, chunk).unwrap();
    driver.set_access(addr, PAGE).unwrap();
    driver.unmap(addr, PAGE).unwrap();
    driver.release(chunk).unwrap();
    driver.address_free(addr, pages * PAGE).unwrap();
    assert!(driver.usage().is_empty() && driver.take_violations().is_empty());
}
