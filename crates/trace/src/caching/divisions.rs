//! `roundup_power2_divisions`: into how many steps the sizes between two powers of two are divided, for each of these ranges.

use gapless::units::MIB;
use std::fmt;

/// The divisions of each range of sizes: the first is that of sizes below 2 MiB, each further one that of the sizes from a power of
/// two to the next, and the last that of 32 GiB and more. 0 and 1 are off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Divisions([u32; RANGES]);

impl Divisions {
    /// Returns the divisions for a request of `bytes` bytes, or `None` where its range is not divided
    /// (`roundup_power2_divisions` with a size).
    pub(super) fn of(&self, bytes: u64) -> Option<u64> {
        let range = (bytes / MIB).checked_ilog2().map_or(0, |range| range as usize);
        let divisions = self.0[range.min(RANGES - 1)];
        (divisions > 1).then_some(divisions.into())
    }

    /// Returns whether no range is divided.
    #[must_use]
    pub fn are_off(&self) -> bool {
        self.0.iter().all(|&divisions| divisions <= 1)
    }

    /// Reads one number for all ranges, or a list in brackets. Returns `None` for what PyTorch refuses.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if let Some(list) = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
            return Self::list(list);
        }
        let divisions = text.parse().ok().filter(|&number| is_power(number))?;
        Some(Self([divisions; RANGES]))
    }

    /// Reads a list such as `256:1,512:2,>:4`, without its brackets: each range is named by the MiB that it begins with. The first
    /// pair counts for all smaller sizes too, and `>` for all ranges after the one before it (`parseRoundUpPower2Divisions`).
    fn list(text: &str) -> Option<Self> {
        let mut found = Self::default();
        let mut last = None;
        for pair in text.split(',') {
            let (from, divisions) = pair.split_once(':')?;
            let divisions: u32 = divisions.trim().parse().ok().filter(|&number| number == 0 || is_power(number))?;
            if from.trim() == ">" {
                found.0[last.map_or(1, |last| last + 1)..].fill(divisions);
                continue;
            }
            let mebibytes: u32 = from.trim().parse().ok().filter(|&number| is_power(number))?;
            let range = (mebibytes.ilog2() as usize).min(RANGES - 1);
            let from = if last.is_none() { 0 } else { range };
            found.0[from..=range].fill(divisions);
            last = Some(range);
        }
        Some(found)
    }
}

fn is_power(number: u32) -> bool {
    number.is_power_of_two()
}

/// One number if all ranges have it, or else the shortest list.
impl fmt::Display for Divisions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let run = |of: u32, mut ranges: Box<dyn Iterator<Item = &u32> + '_>| ranges.position(|&other| other != of);
        let Some(first) = run(self.0[0], Box::new(self.0.iter())) else { return write!(f, "{}", self.0[0]) };
        let rest = run(self.0[RANGES - 1], Box::new(self.0.iter().rev())).map_or(0, |length| RANGES - length);
        write!(f, "[")?;
        for range in first - 1..rest {
            write!(f, "{}:{},", 1_u64 << range, self.0[range])?;
        }
        write!(f, ">:{}]", self.0[RANGES - 1])
    }
}

/// `kRoundUpPowerOfTwoIntervals`: from 1 MiB to 64 GiB.
const RANGES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use gapless::units::GIB;

    fn of(text: &str) -> Divisions {
        Divisions::parse(text).unwrap_or_else(|| panic!("{text}"))
    }

    #[test]
    fn one_number_is_for_all_sizes() {
        for bytes in [512, MIB, 300 * MIB, 1 << 45] {
            assert_eq!(of("8").of(bytes), Some(8), "{bytes}");
            assert_eq!(of("1").of(bytes), None, "{bytes}");
        }
        assert!(of("1").are_off() && of("[256:0,>:1]").are_off() && !of("[256:1,>:4]").are_off());
    }

    /// What PyTorch makes of the lists in its documentation and its tests.
    #[test]
    fn a_list_is_read_as_pytorch_reads_it() {
        let list = of("[256:1,512:2,1024:4,>:8]");
        for (bytes, divisions) in [
            (1000, None),
            (300 * MIB, None),
            (512 * MIB, Some(2)),
            (GIB - 1, Some(2)),
            (GIB, Some(4)),
            (2 * GIB - 1, Some(4)),
            (2 * GIB, Some(8)),
            (1 << 45, Some(8)),
        ] {
            assert_eq!(list.of(bytes), divisions, "{bytes}");
        }
        // Ranges that are not named stay off, and so do those after the last.
        let gaps = of("[64:8,256:4]");
        assert_eq!(
            [1, 64, 128, 256, 512].map(|mebibytes| gaps.of(mebibytes * MIB)),
            [Some(8), Some(8), None, Some(4), None]
        );
    }

    #[test]
    fn what_is_read_is_written_again() {
        for text in ["8", "1", "[256:1,>:8]", "[256:1,512:2,1024:4,>:8]", "[64:8,128:0,256:4,>:0]"] {
            assert_eq!(of(text).to_string(), text);
        }
        assert_eq!(of("[1:4,2:4,>:4]").to_string(), "4");
    }

    #[test]
    fn what_pytorch_refuses_is_refused() {
        for text in ["", "7", "[", "[]", "[256]", "[256:3]", "[100:2]", "[256:1,]", "[a:1]", "-8", "[256:1"] {
            assert_eq!(Divisions::parse(text), None, "{text}");
        }
    }
}
