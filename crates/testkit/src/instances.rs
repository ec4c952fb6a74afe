//! Runs on each device, compiled once with this crate: test programs find the runner and the allocator beneath it here instead of
//! compiling them again each. See `gapless::internals`.

use crate::device::{Host, Model};
use crate::runner::run;
use crate::threads::run_scheduled;
use crate::wire::{Extra, decode};
#[cfg(feature = "properties")]
use crate::{cuda::Cuda, device::World, op::Op, summary::Summary};

/// Runs an input of a fuzz target on one thread, or on several with a schedule that is part of it: on host memory where
/// `GAPLESS_FUZZ_DRIVER` says `host` and the world fits, else on the model. Does nothing if `bytes` is shorter than a header.
///
/// # Panics
/// As [`run`].
pub fn run_input(bytes: &[u8], extra: Extra, threads: usize) {
    let Some((world, ops)) = decode(bytes, extra) else { return };
    let on_host = std::env::var_os("GAPLESS_FUZZ_DRIVER").is_some_and(|driver| driver == "host");
    match (on_host && world.fits_in_memory(), threads) {
        (true, 1) => run::<Host>(&world, &ops),
        (true, _) => run_scheduled::<Host>(&world, &ops, threads),
        (false, 1) => run::<Model>(&world, &ops),
        (false, _) => run_scheduled::<Model>(&world, &ops, threads),
    };
}

/// [`run`] on the simulated library.
///
/// # Panics
/// As [`run`], and when the device was not opened.
// Without property tests nobody calls it, and the fuzz targets need not compile it.
#[cfg(feature = "properties")]
pub fn run_on_cuda(world: &World, ops: &[Op]) -> Summary {
    run::<Cuda>(world, ops)
}
