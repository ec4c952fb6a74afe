//! The seeds of the fuzz targets, as the targets run them: what is written there means something, and nothing is wrong.

use gapless_proof::{Extra, Model, decode, run, run_scheduled};
use std::path::Path;

#[test]
fn every_seed_runs() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    for target in ["ops", "concurrent", "faults"] {
        let mut seeds = 0;
        for entry in std::fs::read_dir(corpus.join(target)).expect("seeds").flatten() {
            let bytes = std::fs::read(entry.path()).expect("readable");
            let extra = if target == "faults" { Extra::Failures } else { Extra::Ignored };
            let (world, ops) = decode(&bytes, extra).expect("more than a header");
            assert!(!ops.is_empty(), "{}", entry.path().display());
            match target {
                "concurrent" => run_scheduled::<Model>(&world, &ops, 4),
                _ => run::<Model>(&world, &ops),
            };
            seeds += 1;
        }
        assert!(seeds >= 18, "{target} has {seeds} seeds");
    }
}
