//! Events and memory of `cuMemAlloc` between two processes, as the simulated `libcuda.so.1` has them: what PyTorch's own
//! allocator passes tensors with.

#[path = "simulated/processes.rs"]
mod processes;
mod simulated;

use std::ffi::c_void;
use std::time::Duration;

use gapless::StreamId;
use gapless::driver::cuda::{CudaDriver, PER_THREAD_STREAM};
use gapless::driver::{MemoryDriver, WorkDriver};
use gapless::units::{DeviceAddr, MIB};
use processes::{Peer, given, say_and_wait, with_shared_device};
use simulated::library;

const OK: u32 = 0;
const INVALID_VALUE: u32 = 1;
const INVALID_CONTEXT: u32 = 201;
const INVALID_HANDLE: u32 = 400;
const NOT_READY: u32 = 600;
const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;
const BYTES: u64 = 4 * MIB;
const CAPACITY: &str = "64MiB";

#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug)]
struct Handle([u8; 64]);

impl Handle {
    fn to_text(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn from_text(text: &str) -> Self {
        Self(std::array::from_fn(|index| u8::from_str_radix(&text[2 * index..][..2], 16).unwrap()))
    }
}

/// Declares functions of the library that gapless has no binding of.
macro_rules! functions {
    ($($method:ident = $symbol:literal ($($argument:ident: $kind:ty),*);)*) => {
        /// Opens the device, whose context is then current.
        struct Library(libloading::Library);

        impl Library {
            $(fn $method(&self, $($argument: $kind),*) -> u32 {
                // SAFETY: the function has this type.
                let function = unsafe { self.0.get::<unsafe extern "C" fn($($kind),*) -> u32>($symbol) }.unwrap();
                // SAFETY: pointers are valid for the call.
                unsafe { function($($argument),*) }
            })*
        }
    };
}

functions! {
    retain = b"cuDevicePrimaryCtxRetain\0" (context: *mut *mut c_void, device: i32);
    make_current = b"cuCtxSetCurrent\0" (context: *mut c_void);
    event_create = b"cuEventCreate\0" (event: *mut *mut c_void, flags: u32);
    event_destroy = b"cuEventDestroy_v2\0" (event: *mut c_void);
    event_record = b"cuEventRecord\0" (event: *mut c_void, stream: u64);
    event_query = b"cuEventQuery\0" (event: *mut c_void);
    event_synchronize = b"cuEventSynchronize\0" (event: *mut c_void);
    stream_wait = b"cuStreamWaitEvent\0" (stream: u64, event: *mut c_void, flags: u32);
    event_handle = b"cuIpcGetEventHandle\0" (handle: *mut Handle, event: *mut c_void);
    open_event = b"cuIpcOpenEventHandle\0" (event: *mut *mut c_void, handle: Handle);
    alloc = b"cuMemAlloc_v2\0" (addr: *mut u64, bytes: usize);
    free = b"cuMemFree_v2\0" (addr: u64);
    memory_handle = b"cuIpcGetMemHandle\0" (handle: *mut Handle, addr: u64);
    open_memory = b"cuIpcOpenMemHandle_v2\0" (addr: *mut u64, handle: Handle, flags: u32);
    close_memory = b"cuIpcCloseMemHandle\0" (addr: u64);
}

/// Opens the device, whose context is current from then on.
fn open() -> (CudaDriver, Library) {
    let driver = simulated::open(simulated::builder()).unwrap();
    // SAFETY: loading the simulated library runs nothing.
    let raw = Library(unsafe { libloading::Library::new(library()) }.unwrap());
    let mut context = std::ptr::null_mut();
    assert_eq!(raw.retain(&raw mut context, 0), OK);
    assert_eq!(raw.make_current(context), OK);
    (driver, raw)
}

impl Library {
    fn event(&self, flags: u32) -> Result<*mut c_void, u32> {
        let mut event = std::ptr::null_mut();
        match self.event_create(&raw mut event, flags) {
            OK => Ok(event),
            code => Err(code),
        }
    }

    fn handle_of(&self, event: *mut c_void) -> Result<Handle, u32> {
        let mut handle = Handle([0; 64]);
        match self.event_handle(&raw mut handle, event) {
            OK => Ok(handle),
            code => Err(code),
        }
    }

    fn opened(&self, handle: Handle) -> Result<*mut c_void, u32> {
        let mut event = std::ptr::null_mut();
        match self.open_event(&raw mut event, handle) {
            OK => Ok(event),
            code => Err(code),
        }
    }

    fn opened_memory(&self, handle: Handle) -> Result<u64, u32> {
        let mut addr = 0;
        match self.open_memory(&raw mut addr, handle, 1) {
            OK => Ok(addr),
            code => Err(code),
        }
    }
}

fn delay(driver: &CudaDriver, stream: StreamId, milliseconds: u64) {
    driver.delay(stream, Duration::from_millis(milliseconds)).unwrap();
}

#[test]
fn an_event_is_recorded_in_one_process_and_awaited_in_another() {
    let test = "an_event_is_recorded_in_one_process_and_awaited_in_another";
    let main = || {
        let (driver, raw) = open();
        let mut peer = Peer::start(test, "");
        let event = raw.opened(Handle::from_text(&peer.says())).unwrap();
        assert_eq!(raw.event_query(event), OK, "not recorded yet");
        peer.go_on();
        assert_eq!(peer.says(), "recorded");
        assert_eq!(raw.event_query(event), NOT_READY);
        let stream = driver.create_stream().unwrap();
        assert_eq!(raw.stream_wait(stream.as_raw(), event, 0), OK);
        let after = raw.event(DISABLE_TIMING).unwrap();
        assert_eq!(raw.event_record(after, stream.as_raw()), OK);
        assert_eq!(raw.event_query(after), NOT_READY);
        assert_eq!(raw.event_synchronize(event), OK);
        assert_eq!(raw.event_synchronize(after), OK);
        assert_eq!(raw.event_query(event), OK);

        // Recorded here, it completes there.
        delay(&driver, stream, 100);
        assert_eq!(raw.event_record(event, stream.as_raw()), OK);
        assert_eq!(raw.handle_of(event), Err(INVALID_HANDLE), "it is another process's");
        peer.go_on();
        assert_eq!(peer.says(), "true");
        driver.synchronize(stream).unwrap();
        peer.go_on();
        assert_eq!(peer.says(), "false");
        peer.end();
        assert_eq!(raw.event_destroy(event), OK);
    };
    let peer = || {
        let (driver, raw) = open();
        let event = raw.event(INTERPROCESS | DISABLE_TIMING).unwrap();
        say_and_wait(&raw.handle_of(event).unwrap().to_text());
        delay(&driver, PER_THREAD_STREAM, 300);
        assert_eq!(raw.event_record(event, PER_THREAD_STREAM.as_raw()), OK);
        say_and_wait("recorded");
        say_and_wait(&(raw.event_query(event) == NOT_READY).to_string());
        say_and_wait(&(raw.event_query(event) == NOT_READY).to_string());
    };
    with_shared_device(test, CAPACITY, main, peer);
}

#[test]
fn work_of_a_killed_process_has_ended() {
    let test = "work_of_a_killed_process_has_ended";
    let main = || {
        let (driver, raw) = open();
        let mut peer = Peer::start(test, "");
        let handle = Handle::from_text(&peer.says());
        let event = raw.opened(handle).unwrap();
        assert_eq!(raw.event_query(event), NOT_READY);
        let stream = driver.create_stream().unwrap();
        assert_eq!(raw.stream_wait(stream.as_raw(), event, 0), OK);
        peer.kill();
        driver.synchronize(stream).unwrap();
        assert_eq!(raw.event_synchronize(event), OK);
        assert_eq!(raw.opened(handle), Err(INVALID_HANDLE), "its process is gone");
    };
    let peer = || {
        let (driver, raw) = open();
        let event = raw.event(INTERPROCESS | DISABLE_TIMING).unwrap();
        delay(&driver, PER_THREAD_STREAM, 60_000);
        assert_eq!(raw.event_record(event, PER_THREAD_STREAM.as_raw()), OK);
        say_and_wait(&raw.handle_of(event).unwrap().to_text());
    };
    with_shared_device(test, CAPACITY, main, peer);
}

#[test]
fn memory_without_chunks_is_the_same_in_both_processes() {
    let test = "memory_without_chunks_is_the_same_in_both_processes";
    let main = || {
        let (driver, raw) = open();
        let mut addr = 0;
        assert_eq!(raw.alloc(&raw mut addr, BYTES as usize), OK);
        driver.fill(StreamId::DEFAULT, DeviceAddr(addr), BYTES, 1).unwrap();
        driver.synchronize(StreamId::DEFAULT).unwrap();
        let mut handle = Handle([0; 64]);
        assert_eq!(raw.memory_handle(&raw mut handle, addr + 512), INVALID_VALUE, "not where it starts");
        assert_eq!(raw.memory_handle(&raw mut handle, addr), OK);
        assert_eq!(raw.opened_memory(handle), Err(INVALID_CONTEXT), "its own");
        let free = driver.memory_info().unwrap().free;
        let mut peer = Peer::start(test, &handle.to_text());
        assert_eq!(peer.says(), "true");
        driver.verify(StreamId::DEFAULT, DeviceAddr(addr), BYTES, 2).unwrap();
        driver.synchronize(StreamId::DEFAULT).unwrap();
        assert!(driver.take_mismatches().is_empty());
        assert_eq!(raw.free(addr), OK);
        peer.go_on();
        assert_eq!(peer.says(), "true");
        peer.end();
        assert_eq!(driver.memory_info().unwrap().free, free + BYTES);
    };
    let peer = || {
        let (driver, raw) = open();
        let handle = Handle::from_text(&given());
        let addr = raw.opened_memory(handle).unwrap();
        assert_eq!(raw.opened_memory(handle), Ok(addr), "opened twice, it is mapped once");
        assert_eq!(raw.free(addr), INVALID_VALUE, "closed, not freed");
        let holds = |seed| {
            driver.verify(StreamId::DEFAULT, DeviceAddr(addr), BYTES, seed).unwrap();
            driver.synchronize(StreamId::DEFAULT).unwrap();
            driver.take_mismatches().is_empty()
        };
        let before = holds(1);
        driver.fill(StreamId::DEFAULT, DeviceAddr(addr), BYTES, 2).unwrap();
        driver.synchronize(StreamId::DEFAULT).unwrap();
        say_and_wait(&before.to_string());
        assert_eq!(raw.close_memory(addr), OK);
        say_and_wait(&holds(2).to_string());
        assert_eq!(raw.close_memory(addr), OK);
        assert_eq!(raw.close_memory(addr), INVALID_VALUE);
        assert_eq!(raw.opened_memory(handle), Err(INVALID_HANDLE), "freed where it was allocated");
    };
    with_shared_device(test, CAPACITY, main, peer);
}

#[test]
fn what_a_device_refuses_is_refused() {
    let (_driver, raw) = open();
    assert_eq!(raw.event(INTERPROCESS), Err(INVALID_VALUE), "such an event measures no time");
    let usual = raw.event(DISABLE_TIMING).unwrap();
    assert_eq!(raw.handle_of(usual), Err(INVALID_HANDLE));
    let event = raw.event(INTERPROCESS | DISABLE_TIMING).unwrap();
    let handle = raw.handle_of(event).unwrap();
    assert_eq!(raw.opened(handle), Err(INVALID_CONTEXT), "in its own process");
    for byte in 0..64 {
        let mut forged = handle;
        forged.0[byte] ^= 0x40;
        assert!(raw.opened(forged).is_err() && raw.opened_memory(forged).is_err());
    }
    assert_eq!(raw.event_destroy(event), OK);
    assert_eq!(raw.event_query(event), INVALID_HANDLE);
}
