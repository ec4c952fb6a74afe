//! Devices by name, with their memory.

use gapless::ByteSize;
use gapless::units::MIB;
use std::fmt;
use std::str::FromStr;

/// A device that is known by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownDevice {
    model: &'static str,
    /// As it is sold.
    size: &'static str,
    memory_mib: u64,
}

/// The H100 says what it has to programs; of the others it is what `nvidia-smi` shows, which may be a little more.
const DEVICES: [KnownDevice; 10] = [
    KnownDevice { model: "H200", size: "141GB", memory_mib: 143_771 },
    KnownDevice { model: "H100", size: "80GiB", memory_mib: 81_079 },
    KnownDevice { model: "A100", size: "80GiB", memory_mib: 81_920 },
    KnownDevice { model: "A100", size: "40GiB", memory_mib: 40_960 },
    KnownDevice { model: "L40S", size: "48GiB", memory_mib: 46_068 },
    KnownDevice { model: "L4", size: "24GiB", memory_mib: 23_034 },
    KnownDevice { model: "A10", size: "24GiB", memory_mib: 23_028 },
    KnownDevice { model: "T4", size: "16GiB", memory_mib: 15_360 },
    KnownDevice { model: "RTX 5090", size: "32GiB", memory_mib: 32_607 },
    KnownDevice { model: "RTX 3090", size: "24GiB", memory_mib: 24_576 },
];

impl KnownDevice {
    /// All of its memory.
    pub fn memory(self) -> ByteSize {
        ByteSize(self.memory_mib * MIB)
    }
}

impl fmt::Display for KnownDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.model, self.size)
    }
}

impl FromStr for KnownDevice {
    type Err = String;

    /// Takes a name as people write it: in capitals or not, with or without blanks, `GB` for `GiB`, and without the size where only
    /// one device has the name.
    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = plain(text);
        let is_named =
            |device: &&Self| [device.model.to_owned(), device.to_string()].iter().any(|it| plain(it) == wanted);
        match DEVICES.iter().filter(is_named).collect::<Vec<_>>()[..] {
            [device] => Ok(*device),
            [] => Err(format!("no such device is known. Known are {}; --capacity takes any size", names(&DEVICES))),
            ref several => Err(format!("there are several: {}", names(several.iter().copied()))),
        }
    }
}

/// The names of all devices that are known, with commas between them.
pub fn all_names() -> String {
    names(&DEVICES)
}

fn names<'a>(devices: impl IntoIterator<Item = &'a KnownDevice>) -> String {
    devices.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Letters and digits alone, with one way to write a size.
fn plain(text: &str) -> String {
    let kept = text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase());
    kept.collect::<String>().replace("gib", "gb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_found_as_people_write_it() {
        for text in ["H100 80GiB", "h100", "H100-80GB", " H100 80 gb "] {
            assert_eq!(text.parse::<KnownDevice>().unwrap().memory_mib, 81_079, "{text}");
        }
        assert_eq!("a10".parse::<KnownDevice>().unwrap().memory_mib, 23_028);
        assert_eq!("A100 40GB".parse::<KnownDevice>().unwrap().memory_mib, 40_960);
    }

    #[test]
    fn two_sizes_of_one_name_are_both_named() {
        let error = "A100".parse::<KnownDevice>().unwrap_err();
        assert_eq!(error, "there are several: A100 80GiB, A100 40GiB");
    }

    #[test]
    fn an_unknown_device_is_refused_with_those_that_are_known() {
        for text in ["", "H1000", "80GiB", "gb"] {
            let error = text.parse::<KnownDevice>().unwrap_err();
            assert!(error.contains("H100 80GiB, A100 80GiB"), "{text}: {error}");
        }
    }
}
