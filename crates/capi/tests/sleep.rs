//! Sleep and wake through the C interface.

mod gpu;
#[path = "../../../tests/simulated/mod.rs"]
mod simulated;

use gapless_capi::*;
use gpu::{Gpu, with_devices};
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{null, null_mut, without_provenance};

const MIB: u64 = 1 << 20;
const MAIN: *mut CUstream_st = null_mut();
const WEIGHTS: gapless_torch_pool = gapless_torch_pool { first: 1, second: 1 };
const CACHE: gapless_torch_pool = gapless_torch_pool { first: 1, second: 3 };
const GRAPH: gapless_torch_pool = gapless_torch_pool { first: 0, second: 2 };

fn alloc(pool: Option<gapless_torch_pool>, bytes: u64) -> Result<*mut c_void, gapless_status> {
    let mut pointer = null_mut();
    let pool = pool.as_ref().map_or(null(), |pool| &raw const *pool);
    // SAFETY: the pointers are valid.
    match unsafe { gapless_torch_alloc(0, bytes, MAIN, pool, &raw mut pointer) } {
        GAPLESS_OK => Ok(pointer),
        status => Err(status),
    }
}

fn with_tag<T>(tag: Option<&str>, call: impl FnOnce(*const c_char) -> T) -> T {
    let tag = tag.map(|tag| CString::new(tag).unwrap());
    call(tag.as_ref().map_or(null(), |tag| tag.as_ptr()))
}

fn sleep(tag: Option<&str>, backup: gapless_backup) -> Result<gapless_slept, gapless_status> {
    let mut slept = gapless_slept { size: size_of::<gapless_slept>() as u64, ..gapless_slept::default() };
    // SAFETY: the pointers are valid.
    match with_tag(tag, |tag| unsafe { gapless_sleep(0, tag, backup, &raw mut slept) }) {
        GAPLESS_OK => Ok(slept),
        status => Err(status),
    }
}

fn wake(tag: Option<&str>, wait_ms: u64) -> Result<u64, gapless_status> {
    let mut mapped = 77;
    // SAFETY: the pointers are valid.
    match with_tag(tag, |tag| unsafe { gapless_wake(0, tag, wait_ms, 0, &raw mut mapped) }) {
        GAPLESS_OK => Ok(mapped),
        status => Err(status),
    }
}

fn asleep(tag: Option<&str>) -> (u64, u64) {
    let (mut live, mut pages) = (77, 77);
    // SAFETY: the pointers are valid.
    let status = with_tag(tag, |tag| unsafe { gapless_asleep(0, tag, &raw mut live, &raw mut pages) });
    assert_eq!(status, GAPLESS_OK);
    (live, pages)
}

fn declare(pool: gapless_torch_pool, kind: gapless_pool_kind, tag: Option<&str>) -> gapless_status {
    // SAFETY: the tag is null or a string.
    with_tag(tag, |tag| unsafe { gapless_torch_declare_pool(0, pool, kind, tag) })
}

fn error_text() -> String {
    // SAFETY: a NUL-terminated text until the next failure on this thread.
    unsafe { CStr::from_ptr(gapless_last_error()) }.to_string_lossy().into_owned()
}

#[test]
fn a_tag_sleeps_and_wakes() {
    with_devices("a_tag_sleeps_and_wakes", &[("GAPLESS_CONF", "budget:32MiB")], || {
        let gpu = Gpu::open(0);
        // As PyTorch does: the pool is there before anybody can say what it is for.
        assert_eq!(gapless_torch_use_pool(0, WEIGHTS), GAPLESS_OK);
        let kind = || {
            let mut kind = 77;
            // SAFETY: the out-parameter is valid.
            assert_eq!(unsafe { gapless_torch_pool_kind(0, WEIGHTS, &raw mut kind) }, GAPLESS_OK);
            kind
        };
        assert_eq!(kind(), GAPLESS_POOL_GRAPH);
        assert_eq!(declare(WEIGHTS, GAPLESS_POOL_ORDINARY, Some("weights")), GAPLESS_OK);
        assert_eq!(kind(), GAPLESS_POOL_ORDINARY);
        let [weights, own] = [alloc(Some(WEIGHTS), 13 * MIB).unwrap(), alloc(None, 5 * MIB).unwrap()];
        gpu.fill(MAIN, weights, 7, 13 * MIB as usize);
        gpu.fill(MAIN, own, 8, 5 * MIB as usize);
        assert_eq!(sleep(Some("kv_cache"), GAPLESS_BACKUP_DISCARD).unwrap().asleep_bytes, 0);
        let slept = sleep(Some("weights"), GAPLESS_BACKUP_PINNED).unwrap();
        assert_eq!((slept.asleep_bytes, slept.live_bytes), (14 * MIB, 13 * MIB));
        assert_eq!((slept.copied_bytes, slept.released_bytes), (13 * MIB, 14 * MIB));
        assert_eq!(
            (asleep(Some("weights")), asleep(None), asleep(Some("none"))),
            ((13 * MIB, 14 * MIB), (13 * MIB, 14 * MIB), (0, 0))
        );
        assert_eq!(gpu.read(MAIN, own, 16), vec![8; 16]);
        let other = alloc(None, 26 * MIB).unwrap();
        assert_eq!(wake(Some("weights"), 20), Err(GAPLESS_ERROR_OUT_OF_MEMORY));
        assert!(error_text().ends_with("13 MiB of tag weights are asleep and need 14 MiB."), "{}", error_text());
        assert_eq!(alloc(None, 4 * MIB), Err(GAPLESS_ERROR_OUT_OF_MEMORY));
        assert!(error_text().contains("\n13 MiB of tag weights are asleep and need 14 MiB."), "{}", error_text());
        assert_eq!(gapless_device_free(0, other, 0), GAPLESS_OK);
        assert_eq!(wake(Some("weights"), 0), Ok(14 * MIB));
        assert_eq!(gpu.read(MAIN, weights, 13 * MIB as usize), vec![7; 13 * MIB as usize]);
        let slept = sleep(None, GAPLESS_BACKUP_PINNED).unwrap();
        assert_eq!((slept.live_bytes, asleep(None).0), (18 * MIB, 18 * MIB));
        assert_eq!(wake(None, 0), Ok(slept.asleep_bytes));
        assert_eq!((gpu.read(MAIN, own, 16), gpu.read(MAIN, weights, 16)), (vec![8; 16], vec![7; 16]));
    });
}

/// Two tags with a backup each: both sleep or none, and both wake or none.
#[test]
fn several_tags_sleep_and_wake_together() {
    with_devices("several_tags_sleep_and_wake_together", &[("GAPLESS_CONF", "budget:32MiB,host:8MiB")], || {
        let gpu = Gpu::open(0);
        for (pool, tag) in [(WEIGHTS, "weights"), (CACHE, "cache")] {
            assert_eq!(gapless_torch_use_pool(0, pool), GAPLESS_OK);
            assert_eq!(declare(pool, GAPLESS_POOL_ORDINARY, Some(tag)), GAPLESS_OK);
        }
        let [weights, cache, own] =
            [(Some(WEIGHTS), 6), (Some(CACHE), 10), (None, 4)].map(|(pool, mib)| alloc(pool, mib * MIB).unwrap());
        for (block, value) in [(weights, 7), (cache, 8), (own, 9)] {
            gpu.fill(MAIN, block, value, 4 * MIB as usize);
        }
        let entry =
            |tag: Option<&'static CStr>, backup| gapless_tag_backup { tag: tag.map_or(null(), CStr::as_ptr), backup };
        let mut slept = gapless_slept { size: size_of::<gapless_slept>() as u64, ..gapless_slept::default() };
        // SAFETY: the tags are strings, and what is written is valid, here and below.
        let mut sleep = |tags: &[gapless_tag_backup]| unsafe {
            gapless_sleep_tags(0, tags.as_ptr(), tags.len() as u64, &raw mut slept)
        };
        let [discarded, kept] =
            [entry(Some(c"cache"), GAPLESS_BACKUP_DISCARD), entry(Some(c"weights"), GAPLESS_BACKUP_PINNED)];
        // The host's memory for backups is too small for all that is to be kept: what is to be discarded is there still.
        let all = [discarded, entry(None, GAPLESS_BACKUP_PINNED)];
        assert_eq!(sleep(&all), GAPLESS_ERROR_DRIVER);
        assert!(
            error_text().starts_with("a backup of 4 MiB does not fit in the 2 MiB that are left"),
            "{}",
            error_text()
        );
        assert_eq!((asleep(None), gpu.read(MAIN, cache, 16)), ((0, 0), vec![8; 16]));
        assert_eq!(sleep(&[discarded, entry(None, 9)]), GAPLESS_ERROR_INVALID_ARGUMENT);
        assert_eq!(sleep(&[]), GAPLESS_OK);
        assert_eq!(sleep(&[discarded, kept]), GAPLESS_OK);
        assert_eq!((slept.asleep_bytes, slept.live_bytes, slept.copied_bytes), (16 * MIB, 16 * MIB, 6 * MIB));
        let wake = |tags: &[*const c_char]| {
            // SAFETY: as above.
            unsafe { gapless_wake_tags(0, tags.as_ptr(), tags.len() as u64, 0, 0, null_mut()) }
        };
        let other = alloc(None, 14 * MIB).unwrap();
        let both = [c"weights".as_ptr(), c"cache".as_ptr()];
        assert_eq!(wake(&both), GAPLESS_ERROR_OUT_OF_MEMORY);
        assert_eq!(asleep(None).1, 16 * MIB);
        assert_eq!(gapless_device_free(0, other, 0), GAPLESS_OK);
        assert_eq!(wake(&[]), GAPLESS_OK);
        assert_eq!((asleep(None).1, wake(&both), asleep(None).1), (16 * MIB, GAPLESS_OK, 0));
        assert_eq!((gpu.read(MAIN, weights, 16), gpu.read(MAIN, own, 16)), (vec![7; 16], vec![9; 16]));
        // SAFETY: a list that is null is refused, here and below.
        let refused = unsafe { gapless_sleep_tags(0, null(), 2, null_mut()) };
        assert_eq!((refused, error_text()), (GAPLESS_ERROR_INVALID_ARGUMENT, "the list of 2 tags is null".to_owned()));
        // SAFETY: as above.
        let refused = unsafe { gapless_wake_tags(0, null(), 2, 0, 0, null_mut()) };
        assert_eq!(refused, GAPLESS_ERROR_INVALID_ARGUMENT);
    });
}

/// The address of a backup in the host's memory.
fn backup_of(pointer: *mut c_void, bytes: u64) -> Result<*const u8, gapless_status> {
    let mut host = without_provenance(77);
    // SAFETY: the out-parameter is valid.
    match unsafe { gapless_backup_of(0, pointer, bytes, &raw mut host) } {
        GAPLESS_OK => Ok(host.cast()),
        status => Err(status),
    }
}

#[test]
fn backups_can_be_read() {
    with_devices("backups_can_be_read", &[], || {
        let gpu = Gpu::open(0);
        assert_eq!(gapless_torch_use_pool(0, WEIGHTS), GAPLESS_OK);
        assert_eq!(declare(WEIGHTS, GAPLESS_POOL_ORDINARY, Some("weights")), GAPLESS_OK);
        let [weights, own] = [alloc(Some(WEIGHTS), 3 * MIB).unwrap(), alloc(None, 5 * MIB).unwrap()];
        gpu.fill(MAIN, weights, 7, 3 * MIB as usize);
        assert_eq!(backup_of(weights, 3 * MIB), Ok(null()), "awake");
        sleep(Some("weights"), GAPLESS_BACKUP_PINNED).unwrap();
        let host = backup_of(weights, 3 * MIB).unwrap();
        assert_eq!(backup_of(weights.wrapping_byte_add(100), 50), Ok(host.wrapping_add(100)));
        assert_eq!((backup_of(own, 100), backup_of(null_mut(), 0)), (Ok(null()), Ok(null())));
        assert_eq!(backup_of(weights, 64 * MIB), Err(GAPLESS_ERROR_NOT_FOUND));
        assert!(error_text().starts_with("no backup has all of the 64 MiB at 0x"), "{}", error_text());
        // SAFETY: a backup of so many bytes.
        let bytes = || unsafe { std::slice::from_raw_parts(host, 3 * MIB as usize) }.to_vec();
        assert_eq!(bytes(), vec![7; 3 * MIB as usize]);
        let wake = |flags| {
            // SAFETY: the tag is a string.
            let status = with_tag(Some("weights"), |tag| unsafe { gapless_wake(0, tag, 0, flags, null_mut()) });
            (status == GAPLESS_OK).then_some(()).ok_or(status)
        };
        assert_eq!(wake(2), Err(GAPLESS_ERROR_INVALID_ARGUMENT));
        assert_eq!(error_text(), "0x2 are no flags of a wake: see GAPLESS_WAKE_...");
        for byte in [8, 9] {
            assert_eq!(wake(GAPLESS_WAKE_RETAIN_BACKUPS), Ok(()));
            assert_eq!((backup_of(weights, 3 * MIB), bytes()[0]), (Ok(host), byte - 1));
            gpu.fill(MAIN, weights, byte, 3 * MIB as usize);
            sleep(Some("weights"), GAPLESS_BACKUP_PINNED).unwrap();
            assert_eq!((backup_of(weights, 3 * MIB), bytes()), (Ok(host), vec![byte; 3 * MIB as usize]));
        }
        assert_eq!(wake(0), Ok(()));
        assert_eq!(backup_of(weights, 3 * MIB), Ok(null()));
        assert_eq!(gpu.read(MAIN, weights, 16), vec![9; 16]);
    });
}

#[test]
fn backups_may_be_in_pageable_memory_and_in_files() {
    let directory = tempfile::tempdir().unwrap();
    let conf = format!("backups:{}", directory.path().display());
    with_devices("backups_may_be_in_pageable_memory_and_in_files", &[("GAPLESS_CONF", &conf)], || {
        let gpu = Gpu::open(0);
        let block = alloc(None, 5 * MIB).unwrap();
        gpu.fill(MAIN, block, 7, 5 * MIB as usize);
        sleep(None, GAPLESS_BACKUP_PAGEABLE).unwrap();
        let host = backup_of(block, 5 * MIB).unwrap();
        // SAFETY: a backup of so many bytes.
        assert_eq!(unsafe { std::slice::from_raw_parts(host, 5 * MIB as usize) }, vec![7; 5 * MIB as usize]);
        assert!(wake(None, 0).is_ok());
        assert_eq!(gpu.read(MAIN, block, 5 * MIB as usize), vec![7; 5 * MIB as usize]);
        gpu.fill(MAIN, block, 8, 5 * MIB as usize);
        assert_eq!(sleep(None, GAPLESS_BACKUP_FILE).unwrap().copied_bytes, 5 * MIB);
        assert_eq!(backup_of(block, 5 * MIB), Err(GAPLESS_ERROR_NOT_FOUND));
        assert!(error_text().ends_with("is in a file, and is not shown"), "{}", error_text());
        assert!(wake(None, 0).is_ok());
        assert_eq!(gpu.read(MAIN, block, 5 * MIB as usize), vec![8; 5 * MIB as usize]);
        assert_eq!(sleep(None, 4).err(), Some(GAPLESS_ERROR_INVALID_ARGUMENT));
    });
}

#[test]
fn files_need_a_directory() {
    with_devices("files_need_a_directory", &[], || {
        alloc(None, MIB).unwrap();
        assert_eq!(sleep(None, GAPLESS_BACKUP_FILE).err(), Some(GAPLESS_ERROR_IO));
        assert!(error_text().starts_with("no directory for backups in files is set"), "{}", error_text());
        assert_eq!(asleep(None), (0, 0));
    });
}

#[test]
fn a_thread_s_tag_is_that_of_its_graphs() {
    with_devices("a_thread_s_tag_is_that_of_its_graphs", &[], || {
        // SAFETY: a string, or NULL, which is refused.
        let push = |tag: Option<&str>| with_tag(tag, |tag| unsafe { gapless_tag_push(tag) });
        assert_eq!(push(Some("graphs")), GAPLESS_OK);
        assert_eq!((push(Some("")), push(None)), (GAPLESS_ERROR_INVALID_ARGUMENT, GAPLESS_ERROR_INVALID_ARGUMENT));
        assert_eq!(gapless_torch_use_pool(0, GRAPH), GAPLESS_OK);
        assert_eq!(gapless_tag_pop(), GAPLESS_OK);
        assert_eq!(gapless_tag_pop(), GAPLESS_ERROR_NOT_FOUND);
        alloc(Some(GRAPH), 4 * MIB).unwrap();
        let slept = sleep(Some("graphs"), GAPLESS_BACKUP_PINNED).unwrap();
        assert_eq!(slept.asleep_bytes, 4 * MIB);
        assert_eq!(wake(Some("graphs"), 0), Ok(slept.asleep_bytes));
    });
}

#[test]
fn misuse_is_refused() {
    with_devices("misuse_is_refused", &[], || {
        let gpu = Gpu::open(0);
        assert_eq!(sleep(None, 4).err(), Some(GAPLESS_ERROR_INVALID_ARGUMENT));
        assert_eq!(error_text(), "4 is no kind of backup: see GAPLESS_BACKUP_...");
        assert_eq!(declare(WEIGHTS, 2, None), GAPLESS_ERROR_INVALID_ARGUMENT);
        assert_eq!(declare(WEIGHTS, GAPLESS_POOL_ORDINARY, Some("")), GAPLESS_ERROR_INVALID_ARGUMENT);
        assert_eq!(gapless_torch_use_pool(0, WEIGHTS), GAPLESS_OK);
        let block = alloc(Some(WEIGHTS), 2 * MIB).unwrap();
        assert_eq!(declare(WEIGHTS, GAPLESS_POOL_ORDINARY, None), GAPLESS_ERROR_IN_USE);
        // Structs of other headers: a part of this one is written, and one that is larger is refused.
        let mut slept = gapless_slept { size: 24, live_bytes: 77, copied_bytes: 77, ..gapless_slept::default() };
        // SAFETY: the pointers are valid.
        assert_eq!(unsafe { gapless_sleep(0, null(), GAPLESS_BACKUP_DISCARD, &raw mut slept) }, GAPLESS_OK);
        assert_eq!((slept.size, slept.copied_bytes), (24, 77));
        slept.size = 4096;
        // SAFETY: as above.
        let status = unsafe { gapless_sleep(0, null(), GAPLESS_BACKUP_DISCARD, &raw mut slept) };
        assert_eq!(status, GAPLESS_ERROR_INVALID_ARGUMENT);
        // SAFETY: the tag and what is written may be null.
        assert_eq!(unsafe { gapless_sleep(0, null(), GAPLESS_BACKUP_DISCARD, null_mut()) }, GAPLESS_OK);
        // SAFETY: as above.
        assert_eq!(unsafe { gapless_wake(0, null(), 0, 0, null_mut()) }, GAPLESS_OK);
        // SAFETY: what is null is refused.
        let status = unsafe { gapless_backup_of(0, block, 1, null_mut()) };
        assert_eq!(
            (status, error_text()),
            (GAPLESS_ERROR_INVALID_ARGUMENT, "the out-parameter host is null".to_owned())
        );
        let stream = gpu.stream();
        assert_eq!(gapless_device_keep_stream(0, stream), GAPLESS_OK);
        gpu.begin_capture(stream);
        assert_eq!(sleep(None, GAPLESS_BACKUP_PINNED).err(), Some(GAPLESS_ERROR_STREAM));
        assert_eq!(
            (gapless_last_error_kind(), wake(None, 1000)),
            (GAPLESS_KIND_CANNOT_WAIT, Err(GAPLESS_ERROR_STREAM))
        );
        gpu.end_capture(stream);
        assert_eq!(gapless_device_free(0, block, 0), GAPLESS_OK);
        assert!(sleep(None, GAPLESS_BACKUP_PINNED).is_ok());
        for device in [-1, 64] {
            // SAFETY: the pointers may be null.
            unsafe {
                assert_eq!(gapless_wake(device, null(), 0, 0, null_mut()), GAPLESS_ERROR_INVALID_ARGUMENT);
            }
        }
    });
}
