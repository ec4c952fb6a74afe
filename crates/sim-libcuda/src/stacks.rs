//! Stacks of the program that calls the driver: of its native code, and of Python's where it is a Python program.

use std::backtrace::Backtrace;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::python;

/// A function that is being called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// Its name.
    pub function: String,
    /// Its file, where that is known.
    pub file: Option<String>,
    /// The line in it.
    pub line: Option<u32>,
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.function)?;
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(f, " ({file}:{line})"),
            (Some(file), None) => write!(f, " ({file})"),
            _ => Ok(()),
        }
    }
}

/// The stack of a thread. Names are found when somebody wants to see it, since that takes time.
pub struct Stack {
    native: Backtrace,
    /// As Python writes it down.
    python: String,
    frames: OnceLock<(Vec<Frame>, Vec<Frame>)>,
}

/// What tells two stacks apart: the addresses that calls return to, and what Python says.
type Key = (Vec<usize>, String);

/// The most calls of native code by which stacks are told apart.
const DEPTH: usize = 256;

impl Stack {
    /// Returns that of this thread. Equal stacks are one.
    pub fn here() -> Arc<Self> {
        static KNOWN: Mutex<Option<HashMap<Key, Arc<Stack>>>> = Mutex::new(None);
        let key = (addresses(), python::traceback().unwrap_or_default());
        let known = KNOWN.lock().get_or_insert_default().get(&key).cloned();
        known.unwrap_or_else(|| {
            let stack = Self { native: Backtrace::force_capture(), python: key.1.clone(), frames: OnceLock::new() };
            Arc::clone(KNOWN.lock().get_or_insert_default().entry(key).or_insert_with(|| Arc::new(stack)))
        })
    }

    /// Returns the frames of native code outside of the driver, and those of Python; the innermost first. What the interpreter
    /// calls to run a Python program is left out.
    pub fn frames(&self) -> &(Vec<Frame>, Vec<Frame>) {
        self.frames.get_or_init(|| self.find_frames())
    }

    fn find_frames(&self) -> (Vec<Frame>, Vec<Frame>) {
        let all = native_frames(&self.native.to_string());
        let outside = all.iter().position(|frame| is_of_driver(&frame.function)).map_or(0, |at| at + 1);
        let is_interpreter =
            |frame: &Frame| ["_PyEval_", "PyEval_", "_PyFunction_"].iter().any(|it| frame.function.starts_with(it));
        let is_start =
            |frame: &Frame| ["__libc_start", "start_thread", "__clone"].iter().any(|it| frame.function.starts_with(it));
        let python = python_frames(&self.python);
        let native =
            all[outside..].iter().take_while(|frame| !is_start(frame) && (python.is_empty() || !is_interpreter(frame)));
        (native.cloned().collect(), python)
    }
}

/// The addresses that the functions of this thread return to.
fn addresses() -> Vec<usize> {
    let mut buffer = [std::ptr::null_mut(); DEPTH];
    // SAFETY: a buffer of this size.
    let count = unsafe { libc::backtrace(buffer.as_mut_ptr(), DEPTH as c_int) };
    buffer.iter().take(usize::try_from(count).unwrap_or(0)).map(|address| *address as usize).collect()
}

/// Whether a function has a name as the driver's have: `cu`, and a capital letter. Functions inside the driver have no such names.
fn is_of_driver(function: &str) -> bool {
    function.strip_prefix("cu").is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_uppercase()))
}

/// Reads what the standard library writes: lines `N: function`, each with a line `at file:line:column` behind it where that is
/// known.
fn native_frames(text: &str) -> Vec<Frame> {
    let mut frames: Vec<Frame> = Vec::new();
    for line in text.lines().map(str::trim_start) {
        if let Some(place) = line.strip_prefix("at ") {
            let Some(frame) = frames.last_mut() else { continue };
            let mut parts = place.rsplitn(3, ':');
            if let (Some(_column), Some(line), Some(file)) = (parts.next(), parts.next(), parts.next()) {
                (frame.file, frame.line) = (Some(file.to_owned()), line.parse().ok());
            } else {
                frame.file = Some(place.to_owned());
            }
        } else if let Some((number, function)) = line.split_once(": ")
            && number.bytes().all(|byte| byte.is_ascii_digit())
        {
            let function = demangled(function).unwrap_or_else(|| function.to_owned());
            frames.push(Frame { function, file: None, line: None });
        }
    }
    frames
}

/// The name that a function of C++ has in its source, where the process has C++'s library.
fn demangled(name: &str) -> Option<String> {
    type Demangle = unsafe extern "C" fn(*const c_char, *mut c_char, *mut usize, *mut c_int) -> *mut c_char;
    if !name.starts_with("_Z") {
        return None;
    }
    // SAFETY: the name ends with NUL, and nothing is loaded that was not.
    let library = unsafe { libc::dlopen(c"libstdc++.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return None;
    }
    // SAFETY: an open library, which stays so.
    let function = unsafe { libc::dlsym(library, c"__cxa_demangle".as_ptr()) };
    if function.is_null() {
        return None;
    }
    // SAFETY: the type that the ABI of C++ gives it.
    let demangle: Demangle = unsafe { std::mem::transmute::<*mut c_void, Demangle>(function) };
    let (mangled, mut status) = (CString::new(name).ok()?, 0);
    // SAFETY: the name ends with NUL; the function allocates what it returns.
    let text = unsafe { demangle(mangled.as_ptr(), std::ptr::null_mut(), std::ptr::null_mut(), &raw mut status) };
    if text.is_null() {
        return None;
    }
    // SAFETY: it ends with NUL.
    let found = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    // SAFETY: allocated with malloc, and nobody else has it.
    unsafe { libc::free(text.cast()) };
    Some(found)
}

/// Reads what Python writes: lines `File "file", line N in function`.
fn python_frames(text: &str) -> Vec<Frame> {
    let frame = |line: &str| {
        let (file, rest) = line.trim().strip_prefix("File \"")?.rsplit_once("\", line ")?;
        let (line, function) = rest.split_once(" in ")?;
        Some(Frame { function: function.to_owned(), file: Some(file.to_owned()), line: line.parse().ok() })
    };
    text.lines().filter_map(frame).collect()
}
