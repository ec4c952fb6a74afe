//! Sequences in worlds of every size: up to 1,000 streams, and devices of up to 1 TiB, in pages of 2 MiB and 64 KiB.

use gapless::units::{GIB, KIB, MIB};
use gapless_testkit::{
    LARGEST_DEVICE, MOST_STREAMS, Model, Op, Op::*, Runner, Summary, World, as_test, by_logarithm, is_reduced,
    large_ops, prove, run,
};
use proptest::prelude::*;
use std::cell::RefCell;

const CASES: u32 = 40;
const MOST_OPS: usize = 50;

fn show((world, ops): &(World, Vec<Op>)) -> String {
    as_test(world, ops)
}

#[test]
fn any_sequence() {
    let sum = RefCell::new(Summary::default());
    prove(CASES, &large_ops(MOST_OPS), show, |(world, ops)| {
        sum.borrow_mut().add(&run::<Model>(world, ops));
    });
    let sum = sum.into_inner();
    eprintln!("{} allocations, {} refusals judged", sum.stats.allocs, sum.out_of_memory);
    let happened =
        [sum.out_of_memory, sum.faults, sum.stats.borrowed, sum.stats.harvested_chunks, sum.stats.host_waits];
    assert!(is_reduced() || happened.iter().all(|figure| *figure > 0), "a figure is 0: {happened:?}");
}

/// On a device of 3 TiB, the regions of 128 streams take nearly all addresses of the process. A stream without a region cannot
/// have nearly all of the memory then: an error, and no more.
#[test]
fn addresses_run_out() {
    let world = World {
        pages: 3 * LARGEST_DEVICE / (2 * MIB),
        page_bytes: 2 * MIB,
        chunk_pages: 0,
        streams: 1000,
        ..World::default()
    };
    let ops = [
        Fill { bytes: 800 * MIB, beside: 1, stream: 0, count: 127, spread: true },
        Alloc { bytes: 8 * GIB, align: 9, stream: 0 },
        Thin { every: 2, kept: 1 },
        AllocRest { less: 0, stream: 700 },
    ];
    let sum = run::<Model>(&world, &ops);
    assert_eq!(sum.out_of_addresses, 1);
}

/// A feature of worlds, the least percentage of the cases that have it, and whether a world has it.
type Share = (&'static str, usize, fn(&World) -> bool);

/// The inputs of `any_sequence` reach both ends of what they are drawn from, in as many cases as it runs.
#[test]
fn worlds_of_all_sizes_occur() {
    let worlds = RefCell::new(Vec::new());
    prove(1000, &large_ops(2), show, |(world, _)| worlds.borrow_mut().push(*world));
    let worlds = worlds.into_inner();
    if is_reduced() {
        return;
    }
    let is_large = |world: &World| world.bytes() >= LARGEST_DEVICE / 16;
    let shares: [Share; 12] = [
        ("1 TiB", 5, |world| world.bytes() == LARGEST_DEVICE),
        ("64 GiB or more", 20, |world| world.bytes() >= LARGEST_DEVICE / 16),
        ("256 MiB or less", 20, |world| world.bytes() <= 256 * MIB),
        ("1,000 streams", 5, |world| world.streams as u64 == MOST_STREAMS),
        ("100 streams or more", 25, |world| world.streams >= 100),
        ("10 streams or less", 20, |world| world.streams <= 10),
        ("chunks of the allocator's choice", 30, |world| world.chunk_pages == 0),
        ("chunks of several pages", 30, |world| world.chunk_pages > 1),
        ("pages of 64 KiB", 30, |world| world.page_bytes == 64 * KIB),
        ("pages of 2 MiB", 30, |world| world.page_bytes == 2 * MIB),
        ("streams that are forgotten", 30, |world| world.kept),
        ("threads' own streams", 30, |world| world.own_streams),
    ];
    for (what, least, is_so) in shares {
        let percent = worlds.iter().filter(|world| is_so(world)).count() * 100 / worlds.len();
        eprintln!("{percent} % of the worlds have {what}");
        assert!(percent >= least, "{percent} % of the worlds have {what}");
    }
    let both = worlds.iter().filter(|world| is_large(world) && world.streams >= 500).count() * 100 / worlds.len();
    eprintln!("{both} % have 64 GiB or more and 500 streams or more");
    assert!(both >= 3, "{both} % of the worlds have many streams on a large device");
}

/// Bytes that the chunk of a stream's small blocks may have.
const SMALL_AHEAD: u64 = 8 * MIB;

/// Blocks that stay pin memory beyond the pages that they use: a device is filled with pairs of a large and a small block, the
/// large ones are freed, and 95 % of the whole free pages are asked for in one request.
#[test]
fn pairs() {
    let streams = prop_oneof![Just(1), by_logarithm(1, MOST_STREAMS)];
    let devices = by_logarithm(10 * GIB, LARGEST_DEVICE);
    let input = (devices, by_logarithm(30 * MIB, 500 * MIB), by_logarithm(512, 4 * MIB), streams);
    let input = input.prop_map(|(device, large, small, streams)| {
        let page_bytes = 2 * MIB;
        let world = World {
            pages: device / page_bytes,
            page_bytes,
            chunk_pages: 0,
            streams: usize::try_from(streams).expect("few streams"),
            ..World::default()
        };
        let large = large.max(device / 2000);
        let fill = Fill { bytes: large, beside: small, stream: 0, count: u16::MAX, spread: true };
        (world, vec![fill, Thin { every: 2, kept: 1 }])
    });
    prove(8, &input, show, |(world, ops)| {
        let mut runner = Runner::<Model>::new(world);
        for op in ops {
            runner.step(*op);
        }
        let Fill { beside, .. } = ops[0] else { return };
        let for_small = if beside < 64 * KIB { world.streams as u64 * SMALL_AHEAD / world.page_bytes } else { 0 };
        let pages = (runner.promise(0).free_pages * 95 / 100).saturating_sub(for_small);
        let live = runner.live();
        runner.step(Alloc { bytes: pages * world.page_bytes, align: 9, stream: 0 });
        assert_eq!(runner.live(), live + 1, "{pages} pages were refused: {:?}", runner.promise(0));
        runner.finish();
    });
}
