//! Compares gapless on a device with the driver's own allocators, in the same run.
//!
//! It uses device 0 of the installed driver, or of the library in `GAPLESS_BENCH_LIBRARY`. That may be the simulated
//! one, to test that the benchmark runs; its times mean nothing for a GPU. Without a device, the benchmark is skipped.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use gapless::driver::cuda::CudaDriver;
use gapless::driver::{ChunkHandle, MemoryDriver, WorkDriver};
use gapless::units::{GIB, MIB, round_down};
use gapless::{Allocator, ByteSize, ChunkPolicy, DeviceAddr, StreamId};
use gapless_probe::allocators::{mem_alloc_async, mem_free_async};
use gapless_probe::{Measurements, Pass};

const MAIN: StreamId = StreamId::DEFAULT;

fn device() -> Option<Arc<CudaDriver>> {
    let mut builder = CudaDriver::builder();
    if let Some(path) = std::env::var_os("GAPLESS_BENCH_LIBRARY") {
        // SAFETY: it is a driver library, says who runs this.
        builder = unsafe { builder.library(path) };
    }
    // SAFETY: the measurements keep the traits' rules.
    match unsafe { builder.open() } {
        Ok(driver) => Some(Arc::new(driver)),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

/// Returns `wanted` bytes, or less if the device has less than twice that free.
fn available(driver: &CudaDriver, wanted: u64) -> u64 {
    let free = driver.memory_info().expect("the device's memory can be queried").free;
    round_down(wanted.min(free / 2), 64 * MIB).max(64 * MIB)
}

fn allocator(driver: &Arc<CudaDriver>, policy: ChunkPolicy, budget: u64) -> Allocator<CudaDriver> {
    Allocator::builder(Arc::clone(driver)).chunk_policy(policy).budget(budget).build().expect("an allocator")
}

/// Maps chunks of one page each at adjacent addresses.
fn map_pages(driver: &CudaDriver, addr: DeviceAddr, chunks: &[ChunkHandle]) {
    let page = driver.granularity();
    for (at, &chunk) in (0..).zip(chunks) {
        driver.map(addr.offset(at * page), page, chunk).expect("a mapping");
    }
    driver.set_access(addr, chunks.len() as u64 * page).expect("access");
}

fn create_pages(driver: &CudaDriver, bytes: u64) -> Vec<ChunkHandle> {
    let page = driver.granularity();
    (0..bytes / page).map(|_| driver.create(page).expect("a chunk")).collect()
}

/// Allocation of N GiB in blocks of 32 MiB, starting without memory. Releasing it is not timed.
fn grow(criterion: &mut Criterion) {
    let Some(driver) = device() else { return };
    let bytes = available(&driver, 4 * GIB);
    let block = 32 * MIB;
    let mut group = criterion.benchmark_group("grow");
    group.sample_size(10).throughput(Throughput::Bytes(bytes));
    group.bench_function(BenchmarkId::new("cuMemAlloc", ByteSize(bytes)), |bencher| {
        bencher.iter_custom(|rounds| {
            (0..rounds).fold(Duration::ZERO, |sum, _| {
                let start = Instant::now();
                let blocks: Vec<DeviceAddr> =
                    (0..bytes / block).map(|_| driver.raw().mem_alloc(block).expect("memory")).collect();
                let time = start.elapsed();
                blocks.into_iter().for_each(|addr| driver.raw().mem_free(addr).expect("a free"));
                sum + time
            })
        });
    });
    group.bench_function(BenchmarkId::new("raw calls, a chunk a page", ByteSize(bytes)), |bencher| {
        bencher.iter_custom(|rounds| {
            (0..rounds).fold(Duration::ZERO, |sum, _| {
                let start = Instant::now();
                let addr = driver.reserve(bytes, driver.granularity()).expect("addresses");
                let chunks = create_pages(&driver, bytes);
                map_pages(&driver, addr, &chunks);
                let time = start.elapsed();
                driver.unmap(addr, bytes).expect("an unmap");
                chunks.into_iter().for_each(|chunk| driver.release(chunk).expect("a release"));
                driver.address_free(addr, bytes).expect("a free");
                sum + time
            })
        });
    });
    let free = round_down(driver.memory_info().expect("the device's memory can be queried").free, 64 * MIB);
    for (name, policy, budget) in [
        ("gapless", ChunkPolicy::Auto, free),
        ("gapless, a tight budget", ChunkPolicy::Auto, bytes * 5 / 4),
        ("gapless, a chunk a page", ChunkPolicy::Fixed(driver.granularity()), bytes * 5 / 4),
    ] {
        group.bench_function(BenchmarkId::new(name, ByteSize(bytes)), |bencher| {
            bencher.iter_custom(|rounds| {
                (0..rounds).fold(Duration::ZERO, |sum, _| {
                    let allocator = allocator(&driver, policy, budget);
                    let start = Instant::now();
                    let blocks: Vec<DeviceAddr> =
                        (0..bytes / block).map(|_| allocator.alloc_raw(block, MAIN).expect("memory")).collect();
                    let time = start.elapsed();
                    blocks.into_iter().for_each(|addr| allocator.free(addr).expect("a free"));
                    drop(allocator);
                    sum + time
                })
            });
        });
    }
    group.finish();
}

/// An allocation and its free when the memory is already held.
fn cached(criterion: &mut Criterion) {
    let Some(driver) = device() else { return };
    let stream = driver.create_stream().expect("a stream");
    let mut group = criterion.benchmark_group("cached block");
    for bytes in [4096, 20 * MIB] {
        group.bench_function(BenchmarkId::new("cuMemAllocAsync", ByteSize(bytes)), |bencher| {
            bencher.iter(|| {
                let addr = mem_alloc_async(&driver, black_box(bytes), stream).expect("memory");
                mem_free_async(&driver, addr, stream).expect("a free");
            });
            driver.synchronize(stream).expect("an end");
        });
        let allocator = allocator(&driver, ChunkPolicy::Auto, available(&driver, GIB));
        let warm = allocator.alloc_raw(bytes, stream).expect("memory");
        allocator.free(warm).expect("a free");
        // A stream that may be destroyed at any time costs questions to the driver; one that is kept costs none.
        for name in ["gapless", "gapless, kept stream"] {
            if name != "gapless" {
                allocator.keep_stream(stream).expect("a stream of this device");
            }
            group.bench_function(BenchmarkId::new(name, ByteSize(bytes)), |bencher| {
                bencher.iter(|| {
                    let addr = allocator.alloc_raw(black_box(bytes), stream).expect("memory");
                    allocator.free(addr).expect("a free");
                });
            });
        }
    }
    group.finish();
}

/// Allocation of one large block from free pages between live ones, when there is no other memory.
fn remap(criterion: &mut Criterion) {
    let Some(driver) = device() else { return };
    let page = driver.granularity();
    let bytes = available(&driver, 2 * GIB) / 2;
    let mut group = criterion.benchmark_group("remap scattered memory");
    group.sample_size(10).throughput(Throughput::Bytes(bytes));
    group.bench_function(BenchmarkId::new("raw calls", ByteSize(bytes)), |bencher| {
        let (old, new) =
            (driver.reserve(bytes, page).expect("addresses"), driver.reserve(bytes, page).expect("addresses"));
        let chunks = create_pages(&driver, bytes);
        bencher.iter_custom(|rounds| {
            (0..rounds).fold(Duration::ZERO, |sum, _| {
                map_pages(&driver, old, &chunks);
                let start = Instant::now();
                for at in 0..chunks.len() as u64 {
                    driver.unmap(old.offset(at * page), page).expect("an unmap");
                }
                map_pages(&driver, new, &chunks);
                let time = start.elapsed();
                driver.unmap(new, bytes).expect("an unmap");
                sum + time
            })
        });
        chunks.into_iter().for_each(|chunk| driver.release(chunk).expect("a release"));
        driver.address_free(old, bytes).expect("a free");
        driver.address_free(new, bytes).expect("a free");
    });
    group.bench_function(BenchmarkId::new("gapless", ByteSize(bytes)), |bencher| {
        bencher.iter_custom(|rounds| {
            (0..rounds).fold(Duration::ZERO, |sum, _| {
                let allocator = allocator(&driver, ChunkPolicy::Fixed(page), 2 * bytes);
                let blocks: Vec<DeviceAddr> =
                    (0..2 * bytes / page).map(|_| allocator.alloc_raw(page, MAIN).expect("memory")).collect();
                blocks.iter().step_by(2).for_each(|&addr| allocator.free(addr).expect("a free"));
                let start = Instant::now();
                let large = allocator.alloc_raw(bytes, MAIN).expect("the promise");
                let time = start.elapsed();
                allocator.free(large).expect("a free");
                blocks.iter().skip(1).step_by(2).for_each(|&addr| allocator.free(addr).expect("a free"));
                drop(allocator);
                sum + time
            })
        });
    });
    group.finish();
}

/// Kernels on memory of `cuMemAlloc`, and on single pages mapped in reverse order.
fn access(criterion: &mut Criterion) {
    let Some(driver) = device() else { return };
    let measurements = Measurements::new(&driver).expect("the measuring kernels");
    let page = driver.granularity();
    // Both need that much, and the kernels a little more.
    let bytes = available(&driver, 4 * GIB) / 2;
    let plain = driver.raw().mem_alloc(bytes).expect("memory");
    let mapped = driver.reserve(bytes, page).expect("addresses");
    let mut chunks = create_pages(&driver, bytes);
    chunks.reverse();
    map_pages(&driver, mapped, &chunks);
    for pass in [Pass::Read, Pass::Write, Pass::Copy] {
        let mut group = criterion.benchmark_group(format!("{pass:?}").to_lowercase());
        group.sample_size(20).throughput(Throughput::Bytes(bytes));
        for (name, addr) in [("cuMemAlloc", plain), ("remapped", mapped)] {
            group.bench_function(BenchmarkId::new(name, ByteSize(bytes)), |bencher| {
                bencher.iter_custom(|rounds| {
                    (0..rounds).map(|_| measurements.stream_over(MAIN, pass, addr, bytes).expect("a pass")).sum()
                });
            });
        }
        group.finish();
    }
    let mut group = criterion.benchmark_group("latency, one load a page");
    group.sample_size(10);
    let slots = 1 << (bytes / page).ilog2();
    for (name, addr) in [("cuMemAlloc", plain), ("remapped", mapped)] {
        group.bench_function(BenchmarkId::new(name, ByteSize(bytes)), |bencher| {
            bencher.iter_custom(|rounds| {
                let steps = rounds.max(1);
                let latency = measurements.pointer_chase(MAIN, addr, slots.max(4), page, steps).expect("a chase");
                Duration::from_secs_f64(latency.nanoseconds * steps as f64 / 1e9)
            });
        });
    }
    group.finish();
    driver.unmap(mapped, bytes).expect("an unmap");
    chunks.into_iter().for_each(|chunk| driver.release(chunk).expect("a release"));
    driver.address_free(mapped, bytes).expect("a free");
    driver.raw().mem_free(plain).expect("a free");
}

criterion_group!(benches, grow, cached, remap, access);
criterion_main!(benches);
