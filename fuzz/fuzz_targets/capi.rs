//! Any calls of the C interface, right and wrong, on the simulated driver library; on a GPU's with
//! `GAPLESS_FUZZ_DRIVER=cuda`.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/capi/tests/fuzzed/calls/mod.rs"]
mod calls;

fuzz_target!(|bytes: &[u8]| calls::run_calls(bytes));
