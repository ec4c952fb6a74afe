//! The CUDA driver: on the simulated library, or on device 0 of this machine when `GAPLESS_TEST_DEVICE` is set.

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

/// A driver that nobody else in this process uses meanwhile: all share one device, and some tests count its memory.
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

/// True when the tests run on a real device, whose memory others may use at the same time.
pub fn on_device() -> bool {
    std::env::var_os("GAPLESS_TEST_DEVICE").is_some()
}
