//! The C struct of settings, checked once.

use crate::instance::Instance;
use crate::status::{Answer, Failure};
use gapless::driver::MemoryDriver;
use gapless::driver::cuda::CudaDriver;
use gapless::{Allocator, ChunkPolicy};
use std::ffi::{CStr, c_char};
use std::sync::Arc;

/// Settings of an allocator. Set every byte to 0, then size to sizeof(gapless_config), then what you want to choose:
/// 0 is the default everywhere.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gapless_config {
    /// sizeof(gapless_config): tells versions of this struct apart.
    pub size: usize,
    /// The device, counted from 0 after CUDA_VISIBLE_DEVICES.
    pub device: i32,
    /// How many peers there are.
    pub peer_count: u32,
    /// Devices that get access to all memory beside the device itself.
    pub peers: *const i32,
    /// The most bytes to hold. 0: what the device has free now, or budget_fraction of it.
    pub budget_bytes: u64,
    /// The budget as a part of the device's memory, above 0 and at most 1. Only where budget_bytes is 0.
    pub budget_fraction: f64,
    /// Held bytes over the peak of live bytes from which on free memory is remapped rather than new memory taken; at
    /// least 1. 0: 1.10.
    pub slack: f64,
    /// Bytes of every physical chunk. 0: chosen as memory gets short.
    pub chunk_bytes: u64,
    /// Bytes of addresses to reserve for each stream and kind of block; also the largest possible request. 0: four times
    /// the budget.
    pub region_bytes: u64,
    /// Path of the driver library. NULL: the installed one.
    pub library: *const c_char,
}

/// Settings in Rust's terms.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Settings {
    pub device: u32,
    pub peers: Vec<u32>,
    pub budget: Option<Budget>,
    pub slack: Option<f64>,
    pub chunk: Option<ChunkPolicy>,
    pub region_bytes: Option<u64>,
    pub library: Option<std::path::PathBuf>,
}

/// The most that may be held.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// So many bytes.
    Bytes(u64),
    /// So much of the device's memory.
    Fraction(f64),
}

impl Budget {
    /// A part of a device.
    pub(crate) fn fraction(part: f64) -> Answer<Self> {
        if part > 0.0 && part <= 1.0 {
            Ok(Self::Fraction(part))
        } else {
            Err(Failure::argument(format!("a budget of {part} of the device: give a fraction above 0 and at most 1")))
        }
    }

    /// In bytes of a device of `total`.
    #[allow(clippy::cast_precision_loss, reason = "devices are far below 2^53 bytes")]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a u64")]
    pub(crate) fn of(self, total: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Fraction(part) => (total as f64 * part) as u64,
        }
    }
}

impl Settings {
    /// Reads a caller's struct.
    ///
    /// # Safety
    /// `config` is null or points to as many readable bytes as its first field says; its pointers are null or valid.
    pub unsafe fn read(config: *const gapless_config) -> Answer<Self> {
        if config.is_null() {
            return Err(Failure::argument("the config is null"));
        }
        // SAFETY: not null, so it points to at least the first field (the function's contract).
        let size = unsafe { config.cast::<usize>().read_unaligned() };
        if size != size_of::<gapless_config>() {
            return Err(Failure::argument(format!(
                "the config says it has {size} bytes, this library's has {}: set every byte to 0 and size to \
                 sizeof(gapless_config), and compile with this library's header",
                size_of::<gapless_config>()
            )));
        }
        // SAFETY: as many readable bytes as the struct has (checked just above against the function's contract).
        let config = unsafe { config.read_unaligned() };
        let ordinal = |device: i32| {
            u32::try_from(device).map_err(|_| Failure::argument(format!("{device} is not the number of a device")))
        };
        let mut peers = Vec::new();
        for index in 0..config.peer_count as usize {
            if config.peers.is_null() {
                return Err(Failure::argument("peer_count is not 0 and peers is null"));
            }
            // SAFETY: `peers` points to `peer_count` numbers (the function's contract).
            let peer = unsafe { config.peers.wrapping_add(index).read_unaligned() };
            peers.push(ordinal(peer)?);
        }
        let budget = match (config.budget_bytes, config.budget_fraction) {
            (0, 0.0) => None,
            (0, part) => Some(Budget::fraction(part)?),
            (bytes, _) => Some(Budget::Bytes(bytes)),
        };
        let nonzero = |bytes: u64| (bytes != 0).then_some(bytes);
        Ok(Self {
            device: ordinal(config.device)?,
            peers,
            budget,
            slack: (config.slack != 0.0).then_some(config.slack),
            chunk: nonzero(config.chunk_bytes).map(ChunkPolicy::Fixed),
            region_bytes: nonzero(config.region_bytes),
            // SAFETY: null or a NUL-terminated string (the function's contract).
            library: unsafe { optional_text(config.library) }?.map(Into::into),
        })
    }

    /// Opens the device and builds an allocator on it.
    pub fn build(&self) -> Answer<Instance> {
        let mut driver = CudaDriver::builder().device(self.device).peers(self.peers.iter().copied());
        if let Some(library) = &self.library {
            driver = driver.library(library);
        }
        self.build_on(Arc::new(driver.open()?)).map(Instance::new)
    }

    /// Builds an allocator on an open device.
    pub fn build_on(&self, driver: Arc<CudaDriver>) -> Answer<Allocator<CudaDriver>> {
        let total = driver.memory_info()?.total;
        let mut builder = Allocator::builder(driver);
        if let Some(budget) = self.budget {
            builder = builder.budget(budget.of(total));
        }
        if let Some(slack) = self.slack {
            builder = builder.slack(slack);
        }
        if let Some(chunk) = self.chunk {
            builder = builder.chunk_policy(chunk);
        }
        if let Some(bytes) = self.region_bytes {
            builder = builder.region_bytes(bytes);
        }
        Ok(builder.build()?)
    }
}

/// A caller's string; `None` for null.
///
/// # Safety
/// `text` is null or points to a NUL-terminated string that nobody changes during the call.
pub(crate) unsafe fn optional_text(text: *const c_char) -> Answer<Option<String>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, so NUL-terminated (the function's contract).
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(|text| Some(text.to_owned())).map_err(|_| Failure::argument("a text that is not UTF-8"))
}

/// A caller's string that must be there.
///
/// # Safety
/// As [`optional_text`].
pub(crate) unsafe fn text(text: *const c_char, what: &str) -> Answer<String> {
    // SAFETY: the same contract.
    unsafe { optional_text(text) }?.ok_or_else(|| Failure::argument(format!("the {what} is null")))
}
