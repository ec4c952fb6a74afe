//! Settings of an allocator: the C struct, and what is left of it once checked.

use crate::abi::optional_text;
use crate::status::{Answer, Failure};
use gapless::ChunkPolicy;
use gapless::driver::cuda::CudaDriver;
use gapless_process::{Budget, Error, Recorded, Settings};
use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::sync::Arc;

/// Settings of an allocator. Set every byte to 0, then size to sizeof(gapless_config), then what you want to choose; 0 is
/// the default of every field. Fields are only added at the end: those that an older program does not know have their
/// defaults, and those that this library does not know have to be 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gapless_config {
    /// sizeof(gapless_config): distinguishes versions of this struct.
    pub size: u64,
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

/// A caller's struct, checked; `None` is the default.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Config {
    pub device: u32,
    pub peers: Vec<u32>,
    pub settings: Settings,
    pub library: Option<std::path::PathBuf>,
}

impl Config {
    /// Reads a caller's struct.
    ///
    /// # Safety
    /// `config` is null or points to as many readable bytes as its first field says; its pointers are null or valid.
    pub unsafe fn read(config: *const gapless_config) -> Answer<Self> {
        if config.is_null() {
            return Err(Failure::argument("the config is null"));
        }
        // SAFETY: not null, and the function's contract.
        let config = unsafe { known_part(config) }?;
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
            (0, part) => Some(Budget::fraction(part).ok_or(Error::Fraction(part))?),
            (bytes, _) => Some(Budget::Bytes(bytes)),
        };
        let nonzero = |bytes: u64| (bytes != 0).then_some(bytes);
        Ok(Self {
            device: ordinal(config.device)?,
            peers,
            settings: Settings {
                budget,
                slack: (config.slack != 0.0).then_some(config.slack),
                chunk: nonzero(config.chunk_bytes).map(ChunkPolicy::Fixed),
                region_bytes: nonzero(config.region_bytes),
            },
            // SAFETY: null or a NUL-terminated string (the function's contract).
            library: unsafe { optional_text(config.library) }?.map(Into::into),
        })
    }

    /// Opens the device and builds an allocator on it.
    pub fn build(&self) -> Answer<Recorded<CudaDriver>> {
        let mut driver = CudaDriver::builder().device(self.device).peers(self.peers.iter().copied());
        if let Some(library) = &self.library {
            // SAFETY: the caller's part, as `gapless.h` says.
            driver = unsafe { driver.library(library) };
        }
        // SAFETY: only the allocator calls it, and this crate, with streams that its callers vouch for.
        let driver = unsafe { driver.open() }?;
        Ok(Recorded::new(self.settings.build_on(Arc::new(driver))?))
    }
}

/// Returns the part that this version knows of a caller's struct, which may be an older or a newer version's.
///
/// # Safety
/// `config` points to as many readable bytes as its first field says.
unsafe fn known_part(config: *const gapless_config) -> Answer<gapless_config> {
    let own = size_of::<gapless_config>();
    // SAFETY: it points to at least the first field (the function's contract).
    let size = unsafe { config.cast::<u64>().read_unaligned() };
    let is_one = |size: &usize| {
        (size_of::<u64>()..=MOST_BYTES).contains(size) && size.is_multiple_of(align_of::<gapless_config>())
    };
    let Some(size) = usize::try_from(size).ok().filter(is_one) else {
        return Err(Failure::argument(format!(
            "the config says it has {size} bytes, this library's has {own}: set every byte to 0 and size to \
             sizeof(gapless_config)"
        )));
    };
    let bytes = config.cast::<u8>();
    for at in own..size {
        // SAFETY: below `size` (the function's contract).
        if unsafe { bytes.wrapping_add(at).read() } != 0 {
            return Err(Failure::argument(format!(
                "the config has a setting at byte {at} that this library does not know, its config has {own} bytes: leave \
                 that setting at 0, or use the library of the header that the program was compiled with"
            )));
        }
    }
    let mut known = MaybeUninit::<gapless_config>::zeroed();
    // SAFETY: `bytes` has `size` bytes (the function's contract), `known` has `own`.
    unsafe { std::ptr::copy_nonoverlapping(bytes, known.as_mut_ptr().cast::<u8>(), size.min(own)) };
    // SAFETY: every byte is initialised, and numbers and pointers may have any value.
    Ok(unsafe { known.assume_init() })
}

/// Most bytes that a struct may say it has: more is a struct that was not filled in.
const MOST_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    /// A struct with further bytes behind it.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Newer {
        config: gapless_config,
        tail: [u64; 3],
    }

    fn newer(size: usize) -> Newer {
        let config = gapless_config {
            size: size as u64,
            device: 3,
            peer_count: 0,
            peers: std::ptr::null(),
            budget_bytes: 5 << 30,
            budget_fraction: 0.0,
            slack: 1.5,
            chunk_bytes: 4 << 20,
            region_bytes: 7 << 30,
            library: c"libcuda.so.1".as_ptr(),
        };
        Newer { config, tail: [0; 3] }
    }

    fn read(config: &Newer) -> Answer<Config> {
        // SAFETY: no size below is larger than `Newer`, and `library` is a string.
        unsafe { Config::read((&raw const *config).cast()) }
    }

    #[test]
    fn programs_with_an_older_header_get_defaults() {
        let own = size_of::<gapless_config>();
        let all = read(&newer(own)).unwrap();
        assert_eq!((all.device, all.settings.region_bytes), (3, Some(7 << 30)));
        let until_chunk_bytes = std::mem::offset_of!(gapless_config, region_bytes);
        let settings = Settings { region_bytes: None, ..all.settings };
        let expected = Config { library: None, settings, ..all.clone() };
        assert_eq!(read(&newer(until_chunk_bytes)).unwrap(), expected);
        assert_eq!(read(&newer(size_of::<u64>())).unwrap(), Config::default());
    }

    #[test]
    fn programs_with_a_newer_header_are_served_as_far_as_the_settings_are_known() {
        let own = size_of::<gapless_config>();
        let mut config = newer(own + 24);
        assert_eq!(read(&config).unwrap(), read(&newer(own)).unwrap());
        for (word, byte) in [(0, 0), (2, 7)] {
            config.tail = [0; 3];
            config.tail[word] = 1 << (8 * byte);
            let text = read(&config).unwrap_err().text;
            assert!(text.contains(&format!("at byte {}", own + 8 * word + byte)), "{text}");
        }
    }

    #[test]
    fn a_struct_that_was_not_filled_in_is_refused() {
        for size in [0, 7, 44, 1 << 20, usize::MAX] {
            let text = read(&newer(size)).unwrap_err().text;
            assert!(text.contains(&format!("says it has {size} bytes")) && text.contains("sizeof"), "{text}");
        }
    }
}
