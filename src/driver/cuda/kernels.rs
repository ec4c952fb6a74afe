//! Our kernels (`kernels/*.cu`), loaded as PTX through the driver, which compiles them for its device.
//!
//! - I1  every parameter of every kernel is eight bytes wide, so a launch is a name and a list of `u64`.

use std::ffi::{CString, c_void};

use super::CudaDriver;
use super::context::Context;
use super::library::Library;
use super::streams::raw_stream;
use super::sys::{CUfunction, CUmodule};
use crate::driver::{DriverCall, DriverError, DriverErrorKind, DriverResult};
use crate::units::StreamId;

/// The PTX of the kernels, by the name of their source file.
pub const KERNEL_SOURCES: [(&str, &str); 5] = [
    ("fill_pattern", include_str!("../../../kernels/fill_pattern.ptx")),
    ("verify_pattern", include_str!("../../../kernels/verify_pattern.ptx")),
    ("spin", include_str!("../../../kernels/spin.ptx")),
    ("bandwidth", include_str!("../../../kernels/bandwidth.ptx")),
    ("pointer_chase", include_str!("../../../kernels/pointer_chase.ptx")),
];

/// A kernel, with the parameters it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kernel {
    /// data, bytes, seed
    FillPattern,
    /// data, bytes, seed, result
    VerifyPattern,
    /// nanoseconds
    Spin,
    /// data, bytes, sink
    BandwidthRead,
    /// data, bytes, value
    BandwidthWrite,
    /// target, source, bytes
    BandwidthCopy,
    /// data, slots, stride, multiplier
    PointerChaseLink,
    /// data, steps, result
    PointerChase,
}

impl Kernel {
    const ALL: [Self; 8] = [
        Self::FillPattern,
        Self::VerifyPattern,
        Self::Spin,
        Self::BandwidthRead,
        Self::BandwidthWrite,
        Self::BandwidthCopy,
        Self::PointerChaseLink,
        Self::PointerChase,
    ];

    /// Returns the position of the source in [`KERNEL_SOURCES`] and the name of the entry in it.
    fn entry(self) -> (usize, &'static std::ffi::CStr) {
        match self {
            Self::FillPattern => (0, c"fill_pattern"),
            Self::VerifyPattern => (1, c"verify_pattern"),
            Self::Spin => (2, c"spin"),
            Self::BandwidthRead => (3, c"bandwidth_read"),
            Self::BandwidthWrite => (3, c"bandwidth_write"),
            Self::BandwidthCopy => (3, c"bandwidth_copy"),
            Self::PointerChaseLink => (4, c"pointer_chase_link"),
            Self::PointerChase => (4, c"pointer_chase"),
        }
    }
}

/// The number of threads of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Threads {
    /// One, for kernels that measure or wait.
    One,
    /// Enough for this many independent items, or to fill the device.
    ForItems(u64),
}

/// The kernels of one context.
pub(super) struct Kernels {
    library: &'static Library,
    modules: Vec<CUmodule>,
    functions: [CUfunction; Kernel::ALL.len()],
}

// SAFETY: modules and functions are tokens that the driver accepts on every thread.
unsafe impl Send for Kernels {}

impl Kernels {
    /// Loads and links every kernel.
    pub(super) fn load(library: &'static Library, context: &Context) -> DriverResult<Self> {
        let _guards = context.enter_outside_capture(DriverCall::Work)?;
        let mut kernels = Self { library, modules: Vec::new(), functions: [std::ptr::null_mut(); Kernel::ALL.len()] };
        for (name, ptx) in KERNEL_SOURCES {
            let image = CString::new(ptx).map_err(|_| {
                let text = format!("the PTX of {name} is damaged: it contains a NUL byte");
                DriverError::new(DriverCall::Work, DriverErrorKind::InvalidValue, text)
            })?;
            let mut module = std::ptr::null_mut();
            // SAFETY: the image is NUL-terminated text and the out-parameter a valid pointer for the call.
            let result = unsafe { library.api().cuModuleLoadData(&raw mut module, image.as_ptr().cast()) };
            library.check(DriverCall::Work, "cuModuleLoadData", result)?;
            kernels.modules.push(module);
        }
        for (slot, kernel) in Kernel::ALL.into_iter().enumerate() {
            let (source, entry) = kernel.entry();
            let function = &raw mut kernels.functions[slot];
            let module = kernels.modules[source];
            // SAFETY: the module was loaded above, the name is NUL-terminated, the out-parameter valid for the call.
            let result = unsafe { library.api().cuModuleGetFunction(function, module, entry.as_ptr()) };
            library.check(DriverCall::Work, "cuModuleGetFunction", result)?;
        }
        Ok(kernels)
    }

    fn function(&self, kernel: Kernel) -> CUfunction {
        self.functions[kernel as usize]
    }

    /// Unloads the modules. The context must be current, or gone already.
    pub(super) fn unload(&mut self) {
        for module in self.modules.drain(..) {
            // SAFETY: loaded once in `load`, unloaded once here; nothing is launched afterwards.
            let _ = unsafe { self.library.api().cuModuleUnload(module) };
        }
    }
}

impl CudaDriver {
    /// Queues `kernel` on `stream`. The context must be current.
    ///
    /// # Safety
    /// `parameters` are those that the kernel takes; the ranges they describe are mapped with access until it has run,
    /// or the context is lost.
    pub(super) unsafe fn launch(
        &self,
        kernels: &Kernels,
        kernel: Kernel,
        stream: StreamId,
        threads: Threads,
        parameters: &[u64],
    ) -> DriverResult<()> {
        let (blocks, block) = match threads {
            Threads::One => (1, 1),
            Threads::ForItems(items) => {
                let most = u64::try_from(self.info.multiprocessors).unwrap_or(1).max(1) * BLOCKS_PER_MULTIPROCESSOR;
                let blocks = items.div_ceil(u64::from(BLOCK_THREADS)).clamp(1, most);
                (u32::try_from(blocks).unwrap_or(1), BLOCK_THREADS)
            }
        };
        let mut pointers: Vec<*mut c_void> =
            parameters.iter().map(|parameter| std::ptr::from_ref(parameter).cast_mut().cast()).collect();
        // SAFETY: the function belongs to this context; the pointers are to values of the width that the kernel's
        // parameters have (I1), which the driver copies before it returns. The ranges are the caller's promise.
        let result = unsafe {
            self.library.api().cuLaunchKernel(
                kernels.function(kernel),
                blocks,
                1,
                1,
                block,
                1,
                1,
                0,
                raw_stream(stream),
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        self.library.check(DriverCall::Work, "cuLaunchKernel", result)
    }
}

const BLOCK_THREADS: u32 = 256;
/// Eight blocks of 256 threads are the 2,048 threads that a multiprocessor holds at most.
const BLOCKS_PER_MULTIPROCESSOR: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_in_its_source() {
        for (slot, kernel) in Kernel::ALL.into_iter().enumerate() {
            assert_eq!(slot, kernel as usize);
            let (source, entry) = kernel.entry();
            let line = format!(".visible .entry {}(", entry.to_str().unwrap());
            assert!(KERNEL_SOURCES[source].1.contains(&line), "{kernel:?}");
        }
    }
}
