//! The simulated driver counts what it is asked to do, for programs that measure, and need not move the bytes that it copies.

mod simulated;

use std::ffi::{CStr, CString, c_char, c_void};

use gapless::StreamId;
use gapless::driver::cuda::CudaDriver;
use gapless::driver::{MemoryDriver, StreamDriver, WorkDriver};
use gapless::units::MIB;
use simulated::{library, mapped, with_settings};

type Restart = extern "C" fn();
type Read = extern "C" fn(*mut c_char, usize) -> u32;

/// The functions of the simulated library for counts.
struct Counts {
    restart: Restart,
    read: Read,
}

impl Counts {
    fn of_the_library() -> Self {
        let name = CString::new(library().to_str().unwrap()).unwrap();
        // SAFETY: a NUL-terminated path of a library that may be loaded anywhere.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        // SAFETY: a library that is loaded, and names that end with NUL.
        let [restart, read] = [c"gapless_sim_restart_counts", c"gapless_sim_counts"]
            .map(|name| unsafe { libc::dlsym(handle, name.as_ptr()) });
        assert!(!restart.is_null() && !read.is_null());
        // SAFETY: the type of that function.
        let restart = unsafe { std::mem::transmute::<*mut c_void, Restart>(restart) };
        // SAFETY: the type of that function.
        let read = unsafe { std::mem::transmute::<*mut c_void, Read>(read) };
        Self { restart, read }
    }

    fn text(&self) -> String {
        let mut text = [0; 4096];
        assert_eq!((self.read)(text.as_mut_ptr(), text.len()), 0);
        // SAFETY: the library ends the text with NUL.
        unsafe { CStr::from_ptr(text.as_ptr()) }.to_str().unwrap().to_owned()
    }

    /// The count of a name, 0 if it was not counted.
    fn of(&self, name: &str) -> u64 {
        let text = self.text();
        let found = text.split(',').find_map(|entry| entry.strip_prefix(name)?.strip_prefix(':'));
        found.map_or(0, |count| count.parse().unwrap())
    }
}

/// Copies a pattern to the host, and a part of it back. Returns whether the host has it.
fn copies_a_pattern(driver: &CudaDriver) -> bool {
    let addr = mapped(driver, 2 * MIB);
    let host = driver.host_alloc(2 * MIB).unwrap();
    let stream = StreamId::DEFAULT;
    driver.fill(stream, addr, 2 * MIB, 7).unwrap();
    driver.copy_out(stream, host, 0, addr, 2 * MIB).unwrap();
    driver.copy_in(stream, addr, host, 0, MIB).unwrap();
    driver.synchronize(stream).unwrap();
    let mut is_there = true;
    driver.host_read(host, 0, 2 * MIB, &mut |bytes| is_there = bytes.iter().any(|byte| *byte != 0)).unwrap();
    driver.host_free(host).unwrap();
    is_there
}

#[test]
fn calls_and_copied_bytes_are_counted() {
    with_settings("calls_and_copied_bytes_are_counted", &[], || {
        let counts = Counts::of_the_library();
        let driver = simulated::open(simulated::builder()).unwrap();
        assert!(copies_a_pattern(&driver));
        assert_eq!(counts.of("cuMemMap"), 0, "nothing is counted before it is asked for");
        (counts.restart)();
        assert!(copies_a_pattern(&driver));
        let counted =
            ["bytes_to_host", "bytes_from_host", "cuMemcpyDtoHAsync_v2", "cuMemMap"].map(|name| counts.of(name));
        assert_eq!(counted, [2 * MIB, MIB, 1, 1], "{}", counts.text());
        assert_ne!((counts.read)([0; 3].as_mut_ptr(), 3), 0, "it does not fit");
        (counts.restart)();
        assert_eq!(counts.of("bytes_to_host"), 0);
    });
}

#[test]
fn copies_that_move_no_byte_are_counted_and_checked() {
    let settings = [("GAPLESS_SIM_NO_COPIES", "1")];
    with_settings("copies_that_move_no_byte_are_counted_and_checked", &settings, || {
        let counts = Counts::of_the_library();
        let driver = simulated::open(simulated::builder()).unwrap();
        (counts.restart)();
        assert!(!copies_a_pattern(&driver));
        assert_eq!(["bytes_to_host", "bytes_from_host"].map(|name| counts.of(name)), [2 * MIB, MIB]);
        let much = driver.host_alloc(1 << 40).unwrap();
        driver.host_free(much).unwrap();
        let nothing_there = driver.reserve(2 * MIB, 2 * MIB).unwrap();
        let host = driver.host_alloc(2 * MIB).unwrap();
        driver.copy_out(StreamId::DEFAULT, host, 0, nothing_there, 2 * MIB).unwrap();
        assert!(driver.synchronize(StreamId::DEFAULT).is_err(), "the device is lost");
    });
}
