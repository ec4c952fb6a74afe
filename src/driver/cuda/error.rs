//! Result codes, and the errors of loading the driver and of opening a device.

use std::borrow::Cow;
use std::fmt;

use super::sys::{CUresult, cudaError_enum as code};
use crate::driver::{DriverError, DriverErrorKind};
use crate::units::ByteSize;

/// Returns the kind of error that a result code stands for. Codes that this build does not know are
/// [`DriverErrorKind::Other`].
///
/// `CUDA_ERROR_UNKNOWN` (999) is not taken for a lost device, although it often comes with one: drivers also return it
/// for a call that they refuse, such as access to RDMA-capable chunks in WSL, and then the next call succeeds. Where the
/// context is lost, the next wait returns the error again and fails by itself. Other calls may still succeed: on an H100 with
/// driver 580, `cuMemCreate` does.
pub(super) fn kind_of(result: CUresult) -> DriverErrorKind {
    match result {
        code::CUDA_ERROR_OUT_OF_MEMORY => DriverErrorKind::OutOfMemory,
        code::CUDA_ERROR_NOT_SUPPORTED | code::CUDA_ERROR_STUB_LIBRARY => DriverErrorKind::NotSupported,
        code::CUDA_ERROR_INVALID_VALUE | code::CUDA_ERROR_INVALID_DEVICE => DriverErrorKind::InvalidValue,
        code::CUDA_ERROR_INVALID_HANDLE | code::CUDA_ERROR_INVALID_CONTEXT => DriverErrorKind::InvalidHandle,
        code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        | code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
        | code::CUDA_ERROR_STREAM_CAPTURE_MERGE
        | code::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
        | code::CUDA_ERROR_STREAM_CAPTURE_UNJOINED
        | code::CUDA_ERROR_STREAM_CAPTURE_ISOLATION
        | code::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
        | code::CUDA_ERROR_CAPTURED_EVENT
        | code::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD => DriverErrorKind::Capturing,
        code::CUDA_ERROR_DEINITIALIZED
        | code::CUDA_ERROR_NOT_INITIALIZED
        | code::CUDA_ERROR_DEVICE_UNAVAILABLE
        | code::CUDA_ERROR_ECC_UNCORRECTABLE
        | code::CUDA_ERROR_NVLINK_UNCORRECTABLE
        | code::CUDA_ERROR_CONTAINED
        | code::CUDA_ERROR_ILLEGAL_ADDRESS
        | code::CUDA_ERROR_LAUNCH_TIMEOUT
        | code::CUDA_ERROR_CONTEXT_IS_DESTROYED
        | code::CUDA_ERROR_ASSERT
        | code::CUDA_ERROR_HARDWARE_STACK_ERROR
        | code::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | code::CUDA_ERROR_MISALIGNED_ADDRESS
        | code::CUDA_ERROR_INVALID_ADDRESS_SPACE
        | code::CUDA_ERROR_INVALID_PC
        | code::CUDA_ERROR_LAUNCH_FAILED
        | code::CUDA_ERROR_TENSOR_MEMORY_LEAK
        | code::CUDA_ERROR_EXTERNAL_DEVICE
        | code::CUDA_ERROR_MPS_RPC_FAILURE
        | code::CUDA_ERROR_MPS_CLIENT_TERMINATED => DriverErrorKind::DeviceLost,
        _ => DriverErrorKind::Other,
    }
}

/// A CUDA version as the driver counts it: 12040 is 12.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(transparent)]
pub struct CudaVersion(pub i32);

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// Why the CUDA driver cannot be used at all. Every text says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// No library of the names that were tried could be loaded.
    #[error(
        "the NVIDIA driver library could not be loaded ({tried}). Install the NVIDIA driver; in a container, pass the \
         GPU in (docker run --gpus all); in WSL, add /usr/lib/wsl/lib to LD_LIBRARY_PATH"
    )]
    LibraryNotFound {
        /// The names tried, each with the loader's message.
        tried: String,
    },
    /// The library was loaded but lacks a function that gapless needs.
    #[error(
        "{library} has no function {name}: it is older than CUDA {MINIMUM_VERSION}, or not NVIDIA's driver library. \
         Update the driver, or remove the other library from LD_LIBRARY_PATH"
    )]
    MissingSymbol {
        /// The exported name that was looked up.
        name: &'static str,
        /// The file that was loaded.
        library: String,
    },
    /// The driver works but is older than the newest function that gapless needs.
    #[error("the driver is for CUDA {found}, gapless needs {needed} or newer. Update the NVIDIA driver")]
    DriverTooOld {
        /// The version that `cuDriverGetVersion` returns.
        found: CudaVersion,
        /// [`MINIMUM_VERSION`].
        needed: CudaVersion,
    },
    /// The library is the stub that the CUDA toolkit ships for linking; it can do nothing.
    #[error(
        "{library} is the CUDA toolkit's stub for linking, not a driver. Remove the folder 'stubs' from \
         LD_LIBRARY_PATH; if that finds no library, install the NVIDIA driver"
    )]
    StubLibrary {
        /// The file that was loaded.
        library: String,
    },
    /// `cuInit` failed for another reason.
    #[error("{0}. The driver is installed but does not start: check that nvidia-smi works on this machine")]
    Init(DriverError),
    /// There is a driver but no device, or `CUDA_VISIBLE_DEVICES` hides them all.
    #[error(
        "the driver (CUDA {version}) finds no GPU. Check nvidia-smi and CUDA_VISIBLE_DEVICES; in a container, pass the \
         GPU in (docker run --gpus all)"
    )]
    NoDevice {
        /// The version that `cuDriverGetVersion` returns.
        version: CudaVersion,
    },
}

/// The first version that has every required function. Virtual memory management is older (10.2). What decides is `cuStreamGetId`:
/// without it a stream that got the handle of a destroyed one cannot be told from it, unless an event is recorded at each free.
pub const MINIMUM_VERSION: CudaVersion = CudaVersion(12_000);

/// Why a device cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The driver itself cannot be used.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// There is no device with that number.
    #[error("there is no device {ordinal}: the driver has {count}, counted from 0")]
    NoSuchDevice {
        /// The number asked for.
        ordinal: u32,
        /// The number of devices.
        count: u32,
    },
    /// The device has no virtual memory management: it says so, or its driver refuses the calls as not supported.
    #[error(
        "device {ordinal} ({name}) has no virtual memory management ({reason}), so gapless cannot remap memory on it. \
         Use the plain mode (`PlainAllocator`): the same calls on cuMemAlloc, without the promise about fragmentation"
    )]
    NoVmm {
        /// The device.
        ordinal: u32,
        /// Its name.
        name: String,
        /// The attribute, or the call of the trial at opening that failed.
        reason: Cow<'static, str>,
    },
    /// The device says that it has virtual memory management, and a call of the trial at opening failed nevertheless.
    #[error(
        "device {ordinal} ({name}) failed the trial of virtual memory management at opening: {cause}. Look for Xid errors \
         in the kernel's log, and update the driver"
    )]
    Trial {
        /// The device.
        ordinal: u32,
        /// Its name.
        name: String,
        /// The driver call that failed, and why.
        cause: DriverError,
    },
    /// The trial at opening could not reserve addresses, which are the process's and not the device's.
    #[error(
        "no {needed} of addresses could be reserved for the trial of device {ordinal} at opening: {cause}. Look for a \
         limit of this process's addresses (ulimit -v)"
    )]
    NoAddresses {
        /// The device.
        ordinal: u32,
        /// The number of bytes that the trial needs.
        needed: ByteSize,
        /// The driver call that failed, and why.
        cause: DriverError,
    },
    /// A peer was requested that cannot access the device's memory.
    #[error("device {peer} cannot access memory of device {ordinal}: leave it out of the peers, or use one that can")]
    NoPeerAccess {
        /// The device whose memory it is.
        ordinal: u32,
        /// The device that would access it.
        peer: u32,
    },
    /// The trial at opening ran out of memory: other processes hold it.
    #[error("device {ordinal} has no {needed} free for the trial at opening; other processes hold its memory: {cause}")]
    DeviceFull {
        /// The device.
        ordinal: u32,
        /// The number of bytes that the check needs.
        needed: ByteSize,
        /// The driver call that failed, and why.
        cause: DriverError,
    },
    /// A driver call failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_code_is_a_number_like_any_other() {
        assert_eq!(kind_of(code(98_765)), DriverErrorKind::Other);
        assert_eq!(kind_of(code(2)), DriverErrorKind::OutOfMemory);
        assert!(kind_of(code(700)).is_sticky());
        assert!(!kind_of(code(600)).is_sticky());
    }

    #[test]
    fn errors_that_leave_the_context_unusable_lose_the_device() {
        // Memory errors that were not corrected, and faults after which `cuda.h` wants the process to be ended.
        for number in [214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721] {
            assert!(kind_of(code(number)).is_sticky(), "{number}");
        }
        // These fail one call.
        for number in [1, 2, 201, 209, 218, 221, 222, 400, 701, 720, 801, 900, 999] {
            assert!(!kind_of(code(number)).is_sticky(), "{number}");
        }
    }

    #[test]
    fn versions_read_as_people_write_them() {
        assert_eq!(CudaVersion(12_040).to_string(), "12.4");
        assert_eq!(CudaVersion(13_000).to_string(), "13.0");
    }
}
