//! Sequences that once failed, as printed by the test kit.

use gapless::units::{GIB, MIB};
use gapless_testkit::{Op::*, *};

/// Between planning and mapping, stale views were dropped because of the mapping limit, including views that the plan
/// reactivated.
#[test]
fn the_mapping_limit_does_not_drop_views_that_a_plan_reactivates() {
    let world = World { pages: 15, mapping_limit: 12, ..World::default() };
    run::<Model>(
        &world,
        &[
            Alloc { bytes: 262145, align: 9, stream: 113 },
            Alloc { bytes: 119297, align: 9, stream: 53 },
            Alloc { bytes: 65536, align: 9, stream: 79 },
            Alloc { bytes: 76289, align: 9, stream: 77 },
            Alloc { bytes: 0, align: 9, stream: 7 },
            Alloc { bytes: 0, align: 9, stream: 4 },
            Budget { pages: 31 },
            Alloc { bytes: 0, align: 9, stream: 5 },
            Alloc { bytes: 0, align: 9, stream: 41 },
            Free { block: 19840 },
            Free { block: 500 },
            Free { block: 5500 },
            Free { block: 9764 },
            Free { block: 4182 },
            Alloc { bytes: 0, align: 9, stream: 0 },
            Free { block: 29123 },
            Alloc { bytes: 0, align: 9, stream: 0 },
            Free { block: 1595 },
            Alloc { bytes: 131073, align: 9, stream: 31 },
        ],
    );
}

/// A range grew only by memory that was already free: it did not wait for a block freed after another stream's work.
#[test]
fn a_range_waits_for_freed_blocks_of_other_streams() {
    let world = World { pages: 12, ..World::default() };
    run::<Model>(
        &world,
        &[
            Hold { stream: 1 },
            Alloc { bytes: 262145, align: 9, stream: 2 },
            Alloc { bytes: 0, align: 9, stream: 0 },
            Write { block: 0, stream: 1 },
            Free { block: 0 },
            Alloc { bytes: 65537, align: 9, stream: 0 },
            ReserveRange { pages: 4 },
            GrowRange { range: 0, pages: 5, stream: 0 },
        ],
    );
}

/// Pages that a range had taken from another one and then unmapped were still mapped in the other, and could not be
/// used.
#[test]
fn pages_taken_and_given_up_again_are_free() {
    let world = World { pages: 4, ..World::default() };
    run::<Model>(
        &world,
        &[
            ReserveRange { pages: 4 },
            ReserveRange { pages: 4 },
            GrowRange { range: 0, pages: 4, stream: 0 },
            TakeRange { to: 1, from: 0, pages: 2, stream: 1 },
            ShrinkRange { range: 1, pages: 2 },
            Alloc { bytes: 131072, align: 9, stream: 2 },
        ],
    );
}

/// While more than a lowered budget was held, a range could not grow with free memory.
#[test]
fn a_range_takes_what_is_free_above_the_budget() {
    let world = World { pages: 8, ..World::default() };
    run::<Model>(
        &world,
        &[
            Alloc { bytes: 327680, align: 9, stream: 0 },
            Alloc { bytes: 196608, align: 9, stream: 0 },
            Budget { pages: 4 },
            Free { block: 1 },
            ReserveRange { pages: 4 },
            GrowRange { range: 0, pages: 1, stream: 0 },
        ],
    );
}

/// Epochs were renumbered between a plan and its failure: the blocks that the plan had claimed got their old epoch
/// back, which no stream passes for 2^32 seals.
#[test]
fn epochs_are_renumbered_while_a_plan_fails() {
    let world = World {
        pages: 36,
        chunk_pages: 2,
        streams: 2,
        slack_percent: 10,
        mapping_limit: 12,
        region_pages: 32,
        epoch_limit: 4,
        ..World::default()
    };
    run::<Model>(
        &world,
        &[
            Alloc { bytes: 0, align: 9, stream: 89 },
            Free { block: 0 },
            Alloc { bytes: 65536, align: 9, stream: 43 },
            Free { block: 0 },
            Alloc { bytes: 327681, align: 9, stream: 19 },
            Free { block: 0 },
            BeginCapture { stream: 224 },
            Alloc { bytes: 196608, align: 9, stream: 74 },
            Alloc { bytes: 0, align: 9, stream: 30 },
            Free { block: 0 },
            Free { block: 0 },
            Alloc { bytes: 0, align: 9, stream: 158 },
            Alloc { bytes: 131073, align: 9, stream: 43 },
            Alloc { bytes: 261633, align: 9, stream: 91 },
        ],
    );
}

/// The device had less memory than the budget allowed. A page of it was created for a plan that could not be carried out, was
/// counted as still to be had, and so a chunk of two pages was asked for: refused a second time, the request gave up.
#[test]
fn what_the_device_has_left_is_asked_again() {
    let world = World { pages: 15, chunk_pages: 2, streams: 1, kept: false, own_streams: true, ..World::default() };
    run::<Model>(
        &world,
        &[
            External { pages: 22 },
            Alloc { bytes: 0, align: 9, stream: 0 },
            Alloc { bytes: 196608, align: 9, stream: 0 },
            Alloc { bytes: 196608, align: 9, stream: 65 },
            Free { block: 1 },
            Alloc { bytes: 262144, align: 9, stream: 8 },
        ],
    );
}

/// The chunk of a registered block is ordinary memory once the block is free, however large the other chunks are: a range that
/// takes it gives it up whole. The oracle expected chunks of a page only.
#[test]
fn a_range_gives_up_what_was_a_registered_block_whole() {
    let world = World { pages: 6, chunk_pages: 1, streams: 1, ..World::default() };
    run::<Model>(
        &world,
        &[
            AllocRegistered { pages: 2, stream: 0 },
            FreeRegistered { block: 0 },
            ReserveRange { pages: 3 },
            GrowRange { range: 0, pages: 3, stream: 0 },
            ShrinkRange { range: 0, pages: 1 },
        ],
    );
}

/// A free chunk was released so that single pages could be created, but others had taken its memory: the request was refused,
/// although the other free chunks would have served it.
#[test]
fn a_chunk_whose_memory_others_take_is_done_without() {
    let world = World {
        pages: 17,
        chunk_pages: 1,
        streams: 2,
        slack_percent: 0,
        kept: false,
        own_streams: true,
        ..World::default()
    };
    run::<Model>(
        &world,
        &[
            Alloc { bytes: 196608, align: 9, stream: 1340 },
            AllocRegistered { pages: 1, stream: 0 },
            FreeRegistered { block: 0 },
            Free { block: 0 },
            Alloc { bytes: 262145, align: 9, stream: 19660 },
            Free { block: 0 },
            External { pages: 10 },
            Alloc { bytes: 262144, align: 9, stream: 828 },
        ],
    );
}

/// The driver did not release a chunk in whose place others were to be created: with these, more than the budget was held.
#[test]
fn what_the_driver_does_not_release_is_held() {
    let world = World {
        pages: 36,
        chunk_pages: 0,
        streams: 1,
        slack_percent: 0,
        region_pages: 32,
        kept: true,
        own_streams: false,
        ..World::default()
    };
    run::<Model>(
        &world,
        &[
            Fail { nth: 9, kind: Failure::NoMemory },
            Alloc { bytes: 0, align: 9, stream: 0 },
            Budget { pages: 33 },
            Hold { stream: 0 },
            Free { block: 0 },
            Alloc { bytes: 131072, align: 9, stream: 0 },
        ],
    );
}

/// A huge block for which larger chunks are given back ends within a page that it shares: that page was in a chunk with pages
/// which the block covers whole, so whoever shares it kept them from others.
#[test]
fn a_huge_block_ends_in_a_chunk_of_one_page() {
    let page_bytes = 2 * MIB;
    let world =
        World { pages: LARGEST_DEVICE / page_bytes, page_bytes, chunk_pages: 0, streams: 1, ..World::default() };
    run::<Model>(
        &world,
        &[
            Fill { bytes: 16 * GIB, beside: 0, stream: 0, count: 64, spread: false },
            Thin { every: 2, kept: 0 },
            Alloc { bytes: 32 * GIB + 126 * MIB + 512, align: 9, stream: 0 },
        ],
    );
}

/// A capture waits for a replay on its stream. What was read on that stream later, without a word to the allocator, was behind
/// nothing: the test kit broke the rule itself.
#[test]
fn a_replay_that_was_waited_for_is_not_the_last_use() {
    let world = World { streams: 3, kept: true, ..World::default() };
    run::<Model>(
        &world,
        &[
            OpenPool,
            BeginCapture { stream: 1 },
            Alloc { bytes: 4096, align: 9, stream: 1 },
            EndCapture { stream: 1 },
            Replay { graph: 0, stream: 2 },
            BeginCapture { stream: 2 },
            EndCapture { stream: 2 },
            Free { block: 0 },
            Alloc { bytes: 4096, align: 9, stream: 1 },
        ],
    );
}

/// Nothing may be created, so a small block takes the newest chunk, which is larger and was created for another. No chunk was
/// created between them, and the oracle took the small block for the one that the chunk was created for.
#[test]
fn a_block_that_came_later_pins_the_newest_chunk() {
    let page_bytes = 2 * MIB;
    let world =
        World { pages: LARGEST_DEVICE / page_bytes, page_bytes, chunk_pages: 0, streams: 3, ..World::default() };
    run::<Model>(
        &world,
        &[
            Alloc { bytes: 128 * MIB, align: 9, stream: 0 },
            Alloc { bytes: 256 * MIB, align: 9, stream: 0 },
            Budget { pages: 0 },
            Free { block: 1 },
            Alloc { bytes: 512, align: 9, stream: 1 },
            AllocRest { less: 0, stream: 2 },
        ],
    );
}

/// A stream was not kept, since a failure struck there. It was captured when the second allocator had it last, and nothing notified
/// that allocator of the capture's end: so it could not wait for the device, and the promise was expected of it.
#[test]
fn streams_are_kept_though_a_failure_strikes() {
    let world = World { pages: 36, slack_percent: 0, streams: 3, region_pages: 32, kept: true, ..World::default() };
    run::<Model>(
        &world,
        &[
            BeginCapture { stream: 2 },
            Alloc { bytes: 131_072, align: 9, stream: 0 },
            Fail { nth: 6, kind: Failure::NoMemory },
            Alloc { bytes: 0, align: 9, stream: 0 },
            OpenAllocator,
            Alloc { bytes: 1_507_329, align: 9, stream: 2 },
            Alloc { bytes: 0, align: 9, stream: 0 },
            Alloc { bytes: 196_608, align: 9, stream: 0 },
            Free { block: 0 },
            EndCapture { stream: 2 },
            Alloc { bytes: 327_681, align: 9, stream: 0 },
        ],
    );
}

/// What a registered block has had is not gone because its stream is being captured when it is freed: after the capture it is free.
#[test]
fn what_is_given_back_in_a_capture_is_not_out_of_memory() {
    let world = World { pages: 5, streams: 1, ..World::default() };
    let ops = [
        AllocRegistered { pages: 0, stream: 0 },
        BeginCapture { stream: 0 },
        FreeRegistered { block: 0 },
        AllocRest { less: 0, stream: 0 },
    ];
    let summary = run::<Model>(&world, &ops);
    assert_eq!((summary.out_of_memory, summary.stopped_by_captures), (1, 1));
}

/// The handle of the stream that is gone has come back, and the stream that has it now is the one that the memory is kept for. The
/// runner took the memory for that of the former stream, and used it on another one.
#[test]
fn again_after_renewals() {
    let world = World {
        pages: 9,
        page_bytes: 65536,
        chunk_pages: 1,
        streams: 2,
        slack_percent: 0,
        mapping_limit: 400000,
        region_pages: 0,
        epoch_limit: 4294967295,
        kept: true,
        own_streams: false,
        green_streams: false,
        blocking_streams: false,
        whole_blocks: false,
    };
    run::<Model>(
        &world,
        &[
            Alloc { bytes: 1, align: 9, stream: 1153 },
            Free { block: 0 },
            Alloc { bytes: 0, align: 9, stream: 14971 },
            Alloc { bytes: 0, align: 9, stream: 0 },
            Renew { stream: 325 },
            Free { block: 0 },
            Free { block: 0 },
            Alloc { bytes: 0, align: 9, stream: 6503 },
            AllocAgain { address: 924, stream: 0 },
            Renew { stream: 25339 },
            Free { block: 3998 },
            Free { block: 0 },
            Alloc { bytes: 0, align: 9, stream: 0 },
            Alloc { bytes: 1, align: 9, stream: 0 },
            Alloc { bytes: 65536, align: 9, stream: 0 },
            Free { block: 0 },
            AllocAgain { address: 32062, stream: 5875 },
            Alloc { bytes: 0, align: 9, stream: 0 },
            Free { block: 20174 },
            AllocAgain { address: 43033, stream: 8930 },
        ],
    );
}

/// A block of a destroyed stream that another one uses as well: after a wait for a stream that it was not recorded on, the oracle
/// queued work there all the same.
#[test]
fn a_use_after_a_wait_runs_where_it_is_known() {
    let world = World {
        pages: 4,
        page_bytes: 65536,
        chunk_pages: 1,
        streams: 2,
        slack_percent: 0,
        mapping_limit: 400000,
        region_pages: 0,
        epoch_limit: 4294967295,
        kept: false,
        own_streams: false,
        green_streams: false,
        blocking_streams: false,
        whole_blocks: false,
    };
    run::<Model>(
        &world,
        &[
            Alloc { bytes: 131072, align: 9, stream: 1771 },
            Renew { stream: 13205 },
            Free { block: 0 },
            AllocAgain { address: 0, stream: 36323 },
            ForeignUse { block: 0, stream: 7370 },
            AllocAgain { address: 0, stream: 0 },
            BeginCapture { stream: 2048 },
            AllocRegistered { pages: 0, stream: 0 },
            AllocRegistered { pages: 4, stream: 0 },
            Free { block: 0 },
            AllocRegistered { pages: 0, stream: 16003 },
        ],
    );
}

/// What an address had before was used elsewhere by its stream, which may have been destroyed since: it was brought back for
/// another stream without a wait.
#[test]
fn memory_that_moved_within_a_stream_is_waited_for_when_it_is_brought_back() {
    let world = World { pages: 8, streams: 2, kept: false, ..World::default() };
    run::<Model>(
        &world,
        &[
            Alloc { bytes: 1, align: 9, stream: 7441 },
            Free { block: 0 },
            Free { block: 0 },
            Alloc { bytes: 0, align: 9, stream: 5594 },
            External { pages: 6 },
            Alloc { bytes: 65536, align: 9, stream: 47 },
            Free { block: 6187 },
            Renew { stream: 8885 },
            AllocAgain { address: 14714, stream: 1741 },
        ],
    );
}

/// The memory of an exposed block that the driver does not take back counts as pending, and no stream has it any more.
#[test]
fn what_the_driver_does_not_take_back_is_of_no_stream() {
    let world = World { pages: 4, chunk_pages: 0, streams: 2, kept: false, own_streams: true, ..World::default() };
    run::<Model>(
        &world,
        &[
            Alloc { bytes: 0, align: 9, stream: 3922 },
            Free { block: 0 },
            AllocRest { less: 0, stream: 15246 },
            Pin { block: 0 },
            Write { block: 0, stream: 5687 },
            Expose { pin: 0 },
            Free { block: 0 },
            Alloc { bytes: 0, align: 9, stream: 0 },
            Fail { nth: 4, kind: Failure::NoMemory },
            AllocRegistered { pages: 0, stream: 0 },
            Unpin { pin: 0 },
            AllocRegistered { pages: 0, stream: 14331 },
        ],
    );
}

/// A capture keeps a sleep from being ordered behind what it has marked, beside a block of which a part is asleep.
#[test]
fn a_sleep_that_is_refused_marks_no_part_of_a_block() {
    let world =
        World { pages: 18, chunk_pages: 1, streams: 1, slack_percent: 0, own_streams: true, ..World::default() };
    run::<Model>(
        &world,
        &[
            Alloc { bytes: 0, align: 9, stream: 2132 },
            Pin { block: 0 },
            Pin { block: 0 },
            Alloc { bytes: 0, align: 9, stream: 0 },
            Free { block: 0 },
            Alloc { bytes: 12289, align: 9, stream: 0 },
            Alloc { bytes: 0, align: 9, stream: 10855 },
            CopyHandle,
            Unpin { pin: 0 },
            Alloc { bytes: 51201, align: 9, stream: 35120 },
            Pin { block: 3284 },
            Alloc { bytes: 0, align: 9, stream: 0 },
            Unpin { pin: 0 },
            Alloc { bytes: 0, align: 9, stream: 0 },
            Alloc { bytes: 0, align: 9, stream: 0 },
            Alloc { bytes: 0, align: 9, stream: 0 },
            Sleep { backup: Backup::Discard },
            Alloc { bytes: 0, align: 9, stream: 0 },
            BeginCapture { stream: 25093 },
            Unpin { pin: 0 },
            Sleep { backup: Backup::Discard },
        ],
    );
}
