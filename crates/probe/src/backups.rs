//! What a sleep and a wake ask of the driver: pinned memory of the host, and copies from and to it.

use std::time::Duration;

use gapless::driver::cuda::CudaDriver;
use gapless::driver::{DriverResult, HostMemory, MemoryDriver, StreamDriver, WorkDriver, pattern_byte};
use gapless::units::{DeviceAddr, GIB, MIB, StreamId};
use serde_json::{Value, json};

use crate::{Question, WHOLE, gb_per_s, median, micros, place, put, refusal, take_away, timed};

/// Most chunks that a copy spans.
const MOST_CHUNKS: u64 = 512;
/// What the bytes are that are copied.
const SEED: u64 = 41;
/// Copies of which the median counts.
const COPIES: u64 = 5;

pub(super) const HOST_MEMORY: Question = Question {
    id: "host_memory",
    text: "How many microseconds does it take to allocate and to free pinned memory of the host, by its size?",
    parts: WHOLE,
    experiment: |driver| {
        let mut rows = Vec::new();
        let mut bytes = MIB;
        while bytes <= 4 * GIB && bytes <= driver.memory_info()?.free / 2 {
            let (mut allocs, mut frees) = (Vec::new(), Vec::new());
            for _ in 0..3 {
                let (memory, alloc) = timed(|| driver.host_alloc(bytes))?;
                let ((), free) = timed(|| driver.host_free(memory))?;
                allocs.push(alloc);
                frees.push(free);
            }
            rows.push(json!({ "bytes": bytes, "alloc_us": micros(median(allocs)), "free_us": micros(median(frees)) }));
            bytes *= 4;
        }
        Ok(json!(rows))
    },
};

pub(super) const COPY_OVER_MAPPINGS: Question = Question {
    id: "copy_over_mappings",
    text: "Does one copy over many mappings, to the host and back, take every byte, and how fast is it beside one over one?",
    parts: WHOLE,
    experiment: |driver| {
        let page = driver.granularity();
        let count = (driver.memory_info()?.free / page / 4).clamp(2, MOST_CHUNKS);
        let bytes = count * page;
        let memory = driver.host_alloc(bytes)?;
        let lane = driver.create_copy_stream()?;
        let addr = driver.reserve(bytes, page)?;
        let chunks: Vec<_> =
            (0..count).map(|at| put(driver, addr.offset(at * page), page)).collect::<DriverResult<_>>()?;
        let many = copies(driver, lane, memory, addr, bytes).unwrap_or_else(|error| refusal(&error));
        (0..count).try_for_each(|at| driver.unmap(addr.offset(at * page), page))?;
        chunks.into_iter().try_for_each(|chunk| driver.release(chunk))?;
        driver.address_free(addr, bytes)?;
        let (addr, chunk) = place(driver, bytes)?;
        let one = copies(driver, lane, memory, addr, bytes).unwrap_or_else(|error| refusal(&error));
        take_away(driver, addr, chunk, bytes)?;
        driver.destroy_copy_stream(lane)?;
        driver.host_free(memory)?;
        Ok(json!({ "bytes": bytes, "mappings": count, "over_all": many, "over_one": one }))
    },
};

/// Copies a range out and in again, and compares its bytes on either side.
fn copies(
    driver: &CudaDriver,
    lane: StreamId,
    memory: HostMemory,
    addr: DeviceAddr,
    bytes: u64,
) -> DriverResult<Value> {
    driver.fill(lane, addr, bytes, SEED)?;
    driver.synchronize(lane)?;
    let (mut out, mut back) = (Vec::new(), Vec::new());
    for _ in 0..COPIES {
        out.push(finished(driver, lane, || driver.copy_out(lane, memory, 0, addr, bytes))?);
    }
    let mut wrong_on_host = 0_u64;
    driver.host_read(memory, 0, bytes, &mut |read| {
        let expected = (0..bytes).map(|offset| pattern_byte(SEED, offset));
        wrong_on_host = read.iter().zip(expected).map(|(byte, expected)| u64::from(*byte != expected)).sum();
    })?;
    // What comes back must come from the host.
    driver.fill(lane, addr, bytes, SEED + 1)?;
    driver.synchronize(lane)?;
    for _ in 0..COPIES {
        back.push(finished(driver, lane, || driver.copy_in(lane, addr, memory, 0, bytes))?);
    }
    driver.verify(lane, addr, bytes, SEED)?;
    driver.synchronize(lane)?;
    let wrong_on_device: u64 = driver.take_mismatches().iter().map(|mismatch| mismatch.count).sum();
    Ok(json!({
        "wrong_on_host": wrong_on_host,
        "wrong_on_device": wrong_on_device,
        "out_gb_per_s": gb_per_s(bytes, median(out)),
        "in_gb_per_s": gb_per_s(bytes, median(back)),
    }))
}

/// How long a copy takes, until it has completed.
fn finished(driver: &CudaDriver, lane: StreamId, copy: impl FnOnce() -> DriverResult<()>) -> DriverResult<Duration> {
    let ((), duration) = timed(|| {
        copy()?;
        driver.synchronize(lane)
    })?;
    Ok(duration)
}
