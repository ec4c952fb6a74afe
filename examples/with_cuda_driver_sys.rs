//! gapless with `cuda-driver-sys`: memory from gapless, everything else from the raw driver API.
//!
//! Building it needs the driver library (or the simulated one, see `cargo xtask test-interop`):
//! `cargo run --features cuda-driver-sys --example with_cuda_driver_sys`

use std::error::Error;
use std::sync::Arc;

use cuda_driver_sys::{
    CUevent, CUstream, cuEventCreate, cuEventDestroy_v2, cuEventRecord, cuMemcpyDtoHAsync_v2, cuMemcpyHtoDAsync_v2,
    cuStreamCreate, cuStreamDestroy_v2, cuStreamSynchronize,
};
use gapless::Allocator;
use gapless::driver::cuda::CudaDriver;
use gapless::driver::{EventHandle, StreamDriver};
use gapless::interop::driver_sys::{device_pointer, stream_id};

fn main() -> Result<(), Box<dyn Error>> {
    // SAFETY: below, it gets events and streams that exist.
    let driver = Arc::new(unsafe { CudaDriver::open(0) }?);
    let allocator = Allocator::builder(Arc::clone(&driver)).budget(64 << 20).build()?;
    // The raw calls need a current context: the device's primary context, which gapless also uses.
    make_current();

    let mut stream: CUstream = std::ptr::null_mut();
    let mut event: CUevent = std::ptr::null_mut();
    // SAFETY: the out-parameter is valid.
    let _ = unsafe { cuStreamCreate(&raw mut stream, 0) };
    // SAFETY: the out-parameter is valid.
    let _ = unsafe { cuEventCreate(&raw mut event, 2) };

    let numbers: Vec<u32> = (0..1000).collect();
    let mut back = vec![0_u32; numbers.len()];
    let bytes = size_of_val(&numbers[..]);
    // SAFETY: it is destroyed at the end, when the allocator is closed.
    let stream_of_buffer = unsafe { stream_id(stream) };
    let buffer = allocator.alloc(bytes as u64, stream_of_buffer)?;
    let memory = buffer.addr();
    // SAFETY: both sides are `bytes` bytes long and live until the synchronization below.
    let _ = unsafe { cuMemcpyHtoDAsync_v2(device_pointer(memory), numbers.as_ptr().cast(), bytes, stream) };
    // SAFETY: as above.
    let _ = unsafe { cuMemcpyDtoHAsync_v2(back.as_mut_ptr().cast(), device_pointer(memory), bytes, stream) };
    // SAFETY: both were created above.
    let _ = unsafe { cuEventRecord(event, stream) };
    driver.event_synchronize(EventHandle::from(event))?;
    assert_eq!(back, numbers);

    drop(buffer);
    allocator.close()?;
    // SAFETY: created above and not used afterwards.
    let _ = unsafe { cuStreamSynchronize(stream) };
    // SAFETY: as above.
    let _ = unsafe { cuStreamDestroy_v2(stream) };
    // SAFETY: as above.
    let _ = unsafe { cuEventDestroy_v2(event) };
    println!("{} numbers were copied to {memory} and back", back.len());
    Ok(())
}

fn make_current() {
    let mut context = std::ptr::null_mut();
    // SAFETY: the out-parameter is valid, and gapless has initialized the driver.
    let _ = unsafe { cuda_driver_sys::cuDevicePrimaryCtxRetain(&raw mut context, 0) };
    // SAFETY: the context was retained above, and is never released.
    let _ = unsafe { cuda_driver_sys::cuCtxSetCurrent(context) };
}
