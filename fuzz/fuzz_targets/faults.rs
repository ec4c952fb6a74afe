//! Random operations, with driver failures injected before any of them.
#![no_main]

use gapless_testkit::{Extra, run_input};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| run_input(bytes, Extra::Failures, 1));
