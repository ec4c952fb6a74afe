//! Runs on each device, compiled once with this crate: test programs find the runner and the allocator beneath it here instead of
//! compiling them again each. See `gapless::internals`.

use crate::cuda::Cuda;
use crate::device::{Device, Host, Model, World};
use crate::op::Op;
use crate::runner::run;
#[cfg(feature = "properties")]
use crate::summary::Summary;
use crate::threads::run_scheduled;
use crate::wire::{Extra, decode};
use gapless::driver::cuda::CudaDriver;

/// Runs an input of a fuzz target on one thread, or on several with a schedule that is part of it: where the world fits, on host
/// memory or the simulated library if `GAPLESS_FUZZ_DRIVER` says `host` or `simulated`, else on the model. Does nothing if `bytes`
/// is shorter than a header.
///
/// # Panics
/// As [`run`]; and where the simulated library, which lies beside the executable, cannot be loaded.
pub fn run_input(bytes: &[u8], extra: Extra, threads: usize) {
    let Some((world, ops)) = decode(bytes, extra) else { return };
    let driver = std::env::var("GAPLESS_FUZZ_DRIVER").unwrap_or_default();
    match (driver.as_str(), world.fits_in_memory()) {
        ("host", true) => run_on::<Host>(&world, &ops, threads),
        ("simulated", true) => {
            let executable = std::env::current_exe().expect("an executable");
            let library = executable.with_file_name("libgapless_sim_libcuda.so");
            // SAFETY: it is a driver library.
            let builder = unsafe { CudaDriver::builder().library(library) };
            Cuda::open_device(builder).expect("the simulated library");
            let (world, ops) = with_larger_pages(&world, ops, Cuda::PAGE_BYTES);
            run_on::<Cuda>(&world, &ops, threads);
        }
        _ => run_on::<Model>(&world, &ops, threads),
    }
}

fn run_on<D: Device + 'static>(world: &World, ops: &[Op], threads: usize) {
    match threads {
        1 => run::<D>(world, ops),
        _ => run_scheduled::<D>(world, ops, threads),
    };
}

/// Returns a world with larger pages, and the operations with sizes that are larger as often.
fn with_larger_pages(world: &World, ops: Vec<Op>, page_bytes: u64) -> (World, Vec<Op>) {
    let doublings = (page_bytes / world.page_bytes).ilog2();
    let larger = |op| match op {
        Op::Alloc { bytes, align, stream } => Op::Alloc { bytes: bytes << doublings, align, stream },
        Op::Fill { bytes, beside, stream, count, spread } => {
            Op::Fill { bytes: bytes << doublings, beside, stream, count, spread }
        }
        other => other,
    };
    (World { page_bytes, ..*world }, ops.into_iter().map(larger).collect())
}

/// Runs an input of the fuzz targets on the simulated library, which is open.
///
/// # Panics
/// As [`run`].
#[cfg(feature = "properties")]
pub fn run_input_on_cuda(bytes: &[u8], extra: Extra) {
    let Some((world, ops)) = decode(bytes, extra).filter(|(world, _)| world.fits_in_memory()) else { return };
    let (world, ops) = with_larger_pages(&world, ops, Cuda::PAGE_BYTES);
    run::<Cuda>(&world, &ops);
}

/// [`run`] on the simulated library.
///
/// # Panics
/// As [`run`], and when the device was not opened.
#[cfg(feature = "properties")]
pub fn run_on_cuda(world: &World, ops: &[Op]) -> Summary {
    run::<Cuda>(world, ops)
}
