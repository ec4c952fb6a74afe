//! gapless with `cust`: memory from gapless, and copies, streams and events from `cust`.
//!
//! Building it needs the driver library (or the simulated one, see `cargo xtask test-interop`):
//! `cargo run --features cust --example with_cust`

use std::error::Error;

use cust::event::{Event, EventFlags};
use cust::memory::{CopyDestination, DeviceSlice};
use cust::stream::{Stream, StreamFlags, StreamWaitEventFlags};
use gapless::driver::cuda::CudaDriver;
use gapless::interop::cust::CustAllocator;

fn main() -> Result<(), Box<dyn Error>> {
    let _context = cust::quick_init()?;
    let allocator = CudaDriver::builder().allocator()?.budget(64 << 20).build()?;
    let (first, second) =
        (Stream::new(StreamFlags::NON_BLOCKING, None)?, Stream::new(StreamFlags::NON_BLOCKING, None)?);

    let numbers: Vec<u32> = (0..1000).collect();
    let memory = allocator.alloc_pointer::<u32>(numbers.len(), &first)?;
    // SAFETY: the allocation holds that many values, and lives until it is freed below.
    let mut slice = unsafe { DeviceSlice::from_raw_parts(memory, numbers.len()) };
    slice.copy_from(&numbers)?;

    let written = Event::new(EventFlags::DISABLE_TIMING)?;
    written.record(&first)?;
    second.wait_event(written, StreamWaitEventFlags::DEFAULT)?;
    allocator.record_pointer(memory, &second)?;
    let mut back = vec![0; numbers.len()];
    slice.copy_to(&mut back)?;
    assert_eq!(back, numbers);

    allocator.free_pointer(memory)?;
    first.synchronize()?;
    second.synchronize()?;
    println!("{} numbers were copied to {:?} and back", back.len(), memory);
    Ok(())
}
