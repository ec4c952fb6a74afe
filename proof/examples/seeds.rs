//! Writes the seed corpora of the fuzz targets: `cargo run -p gapless-proof --example seeds` from the root.

use gapless_proof::{Failure::*, Misuse::*, Op, Op::*, encode};
use std::fs;
use std::path::Path;

const PAGE: u32 = 64 << 10;

fn alloc(pages: u32, stream: u8) -> Op {
    Alloc { bytes: pages * PAGE, align: 9, stream }
}

fn main() -> std::io::Result<()> {
    let free = |block| Free { block };
    let range = |pages| ReserveRange { pages };
    let grow = |range, pages, stream| GrowRange { range, pages, stream };
    let shrink = |range, pages| ShrinkRange { range, pages };
    let take = |to, from, pages, stream| TakeRange { to, from, pages, stream };
    let holes = [alloc(2, 0), alloc(2, 0), alloc(2, 0), alloc(2, 0), free(0), free(1)];
    let seeds: [(&str, u8, u8, Vec<Op>); 18] = [
        (
            "small_blocks",
            8,
            0,
            vec![Alloc { bytes: 100, align: 0, stream: 0 }, Alloc { bytes: 0, align: 12, stream: 0 }, free(0)],
        ),
        ("harvest", 8, 0, [&holes[..], &[alloc(4, 0), free(2), alloc(2, 1)]].concat()),
        (
            "behind_a_wait",
            8,
            0,
            vec![Hold { stream: 1 }, alloc(8, 1), free(0), alloc(8, 0), Read { block: 0, stream: 0 }],
        ),
        (
            "borrowed",
            8,
            0,
            vec![alloc(3, 0), free(0), alloc(3, 1), Write { block: 0, stream: 2 }, free(0), alloc(3, 0)],
        ),
        ("shared", 8, 0, vec![Hold { stream: 1 }, alloc(8, 0), Read { block: 0, stream: 1 }, free(0), alloc(8, 0)]),
        ("recreated", 8, 2, vec![alloc(4, 0), alloc(2, 0), free(0), alloc(6, 1), Trim { keep: 0 }]),
        (
            "aligned",
            16,
            0,
            vec![Alloc { bytes: 3 * PAGE, align: 20, stream: 0 }, Alloc { bytes: 9, align: 20, stream: 1 }],
        ),
        (
            "lower_budget",
            8,
            1,
            vec![alloc(4, 0), alloc(4, 1), free(0), Budget { pages: 3 }, alloc(1, 1), Budget { pages: 8 }],
        ),
        ("others", 8, 0, vec![External { pages: 5 }, alloc(4, 0), External { pages: 0 }, alloc(4, 0), alloc(4, 0)]),
        (
            "failing",
            8,
            0,
            [&holes[..], &[Fail { nth: 2, kind: Invalid }, alloc(4, 0), Fail { nth: 0, kind: NoMemory }, alloc(1, 2)]]
                .concat(),
        ),
        (
            "misuse",
            8,
            0,
            vec![
                alloc(1, 0),
                Bad { misuse: FreeInside, block: 0 },
                Bad { misuse: AllocTooMuch, block: 0 },
                Bad { misuse: RecordForeignStream, block: 0 },
                free(0),
                Bad { misuse: FreeTwice, block: 0 },
            ],
        ),
        (
            "threads",
            8,
            0,
            vec![
                alloc(3, 0),
                Thread { thread: 1 },
                free(0),
                Thread { thread: 2 },
                alloc(3, 1),
                Record { block: 0, stream: 0 },
            ],
        ),
        (
            "range",
            8,
            0,
            vec![range(7), grow(0, 3, 0), WriteRange { range: 0, stream: 1 }, shrink(0, 2), grow(0, 4, 2), alloc(3, 0)],
        ),
        (
            "range_out_of_heaps",
            8,
            0,
            [&holes[..], &[range(7), grow(0, 4, 1), alloc(1, 0), DropRange { range: 0 }, alloc(4, 2)]].concat(),
        ),
        (
            "range_behind_a_wait",
            8,
            0,
            vec![Hold { stream: 1 }, alloc(8, 0), Read { block: 0, stream: 1 }, free(0), range(7), grow(0, 8, 2)],
        ),
        (
            "pages_taken",
            8,
            0,
            vec![
                range(7),
                range(7),
                grow(0, 4, 0),
                take(1, 0, 2, 1),
                grow(0, 3, 0),
                take(0, 1, 1, 2),
                shrink(1, 1),
                ReadRange { range: 0, stream: 1 },
                DropRange { range: 0 },
                alloc(6, 2),
            ],
        ),
        (
            "handles",
            8,
            0,
            vec![
                CopyHandle,
                alloc(2, 0),
                DropHandle { handle: 0 },
                CopyHandle,
                CloseHandle,
                free(0),
                CloseHandle,
                alloc(3, 1),
                DropHandle { handle: 0 },
            ],
        ),
        (
            "two_allocators",
            8,
            0,
            vec![
                alloc(5, 0),
                OpenAllocator,
                alloc(3, 1),
                range(7),
                UseAllocator { allocator: 0 },
                free(0),
                Trim { keep: 0 },
                UseAllocator { allocator: 1 },
                grow(0, 5, 0),
            ],
        ),
    ];
    for target in ["ops", "concurrent", "faults"] {
        let folder = Path::new("fuzz/corpus").join(target);
        fs::create_dir_all(&folder)?;
        for (name, pages, chunk, ops) in &seeds {
            let mut bytes = encode(*pages, *chunk, 3, ops);
            if target == "faults" {
                // Before the last operation, the third call fails.
                let end = bytes.len();
                bytes[end - 2..].copy_from_slice(&[2, 1]);
            }
            fs::write(folder.join(name), bytes)?;
        }
    }
    Ok(())
}
