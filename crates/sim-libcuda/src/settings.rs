//! Settings of the simulation, read once from environment variables:
//!
//! | variable | meaning | default |
//! | --- | --- | --- |
//! | `GAPLESS_SIM_CAPACITY` | memory of each device, as in `512MiB` | `1GiB` |
//! | `GAPLESS_SIM_DEVICES` | number of devices, up to 64; with 0, `cuInit` returns "no device" | 1 |
//! | `GAPLESS_SIM_VISIBLE` | which of them this process sees, and in which order, as in `1,0` | all |
//! | `GAPLESS_SIM_PEERS` | `all`, or `none`: whether devices can access each other's memory | `all` |
//! | `GAPLESS_SIM_VERSION` | version that `cuDriverGetVersion` returns | 13000 |
//! | `GAPLESS_SIM_NO_VMM` | with `1`, devices have no virtual memory management | |
//! | `GAPLESS_SIM_NO_EXPORT` | with `1`, chunks cannot be exported | |
//! | `GAPLESS_SIM_SHARED` | path of a file: the processes that name it share the memory of the devices | |
//! | `GAPLESS_SIM_SOFT` | size: devices are integrated, and so much of what is free is given but not reported | |
//! | `GAPLESS_SIM_RDMA` | `no`, `yes`, or `refused`: reported, but access to such chunks fails (as in WSL) | `yes` |
//! | `GAPLESS_SIM_LAX_CAPTURES` | with `1`, calls about virtual memory break no capture, as on an H100 | |
//! | `GAPLESS_SIM_NO_COPIES` | with `1`, copies between host and device are checked and counted, and move no byte | |
//! | `GAPLESS_SIM_FAIL` | `function:n:code,...`: the n-th call of the function (from 1, `*` for all) returns `code` | |
//! | `GAPLESS_SIM_MISSING` | with `1`, each function that a program looks up and that is not there is named on stderr | |
//! | `GAPLESS_SIM_STRICT` | with `1`, [calls that break a rule](crate::broken) are told on stderr | |
//! | `GAPLESS_SIM_LEAKS` | with `1`, and `GAPLESS_SIM_STRICT`: [what is held](crate::held) at the end is told on stderr | |
//! | `GAPLESS_SIM_RACE` | number from 1 on: [pauses](crate::pauses) before calls and queued work, others for each number | |
//! | `GAPLESS_SIM_RECORD` | folder that each process leaves its [record](crate::record) in when it ends | |
//!
//! `GAPLESS_SIM_LIBCUDA`, `GAPLESS_SIM_LIBRARIES` and `GAPLESS_SIM_PYTHONS` are read by tests and by `gapless-sim`. A variable that
//! has another value, or a name that is not here, is wrong: a line on stderr says so, and `cuInit` returns "invalid value".

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::OnceLock;

use crate::faults::{self, Fault};

/// What the names of all variables begin with.
const PREFIX: &str = "GAPLESS_SIM_";
/// Variables that the library does not read.
const OF_OTHERS: [&str; 3] = ["GAPLESS_SIM_LIBCUDA", "GAPLESS_SIM_LIBRARIES", "GAPLESS_SIM_PYTHONS"];
const MOST_DEVICES: usize = 64;

/// Support for RDMA-capable chunks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Rdma {
    /// Not supported.
    No,
    /// Supported, and it works.
    Yes,
    /// Reported as supported, but refused by `cuMemSetAccess`.
    Refused,
}

/// The settings of this process.
pub struct Settings {
    /// Memory of each device in bytes.
    pub capacity: u64,
    /// Number of devices that this process sees.
    pub devices: usize,
    /// Which device of the machine each of these is.
    pub physical: Vec<usize>,
    /// Whether devices can access each other's memory.
    pub peers: bool,
    /// Version that `cuDriverGetVersion` returns.
    pub version: i32,
    /// Whether devices support virtual memory management.
    pub vmm: bool,
    /// Whether calls about virtual memory break captures.
    pub strict_captures: bool,
    /// Whether chunks can be exported as file descriptors.
    pub export: bool,
    /// Whether copies between host and device move bytes.
    pub copies: bool,
    /// The file of the accounts of all processes that share the devices.
    pub shared: Option<PathBuf>,
    /// Where devices are integrated: free bytes that are not reported.
    pub soft: Option<u64>,
    /// Support for RDMA-capable chunks.
    pub rdma: Rdma,
    /// The calls that are to fail from the beginning.
    pub faults: Vec<Fault>,
    /// Whether functions that are looked up and not there are named.
    pub names_missing: bool,
    /// Whether calls that break a rule are told.
    pub strict: bool,
    /// Whether what is held at the end is told.
    pub leaks: bool,
    /// The seed of pauses.
    pub race: Option<u64>,
    /// The folder of the records of processes.
    pub record: Option<PathBuf>,
    /// What is wrong with the variables. Defaults are in the place of such settings.
    pub wrong: Vec<Wrong>,
}

/// A variable that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Its name.
    pub name: String,
    value: String,
    why: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}: {}", self.name, self.value, self.why)
    }
}

static SETTINGS: OnceLock<Settings> = OnceLock::new();

impl Settings {
    /// Returns the settings. The first call reads the environment.
    pub fn read() -> &'static Self {
        SETTINGS.get_or_init(|| {
            let settings = Self::of(std::env::vars_os());
            for wrong in &settings.wrong {
                eprintln!("gapless-sim: {wrong}");
            }
            faults::plan(settings.faults.clone());
            if settings.record.is_some() || settings.strict {
                crate::counts::restart();
            }
            if settings.strict {
                crate::broken::tell(settings.record.clone());
            }
            if settings.leaks {
                crate::kept::note_calls();
            }
            if let Some(seed) = settings.race {
                crate::pauses::begin(seed);
            }
            settings
        })
    }

    /// Returns the settings if they were read.
    pub fn if_read() -> Option<&'static Self> {
        SETTINGS.get()
    }

    /// Returns what an environment says.
    pub fn of(environment: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let mut from = Variables::of(environment);
        let devices =
            from.number("DEVICES", |devices| *devices <= MOST_DEVICES, "a number of devices, up to 64").unwrap_or(1);
        let physical: Vec<usize> = from.physical(devices).unwrap_or_else(|| (0..devices).collect());
        let settings = Self {
            capacity: from.size("CAPACITY").unwrap_or(gapless::units::GIB),
            devices: physical.len(),
            physical,
            peers: from.one_of("PEERS", [("all", true), ("none", false)]).unwrap_or(true),
            version: from.number("VERSION", |version| *version > 0, "a version such as 12040").unwrap_or(13_000),
            vmm: !from.flag("NO_VMM"),
            strict_captures: !from.flag("LAX_CAPTURES"),
            export: !from.flag("NO_EXPORT"),
            copies: !from.flag("NO_COPIES"),
            shared: from.path("SHARED"),
            soft: from.size("SOFT"),
            rdma: from
                .one_of("RDMA", [("no", Rdma::No), ("yes", Rdma::Yes), ("refused", Rdma::Refused)])
                .unwrap_or(Rdma::Yes),
            faults: from
                .parsed("FAIL", |text| faults::parse(text).map_err(|error| error.to_string()))
                .unwrap_or_default(),
            names_missing: from.flag("MISSING"),
            strict: from.flag("STRICT"),
            leaks: from.flag("LEAKS"),
            race: from.number("RACE", |seed| *seed > 0, "a number from 1 on"),
            record: from.path("RECORD"),
            wrong: Vec::new(),
        };
        if settings.leaks && !settings.strict {
            from.refuse("LEAKS", "1", "calls are noted with GAPLESS_SIM_STRICT=1 alone");
        }
        Self { wrong: from.finish(), ..settings }
    }
}

/// The variables that were not read yet, and what was wrong with those that were.
struct Variables {
    left: BTreeMap<String, OsString>,
    wrong: Vec<Wrong>,
}

impl Variables {
    fn of(environment: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let named = environment.into_iter().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        Self { left: named.filter(|(name, _)| name.starts_with(PREFIX)).collect(), wrong: Vec::new() }
    }

    fn path(&mut self, name: &str) -> Option<PathBuf> {
        self.left.remove(&format!("{PREFIX}{name}")).map(PathBuf::from)
    }

    fn parsed<T>(&mut self, name: &str, parse: impl FnOnce(&str) -> Result<T, String>) -> Option<T> {
        let name = format!("{PREFIX}{name}");
        let value = self.left.remove(&name)?.to_string_lossy().into_owned();
        parse(&value).map_err(|why| self.wrong.push(Wrong { name, value, why })).ok()
    }

    fn refuse(&mut self, name: &str, value: &str, why: &str) {
        self.wrong.push(Wrong { name: format!("{PREFIX}{name}"), value: value.to_owned(), why: why.to_owned() });
    }

    fn number<T: FromStr>(&mut self, name: &str, is_good: impl FnOnce(&T) -> bool, wanted: &str) -> Option<T> {
        self.parsed(name, |text| text.parse().ok().filter(is_good).ok_or_else(|| format!("this is not {wanted}")))
    }

    fn size(&mut self, name: &str) -> Option<u64> {
        let parse = |text: &str| text.parse::<gapless::ByteSize>();
        self.parsed(name, |text| parse(text).map(|size| size.0).map_err(|error| error.to_string()))
    }

    fn flag(&mut self, name: &str) -> bool {
        let what = "this is said with 1; where it is not meant, the variable is not set";
        self.parsed(name, |text| if text == "1" { Ok(true) } else { Err(what.into()) }).unwrap_or(false)
    }

    fn one_of<T: Copy, const N: usize>(&mut self, name: &str, choices: [(&str, T); N]) -> Option<T> {
        self.parsed(name, |text| {
            let chosen = choices.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
            let words = choices.map(|(word, _)| word).join(", ");
            chosen.ok_or_else(|| format!("this is none of {words}"))
        })
    }

    fn physical(&mut self, devices: usize) -> Option<Vec<usize>> {
        self.parsed("VISIBLE", |text| {
            let numbers = text.split(',').map(|one| one.parse().ok().filter(|device| *device < devices));
            let numbers: Option<Vec<usize>> = numbers.collect();
            numbers.ok_or_else(|| {
                format!("this is no list of devices such as 1,0; they count from 0, and there are {devices}")
            })
        })
    }

    /// What was wrong. Variables that are left have names that mean nothing.
    fn finish(mut self) -> Vec<Wrong> {
        let unknown = self.left.into_iter().filter(|(name, _)| !OF_OTHERS.contains(&name.as_str()));
        self.wrong.extend(unknown.map(|(name, value)| Wrong {
            name,
            value: value.to_string_lossy().into_owned(),
            why: "there is no variable of this name".into(),
        }));
        self.wrong
    }
}
