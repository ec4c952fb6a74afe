//! Kernels (`kernels/*.cu`), loaded as PTX through the driver, which compiles them for its device.
//!
//! - I1  every parameter of every kernel is eight bytes wide, so a launch is a kernel and a list of `u64`.

use std::ffi::{CStr, CString, c_void};

use super::CudaDriver;
use super::context::Context;
use super::library::Library;
use super::streams::raw_stream;
use super::sys::{CUfunction, CUmodule};
use crate::driver::{DriverCall, DriverError, DriverErrorKind, DriverResult};
use crate::units::StreamId;

/// The kernels behind [`WorkDriver`](crate::driver::WorkDriver), in one context.
pub(super) struct Kernels {
    modules: Vec<Module>,
    /// Parameters: data, bytes, seed.
    pub fill_pattern: Kernel,
    /// Parameters: data, bytes, seed, result.
    pub verify_pattern: Kernel,
    /// Parameters: nanoseconds.
    pub spin: Kernel,
}

impl Kernels {
    /// Loads every kernel and looks it up.
    pub(super) fn load(library: &'static Library, context: &Context) -> DriverResult<Self> {
        let _current = context.enter(DriverCall::Work)?;
        let mut modules = Vec::new();
        let mut load = |(entry, ptx): (&CStr, &str)| -> DriverResult<Kernel> {
            let (module, [kernel]) = Module::load(library, context, ptx, [entry])?;
            modules.push(module);
            Ok(kernel)
        };
        let loaded = load(FILL_PATTERN).and_then(|fill| Ok((fill, load(VERIFY_PATTERN)?, load(SPIN)?)));
        match loaded {
            Ok((fill_pattern, verify_pattern, spin)) => Ok(Self { modules, fill_pattern, verify_pattern, spin }),
            Err(error) => {
                modules.into_iter().for_each(Module::unload);
                Err(error)
            }
        }
    }

    /// Unloads the modules. The context is current, or is gone already.
    pub(super) fn unload(self) {
        self.modules.into_iter().for_each(Module::unload);
    }
}

/// The compiled kernels of one PTX source, loaded into one context. Stays loaded until `unload` is called or the
/// context ends.
#[derive(Debug)]
pub struct Module {
    library: &'static Library,
    raw: CUmodule,
}

// SAFETY: a module is a token that the driver accepts on every thread.
unsafe impl Send for Module {}

impl Module {
    /// Compiles `ptx` for the context's device, loads it there, and looks up the kernels called `entries`.
    pub(super) fn load<const N: usize>(
        library: &'static Library,
        context: &Context,
        ptx: &str,
        entries: [&CStr; N],
    ) -> DriverResult<(Self, [Kernel; N])> {
        let image = CString::new(ptx).map_err(|_| {
            let text = "the PTX of a kernel is damaged: it contains a NUL byte";
            DriverError::new(DriverCall::Work, DriverErrorKind::InvalidValue, text)
        })?;
        let _guards = context.enter_outside_capture(DriverCall::Work)?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the image is NUL-terminated text and the out-parameter a valid pointer for the call.
        let result = unsafe { library.api().cuModuleLoadData(&raw mut raw, image.as_ptr().cast()) };
        library.check(DriverCall::Work, "cuModuleLoadData", result)?;
        let module = Self { library, raw };
        let mut kernels = [Kernel { raw: std::ptr::null_mut() }; N];
        for (kernel, entry) in kernels.iter_mut().zip(entries) {
            let function = &raw mut kernel.raw;
            // SAFETY: the module was loaded above, the name is NUL-terminated, the out-parameter valid for the call.
            let result = unsafe { library.api().cuModuleGetFunction(function, raw, entry.as_ptr()) };
            if let Err(error) = library.check(DriverCall::Work, "cuModuleGetFunction", result) {
                module.unload();
                return Err(error);
            }
        }
        Ok((module, kernels))
    }

    /// Unloads the module. The context is current, or is gone already.
    pub(super) fn unload(self) {
        // SAFETY: loaded once in `load`, unloaded once here; nothing is launched afterwards.
        let _ = unsafe { self.library.api().cuModuleUnload(self.raw) };
    }
}

/// A kernel of a loaded [`Module`]. It must not be launched once the module is unloaded.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    pub(super) raw: CUfunction,
}

// SAFETY: a function is a token that the driver accepts on every thread.
unsafe impl Send for Kernel {}

/// How many threads a launch gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// One, for kernels that measure or wait.
    One,
    /// Enough for this many independent items, or to fill the device.
    ForItems(u64),
}

impl CudaDriver {
    /// Queues `kernel` on `stream`. The context must be current.
    ///
    /// # Safety
    /// The kernel's module is loaded. `parameters` are those that the kernel takes; the ranges they describe are mapped
    /// with access until it has run, or the context is lost.
    pub(super) unsafe fn launch(
        &self,
        kernel: Kernel,
        stream: StreamId,
        threads: Threads,
        parameters: &[u64],
    ) -> DriverResult<()> {
        let (blocks, block) = self.shape(threads);
        let mut pointers: Vec<*mut c_void> =
            parameters.iter().map(|parameter| std::ptr::from_ref(parameter).cast_mut().cast()).collect();
        // SAFETY: the function belongs to this context; the pointers are to values of the width that the kernel's
        // parameters have (I1), which the driver copies before it returns. The ranges are the caller's promise.
        let result = unsafe {
            self.library.api().cuLaunchKernel(
                kernel.raw,
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

    /// Blocks, and threads of each.
    pub(super) fn shape(&self, threads: Threads) -> (u32, u32) {
        match threads {
            Threads::One => (1, 1),
            Threads::ForItems(items) => {
                let most = u64::try_from(self.info.multiprocessors).unwrap_or(1).max(1) * BLOCKS_PER_MULTIPROCESSOR;
                let blocks = items.div_ceil(u64::from(BLOCK_THREADS)).clamp(1, most);
                (u32::try_from(blocks).unwrap_or(1), BLOCK_THREADS)
            }
        }
    }
}

const FILL_PATTERN: (&CStr, &str) = (c"fill_pattern", include_str!("../../../kernels/fill_pattern.ptx"));
const VERIFY_PATTERN: (&CStr, &str) = (c"verify_pattern", include_str!("../../../kernels/verify_pattern.ptx"));
const SPIN: (&CStr, &str) = (c"spin", include_str!("../../../kernels/spin.ptx"));

const BLOCK_THREADS: u32 = 256;
/// Eight blocks of 256 threads are the 2,048 threads that a multiprocessor holds at most.
const BLOCKS_PER_MULTIPROCESSOR: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_is_in_its_source() {
        for (entry, ptx) in [FILL_PATTERN, VERIFY_PATTERN, SPIN] {
            let line = format!(".visible .entry {}(", entry.to_str().unwrap());
            assert!(ptx.contains(&line), "{entry:?}");
        }
    }
}
