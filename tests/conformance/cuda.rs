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
    // SAFETY: it is a driver library.
    let builder = if on_device() { builder } else { unsafe { builder.library(simulated::library()) } };
    // SAFETY: the tests break no rule of the traits on a real device.
    let driver = unsafe { builder.open() }.unwrap();
    Exclusive { driver, _turn: turn }
}

/// Returns `true` if the tests run on a real device, whose memory other processes may use at the same time.
pub fn on_device() -> bool {
    std::env::var_os("GAPLESS_TEST_DEVICE").is_some()
}
