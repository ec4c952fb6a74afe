//! Microseconds and limits.

use std::time::{Duration, Instant};

use gapless::driver::cuda::CudaDriver;
use gapless::driver::cuda::sys::{
    CUmemAllocationHandleType_enum as handle_type, CUmemAllocationProp, CUmemAllocationType_enum as allocation_type,
    CUmemLocation, CUmemLocationType_enum as location_type,
};
use gapless::driver::{ChunkHandle, DriverCall, DriverResult, MemoryDriver};
use gapless::units::{ByteSize, GIB};
use serde_json::{Value, json};

use crate::{Question, WHOLE, median, micros, place, refusal, reserve_at_most, take_away, timed};

pub(super) const CALLS_BY_SIZE: Question = Question {
    id: "calls_by_size",
    text: "How many microseconds does each call take, by the size of the chunk?",
    parts: WHOLE,
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
    text: "What do one set_access and one unmap over many chunks cost, against one for each and against one large chunk?",
    parts: WHOLE,
    experiment: |driver| {
        let page = driver.granularity();
        let most = driver.memory_info()?.free / page / 3;
        let rows: DriverResult<Vec<Value>> =
            [1, 8, 64, 256].into_iter().filter(|&count| count <= most).map(|count| ranged_row(driver, count)).collect();
        Ok(json!(rows?))
    },
};

pub(super) const CREATION_FLAGS: Question = Question {
    id: "creation_flags",
    text: "How many microseconds do the calls take for chunks that can be exported, or registered for RDMA, and for plain ones?",
    parts: WHOLE,
    experiment: |driver| {
        let mut answer = serde_json::Map::new();
        for (name, handles, rdma) in [
            ("plain", handle_type::CU_MEM_HANDLE_TYPE_NONE, 0),
            ("posix_fd", handle_type::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            ("rdma", handle_type::CU_MEM_HANDLE_TYPE_NONE, 1),
            ("posix_fd_and_rdma", handle_type::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1),
        ] {
            let row = flags_row(driver, handles, rdma).unwrap_or_else(|error| refusal(&error));
            answer.insert(name.to_owned(), row);
        }
        Ok(Value::Object(answer))
    },
};

/// The means over chunks of one page, all of which are there at once.
fn flags_row(driver: &CudaDriver, handles: handle_type, rdma: u8) -> DriverResult<Value> {
    let (raw, page) = (driver.raw(), driver.granularity());
    let count = (driver.memory_info()?.free / page / 4).clamp(1, FLAGGED_CHUNKS);
    let mut properties = CUmemAllocationProp {
        type_: allocation_type::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: CUmemLocation { type_: location_type::CU_MEM_LOCATION_TYPE_DEVICE, id: raw.device() },
        requestedHandleTypes: handles,
        ..CUmemAllocationProp::default()
    };
    properties.allocFlags.gpuDirectRDMACapable = rdma;
    let create = |_| {
        let mut chunk = 0;
        // SAFETY: valid pointers.
        let result = unsafe { raw.api().cuMemCreate(&raw mut chunk, page as usize, &raw const properties, 0) };
        raw.check(DriverCall::Create, "cuMemCreate", result).map(|()| ChunkHandle(chunk))
    };
    let addr = driver.reserve(count * page, page)?;
    let places = || (0..count).map(|at| addr.offset(at * page));
    let (chunks, created) = timed(|| (0..count).map(create).collect::<DriverResult<Vec<_>>>())?;
    let ((), mapped) = timed(|| places().zip(&chunks).try_for_each(|(at, &chunk)| driver.map(at, page, chunk)))?;
    let ((), accessed) = timed(|| places().try_for_each(|at| driver.set_access(at, page)))?;
    let ((), unmapped) = timed(|| places().try_for_each(|at| driver.unmap(at, page)))?;
    let ((), released) = timed(|| chunks.into_iter().try_for_each(|chunk| driver.release(chunk)))?;
    driver.address_free(addr, count * page)?;
    let each = |time: Duration| micros(time / u32::try_from(count).unwrap_or(u32::MAX));
    Ok(json!({
        "chunks": count,
        "create_us": each(created),
        "map_us": each(mapped),
        "set_access_us": each(accessed),
        "unmap_us": each(unmapped),
        "release_us": each(released),
    }))
}

/// Enough for a mean, and few enough for a device in use.
const FLAGGED_CHUNKS: u64 = 4096;

pub(super) const THREADS: Question = Question {
    id: "threads",
    text: "How many whole cycles per second do 1, 2 and 4 threads complete together?",
    parts: WHOLE,
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

pub(super) const MAPPINGS: Question = Question {
    id: "mappings",
    text: "How many mappings of one chunk with access can there be, and what does the next one return?",
    parts: WHOLE,
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
        // The end of the process undoes this: to unmap so many may take longer than the question has.
        Ok(json!({ "mappings": count, "limit": answer, "seconds": seconds }))
    },
};

/// The medians for `count` chunks of one page at consecutive addresses.
fn ranged_row(driver: &CudaDriver, count: u64) -> DriverResult<Value> {
    let page = driver.granularity();
    let bytes = count * page;
    let addr = driver.reserve(bytes, page)?;
    let places = || (0..count).map(|at| addr.offset(at * page));
    let chunks: Vec<ChunkHandle> = (0..count).map(|_| driver.create(page)).collect::<DriverResult<_>>()?;
    let whole = driver.create(bytes)?;
    let map_each = || places().zip(&chunks).try_for_each(|(at, &chunk)| driver.map(at, page, chunk));
    let mut times: [Vec<Duration>; 8] = Default::default();
    for _ in 0..RANGED_ROUNDS {
        let ((), map) = timed(map_each)?;
        let ((), access_ranged) = timed(|| driver.set_access(addr, bytes))?;
        let ((), unmap_ranged) = timed(|| driver.unmap(addr, bytes))?;
        map_each()?;
        let ((), access_each) = timed(|| places().try_for_each(|at| driver.set_access(at, page)))?;
        let ((), unmap_each) = timed(|| places().try_for_each(|at| driver.unmap(at, page)))?;
        let ((), map_whole) = timed(|| driver.map(addr, bytes, whole))?;
        let ((), access_whole) = timed(|| driver.set_access(addr, bytes))?;
        let ((), unmap_whole) = timed(|| driver.unmap(addr, bytes))?;
        let round = [map, access_ranged, unmap_ranged, access_each, unmap_each, map_whole, access_whole, unmap_whole];
        times.iter_mut().zip(round).for_each(|(list, time)| list.push(time));
    }
    chunks.into_iter().chain([whole]).try_for_each(|chunk| driver.release(chunk))?;
    driver.address_free(addr, bytes)?;
    let [map, access_ranged, unmap_ranged, access_each, unmap_each, map_whole, access_whole, unmap_whole] =
        times.map(|list| micros(median(list)));
    Ok(json!({
        "chunks": count,
        "rounds": RANGED_ROUNDS,
        "map_each_us": map,
        "set_access_ranged_us": access_ranged,
        "set_access_each_us": access_each,
        "unmap_ranged_us": unmap_ranged,
        "unmap_each_us": unmap_each,
        "map_one_large_chunk_us": map_whole,
        "set_access_one_large_chunk_us": access_whole,
        "unmap_one_large_chunk_us": unmap_whole,
    }))
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
const MAPPINGS_FOR: Duration = Duration::from_secs(32);
const RANGED_ROUNDS: usize = 5;
