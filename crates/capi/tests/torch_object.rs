//! The functions that PyTorch's allocator object calls: blocks, sums, pools by name, and pools that go back to an earlier state,
//! with bytes.

mod gpu;
#[path = "../../../tests/simulated/mod.rs"]
mod simulated;

use gapless_capi::*;
use gpu::{Gpu, with_devices};
use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut, without_provenance_mut};

const MIB: usize = 1 << 20;
const MAIN: *mut CUstream_st = null_mut();
const POOL: gapless_torch_pool = gapless_torch_pool { first: 7, second: 0 };

fn ok(status: gapless_status) {
    // SAFETY: a NUL-terminated text until the next failure on this thread.
    assert_eq!(status, GAPLESS_OK, "{}", unsafe { CStr::from_ptr(gapless_last_error()) }.to_string_lossy());
}

fn alloc_on(
    stream: *mut CUstream_st,
    bytes: usize,
    pool: Option<&gapless_torch_pool>,
) -> (gapless_status, *mut c_void) {
    let mut pointer = null_mut();
    // SAFETY: a name or null, and a valid out-parameter.
    let status =
        unsafe { gapless_torch_alloc(0, bytes as u64, stream, pool.map_or(null(), |pool| pool), &raw mut pointer) };
    (status, pointer)
}

fn alloc(bytes: usize, pool: Option<&gapless_torch_pool>) -> *mut c_void {
    let (status, pointer) = alloc_on(MAIN, bytes, pool);
    ok(status);
    pointer
}

fn blocks(pool: Option<&gapless_torch_pool>, live_only: bool) -> Vec<gapless_torch_block> {
    let pool = pool.map_or(null(), std::ptr::from_ref);
    let mut needed = 0;
    // SAFETY: no room at all.
    let status = unsafe { gapless_torch_blocks(0, pool, live_only.into(), null_mut(), 0, &raw mut needed) };
    let mut found = Vec::with_capacity(needed as usize);
    if status != GAPLESS_OK {
        assert_eq!(status, GAPLESS_ERROR_BUFFER_TOO_SMALL);
        // SAFETY: room for as many as are needed.
        ok(unsafe { gapless_torch_blocks(0, pool, live_only.into(), found.as_mut_ptr(), needed, &raw mut needed) });
        // SAFETY: written just now.
        unsafe { found.set_len(needed as usize) };
    }
    found
}

fn figures(pool: Option<&gapless_torch_pool>) -> Figures {
    let mut stats = gapless_stats::default();
    // SAFETY: a name or null, and a valid out-parameter.
    ok(unsafe { gapless_torch_get_stats(0, pool.map_or(null(), |pool| pool), &raw mut stats) });
    stats.figures
}

fn users(pool: gapless_torch_pool) -> u32 {
    let mut users = 99;
    // SAFETY: a valid out-parameter.
    ok(unsafe { gapless_torch_pool_users(0, pool, &raw mut users) });
    users
}

fn restore(wanted: &[gapless_torch_block]) -> gapless_status {
    // SAFETY: as many blocks as it says.
    unsafe { gapless_torch_restore_pool(0, POOL, wanted.as_ptr(), wanted.len() as u64) }
}

fn at(block: &gapless_torch_block) -> *mut c_void {
    without_provenance_mut(usize::try_from(block.address).unwrap())
}

fn stats_of(handle: *mut gapless_allocator) -> Figures {
    let mut stats = gapless_stats::default();
    // SAFETY: a valid out-parameter of that size.
    ok(unsafe { gapless_get_stats(handle, &raw mut stats) });
    stats.figures
}

type WriteJson = unsafe extern "C" fn(*mut gapless_allocator, *mut c_char, u64, *mut u64) -> gapless_status;

fn json_of(handle: *mut gapless_allocator, write: WriteJson) -> serde_json::Value {
    let mut text = vec![0_u8; 1 << 20];
    let mut needed = 0;
    // SAFETY: a buffer of that many bytes, and a valid out-parameter.
    ok(unsafe { write(handle, text.as_mut_ptr().cast(), text.len() as u64, &raw mut needed) });
    serde_json::from_slice(&text[..needed as usize - 1]).unwrap()
}

#[test]
fn a_device_s_handle_answers_for_its_pools() {
    with_devices("a_device_s_handle_answers_for_its_pools", &[], || {
        const WHOLE: u64 = 40 * MIB as u64;
        let mut handle = null_mut();
        // SAFETY: a valid out-parameter.
        ok(unsafe { gapless_device_allocator(0, &raw mut handle) });
        let outside = alloc(8 * MIB, None);
        ok(gapless_torch_use_pool(0, POOL));
        let inside = alloc(32 * MIB, Some(&POOL));
        let stats = stats_of(handle);
        assert_eq!((stats.live_bytes, stats.live_allocations, stats.allocs), (WHOLE, 2, 2));
        assert_eq!((stats.reserved_bytes, stats.peak_live_bytes, stats.peak_reserved_bytes), (WHOLE, WHOLE, WHOLE));

        ok(gapless_set_budget(handle, WHOLE + 2 * MIB as u64));
        let stats = stats_of(handle);
        assert_eq!(stats.budget_bytes, WHOLE + 2 * MIB as u64);
        assert_eq!(stats.largest_with_remapping_bytes, 2 * MIB as u64, "what nobody holds");
        let json = json_of(handle, gapless_stats_json);
        assert_eq!((&json["live_bytes"], &json["budget_bytes"]), (&WHOLE.into(), &stats.budget_bytes.into()));
        assert_eq!(json["fragmentation"]["free_bytes"], 2 * MIB);
        let made: u64 = json["sizes"].as_array().unwrap().iter().map(|size| size["allocs"].as_u64().unwrap()).sum();
        assert_eq!(made, 2);

        let json = json_of(handle, gapless_snapshot_json);
        assert_eq!(json["budget_bytes"], stats.budget_bytes);
        let regions = json["regions"].as_array().unwrap();
        let blocks = regions.iter().flat_map(|region| region["blocks"].as_array().unwrap());
        let live: u64 = blocks.map(|block| block["requested_bytes"].as_u64().unwrap()).sum();
        let chunks: u64 = json["chunks"].as_array().unwrap().iter().map(|chunk| chunk["bytes"].as_u64().unwrap()).sum();
        assert_eq!((live, chunks), (WHOLE, WHOLE));

        // Counts stay when the pool ends, peaks until they are reset.
        ok(gapless_torch_delete(inside));
        gapless_torch_release_pool(0, POOL);
        let stats = stats_of(handle);
        assert_eq!((stats.live_bytes, stats.allocs, stats.frees), (8 * MIB as u64, 2, 1));
        assert_eq!((stats.peak_live_bytes, stats.peak_reserved_bytes), (WHOLE, WHOLE));
        let calls = stats.driver_calls;
        ok(gapless_reset_peaks(handle));
        // SAFETY: null.
        ok(unsafe { gapless_device_trim(0, 0, null_mut()) });
        let stats = stats_of(handle);
        assert_eq!(
            (stats.allocs, stats.peak_live_bytes, stats.peak_reserved_bytes),
            (2, 8 * MIB as u64, 8 * MIB as u64)
        );
        assert!(stats.driver_calls >= calls, "{} after {calls}", stats.driver_calls);
        ok(gapless_torch_delete(outside));
    });
}

#[test]
fn blocks_and_sums_of_pools_and_of_the_rest() {
    with_devices("blocks_and_sums_of_pools_and_of_the_rest", &[], || {
        let outside = alloc(3 * MIB, None);
        ok(gapless_torch_use_pool(0, POOL));
        let inside = [alloc(5 * MIB, Some(&POOL)), alloc(100, Some(&POOL))];
        assert_eq!(users(POOL), 1);
        ok(gapless_torch_open_pool(0, POOL));
        assert_eq!(users(POOL), 2);
        // A pool that is open takes only what is meant for it.
        let beside = alloc(MIB, None);
        gapless_torch_end_allocate_to_pool(0, POOL);
        gapless_torch_release_pool(0, POOL);

        let of_pool: Vec<u64> = blocks(Some(&POOL), true).iter().map(|block| block.requested_bytes).collect();
        assert_eq!(
            {
                let mut sorted = of_pool;
                sorted.sort_unstable();
                sorted
            },
            [100, 5 * MIB as u64]
        );
        assert_eq!(blocks(None, true).len(), 4);
        assert!(blocks(None, false).iter().any(|block| block.state == 0));
        assert_eq!(figures(Some(&POOL)).live_bytes, 5 * MIB as u64 + 100);
        assert_eq!((figures(None).live_bytes, figures(None).allocs), (9 * MIB as u64 + 100, 4));

        let mut block = blocks(None, true)[0];
        let middle = without_provenance_mut(inside[0].addr() + 1000);
        // SAFETY: a valid out-parameter.
        ok(unsafe { gapless_torch_describe(middle, &raw mut block) });
        assert_eq!((at(&block), block.requested_bytes, block.pool.first), (inside[0], 5 * MIB as u64, POOL.first));
        assert_eq!((gapless_torch_device_of(outside), gapless_torch_device_of(null_mut())), (0, -1));

        for pointer in [outside, beside, inside[0], inside[1]] {
            ok(gapless_torch_delete(pointer));
        }
        assert_eq!(gapless_torch_delete(outside), GAPLESS_ERROR_NOT_ALLOCATED);
        assert_eq!(gapless_torch_delete(without_provenance_mut(4096)), GAPLESS_ERROR_NOT_FOUND);
        gapless_torch_release_pool(0, POOL);
        assert_eq!(users(POOL), 0);
        // SAFETY: no out-parameter.
        ok(unsafe { gapless_torch_trim(0, 0, null_mut()) });
        assert_eq!(figures(None).reserved_bytes, 0);
        assert_eq!(restore(&[]), GAPLESS_ERROR_NOT_FOUND);
    });
}

/// A pool whose memory is used again at other addresses, and then goes back: the blocks have the bytes that were written through
/// their addresses, whichever way the pages went.
#[test]
fn a_pool_goes_back_to_an_earlier_state() {
    with_devices("a_pool_goes_back_to_an_earlier_state", &[("GAPLESS_SIM_CAPACITY", "20MiB")], || {
        let gpu = Gpu::open(0);
        ok(gapless_torch_use_pool(0, POOL));
        let first = [4 * MIB, 6 * MIB, 4 * MIB, 6 * MIB].map(|bytes| alloc(bytes, Some(&POOL)));
        let before = blocks(Some(&POOL), true);
        for (number, pointer) in first.iter().enumerate() {
            gpu.fill(MAIN, *pointer, number as u8 + 1, 4 * MIB);
        }
        // None of the free blocks is large enough for the next: their chunks are remapped.
        ok(gapless_torch_delete(first[1]));
        ok(gapless_torch_delete(first[3]));
        let moved = alloc(12 * MIB, Some(&POOL));
        let between = blocks(Some(&POOL), true);
        gpu.fill(MAIN, moved, 9, 12 * MIB);

        assert_eq!(restore(&before), GAPLESS_OK);
        let now = blocks(Some(&POOL), true);
        assert_eq!(
            now.iter().map(|block| block.address).collect::<Vec<_>>(),
            before.iter().map(|block| block.address).collect::<Vec<_>>()
        );
        for (number, pointer) in first.iter().enumerate() {
            let byte = [1, 9, 3, 9][number];
            assert!(gpu.read(MAIN, *pointer, 4 * MIB).iter().all(|found| *found == byte), "block {number}");
            gpu.fill(MAIN, *pointer, 20 + number as u8, 4 * MIB);
        }
        for (number, pointer) in first.iter().enumerate() {
            let byte = 20 + number as u8;
            assert!(
                gpu.read(MAIN, *pointer, 4 * MIB).iter().all(|found| *found == byte),
                "block {number} shares bytes"
            );
        }
        assert_eq!(restore(&between), GAPLESS_OK);
        assert_eq!(figures(None).live_bytes, 20 * MIB as u64);

        // What cannot be had changes nothing.
        let mut wrong = before[1];
        wrong.address = before[0].address + 512;
        let impossible = [before[0], wrong];
        assert_eq!(restore(&impossible), GAPLESS_ERROR_NOT_ALLOCATED);
        let now: Vec<u64> = blocks(Some(&POOL), true).iter().map(|block| block.address).collect();
        assert_eq!(now, between.iter().map(|block| block.address).collect::<Vec<_>>());
        assert_eq!(restore(&[]), GAPLESS_OK);
        assert_eq!(figures(None).live_bytes, 0);
        ok(gapless_torch_alloc_again(first[0], 4 * MIB as u64));
        ok(gapless_torch_delete(first[0]));
    });
}

/// Blocks that were freed on the way are made again, after a wait for the stream that still uses them.
#[test]
fn a_pool_that_cannot_go_back_is_as_before() {
    with_devices("a_pool_that_cannot_go_back_is_as_before", &[], || {
        let gpu = Gpu::open(0);
        ok(gapless_torch_use_pool(0, POOL));
        let block = alloc(4 * MIB, Some(&POOL));
        let before = blocks(Some(&POOL), true);
        let user = gpu.stream();
        gpu.delay(user, 80);
        gpu.fill(user, block, 5, 4 * MIB);
        gapless_torch_record_stream(block, user);
        let mut impossible = before[0];
        impossible.address += 512;
        assert_eq!(restore(&[impossible]), GAPLESS_ERROR_NOT_ALLOCATED);
        let live = |blocks: Vec<gapless_torch_block>| -> Vec<_> {
            blocks.iter().map(|block| (block.address, block.requested_bytes)).collect()
        };
        assert_eq!(live(blocks(Some(&POOL), true)), live(before));
        assert_eq!(gpu.read(MAIN, block, 4 * MIB), vec![5; 4 * MIB]);
        ok(gapless_torch_delete(block));
    });
}

#[test]
fn counts_do_not_fall_when_a_pool_ends() {
    with_devices("counts_do_not_fall_when_a_pool_ends", &[], || {
        let outside = alloc(MIB, None);
        ok(gapless_torch_use_pool(0, POOL));
        let inside = alloc(5 * MIB, Some(&POOL));
        let kept = alloc(3 * MIB, Some(&POOL));
        ok(gapless_torch_delete(inside));
        let before = figures(None);
        // A trim leaves what a pool has free. What is free beside the live block of the rest may be less than a chunk.
        assert!(before.kept_free_bytes >= 5 * MIB as u64, "{before:?}");
        assert_eq!(before.peak_chunks, before.chunks);
        assert_eq!((before.created_chunks, before.created_bytes), (before.chunks, before.reserved_bytes));
        ok(gapless_torch_delete(kept));
        gapless_torch_release_pool(0, POOL);
        for _ in 0..2 {
            let now = figures(None);
            assert_eq!((now.allocs, now.frees), (3, 2), "{now:?}");
            assert_eq!((now.created_chunks, now.created_bytes), (before.created_chunks, before.created_bytes));
            assert_eq!(now.created_chunks - now.released_chunks, now.chunks);
            assert_eq!(
                (now.peak_live_bytes, now.peak_reserved_bytes, now.peak_chunks),
                (before.peak_live_bytes, before.peak_reserved_bytes, before.peak_chunks)
            );
            assert!(now.chunks < before.chunks && now.host_waits >= before.host_waits);
            // Closes the pool.
            // SAFETY: no out-parameter.
            ok(unsafe { gapless_torch_trim(0, 1, null_mut()) });
        }
        ok(gapless_torch_reset_peaks(0));
        let now = figures(None);
        assert_eq!((now.peak_live_bytes, now.peak_chunks), (MIB as u64, now.chunks));
        ok(gapless_torch_delete(outside));
    });
}

/// A pool that could not be closed, since the device could not be waited for, is counted once.
#[test]
fn counts_of_a_pool_that_cannot_be_closed_yet() {
    let settings = [("GAPLESS_SIM_FAIL", "cuCtxSynchronize:1:900")];
    with_devices("counts_of_a_pool_that_cannot_be_closed_yet", &settings, || {
        let close = || {
            let mut released = 0;
            // SAFETY: a valid out-parameter.
            ok(unsafe { gapless_torch_trim(0, 1, &raw mut released) });
            released
        };
        ok(gapless_torch_use_pool(0, POOL));
        ok(gapless_torch_delete(alloc(5 * MIB, Some(&POOL))));
        let held = figures(None);
        gapless_torch_release_pool(0, POOL);
        let counts = |now: Figures| (now.allocs, now.frees, now.created_chunks, now.created_bytes);
        assert_eq!(close(), 0, "the wait fails");
        assert_eq!(counts(figures(None)), counts(held));
        assert_eq!(close(), held.reserved_bytes);
        assert_eq!(counts(figures(None)), counts(held));
    });
}

/// Memory of a device that is freed, and that a stream of another device uses still.
/// A default stream's handle does not say of which device it is. PyTorch does, and a free waits for that one alone.
#[test]
fn a_default_stream_is_that_of_the_device_that_pytorch_names() {
    let settings = [("GAPLESS_SIM_DEVICES", "2")];
    with_devices("a_default_stream_is_that_of_the_device_that_pytorch_names", &settings, || {
        let other = Gpu::open(1);
        let mut theirs = null_mut();
        // SAFETY: a valid out-parameter.
        ok(unsafe { gapless_torch_alloc(1, MIB as u64, MAIN, null(), &raw mut theirs) });
        for (device, waiting) in [(0, 0), (1, 1)] {
            let block = alloc(5 * MIB, None);
            other.delay(MAIN, 50);
            ok(gapless_torch_use_on(block, device, MAIN));
            ok(gapless_torch_delete(block));
            let waits = blocks(None, false).iter().filter(|block| block.state == 2).count();
            assert_eq!(waits, waiting, "recorded on device {device}");
            assert_eq!(other.wait(MAIN), 0);
        }
        assert_eq!(gapless_torch_use_on(theirs, 7, MAIN), GAPLESS_ERROR_NO_DEVICE);
    });
}

#[test]
fn a_block_that_is_held_back_is_not_live() {
    let settings = [("GAPLESS_SIM_DEVICES", "2")];
    with_devices("a_block_that_is_held_back_is_not_live", &settings, || {
        let other = Gpu::open(1);
        // The other device is in use.
        let mut theirs = null_mut();
        // SAFETY: a valid out-parameter.
        ok(unsafe { gapless_torch_alloc(1, MIB as u64, MAIN, null(), &raw mut theirs) });
        ok(gapless_torch_use_pool(0, POOL));
        let block = alloc(5 * MIB, Some(&POOL));
        let with_it = blocks(Some(&POOL), true);
        let stream = other.stream();
        ok(gapless_torch_use_on(block, 1, stream));
        other.delay(stream, 50);
        ok(gapless_torch_delete(block));

        assert!(blocks(Some(&POOL), true).is_empty());
        assert_eq!(blocks(Some(&POOL), false).iter().filter(|block| block.state == 2).count(), 1);
        let mut found = with_it[0];
        // SAFETY: a valid out-parameter.
        assert_eq!(unsafe { gapless_torch_describe(block, &raw mut found) }, GAPLESS_ERROR_NOT_FOUND);
        // Brought back after a wait, and not freed again behind the caller's back.
        ok(restore(&with_it));
        // SAFETY: no out-parameter.
        ok(unsafe { gapless_torch_trim(0, 0, null_mut()) });
        assert_eq!(blocks(Some(&POOL), true).len(), 1);
        ok(restore(&[]));
        assert_eq!(figures(None).live_bytes, 0);
    });
}

#[test]
fn chunks_that_could_not_be_created_do_not_count() {
    let settings = [("GAPLESS_SIM_FAIL", "cuMemCreate:3:2")];
    with_devices("chunks_that_could_not_be_created_do_not_count", &settings, || {
        let pointer = (0..4).map(|_| alloc_on(MAIN, 5 * MIB, None).1).max().unwrap();
        assert!(!pointer.is_null());
        let now = figures(None);
        assert_eq!((now.created_chunks, now.created_chunks - now.released_chunks), (now.chunks, now.chunks), "{now:?}");
    });
}

/// The history has what was freed and what came back, and nothing that was refused.
#[test]
fn the_history_has_what_happened() {
    with_devices("the_history_has_what_happened", &[], || {
        let events = || {
            let mut needed = 0;
            let mut buffer = vec![0_u8; 4096];
            // SAFETY: a buffer of that size.
            ok(unsafe { gapless_torch_history_json(buffer.as_mut_ptr().cast(), buffer.len() as u64, &raw mut needed) });
            let list: serde_json::Value = serde_json::from_slice(&buffer[..needed as usize - 1]).unwrap();
            let name = |event: &serde_json::Value| event["action"].as_str().unwrap().to_owned();
            list.as_array().unwrap().iter().map(name).collect::<Vec<_>>()
        };
        gapless_torch_record_history(100, 1);
        ok(gapless_torch_use_pool(0, POOL));
        let block = alloc(MIB, Some(&POOL));
        let with_it = blocks(Some(&POOL), true);
        ok(gapless_torch_delete(block));
        assert_eq!(gapless_torch_delete(block), GAPLESS_ERROR_NOT_ALLOCATED);
        ok(restore(&with_it));
        ok(restore(&[]));
        ok(gapless_torch_alloc_again(block, MIB as u64));
        assert_eq!(events(), ["alloc", "free", "alloc", "free", "alloc"]);
    });
}

#[test]
fn a_pool_lends_its_free_blocks_when_it_is_told_to() {
    let settings = [("GAPLESS_SIM_CAPACITY", "16MiB")];
    with_devices("a_pool_lends_its_free_blocks_when_it_is_told_to", &settings, || {
        assert_eq!(gapless_torch_lend_pool(0, POOL, 1), GAPLESS_ERROR_NOT_FOUND);
        ok(gapless_torch_use_pool(0, POOL));
        let inside = alloc(10 * MIB, Some(&POOL));
        ok(gapless_torch_delete(inside));
        assert_eq!(alloc_on(MAIN, 10 * MIB, None).0, GAPLESS_ERROR_OUT_OF_MEMORY);
        ok(gapless_torch_lend_pool(0, POOL, 1));
        assert_eq!(alloc(10 * MIB, None), inside);
        ok(gapless_torch_delete(inside));
        ok(gapless_torch_lend_pool(0, POOL, 0));
        assert_eq!(alloc_on(MAIN, 10 * MIB, None).0, GAPLESS_ERROR_OUT_OF_MEMORY);
    });
}
