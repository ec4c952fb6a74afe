//! The details that the C interface gives about a failure: its kind, CUDA's code and the report, each thread about its own.

#[path = "../../../tests/simulated/mod.rs"]
mod simulated;

use gapless_capi::*;
use std::ffi::{CStr, CString, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Barrier;

const MIB: u64 = 1 << 20;

/// A handle that threads can share: the interface may be called from any of them.
#[derive(Clone, Copy)]
struct Handle(usize);

impl Handle {
    fn create(budget_bytes: u64) -> Self {
        let library = CString::new(simulated::library().to_str().expect("UTF-8")).expect("a path");
        // SAFETY: numbers and pointers, for which zero bytes are good values.
        let mut config: gapless_config = unsafe { std::mem::zeroed() };
        config.size = size_of::<gapless_config>() as u64;
        config.library = library.as_ptr();
        config.budget_bytes = budget_bytes;
        let mut handle = null_mut();
        // SAFETY: the struct is as large as it says, its pointers are valid, and so is the out-parameter.
        let status = unsafe { gapless_create(&raw const config, &raw mut handle) };
        assert_eq!(status, GAPLESS_OK, "{}", text());
        Self(handle.addr())
    }

    fn alloc(self, bytes: u64, stream: usize) -> gapless_status {
        let mut pointer: *mut c_void = null_mut();
        // SAFETY: the out-parameter is valid.
        unsafe {
            gapless_alloc(without_provenance_mut(self.0), bytes, without_provenance_mut(stream), &raw mut pointer)
        }
    }
}

fn text() -> String {
    // SAFETY: a NUL-terminated text until the next failure on this thread.
    unsafe { CStr::from_ptr(gapless_last_error()) }.to_string_lossy().into_owned()
}

/// Status, kind and code of this thread's last failure.
fn last() -> (gapless_status, gapless_error_kind, i32) {
    (gapless_last_error_status(), gapless_last_error_kind(), gapless_last_error_code())
}

/// This thread's report, asked for its size first.
fn report() -> Result<serde_json::Value, gapless_status> {
    let mut needed = 0;
    // SAFETY: no buffer, of no capacity.
    let status = unsafe { gapless_last_error_report_json(null_mut(), 0, &raw mut needed) };
    if status != GAPLESS_ERROR_BUFFER_TOO_SMALL {
        return Err(status);
    }
    let mut buffer = vec![0_u8; needed as usize];
    // SAFETY: the buffer has that capacity.
    let status = unsafe { gapless_last_error_report_json(buffer.as_mut_ptr().cast(), needed, &raw mut needed) };
    assert_eq!(status, GAPLESS_OK);
    Ok(serde_json::from_slice(&buffer[..needed as usize - 1]).expect("a JSON text"))
}

#[test]
fn a_thread_without_failures_has_none() {
    assert_eq!((last(), text()), ((GAPLESS_OK, GAPLESS_KIND_NONE, 0), String::new()));
    assert_eq!(report(), Err(GAPLESS_ERROR_NOT_FOUND));
    assert_eq!(last().0, GAPLESS_OK, "asking is not a failure");
}

#[test]
fn a_failure_stays_until_the_next() {
    let handle = Handle::create(16 * MIB);
    assert_eq!(handle.alloc(17 * MIB, 0), GAPLESS_ERROR_OUT_OF_MEMORY);
    for _ in 0..2 {
        assert_eq!(report().expect("a report")["requested_bytes"], 17 * MIB);
        assert_eq!(handle.alloc(1, 0), GAPLESS_OK);
        assert_eq!(last(), (GAPLESS_ERROR_OUT_OF_MEMORY, GAPLESS_KIND_OUT_OF_MEMORY, 0));
        assert!(text().contains("Tried to allocate 17 MiB"), "{}", text());
    }
    assert_eq!(handle.alloc(1, 0xdead0), GAPLESS_ERROR_STREAM);
    assert_eq!(last(), (GAPLESS_ERROR_STREAM, GAPLESS_KIND_FOREIGN_STREAM, 400));
    assert_eq!(report(), Err(GAPLESS_ERROR_NOT_FOUND));
    assert_eq!(handle.alloc(u64::MAX, 0), GAPLESS_ERROR_TOO_LARGE);
    assert_eq!(last(), (GAPLESS_ERROR_TOO_LARGE, GAPLESS_KIND_NONE, 0));
}

#[test]
fn each_thread_has_the_report_of_its_own_request() {
    let handle = Handle::create(16 * MIB);
    let both_failed = Barrier::new(2);
    std::thread::scope(|scope| {
        for bytes in [17 * MIB, 23 * MIB] {
            let both_failed = &both_failed;
            scope.spawn(move || {
                for _ in 0..50 {
                    let status = handle.alloc(bytes, 0);
                    both_failed.wait();
                    let requested = report().map(|report| report["requested_bytes"].as_u64());
                    both_failed.wait();
                    assert_eq!((status, requested), (GAPLESS_ERROR_OUT_OF_MEMORY, Ok(Some(bytes))));
                }
            });
        }
    });
}

#[test]
fn a_lost_device_is_not_a_full_one() {
    // The first chunk is created, and given back, when the device is opened.
    let settings = [("GAPLESS_SIM_FAIL", "cuMemCreate:2:700")];
    simulated::with_settings("a_lost_device_is_not_a_full_one", &settings, || {
        let handle = Handle::create(16 * MIB);
        assert_eq!(handle.alloc(17 * MIB, 0), GAPLESS_ERROR_OUT_OF_MEMORY);
        assert_eq!(last(), (GAPLESS_ERROR_OUT_OF_MEMORY, GAPLESS_KIND_OUT_OF_MEMORY, 0));
        for _ in 0..2 {
            assert_eq!(handle.alloc(MIB, 0), GAPLESS_ERROR_DRIVER);
            assert_eq!(last(), (GAPLESS_ERROR_DRIVER, GAPLESS_KIND_DEVICE_LOST, 700), "{}", text());
            assert_eq!(report(), Err(GAPLESS_ERROR_NOT_FOUND));
        }
    });
}
