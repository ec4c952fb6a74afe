//! `GAPLESS_CONF`: `key:value,key:value`, the syntax of `PYTORCH_CUDA_ALLOC_CONF`.
//!
//! Pure: text in, settings and warnings out. Blanks around keys and values are allowed, and so is an empty text. A value
//! in brackets may contain commas, so that PyTorch's own texts can be passed on; a path cannot contain commas.

use crate::budget::Budget;
use gapless::driver::cuda::Sharing;
use gapless::units::MIB;
use gapless::{ByteSize, ChunkPolicy};
use std::path::PathBuf;

/// A parsed `GAPLESS_CONF`; `None` is the default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conf {
    /// The largest number of bytes to hold: `budget:24GiB`, `budget:0.9`, `budget:90%`.
    pub budget: Option<Budget>,
    /// Held over peak live bytes from which on free memory is remapped first: `slack:1.10`.
    pub slack: Option<f64>,
    /// The size of physical chunks: `chunk:auto`, `chunk:2MiB`.
    pub chunk: Option<ChunkPolicy>,
    /// Bytes of addresses for each stream and kind of block: `region:4TiB`.
    pub region_bytes: Option<u64>,
    /// The most memory of the host for backups of what sleeps, of all devices together: `host:64GiB`.
    pub host_bytes: Option<u64>,
    /// The directory for backups in files: `backups:/scratch/me`.
    pub backups: Option<PathBuf>,
    /// The devices that get access to each other's memory: `peers:auto`, `peers:none`, `peers:1`, `peers:[0,1]`.
    pub peers: Peers,
    /// Whether creation, failures and trims go to stderr: `log:on`.
    pub log: bool,
    /// The file to record into: `record:PATH`, where `%d` stands for the device and `%p` for the process.
    pub record: Option<PathBuf>,
    /// Whether the text of a request that fails goes to stderr: `report_on_failure:on`.
    pub report_on_failure: bool,
    /// Whether blocks of a page and more have their chunks for themselves: `ipc:private`.
    pub private: bool,
    /// Whether chunks are made so that they may leave the process: `sharing:auto`, `sharing:never`.
    pub sharing: Sharing,
    /// One sentence for each key of PyTorch's allocator in the text, which have no effect here.
    pub warnings: Vec<String>,
}

/// Which devices get access to the memory of the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Peers {
    /// Every device that the process uses, from its first use on, as far as there is a path.
    #[default]
    Auto,
    /// None: each device reaches its own memory only.
    None,
    /// These, from the first use of the device whose memory it is on.
    Listed(Vec<u32>),
}

/// Why a text is not a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfError {
    /// A part without a colon.
    #[error("'{part}' has no value: write key:value, with commas between, as in budget:0.9,chunk:auto")]
    NoValue {
        /// The part.
        part: String,
    },
    /// A key that neither gapless nor PyTorch knows.
    #[error("there is no key '{key}'; the keys are {}", known_keys())]
    UnknownKey {
        /// The key.
        key: String,
    },
    /// A key that occurs twice.
    #[error("the key '{key}' occurs twice")]
    Twice {
        /// The key.
        key: String,
    },
    /// A value that cannot be used.
    #[error("{key}:{value} cannot be used: {expected}")]
    BadValue {
        /// The key.
        key: &'static str,
        /// Its value.
        value: String,
        /// The form to write instead.
        expected: &'static str,
    },
    /// A bracket that is not closed, or closed twice.
    #[error("the brackets in '{text}' do not match")]
    Brackets {
        /// The text.
        text: String,
    },
}

impl Conf {
    /// Reads a configuration.
    ///
    /// # Errors
    /// [`ConfError`], for the first part that is wrong.
    pub fn parse(text: &str) -> Result<Self, ConfError> {
        let mut conf = Self::default();
        let mut seen: Vec<String> = Vec::new();
        let mut fraction = None;
        for part in split(text)? {
            let (key, value) = part.split_once(':').ok_or_else(|| ConfError::NoValue { part: part.to_owned() })?;
            let (key, value) = (key.trim(), value.trim());
            if seen.iter().any(|other| other == key) {
                return Err(ConfError::Twice { key: key.to_owned() });
            }
            seen.push(key.to_owned());
            if key == FRACTION {
                let bad = || ConfError::BadValue { key: FRACTION, value: value.to_owned(), expected: FRACTION_VALUES };
                fraction = Some(value.parse().ok().and_then(Budget::fraction).ok_or_else(bad)?);
            } else {
                conf.set(key, value)?;
            }
        }
        conf.budget = conf.budget.or(fraction);
        if conf.private {
            // Nothing else is in the page at the end of a block, so nothing is in its chunk.
            let page = ChunkPolicy::Fixed(PAGE);
            if *conf.chunk.get_or_insert(page) != page {
                return Err(ConfError::BadValue { key: "ipc", value: "private".to_owned(), expected: PRIVATE });
            }
        }
        Ok(conf)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), ConfError> {
        let bad = |key, expected| ConfError::BadValue { key, value: value.to_owned(), expected };
        match key {
            "budget" => self.budget = Some(budget(value).ok_or_else(|| bad("budget", BUDGET))?),
            "slack" => {
                let slack = value.parse().ok().filter(|slack| *slack >= 1.0);
                self.slack = Some(slack.ok_or_else(|| bad("slack", "give a factor of at least 1, such as 1.10"))?);
            }
            "chunk" if value == "auto" => self.chunk = Some(ChunkPolicy::Auto),
            "chunk" => {
                let bytes = size(value).filter(|bytes| bytes.is_multiple_of(PAGE));
                let bytes = bytes.ok_or_else(|| bad("chunk", "give auto, or a multiple of 2MiB such as 32MiB"))?;
                self.chunk = Some(ChunkPolicy::Fixed(bytes));
            }
            "region" => {
                self.region_bytes = Some(size(value).ok_or_else(|| bad("region", "give a size such as 4TiB"))?);
            }
            "host" => {
                self.host_bytes = Some(size(value).ok_or_else(|| bad("host", "give a size such as 64GiB"))?);
            }
            "backups" if value.is_empty() => return Err(bad("backups", "give the path of a directory")),
            "backups" => self.backups = Some(value.into()),
            "ipc" => {
                self.private = match value {
                    "shared" => false,
                    "private" => true,
                    _ => return Err(bad("ipc", IPC)),
                }
            }
            "sharing" => {
                self.sharing = match value {
                    "auto" => Sharing::WherePossible,
                    "never" => Sharing::Never,
                    _ => return Err(bad("sharing", "give auto or never")),
                }
            }
            "peers" => self.peers = peers(value).ok_or_else(|| bad("peers", PEERS))?,
            "log" => self.log = switch(value).ok_or_else(|| bad("log", "give on or off"))?,
            "report_on_failure" => {
                self.report_on_failure = switch(value).ok_or_else(|| bad("report_on_failure", "give on or off"))?;
            }
            "record" if value.is_empty() => return Err(bad("record", "give the path of a file to write")),
            "record" => self.record = Some(value.into()),
            _ => match PYTORCH_KEYS.iter().find(|(known, _)| *known == key) {
                Some((_, reason)) => self.warnings.push(format!("{key} is PyTorch's own and has no effect: {reason}")),
                None => return Err(ConfError::UnknownKey { key: key.to_owned() }),
            },
        }
        Ok(())
    }
}

/// Splits at commas outside of brackets; leaves out empty parts.
fn split(text: &str) -> Result<Vec<&str>, ConfError> {
    let mut parts = Vec::new();
    let (mut start, mut depth) = (0, 0_usize);
    for (at, char) in text.char_indices() {
        match char {
            '[' => depth += 1,
            ']' => {
                depth = depth.checked_sub(1).ok_or_else(|| ConfError::Brackets { text: text.to_owned() })?;
            }
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if depth > 0 {
        return Err(ConfError::Brackets { text: text.to_owned() });
    }
    parts.push(&text[start..]);
    Ok(parts.into_iter().map(str::trim).filter(|part| !part.is_empty()).collect())
}

/// Reads a percentage, a number with a point up to 1, or a size.
fn budget(value: &str) -> Option<Budget> {
    let fraction = match value.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().ok()? / 100.0,
        None => match value.parse::<f64>() {
            Ok(number) if value.contains('.') && number <= 1.0 => number,
            _ => return size(value).filter(|bytes| *bytes >= PAGE).map(Budget::Bytes),
        },
    };
    Budget::fraction(fraction)
}

/// Reads `auto`, `none`, the number of a device, or several in brackets.
fn peers(value: &str) -> Option<Peers> {
    match value {
        "auto" => return Some(Peers::Auto),
        "none" => return Some(Peers::None),
        _ => {}
    }
    let inside = value.strip_prefix('[').and_then(|value| value.strip_suffix(']')).unwrap_or(value);
    let mut listed: Vec<u32> = inside.split(',').map(|one| one.trim().parse().ok()).collect::<Option<_>>()?;
    listed.sort_unstable();
    listed.dedup();
    Some(Peers::Listed(listed))
}

fn size(value: &str) -> Option<u64> {
    value.parse::<ByteSize>().ok().map(|size| size.0).filter(|bytes| *bytes > 0)
}

fn switch(value: &str) -> Option<bool> {
    match value.to_ascii_lowercase().as_str() {
        "on" | "true" | "1" => Some(true),
        "off" | "false" | "0" => Some(false),
        _ => None,
    }
}

fn known_keys() -> String {
    KEYS.join(", ")
}

/// Bytes of the smallest page of any device: what a driver maps at a time.
const PAGE: u64 = 2 * MIB;
const BUDGET: &str = "give bytes, 2MiB or more, such as 20GiB, or a fraction of the device, such as 0.9 or 90%";
/// PyTorch's own name of a budget. A budget that is given by ours counts more.
const FRACTION: &str = "per_process_memory_fraction";
const FRACTION_VALUES: &str = "give a number above 0 and at most 1";
const PEERS: &str = "give auto, none, the number of a device, or several in brackets, such as [0,1]";
const IPC: &str = "give shared or private";
const PRIVATE: &str = "leave chunk out: what is private is in chunks of 2MiB";
const KEYS: [&str; 12] = [
    "budget",
    "slack",
    "chunk",
    "region",
    "host",
    "backups",
    "ipc",
    "sharing",
    "peers",
    "log",
    "record",
    "report_on_failure",
];
/// Keys of `PYTORCH_CUDA_ALLOC_CONF`, and why they are not needed here.
const PYTORCH_KEYS: [(&str, &str); 17] = [
    ("backend", "gapless is the backend"),
    ("max_split_size_mb", "any free block can be split, since free pages can be joined again wherever they lie"),
    ("max_non_split_rounding_mb", "blocks are not rounded up so that they stay whole"),
    ("garbage_collection_threshold", "free memory is remapped where it is needed before new memory is taken"),
    ("roundup_power2_divisions", "rounding sizes up to make them alike is not needed to reuse memory"),
    ("expandable_segments", "all memory is mapped on demand, and moved to where it is needed"),
    ("expandable_segments_reserve", "use region:SIZE to choose how many addresses are reserved"),
    ("expandable_segments_reserve_by_class", "use region:SIZE to choose how many addresses are reserved"),
    ("release_lock_on_cudamalloc", "streams have locks of their own, which are not held during driver calls"),
    ("pinned_use_cuda_host_register", "gapless allocates no pinned host memory for programs; PyTorch still does"),
    ("pinned_num_register_threads", "gapless allocates no pinned host memory for programs; PyTorch still does"),
    ("pinned_use_background_threads", "gapless allocates no pinned host memory for programs; PyTorch still does"),
    ("pinned_reserve_segment_size_mb", "gapless allocates no pinned host memory for programs; PyTorch still does"),
    ("graph_capture_record_stream_reuse", "memory of a captured graph is in a pool of its own"),
    ("large_segment_size_mb", "use chunk:SIZE to choose the size of physical chunks"),
    ("throw_on_cudamalloc_oom", "a request fails only when the bytes are not there"),
    ("use_uvm", "gapless allocates device memory only"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use gapless::units::GIB;

    #[test]
    fn every_key_is_read() {
        let text = " budget:24GiB, slack:1.25,chunk:2MiB ,region:4TiB,peers:[1, 0],log:on,record:/tmp/a:b.gz,\
                    report_on_failure:True,ipc:private,sharing:never,host:64GiB,backups:/scratch/me";
        let conf = Conf::parse(text).unwrap();
        assert_eq!(conf.budget, Some(Budget::Bytes(24 * GIB)));
        assert_eq!((conf.slack, conf.chunk), (Some(1.25), Some(ChunkPolicy::Fixed(2 * MIB))));
        assert_eq!((conf.region_bytes, conf.host_bytes), (Some(4 << 40), Some(64 * GIB)));
        assert_eq!(conf.peers, Peers::Listed(vec![0, 1]));
        assert!(conf.log && conf.report_on_failure && conf.warnings.is_empty());
        assert_eq!((conf.record, conf.backups), (Some("/tmp/a:b.gz".into()), Some("/scratch/me".into())));
        for key in KEYS {
            assert!(text.contains(key), "{key} is not in this test");
        }
    }

    #[test]
    fn an_empty_text_is_the_default() {
        for text in ["", "  ", ",", " , ,"] {
            assert_eq!(Conf::parse(text), Ok(Conf::default()), "{text:?}");
        }
        assert_eq!(Conf::parse("chunk:auto,log:off").unwrap().chunk, Some(ChunkPolicy::Auto));
        let private = Conf::parse("ipc:private").unwrap();
        assert_eq!((private.private, private.chunk), (true, Some(ChunkPolicy::Fixed(2 * MIB))));
        assert_eq!(Conf::parse("chunk:2MiB,ipc:private").unwrap(), private);
        assert_eq!(Conf::parse("ipc:shared").unwrap(), Conf::default());
        assert_eq!(Conf::parse("sharing:never").unwrap(), Conf { sharing: Sharing::Never, ..Conf::default() });
        assert_eq!(Conf::parse("sharing:auto").unwrap(), Conf::default());
    }

    #[test]
    fn budgets_are_bytes_or_parts() {
        let budget = |value: &str| Conf::parse(&format!("budget:{value}")).map(|conf| conf.budget);
        assert_eq!(budget("0.9"), Ok(Some(Budget::Fraction(0.9))));
        assert_eq!(budget("1.0"), Ok(Some(Budget::Fraction(1.0))));
        assert_eq!(budget("90%"), Ok(Some(Budget::Fraction(0.9))));
        assert_eq!(budget("4194304"), Ok(Some(Budget::Bytes(4 * MIB))));
        assert_eq!(budget("1.5GiB"), Ok(Some(Budget::Bytes(GIB + GIB / 2))));
        for value in [
            "",
            "0",
            "1",
            "4096",
            "2047KiB",
            "0.0",
            "-0.5",
            "101%",
            "0%",
            "nan",
            "lots",
            "NaN%",
            "1e400",
            "99999999999TiB",
        ] {
            let error = budget(value).unwrap_err();
            assert!(error.to_string().contains("such as 20GiB"), "{value}: {error}");
        }
    }

    #[test]
    fn pytorch_s_fraction_is_a_budget_unless_there_is_one() {
        let budget = |text: &str| Conf::parse(text).map(|conf| conf.budget);
        assert_eq!(budget("per_process_memory_fraction:0.5"), Ok(Some(Budget::Fraction(0.5))));
        assert_eq!(budget("per_process_memory_fraction:1"), Ok(Some(Budget::Fraction(1.0))));
        for text in ["per_process_memory_fraction:0.5,budget:1GiB", "budget:1GiB,per_process_memory_fraction:0.5"] {
            assert_eq!(budget(text), Ok(Some(Budget::Bytes(GIB))), "{text}");
        }
        for value in ["0", "1.5", "-1", "x", "nan"] {
            let error = budget(&format!("per_process_memory_fraction:{value}")).unwrap_err();
            assert!(error.to_string().contains("above 0 and at most 1"), "{error}");
        }
    }

    #[test]
    fn peers_are_numbers_or_words() {
        let peers = |value: &str| Conf::parse(&format!("peers:{value}")).map(|conf| conf.peers);
        assert_eq!(Conf::default().peers, Peers::Auto);
        assert_eq!((peers("auto"), peers("none")), (Ok(Peers::Auto), Ok(Peers::None)));
        assert_eq!((peers("3"), peers("[7]")), (Ok(Peers::Listed(vec![3])), Ok(Peers::Listed(vec![7]))));
        assert_eq!(peers("[2,0, 2]"), Ok(Peers::Listed(vec![0, 2])));
        for value in ["", "all", "[]", "[0", "-1", "[0,]", "1.0", "[0;1]"] {
            assert!(peers(value).is_err(), "{value}");
        }
        // Without brackets the second number is a part of its own.
        assert!(matches!(peers("0,1"), Err(ConfError::NoValue { .. })));
    }

    #[test]
    fn an_unknown_key_names_the_known_ones() {
        let error = Conf::parse("log:on,bugdet:1GiB").unwrap_err();
        assert_eq!(error, ConfError::UnknownKey { key: "bugdet".into() });
        for key in KEYS {
            assert!(error.to_string().contains(key), "{error}");
        }
    }

    #[test]
    fn keys_of_pytorch_are_reported_once_each_and_why() {
        let text =
            "max_split_size_mb:128,roundup_power2_divisions:[256:1,512:2,>:4],expandable_segments:True,chunk:auto";
        let conf = Conf::parse(text).unwrap();
        assert_eq!(conf.warnings.len(), 3, "{:?}", conf.warnings);
        assert!(conf.warnings[0].starts_with("max_split_size_mb is PyTorch's own"), "{:?}", conf.warnings);
        assert_eq!(conf.chunk, Some(ChunkPolicy::Auto));
        for (key, _) in PYTORCH_KEYS {
            assert_eq!(Conf::parse(&format!("{key}:1")).unwrap().warnings.len(), 1, "{key}");
            assert!(!KEYS.contains(&key));
        }
    }

    #[test]
    fn malformed_texts_are_refused() {
        assert!(matches!(Conf::parse("budget"), Err(ConfError::NoValue { .. })));
        assert!(matches!(Conf::parse("log:on,log:on"), Err(ConfError::Twice { .. })));
        assert!(matches!(Conf::parse("a:[1,2"), Err(ConfError::Brackets { .. })));
        assert!(matches!(Conf::parse("a:1],b:2"), Err(ConfError::Brackets { .. })));
        for text in [
            "slack:0.9",
            "slack:x",
            "slack:nan",
            "chunk:0",
            "chunk:-1",
            "chunk:3MiB",
            "ipc:on",
            "ipc:private,chunk:32MiB",
            "chunk:auto,ipc:private",
            "sharing:off",
            "log:maybe",
            "record:",
            "region:0",
            "host:0",
            "backups:",
        ] {
            assert!(matches!(Conf::parse(text), Err(ConfError::BadValue { .. })), "{text}");
        }
        assert!(matches!(Conf::parse(":x"), Err(ConfError::UnknownKey { .. })));
    }
}
