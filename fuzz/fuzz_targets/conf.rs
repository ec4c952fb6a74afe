//! Random text as a `GAPLESS_CONF`: the result is a helpful error, or settings that read back the same after they are
//! written as text, but never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/capi/tests/fuzzed/conf.rs"]
mod conf;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        conf::check_conf(text);
    }
});
