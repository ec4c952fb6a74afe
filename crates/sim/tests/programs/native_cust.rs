//! Asks cust for memory, each thing once more where it fails, and checks that bytes are kept.

use cust::error::CudaResult;
use cust::memory::{CopyDestination, DeviceBuffer};
use cust::stream::{Stream, StreamFlags};

fn again<T>(name: &str, mut step: impl FnMut() -> CudaResult<T>) -> CudaResult<T> {
    step().or_else(|error| {
        println!("{name}: {error}");
        step()
    })
}

fn main() -> CudaResult<()> {
    let _context = again("context", cust::quick_init)?;
    let stream = again("stream", || Stream::new(StreamFlags::NON_BLOCKING, None))?;
    let numbers: Vec<u32> = (0..1 << 20).collect();
    let mut all: Vec<DeviceBuffer<u32>> = Vec::new();
    for _ in 0..4 {
        all.push(again("buffer", || DeviceBuffer::from_slice(&numbers))?);
    }
    all.remove(1);
    for buffer in &all {
        let mut back = vec![0; numbers.len()];
        again("read", || buffer.copy_to(&mut back))?;
        assert!(back == numbers, "bytes are lost");
    }
    for buffer in all {
        if let Err((error, buffer)) = DeviceBuffer::drop(buffer) {
            println!("free: {error}");
            std::mem::drop(buffer);
        }
    }
    again("wait", || stream.synchronize())
}
