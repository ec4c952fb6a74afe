//! Faults: calls of functions that are to fail.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::functions::{self, Function};

/// A call that is to fail, written `function:n:code`, or `function:n` for the code that is most likely. The calls of a function
/// are counted from 1; `*` stands for all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The function.
    pub function: Function,
    /// Which call of it, or all.
    pub call: Option<u64>,
    /// What it returns.
    pub code: u32,
}

/// Why a text is not a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoFault(String);

impl FromStr for Fault {
    type Err = NoFault;

    fn from_str(text: &str) -> Result<Self, NoFault> {
        let because = |why: String| NoFault(format!("\"{text}\": {why}"));
        let parts: Vec<&str> = text.trim().split(':').collect();
        let (name, call, code) = match parts[..] {
            [name, call] => (name, call, None),
            [name, call, code] => (name, call, Some(code)),
            _ => {
                return Err(because(
                    "a fault is written FUNCTION:CALL or FUNCTION:CALL:CODE, as in cuMemMap:3:2".into(),
                ));
            }
        };
        let function = functions::find(name).ok_or_else(|| {
            because(format!("there is no function {name} that can fail; the nearest is {}", functions::nearest(name)))
        })?;
        let call = match call {
            "*" => None,
            number => Some(number.parse().ok().filter(|call| *call > 0).ok_or_else(|| {
                because(format!("{number} is no number of a call: they count from 1, and * stands for all"))
            })?),
        };
        let code = match code {
            None => function.code,
            Some(text) => text.parse().ok().filter(|code| *code > 0).ok_or_else(|| {
                because(format!("{text} is no code of an error, such as 2 for CUDA_ERROR_OUT_OF_MEMORY"))
            })?,
        };
        Ok(Self { function, call, code })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.call {
            Some(call) => write!(f, "{}:{call}:{}", self.function.name, self.code),
            None => write!(f, "{}:*:{}", self.function.name, self.code),
        }
    }
}

impl fmt::Display for NoFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoFault {}

/// Returns the faults of a text with commas between them. There are none in an empty text.
pub fn parse(text: &str) -> Result<Vec<Fault>, NoFault> {
    if text.is_empty() { Ok(Vec::new()) } else { text.split(',').map(str::parse).collect() }
}

#[derive(Default)]
struct Planned {
    faults: Vec<Fault>,
    calls: HashMap<&'static str, u64>,
}

static PLANNED: Mutex<Option<Planned>> = Mutex::new(None);
/// Whether a fault is planned. Most calls ask no more.
static ARE_PLANNED: AtomicBool = AtomicBool::new(false);

/// Replaces the planned faults and restarts the counts of calls.
pub fn plan(faults: Vec<Fault>) {
    let mut planned = PLANNED.lock();
    ARE_PLANNED.store(!faults.is_empty(), Ordering::Release);
    *planned = Some(Planned { faults, calls: HashMap::new() });
}

/// Counts this call of `function`, and returns the code of its fault if one is planned.
pub fn planned(function: &'static str) -> Option<u32> {
    if !ARE_PLANNED.load(Ordering::Acquire) {
        return None;
    }
    let mut guard = PLANNED.lock();
    let planned = guard.as_mut()?;
    let calls = planned.calls.entry(function).or_default();
    *calls += 1;
    let now = *calls;
    let hits = |fault: &&Fault| fault.function.name == function && fault.call.is_none_or(|call| call == now);
    planned.faults.iter().find(hits).map(|fault| fault.code)
}
