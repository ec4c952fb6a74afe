//! Two devices in one process, over the process-wide allocators: copies between them, and streams of the other device.

mod gpu;
#[path = "../../../tests/simulated/mod.rs"]
mod simulated;

use gapless_capi::*;
use gpu::{Gpu, with_devices};
use std::ffi::{CStr, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MIB: usize = 1 << 20;
const MAIN: *mut CUstream_st = null_mut();

fn alloc(device: i32, bytes: usize, stream: *mut CUstream_st) -> *mut c_void {
    let mut pointer = null_mut();
    // SAFETY: the out-parameter is valid.
    let status = unsafe { gapless_device_alloc(device, bytes as u64, stream, &raw mut pointer) };
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

/// Nothing was reported on stderr.
fn silent(text: Option<String>) {
    assert!(text.as_ref().is_none_or(|text| !text.contains("gapless:")), "{text:?}");
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
    silent(text);
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
        assert!(error_text().contains("there is no device 7"), "{}", error_text());
    });
}

/// Reported once, with both devices and what to do; and not at all to those who asked for none.
#[test]
fn devices_without_a_path_are_reported() {
    let settings = |conf| [("GAPLESS_SIM_PEERS", "none"), ("GAPLESS_SIM_DEVICES", "3"), ("GAPLESS_CONF", conf)];
    let body = || {
        for device in [0, 2, 0, 2, 1] {
            free(device, alloc(device, MIB, MAIN));
        }
    };
    if let Some(text) = with_devices("devices_without_a_path_are_reported", &settings(""), body) {
        assert_eq!(text.matches("gapless:").count(), 2, "{text}");
        assert!(text.contains("no peer access between device 2 and device 0."), "{text}");
        assert!(text.contains("no peer access between device 1 and device 0, device 2."), "{text}");
        assert!(text.contains("t.cpu().to(\"cuda:2\")") && text.contains("cudaMemcpyPeerAsync"), "{text}");
        let text = with_devices("devices_without_a_path_are_reported", &settings("peers:none"), body).unwrap();
        assert!(!text.contains("gapless:"), "{text}");
    }
}

/// A grant that the driver refuses is reported, and the new device works all the same.
#[test]
fn a_grant_that_fails_is_reported() {
    // cuMemSetAccess: the trial of device 0, its first block; the trial of device 1; the trial of device 0 as a peer of 1,
    // and of 1 as a peer of 0; the block of device 0 again.
    for (call, expected) in [(4, "device 0 was not given access to the memory of device 1"), (6, "memory of device 0")]
    {
        let fault = format!("cuMemSetAccess:{call}:999");
        let settings = [("GAPLESS_SIM_FAIL", fault.as_str())];
        let text = with_devices("a_grant_that_fails_is_reported", &settings, || {
            let first = alloc(0, MIB, MAIN);
            let second = alloc(1, MIB, MAIN);
            free(0, first);
            free(1, second);
        });
        let Some(text) = text else { break };
        assert!(
            text.contains(expected)
                && text.contains("cuMemSetAccess failed with")
                && text.matches("gapless:").count() == 1,
            "{text}"
        );
    }
}

/// Threads allocate on one device while the other one is introduced: nothing that they get is out of its reach.
#[test]
fn a_device_comes_while_another_is_busy() {
    silent(with_devices("a_device_comes_while_another_is_busy", &[], || {
        let stop = AtomicBool::new(false);
        let two = Gpu::open(1);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (1..4)
                .map(|number| {
                    let stop = &stop;
                    scope.spawn(move || {
                        let mut blocks: Vec<*mut c_void> = Vec::new();
                        for round in 0.. {
                            // Slower and slower towards the end, so that some of it comes after the grant.
                            if stop.load(Ordering::Relaxed) && round % 8 == 0 {
                                break;
                            }
                            blocks.push(alloc(0, number * MIB + round % 7 * 4096, MAIN));
                            if blocks.len() > 8 {
                                free(0, blocks.swap_remove(round % 8));
                            }
                        }
                        blocks.into_iter().map(|block| block.addr()).collect::<Vec<_>>()
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_millis(5));
            let there = alloc(1, MIB, MAIN);
            std::thread::sleep(Duration::from_millis(5));
            stop.store(true, Ordering::Relaxed);
            for block in workers.into_iter().flat_map(|worker| worker.join().expect("a worker")) {
                let block = without_provenance_mut(block);
                two.copy(MAIN, block, there, 4096);
                assert_eq!(two.wait(MAIN), 0);
                free(0, block);
            }
            free(1, there);
        });
    }));
}

/// Any driver call fails once while a device is introduced: both work afterwards, and reach each other unless that was reported.
/// Nothing is left in the driver.
#[test]
fn any_call_fails_while_a_device_is_introduced() {
    const CALLS: [(&str, u32); 8] = [
        ("cuMemCreate", 6),
        ("cuMemAddressReserve", 6),
        ("cuMemMap", 6),
        ("cuMemSetAccess", 8),
        ("cuMemUnmap", 5),
        ("cuMemRelease", 5),
        ("cuDeviceCanAccessPeer", 2),
        ("cuDevicePrimaryCtxRetain", 2),
    ];
    let test = "any_call_fails_while_a_device_is_introduced";
    for (call, most) in CALLS {
        for (n, code) in (1..=most).flat_map(|n| [(n, 999), (n, 2)]) {
            let fault = format!("{call}:{n}:{code}");
            let text = with_devices(test, &[("GAPLESS_SIM_FAIL", fault.as_str())], || {
                let again = |device| {
                    (0..3).find_map(|_| {
                        let mut pointer = null_mut();
                        // SAFETY: the out-parameter is valid.
                        let status = unsafe { gapless_device_alloc(device, 3 << 20, MAIN, &raw mut pointer) };
                        (status == GAPLESS_OK).then_some(pointer)
                    })
                };
                let theirs = again(0).expect("device 0 is served the second time");
                let ours = again(1).expect("device 1 is served the second time");
                let later = again(0).expect("device 0 is served all the same");
                let two = Gpu::open(1);
                let reached = [theirs, later].into_iter().all(|block| {
                    two.copy(MAIN, ours, block, 4096);
                    two.wait(MAIN) == 0
                });
                println!("reached: {reached}");
            });
            let Some(text) = text else { return };
            let reported = text.contains("was not given access to the memory of device 0");
            assert!(text.contains("reached: true") || reported, "{fault}: {text}");
            assert!(text.matches("gapless:").count() <= 1, "{fault}: {text}");
        }
    }
}
