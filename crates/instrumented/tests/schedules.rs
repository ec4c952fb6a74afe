//! Whole allocators under shuttle, which decides at every lock and atomic which thread continues:
//! `cargo xtask model-check shuttle`.
#![cfg(shuttle)]

use gapless::allocator::{Backup, Wake};
use gapless::driver::WorkDriver;
use gapless::units::DeviceAddr;
use gapless_testkit::{
    End, Faults, Model, Op::*, Progress, Runner, Stress, Subject, World, budget_of_cases, run_stress,
};
use std::time::Duration;

/// Number of threads, operations per thread, and schedules per seed.
const SHAPES: [(u64, u64, u32); 3] = [(2, 12, 60), (3, 10, 60), (4, 40, 10)];

fn allocator_survives(check: impl Fn(Box<dyn Fn() + Send + Sync>, usize)) {
    for (threads, ops, schedules) in SHAPES {
        for seed in 0..12 {
            let world = World {
                pages: 4 + seed % 5,
                streams: 2,
                chunk_pages: 1 + seed % 2,
                mapping_limit: 12,
                ..World::default()
            };
            let faults = if seed % 3 == 2 { Faults::Some } else { Faults::None };
            let stress = Stress { threads, ops, seed, faults, graphs: false, sleeps: seed % 2 == 1, end: End::Close };
            let schedules = usize::try_from(budget_of_cases(schedules)).expect("a count");
            check(
                Box::new(move || {
                    run_stress::<Model>(&world, stress, &Progress::default());
                }),
                schedules,
            );
        }
    }
}

#[test]
fn random_schedules() {
    allocator_survives(shuttle::check_random);
}

/// Schedules with few preemptions, at the points where they matter most.
#[test]
fn schedules_by_priority() {
    allocator_survives(|body, schedules| shuttle::check_pct(body, schedules, 3));
}

/// Memory that a growth takes beyond the request is cached on the requesting stream, after the work of the stream it
/// came from. A free on another thread may seal the requesting stream's epoch between the plan and the wait: then that
/// memory must not look as if its last use had passed.
#[test]
fn a_free_that_seals_amid_a_growth() {
    shuttle::check_random(
        || {
            let world = World { pages: 5, chunk_pages: 4, ..World::default() };
            let mut runner = Runner::<Model>::new(&world);
            let page = world.page_bytes;
            for op in [
                Alloc { bytes: 1000, align: 9, stream: 1 },
                Record { block: 0, stream: 0 },
                Hold { stream: 1 },
                Alloc { bytes: 4 * page, align: 9, stream: 1 },
                Free { block: 1 },
            ] {
                runner.step(op);
            }
            let allocator = runner.allocator();
            let shared = allocator.live()[0].addr;
            shuttle::thread::scope(|scope| {
                scope.spawn(|| allocator.alloc_raw(3 * world.page_bytes, runner.stream(0)).unwrap());
                scope.spawn(|| allocator.free(shared).unwrap());
            });
            let witness = runner.driver().inner();
            // Usually there is no block: the remaining memory waits for work that has not completed.
            if let Ok(addr) = allocator.alloc_raw(world.page_bytes, runner.stream(2)) {
                witness.fill(runner.stream(2), addr, world.page_bytes, 7).unwrap();
            }
            assert_eq!(witness.take_observations(), [""; 0]);
        },
        40_000,
    );
}

/// The last resort before an error orders the caller's stream after the last use of another stream's free block, and
/// takes the block. In between, its neighbour may be used, freed and merged with it, so that the block that is taken
/// has a later last use than the one waited for.
#[test]
fn a_block_that_grows_while_its_order_is_made() {
    shuttle::check_pct(
        || {
            let world = World { pages: 1, ..World::default() };
            let mut runner = Runner::<Model>::new(&world);
            let half = world.page_bytes / 2;
            for op in [
                Alloc { bytes: half, align: 9, stream: 1 },
                Alloc { bytes: half, align: 9, stream: 1 },
                Hold { stream: 1 },
                Free { block: 1 },
            ] {
                runner.step(op);
            }
            let (allocator, witness) = (runner.allocator(), runner.driver().inner());
            let neighbour = allocator.live()[0].addr;
            let taken = shuttle::thread::scope(|scope| {
                scope.spawn(|| {
                    witness.fill(runner.stream(1), neighbour, half, 7).unwrap();
                    allocator.free(neighbour).unwrap();
                });
                let taken = scope.spawn(|| allocator.alloc_raw(half, runner.stream(2)).unwrap());
                taken.join().unwrap()
            });
            witness.fill(runner.stream(2), taken, half, 8).unwrap();
            assert_eq!(witness.take_observations(), [""; 0]);
        },
        4_000,
        2,
    );
}

/// Free memory that goes from stream to stream: at each moment two pages are free, but whoever looks at one stream after the
/// other may find none. A growth must not be refused for that.
#[test]
fn free_memory_that_is_elsewhere_at_each_look() {
    shuttle::check_random(
        || {
            let world = World { pages: 4, chunk_pages: 1, ..World::default() };
            let mut runner = Runner::<Model>::new(&world);
            let page = world.page_bytes;
            for op in [
                Alloc { bytes: 2 * page, align: 9, stream: 1 },
                Alloc { bytes: 2 * page, align: 9, stream: 2 },
                Free { block: 1 },
            ] {
                runner.step(op);
            }
            let allocator = runner.allocator();
            let first = allocator.live()[0].addr;
            shuttle::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut held = first;
                    for turn in 0..6 {
                        allocator.free(held).unwrap();
                        // The growth may have been faster.
                        let stream = runner.stream([2, 1][turn % 2]);
                        let Some(block) = allocator.alloc_raw_cached(2 * world.page_bytes, 512, stream) else { return };
                        held = block;
                    }
                });
                scope.spawn(|| allocator.alloc_raw(2 * world.page_bytes, runner.stream(0)).unwrap());
            });
            allocator.check();
        },
        20_000,
    );
}

/// A growth plans with free chunks of a stream that goes on allocating and freeing there: what was taken meanwhile is not
/// claimed, and what was claimed before is given back.
#[test]
fn a_growth_beside_pairs_on_the_stream_of_its_chunks() {
    shuttle::check_random(
        || {
            let world = World { pages: 6, chunk_pages: 1, ..World::default() };
            let mut runner = Runner::<Model>::new(&world);
            let page = world.page_bytes;
            for _ in 0..6 {
                runner.step(Alloc { bytes: page, align: 9, stream: 1 });
            }
            let allocator = runner.allocator();
            let live = allocator.live();
            for number in [0, 2, 4] {
                allocator.free(live[number].addr).unwrap();
            }
            let stream = runner.stream(1);
            shuttle::thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in 0..4 {
                        // The first is free again while the second is not: claims go by address.
                        let pair = [(); 2].map(|()| allocator.alloc_raw_cached(world.page_bytes, 512, stream));
                        pair.into_iter().flatten().for_each(|block| allocator.free(block).unwrap());
                    }
                });
                let grown = scope.spawn(|| allocator.alloc_raw(2 * world.page_bytes, runner.stream(0)).unwrap());
                allocator.free(grown.join().unwrap()).unwrap();
            });
            allocator.check();
            assert_eq!(runner.driver().inner().take_observations(), [""; 0]);
            // Nothing stayed claimed: all that is free can be had.
            let rest = allocator.alloc_raw(3 * world.page_bytes, runner.stream(0)).unwrap();
            allocator.free(rest).unwrap();
        },
        5_000,
    );
}

/// A block of the tests below: its address and its bytes.
type Filled = (DeviceAddr, u64);

/// What a thread does with the first of some blocks. It may allocate another one.
type Meanwhile = fn(&Runner<Model>, &[Filled; 4]) -> Option<Filled>;

/// While one thread puts everything to sleep, and wakes it, another goes on, and frees the first block: the other blocks have their
/// bytes, and nothing is asleep or lost in the end.
fn goes_on_beside(sleeps_and_wakes: fn(&Subject<Model>), meanwhile: Meanwhile) {
    let world = World { pages: 10, chunk_pages: 1, ..World::default() };
    let runner = Runner::<Model>::new(&world);
    let (allocator, witness) = (runner.allocator(), runner.driver().inner());
    let home = runner.stream(1);
    // The first two share a page; the others cover pages of their own.
    let blocks = [1000, 1000, 2 * world.page_bytes, world.page_bytes].map(|bytes| {
        let addr = allocator.alloc_raw(bytes, home).unwrap();
        witness.fill(home, addr, bytes, bytes).unwrap();
        (addr, bytes)
    });
    let allocated = shuttle::thread::scope(|scope| {
        scope.spawn(|| sleeps_and_wakes(allocator));
        scope.spawn(|| meanwhile(&runner, &blocks)).join().unwrap()
    });
    allocator.check();
    allocator.wake(Duration::ZERO).unwrap();
    allocator.check();
    // What was freed may have been allocated again.
    let is_left = |(addr, _): &Filled| {
        allocator.live_around(*addr).is_some_and(|live| live.addr == *addr)
            && allocated.is_none_or(|other| other.0 != *addr)
    };
    let left: Vec<Filled> = blocks.into_iter().filter(is_left).collect();
    for (addr, bytes) in &left {
        witness.verify(home, *addr, *bytes, *bytes).unwrap();
    }
    if let Some((addr, bytes)) = &allocated {
        witness.fill(home, *addr, *bytes, 7).unwrap();
    }
    for (addr, _) in left.into_iter().chain(allocated) {
        allocator.free(addr).unwrap();
    }
    allocator.check();
    assert_eq!((witness.take_mismatches().len(), witness.take_observations()), (0, vec![]));
    let stats = allocator.stats();
    assert_eq!((stats.asleep_bytes, stats.live_bytes), (0, 0));
    // Nothing stayed claimed, and nothing that waits for a stream is lost: all there is can be had.
    witness.synchronize(runner.stream(2)).unwrap();
    let all = allocator.alloc_raw(world.bytes(), home).unwrap();
    allocator.free(all).unwrap();
}

fn schedules_beside(sleeps_and_wakes: fn(&Subject<Model>)) {
    let small: Meanwhile = |runner, [first, second, ..]| {
        let allocator = runner.allocator();
        allocator.free(first.0).unwrap();
        allocator.record_stream(second.0, runner.stream(2)).unwrap();
        Some((allocator.alloc_raw(1000, runner.stream(1)).unwrap(), 1000))
    };
    let large: Meanwhile = |runner, [.., third, _]| {
        let allocator = runner.allocator();
        allocator.record_stream(third.0, runner.stream(2)).unwrap();
        allocator.free(third.0).unwrap();
        Some((allocator.alloc_raw(third.1, runner.stream(1)).unwrap(), third.1))
    };
    let pinned: Meanwhile = |runner, [first, .., last]| {
        for (addr, _) in [first, last] {
            // Refused where it is asleep.
            drop(runner.allocator().pin(*addr));
            runner.allocator().free(*addr).unwrap();
        }
        None
    };
    for meanwhile in [small, large, pinned] {
        let schedules = usize::try_from(budget_of_cases(3_000)).expect("a count");
        shuttle::check_random(move || goes_on_beside(sleeps_and_wakes, meanwhile), schedules);
        shuttle::check_pct(move || goes_on_beside(sleeps_and_wakes, meanwhile), schedules, 3);
    }
}

#[test]
fn frees_amid_a_sleep() {
    schedules_beside(|allocator| assert!(allocator.sleep(Backup::Pinned).is_ok()));
}

/// A free found a block that was marked as shared, and had woken when it looked again: it was refused.
#[test]
fn frees_amid_a_sleep_and_a_wake() {
    schedules_beside(|allocator| {
        allocator.sleep(Backup::Pinned).unwrap();
        allocator.wake(Duration::ZERO).unwrap();
    });
}

/// The same where backups are retained, and written to again.
#[test]
fn frees_amid_sleeps_with_retained_backups() {
    schedules_beside(|allocator| {
        for _ in 0..2 {
            allocator.sleep(Backup::Pinned).unwrap();
            allocator.wake(Wake { retain: true, ..Wake::default() }).unwrap();
        }
    });
}
