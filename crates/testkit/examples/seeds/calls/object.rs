//! PyTorch's allocator object.

use super::Record;
use super::call::Call::*;

/// The calls of PyTorch's allocator object. Handles 1 to 3 are pools of device 0, and 0 is none.
pub fn of_the_allocator_object() -> Vec<(&'static str, Vec<Record>)> {
    let alloc = |pool: u8, pages: u32, stream: u8| -> Record { (ObjectAlloc, pool, 4, stream, pages) };
    let free = |number: u32| -> Record { (ObjectFree, 0, 0, 0, number) };
    let free_elsewhere = |number: u32| -> Record { (ObjectFree, 0, 0, 1, number) };
    let record = |number: u32, stream: u8| -> Record { (ObjectUse, 0, 0, stream, number) };
    let lists = |pool: u8| -> Record { (ObjectLists, pool, 0, 0, 0) };
    let join = |pool: u8| -> Record { (ObjectPool, pool, 0, 0, 0) };
    let open = |pool: u8| -> Record { (ObjectPool, pool, 2, 0, 0) };
    let lend = |pool: u8, to: u8| -> Record { (ObjectPool, pool, 3, to, 0) };
    let keep = |pool: u8| -> Record { (ObjectRestore, pool, 0, 0, 0) };
    let back = |pool: u8, number: u32| -> Record { (ObjectRestore, pool, 96, 0, number) };
    let again = |number: u32| -> Record { (ObjectAllocAgain, 0, 0, 0, number) };
    let trim = |what: u8| -> Record { (ObjectTrim, 0, what, 100, 0) };
    let history = |most: u32| -> Record { (ObjectHistory, 0, if most == 0 { 0 } else { 40 }, 0, most) };
    let events: Record = (ObjectHistory, 0, 160, 0, 0);
    // The first pool, by its other number.
    let (end, release): (Record, Record) = ((TorchPool, 0, 1, 0, 0), (TorchPool, 0, 2, 0, 0));
    let moved =
        [alloc(1, 2, 0), alloc(1, 3, 0), alloc(1, 2, 0), alloc(1, 3, 0), keep(1), free(1), free(2), alloc(1, 6, 0)];
    let used_by = |stream: u8| {
        let first = [join(1), alloc(1, 2, 128), alloc(1, 3, 128), keep(1), record(0, stream), record(1, stream)];
        let freed = [
            free(0),
            lists(1),
            (ObjectDescribe, 0, 0, 0, 0),
            free(0),
            lists(0),
            back(1, 0),
            lists(1),
            (ObjectRestore, 1, 240, 2, 0),
        ];
        [&first[..], &freed, &[(ObjectFree, 0, 216, 0, 0), (ObjectAllocAgain, 0, 216, 0, 0), release]].concat()
    };
    vec![
        (
            "object_pools",
            [
                &[join(1), alloc(1, 2, 0), alloc(0, 1, 0), alloc(1, 1, 128), lists(0), lists(1), open(1)][..],
                &[(TorchAlloc, 0, 4, 0, 1), lists(1), end, trim(0), free_elsewhere(0), free(0), lists(0), trim(2)],
                &[release, release, lists(0), free(0), free(0), trim(1), lists(0), join(1), alloc(1, 1, 0), lists(1)],
            ]
            .concat(),
        ),
        (
            "object_checkpoints",
            [
                &[join(1)][..],
                &moved,
                &[keep(1), lists(1), back(1, 0), back(1, 1), (ObjectRestore, 1, 240, 0, 0), (ObjectRestore, 1, 240, 1, 0)],
                &[(ObjectRestore, 1, 240, 2, 0), back(1, 0), free(3), free(0), again(0), again(0)],
                &[(ObjectAllocAgain, 0, 0, 200, 0), lists(1)],
                &[(ObjectAllocAgain, 0, 200, 0, 0), (ObjectAllocAgain, 0, 240, 0, 0), (ObjectAllocAgain, 0, 248, 0, 0)],
                &[alloc(0, 1, 0), free(0), again(0)],
            ]
            .concat(),
        ),
        (
            "object_checkpoints_that_fail",
            (0..12)
                .flat_map(|function| {
                    let fail = (Fail, 0, function, 1, 0);
                    [&[join(1)][..], &moved[..4], &[keep(1), free(1), alloc(1, 4, 0), fail, back(1, function.into())]]
                        .concat()
                })
                .take(63)
                .collect(),
        ),
        // A block is missing whose memory has moved under a later one, elsewhere.
        (
            "object_checkpoint_of_what_moved",
            [
                &[join(1), alloc(1, 2, 0), alloc(1, 3, 0), alloc(1, 2, 0), alloc(1, 3, 0), alloc(1, 10, 0)][..],
                &[keep(1), free(1), alloc(1, 12, 0), back(1, 0), lists(1)],
            ]
            .concat(),
        ),
        // A state that never was, while this thread's default stream uses a block.
        (
            "object_checkpoint_of_no_state",
            vec![join(1), (ObjectAlloc, 1, 4, 128, 3), keep(1), (ObjectUse, 0, 0, 1, 0), (ObjectRestore, 1, 240, 0, 0)],
        ),
        // The same, while the block is pinned: it would not come back.
        (
            "object_checkpoint_of_no_state_pinned",
            vec![
                join(1),
                (ObjectAlloc, 1, 4, 0, 3),
                keep(1),
                (Pin, 0, 0, 0, 0),
                (ObjectRestore, 1, 240, 0, 0),
                (ObjectRestore, 1, 240, 1, 0),
                (ObjectRestore, 1, 240, 2, 0),
                back(1, 0),
            ],
        ),
        ("object_streams", used_by(129)),
        ("object_streams_of_the_other_device", used_by(130)),
        (
            "object_history",
            [
                &[history(39), alloc(0, 1, 0), alloc(0, 2, 0), free_elsewhere(0), (ObjectFree, 0, 192, 0, 0), events][..],
                &[alloc(0, 23, 0), alloc(0, 23, 0), (TorchAlloc, 0, 4, 0, 1)],
                &[(TorchFree, 0, 0, 0, 0), (TorchFree, 0, 220, 0, 0), events],
                &[join(1), alloc(1, 1, 0), keep(1), free(1), back(1, 0), again(0), events, history(3), events],
                &[alloc(0, 1, 0), (ObjectHistory, 0, 40, 1, 9), free(0), events, history(0), alloc(0, 1, 0), events],
            ]
            .concat(),
        ),
        (
            "object_crowd",
            [
                &[(ObjectHistory, 0, 40, 0, 39)][..],
                &[alloc(0, 1, 0); 4],
                &[(ObjectProcess, 0, 0, 0, 99), events, (ObjectProcess, 0, 0, 0, 5000)],
            ]
            .concat(),
        ),
        (
            "object_fork",
            [
                &[join(1), alloc(1, 2, 0), alloc(0, 2, 0), record(0, 130), (ObjectProcess, 0, 128, 3, 7), free(0), lists(0)][..],
                &[free(0), trim(2), alloc(0, 9, 0)],
            ]
            .concat(),
        ),
        (
            "object_lending",
            [
                &[
                    join(1),
                    lend(2, 1),
                    alloc(1, 23, 0),
                    free(0),
                    alloc(0, 20, 0),
                    lend(1, 1),
                    alloc(0, 20, 0),
                    lists(0),
                ][..],
                &[(TorchAlloc, 0, 4, 0, 1), free(0), lend(1, 0), alloc(0, 20, 0), release, alloc(0, 20, 0)],
            ]
            .concat(),
        ),
        ("object_of_no_device", (0..9).map(|call| (ObjectAlloc, 250, call, call, 0)).collect()),
    ]
}
