//! Runs the seeds of the fuzz targets as tests, including inputs that once failed. Those of `conf` and `capi` are in
//! the tests of the C interface's crate.

#[path = "../../../tests/seeds/mod.rs"]
mod seeds;

use gapless_testkit::{Extra, Host, Model, ReadTrace, check_trace, decode, run, run_scheduled};
use seeds::each_seed;

#[test]
fn operations() {
    each_seed("ops", |bytes| {
        let (world, ops) = decode(bytes, Extra::Ignored).expect("a header");
        run::<Model>(&world, &ops);
        if world.fits_in_memory() {
            run::<Host>(&world, &ops);
        }
    });
    each_seed("concurrent", |bytes| {
        let (world, ops) = decode(bytes, Extra::Ignored).expect("a header");
        run_scheduled::<Model>(&world, &ops, 4);
    });
    each_seed("faults", |bytes| {
        let (world, ops) = decode(bytes, Extra::Failures).expect("a header");
        run::<Model>(&world, &ops);
        if world.fits_in_memory() {
            run::<Host>(&world, &ops);
        }
    });
}

#[test]
fn traces() {
    let mut replayed = 0;
    let seeds = each_seed("trace", |bytes| {
        replayed += usize::from(matches!(check_trace(bytes), ReadTrace::Replayed { .. }));
    });
    assert!(replayed * 3 > seeds && replayed < seeds, "{replayed} of {seeds} are traces");
}
