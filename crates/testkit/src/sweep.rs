//! The fault sweep: for every public operation and every n, makes the operation's n-th driver call fail, in situations
//! that together make every kind of driver call. Afterwards, state and statistics must be as before, nothing may be
//! leaked, and the same call must succeed (the runner repeats it).

use crate::device::{Device, SMALL_REGION, World};
use crate::op::{Failure, Op, Op::*};
use crate::runner::Runner;
use gapless::allocator::Backup;
use gapless::driver::DriverCall;
use std::collections::BTreeSet;

/// A situation, and the operation that fails in it.
#[derive(Clone, Debug)]
pub struct Case {
    /// Name of the case.
    pub name: &'static str,
    /// World of the case.
    pub world: World,
    /// Operations that lead to the situation.
    pub before: Vec<Op>,
    /// Operation whose driver calls fail.
    pub op: Op,
}

/// Returns the cases, in worlds with pages of `page` bytes.
pub fn cases(page: u64) -> Vec<Case> {
    let usual = World { pages: 8, page_bytes: page, ..World::default() };
    let case = |name, before: &[Op], op| Case { name, world: usual, before: before.to_vec(), op };
    let alloc = |pages, stream| Alloc { bytes: pages * page, align: 9, stream };
    let free = |block| Free { block };
    let cached_on_two = [alloc(4, 0), alloc(4, 1), free(0), free(0)];
    let held_other = [Hold { stream: 1 }, alloc(8, 1), free(0)];
    let renewed = [Hold { stream: 1 }, alloc(4, 1), free(0), Renew { stream: 1 }];
    let gaps = [alloc(2, 0), alloc(2, 0), alloc(2, 0), alloc(2, 0), free(0), free(1)];
    let asleep =
        [alloc(2, 0), Alloc { bytes: page / 2, align: 9, stream: 1 }, alloc(1, 0), Sleep { backup: Backup::Pinned }];
    let shared = [Hold { stream: 1 }, alloc(8, 0), Read { block: 0, stream: 1 }, free(0)];
    let range = |pages| ReserveRange { pages };
    let grow = |range, pages, stream| GrowRange { range, pages, stream };
    let shrink = |range, pages| ShrinkRange { range, pages };
    let take = |to, from, pages, stream| TakeRange { to, from, pages, stream };
    let two_ranges = [range(4), range(5), grow(0, 4, 0), grow(1, 1, 1), Hold { stream: 1 }];
    let registered = |pages: u8| AllocRegistered { pages: pages - 1, stream: 1 };
    let large_chunks = World { chunk_pages: 4, ..usual };
    let whole_blocks = World { whole_blocks: true, ..usual };
    let not_kept = World { kept: false, ..usual };
    let (begin, end) = (|stream| BeginCapture { stream }, |stream| EndCapture { stream });
    // A graph that used four pages, of which half are a live block, and a replay of it in flight on another stream.
    let graph = [OpenPool, begin(1), alloc(2, 1), alloc(2, 1), free(0), end(1), Replay { graph: 0, stream: 2 }];
    let in_flight = |more: &[Op]| [&graph[..], more].concat();
    // The fourth stream is the thread's own.
    let own_streams = World { own_streams: true, ..usual };
    let watched = [Hold { stream: 1 }, Watch { stream: 1 }, Renew { stream: 1 }, Watch { stream: 1 }];
    let watched = [&watched[..], &[Watch { stream: 2 }, Watch { stream: 1 }]].concat();
    let foreign = [Hold { stream: 1 }, alloc(2, 0), ForeignUse { block: 0, stream: 1 }];
    let peer = AddPeer { peer: 0 };
    let few_mappings = World { mapping_limit: 8, ..usual };
    let small = |stream| Alloc { bytes: 100, align: 9, stream };
    // The first arena has no free slot, the region of large blocks has four unmapped pages in a row, and the free chunks have
    // three.
    let small_region = World { pages: SMALL_REGION + 5, chunk_pages: 3, region_pages: SMALL_REGION, ..usual };
    let full_region = [
        [small(0), small(1), alloc(1, 0), alloc(4, 0), alloc(27, 0), free(3), Trim { keep: 0 }],
        [alloc(3, 1), alloc(1, 1), alloc(3, 1), Hold { stream: 1 }, free(6), free(4), Complete { stream: 0 }],
    ];
    vec![
        case("the first allocation", &[], alloc(3, 0)),
        case("the first small one", &[], Alloc { bytes: 100, align: 9, stream: 0 }),
        case("an aligned one", &[alloc(1, 0)], Alloc { bytes: 3 * page, align: 19, stream: 0 }),
        case("another stream's first", &[alloc(1, 0)], alloc(2, 1)),
        case("growth", &[alloc(3, 0)], alloc(3, 0)),
        case("a cached block of another stream", &[alloc(3, 0), free(0)], alloc(3, 1)),
        case("remap on one stream", &gaps, alloc(4, 0)),
        case("remap from two streams", &cached_on_two, alloc(8, 2)),
        case("remap after a wait", &held_other, alloc(8, 0)),
        case("remap and reactivation", &[&gaps[..], &[alloc(4, 0), free(2)]].concat(), alloc(2, 1)),
        case("a wait for a shared block", &shared, alloc(8, 0)),
        Case {
            world: large_chunks,
            ..case("recreated in other sizes", &[alloc(4, 0), alloc(2, 0), free(0)], alloc(6, 1))
        },
        Case { world: small_region, ..case("a further region", &full_region.concat(), alloc(4, 0)) },
        Case { world: whole_blocks, ..case("a block in one chunk", &[alloc(2, 0), free(0)], alloc(3, 0)) },
        Case { world: whole_blocks, ..case("one in several, for want of memory", &gaps, alloc(4, 0)) },
        Case { world: large_chunks, ..case("a chunk released", &[alloc(8, 0), free(0), alloc(1, 0)], alloc(6, 1)) },
        Case {
            world: few_mappings,
            ..case("the limit of mappings", &[&gaps[..], &[alloc(4, 0), free(0)]].concat(), alloc(4, 1))
        },
        case("more than the device has", &[alloc(5, 0)], alloc(4, 0)),
        Case { world: not_kept, ..case("a new stream recorded", &[alloc(2, 0)], Record { block: 0, stream: 1 }) },
        Case { world: not_kept, ..case("a new stream's first", &[alloc(1, 0)], alloc(2, 1)) },
        Case { world: not_kept, ..case("a wait for the device", &held_other, alloc(8, 0)) },
        Case { world: not_kept, ..case("another stream of the same handle", &renewed, alloc(8, 1)) },
        Case { world: own_streams, ..case("the thread's own stream", &[alloc(1, 0)], alloc(2, 3)) },
        Case {
            world: own_streams,
            ..case("memory of the thread's own stream", &[Hold { stream: 3 }, alloc(8, 3), free(0)], alloc(8, 0))
        },
        Case {
            world: own_streams,
            ..case("a block of the thread's own stream", &[alloc(2, 3), Write { block: 0, stream: 1 }], free(0))
        },
        case("the handle of a forgotten stream", &renewed, alloc(8, 1)),
        case("a shared block freed", &[Hold { stream: 1 }, alloc(2, 0), Read { block: 0, stream: 1 }], free(0)),
        case("a stream watched", &[Hold { stream: 1 }, alloc(1, 0), Watch { stream: 1 }], Watch { stream: 2 }),
        Case { world: not_kept, ..case("a watched stream waited for", &watched, Watch { stream: 0 }) },
        case("a block that another device uses", &foreign, free(0)),
        Case { world: not_kept, ..case("such a use of a stream that is not kept", &foreign, free(0)) },
        case("a peer", &cached_on_two, peer),
        case("a peer that reaches stale views", &[&gaps[..], &[alloc(4, 0), free(2)]].concat(), peer),
        case("a peer that reaches ranges", &[&two_ranges[..], &[take(1, 0, 2, 2)]].concat(), peer),
        case("a peer that reaches a pool", &in_flight(&[free(0), alloc(3, 1)]), peer),
        case("a peer that reaches two allocators", &[alloc(3, 0), OpenAllocator, alloc(2, 1)], peer),
        case("growth within a peer's reach", &[alloc(3, 0), peer], alloc(3, 1)),
        case(
            "stale views within a peer's reach",
            &[&gaps[..], &[alloc(4, 0), peer, free(2), free(0)]].concat(),
            alloc(6, 0),
        ),
        case("growth once a peer has left", &[alloc(3, 0), peer, RemovePeer { peer: 0 }], alloc(3, 1)),
        case("trim", &cached_on_two, Trim { keep: 0 }),
        case("trim to a half", &[alloc(8, 0), free(0), alloc(2, 0)], Trim { keep: 4 }),
        case("trim of stale views", &[&gaps[..], &[alloc(4, 0), free(2)]].concat(), Trim { keep: 1 }),
        case("trim of memory that waits", &held_other, Trim { keep: 0 }),
        case("a sleep", &asleep[..3], Sleep { backup: Backup::Pinned }),
        case("a sleep that discards", &asleep[..3], Sleep { backup: Backup::Discard }),
        case("a sleep in pageable memory", &asleep[..3], Sleep { backup: Backup::Pageable }),
        case("a sleep in a file", &asleep[..3], Sleep { backup: Backup::File }),
        case(
            "a wake from both",
            &[&asleep[..3], &[Sleep { backup: Backup::File }, alloc(1, 1), Sleep { backup: Backup::Pageable }]]
                .concat(),
            Wake { retain: true },
        ),
        case("a sleep beside a pin", &[&asleep[..3], &[Pin { block: 1 }]].concat(), Sleep { backup: Backup::Pinned }),
        case("a second sleep", &[&asleep[..], &[alloc(1, 1)]].concat(), Sleep { backup: Backup::Pinned }),
        case("a sleep of memory that waits", &shared[..3], Sleep { backup: Backup::Pinned }),
        Case {
            world: not_kept,
            ..case("a sleep that waits for the device", &held_other[..2], Sleep { backup: Backup::Pinned })
        },
        case("a sleep that is not finished", &asleep[..3], SleepInPart { backup: Backup::Discard, unmaps: true }),
        case("a wake", &asleep, Wake { retain: false }),
        case("a wake that is not finished", &asleep, WakeInPart { copies: true }),
        case("a wake after a free", &[&asleep[..], &[free(1)]].concat(), Wake { retain: false }),
        case(
            "a wake out of the heaps",
            &[&asleep[..], &[alloc(6, 1), free(3), alloc(1, 1)]].concat(),
            Wake { retain: false },
        ),
        case("more than a wake can have", &[&asleep[..], &[alloc(6, 1)]].concat(), Wake { retain: false }),
        Case { world: large_chunks, ..case("a wake of parts of large chunks", &asleep, Wake { retain: false }) },
        case("a lower budget", &cached_on_two, Budget { pages: 3 }),
        case("a range", &[alloc(1, 0)], ReserveRange { pages: 3 }),
        case("a range's growth", &[alloc(3, 0), range(7)], grow(0, 3, 0)),
        case("a range's growth for another stream", &[range(7), grow(0, 2, 0)], grow(0, 2, 1)),
        case("a range's growth over idle chunks", &[range(7), grow(0, 4, 0), shrink(0, 3)], grow(0, 3, 1)),
        case("a range's growth out of the heaps", &[&cached_on_two[..], &[range(7)]].concat(), grow(0, 6, 2)),
        case("a range's growth after a wait", &[&shared[..], &[range(7)]].concat(), grow(0, 5, 0)),
        Case {
            world: large_chunks,
            ..case("a range's growth that replaces large chunks", &[alloc(8, 0), free(0), range(7)], grow(0, 3, 0))
        },
        case("more than a range can have", &[alloc(5, 0), range(7)], grow(0, 4, 0)),
        case("a range shrunk", &two_ranges, shrink(0, 2)),
        case("pages taken and unmapped", &[&two_ranges[..], &[take(1, 0, 2, 2)]].concat(), shrink(1, 3)),
        case("pages taken", &two_ranges, take(1, 0, 2, 2)),
        case("pages taken back", &[&two_ranges[..], &[take(1, 0, 2, 2)]].concat(), take(0, 1, 3, 1)),
        case("growth where pages were taken", &[&two_ranges[..], &[take(1, 0, 2, 2)]].concat(), grow(0, 2, 0)),
        case("a range used by another stream", &two_ranges, WriteRange { range: 0, stream: 2 }),
        case("an allocation of pages that a range unmapped", &[&two_ranges[..], &[shrink(0, 3)]].concat(), alloc(5, 0)),
        case("a range dropped", &[&two_ranges[..], &[take(1, 0, 2, 2)]].concat(), DropRange { range: 0 }),
        case("a registered block", &[alloc(2, 0)], registered(3)),
        case("a registered block out of the heaps", &cached_on_two, registered(7)),
        case("a registered block after a wait", &shared, registered(5)),
        case("a registered block freed", &[registered(2), alloc(2, 0)], FreeRegistered { block: 0 }),
        case("a freed block whose pin goes", &[alloc(4, 0), Pin { block: 0 }, free(0)], Unpin { pin: 0 }),
        case("an allocation beside a pinned block", &[alloc(4, 0), Pin { block: 0 }, free(0)], alloc(4, 1)),
        case("a pool's first allocation", &[OpenPool], alloc(3, 0)),
        case("a pool's first allocation in a capture", &[OpenPool, begin(1)], alloc(3, 1)),
        case("growth of a pool behind a replay", &graph, alloc(3, 1)),
        case("a further view in a pool, in a capture", &in_flight(&[free(0), begin(1)]), alloc(4, 1)),
        case("another stream's turn in a pool", &graph, alloc(4, 0)),
        case("more than a pool can have", &in_flight(&[free(0)]), alloc(5, 2)),
        case("a shared block of a pool freed", &in_flight(&[Write { block: 0, stream: 0 }]), free(0)),
        case("trim of a pool", &in_flight(&[free(0)]), Trim { keep: 0 }),
        case("a lower budget of a pool", &in_flight(&[free(0)]), Budget { pages: 3 }),
        case("a sleep of a pool", &in_flight(&[free(0)]), Sleep { backup: Backup::Pinned }),
        case(
            "a sleep of a pool that is not finished",
            &in_flight(&[free(0)]),
            SleepInPart { backup: Backup::Pinned, unmaps: true },
        ),
        case("a sleep of a pool that discards", &in_flight(&[free(0)]), Sleep { backup: Backup::Discard }),
        case(
            "a wake of a pool",
            &in_flight(&[free(0), alloc(3, 1), Sleep { backup: Backup::Pinned }]),
            Wake { retain: false },
        ),
        case(
            "a wake of a pool after a free",
            &in_flight(&[free(0), alloc(3, 1), Sleep { backup: Backup::Pinned }, free(0), alloc(1, 1)]),
            Wake { retain: false },
        ),
        case(
            "more than a wake of a pool can have",
            &in_flight(&[Sleep { backup: Backup::Pinned }, alloc(6, 1)]),
            Wake { retain: false },
        ),
        Case {
            world: large_chunks,
            ..case(
                "a wake of large chunks of a pool",
                &in_flight(&[free(0), alloc(3, 1), Sleep { backup: Backup::Pinned }]),
                Wake { retain: false },
            )
        },
        case("a range's growth beside a pool", &in_flight(&[free(0), range(7)]), grow(0, 4, 2)),
        Case {
            world: large_chunks,
            ..case("larger chunks in a pool", &in_flight(&[free(0), alloc(3, 1)]), alloc(4, 1))
        },
        Case { world: few_mappings, ..case("a pool at the limit of mappings", &in_flight(&[free(0)]), alloc(6, 1)) },
        Case {
            world: not_kept,
            ..case("a new stream in a pool", &in_flight(&[free(0), Renew { stream: 1 }]), alloc(2, 1))
        },
        case("another allocator's turn", &[alloc(5, 0), OpenAllocator], alloc(3, 0)),
        case("another allocator's range", &[alloc(5, 0), OpenAllocator, range(7)], grow(0, 3, 0)),
    ]
}

/// Makes every driver call of every case fail with each of `kinds`. Returns the kinds of calls that were made.
///
/// # Panics
/// Panics if a check fails afterwards.
pub fn sweep<D: Device>(kinds: &[Failure]) -> BTreeSet<DriverCall> {
    let page = D::PAGE_BYTES;
    let mut calls = BTreeSet::new();
    for case in cases(page) {
        for kind in kinds {
            for nth in 0.. {
                let mut runner = Runner::<D>::new(&case.world);
                for op in &case.before {
                    runner.step(*op);
                }
                let before = runner.driver().passed();
                runner.step(Fail { nth, kind: *kind });
                runner.step(case.op);
                if runner.faults() == 0 {
                    calls.extend(runner.driver().passed().since(&before).iter().map(|(call, _)| call));
                    runner.finish();
                    break;
                }
                assert!(nth < 200, "{}: {kind:?} never stops occurring", case.name);
                if *kind == Failure::Lost {
                    // The device is lost: there must be no endless loop and no panic, and frees still work.
                    runner.step(Alloc { bytes: page, align: 9, stream: 0 });
                    runner.step(Free { block: 0 });
                    runner.step(GrowRange { range: 0, pages: 1, stream: 0 });
                } else {
                    runner.step(Trim { keep: 0 });
                    runner.step(Alloc { bytes: page, align: 9, stream: 2 });
                    runner.step(GrowRange { range: 0, pages: 1, stream: 2 });
                }
                runner.finish();
            }
        }
    }
    calls
}
