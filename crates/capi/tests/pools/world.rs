//! A process with the simulated driver and PyTorch's calls.

use super::simulated;
use gapless::driver::cuda::CudaDriver;
use gapless::driver::cuda::sys::{CUgraph, CUgraphExec, CUstream, CUstreamCaptureMode_enum, Optional, Required};
use gapless::driver::{StreamDriver, WorkDriver};
use gapless::{DeviceAddr, StreamId};
use gapless_capi::*;
use std::ffi::{CStr, CString, c_void};
use std::path::Path;
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicBool, Ordering};

/// The simulated driver, with the device's context current on this thread, and PyTorch's calls.
pub struct World {
    pub driver: CudaDriver,
    pub required: Required,
    pub optional: Optional,
}

/// Runs a test in a process of its own: the process-wide allocators live as long as it.
pub fn in_world(test: &str, capacity: &str, body: impl FnOnce(&World)) {
    in_world_of(test, capacity, &simulated::library(), body);
}

pub fn in_world_of(test: &str, capacity: &str, library: &Path, body: impl FnOnce(&World)) {
    simulated::with_settings(test, &[("GAPLESS_SIM_CAPACITY", capacity), ("GAPLESS_CONF", "")], || {
        let name = CString::new(library.to_str().expect("UTF-8")).expect("a path");
        // SAFETY: a NUL-terminated path of a driver library. By its own name from then on.
        assert!(!unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) }.is_null());
        // SAFETY: it is a driver library.
        let builder = unsafe { CudaDriver::builder().library(library) };
        let driver = simulated::open(builder).expect("a device");
        // SAFETY: the simulated library's functions have the types of cuda.h.
        let required = unsafe { Required::new(library) }.expect("all functions");
        // SAFETY: as above.
        let optional = unsafe { Optional::new(library) }.expect("the library");
        let world = World { driver, required, optional };
        world.make_current();
        body(&world);
    });
}

pub fn raw(stream: StreamId) -> CUstream {
    std::ptr::with_exposed_provenance_mut(stream.as_raw() as usize)
}

impl World {
    pub fn make_current(&self) {
        let mut context = null_mut();
        // SAFETY: the out-parameter is valid.
        unsafe { self.required.cuDevicePrimaryCtxRetain(&raw mut context, 0) };
        // SAFETY: retained just above.
        unsafe { self.required.cuCtxSetCurrent(context) };
    }

    pub fn streams<const N: usize>(&self) -> [StreamId; N] {
        [(); N].map(|()| self.driver.create_stream().expect("a stream"))
    }

    /// As PyTorch begins a capture: with the pool first.
    pub fn begin(&self, pool: u64, stream: StreamId) {
        open(pool);
        self.begin_capture(stream);
    }

    /// Begins a capture, in the mode that leaves other threads alone.
    pub fn begin_capture(&self, stream: StreamId) {
        let begin = self.optional.cuStreamBeginCapture_v2.as_ref().expect("exported");
        // SAFETY: a stream of the device.
        assert_eq!(unsafe { begin(raw(stream), CUstreamCaptureMode_enum(1)) }.0, 0);
    }

    /// Ends a capture. The graph, or the code of the error.
    pub fn end_capture(&self, stream: StreamId) -> Result<CUgraphExec, u32> {
        let end = self.optional.cuStreamEndCapture.as_ref().expect("exported");
        let mut graph: CUgraph = null_mut();
        // SAFETY: a stream of the device and a valid out-parameter.
        let result = unsafe { end(raw(stream), &raw mut graph) };
        if result.0 != 0 {
            return Err(result.0);
        }
        let instantiate = self.optional.cuGraphInstantiateWithFlags.as_ref().expect("exported");
        let mut exec = null_mut();
        // SAFETY: the graph was made just above.
        assert_eq!(unsafe { instantiate(&raw mut exec, graph, 0) }.0, 0);
        Ok(exec)
    }

    pub fn end(&self, pool: u64, stream: StreamId) -> CUgraphExec {
        let graph = self.end_capture(stream).expect("a graph");
        close(pool);
        graph
    }

    pub fn replay(&self, graph: CUgraphExec, stream: StreamId) {
        let launch = self.optional.cuGraphLaunch.as_ref().expect("exported");
        // SAFETY: a graph and a stream of the device.
        assert_eq!(unsafe { launch(graph, raw(stream)) }.0, 0);
    }

    /// A graph that writes and checks a block of this size, which is live; and one that was freed before it ended.
    pub fn graph(&self, pool: u64, stream: StreamId, bytes: u64) -> (CUgraphExec, DeviceAddr) {
        self.begin(pool, stream);
        let [kept, freed] = [(); 2].map(|()| malloc(bytes, stream));
        for addr in [freed, kept] {
            self.driver.fill(stream, addr, bytes, addr.0).expect("captured");
            self.driver.verify(stream, addr, bytes, addr.0).expect("captured");
        }
        free(freed);
        (self.end(pool, stream), kept)
    }

    /// The chunk that is mapped at an address.
    pub fn chunk(&self, addr: DeviceAddr) -> u64 {
        let (retain, release) = (self.optional.cuMemRetainAllocationHandle.as_ref().expect("exported"), &self.required);
        let mut handle = 0;
        // SAFETY: the out-parameter is valid, and so is any address.
        assert_eq!(unsafe { retain(&raw mut handle, std::ptr::with_exposed_provenance_mut(addr.0 as usize)) }.0, 0);
        // SAFETY: retained just above.
        assert_eq!(unsafe { release.cuMemRelease(handle) }.0, 0);
        handle
    }

    /// The device works, and found in memory what was written.
    pub fn check(&self) {
        self.driver.synchronize_device().expect("the device is not lost");
        assert_eq!(self.driver.take_mismatches(), []);
    }

    /// Keeps a stream busy, behind what is queued on it, until the hold is ended.
    pub fn hold(&self, stream: StreamId) -> Hold {
        let is_over: &AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        // SAFETY: the simulated library's function of that name has this type.
        let hold = unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(CUstream, *const AtomicBool) -> u32>(of_simulation(
                c"gapless_sim_hold",
            ))
        };
        // SAFETY: a stream of the device, and a flag that is there for good.
        assert_eq!(unsafe { hold(raw(stream), is_over) }, 0);
        Hold(is_over)
    }

    /// Chunks on the device.
    pub fn chunks(&self) -> u64 {
        let mut counts = [0_u64; 4];
        // SAFETY: the simulated library's function of that name has this type.
        let usage = unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(i32, *mut [u64; 4]) -> u32>(of_simulation(
                c"gapless_sim_usage",
            ))
        };
        // SAFETY: the out-parameter is valid.
        assert_eq!(unsafe { usage(0, &raw mut counts) }, 0);
        counts[0]
    }
}

/// A function of the simulated library that is there for tests.
fn of_simulation(name: &CStr) -> *mut c_void {
    // SAFETY: the library is loaded, and the name ends with NUL.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    assert!(!found.is_null());
    found
}

/// A stream that is busy.
pub struct Hold(&'static AtomicBool);

impl Hold {
    /// Lets the stream go on. Whoever had waited for it meanwhile would have waited until the hold ended by itself.
    pub fn end(self) {
        assert!(!self.0.swap(true, Ordering::AcqRel), "somebody waited for the stream");
    }
}

pub fn pool_of(number: u64) -> gapless_torch_pool {
    gapless_torch_pool { first: 0, second: number }
}

pub fn open(pool: u64) {
    gapless_torch_begin_allocate_to_pool(0, pool_of(pool), null_mut());
}

pub fn close(pool: u64) {
    gapless_torch_end_allocate_to_pool(0, pool_of(pool));
}

pub fn release(pool: u64) {
    gapless_torch_release_pool(0, pool_of(pool));
}

pub fn try_malloc(bytes: u64, stream: StreamId) -> Option<DeviceAddr> {
    let pointer = gapless_torch_malloc(bytes as libc::ssize_t, 0, without_provenance_mut(stream.as_raw() as usize));
    (!pointer.is_null()).then(|| DeviceAddr(pointer.addr() as u64))
}

pub fn malloc(bytes: u64, stream: StreamId) -> DeviceAddr {
    try_malloc(bytes, stream).expect("memory")
}

pub fn free(addr: DeviceAddr) {
    gapless_torch_free(without_provenance_mut::<c_void>(addr.0 as usize), 0, 0, null_mut());
}

pub fn report() -> serde_json::Value {
    let mut buffer = vec![0_u8; 1 << 17];
    let mut needed = 0;
    // SAFETY: the buffer has that capacity, and the out-parameter is valid.
    let status =
        unsafe { gapless_torch_report_json(0, 0, buffer.as_mut_ptr().cast(), buffer.len() as u64, &raw mut needed) };
    assert_eq!(status, GAPLESS_OK);
    serde_json::from_slice(&buffer[..needed as usize - 1]).expect("JSON")
}

/// Live bytes of each pool, by its number, and of the main allocator under 0.
pub fn live() -> std::collections::BTreeMap<u64, u64> {
    let report = report();
    let pools = report["pools"].as_array().expect("a list").iter();
    let of = |stats: &serde_json::Value| stats["live_bytes"].as_u64().expect("a number");
    let pools = pools.map(|pool| (pool["id"][1].as_u64().expect("a number"), of(&pool["stats"])));
    pools.chain([(0, of(&report["main"]))]).filter(|(_, bytes)| *bytes > 0).collect()
}
