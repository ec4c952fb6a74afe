//! Microseconds, limits, latency and bandwidth.

use std::time::{Duration, Instant};

use gapless::driver::cuda::CudaDriver;
use gapless::driver::{ChunkHandle, DriverResult, MemoryDriver};
use gapless::units::{ByteSize, DeviceAddr, GIB, MIB, StreamId, TIB, round_down};
use serde_json::{Value, json};

use super::{Measurements, Pass, Question, median, micros, place, refusal, take_away, timed};

const MAIN: StreamId = StreamId::DEFAULT;

pub(super) const CALLS_BY_SIZE: Question = Question {
    id: "calls_by_size",
    text: "How many microseconds does each call take, by the size of the chunk?",
    experiment: |driver| {
        let mut rows = Vec::new();
        let mut bytes = driver.granularity();
        while bytes <= 8 * GIB && bytes <= driver.memory_info()?.free / 2 {
            let rounds = (GIB / bytes).clamp(3, 20);
            rows.push(cycle_row(driver, bytes, rounds)?);
            bytes *= 4;
        }
        Ok(json!(rows))
    },
};

pub(super) const RANGED_ACCESS: Question = Question {
    id: "ranged_access",
    text: "Are one set_access and one unmap over 64 chunks cheaper than one for each chunk?",
    experiment: |driver| {
        let page = driver.granularity();
        let count = 64.min(driver.memory_info()?.free / page / 2);
        let addr = driver.reserve(count * page, page)?;
        let chunks: Vec<ChunkHandle> = (0..count).map(|_| driver.create(page)).collect::<DriverResult<_>>()?;
        let map_all =
            || (0..).zip(&chunks).try_for_each(|(at, &chunk)| driver.map(addr.offset(at * page), page, chunk));
        let places = || (0..count).map(|at| addr.offset(at * page));
        let ((), map) = timed(map_all)?;
        let ((), access_ranged) = timed(|| driver.set_access(addr, count * page))?;
        let ((), unmap_ranged) = timed(|| driver.unmap(addr, count * page))?;
        map_all()?;
        let ((), access_each) = timed(|| places().try_for_each(|at| driver.set_access(at, page)))?;
        let ((), unmap_each) = timed(|| places().try_for_each(|at| driver.unmap(at, page)))?;
        let whole = driver.create(count * page)?;
        driver.map(addr, count * page, whole)?;
        let ((), access_whole) = timed(|| driver.set_access(addr, count * page))?;
        let ((), unmap_whole) = timed(|| driver.unmap(addr, count * page))?;
        Ok(json!({
            "chunks": count,
            "map_each_us": micros(map),
            "set_access_ranged_us": micros(access_ranged),
            "set_access_each_us": micros(access_each),
            "set_access_one_large_chunk_us": micros(access_whole),
            "unmap_ranged_us": micros(unmap_ranged),
            "unmap_each_us": micros(unmap_each),
            "unmap_one_large_chunk_us": micros(unmap_whole),
        }))
    },
};

pub(super) const THREADS: Question = Question {
    id: "threads",
    text: "How many whole cycles per second do 1, 2 and 4 threads complete together?",
    experiment: |driver| {
        let mut answer = serde_json::Map::new();
        for threads in [1_u32, 2, 4] {
            let start = Instant::now();
            let deadline = start + Duration::from_millis(500);
            let cycles: u64 = std::thread::scope(|scope| {
                let workers: Vec<_> = (0..threads)
                    .map(|_| {
                        scope.spawn(|| {
                            let mut done = 0;
                            while Instant::now() < deadline && cycle(driver, driver.granularity()).is_ok() {
                                done += 1;
                            }
                            done
                        })
                    })
                    .collect();
                workers.into_iter().map(|worker| worker.join().unwrap_or(0)).sum()
            });
            answer.insert(threads.to_string(), json!((cycles as f64 / start.elapsed().as_secs_f64()).round()));
        }
        Ok(Value::Object(answer))
    },
};

pub(super) const RESERVATION: Question = Question {
    id: "reservation",
    text: "What is the largest single reservation, and what does the next size return?",
    experiment: |driver| {
        let page = driver.granularity();
        let (mut largest, mut us) = (0, 0.0);
        let mut bytes = GIB;
        let mut answer = Value::Null;
        while bytes <= 256 * TIB {
            // Below the driver's own bound on what a process reserves.
            match timed(|| driver.raw().reserve(bytes, page)) {
                Ok((addr, duration)) => {
                    (largest, us) = (bytes, micros(duration));
                    driver.raw().address_free(addr, bytes)?;
                }
                Err(error) => {
                    answer = refusal(&error);
                    break;
                }
            }
            bytes *= 2;
        }
        Ok(json!({
            "largest_bytes": largest,
            "largest": ByteSize(largest).to_string(),
            "us": us,
            "next_answers": answer,
        }))
    },
};

pub(super) const MAPPINGS: Question = Question {
    id: "mappings",
    text: "How many mappings of one chunk with access can there be, and what does the next one return?",
    experiment: |driver| {
        let page = driver.granularity();
        let (addr, reserved) = reserve_at_most(driver, MOST_MAPPINGS * page, page, page)?;
        let chunk = driver.create(page)?;
        let start = Instant::now();
        let mut count = 0;
        let mut answer = json!("not reached");
        while count < reserved / page && start.elapsed() < MAPPINGS_FOR {
            let at = addr.offset(count * page);
            if let Err(error) = driver.map(at, page, chunk).and_then(|()| driver.set_access(at, page)) {
                answer = json!({ "call": error.call.name(), "code": error.code, "name": error.name });
                break;
            }
            count += 1;
        }
        let seconds = start.elapsed().as_secs_f64();
        Ok(json!({ "mappings": count, "limit": answer, "seconds": seconds }))
    },
};

pub(super) const LATENCY: Question = Question {
    id: "latency",
    text: "What is the latency of dependent loads, one per page: memory of cuMemAlloc, small chunks, large chunks?",
    experiment: |driver| {
        let measurements = Measurements::new(driver)?;
        let page = driver.granularity();
        let free = driver.memory_info()?.free;
        let slots = (free / 2 / page).min(64 * GIB / page).max(8);
        let slots = 1 << slots.ilog2();
        let bytes = slots * page;
        let steps = 50_000.max(slots);
        let chase = |addr: DeviceAddr| {
            // Twice: the first pass warms the caches of the page tables as far as they go.
            measurements.pointer_chase(MAIN, addr, slots, page, steps)?;
            measurements.pointer_chase(MAIN, addr, slots, page, steps)
        };
        let mut answer = serde_json::Map::new();
        answer.insert("bytes".into(), json!(bytes));
        let plain = driver.raw().mem_alloc(bytes)?;
        let latency = chase(plain);
        driver.raw().mem_free(plain)?;
        answer.insert("cu_mem_alloc".into(), json!(latency?));
        for (name, size) in [("chunks_of_one_page", page), ("chunks_of_512_mib", 512 * MIB)] {
            let size = size.min(bytes);
            let addr = driver.reserve(bytes, size.max(page).next_power_of_two())?;
            for at in 0..bytes / size {
                let chunk = driver.create(size)?;
                driver.map(addr.offset(at * size), size, chunk)?;
                driver.release(chunk)?;
            }
            driver.set_access(addr, bytes)?;
            let latency = chase(addr);
            driver.unmap(addr, bytes)?;
            driver.address_free(addr, bytes)?;
            answer.insert(name.into(), json!(latency?));
        }
        Ok(Value::Object(answer))
    },
};

pub(super) const BANDWIDTH: Question = Question {
    id: "bandwidth",
    text: "How many GB/s do passes over memory of cuMemAlloc reach, and over chunks of one page in reverse order?",
    experiment: |driver| {
        let measurements = Measurements::new(driver)?;
        let page = driver.granularity();
        let bytes = round_down((driver.memory_info()?.free / 4).min(2 * GIB), 2 * page).max(2 * page);
        let rate = |addr| -> DriverResult<Value> {
            let mut row = serde_json::Map::new();
            for pass in [Pass::Write, Pass::Read, Pass::Copy] {
                let rounds: Vec<Duration> =
                    (0..7).map(|_| measurements.stream_over(MAIN, pass, addr, bytes)).collect::<DriverResult<_>>()?;
                let seconds = median(rounds).as_secs_f64();
                let name = format!("{pass:?}").to_lowercase();
                row.insert(name, json!((bytes as f64 / seconds / 1e8).round() / 10.0));
            }
            Ok(Value::Object(row))
        };
        let plain = driver.raw().mem_alloc(bytes)?;
        let plain_rate = rate(plain);
        driver.raw().mem_free(plain)?;
        let addr = driver.reserve(bytes, page)?;
        for at in (0..bytes / page).rev() {
            let chunk = driver.create(page)?;
            driver.map(addr.offset(at * page), page, chunk)?;
            driver.release(chunk)?;
        }
        driver.set_access(addr, bytes)?;
        let mapped_rate = rate(addr);
        driver.unmap(addr, bytes)?;
        driver.address_free(addr, bytes)?;
        Ok(json!({ "bytes": bytes, "cu_mem_alloc": plain_rate?, "remapped": mapped_rate? }))
    },
};

/// Reserves up to `bytes` of addresses, halving the size down to `least` as long as the driver refuses; returns the
/// address and the size of the reservation. Both sizes are multiples of the granularity.
///
/// # Errors
/// The driver's last answer, when it refuses even `least` bytes.
pub fn reserve_at_most(driver: &CudaDriver, bytes: u64, least: u64, alignment: u64) -> DriverResult<(DeviceAddr, u64)> {
    let mut wish = bytes.max(least);
    loop {
        match driver.reserve(wish, alignment) {
            Ok(addr) => return Ok((addr, wish)),
            Err(error) if wish <= least || error.kind.is_sticky() => return Err(error),
            Err(_) => wish = round_down(wish / 2, driver.granularity()).max(least),
        }
    }
}

/// Reserves addresses, creates a chunk and maps it with access; then undoes all of it.
fn cycle(driver: &CudaDriver, bytes: u64) -> DriverResult<()> {
    let (addr, chunk) = place(driver, bytes)?;
    take_away(driver, addr, chunk, bytes)
}

/// The median time of every call over `rounds` cycles. The first create is also listed by itself, because it may have
/// to clear the memory.
fn cycle_row(driver: &CudaDriver, bytes: u64, rounds: u64) -> DriverResult<Value> {
    let mut times: [Vec<Duration>; 7] = Default::default();
    for _ in 0..rounds {
        let (addr, reserve) = timed(|| driver.reserve(bytes, driver.granularity()))?;
        let (chunk, create) = timed(|| driver.create(bytes))?;
        let ((), map) = timed(|| driver.map(addr, bytes, chunk))?;
        let ((), access) = timed(|| driver.set_access(addr, bytes))?;
        let ((), unmap) = timed(|| driver.unmap(addr, bytes))?;
        let ((), release) = timed(|| driver.release(chunk))?;
        let ((), address_free) = timed(|| driver.address_free(addr, bytes))?;
        for (list, time) in times.iter_mut().zip([reserve, create, map, access, unmap, release, address_free]) {
            list.push(time);
        }
    }
    let first_create = times[1][0];
    let [reserve, create, map, access, unmap, release, address_free] = times.map(|list| micros(median(list)));
    Ok(json!({
        "bytes": bytes,
        "size": ByteSize(bytes).to_string(),
        "rounds": rounds,
        "reserve_us": reserve,
        "first_create_us": micros(first_create),
        "create_us": create,
        "map_us": map,
        "set_access_us": access,
        "unmap_us": unmap,
        "release_us": release,
        "address_free_us": address_free,
    }))
}

/// More than the limit of about 520,000 that has been reported.
const MOST_MAPPINGS: u64 = 600_000;
/// Long enough for that many at 40 us each, short enough for the process to end within a question's time limit.
const MAPPINGS_FOR: Duration = Duration::from_secs(25);
