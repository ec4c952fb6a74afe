//! Settings of an allocator: the C struct, and what is left of it once checked.

use crate::instance::Instance;
use crate::status::{Answer, Failure};
use gapless::allocator::Builder;
use gapless::driver::MemoryDriver;
use gapless::driver::cuda::CudaDriver;
use gapless::{Allocator, ChunkPolicy};
use std::ffi::{CStr, c_char};
use std::sync::Arc;

/// Settings of an allocator. Set every byte to 0, then size to sizeof(gapless_config), then what you want to choose; 0 is
/// the default of every field.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gapless_config {
    /// sizeof(gapless_config): tells versions of this struct apart.
    pub size: usize,
    /// The device, counted from 0 after CUDA_VISIBLE_DEVICES.
    pub device: i32,
    /// Number of entries in peers.
    pub peer_count: u32,
    /// Other devices that get access to all memory of the allocator.
    pub peers: *const i32,
    /// The largest number of bytes to hold. 0: budget_fraction of the device, or what it has free now if that is 0, too.
    pub budget_bytes: u64,
    /// The budget as a fraction of the device's memory, above 0 and at most 1. Used only if budget_bytes is 0.
    pub budget_fraction: f64,
    /// Held bytes divided by the peak of live bytes; above this, free memory is remapped before new memory is taken. At
    /// least 1. 0: 1.10.
    pub slack: f64,
    /// Bytes of every physical chunk. 0: the allocator chooses, smaller ones as memory gets short.
    pub chunk_bytes: u64,
    /// Bytes of addresses to reserve for each stream and kind of block, which is also the largest possible request. 0: four
    /// times the budget.
    pub region_bytes: u64,
    /// Path of the CUDA driver library. NULL: the installed one.
    pub library: *const c_char,
}

/// Checked settings; `None` is the default.
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

/// The largest number of bytes to hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// A number of bytes.
    Bytes(u64),
    /// A fraction of the device's memory, above 0 and at most 1.
    Fraction(f64),
}

impl Budget {
    /// A budget that is a fraction of a device.
    pub(crate) fn fraction(part: f64) -> Answer<Self> {
        if part > 0.0 && part <= 1.0 {
            Ok(Self::Fraction(part))
        } else {
            Err(Failure::argument(format!("a budget of {part} of the device: give a fraction above 0 and at most 1")))
        }
    }

    /// The budget in bytes on a device with `total` bytes.
    #[allow(clippy::cast_precision_loss, reason = "devices are far below 2^53 bytes")]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most a u64")]
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
        Ok(self.builder_on(driver)?.build()?)
    }

    /// Builds an allocator on an open device for memory that captured graphs use.
    pub fn build_for_graphs(&self, driver: Arc<CudaDriver>) -> Answer<Allocator<CudaDriver>> {
        let total = driver.memory_info()?.total;
        let budget = self.budget.map_or(total, |budget| budget.of(total));
        // A process may have a pool for each of its graphs, and most of these are small.
        Ok(self.builder_on(driver)?.keep_mappings().first_region_bytes(budget / 2).build()?)
    }

    fn builder_on(&self, driver: Arc<CudaDriver>) -> Answer<Builder<CudaDriver>> {
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
        Ok(builder)
    }
}

/// Reads a caller's string; `None` for null.
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

/// Reads a caller's string, which must not be null.
///
/// # Safety
/// As [`optional_text`].
pub(crate) unsafe fn text(text: *const c_char, what: &str) -> Answer<String> {
    // SAFETY: the same contract.
    unsafe { optional_text(text) }?.ok_or_else(|| Failure::argument(format!("the {what} is null")))
}
