//! The first line of an out-of-memory error, word for word and in the number formats of PyTorch's own allocator.
//!
//! Pure: figures in, text out.

use gapless::driver::MemoryInfo;
use gapless::units::{GIB, KIB, MIB};
use gapless_process::MemoryUse;
use std::fmt;

/// PyTorch's sentences on a request that failed on a device, with what the device and this process's allocators hold.
pub fn headline(ordinal: u32, bytes: u64, device: Option<MemoryInfo>, memory: MemoryUse) -> String {
    if bytes >= EXABYTE {
        return "CUDA out of memory. Tried to allocate more than 1EB memory.".to_owned();
    }
    let mut text = format!("CUDA out of memory. Tried to allocate {}.", Size(bytes));
    if let Some(device) = device {
        let (total, free) = (Size(device.total), Size(device.free));
        text += &format!(" GPU {ordinal} has a total capacity of {total} of which {free} is free.");
    }
    text.push(' ');
    if let Some(budget) = memory.set_budget {
        text += &format!("{} allowed; ", Size(budget));
    }
    text += &format!("Of the allocated memory {} is allocated by PyTorch, ", Size(memory.live));
    if memory.live_in_pools > 0 {
        text += &format!("with {} allocated in private pools (e.g., CUDA Graphs), ", Size(memory.live_in_pools));
    }
    text + &format!("and {} is reserved by PyTorch but unallocated.", Size(memory.reserved.saturating_sub(memory.live)))
}

/// A size as PyTorch prints it.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[allow(clippy::cast_precision_loss, reason = "two decimals are printed")]
        let in_units = |shift: u32| self.0 as f64 / (1_u64 << shift) as f64;
        match self.0 {
            bytes if bytes <= KIB => write!(f, "{bytes} bytes"),
            bytes if bytes <= MIB => write!(f, "{:.2} KiB", in_units(10)),
            bytes if bytes <= GIB => write!(f, "{:.2} MiB", in_units(20)),
            _ => write!(f, "{:.2} GiB", in_units(30)),
        }
    }
}

/// From here on PyTorch names no size.
const EXABYTE: u64 = 1 << 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_printed_as_pytorch_prints_them() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1024, "1024 bytes"),
            (1025, "1.00 KiB"),
            (1 << 20, "1024.00 KiB"),
            ((1 << 20) + 1, "1.00 MiB"),
            (GIB, "1024.00 MiB"),
            (20 * (1 << 20), "20.00 MiB"),
            (800_000_000 * GIB, "800000000.00 GiB"),
        ] {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }

    #[test]
    fn sentences_are_pytorchs() {
        let device = Some(MemoryInfo::new(GIB + GIB / 2, 80 * GIB));
        let memory = MemoryUse { live: 3 * GIB, live_in_pools: 0, reserved: 5 * GIB, set_budget: None };
        assert_eq!(
            headline(0, 2 * GIB, device, memory),
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 1.50 GiB is \
             free. Of the allocated memory 3.00 GiB is allocated by PyTorch, and 2.00 GiB is reserved by PyTorch but \
             unallocated."
        );
        let memory = MemoryUse { live_in_pools: GIB, set_budget: Some(6 * GIB), ..memory };
        assert_eq!(
            headline(1, 100, None, memory),
            "CUDA out of memory. Tried to allocate 100 bytes. 6.00 GiB allowed; Of the allocated memory 3.00 GiB is allocated \
             by PyTorch, with 1024.00 MiB allocated in private pools (e.g., CUDA Graphs), and 2.00 GiB is reserved by PyTorch \
             but unallocated."
        );
        assert_eq!(headline(0, 1 << 60, device, memory), "CUDA out of memory. Tried to allocate more than 1EB memory.");
    }
}
