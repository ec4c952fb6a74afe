//! Every sequence of a few operations over 3 sizes and 2 streams on a device of 4 pages, and over sleep and wake.

use gapless_testkit::{Backup, Model, Op, Op::*, PrintOnPanic, Runner, World};

const PAGE: u64 = 64 << 10;
/// Variable for the number of operations in a sequence. One more takes about twelve times as long.
const LENGTH: &str = "GAPLESS_PROOF_LENGTH";

/// Returns the operations that can follow with `live` live blocks: allocations, a free of each block, uses by the other
/// stream, streams that stop and continue, and a trim.
fn next(live: usize) -> Vec<Op> {
    let mut next = Vec::new();
    for stream in [0, 1] {
        for bytes in [PAGE / 2, PAGE, 3 * PAGE] {
            next.push(Alloc { bytes, align: 9, stream });
        }
    }
    for block in 0..u16::try_from(live).expect("few blocks") {
        next.push(Free { block });
    }
    if live > 0 {
        next.push(Write { block: 0, stream: 0 });
        next.push(Write { block: 0, stream: 1 });
    }
    next.push(Complete { stream: 1 });
    next.push(Trim { keep: 0 });
    next
}

/// The same with sleep and wake, over 2 sizes.
fn next_with_sleep(live: usize) -> Vec<Op> {
    let mut next = Vec::new();
    for stream in [0, 1] {
        for bytes in [PAGE / 2, 2 * PAGE] {
            next.push(Alloc { bytes, align: 9, stream });
        }
    }
    for block in 0..u16::try_from(live).expect("few blocks") {
        next.push(Free { block });
    }
    if live > 0 {
        next.push(Write { block: 0, stream: 1 });
    }
    next.push(Complete { stream: 1 });
    next.push(Sleep { backup: Backup::Pinned });
    next.push(Wake { retain: false });
    next.push(Wake { retain: true });
    next
}

/// Runs every continuation of `ops`. Returns the number of sequences. Work on stream 1 completes only when an operation says so.
fn explore(world: &World, next: fn(usize) -> Vec<Op>, ops: &[Op], length: usize) -> u64 {
    let _print = PrintOnPanic(world, ops);
    let mut runner = Runner::<Model>::new(world);
    runner.act(Hold { stream: 1 });
    for (index, op) in ops.iter().enumerate() {
        // The operations before the last one were checked when they were the last.
        if index + 1 == ops.len() { runner.step(*op) } else { runner.act(*op) }
    }
    let live = runner.live();
    runner.finish();
    if ops.len() == length {
        return 1;
    }
    let mut count = 1;
    for op in next(live) {
        let mut longer = ops.to_vec();
        longer.push(op);
        count += explore(world, next, &longer, length);
    }
    count
}

/// Runs every sequence of operations, half of them by the first on each of two threads.
fn explore_all(next: fn(usize) -> Vec<Op>) {
    let length = std::env::var(LENGTH).ok().and_then(|text| text.parse().ok()).unwrap_or(5);
    let world = World { pages: 4, streams: 2, ..World::default() };
    let count = std::thread::scope(|scope| {
        let halves = [0, 1].map(|half| {
            let world = &world;
            scope.spawn(move || {
                let first = next(0).into_iter().enumerate().filter(|(number, _)| number % 2 == half);
                first.map(|(_, op)| explore(world, next, &[op], length)).sum::<u64>()
            })
        });
        halves.map(|half| half.join().expect("a sequence failed; see above")).iter().sum::<u64>()
    });
    eprintln!("{count} sequences of up to {length} operations");
    assert!(count > 1000 || length < 3);
}

#[test]
fn every_sequence_in_a_small_world() {
    explore_all(next);
}

#[test]
fn every_sequence_with_sleep_and_wake() {
    explore_all(next_with_sleep);
}
