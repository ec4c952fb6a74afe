//! The reader of trace files, plain or gzip: a typed error or a trace that says what it holds, never a panic.
#![no_main]

use gapless::trace::Trace;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    match Trace::read("fuzz", bytes) {
        Ok(trace) => {
            let streams = trace.streams().len();
            assert!(trace.ops().is_empty() || streams <= trace.ops().len());
            let _ = (trace.name(), trace.labels().count(), trace.warning());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
