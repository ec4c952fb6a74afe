//! Calls of the C interface, as bytes.

mod asleep;
#[path = "../../../../capi/tests/fuzzed/calls/call.rs"]
mod call;
mod object;

use super::files::Seeds;
use call::Call;
use call::Call::*;

/// Call, handle, what, how, number.
type Record = (Call, u8, u8, u8, u32);

/// Calls of the C interface in the encoding of `crates/capi/tests/fuzzed/calls`.
pub fn calls() -> Seeds {
    let alloc = |pages: u32, stream: u8| -> Record { (Alloc, 0, 4, stream, pages) };
    let (free, destroy): (fn(u32) -> Record, Record) = (|number| (Free, 0, 0, 0, number), (Destroy, 0, 0, 0, 0));
    let fail = |function: u8, code: u8| -> Record { (Fail, 0, function, code, 0) };
    // PyTorch's entry points.
    let torch = |what: u8, number: u32| -> Record { (TorchAlloc, 0, what, 0, number) };
    // The same on a process-wide allocator: device 0's for handle 0, the other one's for 128. 128 to 131 as a stream are the
    // streams of their own, two of device 0 and two of the other one.
    let on = |handle: u8, pages: u32, stream: u8| -> Record { (TorchAlloc, handle, 4, stream, pages) };
    let give = |handle: u8, number: u32| -> Record { (TorchFree, handle, 1, 0, number) };
    let begin = |pool: u8| -> Record { (TorchPool, pool, 0, 0, 0) };
    let end = |pool: u8| -> Record { (TorchPool, pool, 1, 0, 0) };
    // Blocks that streams of one of the devices use are freed by every door, and their size is requested again.
    let used = |other_memory: bool, other_streams: bool| -> Vec<Record> {
        let (handle, first) = (if other_memory { 128 } else { 0 }, if other_streams { 130 } else { 128 });
        let own = if other_memory { 130 } else { 128 };
        let again = [on(handle, 2, 0), on(handle, 2, own), on(handle, 2, 0)];
        let frees = [give(handle, 0), (DeviceFree, handle, 2, 0, 0), give(handle, 0)];
        let records: [Record; 3] =
            [(TorchUse, handle, 0, first, 0), (DeviceUse, handle, 2, first + 1, 0), (TorchUse, handle, 0, first, 0)];
        let mut calls = Vec::new();
        for (record, free) in records.into_iter().zip(frees) {
            calls.extend([on(handle, 2, 0), record, free]);
            calls.extend(again);
            calls.extend([
                (DeviceFree, handle, 1, 0, 0),
                (TorchReport, handle, 1, 0, 3),
                give(handle, 0),
                give(handle, 0),
                give(handle, 0),
            ]);
        }
        // Freed on the stream, without a record.
        calls.extend([on(handle, 2, 0), (DeviceFree, handle, 130, first, 0)]);
        calls.extend(again);
        calls.push((DeviceUse, handle, 130, 100, 0));
        calls
    };
    let trimmed_with_a_pool = |budget: Option<u32>, trim: Record| -> Vec<Record> {
        let mut calls = vec![torch(4, 10), begin(0), torch(4, 2), end(0)];
        calls.extend(budget.map(|pages| (SetBudget, 232, 0, 0, pages << 21)));
        calls.extend([give(0, 1), give(0, 0), (TorchPool, 0, 2, 0, 0), trim]);
        calls
    };
    let seeds: Vec<(&str, Vec<Record>)> = vec![
        (
            "a_life",
            vec![(Create, 0, 0, 2, 0), alloc(3, 0), alloc(1, 1), (RecordStream, 0, 0, 1, 1), free(0), free(0), destroy],
        ),
        (
            "wrong_frees",
            vec![
                alloc(2, 0),
                free(0),
                (Free, 0, 160, 0, 0),
                alloc(1, 0),
                (Free, 0, 180, 7, 0),
                (Free, 0, 220, 0, 0),
                (Free, 0, 240, 0, 0),
            ],
        ),
        (
            "two_allocators",
            vec![(Create, 0, 0, 2, 0), (Create, 0, 96, 2, 0), alloc(2, 0), (Alloc, 1, 4, 1, 2), (Free, 1, 200, 0, 0)],
        ),
        (
            "bad_handles",
            vec![
                alloc(1, 0),
                destroy,
                (Alloc, 240, 1, 0, 9),
                (Alloc, 244, 1, 0, 9),
                (Free, 248, 0, 0, 0),
                (GetStats, 251, 150, 0, 0),
                (Destroy, 252, 0, 0, 0),
                (Json, 252, 0, 0, 0),
            ],
        ),
        (
            "absurd_sizes",
            vec![
                (Alloc, 0, 7, 0, 0),
                (Alloc, 0, 6, 0, u32::MAX),
                (Alloc, 0, 4, 0, 23),
                (AllocAligned, 0, 1, 0, 40),
                (AllocAlignedOddly, 0, 0, 0, 3),
            ],
        ),
        ("leaked", vec![alloc(1, 0), alloc(2, 1), destroy, (Alloc, 0, 0, 247, 1), (Alloc, 0, 0, 250, 1)]),
        (
            "settings_of_newer_headers",
            [704, 705, 4096, 4104]
                .iter()
                .flat_map(|size| [(Create, 0, 192, 2, *size), destroy, (Create, 0, 192, 3, *size)])
                .collect(),
        ),
        ("settings", (0..16).map(|kind| (Create, 0, kind * 16, kind, 3 << 20)).chain([destroy, destroy]).collect()),
        (
            "buffers",
            vec![
                (Alloc, 0, 4, 0, 23),
                (Json, 0, 0, 1, 7),
                (Json, 0, 1, 2, 100),
                (Json, 0, 2, 3, 1),
                (Json, 0, 0, 255, 0),
                (GetStats, 0, 0, 0, 40),
                (GetStats, 0, 0, 0, 8),
                (GetStats, 0, 128, 255, 0),
                (GetStats, 0, 200, 32, 1),
            ],
        ),
        (
            "budgets",
            vec![
                alloc(6, 0),
                free(0),
                (SetBudget, 0, 0, 0, 4 << 20),
                (Trim, 0, 1, 100, 0),
                (Trim, 0, 0, 0, 0),
                (SetBudget, 0, 207, 0, 1),
            ],
        ),
        (
            "recorded",
            vec![
                (Recording, 0, 0, 0, 0),
                alloc(1, 0),
                (Recording, 0, 4, 1, 0),
                free(0),
                (Recording, 0, 0, 1, 0),
                (Recording, 0, 6, 0, 0),
                (Recording, 0, 1, 1, 0),
                alloc(1, 0),
                (Recording, 0, 3, 200, 0),
                destroy,
            ],
        ),
        (
            "torch",
            vec![
                torch(2, 5000),
                torch(4, 1),
                (TorchFree, 0, 0, 0, 0),
                (TorchUse, 0, 200, 0, 0),
                (TorchReport, 0, 1, 1, 9),
                (TorchBudget, 0, 0, 0, 0),
                (TorchBudget, 0, 200, 0, 0.5_f32.to_bits()),
                (Destroy, 232, 0, 0, 0),
                (Alloc, 232, 1, 0, 70),
                (TorchAlloc, 254, 1, 0, 5),
            ],
        ),
        (
            "torch_pools",
            vec![
                torch(4, 1),
                (TorchPool, 0, 0, 0, 0),
                torch(4, 2),
                (TorchPool, 1, 0, 0, 0),
                torch(2, 100),
                (TorchPool, 1, 1, 0, 0),
                (TorchPool, 0, 1, 0, 0),
                (TorchReport, 0, 0, 0, 3),
                (TorchPool, 1, 2, 0, 0),
                (TorchFree, 0, 0, 0, 1),
                (TorchPool, 0, 2, 0, 0),
                (TorchReport, 0, 1, 0, 3),
                torch(4, 1),
            ],
        ),
        // What a trim says to have released is with the memory of a pool that nobody uses, and with what goes back because the
        // budget was set below what was held.
        ("trim_closes_a_pool", trimmed_with_a_pool(None, (DeviceUse, 0, 130, 100, 0))),
        ("trim_above_the_budget", trimmed_with_a_pool(Some(4), (DeviceUse, 0, 130, 100, 0))),
        ("trim_of_pools_above_the_budget", trimmed_with_a_pool(Some(4), (ObjectTrim, 0, 1, 100, 0))),
        // The functions for a device's memory; the last one records a stream or trims.
        (
            "device_memory",
            vec![
                (DeviceAlloc, 0, 130, 0, 5000),
                (DeviceAllocToo, 0, 68, 1, 9),
                (DeviceAlloc, 0, 4, 0, 3),
                (DeviceUse, 0, 2, 1, 0),
                (TorchPool, 0, 0, 0, 0),
                (DeviceAlloc, 0, 132, 0, 2),
                (DeviceUse, 0, 2, 1, 2),
                (TorchPool, 0, 1, 0, 0),
                (TorchReport, 0, 0, 0, 3),
                (DeviceFree, 0, 2, 5, 2),
                (DeviceFree, 0, 2, 0, 0),
                (DeviceFree, 0, 1, 0, 0),
                (DeviceFree, 0, 0, 0, 0),
                (DeviceAllocToo, 0, 132, 0, 23),
                (DeviceAllocToo, 0, 132, 0, 23),
                (DeviceAllocToo, 0, 134, 0, 4096),
                (DeviceAlloc, 0, 132, 250, 1),
                (DeviceAllocToo, 255, 132, 0, 1),
                (DeviceUse, 0, 130, 100, 0),
                (TorchReport, 0, 1, 0, 3),
                (TorchPool, 0, 2, 0, 0),
            ],
        ),
        ("own_streams", used(false, false)),
        ("own_streams_of_a_pool", [&[begin(0)][..], &used(false, false), &[end(0)]].concat()),
        ("own_streams_of_the_other_device", used(true, true)),
        ("foreign_streams", used(false, true)),
        ("foreign_streams_of_a_pool", [&[begin(129)][..], &used(true, false), &[end(129)]].concat()),
        ("foreign_streams_of_the_other_device", used(true, false)),
        (
            "default_streams",
            [0, 1, 2]
                .iter()
                .flat_map(|how| [on(0, 2, 0), (DeviceUse, 0, 2, *how, 0), give(0, 0), on(0, 2, 0), give(0, 0)])
                .collect(),
        ),
        // The last use is on the default stream, or on the second of two of the other device.
        ("freed_on_the_default_stream", vec![on(0, 2, 129), (DeviceFree, 0, 130, 0, 0), on(0, 2, 129), give(0, 0)]),
        (
            "two_foreign_streams",
            vec![
                on(0, 2, 0),
                (TorchUse, 0, 0, 130, 0),
                (TorchUse, 0, 0, 131, 0),
                give(0, 0),
                (DeviceUse, 0, 130, 100, 0),
            ],
        ),
        // What the main allocator holds free is worth less than a pool's request, than a lower budget, and counts.
        (
            "budgets_of_pools",
            vec![
                (TorchBudget, 0, 200, 0, 0.5_f32.to_bits()),
                on(0, 12, 0),
                begin(0),
                give(0, 0),
                on(0, 14, 0),
                (TorchReport, 0, 1, 0, 3),
                end(0),
                on(0, 1, 0),
                (TorchBudget, 0, 200, 0, 0.25_f32.to_bits()),
                give(0, 1),
                give(0, 0),
                (TorchPool, 0, 2, 0, 0),
                on(0, 7, 0),
                begin(1),
                give(0, 0),
                (TorchBudget, 0, 200, 0, 0.125_f32.to_bits()),
                on(0, 3, 0),
                (TorchReport, 0, 1, 0, 3),
            ],
        ),
        // What the other device uses is most of the memory: the next request has to wait for it.
        (
            "foreign_stream_waited_for",
            vec![on(0, 20, 0), (TorchUse, 0, 0, 130, 0), give(0, 0), on(0, 23, 0), (TorchReport, 0, 1, 0, 3)],
        ),
        (
            "pools_of_two_devices",
            vec![
                on(0, 3, 0),
                on(128, 3, 0),
                begin(129),
                on(128, 2, 0),
                on(0, 2, 0),
                begin(0),
                on(0, 1, 129),
                on(128, 1, 131),
                (TorchReport, 0, 0, 0, 3),
                (TorchReport, 128, 1, 0, 3),
                (TorchBudget, 128, 200, 0, 0.25_f32.to_bits()),
                on(128, 5, 0),
                on(128, 5, 0),
                end(129),
                give(128, 0),
                (TorchPool, 129, 2, 0, 0),
                (TorchReport, 128, 1, 0, 3),
                (DeviceUse, 128, 130, 100, 0),
                on(128, 6, 0),
            ],
        ),
        // Each driver function fails once while memory is mapped, moved to another stream or trimmed.
        (
            "failing_growths",
            (0..12).flat_map(|function| [fail(function, 1), alloc(2, 0), alloc(2, 0), free(0), free(0)]).collect(),
        ),
        (
            "failing_moves",
            (0..12).flat_map(|function| [alloc(9, 0), free(0), fail(function, 3), alloc(10, 1), free(0)]).collect(),
        ),
        (
            "failing_trims",
            (2..12)
                .flat_map(|function| {
                    [alloc(6, 0), alloc(1, 1), free(0), free(0), fail(function, 0), (Trim, 0, 1, 100, 0)]
                })
                .collect(),
        ),
        // A pool with a budget below one page: it exists, but cannot hold memory.
        (
            "torch_pool_without_room",
            vec![
                torch(2, 5000),
                (TorchBudget, 0, 200, 0, 0.001_f32.to_bits()),
                (TorchPool, 0, 0, 0, 0),
                torch(2, 100),
                (TorchReport, 0, 1, 0, 3),
            ],
        ),
        (
            "texts",
            (0..7)
                .flat_map(|kind| [(Conf, 0, kind, 0, 0), (Replay, 0, kind, 0, 0), (Explain, 0, kind, 0, 0)])
                .chain([(Replay, 200, 0, 0, 0), (Explain, 200, 0, 0, 0)])
                .collect(),
        ),
    ];
    let seeds = seeds
        .into_iter()
        .chain(object::of_the_allocator_object())
        .chain(kept_in_place())
        .chain(ranges())
        .chain(asleep::asleep());
    let bytes = |calls: &[Record]| {
        let record = |(call, handle, what, how, number): &Record| {
            [&[call.encode(), *handle, *what, *how][..], &number.to_le_bytes()].concat()
        };
        calls.iter().flat_map(record).collect()
    };
    seeds.map(|(name, calls)| (name, bytes(&calls))).collect()
}

/// Memory that grows and shrinks at its end.
fn ranges() -> Vec<(&'static str, Vec<Record>)> {
    let on = |pages: u32| -> Record { (TorchAlloc, 0, 4, 0, pages) };
    let free = |number: u32| -> Record { (ObjectFree, 0, 0, 0, number) };
    let fail = |what: u8, number: u32| -> Record { (Fail, 0, what, 3, number) };
    let reserve = |pages: u32| -> Record { (Range, 0, 4, 0, pages) };
    let grow = |stream: u8, pages: u32| -> Record { (Range, 0, 68, stream, pages) };
    let shrink = |pages: u32| -> Record { (Range, 0, 164, 0, pages) };
    let close = |number: u32| -> Record { (Range, 0, 228, 0, number) };
    let trim: Record = (TorchReport, 0, 1, 0, 3);
    vec![
        (
            "ranges",
            [
                &[reserve(23), grow(0, 6), grow(128, 0), on(8), grow(0, 4), grow(0, 14), shrink(4), on(10), free(0)][..],
                &[grow(131, 9), grow(250, 1), shrink(23), trim, grow(0, 20), close(9), on(12), close(0), on(23)],
                &[reserve(3), (Range, 0, 4, 247, 3), (Range, 0, 68, 240, 1), close(5), close(1), trim],
            ]
            .concat(),
        ),
        (
            "ranges_while_calls_fail",
            [
                &[reserve(23), reserve(12), on(6), on(4), free(0), grow(0, 8)][..],
                &(0..6).flat_map(|what| [fail(what, 1), grow(0, 9), fail(what, 1), shrink(7)]).collect::<Vec<_>>(),
                &[fail(3, 1), close(7), trim, on(20), fail(3, 0), close(1), trim],
            ]
            .concat(),
        ),
    ]
}

/// Memory that does not move.
fn kept_in_place() -> Vec<(&'static str, Vec<Record>)> {
    let on = |pages: u32| -> Record { (TorchAlloc, 0, 4, 0, pages) };
    let alloc = |pool: u8, pages: u32| -> Record { (ObjectAlloc, pool, 4, 0, pages) };
    let free = |number: u32| -> Record { (ObjectFree, 0, 0, 0, number) };
    let trim: Record = (TorchReport, 0, 1, 0, 3);
    let (pin, unpin) = (|number: u32| -> Record { (Pin, 0, 0, 0, number) }, (Unpin, 0, 0, 0, 0));
    let registered = |pages: u32| -> Record { (AllocRegistered, 0, 4, 0, pages) };
    let (record, dma_buf): (Record, Record) = ((UseRegistered, 0, 0, 128, 0), (UseRegistered, 0, 0, 1, 0));
    let (free_registered, listen, stop): (Record, Record, Record) =
        ((FreeRegistered, 0, 0, 0, 0), (Listen, 0, 0, 0, 0), (Listen, 0, 200, 0, 0));
    let (join, open, release): (Record, Record, Record) =
        ((ObjectPool, 1, 0, 0, 0), (ObjectPool, 1, 2, 0, 0), (TorchPool, 0, 2, 0, 0));
    let (keep, back): (Record, Record) = ((ObjectRestore, 1, 0, 0, 0), (ObjectRestore, 1, 96, 0, 0));
    let end: Record = (TorchPool, 0, 1, 0, 0);
    vec![
        (
            "pinned",
            [
                &[on(2), on(3), listen, pin(0), pin(0), pin(1), free(0), free(0), on(2), on(20), trim, unpin][..],
                &[on(4), free(0), unpin, on(2), trim, unpin, on(23), stop, (Unpin, 0, 240, 0, 0), (Pin, 0, 200, 0, 0)],
            ]
            .concat(),
        ),
        (
            "pinned_in_a_pool",
            [
                &[listen, join, alloc(1, 4), alloc(1, 2), pin(0), keep, free(0), open, on(3), end, back, free(0)][..],
                &[free(0), free(0), release, release, trim, on(23), on(10), unpin, on(10), trim, on(23)],
            ]
            .concat(),
        ),
        (
            "registered",
            [
                &[
                    listen,
                    registered(3),
                    registered(0),
                    record,
                    dma_buf,
                    on(20),
                    free(0),
                    (FreeRegistered, 0, 240, 0, 0),
                    (AllocRegistered, 0, 7, 0, 0),
                ][..],
                &[
                    (TorchBudget, 0, 200, 0, 0.25_f32.to_bits()),
                    on(8),
                    registered(6),
                    free_registered,
                    trim,
                    free_registered,
                ],
                &[on(20), free_registered, (TorchBudget, 0, 200, 0, 1.0_f32.to_bits()), on(23), stop, stop],
            ]
            .concat(),
        ),
        // Each driver function fails once.
        (
            "kept_while_calls_fail",
            (0..12)
                .flat_map(|function| {
                    let fail: Record = (Fail, 0, function, 1, 0);
                    [fail, registered(2), fail, dma_buf, on(2), pin(0), fail, free(0), unpin, fail, free_registered]
                })
                .take(64)
                .collect(),
        ),
    ]
}
