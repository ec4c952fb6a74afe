//! A test that goes on in another process, which may be in a namespace of its own.

#![allow(dead_code, reason = "each test file uses a part of it")]

use gapless_share::{HANDLE_BYTES, Handle};
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

/// The variable with the handle that the other process is given.
const HANDLE: &str = "GAPLESS_TEST_HANDLE";
/// What stands before each answer, among what a test program prints.
const MARK: &str = "apart: ";

/// The handle that this process was given, if it is the other one.
pub fn role() -> Option<Handle> {
    let digits = std::env::var(HANDLE).ok()?;
    let bytes: Vec<u8> =
        (0..HANDLE_BYTES).map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap()).collect();
    Some(Handle::from_bytes(&bytes).unwrap())
}

/// Says something to the process that has started this one.
pub fn say(text: &str) {
    println!("{MARK}{text}");
}

/// Waits until the process that has started this one lets it go.
pub fn wait_to_end() {
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Whether a program can be started by `program`, as `unshare` with options.
pub fn can_be_started_by(program: &[&str]) -> bool {
    let (first, options) = program.split_first().expect("a program");
    let started = Command::new(first).args(options).arg("true").stderr(Stdio::null()).status();
    started.is_ok_and(|status| status.success())
}

/// The other process.
pub struct Apart {
    child: Child,
    from: BufReader<ChildStdout>,
}

impl Apart {
    /// Starts the test again, by `program` if that is not empty.
    pub fn start(test: &str, program: &[&str], handle: &Handle) -> Self {
        let own = std::env::current_exe().unwrap();
        let digits: String = handle.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let mut command = match program.split_first() {
            Some((first, options)) => {
                let mut command = Command::new(first);
                command.args(options).arg(own);
                command
            }
            None => Command::new(own),
        };
        command.args(["--exact", test, "--nocapture"]).env(HANDLE, digits);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let from = BufReader::new(child.stdout.take().unwrap());
        Self { child, from }
    }

    /// The next that it says.
    pub fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.from.read_line(&mut line).unwrap() > 0, "the other process has failed");
            if let Some((_, text)) = line.split_once(MARK) {
                return text.trim().to_owned();
            }
        }
    }

    pub fn end(mut self) {
        drop(self.child.stdin.take());
        std::io::copy(&mut self.from, &mut std::io::sink()).unwrap();
        assert!(self.child.wait().unwrap().success());
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
