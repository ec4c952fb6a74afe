//! Random operations on one thread.
#![no_main]

use gapless_testkit::{Extra, Host, Model, decode, run};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((world, ops)) = decode(bytes, Extra::Ignored) else { return };
    if std::env::var_os("GAPLESS_FUZZ_DRIVER").is_some_and(|driver| driver == "host") {
        run::<Host>(&world, &ops);
    } else {
        run::<Model>(&world, &ops);
    }
});
