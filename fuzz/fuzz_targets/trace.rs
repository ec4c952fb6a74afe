//! Random bytes as a trace file: gapless's text format, a PyTorch snapshot or an RMM log, with or without gzip. The
//! result is an error or a trace that can be replayed, but never a panic.
#![no_main]

use gapless_testkit::check_trace;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    check_trace(bytes);
});
