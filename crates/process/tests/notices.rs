//! What is written to stderr, by a process of its own.

use gapless::StreamId;
use gapless::driver::{ModelConfig, ModelDriver};
use gapless::units::MIB;
use gapless_process::{Process, Request, Simulated};
use std::process::Command;

/// Says that a process is the one whose stderr is looked at.
const INNER: &str = "GAPLESS_TEST_INNER";

/// Runs a test in a process of its own. Returns what that has written to stderr; nothing there itself.
fn stderr_of(test: &str, body: impl FnOnce()) -> Option<String> {
    if std::env::var_os(INNER).is_some() {
        body();
        return None;
    }
    let mut inner = Command::new(std::env::current_exe().unwrap());
    let output = inner.args(["--exact", test, "--nocapture"]).env(INNER, "1").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{text}");
    Some(text)
}

fn models(conf: &str) -> Process<Simulated<ModelDriver>> {
    let process = Process::new(|ordinal, _| {
        Ok(Simulated::model(ordinal, ModelConfig { capacity_bytes: 64 * MIB, ..ModelConfig::default() }))
    });
    process.configure(conf).unwrap();
    process
}

/// Creates a device, asks for too much, and trims.
fn use_a_device(conf: &str) {
    let process = models(conf);
    let device = process.device(1).unwrap();
    let block = device.alloc(&Request::new(4 * MIB, StreamId::DEFAULT)).unwrap();
    device.alloc(&Request::new(128 * MIB, StreamId::DEFAULT)).unwrap_err();
    device.free(block, 0, StreamId::DEFAULT).unwrap();
    device.trim(0).unwrap();
}

#[test]
fn a_log_says_what_happens_on_which_device() {
    let Some(text) = stderr_of("a_log_says_what_happens_on_which_device", || use_a_device("log:on")) else { return };
    let expected = [
        "gapless: device 1 (model), budget 64 MiB",
        "gapless: device 1: a request of 128 MiB failed",
        "gapless: device 1: released 4 MiB, 0 B held",
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn nothing_is_said_that_was_not_asked_for() {
    let Some(text) = stderr_of("nothing_is_said_that_was_not_asked_for", || use_a_device("")) else { return };
    assert_eq!(text, "");
}
