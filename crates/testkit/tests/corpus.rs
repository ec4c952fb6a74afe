//! Runs the seeds of the fuzz targets as tests, including inputs that once failed. Those of `conf` and `capi` are in
//! the tests of the C interface's crate.

use gapless_testkit::{Extra, Host, Model, ReadTrace, check_trace, decode, run, run_scheduled};
use std::path::Path;

/// Calls `check` with each seed of a target. Returns the number of seeds.
fn each_seed(target: &str, mut check: impl FnMut(&[u8])) -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).expect("a folder of seeds") {
        let path = entry.expect("an entry").path();
        println!("{}", path.display());
        check(&std::fs::read(&path).expect("a seed"));
        count += 1;
    }
    assert!(count > 0, "no seeds in {}", folder.display());
    count
}

#[test]
fn operations() {
    each_seed("ops", |bytes| {
        let (world, ops) = decode(bytes, Extra::Ignored).expect("a header");
        run::<Model>(&world, &ops);
        run::<Host>(&world, &ops);
    });
    each_seed("concurrent", |bytes| {
        let (world, ops) = decode(bytes, Extra::Ignored).expect("a header");
        run_scheduled::<Model>(&world, &ops, 4);
    });
    each_seed("faults", |bytes| {
        let (world, ops) = decode(bytes, Extra::Failures).expect("a header");
        run::<Model>(&world, &ops);
        run::<Host>(&world, &ops);
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
