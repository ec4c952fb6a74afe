//! Two devices in one process, over the process-wide allocators: copies between them, and streams of the other device.

mod gpu;
#[path = "../../../tests/simulated/mod.rs"]
mod simulated;

use gapless_capi::*;
use gpu::{Gpu, with_devices};
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

const MIB: usize = 1 << 20;
const MAIN: *mut CUstream_st = null_mut();

fn alloc(device: i32, bytes: usize, stream: *mut CUstream_st) -> *mut c_void {
    let mut pointer = null_mut();
    // SAFETY: the out-parameter is valid.
    let status = unsafe { gapless_device_alloc(device, bytes as u64, stream, &raw mut pointer) };
    assert_eq!(status, GAPLESS_OK, "{}", told());
    pointer
}

fn free(device: i32, pointer: *mut c_void) {
    assert_eq!(gapless_device_free(device, pointer, 0), GAPLESS_OK, "{}", told());
}

/// The text of this thread's last failure.
fn told() -> String {
    // SAFETY: a NUL-terminated text until the next failure on this thread.
    unsafe { CStr::from_ptr(gapless_last_error()) }.to_string_lossy().into_owned()
}

/// `t.to("cuda:1")` in PyTorch: a plain copy on the target's stream, and one back.
#[test]
fn a_tensor_moves_to_the_other_device_and_back() {
    let text = with_devices("a_tensor_moves_to_the_other_device_and_back", &[], || {
        let (one, two) = (Gpu::open(0), Gpu::open(1));
        // What was mapped before there was a second device, and what is mapped afterwards.
        let early = alloc(0, 5 * MIB, MAIN);
        one.fill(MAIN, early, 1, 5 * MIB);
        assert_eq!(one.wait(MAIN), 0);
        let there = alloc(1, 5 * MIB, MAIN);
        two.copy(MAIN, there, early, 5 * MIB);
        assert_eq!(two.read(MAIN, there, 5 * MIB), vec![1; 5 * MIB]);
        let late = alloc(0, 64 * MIB, MAIN);
        two.copy(MAIN, late, there, 5 * MIB);
        assert_eq!(two.read(MAIN, late, 5 * MIB), vec![1; 5 * MIB]);
        one.copy(MAIN, early, there, 4096);
        assert_eq!(one.wait(MAIN), 0);
        free(0, early);
        free(0, late);
        free(1, there);
    });
    assert!(text.is_none_or(|text| !text.contains("gapless:")), "nobody is told anything");
}

/// Pools of graphs are within the reach of the other device too, those from before included.
#[test]
fn pools_are_reached_as_well() {
    with_devices("pools_are_reached_as_well", &[], || {
        let (one, two) = (Gpu::open(0), Gpu::open(1));
        let pool = gapless_torch_pool { first: 3, second: 0 };
        gapless_torch_begin_allocate_to_pool(0, pool, null_mut());
        let early = alloc(0, 3 * MIB, MAIN);
        let there = alloc(1, 3 * MIB, MAIN);
        let late = alloc(0, 9 * MIB, MAIN);
        gapless_torch_end_allocate_to_pool(0, pool);
        for (byte, block) in [(1, early), (2, late)] {
            one.fill(MAIN, block, byte, 3 * MIB);
            assert_eq!(one.wait(MAIN), 0);
            two.copy(MAIN, there, block, 3 * MIB);
            assert_eq!(two.read(MAIN, there, 3 * MIB), vec![byte; 3 * MIB]);
        }
        free(0, early);
        free(0, late);
        free(1, there);
        gapless_torch_release_pool(0, pool);
    });
}

/// Three devices, of which the list names one: it reaches the others, and nobody else does.
#[test]
fn a_list_names_who_gets_access() {
    for (from, to, reached) in [(0, 2, true), (1, 2, true), (0, 1, false), (2, 0, false)] {
        let case = format!("{from},{to},{reached}");
        let settings = [("GAPLESS_SIM_DEVICES", "3"), ("GAPLESS_CONF", "peers:[2]"), ("CASE", case.as_str())];
        let text = with_devices("a_list_names_who_gets_access", &settings, || {
            let case = std::env::var("CASE").unwrap();
            let parts: Vec<&str> = case.split(',').collect();
            let (from, to): (i32, i32) = (parts[0].parse().unwrap(), parts[1].parse().unwrap());
            let (theirs, ours) = (alloc(from, MIB, MAIN), alloc(to, MIB, MAIN));
            let gpu = Gpu::open(to);
            gpu.copy(MAIN, ours, theirs, 4096);
            assert_eq!(gpu.wait(MAIN) == 0, parts[2] == "true");
        });
        let Some(text) = text else { break };
        assert!(!text.contains("gapless:"), "{text}");
    }
}

#[test]
fn a_list_with_a_device_that_there_is_not() {
    with_devices("a_list_with_a_device_that_there_is_not", &[("GAPLESS_CONF", "peers:[1,7]")], || {
        let mut pointer = null_mut();
        // SAFETY: the out-parameter is valid.
        assert_eq!(unsafe { gapless_device_alloc(0, 1, MAIN, &raw mut pointer) }, GAPLESS_ERROR_NO_DEVICE);
        assert!(told().contains("there is no device 7"), "{}", told());
    });
}

/// Told once, with both devices and what to do; and not at all to those who asked for none.
#[test]
fn devices_without_a_path_are_told() {
    let settings = |conf| [("GAPLESS_SIM_PEERS", "none"), ("GAPLESS_SIM_DEVICES", "3"), ("GAPLESS_CONF", conf)];
    let body = || {
        for device in [0, 2, 0, 2, 1] {
            free(device, alloc(device, MIB, MAIN));
        }
    };
    if let Some(text) = with_devices("devices_without_a_path_are_told", &settings(""), body) {
        assert_eq!(text.matches("gapless:").count(), 2, "{text}");
        assert!(text.contains("no peer access between device 2 and device 0."), "{text}");
        assert!(text.contains("no peer access between device 1 and device 0, device 2."), "{text}");
        assert!(text.contains("t.cpu().to(\"cuda:2\")") && text.contains("cudaMemcpyPeerAsync"), "{text}");
        let text = with_devices("devices_without_a_path_are_told", &settings("peers:none"), body).unwrap();
        assert!(!text.contains("gapless:"), "{text}");
    }
}

/// What the driver refuses is told, and the new device works all the same.
#[test]
fn a_grant_that_fails_is_told() {
    // cuMemSetAccess: the trial of device 0, its first block; the trial of device 1; the trial of device 0 as a peer of 1,
    // and of 1 as a peer of 0; the block of device 0 again.
    for (call, told) in [(4, "device 0 was not given access to the memory of device 1"), (6, "memory of device 0")] {
        let fault = format!("cuMemSetAccess:{call}:999");
        let settings = [("GAPLESS_SIM_FAIL", fault.as_str())];
        let text = with_devices("a_grant_that_fails_is_told", &settings, || {
            let first = alloc(0, MIB, MAIN);
            let second = alloc(1, MIB, MAIN);
            free(0, first);
            free(1, second);
        });
        let Some(text) = text else { break };
        assert!(
            text.contains(told) && text.contains("cuMemSetAccess failed with") && text.matches("gapless:").count() == 1,
            "{text}"
        );
    }
}
