//! Current GPUs, and how much of their memory a process can allocate.

use gapless::units::{GIB, MIB};
use std::str::FromStr;

/// A GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its name, as people say it.
    pub name: &'static str,
    /// Memory that its driver reports in all, in bytes.
    total_bytes: u64,
}

impl Gpu {
    /// Returns the memory that a process can allocate, in bytes: what the driver reports less a context of a program that
    /// uses PyTorch.
    pub const fn usable_bytes(&self) -> u64 {
        self.total_bytes - CONTEXT_BYTES
    }

    /// Returns the smallest of [`GPUS`] on which an allocator can hold `bytes` bytes.
    pub fn smallest_with(bytes: u64) -> Option<&'static Self> {
        GPUS.iter().find(|gpu| gpu.usable_bytes() >= bytes)
    }
}

/// The error returned when a name is not that of a GPU in the table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{name}' is not one of the GPUs known here: {}. For others, give the memory that they have with --device",
    names()
)]
pub struct UnknownGpu {
    name: String,
}

fn names() -> String {
    GPUS.iter().map(|gpu| gpu.name).collect::<Vec<_>>().join(", ")
}

impl FromStr for Gpu {
    type Err = UnknownGpu;

    /// Finds a GPU by its name. Case, spaces and punctuation do not matter.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let plain =
            |name: &str| name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
        let wanted = plain(text);
        let found = GPUS.iter().find(|gpu| plain(gpu.name) == wanted);
        found.copied().ok_or_else(|| UnknownGpu { name: text.chars().take(EXCERPT_CHARS).collect() })
    }
}

const fn gpu(name: &'static str, hundredths_of_gib: u64) -> Gpu {
    Gpu { name, total_bytes: hundredths_of_gib * GIB / 100 }
}

/// GPUs by the memory that they have, the smallest first. The sizes are those that published messages of PyTorch give as
/// the total capacity; with other drivers and with ECC they differ by some hundred MiB.
pub const GPUS: [Gpu; 15] = [
    gpu("RTX 4060", 760),
    gpu("T4", 1456),
    gpu("RTX 4080", 1556),
    gpu("L4", 2203),
    gpu("A10G", 2206),
    gpu("RTX 4090", 2352),
    gpu("RTX 5090", 3136),
    gpu("A100 40GB", 3939),
    gpu("L40S", 4439),
    gpu("RTX A6000", 4740),
    gpu("H100", 7914),
    gpu("A100 80GB", 7915),
    gpu("RTX PRO 6000", 9497),
    gpu("H200", 13972),
    gpu("B200", 17835),
];

/// Memory that a CUDA context with PyTorch's kernels takes: about this much on current GPUs.
const CONTEXT_BYTES: u64 = 500 * MIB;
/// Characters of an unknown name that its error shows.
const EXCERPT_CHARS: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_order_and_every_name_is_found() {
        assert!(GPUS.is_sorted_by_key(|gpu| gpu.total_bytes));
        for gpu in GPUS {
            assert_eq!(gpu.name.parse(), Ok(gpu));
            assert_eq!(Gpu::smallest_with(gpu.usable_bytes()), Some(&gpu), "{}", gpu.name);
        }
        assert_eq!("rtx-4090".parse::<Gpu>().unwrap().name, "RTX 4090");
        assert!("RTX 9090".parse::<Gpu>().unwrap_err().to_string().contains("RTX 4090"));
        assert_eq!(Gpu::smallest_with(u64::MAX), None);
    }
}
