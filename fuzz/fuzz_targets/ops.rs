//! Random operations on one thread.
#![no_main]

use gapless_testkit::{Extra, Host, Model, decode, run};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((world, ops)) = decode(bytes, Extra::Ignored) else { return };
    let on_host = std::env::var_os("GAPLESS_FUZZ_DRIVER").is_some_and(|driver| driver == "host");
    if on_host && world.fits_in_memory() {
        run::<Host>(&world, &ops);
    } else {
        run::<Model>(&world, &ops);
    }
});
