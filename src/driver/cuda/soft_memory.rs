//! Free memory of devices that share it with the machine's processors.
//!
//! There `cuMemGetInfo` leaves out what the kernel would give back: file caches, and on some machines swap. On an integrated device
//! (Jetson, DGX Spark) it can be most of the memory (vllm#35313, llama.cpp#17368). So what the kernel calls available counts as
//! free, and `cuMemCreate` decides whether it is.
//!
//! Cost: a small file is read for each question.

use super::device::DeviceInfo;
use crate::driver::MemoryInfo;
use crate::units::KIB;
use std::fs;

/// Returns what is free on the device, with what the kernel would give back.
pub(super) fn with_available(info: &DeviceInfo, told: MemoryInfo) -> MemoryInfo {
    let available = match (info.integrated, info.memory_node) {
        (true, _) => fs::read_to_string("/proc/meminfo").ok().and_then(|text| field(&text, "MemAvailable:")),
        (false, Some(node)) => {
            let text = fs::read_to_string(format!("/sys/devices/system/node/node{node}/meminfo"));
            // A node has no sum of its own. The page cache of files is what can be given back.
            text.ok().and_then(|text| Some(field(&text, "MemFree:")? + field(&text, "FilePages:").unwrap_or(0)))
        }
        (false, None) => None,
    };
    MemoryInfo { free: told.free.max(available.unwrap_or(0).min(told.total)), ..told }
}

/// The bytes of a field in the kernel's text, which counts in KiB.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut words = text.split_whitespace().skip_while(|word| *word != name);
    words.nth(1)?.parse::<u64>().ok()?.checked_mul(KIB)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::GIB;

    #[test]
    fn fields_are_read_as_the_kernel_writes_them() {
        let machine = "MemTotal:       24576000 kB\nMemFree:          204800 kB\nMemAvailable:   20480000 kB\n";
        assert_eq!(field(machine, "MemAvailable:"), Some(20_480_000 * KIB));
        let node = "Node 1 MemTotal:       100663296 kB\nNode 1 MemFree:         1048576 kB\nNode 1 FilePages:      2097152 kB\n";
        assert_eq!((field(node, "MemFree:"), field(node, "FilePages:")), (Some(GIB), Some(2 * GIB)));
        for text in ["", "MemAvailable:", "MemAvailable: much kB", "MemAvailable: 99999999999999999999 kB"] {
            assert_eq!(field(text, "MemAvailable:"), None, "{text}");
        }
    }
}
