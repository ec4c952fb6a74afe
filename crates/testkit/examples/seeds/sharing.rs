//! Steps of the fuzz target `share`: each begins with its number.

const ALLOC: u8 = 0;
const FREE: u8 = 2;
const OFFER: u8 = 3;
const OPEN: u8 = 4;
const CLOSE: u8 = 6;
const OPEN_FORGED: u8 = 7;
const MEET: u8 = 8;
const SAY: u8 = 9;
const LEAVE: u8 = 11;

pub fn steps() -> Vec<(&'static str, Vec<u8>)> {
    // A block of 64 KiB and a bit, which is offered.
    let offered = [ALLOC, 16, 9, OFFER, 0];
    let then = |steps: &[u8]| [&offered[..], steps].concat();
    vec![
        ("open_and_close", then(&[OPEN, 0, OPEN, 0, CLOSE, 0, CLOSE, 0, FREE, 0, OPEN, 0])),
        ("freed_while_open", then(&[OPEN, 0, FREE, 0, ALLOC, 16, 9, LEAVE, OPEN, 0, CLOSE, 0, OPEN, 0])),
        (
            "many_chunks",
            vec![ALLOC, 200, 1, OFFER, 0, ALLOC, 1, 1, OFFER, 1, OPEN, 0, OPEN, 1, FREE, 0, LEAVE, CLOSE, 0],
        ),
        ("forged", then(&[OPEN_FORGED, 0, 24, 1, OPEN_FORGED, 0, 9, 1, OPEN_FORGED, 0, 60, 3, OPEN, 0])),
        // What a process says that opens a block, asks for its chunks and their descriptors, and closes it.
        (
            "stranger",
            then(&[MEET, SAY, 0, 1, 0, SAY, 0, 0, 3, 1, 0, 0, SAY, 0, 0, 4, 2, 0, 1, 0, SAY, 0, 0, 2, 3, 0, LEAVE, 0]),
        ),
        (
            "stranger_leaves",
            then(&[MEET, MEET, SAY, 0, 1, 0, SAY, 1, 0, 5, 9, 9, 9, 9, 9, LEAVE, 0, LEAVE, 0, FREE, 0]),
        ),
    ]
}
