//! Asks cudarc for memory, each thing once more where it fails, and checks that bytes are kept.

use cudarc::driver::{CudaContext, CudaSlice, DriverError};

fn again<T>(name: &str, mut step: impl FnMut() -> Result<T, DriverError>) -> Result<T, DriverError> {
    step().or_else(|error| {
        println!("{name}: {error}");
        step()
    })
}

fn main() -> Result<(), DriverError> {
    let context = again("context", || CudaContext::new(0))?;
    let stream = again("stream", || context.new_stream())?;
    let numbers: Vec<u32> = (0..1 << 20).collect();
    let mut all: Vec<CudaSlice<u32>> = Vec::new();
    for _ in 0..4 {
        all.push(again("slice", || stream.clone_htod(&numbers))?);
    }
    all.remove(1);
    all.push(again("copy", || stream.clone_dtod(&all[0]))?);
    for slice in &all {
        let back = again("read", || stream.clone_dtoh(slice))?;
        again("wait", || stream.synchronize())?;
        assert!(back == numbers, "bytes are lost");
    }
    drop(all);
    again("wait", || stream.synchronize())
}
