//! The driver's rules: which calls it accepts, and which it refuses.

use std::os::fd::{FromRawFd, OwnedFd};

use gapless::driver::cuda::CudaDriver;
use gapless::driver::cuda::raw::raw_stream;
use gapless::driver::cuda::sys::{
    CUmemAccess_flags_enum as access_flags, CUmemAllocationHandleType_enum as handle_type,
};
use gapless::driver::{ChunkHandle, DriverCall, DriverResult, MemoryDriver, WorkDriver};
use gapless::{DeviceAddr, StreamId};
use serde_json::{Value, json};

use crate::{Question, WHOLE, place, put, refusal, reported, take_away};

const MAIN: StreamId = StreamId::DEFAULT;

pub(super) const SUB_SIZE_MAP: Question = Question {
    id: "sub_size_map",
    text: "What does mapping only the first half of a chunk return?",
    parts: WHOLE,
    experiment: |driver| {
        let page = driver.granularity();
        let addr = driver.reserve(2 * page, page)?;
        let chunk = driver.create(2 * page)?;
        let outcome = driver.map(addr, page, chunk);
        if outcome.is_ok() {
            driver.unmap(addr, page)?;
        }
        driver.release(chunk)?;
        driver.address_free(addr, 2 * page)?;
        Ok(reported(&outcome))
    },
};

pub(super) const UNMAP_TWO: Question = Question {
    id: "unmap_two",
    text: "Does one unmap call remove two adjacent mappings?",
    parts: WHOLE,
    experiment: |driver| {
        let page = driver.granularity();
        let addr = driver.reserve(2 * page, page)?;
        let chunks = [put(driver, addr, page)?, put(driver, addr.offset(page), page)?];
        let outcome = driver.unmap(addr, 2 * page);
        let left = left_mapped(driver, &[addr, addr.offset(page)], chunks[0]);
        let again = driver.unmap(addr, 2 * page);
        chunks.into_iter().try_for_each(|chunk| driver.release(chunk))?;
        driver.address_free(addr, 2 * page)?;
        Ok(json!({ "answer": reported(&outcome), "left_mapped": left?, "with_nothing_mapped": reported(&again) }))
    },
};

/// How many of these pages have a mapping: no other one can be made there. Leaves them without.
fn left_mapped(driver: &CudaDriver, pages: &[DeviceAddr], chunk: ChunkHandle) -> DriverResult<usize> {
    let mut left = 0;
    for &addr in pages {
        left += usize::from(driver.map(addr, driver.granularity(), chunk).is_err());
        driver.unmap(addr, driver.granularity())?;
    }
    Ok(left)
}

pub(super) const UNMAP_PART: Question = Question {
    id: "unmap_part",
    text: "What does unmapping the first half of a mapping return?",
    parts: WHOLE,
    experiment: |driver| {
        let page = driver.granularity();
        let addr = driver.reserve(2 * page, page)?;
        let chunk = put(driver, addr, 2 * page)?;
        let part = driver.unmap(addr, page);
        let whole = driver.unmap(addr, 2 * page);
        if whole.is_err() {
            driver.unmap(addr.offset(page), page)?;
        }
        driver.release(chunk)?;
        driver.address_free(addr, 2 * page)?;
        Ok(json!({ "part": reported(&part), "whole_afterwards": reported(&whole) }))
    },
};

pub(super) const UNMAP_HOLE: Question = Question {
    id: "unmap_hole",
    text: "What does one unmap over two mappings with a hole between them return?",
    parts: WHOLE,
    experiment: |driver| {
        let page = driver.granularity();
        let addr = driver.reserve(3 * page, page)?;
        let chunks = [put(driver, addr, page)?, put(driver, addr.offset(2 * page), page)?];
        let outcome = driver.unmap(addr, 3 * page);
        let left = left_mapped(driver, &[addr, addr.offset(2 * page)], chunks[0])?;
        chunks.into_iter().try_for_each(|chunk| driver.release(chunk))?;
        driver.address_free(addr, 3 * page)?;
        Ok(json!({ "answer": reported(&outcome), "left_mapped": left }))
    },
};

pub(super) const ACCESS_PART: Question = Question {
    id: "access_part",
    text: "What does set_access over the first half of a mapping return, and what is accessible then?",
    parts: WHOLE,
    experiment: |driver| {
        let page = driver.granularity();
        let addr = driver.reserve(2 * page, page)?;
        let chunk = driver.create(2 * page)?;
        driver.map(addr, 2 * page, chunk)?;
        let outcome = driver.set_access(addr, page);
        let halves = [access_at(driver, addr), access_at(driver, addr.offset(page))];
        take_away(driver, addr, chunk, 2 * page)?;
        Ok(json!({ "answer": reported(&outcome), "first_half": halves[0], "second_half": halves[1] }))
    },
};

pub(super) const READ_ONLY: Question = Question {
    id: "read_only",
    text: "What does a write to a range with read-only access lead to?",
    parts: WHOLE,
    experiment: |driver| {
        let page = driver.granularity();
        let addr = driver.reserve(page, page)?;
        let chunk = driver.create(page)?;
        driver.map(addr, page, chunk)?;
        let mut read = driver.raw().access();
        read.flags = access_flags::CU_MEM_ACCESS_FLAGS_PROT_READ;
        // SAFETY: one descriptor, valid for the call; a mapping of this driver.
        let result = unsafe { driver.raw().api().cuMemSetAccess(addr.0, page as usize, &raw const read, 1) };
        if let Err(error) = driver.raw().check(DriverCall::SetAccess, "cuMemSetAccess", result) {
            take_away(driver, addr, chunk, page)?;
            return Ok(json!({ "set_access": refusal(&error) }));
        }
        let queued = driver.fill(MAIN, addr, 64, 1);
        let finished = driver.synchronize(MAIN);
        Ok(json!({
            "launch": reported(&queued),
            "synchronize": reported(&finished),
            "create_afterwards": reported(&driver.create(page)),
        }))
    },
};

pub(super) const FRESH_CONTENT: Question = Question {
    id: "fresh_content",
    text: "What does a new chunk contain, after the start and after a written chunk was released?",
    parts: WHOLE,
    experiment: |driver| {
        let bytes = 8 * driver.granularity();
        let (addr, chunk) = place(driver, bytes)?;
        let first = non_zero_bytes(driver, addr, bytes)?;
        driver.fill(MAIN, addr, bytes, 77)?;
        driver.synchronize(MAIN)?;
        take_away(driver, addr, chunk, bytes)?;
        let (addr, chunk) = place(driver, bytes)?;
        let recycled = non_zero_bytes(driver, addr, bytes)?;
        driver.verify(MAIN, addr, bytes, 77)?;
        driver.synchronize(MAIN)?;
        let old_content = driver.take_mismatches().is_empty();
        take_away(driver, addr, chunk, bytes)?;
        Ok(json!({
            "bytes": bytes,
            "non_zero_in_first_chunk": first,
            "non_zero_after_release": recycled,
            "old_content_intact": old_content,
        }))
    },
};

pub(super) const EXPORT: Question = Question {
    id: "export",
    text: "Can a chunk be exported and imported, and what does mapping the import with another size return?",
    parts: WHOLE,
    experiment: |driver| {
        let optional = driver.raw().optional();
        let (Ok(export), Ok(import)) =
            (&optional.cuMemExportToShareableHandle, &optional.cuMemImportFromShareableHandle)
        else {
            return Ok(json!("the library has no export functions"));
        };
        let page = driver.granularity();
        let chunk = driver.create(2 * page)?;
        let mut fd: i32 = -1;
        let kind = handle_type::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        // SAFETY: a live chunk; for this kind the out-parameter is an int.
        let result = unsafe { export((&raw mut fd).cast(), chunk.0, kind, 0) };
        if let Err(error) = driver.raw().check(DriverCall::Create, "cuMemExportToShareableHandle", result) {
            driver.release(chunk)?;
            return Ok(json!({ "exportable": driver.features().posix_fd, "export": refusal(&error) }));
        }
        let mut imported = 0;
        // SAFETY: the descriptor that was just exported, passed as the driver wants it; a valid out-parameter.
        let result = unsafe { import(&raw mut imported, std::ptr::with_exposed_provenance_mut(fd as usize), kind) };
        let outcome = driver.raw().check(DriverCall::Create, "cuMemImportFromShareableHandle", result);
        let mut answer = json!({
            "exportable": driver.features().posix_fd,
            "export": "ok",
            "import_same_process": reported(&outcome),
            "same_handle": imported == chunk.0,
        });
        if outcome.is_ok() {
            let addr = driver.reserve(4 * page, page)?;
            let imported = ChunkHandle(imported);
            for (name, bytes) in [("map_half", page), ("map_double", 4 * page), ("map_whole", 2 * page)] {
                let mapped = driver.map(addr, bytes, imported);
                if mapped.is_ok() {
                    driver.unmap(addr, bytes)?;
                }
                answer[name] = reported(&mapped);
            }
            driver.release(imported)?;
            driver.address_free(addr, 4 * page)?;
        }
        // SAFETY: the descriptor that was exported above, which nothing else closes.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
        driver.release(chunk)?;
        Ok(answer)
    },
};

pub(super) const MEMORY_INFO: Question = Question {
    id: "memory_info",
    text: "By how many bytes does each step change the free memory that the driver reports?",
    parts: WHOLE,
    experiment: |driver| {
        let bytes = 32 * driver.granularity();
        let free = || driver.memory_info().map(|info| i128::from(info.free));
        let mut before = free()?;
        let mut steps = serde_json::Map::new();
        let mut step = |name: &str| -> DriverResult<()> {
            let now = free()?;
            let change = i64::try_from(now - before).unwrap_or(i64::MIN);
            steps.insert(name.to_owned(), json!(change));
            before = now;
            Ok(())
        };
        let addr = driver.reserve(1024 * bytes, driver.granularity())?;
        step("reserve_1024_times")?;
        let chunk = driver.create(bytes)?;
        step("create")?;
        driver.map(addr, bytes, chunk)?;
        driver.set_access(addr, bytes)?;
        step("map")?;
        driver.map(addr.offset(bytes), bytes, chunk)?;
        driver.set_access(addr.offset(bytes), bytes)?;
        step("alias")?;
        driver.release(chunk)?;
        step("release_while_mapped")?;
        driver.unmap(addr, 2 * bytes)?;
        step("unmap_both")?;
        driver.address_free(addr, 1024 * bytes)?;
        step("address_free")?;
        Ok(json!({ "bytes": bytes, "change_of_free_bytes": steps }))
    },
};

/// The access flags at an address (0 none, 1 read, 3 read and write), or the error.
fn access_at(driver: &CudaDriver, addr: DeviceAddr) -> Value {
    let Ok(function) = &driver.raw().optional().cuMemGetAccess else { return json!("unknown") };
    let mut flags = 0;
    let location = driver.raw().access().location;
    // SAFETY: valid pointers.
    let result = unsafe { function(&raw mut flags, &raw const location, addr.0) };
    match driver.raw().check(DriverCall::SetAccess, "cuMemGetAccess", result) {
        Ok(()) => json!(flags),
        Err(error) => refusal(&error),
    }
}

/// How many bytes of the range are not zero.
fn non_zero_bytes(driver: &CudaDriver, addr: DeviceAddr, bytes: u64) -> DriverResult<u64> {
    let mut copy = vec![0_u8; bytes as usize];
    let _current = driver.raw().enter(DriverCall::Work)?;
    // SAFETY: both sides are `bytes` long; the buffer lives until the synchronisation below.
    let result = unsafe {
        driver.raw().api().cuMemcpyDtoHAsync_v2(copy.as_mut_ptr().cast(), addr.0, copy.len(), raw_stream(MAIN))
    };
    driver.raw().check(DriverCall::Work, "cuMemcpyDtoHAsync", result)?;
    driver.synchronize(MAIN)?;
    Ok(copy.iter().filter(|&&byte| byte != 0).count() as u64)
}
