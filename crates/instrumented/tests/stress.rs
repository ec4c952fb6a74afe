//! Runs the stress test: threads that use one allocator at the same time.

use gapless_testkit::{Device, End, Faults, Host, Model, Progress, Stress, World, budget_of_cases, run_stress};

fn stress<D: Device>(ops: u64, faults: Faults) {
    for round in 0..u64::from(budget_of_cases(4)) {
        let world = World {
            pages: 8 + 8 * (round % 4),
            streams: 3,
            chunk_pages: 1 + round % 2,
            region_pages: if round % 4 == 3 { 32 } else { 0 },
            kept: round % 2 == 0,
            own_streams: round % 3 != 1,
            ..World::default()
        };
        let progress = Progress::default();
        let stats = run_stress::<D>(
            &world,
            Stress { threads: 2 + round % 3, ops, seed: round, faults, graphs: round % 2 == 1, end: End::Close },
            &progress,
        );
        assert_eq!(stats.allocs, progress.allocs.into_inner(), "{stats:?}");
        assert!(stats.allocs > 0 && stats.harvested_chunks > 0, "{stats:?}");
    }
}

#[test]
fn threads_on_model() {
    stress::<Model>(4000, Faults::None);
}

#[test]
fn threads_on_model_with_faults() {
    stress::<Model>(4000, Faults::Some);
}

#[test]
fn threads_on_host() {
    stress::<Host>(800, Faults::Some);
}
