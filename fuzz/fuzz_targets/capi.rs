//! Random correct and incorrect calls of the C interface, with the simulated driver library, or with a GPU if
//! `GAPLESS_FUZZ_DRIVER=cuda` is set.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/capi/tests/fuzzed/calls/mod.rs"]
mod calls;

fuzz_target!(|bytes: &[u8]| calls::run_calls(bytes));
