//! Growable ranges through the C interface.

mod gpu;
#[path = "../../../tests/simulated/mod.rs"]
mod simulated;

use gapless_capi::*;
use gpu::{Gpu, with_devices};
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{null_mut, without_provenance_mut};

const MIB: u64 = 1 << 20;
const MAIN: *mut CUstream_st = null_mut();

fn reserve(bytes: u64) -> Result<*mut c_void, gapless_status> {
    let mut range = without_provenance_mut(77);
    // SAFETY: the out-parameter is valid.
    match unsafe { gapless_range_reserve(0, bytes, &raw mut range) } {
        GAPLESS_OK => Ok(range),
        status => {
            assert_eq!(range.addr(), 77, "untouched");
            Err(status)
        }
    }
}

fn shrink(range: *mut c_void, bytes: u64) -> Result<u64, gapless_status> {
    let mut unmapped = 77;
    // SAFETY: the out-parameter is valid.
    match unsafe { gapless_range_shrink(0, range, bytes, &raw mut unmapped) } {
        GAPLESS_OK => Ok(unmapped),
        status => {
            assert_eq!(unmapped, 77, "untouched");
            Err(status)
        }
    }
}

/// The mapped bytes, and those of addresses.
fn size(range: *mut c_void) -> Result<(u64, u64), gapless_status> {
    let (mut mapped, mut addresses) = (77, 77);
    // SAFETY: the out-parameters are valid.
    match unsafe { gapless_range_size(0, range, &raw mut mapped, &raw mut addresses) } {
        GAPLESS_OK => Ok((mapped, addresses)),
        status => {
            assert_eq!((mapped, addresses), (77, 77), "untouched");
            Err(status)
        }
    }
}

fn alloc(bytes: u64) -> Result<*mut c_void, gapless_status> {
    let mut pointer = null_mut();
    // SAFETY: the out-parameter is valid.
    match unsafe { gapless_device_alloc(0, bytes, MAIN, &raw mut pointer) } {
        GAPLESS_OK => Ok(pointer),
        status => Err(status),
    }
}

/// A range that has so many bytes.
fn grown(bytes: u64) -> *mut c_void {
    let range = reserve(64 * MIB).unwrap();
    assert_eq!(gapless_range_grow(0, range, bytes, MAIN), GAPLESS_OK, "{}", error_text());
    range
}

fn stats() -> gapless_stats {
    let mut handle = null_mut();
    // SAFETY: zeroes are valid in every field.
    let mut stats: gapless_stats = unsafe { std::mem::zeroed() };
    stats.size = size_of::<gapless_stats>() as u64;
    // SAFETY: the out-parameter is valid.
    assert_eq!(unsafe { gapless_device_allocator(0, &raw mut handle) }, GAPLESS_OK);
    // SAFETY: as above.
    assert_eq!(unsafe { gapless_get_stats(handle, &raw mut stats) }, GAPLESS_OK);
    stats
}

fn error_text() -> String {
    // SAFETY: a NUL-terminated text until the next failure on this thread.
    unsafe { CStr::from_ptr(gapless_last_error()) }.to_string_lossy().into_owned()
}

/// A text that a function writes into a buffer.
fn json(write: impl Fn(*mut c_char, u64, *mut u64) -> gapless_status) -> String {
    let (mut buffer, mut needed) = (vec![0_u8; 1 << 16], 0);
    assert_eq!(write(buffer.as_mut_ptr().cast(), buffer.len() as u64, &raw mut needed), GAPLESS_OK, "{}", error_text());
    CStr::from_bytes_until_nul(&buffer).unwrap().to_str().unwrap().to_owned()
}

fn at(range: *mut c_void, mib: u64) -> *mut c_void {
    range.wrapping_byte_add((mib * MIB) as usize)
}

#[test]
fn a_range_grows_and_shrinks() {
    with_devices("a_range_grows_and_shrinks", &[("GAPLESS_CONF", "chunk:2MiB,budget:64MiB")], || {
        let gpu = Gpu::open(0);
        // More than the device has.
        let range = reserve(1024 * MIB + 1).unwrap();
        assert_eq!(size(range), Ok((0, 1026 * MIB)));
        assert_eq!((shrink(range, MIB), stats().figures.reserved_bytes), (Ok(0), 0));
        assert_eq!(gapless_range_grow(0, range, 5 * MIB, MAIN), GAPLESS_OK);
        assert_eq!(size(range), Ok((6 * MIB, 1026 * MIB)));
        gpu.fill(MAIN, range, 7, 6 * MIB as usize);
        assert_eq!(gapless_range_grow(0, range, 40 * MIB, MAIN), GAPLESS_OK);
        gpu.fill(MAIN, at(range, 6), 8, 40 * MIB as usize);
        assert_eq!(gpu.read(MAIN, at(range, 6), 40 * MIB as usize), vec![8; 40 * MIB as usize]);
        let figures = stats().figures;
        assert_eq!((figures.range_bytes, figures.live_bytes, figures.reserved_bytes), (46 * MIB, 0, 46 * MIB));
        let mut handle = null_mut();
        // SAFETY: the out-parameter is valid.
        assert_eq!(unsafe { gapless_device_allocator(0, &raw mut handle) }, GAPLESS_OK);
        // SAFETY: the buffer is valid.
        let snapshot =
            json(|buffer, capacity, needed| unsafe { gapless_snapshot_json(handle, buffer, capacity, needed) });
        assert_eq!(snapshot.matches("\"in_range\":true").count(), 23);
        assert_eq!(alloc(20 * MIB), Err(GAPLESS_ERROR_OUT_OF_MEMORY));
        assert!(error_text().contains("46 MiB held by growable ranges"), "{}", error_text());
        // What is less than a page stays.
        assert_eq!((shrink(range, 2 * MIB - 1), shrink(range, 39 * MIB)), (Ok(0), Ok(38 * MIB)));
        assert_eq!(size(range), Ok((8 * MIB, 1026 * MIB)));
        let other = alloc(50 * MIB).unwrap();
        gpu.fill(MAIN, other, 9, 50 * MIB as usize);
        assert_eq!(
            gpu.read(MAIN, range, 8 * MIB as usize),
            [vec![7; 6 * MIB as usize], vec![8; 2 * MIB as usize]].concat()
        );
        assert_eq!(gapless_device_free(0, range, 0), GAPLESS_ERROR_NOT_ALLOCATED, "has an end of its own");
        assert_eq!(gapless_range_close(0, range), GAPLESS_OK);
        assert_eq!((stats().figures.range_bytes, gapless_range_close(0, range)), (0, GAPLESS_ERROR_NOT_ALLOCATED));
        assert!(error_text().starts_with("no growable range starts at 0x"), "{}", error_text());
        assert_eq!(gapless_device_free(0, other, 0), GAPLESS_OK);
        alloc(64 * MIB).unwrap();
    });
}

#[test]
fn misuse_of_ranges_is_refused() {
    with_devices("misuse_of_ranges_is_refused", &[("GAPLESS_CONF", "chunk:2MiB,budget:32MiB")], || {
        let range = grown(4 * MIB);
        for other in [null_mut(), at(range, 2), alloc(MIB).unwrap()] {
            assert_eq!(gapless_range_grow(0, other, MIB, MAIN), GAPLESS_ERROR_NOT_ALLOCATED);
            assert_eq!(
                (shrink(other, MIB), size(other)),
                (Err(GAPLESS_ERROR_NOT_ALLOCATED), Err(GAPLESS_ERROR_NOT_ALLOCATED))
            );
            let closed = gapless_range_close(0, other);
            assert_eq!(closed, if other.is_null() { GAPLESS_OK } else { GAPLESS_ERROR_NOT_ALLOCATED });
        }
        assert_eq!(gapless_range_grow(1, range, MIB, MAIN), GAPLESS_ERROR_NOT_ALLOCATED, "of another device");
        for device in [-1, 64] {
            assert_eq!(gapless_range_grow(device, range, MIB, MAIN), GAPLESS_ERROR_INVALID_ARGUMENT);
            assert_eq!(gapless_range_close(device, range), GAPLESS_ERROR_INVALID_ARGUMENT);
        }
        assert_eq!(gapless_range_grow(0, range, 61 * MIB, MAIN), GAPLESS_ERROR_TOO_LARGE);
        assert!(error_text().contains("60 MiB"), "{}", error_text());
        assert_eq!(gapless_range_grow(0, range, u64::MAX, MAIN), GAPLESS_ERROR_TOO_LARGE);
        assert_eq!(reserve(u64::MAX), Err(GAPLESS_ERROR_DRIVER));
        assert_eq!(gapless_range_grow(0, range, MIB, without_provenance_mut(0x5eed)), GAPLESS_ERROR_STREAM);
        assert_eq!(gapless_last_error_kind(), GAPLESS_KIND_FOREIGN_STREAM);
        assert_eq!(gapless_range_grow(0, range, 27 * MIB, MAIN), GAPLESS_ERROR_OUT_OF_MEMORY);
        assert!(error_text().contains("\nRaise it with budget:SIZE in GAPLESS_CONF"), "{}", error_text());
        // SAFETY: the buffer is valid.
        let report =
            json(|buffer, capacity, needed| unsafe { gapless_last_error_report_json(buffer, capacity, needed) });
        assert!(
            report.contains("\"requested_bytes\":28311552") && report.contains("\"range_bytes\":4194304"),
            "{report}"
        );
        assert_eq!((size(range), stats().figures.range_bytes), (Ok((4 * MIB, 64 * MIB)), 4 * MIB));
        // SAFETY: null is refused.
        assert_eq!(unsafe { gapless_range_reserve(0, MIB, null_mut()) }, GAPLESS_ERROR_INVALID_ARGUMENT);
        // SAFETY: as above.
        assert_eq!(unsafe { gapless_range_dlpack(0, range, null_mut()) }, GAPLESS_ERROR_INVALID_ARGUMENT);
        // SAFETY: null is allowed.
        assert_eq!(unsafe { gapless_range_shrink(0, range, MIB, null_mut()) }, GAPLESS_OK);
        // SAFETY: as above.
        assert_eq!(unsafe { gapless_range_size(0, range, null_mut(), null_mut()) }, GAPLESS_OK);
    });
}

/// Moves up to `bytes` from the end of `from` to the end of `range`.
fn take(range: *mut c_void, from: *mut c_void, bytes: u64) -> Result<u64, gapless_status> {
    let mut moved = 77;
    // SAFETY: the out-parameter is valid.
    match unsafe { gapless_range_take(0, range, from, bytes, MAIN, &raw mut moved) } {
        GAPLESS_OK => Ok(moved),
        status => {
            assert_eq!(moved, 77, "untouched");
            Err(status)
        }
    }
}

#[test]
fn a_range_takes_the_end_of_another() {
    with_devices("a_range_takes_the_end_of_another", &[("GAPLESS_CONF", "chunk:2MiB,budget:16MiB")], || {
        let gpu = Gpu::open(0);
        let (giver, taker) = (grown(12 * MIB), grown(4 * MIB));
        let bytes = |mib: u64| (mib * MIB) as usize;
        gpu.fill(MAIN, giver, 1, bytes(8));
        gpu.fill(MAIN, at(giver, 8), 2, bytes(4));
        gpu.fill(MAIN, taker, 3, bytes(4));
        // What is less than a page stays.
        assert_eq!((take(taker, giver, 2 * MIB - 1), take(taker, giver, 6 * MIB)), (Ok(0), Ok(6 * MIB)));
        assert_eq!((size(giver), size(taker)), (Ok((6 * MIB, 64 * MIB)), Ok((10 * MIB, 64 * MIB))));
        let expected = [vec![3; bytes(4)], vec![1; bytes(2)], vec![2; bytes(4)]].concat();
        assert_eq!((gpu.read(MAIN, taker, bytes(10)), gpu.read(MAIN, giver, bytes(6))), (expected, vec![1; bytes(6)]));
        assert_eq!(stats().figures.range_bytes, 16 * MIB);
        assert_eq!(take(taker, taker, MIB), Err(GAPLESS_ERROR_INVALID_ARGUMENT));
        assert!(error_text().ends_with("cannot take memory from itself"), "{}", error_text());
        for (range, from) in [(at(taker, 2), giver), (taker, at(giver, 2)), (null_mut(), giver), (taker, null_mut())] {
            assert_eq!(take(range, from, 2 * MIB), Err(GAPLESS_ERROR_NOT_ALLOCATED));
        }
        let small = reserve(2 * MIB).unwrap();
        assert_eq!(take(small, taker, 4 * MIB), Err(GAPLESS_ERROR_TOO_LARGE));
        assert_eq!((take(small, taker, 2 * MIB), size(taker)), (Ok(2 * MIB), Ok((8 * MIB, 64 * MIB))));
        // SAFETY: the number of bytes is not asked for.
        assert_eq!(unsafe { gapless_range_take(0, giver, small, MIB, MAIN, null_mut()) }, GAPLESS_OK);
        [giver, taker, small].iter().for_each(|range| assert_eq!(gapless_range_close(0, *range), GAPLESS_OK));
        alloc(16 * MIB).unwrap();
    });
}

/// What ranges have stays awake, and is in the result.
#[test]
fn a_sleep_counts_ranges() {
    with_devices("a_sleep_counts_ranges", &[("GAPLESS_CONF", "chunk:2MiB")], || {
        let (range, block) = (grown(6 * MIB), alloc(10 * MIB).unwrap());
        // SAFETY: zeroes are valid in every field.
        let mut slept: gapless_slept = unsafe { std::mem::zeroed() };
        slept.size = size_of::<gapless_slept>() as u64;
        // SAFETY: the pointers are valid.
        let status = unsafe { gapless_sleep(0, std::ptr::null(), GAPLESS_BACKUP_DISCARD, &raw mut slept) };
        assert_eq!((status, slept.range_bytes, slept.registered_bytes), (GAPLESS_OK, 6 * MIB, 0), "{}", error_text());
        assert_eq!((slept.asleep_bytes, stats().figures.reserved_bytes), (10 * MIB, 6 * MIB));
        assert_eq!(gapless_range_close(0, range), GAPLESS_OK);
        assert_eq!(gapless_device_free(0, block, 0), GAPLESS_OK);
    });
}

/// Memory goes once the work on the streams that a range was used with is done: the simulated driver ends a program that uses what
/// is not mapped.
#[test]
fn a_range_waits_for_its_streams() {
    with_devices("a_range_waits_for_its_streams", &[("GAPLESS_CONF", "chunk:2MiB")], || {
        let gpu = Gpu::open(0);
        let (range, stream) = (grown(8 * MIB), gpu.stream());
        assert_eq!(gapless_range_grow(0, range, 0, stream), GAPLESS_OK, "recorded");
        for close in [false, true] {
            gpu.delay(stream, 50);
            gpu.fill(stream, range, 8, size(range).unwrap().0 as usize);
            if close {
                assert_eq!(gapless_range_close(0, range), GAPLESS_OK);
            } else {
                assert_eq!(shrink(range, 6 * MIB), Ok(6 * MIB));
            }
            assert_eq!(gpu.wait(stream), 0);
        }
        let range = grown(8 * MIB);
        assert_eq!(gapless_range_grow(0, range, 0, stream), GAPLESS_OK);
        assert_eq!(gapless_device_keep_stream(0, stream), GAPLESS_OK);
        gpu.begin_capture(stream);
        assert_eq!(shrink(range, 2 * MIB), Err(GAPLESS_ERROR_STREAM));
        assert_eq!((gapless_last_error_kind(), size(range)), (GAPLESS_KIND_CANNOT_WAIT, Ok((8 * MIB, 64 * MIB))));
        assert_eq!(gapless_range_grow(0, range, 2 * MIB, stream), GAPLESS_OK, "{}", error_text());
        assert_eq!(gapless_range_close(0, range), GAPLESS_OK);
        assert_eq!(stats().figures.range_bytes, 10 * MIB);
        gpu.end_capture(stream);
        // SAFETY: the number of bytes is not asked for.
        assert_eq!(unsafe { gapless_device_trim(0, 0, null_mut()) }, GAPLESS_OK);
        assert_eq!(stats().figures.range_bytes, 0);
    });
}

/// What ordinary pools have free serves a range as it serves an allocation.
#[test]
fn pools_make_room_for_a_range() {
    with_devices("pools_make_room_for_a_range", &[("GAPLESS_CONF", "budget:32MiB")], || {
        let pool = gapless_torch_pool { first: 1, second: 1 };
        // SAFETY: the tag may be null.
        let declared = unsafe { gapless_torch_declare_pool(0, pool, GAPLESS_POOL_ORDINARY, std::ptr::null()) };
        assert_eq!((declared, gapless_torch_use_pool(0, pool)), (GAPLESS_OK, GAPLESS_OK));
        let mut pointer = null_mut();
        // SAFETY: the pointers are valid.
        let status = unsafe { gapless_torch_alloc(0, 20 * MIB, MAIN, &raw const pool, &raw mut pointer) };
        assert_eq!(status, GAPLESS_OK);
        let range = reserve(64 * MIB).unwrap();
        assert_eq!(gapless_range_grow(0, range, 30 * MIB, MAIN), GAPLESS_ERROR_OUT_OF_MEMORY);
        assert!(error_text().contains("20 MiB held by other allocators of this process"), "{}", error_text());
        assert_eq!(gapless_device_free(0, pointer, 0), GAPLESS_OK);
        assert_eq!(gapless_range_grow(0, range, 30 * MIB, MAIN), GAPLESS_OK, "{}", error_text());
    });
}

/// Any driver call fails once while a range grows or shrinks: what it has stays, and the same call works the next time.
#[test]
fn any_call_fails_while_a_range_changes() {
    const CALLS: [&str; 9] = [
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemUnmap",
        "cuMemRelease",
        "cuMemGetInfo_v2",
        "cuEventRecord",
        "cuEventQuery",
        "cuEventSynchronize",
    ];
    with_devices("any_call_fails_while_a_range_changes", &[("GAPLESS_CONF", "chunk:2MiB,budget:24MiB")], || {
        // SAFETY: the simulated library is loaded already, and its function has this type.
        let library = unsafe { libloading::Library::new(simulated::library()) }.unwrap();
        // SAFETY: as above.
        let plan = unsafe { library.get::<unsafe extern "C" fn(*const c_char) -> u32>(b"gapless_sim_plan_faults") };
        let plan = plan.unwrap();
        let fail = |text: &str| {
            let text = CString::new(text).unwrap();
            // SAFETY: a NUL-terminated text.
            assert_eq!(unsafe { plan(text.as_ptr()) }, 0);
        };
        let gpu = Gpu::open(0);
        let range = grown(6 * MIB);
        let (mut growths, mut shrinks) = (0, 0);
        for call in CALLS {
            for (n, code) in (1..=4).flat_map(|n| [(n, 999), (n, 2)]) {
                let fault = format!("{call}:{n}:{code}");
                // Free memory of the heaps serves a part of the growth.
                let free = alloc(6 * MIB).unwrap();
                gpu.fill(MAIN, free, 3, 6 * MIB as usize);
                gpu.fill(MAIN, range, 7, 6 * MIB as usize);
                assert_eq!(gapless_device_free(0, free, 0), GAPLESS_OK);
                fail(&fault);
                let status = gapless_range_grow(0, range, 16 * MIB, MAIN);
                fail("");
                if status != GAPLESS_OK {
                    growths += 1;
                    assert!(matches!(status, GAPLESS_ERROR_DRIVER | GAPLESS_ERROR_OUT_OF_MEMORY), "{fault}: {status}");
                    assert_eq!(
                        (size(range), stats().figures.range_bytes),
                        (Ok((6 * MIB, 64 * MIB)), 6 * MIB),
                        "{fault}"
                    );
                    assert_eq!(gpu.read(MAIN, range, 6 * MIB as usize), vec![7; 6 * MIB as usize], "{fault}");
                    assert_eq!(gapless_range_grow(0, range, 16 * MIB, MAIN), GAPLESS_OK, "{fault}: {}", error_text());
                }
                gpu.fill(MAIN, at(range, 6), 8, 16 * MIB as usize);
                fail(&fault);
                let shrunk = shrink(range, 16 * MIB);
                fail("");
                let (mapped, _) = size(range).unwrap();
                assert_eq!(stats().figures.range_bytes, mapped, "{fault}");
                if shrunk.is_err() {
                    shrinks += 1;
                    let kept = [vec![7; 6 * MIB as usize], vec![8; (mapped - 6 * MIB) as usize]].concat();
                    assert_eq!(gpu.read(MAIN, range, mapped as usize), kept, "{fault}");
                    assert_eq!(shrink(range, mapped - 6 * MIB), Ok(mapped - 6 * MIB), "{fault}");
                }
                assert_eq!((size(range), stats().figures.range_bytes), (Ok((6 * MIB, 64 * MIB)), 6 * MIB), "{fault}");
                assert_eq!(gpu.read(MAIN, range, 6 * MIB as usize), vec![7; 6 * MIB as usize], "{fault}");
                // SAFETY: the number of bytes is not asked for.
                assert_eq!(unsafe { gapless_device_trim(0, 0, null_mut()) }, GAPLESS_OK);
            }
        }
        println!("{growths} growths and {shrinks} shrinks failed");
        assert!(growths >= 8 && shrinks >= 4, "{growths} growths and {shrinks} shrinks failed");
        assert_eq!(gapless_range_close(0, range), GAPLESS_OK);
        assert_eq!(stats().figures.range_bytes, 0);
    });
}

/// What a callback may not do, while the range that it is about grows.
unsafe extern "C" fn on_map(range: *mut c_void, _device: i32, pointer: *mut c_void, _bytes: u64) -> i32 {
    if (range.addr()..range.addr() + 64 * MIB as usize).contains(&pointer.addr()) {
        let answers = [
            gapless_range_grow(0, range, MIB, MAIN),
            gapless_range_close(0, range),
            shrink(range, MIB).err().unwrap_or(GAPLESS_OK),
            size(range).err().unwrap_or(GAPLESS_OK),
            reserve(MIB).err().unwrap_or(GAPLESS_OK),
        ];
        assert_eq!((answers, gapless_last_error_kind()), ([GAPLESS_ERROR_IN_USE; 5], GAPLESS_KIND_IN_CALLBACK));
        println!("was called back");
    }
    0
}

#[test]
fn a_callback_cannot_change_a_range() {
    let text = with_devices("a_callback_cannot_change_a_range", &[], || {
        let (range, mut listener) = (reserve(64 * MIB).unwrap(), 0);
        // SAFETY: the callbacks take a context that they do not follow, and the out-parameter is valid.
        let status = unsafe { gapless_device_add_map_listener(0, Some(on_map as _), None, range, &raw mut listener) };
        assert_eq!(status, GAPLESS_OK);
        assert_eq!(gapless_range_grow(0, range, 4 * MIB, MAIN), GAPLESS_OK, "{}", error_text());
        assert_eq!((size(range), gapless_range_close(0, range)), (Ok((4 * MIB, 64 * MIB)), GAPLESS_OK));
    });
    assert!(text.is_none_or(|text| text.contains("was called back")));
}

/// DLPack's tensor, as dlpack.h has it.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: (i32, i32),
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const [i64; 1],
    strides: *const [i64; 1],
    byte_offset: u64,
    context: *mut c_void,
    deleter: unsafe extern "C" fn(*mut DLManagedTensor),
}

#[test]
fn a_tensor_keeps_its_range() {
    with_devices("a_tensor_keeps_its_range", &[("GAPLESS_CONF", "chunk:2MiB")], || {
        let gpu = Gpu::open(0);
        let range = grown(4 * MIB);
        let tensors = [(); 2].map(|()| {
            let mut tensor = null_mut();
            // SAFETY: the out-parameter is valid.
            assert_eq!(unsafe { gapless_range_dlpack(0, range, &raw mut tensor) }, GAPLESS_OK);
            tensor
        });
        // SAFETY: what dlpack.h says of it.
        let shown = unsafe { &*tensors[0].cast::<Tensor>() };
        assert_eq!((shown.data, shown.device, shown.dimensions), (range, (2, 0), 1));
        assert_eq!((shown.code, shown.bits, shown.lanes, shown.byte_offset), (1, 8, 1, 0));
        // SAFETY: as many as there are dimensions.
        assert_eq!(unsafe { *shown.shape }, [64 * MIB as i64]);
        // SAFETY: as above.
        assert_eq!(unsafe { *shown.strides }, [1]);
        let delete = shown.deleter;
        assert_eq!(gapless_range_grow(0, range, 2 * MIB, MAIN), GAPLESS_OK);
        assert_eq!(gapless_range_close(0, range), GAPLESS_OK);
        assert_eq!(size(range), Err(GAPLESS_ERROR_NOT_ALLOCATED));
        gpu.fill(MAIN, range, 7, 6 * MIB as usize);
        for (tensor, left) in tensors.into_iter().zip([6 * MIB, 0]) {
            assert_eq!(stats().figures.range_bytes, 6 * MIB);
            // SAFETY: once each.
            unsafe { delete(tensor) };
            assert_eq!(stats().figures.range_bytes, left);
        }
        let mut none = null_mut();
        // SAFETY: the out-parameter is valid.
        let status = unsafe { gapless_range_dlpack(0, range, &raw mut none) };
        assert_eq!((status, none), (GAPLESS_ERROR_NOT_ALLOCATED, null_mut()));
    });
}

#[test]
fn a_forked_process_has_no_ranges() {
    with_devices("a_forked_process_has_no_ranges", &[], || {
        let range = grown(4 * MIB);
        let mut tensor = null_mut();
        // SAFETY: the out-parameter is valid.
        assert_eq!(unsafe { gapless_range_dlpack(0, range, &raw mut tensor) }, GAPLESS_OK);
        // SAFETY: what dlpack.h says of it.
        let delete = unsafe { &*tensor.cast::<Tensor>() }.deleter;
        // SAFETY: the child calls what it may call, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let refused = [
                reserve(MIB).err(),
                Some(gapless_range_grow(0, range, MIB, MAIN)),
                shrink(range, MIB).err(),
                size(range).err(),
                Some(gapless_range_close(0, range)),
            ];
            // SAFETY: once.
            unsafe { delete(tensor) };
            let as_expected = refused.iter().all(|status| *status == Some(GAPLESS_ERROR_DRIVER))
                && gapless_last_error_kind() == GAPLESS_KIND_FORKED;
            // SAFETY: ends the child.
            unsafe { libc::_exit(if as_expected { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: the child of this process.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert_eq!((size(range), gapless_range_close(0, range)), (Ok((4 * MIB, 64 * MIB)), GAPLESS_OK));
        // SAFETY: once in this process.
        unsafe { delete(tensor) };
        assert_eq!(stats().figures.range_bytes, 0);
    });
}
