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
    #[must_use]
    pub const fn usable_bytes(&self) -> u64 {
        self.total_bytes - CONTEXT_BYTES
    }

    /// Returns the smallest of [`GPUS`] on which an allocator can hold `bytes` bytes.
    #[must_use]
    pub fn smallest_with(bytes: u64) -> Option<&'static Self> {
        GPUS.iter().find(|gpu| gpu.usable_bytes() >= bytes)
    }
}

/// The error returned when a name is not that of a GPU in the table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{name}' is not one of the GPUs known here{near}: {}. For others, give the memory that they have", names())]
pub struct UnknownGpu {
    name: String,
    /// A question after those with similar names, if there are any.
    near: String,
}

fn names() -> String {
    GPUS.iter().map(|gpu| gpu.name).collect::<Vec<_>>().join(", ")
}

/// Returns the words of a name in small letters, without those that a driver prints around it.
fn words(name: &str) -> Vec<String> {
    let name = name.to_ascii_lowercase();
    let words =
        name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty() && !AROUND.contains(word));
    words.map(ToOwned::to_owned).collect()
}

fn is_size(word: &str) -> bool {
    word.strip_suffix("gb").is_some_and(|digits| digits.parse::<u32>().is_ok())
}

impl FromStr for Gpu {
    type Err = UnknownGpu;

    /// Finds a GPU by its name, as people say it or as drivers print it (`NVIDIA GeForce RTX 4090`, `A100-SXM4-80GB`). Case, spaces
    /// and punctuation do not matter.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wanted = words(text);
        let without_size: Vec<String> = wanted.iter().filter(|word| !is_size(word)).cloned().collect();
        let found = [&wanted, &without_size]
            .iter()
            .find_map(|wanted| GPUS.iter().find(|gpu| words(gpu.name).concat() == wanted.concat()));
        found.copied().ok_or_else(|| UnknownGpu {
            name: text.chars().take(EXCERPT_CHARS).collect(),
            near: near(&without_size.concat()),
        })
    }
}

/// Asks whether one of the GPUs was meant of whose name this is a part, or else whose name is a part of this.
fn near(wanted: &str) -> String {
    let named = |is_near: &dyn Fn(&str) -> bool| -> Vec<&str> {
        GPUS.iter().filter(|gpu| is_near(&words(gpu.name).concat())).map(|gpu| gpu.name).collect()
    };
    if wanted.len() < LEAST_NEAR {
        return String::new();
    }
    let mut near = named(&|known| known.contains(wanted));
    if near.is_empty() {
        near = named(&|known| wanted.contains(known));
    }
    if near.is_empty() { String::new() } else { format!(" (did you mean {}?)", near.join(" or ")) }
}

const fn gpu(name: &'static str, hundredths_of_gib: u64) -> Gpu {
    Gpu { name, total_bytes: hundredths_of_gib * GIB / 100 }
}

/// GPUs by the memory that they have, the smallest first. The sizes are those that published messages of PyTorch give as
/// the total capacity; with other drivers and with ECC they differ by some hundred MiB. Estimates, for which no message was found:
/// the RTX 3060, the RTX 4070, the A10, the GH200 and the B300, from what drivers list for them and keep of the others.
pub const GPUS: [Gpu; 25] = [
    gpu("RTX 4060", 760),
    gpu("RTX 3080", 978),
    gpu("RTX 2080 Ti", 1076),
    gpu("RTX 4070", 1172),
    gpu("RTX 3060", 1176),
    gpu("T4", 1456),
    gpu("RTX 4080", 1556),
    gpu("V100 16GB", 1575),
    gpu("L4", 2203),
    gpu("A10G", 2206),
    gpu("A10", 2206),
    gpu("RTX 4090", 2352),
    gpu("RTX 3090", 2369),
    gpu("RTX 5090", 3136),
    gpu("V100 32GB", 3174),
    gpu("A100 40GB", 3939),
    gpu("L40S", 4439),
    gpu("RTX A6000", 4740),
    gpu("H100", 7914),
    gpu("A100 80GB", 7915),
    gpu("GH200", 9450),
    gpu("RTX PRO 6000", 9497),
    gpu("H200", 13972),
    gpu("B200", 17835),
    gpu("B300", 26700),
];

/// Words that drivers print beside a name.
const AROUND: [&str; 18] = [
    "nvidia",
    "geforce",
    "tesla",
    "quadro",
    "graphics",
    "gpu",
    "sxm",
    "sxm2",
    "sxm3",
    "sxm4",
    "sxm5",
    "pcie",
    "hbm2",
    "hbm2e",
    "hbm3",
    "hbm3e",
    "blackwell",
    "edition",
];
/// Fewest characters of a part of a name that suggests it.
const LEAST_NEAR: usize = 3;
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
            let smallest = Gpu::smallest_with(gpu.usable_bytes()).unwrap();
            assert_eq!(smallest.total_bytes, gpu.total_bytes, "{}", gpu.name);
        }
        assert_eq!("rtx-4090".parse::<Gpu>().unwrap().name, "RTX 4090");
        for (printed, name) in [
            ("NVIDIA GeForce RTX 4090", "RTX 4090"),
            ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
            ("Tesla V100-SXM2-16GB", "V100 16GB"),
            ("NVIDIA H100 80GB HBM3", "H100"),
            ("NVIDIA GH200 480GB", "GH200"),
            ("NVIDIA RTX A6000", "RTX A6000"),
        ] {
            assert_eq!(printed.parse::<Gpu>().unwrap().name, name);
        }
        // Cards with as much memory as another one of nearly the same name are not that one.
        for other in ["RTX 3060 Ti", "NVIDIA GeForce RTX 4090 Laptop GPU", "A100", "H100 NVL"] {
            let error = other.parse::<Gpu>().unwrap_err().to_string();
            assert!(error.contains("did you mean"), "{error}");
        }
        assert!("A100".parse::<Gpu>().unwrap_err().to_string().contains("A100 40GB or A100 80GB?"));
        assert!("RTX 9090".parse::<Gpu>().unwrap_err().to_string().contains("RTX 4090"));
        assert_eq!(Gpu::smallest_with(u64::MAX), None);
    }
}
