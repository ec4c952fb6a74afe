//! Tests with two processes that share the memory of a simulated device.

#![allow(dead_code, reason = "every test binary uses a part of this module")]

use crate::simulated::with_settings;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};

/// The variable with what a peer was given.
const GIVEN: &str = "GAPLESS_TEST_GIVEN";

/// The other process of a test: the same test again, which says a line when it has done its part and ends on the next one
/// that it is told.
pub struct Peer {
    child: Child,
    said: BufReader<std::process::ChildStdout>,
}

impl Peer {
    /// Starts the peer, which finds `text` as [`given`]. It inherits what descriptors are not closed on execution.
    pub fn start(test: &str, text: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(GIVEN, text)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(child.stdout.take().unwrap());
        Self { child, said }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the next line that the peer says.
    pub fn says(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.said.read_line(&mut line).unwrap() > 0, "the peer has failed");
            if let Some((_, text)) = line.split_once("peer: ") {
                return text.trim().to_owned();
            }
        }
    }

    /// Lets the peer go on after a line that it has said.
    pub fn go_on(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b".").unwrap();
    }

    pub fn end(mut self) {
        self.go_on();
        std::io::copy(&mut self.said, &mut std::io::sink()).unwrap();
        assert!(self.child.wait().unwrap().success());
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Returns what the peer was given.
pub fn given() -> String {
    std::env::var(GIVEN).unwrap()
}

/// The peer's side of [`Peer::says`] and [`Peer::go_on`].
pub fn say_and_wait(text: &str) {
    println!("peer: {text}");
    std::io::stdin().read_exact(&mut [0; 1]).unwrap();
}

/// Runs both parts of a test with a device of `capacity` that they share.
pub fn with_shared_device(test: &str, capacity: &str, main: impl FnOnce(), peer: impl FnOnce()) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("devices");
    let settings = [("GAPLESS_SIM_SHARED", file.to_str().unwrap()), ("GAPLESS_SIM_CAPACITY", capacity)];
    with_settings(test, &settings, || if std::env::var_os(GIVEN).is_some() { peer() } else { main() });
}
