//! Any text as a `GAPLESS_CONF`: an error that says what to do, or settings that read back the same when they are written
//! as a text; never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/capi/tests/fuzzed/conf.rs"]
mod conf;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        conf::check_conf(text);
    }
});
