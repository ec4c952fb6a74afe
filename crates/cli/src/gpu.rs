//! Opening a GPU as the arguments of a command say.

use gapless::driver::cuda::{CudaBuilder, CudaDriver, OpenError};
use std::path::Path;

/// The settings for a device, with the driver library that `--library` names, or the installed one.
pub(crate) fn builder(device: u32, library: Option<&Path>) -> CudaBuilder {
    let builder = CudaDriver::builder().device(device);
    match library {
        // SAFETY: a driver library, says who runs the command, whose process this is.
        Some(path) => unsafe { builder.library(path) },
        None => builder,
    }
}

/// Opens a device.
pub(crate) fn open(builder: CudaBuilder) -> Result<CudaDriver, OpenError> {
    // SAFETY: the commands keep the rules of the driver traits.
    unsafe { builder.open() }
}
