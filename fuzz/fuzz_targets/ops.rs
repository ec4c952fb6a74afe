//! Random operations on one thread.
#![no_main]

use gapless_testkit::{Extra, run_input};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| run_input(bytes, Extra::Ignored, 1));
