//! `record_stream` with a stream of another device: the block is not handed out again before that stream's work is done, and
//! what is reported about streams and addresses is true.

mod gpu;
#[path = "../../../tests/simulated/mod.rs"]
mod simulated;

use gapless_capi::*;
use gpu::{Gpu, with_devices};
use std::ffi::{CStr, c_void};
use std::ptr::{null_mut, without_provenance_mut};

const MIB: usize = 1 << 20;
const MAIN: *mut CUstream_st = null_mut();

fn try_alloc(device: i32, bytes: usize, stream: *mut CUstream_st) -> (gapless_status, *mut c_void) {
    let mut pointer = null_mut();
    // SAFETY: the out-parameter is valid.
    let status = unsafe { gapless_device_alloc(device, bytes as u64, stream, &raw mut pointer) };
    (status, pointer)
}

fn alloc(device: i32, bytes: usize, stream: *mut CUstream_st) -> *mut c_void {
    let (status, pointer) = try_alloc(device, bytes, stream);
    assert_eq!(status, GAPLESS_OK, "{}", error_text());
    pointer
}

fn free(device: i32, pointer: *mut c_void) {
    assert_eq!(gapless_device_free(device, pointer, 0), GAPLESS_OK, "{}", error_text());
}

/// The text of this thread's last failure.
fn error_text() -> String {
    // SAFETY: a NUL-terminated text until the next failure on this thread.
    unsafe { CStr::from_ptr(gapless_last_error()) }.to_string_lossy().into_owned()
}

fn live_bytes(device: i32) -> u64 {
    let mut handle = null_mut();
    // SAFETY: the out-parameter is valid.
    assert_eq!(unsafe { gapless_device_allocator(device, &raw mut handle) }, GAPLESS_OK);
    let mut stats = gapless_stats::default();
    // SAFETY: a valid struct of the size it says.
    assert_eq!(unsafe { gapless_get_stats(handle, &raw mut stats) }, GAPLESS_OK);
    stats.figures.live_bytes
}

fn silent(text: Option<String>) {
    assert!(text.as_ref().is_none_or(|text| !text.contains("gapless:")), "{text:?}");
}

const BYTES: usize = 4 * MIB;

/// A block of device 0 that a busy stream of device 1 still has to read; it is recorded there, freed, and its size is
/// requested again. `kept` says that the stream is known to live.
fn read_behind_a_free(
    record: impl Fn(*mut c_void, *mut CUstream_st),
    reader: impl Fn(&Gpu) -> *mut CUstream_st,
    kept: bool,
) {
    let (one, two) = (Gpu::open(0), Gpu::open(1));
    let (block, there) = (alloc(0, BYTES, MAIN), alloc(1, BYTES, MAIN));
    one.fill(MAIN, block, 1, BYTES);
    assert_eq!(one.wait(MAIN), 0);
    let reading = reader(&two);
    two.delay(reading, 80);
    two.copy(reading, there, block, BYTES);
    record(block, reading);
    free(0, block);
    // As many as fit, so that one of them would be the same block.
    let others: Vec<_> = (0..8).map(|_| alloc(0, BYTES, MAIN)).collect();
    for other in &others {
        one.fill(MAIN, *other, 9, BYTES);
    }
    assert_eq!(one.wait(MAIN), 0);
    assert!(two.read(reading, there, BYTES) == vec![1; BYTES], "the block was handed out too early");
    others.into_iter().for_each(|other| free(0, other));
    free(1, there);
    // The next call notices that the use is over.
    let again = alloc(0, BYTES, MAIN);
    free(0, again);
    if !kept {
        // Nobody has promised that the stream lives: only a wait for the whole device shows it.
        assert_eq!(live_bytes(0), BYTES as u64);
        assert_eq!(try_alloc(0, 300 * MIB, MAIN).0, GAPLESS_ERROR_OUT_OF_MEMORY);
    }
    assert_eq!((live_bytes(0), live_bytes(1)), (0, 0));
}

#[test]
fn a_stream_of_the_other_device_holds_a_block_back() {
    silent(with_devices("a_stream_of_the_other_device_holds_a_block_back", &[], || {
        read_behind_a_free(|block, stream| gapless_torch_record_stream(block, stream), Gpu::stream, true);
        read_behind_a_free(
            |block, stream| assert_eq!(gapless_device_record_stream(0, block, stream), GAPLESS_OK, "{}", error_text()),
            Gpu::stream,
            false,
        );
    }));
}

/// A default stream's handle says nothing about the device: all of them count.
#[test]
fn so_do_the_other_device_s_default_streams() {
    silent(with_devices("so_do_the_other_device_s_default_streams", &[], || {
        for handle in [0, 1, 2] {
            read_behind_a_free(
                |block, stream| gapless_torch_record_stream(block, stream),
                |_| without_provenance_mut(handle),
                true,
            );
        }
    }));
}

/// A block of a graph's pool, whose pool lives on until the other device is done.
#[test]
fn blocks_of_pools_are_held_back_as_well() {
    silent(with_devices("blocks_of_pools_are_held_back_as_well", &[], || {
        let (one, two) = (Gpu::open(0), Gpu::open(1));
        let there = alloc(1, BYTES, MAIN);
        let pool = gapless_torch_pool { first: 1, second: 0 };
        gapless_torch_begin_allocate_to_pool(0, pool, null_mut());
        let block = alloc(0, BYTES, MAIN);
        one.fill(MAIN, block, 1, BYTES);
        assert_eq!(one.wait(MAIN), 0);
        let reading = two.stream();
        two.delay(reading, 80);
        two.copy(reading, there, block, BYTES);
        gapless_torch_record_stream(block, reading);
        free(0, block);
        let others: Vec<_> = (0..4).map(|_| alloc(0, BYTES, MAIN)).collect();
        others.iter().for_each(|other| one.fill(MAIN, *other, 9, BYTES));
        others.into_iter().for_each(|other| free(0, other));
        gapless_torch_end_allocate_to_pool(0, pool);
        gapless_torch_release_pool(0, pool);
        assert!(two.read(reading, there, BYTES) == vec![1; BYTES], "the block was handed out or unmapped too early");
        free(1, there);
    }));
}

/// A request that needs the block waits for the other device, and is served.
#[test]
fn a_full_device_waits_for_the_other() {
    silent(with_devices("a_full_device_waits_for_the_other", &[("GAPLESS_SIM_CAPACITY", "64MiB")], || {
        let (one, two) = (Gpu::open(0), Gpu::open(1));
        let (block, there) = (alloc(0, 40 * MIB, MAIN), alloc(1, BYTES, MAIN));
        one.fill(MAIN, block, 1, BYTES);
        assert_eq!(one.wait(MAIN), 0);
        let reading = two.stream();
        two.delay(reading, 80);
        two.copy(reading, there, block, BYTES);
        gapless_torch_record_stream(block, reading);
        free(0, block);
        let (status, next) = try_alloc(0, 48 * MIB, MAIN);
        assert_eq!(status, GAPLESS_OK, "{}", error_text());
        one.fill(MAIN, next, 9, 48 * MIB);
        assert_eq!(one.wait(MAIN), 0);
        assert!(two.read(reading, there, BYTES) == vec![1; BYTES]);
        free(0, next);
        free(1, there);
    }));
}

/// A stream of a device that gapless has not been used on.
#[test]
fn a_device_that_has_allocated_nothing_counts() {
    silent(with_devices("a_device_that_has_allocated_nothing_counts", &[("GAPLESS_SIM_DEVICES", "3")], || {
        let (block, idle) = (alloc(0, BYTES, MAIN), Gpu::open(2));
        let stream = idle.stream();
        gapless_torch_record_stream(block, stream);
        idle.delay(stream, 50);
        idle.fill(stream, block, 5, BYTES);
        free(0, block);
        let one = Gpu::open(0);
        let next: Vec<_> = (0..4).map(|_| alloc(0, BYTES, MAIN)).collect();
        next.iter().for_each(|next| one.fill(MAIN, *next, 9, BYTES));
        assert_eq!((one.wait(MAIN), idle.wait(stream)), (0, 0));
        for next in next {
            assert!(
                one.read(MAIN, next, BYTES) == vec![9; BYTES],
                "the other device wrote into a block of another owner"
            );
            free(0, next);
        }
    }));
}

/// Wrong handles and addresses get errors that say what is wrong.
#[test]
fn what_is_reported_is_true() {
    let text = with_devices("what_is_reported_is_true", &[], || {
        let (block, other) = (alloc(0, BYTES, MAIN), alloc(1, BYTES, MAIN));
        let theirs = Gpu::open(1).stream();
        let unknown = without_provenance_mut(0xdead_0000);
        for (device, pointer) in [(0, block), (1, other)] {
            gapless_torch_record_stream(pointer, unknown);
            let expected = format!("memory of device {device} cannot be recorded on stream 0xdead0000");
            assert!(
                error_text().contains(&expected) && error_text().contains("invalid resource handle"),
                "{}",
                error_text()
            );
        }
        let nowhere: *mut c_void = without_provenance_mut(0x1000);
        for stream in [MAIN, theirs, unknown] {
            gapless_torch_record_stream(nowhere, stream);
            assert!(error_text().contains("0x1000 is not the start of a live allocation"), "{}", error_text());
        }
        let inside = block.wrapping_byte_add(512);
        gapless_torch_record_stream(inside, theirs);
        assert!(error_text().contains("lies inside the live allocation"), "{}", error_text());
        assert_eq!(gapless_device_record_stream(0, block, theirs), GAPLESS_OK);
        Gpu::open(1).delay(theirs, 30);
        free(0, block);
        assert_eq!(gapless_device_free(0, block, 0), GAPLESS_ERROR_NOT_ALLOCATED, "freed twice");
        assert!(error_text().contains("freed before"), "{}", error_text());
        assert_eq!(gapless_device_record_stream(0, block, theirs), GAPLESS_ERROR_NOT_ALLOCATED);
        free(1, other);
    });
    if let Some(text) = text {
        assert!(!text.contains("a bug in gapless"), "{text}");
    }
}

/// While the other device's stream is being captured, nothing can show when it has used the block. The capture goes on, and the
/// block is let go after it.
#[test]
fn a_capture_on_the_other_device_is_left_alone() {
    let settings = [("GAPLESS_SIM_CAPACITY", "64MiB")];
    silent(with_devices("a_capture_on_the_other_device_is_left_alone", &settings, || {
        let two = Gpu::open(1);
        let (block, there) = (alloc(0, 40 * MIB, MAIN), alloc(1, BYTES, MAIN));
        let captured = two.stream();
        gapless_torch_record_stream(block, captured);
        two.begin_capture(captured);
        two.copy(captured, there, block, BYTES);
        free(0, block);
        for _ in 0..3 {
            free(0, alloc(0, MIB, MAIN));
        }
        // Needs the block, and is refused rather than served, or waited for for ever.
        assert_eq!(try_alloc(0, 48 * MIB, MAIN).0, GAPLESS_ERROR_OUT_OF_MEMORY);
        two.end_capture(captured);
        let next = alloc(0, 48 * MIB, MAIN);
        free(0, next);
        free(1, there);
        assert_eq!((live_bytes(0), live_bytes(1)), (0, 0));
    }));
}

/// A device that is lost uses nothing any more; the other one goes on.
#[test]
fn a_lost_device_holds_nothing_back() {
    with_devices("a_lost_device_holds_nothing_back", &[], || {
        let two = Gpu::open(1);
        let (block, _there) = (alloc(0, BYTES, MAIN), alloc(1, BYTES, MAIN));
        let stream = two.stream();
        gapless_torch_record_stream(block, stream);
        two.fill(stream, without_provenance_mut(0x1000), 1, 8);
        assert_eq!(two.wait(stream), 700);
        free(0, block);
        let _ = try_alloc(0, 300 * MIB, MAIN);
        assert_eq!(live_bytes(0), 0);
        free(0, alloc(0, BYTES, MAIN));
    });
}

/// The stream of the other device is the parent's: a forked process would wait for it for ever.
#[test]
fn a_forked_process_does_not_wait_for_the_other_device() {
    silent(with_devices("a_forked_process_does_not_wait_for_the_other_device", &[], || {
        let two = Gpu::open(1);
        let block = alloc(0, BYTES, MAIN);
        let reading = two.stream();
        two.delay(reading, 500);
        let other = alloc(0, BYTES, MAIN);
        for used in [block, other] {
            gapless_torch_record_stream(used, reading);
        }
        free(0, block);
        // SAFETY: the child calls this library, whose locks are free and which makes no driver call there, and ends with `_exit`.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "no child");
        if child == 0 {
            // SAFETY: ends the child if it waits.
            unsafe { libc::alarm(20) };
            // SAFETY: null: how much was released is not asked.
            let status = unsafe { gapless_device_trim(0, 0, null_mut()) };
            let refused = status == GAPLESS_ERROR_DRIVER && gapless_last_error_kind() == GAPLESS_KIND_FORKED;
            // Nobody would carry out a free that is deferred there.
            let is_freed = gapless_device_free(0, other, 0) == GAPLESS_OK && live_bytes(0) == BYTES as u64;
            // SAFETY: ends the child without handlers of its parent.
            unsafe { libc::_exit(i32::from(!(refused && is_freed))) }
        }
        let mut status = 0;
        // SAFETY: waits for the child created above.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((waited, status), (child, 0));
        assert_eq!(two.wait(reading), 0);
        free(0, other);
        // SAFETY: null: how much was released is not asked.
        assert_eq!(unsafe { gapless_device_trim(0, 0, null_mut()) }, GAPLESS_OK);
        assert_eq!(live_bytes(0), 0);
    }));
}
