//! Sleep and wake.

use super::Record;
use super::call::Call::*;

/// Memory that goes and comes back.
pub fn asleep() -> Vec<(&'static str, Vec<Record>)> {
    let on = |pages: u32, stream: u8| -> Record { (TorchAlloc, 0, 4, stream, pages) };
    let alloc = |pool: u8, pages: u32| -> Record { (ObjectAlloc, pool, 4, 0, pages) };
    let sleep = |number: u32| -> Record { (Sleep, 0, 0, 0, number) };
    let sleep_tag = |number: u32| -> Record { (Sleep, 0, 1, 0, number) };
    let declare = |pool: u8, kind: u8| -> Record { (Tag, pool - 1, 2, kind, 0) };
    let (push, pop): (Record, Record) = ((Tag, 0, 0, 1, 0), (Tag, 0, 1, 0, 0));
    let join = |pool: u8| -> Record { (ObjectPool, pool, 0, 0, 0) };
    let release = |pool: u8| -> Record { (TorchPool, pool - 1, 2, 0, 0) };
    let free: Record = (ObjectFree, 0, 0, 0, 0);
    let trim: Record = (TorchReport, 0, 1, 0, 3);
    vec![
        (
            "asleep",
            vec![on(3, 0), (TorchAlloc, 0, 1, 0, 700), sleep(1), sleep(2 << 20), sleep(3), trim, sleep(6), free, trim],
        ),
        (
            "asleep_tags",
            [
                &[join(1), declare(1, 1), push, join(2), pop, pop, declare(2, 1), alloc(1, 4), alloc(2, 3)][..],
                &[on(2, 0), sleep_tag(1), sleep_tag(2), sleep(1), declare(1, 0), (Sleep, 0, 2, 0, 1)],
                &[(Sleep, 0, 0, 255, 0), (Tag, 0, 0, 0, 0), (Tag, 0, 0, 3, 0), (Tag, 0, 2, 2, 0), trim],
                &[free, free, release(1), release(2), on(22, 0), free, trim],
            ]
            .concat(),
        ),
        (
            "asleep_beside_other_streams",
            vec![
                on(2, 0),
                on(2, 128),
                (TorchUse, 0, 0, 129, 0),
                (TorchUse, 0, 0, 130, 1),
                (Pin, 0, 0, 0, 0),
                (Listen, 0, 0, 0, 0),
                sleep(1),
                (Unpin, 0, 0, 0, 0),
                sleep(5),
                (ObjectProcess, 0, 200, 0, 77),
                free,
                trim,
            ],
        ),
        // Each driver function fails once.
        (
            "asleep_while_calls_fail",
            (0..12)
                .flat_map(|function| {
                    [(Fail, 0, function, 1, 0), sleep(1), on(2, 0), (Fail, 0, function, 3, 0), sleep(2)]
                })
                .take(64)
                .collect(),
        ),
    ]
}
