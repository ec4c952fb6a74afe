//! The CUDA driver: with the simulated library, or with device 0 of this machine if `GAPLESS_TEST_DEVICE` is set.

use super::suite::Subject;
use gapless::driver::DriverUsage;
use gapless::driver::cuda::CudaDriver;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[path = "../simulated/mod.rs"]
mod simulated;

impl Subject for CudaDriver {
    const HAS_BYTES: bool = true;

    fn usage(&self) -> Option<DriverUsage> {
        None
    }
}

/// The driver, locked so that no other test in this process uses it: all share one device, and some tests count its
/// memory.
pub struct Exclusive {
    pub driver: CudaDriver,
    _turn: MutexGuard<'static, ()>,
}

pub fn exclusive() -> Exclusive {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let builder = CudaDriver::builder();
    let builder = if on_device() { builder } else { builder.library(simulated::library()) };
    Exclusive { driver: builder.open().unwrap(), _turn: turn }
}

/// Returns `true` if the tests run on a real device, whose memory other processes may use at the same time.
pub fn on_device() -> bool {
    std::env::var_os("GAPLESS_TEST_DEVICE").is_some()
}
