//! The run that a file records, as far as the file describes it beside the ops.

use crate::caching::CachingSettings;
use std::fmt;

/// The facts that are known of a recorded run besides its ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct History {
    /// How much of the run the ops are.
    pub extent: Extent,
    /// Size of the blocks that were live before the first recorded event, as far as known, in bytes. The trace begins
    /// with their allocations.
    pub live_at_start_bytes: u64,
    /// Memory that the recorded allocator held before the first recorded event, in bytes. `None` if the file does not
    /// say.
    pub held_at_start_bytes: Option<u64>,
    /// The most memory that the recorded allocator is known to have held, in bytes. `None` if the file does not say.
    pub held_at_most_bytes: Option<u64>,
}

/// The allocator that a run was recorded with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum RecordedAllocator {
    /// PyTorch's, or one that the file does not name.
    #[default]
    PyTorch,
    /// A resource of RMM.
    #[serde(rename = "RMM")]
    Rmm,
    /// gapless.
    #[serde(rename = "gapless")]
    Gapless,
}

impl fmt::Display for RecordedAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::PyTorch => "PyTorch",
            Self::Rmm => "RMM",
            Self::Gapless => "gapless",
        })
    }
}

/// The settings of PyTorch's allocator that a recording says were on.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct RecordedSettings {
    /// The text of the environment variable.
    pub text: String,
    /// The setting `expandable_segments`.
    pub expandable_segments: bool,
    /// `max_split_size_mb`, in bytes.
    pub max_split_bytes: Option<u64>,
    /// The setting `garbage_collection_threshold`.
    pub garbage_collection_threshold: Option<f64>,
}

impl RecordedSettings {
    /// Returns the settings to replay what was on, under a limit that is this part of the device that the recording has. The limit
    /// in the text is a part of another size: a recording does not say how much memory the device had in all.
    #[must_use]
    pub fn caching(&self, memory_fraction: Option<f64>) -> CachingSettings {
        let part = |key: &str| self.part(key)?.parse::<CachingSettings>().ok();
        CachingSettings {
            expandable_segments: self.expandable_segments,
            max_split_bytes: self.max_split_bytes.or_else(|| part("max_split_size_mb")?.max_split_bytes),
            roundup_divisions: part("roundup_power2_divisions").and_then(|settings| settings.roundup_divisions),
            // Without a limit it does nothing.
            garbage_collection_threshold: self.garbage_collection_threshold.filter(|_| memory_fraction.is_some()),
            memory_fraction,
            empties_cache: false,
        }
    }

    /// Returns the memory fraction in the text.
    #[must_use]
    pub fn memory_fraction(&self) -> Option<f64> {
        self.part(FRACTION)?.parse::<CachingSettings>().ok()?.memory_fraction
    }

    /// Returns the pair of a key in the text.
    #[must_use]
    pub fn part(&self, key: &str) -> Option<&str> {
        CachingSettings::parts(&self.text).find(|part| part.split(':').next().is_some_and(|name| name.trim() == key))
    }
}

/// The key of a memory fraction.
pub(crate) const FRACTION: &str = "per_process_memory_fraction";

/// How much of a run a recording holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Extent {
    /// Everything from the start on.
    Whole,
    /// It begins in the middle of the run, but all blocks that were live then are known: from their frees, and from the
    /// blocks that the file lists as live at the end. Where they lay, and the free memory between them, is not.
    LaterPart,
    /// It begins in the middle of the run, or parts of it are missing, and blocks may have been live all the time that it does not
    /// mention.
    Unknown,
}

impl History {
    /// The history of a file that begins with the run.
    pub(crate) const WHOLE: Self =
        Self { extent: Extent::Whole, live_at_start_bytes: 0, held_at_start_bytes: Some(0), held_at_most_bytes: None };
}

/// A request that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct FailedRequest {
    /// Index of its op, counted from 0, including marks.
    pub op_index: u64,
    /// Number of bytes requested.
    pub bytes: u64,
}

/// How the recorded run went on after a request that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The program went on without the memory, so a replay may refuse the request too.
    Survived,
    /// It ended the run: a policy that refuses the request fails as well.
    Fatal,
}
