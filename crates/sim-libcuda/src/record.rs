//! What a process leaves when it ends, where `GAPLESS_SIM_RECORD` names a folder: a file with the number of the process as its
//! name, in which each line has a name and a number. `held_bytes` is the device memory that the process held, and the other names
//! are those of functions, with how often each was called.
//!
//! It is written when the process has returned from `main` or has called `exit`, after its own handlers. A process that is
//! killed, or that calls `_exit`, leaves none, and neither does a child of `fork` that starts no other program.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::settings::Settings;
use crate::state::{INITIALISED, State};
use crate::{counts, functions, held};

/// The name of the line that has the bytes.
const HELD: &str = "held_bytes";

/// What one process has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// How often each function was called that can be made to fail.
    pub calls: BTreeMap<String, u64>,
    /// The bytes of device memory that it held at its end.
    pub held_bytes: u64,
}

impl Record {
    /// Adds what another process has done: bytes are summed, while calls are those of the process with the most of them, since a
    /// fault is counted in each process for itself.
    pub fn add(&mut self, other: &Self) {
        for (name, calls) in &other.calls {
            let most = self.calls.entry(name.clone()).or_default();
            *most = (*most).max(*calls);
        }
        self.held_bytes += other.held_bytes;
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HELD} {}", self.held_bytes)?;
        self.calls.iter().try_for_each(|(name, calls)| writeln!(f, "{name} {calls}"))
    }
}

impl FromStr for Record {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut record = Self::default();
        for line in text.lines() {
            let parsed = line.split_once(' ').and_then(|(name, number)| Some((name, number.parse().ok()?)));
            match parsed.ok_or_else(|| format!("no line of a record: {line}"))? {
                (HELD, bytes) => record.held_bytes = bytes,
                (name, calls) => drop(record.calls.insert(name.to_owned(), calls)),
            }
        }
        Ok(record)
    }
}

/// The process that called `cuInit`; a child of `fork` is another one.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Says that this is the process whose record is wanted.
pub fn begin() {
    let _ = PROCESS.compare_exchange(0, std::process::id(), Ordering::Relaxed, Ordering::Relaxed);
}

#[used]
#[unsafe(link_section = ".fini_array")]
static AT_THE_END: extern "C" fn() = tell_at_the_end;

extern "C" fn tell_at_the_end() {
    let Some(settings) = Settings::if_read() else { return };
    let process = std::process::id();
    if PROCESS.load(Ordering::Relaxed) != process {
        return;
    }
    let folder = settings.record.as_deref();
    if settings.leaks && INITIALISED.load(Ordering::Acquire) {
        held::tell(State::get(), folder);
    }
    if let Some(folder) = folder
        && let Err(error) = write(folder, process)
    {
        eprintln!("gapless-sim: no record in {}: {error}", folder.display());
    }
}

/// Writes the record, whole or not at all.
fn write(folder: &Path, process: u32) -> io::Result<()> {
    let mut record = Record::default();
    for function in functions::all() {
        if let Some(calls) = counts::of(function.name) {
            record.calls.insert(function.name.to_owned(), calls);
        }
    }
    if INITIALISED.load(Ordering::Acquire) {
        record.held_bytes = State::get().devices.iter().map(|device| device.host.usage().bytes).sum();
    }
    let part = folder.join(format!("{process}.part"));
    fs::write(&part, record.to_string())?;
    fs::rename(part, folder.join(process.to_string()))
}
