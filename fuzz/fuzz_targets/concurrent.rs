//! Random operations on four threads, with a schedule that is part of the input.
#![no_main]

use gapless_testkit::{Extra, run_input};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| run_input(bytes, Extra::Ignored, 4));
