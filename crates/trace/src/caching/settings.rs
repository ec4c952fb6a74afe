//! The settings of PyTorch's allocator that change what it does, in the notation of `PYTORCH_ALLOC_CONF`.

use super::divisions::Divisions;
use super::rounding::LARGE_SEGMENT_BYTES;
use gapless::units::MIB;
use std::fmt;
use std::str::FromStr;

/// Settings of a [`CachingAllocator`](super::CachingAllocator). The default ones are PyTorch's.
///
/// As text, settings are `key:value` pairs with commas between them, and `native` stands for the default ones.
/// `torch.cuda.empty_cache()` among them stands for a program that calls it at the end of each step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CachingSettings {
    /// `expandable_segments`: segments grow by mapping memory at their end.
    pub expandable_segments: bool,
    /// `max_split_size_mb`, in bytes: larger blocks are not split. `None` is no limit.
    pub max_split_bytes: Option<u64>,
    /// `roundup_power2_divisions`: sizes are rounded up to one of so many steps between powers of two. `None` is off.
    pub roundup_divisions: Option<Divisions>,
    /// `garbage_collection_threshold`: the part of the allowed memory above which old blocks are freed. Without
    /// [`memory_fraction`](Self::memory_fraction) it has no effect, as in PyTorch.
    pub garbage_collection_threshold: Option<f64>,
    /// `per_process_memory_fraction`: the part of the device's memory that may be reserved. `None` is no limit.
    pub memory_fraction: Option<f64>,
    /// The program calls `torch.cuda.empty_cache()` at the end of each step.
    pub empties_cache: bool,
}

impl fmt::Display for CachingSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs = [
            self.expandable_segments.then(|| format!("{EXPANDABLE}:True")),
            self.max_split_bytes.map(|bytes| format!("{MAX_SPLIT}:{}", bytes / MIB)),
            self.roundup_divisions.map(|divisions| format!("{ROUNDUP}:{divisions}")),
            self.garbage_collection_threshold.map(|threshold| format!("{THRESHOLD}:{threshold}")),
            self.memory_fraction.map(|fraction| format!("{FRACTION}:{fraction}")),
            self.empties_cache.then(|| EMPTY_CACHE.to_owned()),
        ];
        let pairs: Vec<String> = pairs.into_iter().flatten().collect();
        f.pad(&if pairs.is_empty() { NATIVE.to_owned() } else { pairs.join(",") })
    }
}

/// The error returned when a text is not a setting that is modelled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{part}' is not a setting that can be replayed: use {expected}")]
pub struct ParseSettingsError {
    part: String,
    expected: &'static str,
}

impl FromStr for CachingSettings {
    type Err = ParseSettingsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut settings = Self::default();
        if text == NATIVE {
            return Ok(settings);
        }
        for part in Self::parts(text).filter(|part| !Self::changes_nothing(part)) {
            settings.set(part)?;
        }
        Ok(settings)
    }
}

impl CachingSettings {
    /// Returns the parts of a text: what is between commas that are not in brackets. PyTorch takes a comma at the end.
    pub fn parts(text: &str) -> impl Iterator<Item = &str> {
        let text = text.strip_suffix(',').unwrap_or(text);
        let mut depth = 0_u32;
        let parts = text.split(move |char| {
            match char {
                '[' => depth += 1,
                ']' => depth = depth.saturating_sub(1),
                _ => {}
            }
            char == ',' && depth == 0
        });
        parts.map(str::trim)
    }

    /// Returns whether PyTorch takes a `key:value` pair that makes no difference to which memory is held and served.
    #[must_use]
    pub fn changes_nothing(part: &str) -> bool {
        let (key, value) = part.split_once(':').unwrap_or((part, ""));
        let (key, value) = (key.trim(), value.trim());
        !value.is_empty() && (NEUTRAL.contains(&key) || (key == BACKEND && value == NATIVE))
    }

    /// Returns whether the allocator asks how much memory the device has: for a part of it, or to reserve addresses for all.
    pub(crate) const fn asks_for_the_capacity(&self) -> bool {
        self.memory_fraction.is_some() || self.expandable_segments
    }

    fn set(&mut self, part: &str) -> Result<(), ParseSettingsError> {
        let wrong = |expected| ParseSettingsError { part: part.chars().take(EXCERPT_CHARS).collect(), expected };
        if part == EMPTY_CACHE {
            self.empties_cache = true;
            return Ok(());
        }
        let (key, value) = part.split_once(':').ok_or_else(|| wrong(ANY))?;
        let (key, value) = (key.trim(), value.trim());
        match key {
            EXPANDABLE => {
                self.expandable_segments = match value {
                    "True" => true,
                    "False" => false,
                    _ => return Err(wrong("expandable_segments:True or expandable_segments:False")),
                };
            }
            MAX_SPLIT => {
                let bytes = value.parse::<u64>().ok().and_then(|mebibytes| mebibytes.checked_mul(MIB));
                let bytes = bytes.filter(|&bytes| bytes >= LARGE_SEGMENT_BYTES);
                self.max_split_bytes =
                    Some(bytes.ok_or_else(|| wrong("max_split_size_mb with a number of at least 20"))?);
            }
            ROUNDUP => {
                let expected =
                    "roundup_power2_divisions with a power of two, or with a list of them by MiB: [256:1,512:2,>:4]";
                let divisions = Divisions::parse(value).ok_or_else(|| wrong(expected))?;
                self.roundup_divisions = Some(divisions).filter(|divisions| !divisions.are_off());
            }
            THRESHOLD => {
                let threshold = value.parse().ok().filter(|part: &f64| *part > 0.0 && *part < 1.0);
                let expected = "garbage_collection_threshold with a number between 0 and 1";
                self.garbage_collection_threshold = Some(threshold.ok_or_else(|| wrong(expected))?);
            }
            FRACTION => {
                let fraction = value.parse().ok().filter(|part: &f64| *part > 0.0 && *part <= 1.0);
                let expected = "per_process_memory_fraction with a number above 0, of at most 1";
                self.memory_fraction = Some(fraction.ok_or_else(|| wrong(expected))?);
            }
            _ => return Err(wrong(ANY)),
        }
        Ok(())
    }
}

const NATIVE: &str = "native";
const BACKEND: &str = "backend";
/// Keys about pinned memory of the host, and about how PyTorch calls the driver.
const NEUTRAL: [&str; 5] = [
    "pinned_use_cuda_host_register",
    "pinned_num_register_threads",
    "pinned_use_background_threads",
    "pinned_reserve_segment_size_mb",
    "release_lock_on_cudamalloc",
];
const EXPANDABLE: &str = "expandable_segments";
const MAX_SPLIT: &str = "max_split_size_mb";
const ROUNDUP: &str = "roundup_power2_divisions";
const THRESHOLD: &str = "garbage_collection_threshold";
const FRACTION: &str = "per_process_memory_fraction";
const EMPTY_CACHE: &str = "torch.cuda.empty_cache()";
const ANY: &str = "native, or a line such as expandable_segments:True, max_split_size_mb:128, roundup_power2_divisions:8, \
                   garbage_collection_threshold:0.8,per_process_memory_fraction:1, torch.cuda.empty_cache()";
/// Characters of a wrong setting that its error shows.
const EXCERPT_CHARS: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_is_read_is_written_again() {
        for text in [
            "native",
            "expandable_segments:True",
            "max_split_size_mb:128",
            "roundup_power2_divisions:8",
            "roundup_power2_divisions:[256:1,512:2,>:4],per_process_memory_fraction:0.5",
            "garbage_collection_threshold:0.8,per_process_memory_fraction:1",
            "expandable_segments:True,max_split_size_mb:21,torch.cuda.empty_cache()",
        ] {
            assert_eq!(text.parse::<CachingSettings>().unwrap().to_string(), text);
        }
        assert_eq!(" max_split_size_mb : 64 ".parse::<CachingSettings>().unwrap().max_split_bytes, Some(64 * MIB));
        assert_eq!("roundup_power2_divisions:1".parse(), Ok(CachingSettings::default()));
        assert_eq!("expandable_segments:False".parse(), Ok(CachingSettings::default()));
        let all = "backend:native,expandable_segments:True,pinned_num_register_threads:8,";
        assert_eq!(all.parse::<CachingSettings>().unwrap().to_string(), "expandable_segments:True");
        assert_eq!("max_split_size_mb:20".parse::<CachingSettings>().unwrap().max_split_bytes, Some(20 * MIB));
    }

    #[test]
    fn what_pytorch_refuses_or_is_not_modelled_is_refused() {
        for text in [
            "",
            "Native",
            "max_split_size_mb:19",
            "max_split_size_mb:99999999999999999999",
            "max_split_size_mb:18446744073709551615",
            "roundup_power2_divisions:7",
            "roundup_power2_divisions:[256:1,>:7]",
            "roundup_power2_divisions:[256:1",
            "garbage_collection_threshold:1",
            "garbage_collection_threshold:NaN",
            "per_process_memory_fraction:1.5",
            "expandable_segments:yes",
            "backend:cudaMallocAsync",
            "expandable_segments:True,,",
            "backend:native:",
            "pinned_num_register_threads:",
        ] {
            assert!(text.parse::<CachingSettings>().is_err(), "{text}");
        }
    }
}
