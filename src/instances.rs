//! The allocator for the drivers that tests use most, compiled once with the library. Test programs find it there instead of
//! compiling it again each, which took most of the time that they took to build.
//!
//! The compiler shares instances between crates at low optimisation levels only (`share-generics`), as tests have them. So a build
//! without debug assertions leaves this out.

use crate::driver::Driver;
use crate::driver::cuda::CudaDriver;
use crate::driver::{FaultDriver, HostDriver, ModelDriver};
use crate::{Allocator, StreamId};
use std::error::Error;
use std::sync::Arc;

/// Calls most functions of an allocator.
///
/// # Errors
/// Those of the functions, none on a device that works and has 64 pages free.
fn exercise<D: Driver>(driver: Arc<D>) -> Result<(), Box<dyn Error>> {
    const MAIN: StreamId = StreamId::DEFAULT;
    let page = driver.granularity();
    let allocator = Allocator::builder(driver).build()?;
    let addr = allocator.alloc_raw(page, MAIN)?;
    allocator.record_stream(addr, MAIN)?;
    drop(allocator.pin(addr)?);
    allocator.free(addr)?;
    let addr = allocator.alloc_raw_aligned(page, page, MAIN)?;
    allocator.free(addr)?;
    allocator.alloc_again(addr, page)?;
    allocator.free(addr)?;
    drop(allocator.alloc(page, MAIN)?);
    drop(allocator.alloc_registered(page, MAIN)?);
    let (mut first, mut second) = (allocator.reserve_range(4 * page)?, allocator.reserve_range(4 * page)?);
    first.grow(page, MAIN)?;
    second.take_from(&mut first, page, MAIN)?;
    second.shrink(page)?;
    drop((first, second));
    allocator.watch_stream(MAIN)?.mark().wait()?;
    allocator.keep_stream(MAIN)?;
    allocator.forget_stream(MAIN)?;
    allocator.set_budget(64 * page)?;
    allocator.renew_access()?;
    allocator.trim(0)?;
    allocator.check();
    let known = (allocator.stats(), allocator.live(), allocator.snapshot(), allocator.live_around(addr));
    drop(known);
    Ok(allocator.close()?)
}

/// `exercise` on the model.
///
/// # Errors
/// As there.
pub fn exercise_model(driver: Arc<ModelDriver>) -> Result<(), Box<dyn Error>> {
    exercise(driver)
}

/// `exercise` on the model, with faults.
///
/// # Errors
/// As there.
pub fn exercise_faults(driver: Arc<FaultDriver<ModelDriver>>) -> Result<(), Box<dyn Error>> {
    exercise(driver)
}

/// `exercise` on host memory.
///
/// # Errors
/// As there.
pub fn exercise_host(driver: Arc<HostDriver>) -> Result<(), Box<dyn Error>> {
    exercise(driver)
}

/// `exercise` on a CUDA device.
///
/// # Errors
/// As there.
pub fn exercise_cuda(driver: Arc<CudaDriver>) -> Result<(), Box<dyn Error>> {
    exercise(driver)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::HostConfig;

    #[test]
    fn all_of_it_works() {
        exercise_model(Arc::new(ModelDriver::default())).unwrap();
        exercise_faults(Arc::new(FaultDriver::new(ModelDriver::default()))).unwrap();
        exercise_host(Arc::new(HostDriver::new(HostConfig::default()).unwrap())).unwrap();
    }
}
