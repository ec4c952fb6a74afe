//! Sharing through the C interface, between two processes of one simulated device.

mod gpu;
#[path = "../../../tests/simulated/mod.rs"]
mod simulated;

use gapless_capi::*;
use gpu::{Gpu, with_devices};
use serde_json::{Value, json};
use std::ffi::{CStr, c_void};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::ptr::{null, null_mut};

const MIB: u64 = 1 << 20;
const MAIN: *mut CUstream_st = null_mut();
const PEER: &str = "GAPLESS_TEST_PEER";

type Bytes = [u8; GAPLESS_SHARE_HANDLE_BYTES];

fn alloc(bytes: u64) -> *mut c_void {
    let mut pointer = null_mut();
    // SAFETY: the out-parameter is valid.
    assert_eq!(unsafe { gapless_device_alloc(0, bytes, MAIN, &raw mut pointer) }, GAPLESS_OK);
    pointer
}

fn export(pointer: *const c_void) -> Result<(Bytes, u64), gapless_status> {
    let (mut handle, mut offset) = ([0; GAPLESS_SHARE_HANDLE_BYTES], 77);
    // SAFETY: the out-parameters are valid.
    match unsafe { gapless_device_export(0, pointer, handle.as_mut_ptr(), &raw mut offset) } {
        GAPLESS_OK => Ok((handle, offset)),
        status => Err(status),
    }
}

fn import(handle: &[u8]) -> Result<(*mut c_void, u64), gapless_status> {
    let (mut pointer, mut bytes) = (null_mut(), 0);
    // SAFETY: the out-parameters are valid.
    match unsafe { gapless_device_import(0, handle.as_ptr(), handle.len() as u64, &raw mut pointer, &raw mut bytes) } {
        GAPLESS_OK => Ok((pointer, bytes)),
        status => Err(status),
    }
}

/// Runs a test with sockets and a device of its own; `peer` in the other process.
fn with_peer(test: &str, main: impl FnOnce(), peer: impl FnOnce()) {
    let place = tempfile::tempdir().unwrap();
    let (sockets, devices) = (place.path().join("sockets"), place.path().join("devices"));
    let settings =
        [("GAPLESS_SHARE_DIR", sockets.to_str().unwrap()), ("GAPLESS_SIM_SHARED", devices.to_str().unwrap())];
    with_devices(test, &settings, || if std::env::var_os(PEER).is_some() { peer() } else { main() });
    if std::env::var_os("GAPLESS_TEST_INNER").is_none() {
        assert_eq!(std::fs::read_dir(&sockets).unwrap().count(), 0, "a socket is left");
    }
}

/// Starts the other process of a test. Returns it with the lines that begin with `peer: `.
fn start_peer(test: &str) -> (Child, impl Iterator<Item = String>) {
    let mut peer = Command::new(std::env::current_exe().unwrap());
    peer.args(["--exact", test, "--nocapture"]).env(PEER, "1").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut peer = peer.spawn().unwrap();
    let lines = BufReader::new(peer.stdout.take().unwrap()).lines().map_while(Result::ok);
    (peer, lines.filter(|line| line.contains("peer: ")))
}

fn hex_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_of(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
}

/// The number of mappings on the device.
fn mappings() -> u64 {
    let mut counts = [0_u64; 4];
    // SAFETY: the library is loaded already, and the name ends with NUL.
    let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    assert!(!library.is_null());
    // SAFETY: a library that stays loaded, and a name that ends with NUL.
    let found = unsafe { libc::dlsym(library, c"gapless_sim_usage".as_ptr()) };
    assert!(!found.is_null());
    // SAFETY: the simulated library's function of that name has this type.
    let usage = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(i32, *mut [u64; 4]) -> u32>(found) };
    // SAFETY: the out-parameter is valid.
    assert_eq!(unsafe { usage(0, &raw mut counts) }, 0);
    counts[1]
}

#[test]
fn blocks_of_another_process() {
    let test = "blocks_of_another_process";
    let main = || {
        let gpu = Gpu::open(0);
        let block = alloc(3 * MIB);
        gpu.fill(MAIN, block, 7, 3 * MIB as usize);
        assert_eq!(gpu.read(MAIN, block, 16), vec![7; 16]);
        let inside = block.wrapping_byte_add(2 * MIB as usize);
        let ((handle, offset), (same, none)) = (export(inside).unwrap(), export(block).unwrap());
        assert_eq!((handle, offset, none), (same, 2 * MIB, 0));
        assert_eq!(&handle[..8], b"gapless2");

        let (mut peer, mut said) = start_peer(test);
        let mut to = peer.stdin.take().unwrap();
        writeln!(to, "{}", hex_of(&handle)).unwrap();
        assert!(said.next().unwrap().ends_with("wrote"));
        assert_eq!(gpu.read(MAIN, inside, 16), vec![8; 16]);
        // Freed while it is open there.
        assert_eq!(gapless_device_free(0, block, 0), GAPLESS_OK);
        writeln!(to, "freed").unwrap();
        assert!(said.next().unwrap().ends_with("closed"));
        drop(to);
        assert!(said.next().is_none() && peer.wait().unwrap().success());
    };
    let peer = || {
        let gpu = Gpu::open(0);
        let mut lines = std::io::stdin().lines().map(Result::unwrap);
        let hex = lines.next().unwrap();
        let handle = bytes_of(&hex);
        let (first, bytes) = import(&handle).unwrap();
        let (second, _) = import(&handle).unwrap();
        assert_eq!((first, bytes), (second, 3 * MIB));
        assert_eq!(gpu.read(MAIN, first, 16), vec![7; 16]);
        gpu.fill(MAIN, first.wrapping_byte_add(2 * MIB as usize), 8, 64);
        gpu.read(MAIN, first, 1);
        println!("peer: wrote");
        assert_eq!(lines.next().unwrap(), "freed");
        assert_eq!(gapless_device_close_import(0, first), GAPLESS_OK);
        assert_eq!(gpu.read(MAIN, first, 16), vec![7; 16], "it is open once more");
        assert_eq!(gapless_device_close_import(0, first), GAPLESS_OK);
        assert_eq!(gapless_device_close_import(0, first), GAPLESS_ERROR_NOT_ALLOCATED);
        assert_eq!(import(&handle), Err(GAPLESS_ERROR_GONE));
        println!("peer: closed");
    };
    with_peer(test, main, peer);
}

/// What `gapless_device_holders_json` writes.
fn holders() -> Value {
    let (mut text, mut needed) = (vec![0; 4096], 0);
    // SAFETY: a buffer of that size, and a valid out-parameter.
    let status =
        unsafe { gapless_device_holders_json(0, text.as_mut_ptr().cast(), text.len() as u64, &raw mut needed) };
    assert_eq!(status, GAPLESS_OK);
    serde_json::from_slice(&text[..needed as usize - 1]).unwrap()
}

#[test]
fn a_process_that_hangs_is_named_and_cut_off() {
    let test = "a_process_that_hangs_is_named_and_cut_off";
    let main = || {
        let gpu = Gpu::open(0);
        let block = alloc(128 * MIB);
        gpu.fill(MAIN, block, 7, 128 * MIB as usize);
        let (handle, _) = export(block).unwrap();
        let (mut peer, mut said) = start_peer(test);
        let mut to = peer.stdin.take().unwrap();
        writeln!(to, "{}", hex_of(&handle)).unwrap();
        assert!(said.next().unwrap().ends_with("open"));
        assert_eq!(gapless_device_free(0, block, 0), GAPLESS_OK);
        let bytes = 128 * MIB;
        assert_eq!(holders(), json!([{"process": peer.id(), "blocks": 1, "bytes": bytes, "freed_bytes": bytes}]));
        let mut pointer = null_mut();
        // SAFETY: the out-parameter is valid.
        let failed = unsafe { gapless_device_alloc(0, 200 * MIB, MAIN, &raw mut pointer) };
        // SAFETY: a text that ends with NUL.
        let text = unsafe { CStr::from_ptr(gapless_last_error()) }.to_str().unwrap();
        assert_eq!(failed, GAPLESS_ERROR_OUT_OF_MEMORY);
        assert!(text.contains(&format!("128 MiB in process {}: freed, and not closed there yet", peer.id())), "{text}");

        assert_eq!(gapless_device_cut_off(0, peer.id()), GAPLESS_OK);
        assert_eq!(holders(), json!([]));
        let other = alloc(64 * MIB);
        gpu.fill(MAIN, other, 9, 64 * MIB as usize);
        assert_eq!(gpu.read(MAIN, other, 1), vec![9]);
        writeln!(to, "look").unwrap();
        assert!(said.next().unwrap().ends_with("same"));
        drop(to);
        assert!(said.next().is_none() && peer.wait().unwrap().success());
        // Its end gives the device the rest.
        assert_eq!(gapless_device_free(0, other, 0), GAPLESS_OK);
        assert_eq!(gapless_device_free(0, alloc(200 * MIB), 0), GAPLESS_OK);
        assert_eq!(gapless_device_cut_off(99, 1), GAPLESS_ERROR_INVALID_ARGUMENT);
    };
    let peer = || {
        let gpu = Gpu::open(0);
        let mut lines = std::io::stdin().lines().map(Result::unwrap);
        let (pointer, _) = import(&bytes_of(&lines.next().unwrap())).unwrap();
        println!("peer: open");
        assert_eq!(lines.next().unwrap(), "look");
        assert_eq!(gpu.read(MAIN, pointer, 64), vec![7; 64]);
        println!("peer: same");
        assert!(lines.next().is_none());
    };
    with_peer(test, main, peer);
}

#[test]
fn what_cannot_be_shared_is_refused() {
    let test = "what_cannot_be_shared_is_refused";
    let main = || {
        let block = alloc(MIB);
        let (handle, _) = export(block).unwrap();
        assert_eq!(import(&handle[..100]), Err(GAPLESS_ERROR_INVALID_ARGUMENT));
        assert_eq!(import(&[0; GAPLESS_SHARE_HANDLE_BYTES]), Err(GAPLESS_ERROR_INVALID_ARGUMENT));
        // In the same process, too.
        let (pointer, bytes) = import(&handle).unwrap();
        assert!(pointer != block && bytes == MIB);
        assert_eq!(gapless_device_close_import(0, pointer), GAPLESS_OK);
        // Kept while it is closed, it is where it was; given up, whoever opens it maps it anew.
        let before = mappings();
        assert_eq!(gapless_device_keep_closed_imports(0, 64 * MIB), GAPLESS_OK);
        for _ in 0..2 {
            assert_eq!(gapless_device_close_import(0, import(&handle).unwrap().0), GAPLESS_OK);
            assert_eq!(mappings(), before + 1);
        }
        assert_eq!(gapless_device_keep_closed_imports(0, 0), GAPLESS_OK);
        assert_eq!(mappings(), before);
        assert_eq!(gapless_device_keep_closed_imports(99, 0), GAPLESS_ERROR_INVALID_ARGUMENT);
        assert_eq!(export(pointer), Err(GAPLESS_ERROR_NOT_ALLOCATED));
        assert_eq!(gapless_device_free(0, block, 0), GAPLESS_OK);
        assert_eq!((export(block), import(&handle)), (Err(GAPLESS_ERROR_NOT_ALLOCATED), Err(GAPLESS_ERROR_GONE)));
        // SAFETY: null out-parameters are refused.
        let refused = unsafe { gapless_device_export(0, block, null_mut(), null_mut()) };
        // SAFETY: as above.
        let too = unsafe { gapless_device_import(0, null(), 192, null_mut(), null_mut()) };
        assert_eq!((refused, too), (GAPLESS_ERROR_INVALID_ARGUMENT, GAPLESS_ERROR_INVALID_ARGUMENT));
    };
    with_peer(test, main, || unreachable!());
}

/// A process that shares a block and is stopped, until its input tells it to end: what it says is the handle.
fn stopped_exporter() {
    let (handle, _) = export(alloc(MIB)).unwrap();
    println!("peer: {}", hex_of(&handle));
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn a_process_that_does_not_answer_is_waited_for_as_long_as_one_likes() {
    let test = "a_process_that_does_not_answer_is_waited_for_as_long_as_one_likes";
    let main = || {
        let (mut peer, mut said) = start_peer(test);
        let handle = bytes_of(said.next().unwrap().rsplit(' ').next().unwrap());
        let process = i32::try_from(peer.id()).unwrap();
        let signal = |signal| {
            // SAFETY: a signal to a child that has not ended.
            assert_eq!(unsafe { libc::kill(process, signal) }, 0);
        };
        signal(libc::SIGSTOP);
        // All of its threads have stopped then.
        // SAFETY: a child, and no place for what became of it.
        assert_eq!(unsafe { libc::waitpid(process, null_mut(), libc::WUNTRACED) }, process);
        assert_eq!(gapless_import_patience(0), 10_000);
        assert_eq!(import(&handle), Err(GAPLESS_ERROR_SHARE));
        assert_eq!(gapless_import_patience(20), 0);
        assert_eq!((import(&handle), mappings()), (Err(GAPLESS_ERROR_SHARE), 0));
        let elsewhere = std::thread::spawn(|| gapless_import_patience(1)).join();
        assert_eq!((elsewhere.unwrap(), gapless_import_patience(u64::MAX)), (10_000, 20));
        signal(libc::SIGCONT);
        assert_eq!(gapless_device_close_import(0, import(&handle).unwrap().0), GAPLESS_OK);
        drop(peer.stdin.take());
        assert!(peer.wait().unwrap().success());
    };
    with_peer(test, main, stopped_exporter);
}

/// To close an import waits for the device, which would end a capture: then it stays mapped until there is none.
#[test]
fn an_import_that_is_closed_during_a_capture() {
    let test = "an_import_that_is_closed_during_a_capture";
    let main = || {
        let gpu = Gpu::open(0);
        let (kept, of_pool, named) = (gpu.stream(), gpu.stream(), gpu.stream());
        assert_eq!(gapless_device_keep_stream(0, kept), GAPLESS_OK);
        // The allocator has never seen the default stream.
        let mut block = null_mut();
        // SAFETY: the out-parameter is valid.
        assert_eq!(unsafe { gapless_device_alloc(0, MIB, kept, &raw mut block) }, GAPLESS_OK);
        let (handle, _) = export(block).unwrap();
        let pool = gapless_torch_pool { first: 7, second: 8 };
        let alloc_and_free_on = |stream| {
            let mut pointer = null_mut();
            // SAFETY: the out-parameter is valid.
            assert_eq!(unsafe { gapless_device_alloc(0, MIB, stream, &raw mut pointer) }, GAPLESS_OK);
            assert_eq!(gapless_device_free(0, pointer, 0), GAPLESS_OK);
        };
        for (stream, what) in [
            (kept, "a stream that the device keeps"),
            (gpu.blocking_stream(), "a stream that nobody has named, which blocks"),
            (of_pool, "a stream of an open pool"),
            (named, "a stream that was named in its capture"),
        ] {
            let (pointer, _) = import(&handle).unwrap();
            gpu.fill(MAIN, pointer, 7, MIB as usize);
            assert_eq!(gpu.wait(MAIN), 0);
            if stream == of_pool {
                gapless_torch_begin_allocate_to_pool(0, pool, null_mut());
            }
            gpu.begin_capture(stream);
            if stream == of_pool || stream == named {
                alloc_and_free_on(stream);
            }
            let before = mappings();
            assert_eq!(gapless_device_close_import(0, pointer), GAPLESS_OK);
            assert_eq!(mappings(), before, "{what}");
            gpu.end_capture(stream);
            if stream == named {
                // Nobody has promised that the stream lives: the driver is asked when it is named again.
                alloc_and_free_on(stream);
            }
            let before = mappings();
            if stream == of_pool {
                gapless_torch_end_allocate_to_pool(0, pool);
            }
            if stream != of_pool {
                assert_eq!(gapless_device_close_import(0, pointer), GAPLESS_ERROR_NOT_ALLOCATED);
                // What is open already is opened once more, and closed.
                assert_eq!(gapless_device_close_import(0, import(&handle).unwrap().0), GAPLESS_OK);
            }
            assert_eq!(mappings(), before - 1, "{what}: what was closed is unmapped when the capture has ended");
        }
        assert_eq!(gapless_device_free(0, block, 0), GAPLESS_OK);
    };
    with_peer(test, main, || unreachable!());
}

/// Which device a handle's memory is on, whatever its number is in either process.
#[test]
fn a_handle_says_which_device_it_is_of() {
    let test = "a_handle_says_which_device_it_is_of";
    let main = || {
        let _gpu = Gpu::open(0);
        let own = export(alloc(MIB)).unwrap().0;
        let number = |handle: &Bytes| {
            let mut device = 77;
            // SAFETY: the handle has as many bytes; the out-parameter is valid.
            match unsafe { gapless_device_of_handle(handle.as_ptr(), handle.len() as u64, &raw mut device) } {
                GAPLESS_OK => Ok(device),
                status => Err(status),
            }
        };
        // The machine's devices 2, 0 and 1 are 0, 1 and 2 here. Their UUIDs are made of their numbers from 1 on.
        let of = |device: u8| {
            let mut handle = own;
            handle[GAPLESS_SHARE_HANDLE_BYTES - 16..].fill(device);
            number(&handle)
        };
        assert_eq!((number(&own), of(3), of(1), of(2)), (Ok(0), Ok(0), Ok(1), Ok(2)));
        assert_eq!((of(4), of(0)), (Err(GAPLESS_ERROR_SHARE), Ok(-1)));
        let mut other = own;
        other[GAPLESS_SHARE_HANDLE_BYTES - 16..].fill(2);
        assert_eq!(import(&other), Err(GAPLESS_ERROR_SHARE));
    };
    let settings = [("GAPLESS_SIM_DEVICES", "4"), ("GAPLESS_SIM_VISIBLE", "2,0,1")];
    with_devices(test, &settings, main);
}

/// With `ipc:private`, nothing else is in the chunks of a block of a page and more: what another process maps is its bytes alone.
#[test]
fn private_blocks_have_their_chunks_for_themselves() {
    let test = "private_blocks_have_their_chunks_for_themselves";
    with_devices(test, &[("GAPLESS_CONF", "ipc:private")], || {
        let _gpu = Gpu::open(0);
        let page = 2 * MIB;
        let sizes = [3 * MIB, 100 << 10, page - 1, page, 5 * MIB + 1, 70 << 10, 1 << 20];
        // The second half takes what the first has left behind.
        let mut blocks: Vec<(u64, u64)> = Vec::new();
        for turn in 0..6 {
            blocks.extend(sizes.iter().map(|bytes| (alloc(*bytes).addr() as u64, *bytes)));
            if turn % 2 == 1 {
                for (addr, _) in blocks.iter().step_by(2) {
                    assert_eq!(gapless_device_free(0, std::ptr::without_provenance_mut(*addr as usize), 0), GAPLESS_OK);
                }
                blocks = blocks.into_iter().skip(1).step_by(2).collect();
            }
        }
        let pages = |(addr, bytes): (u64, u64)| addr / page..(addr + bytes).div_ceil(page);
        for (number, block) in blocks.iter().enumerate().filter(|(_, (_, bytes))| *bytes >= page) {
            assert!(block.0.is_multiple_of(page));
            for other in blocks.iter().enumerate().filter(|(other, _)| *other != number).map(|(_, other)| *other) {
                let (ours, theirs) = (pages(*block), pages(other));
                assert!(ours.end <= theirs.start || theirs.end <= ours.start, "{block:?} shares a page with {other:?}");
            }
        }
    });
}

/// The program has said that nothing leaves it.
#[test]
fn chunks_that_may_not_leave_the_process_are_not_sent() {
    let settings = [("GAPLESS_CONF", "sharing:never")];
    with_devices("chunks_that_may_not_leave_the_process_are_not_sent", &settings, || {
        assert_eq!(export(alloc(2 * MIB)).unwrap_err(), GAPLESS_ERROR_DRIVER);
        assert_eq!(gapless_last_error_kind(), GAPLESS_KIND_NOT_SUPPORTED);
    });
}
