//! Runs the stress test: threads that use one allocator at the same time.

use gapless_testkit::{Device, End, Faults, Host, Model, Progress, Stress, World, budget_of_cases, run_stress};

fn stress<D: Device>(ops: u64, faults: Faults) {
    stress_with::<D>(ops, faults, false);
}

fn stress_with<D: Device>(ops: u64, faults: Faults, sleeps: bool) {
    let (mut slept, mut of_pool, mut woken) = (0, 0, 0);
    let rounds = u64::from(budget_of_cases(4));
    // Whether a pool sleeps depends on the machine: often, seldom where one thread is done before the others begin.
    let is_due = |of_pool| sleeps && rounds > 1 && of_pool == 0;
    for round in 0..8 * rounds {
        if round >= rounds && !is_due(of_pool) {
            break;
        }
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
            Stress {
                threads: 2 + round % 3,
                ops,
                seed: round,
                faults,
                graphs: round % 2 == 1,
                sleeps,
                end: End::Close,
            },
            &progress,
        );
        assert_eq!(stats.allocs, progress.allocs.into_inner(), "{stats:?}");
        assert!(stats.allocs > 0 && stats.harvested_chunks > 0, "{stats:?}");
        slept += progress.slept.into_inner();
        of_pool += progress.pool_slept.into_inner();
        woken += progress.woken.into_inner();
    }
    println!("{slept} sleeps, {of_pool} of them of a pool, and {woken} wakes");
    assert_eq!(slept.min(woken) > 0, sleeps, "{slept} sleeps and {woken} wakes");
    assert!(!is_due(of_pool), "no pool of graphs has slept");
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

/// One thread puts everything to sleep and wakes it, while the others allocate, free and record.
#[test]
fn threads_beside_one_that_sleeps_on_model() {
    stress_with::<Model>(4000, Faults::None, true);
}

#[test]
fn threads_beside_one_that_sleeps_on_model_with_faults() {
    stress_with::<Model>(4000, Faults::Some, true);
}

#[test]
fn threads_beside_one_that_sleeps_on_host() {
    stress_with::<Host>(1600, Faults::Some, true);
}
