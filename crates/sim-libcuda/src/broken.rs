//! Calls that break a rule, where `GAPLESS_SIM_STRICT` asks for them.
//!
//! Each is told on stderr when it happens: the rule and how it is known, the call with its number, the thread, and the stack of
//! the program. Where `GAPLESS_SIM_RECORD` names a folder, each is a line of JSON in the file `PROCESS.broken` there as well, so
//! that it is not lost where the process ends at once. Of calls that break the same rule at the same place, the first is told.

use std::cell::Cell;
use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::counts;
use crate::python;
use crate::rules::{self, Known};
use crate::stacks::{Frame, Stack};

/// The ending of the name of a process's file.
pub const ENDING: &str = "broken";

/// A rule that a call broke.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broken {
    /// The name of the rule.
    pub rule: String,
    /// What was asked for.
    pub what: String,
    /// How the rule is known.
    pub known: String,
    /// Whether a document or the answer of a GPU forbids it.
    pub is_certain: bool,
    /// What the call was about.
    pub detail: String,
    /// The call, or the one that queued the work.
    pub call: Call,
    /// A call before or after it that has a part in it, such as the one that unmapped the memory.
    pub other: Option<Call>,
}

/// A call of the driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The function.
    pub function: String,
    /// The number of its calls in the process up to this one, as `GAPLESS_SIM_FAIL` counts them.
    pub number: u64,
    /// The process.
    pub process: u32,
    /// The name of the thread, or its number.
    pub thread: String,
    /// The functions that were being called, the innermost first.
    pub stack: Vec<Frame>,
    /// The same of the Python program, where there is one.
    pub python: Vec<Frame>,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  {}, call {} in process {}, thread {}", self.function, self.number, self.process, self.thread)?;
        self.python.iter().try_for_each(|frame| writeln!(f, "    at {frame}"))?;
        self.stack.iter().try_for_each(|frame| writeln!(f, "    at {frame}"))
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "broken rule {}: {}", self.rule, self.what)?;
        writeln!(f, "  {}", self.detail)?;
        writeln!(f, "  how it is known: {}", self.known)?;
        write!(f, "{}", self.call)?;
        self.other.iter().try_for_each(|other| write!(f, "{other}"))
    }
}

/// A call, as it is remembered until somebody wants to see it: to find names for a stack takes time.
#[derive(Clone)]
pub struct Noted(Arc<Inner>);

struct Inner {
    function: &'static str,
    number: u64,
    thread: String,
    stack: Arc<Stack>,
    /// How many calls were noted before.
    order: u64,
}

impl Noted {
    /// Returns the call that this thread makes; none where nobody wants to know.
    pub fn now() -> Option<Self> {
        static ORDER: AtomicU64 = AtomicU64::new(0);
        if !is_strict() {
            return None;
        }
        let function = FUNCTION.get();
        let thread = std::thread::current().name().map_or_else(number_of_thread, ToOwned::to_owned);
        let number = counts::of(function).unwrap_or(1);
        let order = ORDER.fetch_add(1, Ordering::Relaxed);
        Some(Self(Arc::new(Inner { function, number, thread, stack: Stack::here(), order })))
    }

    /// The function, and what its stack has that another one has not.
    pub fn place(&self) -> (&'static str, usize) {
        // A stack that is known stays where it is.
        (self.0.function, Arc::as_ptr(&self.0.stack) as usize)
    }

    /// How many calls were noted before.
    pub fn order(&self) -> u64 {
        self.0.order
    }

    /// Returns it as somebody sees it.
    pub fn call(&self) -> Call {
        let Inner { function, number, thread, stack, .. } = &*self.0;
        let (stack, python) = stack.frames().clone();
        let process = std::process::id();
        Call { function: (*function).to_owned(), number: *number, process, thread: thread.clone(), stack, python }
    }
}

fn number_of_thread() -> String {
    // SAFETY: has no preconditions. C libraries have a function for it from glibc 2.30 on only.
    unsafe { libc::syscall(libc::SYS_gettid) }.to_string()
}

static IS_STRICT: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The function that this thread calls.
    static FUNCTION: Cell<&'static str> = const { Cell::new("") };
}

/// The folder of the files of processes, if there are to be any.
static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();

/// Has broken rules told from now on, and written to a file in `folder`.
pub fn tell(folder: Option<PathBuf>) {
    let _ = FOLDER.set(folder);
    IS_STRICT.store(true, Ordering::Release);
}

/// Whether they are told.
pub fn is_strict() -> bool {
    IS_STRICT.load(Ordering::Acquire)
}

/// Notes which function this thread calls.
pub fn begin(function: &'static str) {
    if is_strict() {
        FUNCTION.set(function);
        python::begin();
    }
}

/// A call that breaks a rule and returns `code`. `detail` says what it was about.
pub fn rule(name: &'static str, code: u32, detail: impl FnOnce() -> String) -> u32 {
    if let Some(call) = Noted::now() {
        report(name, detail(), &call, None);
    }
    code
}

/// Work that was queued by a call and broke a rule when its turn came.
pub fn work(name: &'static str, detail: String, queued: &Noted, other: Option<&Noted>) {
    report(name, detail, queued, other);
}

fn report(name: &'static str, detail: String, call: &Noted, other: Option<&Noted>) {
    static TOLD: Mutex<Option<HashSet<String>>> = Mutex::new(None);
    static TOLD_OF: Mutex<Option<HashSet<(&str, usize)>>> = Mutex::new(None);
    if !TOLD_OF.lock().get_or_insert_default().insert((name, call.place().1)) {
        return;
    }
    let rule = rules::find(name);
    let known = rule.known.to_string();
    let is_certain = matches!(rule.known, Known::Answered(_) | Known::Documented(_));
    let broken = Broken {
        rule: name.to_owned(),
        what: rule.what.to_owned(),
        known,
        is_certain,
        detail,
        call: call.call(),
        other: other.map(Noted::call),
    };
    let place = format!("{name} {:?} {:?}", broken.call.stack, broken.call.python);
    if !TOLD.lock().get_or_insert_default().insert(place) {
        return;
    }
    eprint!("gapless-sim: {broken}");
    if let Err(error) = write(&broken) {
        eprintln!("gapless-sim: no record of it: {error}");
    }
}

/// Adds it to the file of the process, if there is to be one.
fn write(broken: &Broken) -> io::Result<()> {
    let Some(Some(folder)) = FOLDER.get() else { return Ok(()) };
    let file = folder.join(format!("{}.{ENDING}", std::process::id()));
    let line = serde_json::to_string(broken)? + "\n";
    OpenOptions::new().create(true).append(true).open(file)?.write_all(line.as_bytes())
}

/// The memory that was unmapped last, and by which calls.
static UNMAPPED: Mutex<VecDeque<(u64, u64, Noted)>> = Mutex::new(VecDeque::new());
/// Most of these.
const MOST_UNMAPPED: usize = 4096;

/// Notes that memory is being unmapped by this call.
pub fn unmapping(addr: u64, bytes: u64) {
    let Some(call) = Noted::now() else { return };
    let mut unmapped = UNMAPPED.lock();
    if unmapped.len() == MOST_UNMAPPED {
        unmapped.pop_front();
    }
    unmapped.push_back((addr, bytes, call));
}

/// Returns the last call that unmapped what was at an address, and whether that was after `queued`.
pub fn unmapped_by(addr: u64, queued: &Noted) -> Option<(Noted, bool)> {
    let unmapped = UNMAPPED.lock();
    let (_, _, call) = unmapped.iter().rev().find(|(start, bytes, _)| addr.wrapping_sub(*start) < *bytes)?;
    Some((call.clone(), call.0.order > queued.0.order))
}
