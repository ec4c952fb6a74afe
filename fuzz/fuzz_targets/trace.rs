//! Any bytes as a trace file: this crate's text, a PyTorch snapshot or an RMM log, plain or gzip. A typed error, or a
//! trace that can be replayed; never a panic.
#![no_main]

use gapless_testkit::check_trace;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check_trace(bytes);
});
