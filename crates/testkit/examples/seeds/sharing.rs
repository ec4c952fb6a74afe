//! Steps of the fuzz target `share`: each begins with its number.

#[path = "../../../share/tests/fuzzed/step.rs"]
mod step;

use step::{ALLOC, BELIEVE, CLOSE, FLOOD, FREE, LEAVE, MEET, OFFER, OPEN, OPEN_FORGED, SAY, STOP_BELIEVING};

pub fn steps() -> Vec<(&'static str, Vec<u8>)> {
    // A block of 64 KiB and a bit, which is offered.
    let offered = [ALLOC, 16, 9, OFFER, 0];
    let then = |steps: &[u8]| [&offered[..], steps].concat();
    vec![
        ("open_and_close", then(&[OPEN, 0, OPEN, 0, CLOSE, 0, CLOSE, 0, FREE, 0, OPEN, 0])),
        ("freed_while_open", then(&[OPEN, 0, FREE, 0, ALLOC, 16, 9, LEAVE, OPEN, 0, CLOSE, 0, OPEN, 0])),
        // Given up at once by whoever asks nothing more; and the input that fuzzing found.
        ("given_up", then(&[OPEN, 15])),
        ("given_up_2", vec![ALLOC, 246, 255, 255, OFFER, 4, ALLOC, 255, 9, 255, 223, 0, CLOSE, 0, OPEN, 255]),
        (
            "many_chunks",
            vec![ALLOC, 200, 1, OFFER, 0, ALLOC, 1, 1, OFFER, 1, OPEN, 0, OPEN, 1, FREE, 0, LEAVE, CLOSE, 0],
        ),
        ("forged", then(&[OPEN_FORGED, 0, 24, 1, OPEN_FORGED, 0, 9, 1, OPEN_FORGED, 0, 60, 3, OPEN, 0])),
        // What a process says that opens a block, asks for its chunks and their descriptors, and closes it. Behind the stranger
        // come the kind of the question, how it is said, and for how many descriptors it is.
        (
            "stranger",
            then(&[
                MEET, SAY, 0, 0, 0, 0, 0, SAY, 0, 1, 0, 0, 0, 0, SAY, 0, 2, 0, 1, 0, 0, SAY, 0, 3, 0, 0, 0, LEAVE, 0,
            ]),
        ),
        (
            "stranger_leaves",
            then(&[
                MEET, MEET, SAY, 0, 0, 0, 0, 0, SAY, 1, 250, 0, 1, 9, 9, 9, 9, 9, 9, 9, 9, LEAVE, 0, LEAVE, 0, FREE, 0,
            ]),
        ),
        // Half a question, one with a descriptor, many that are not read, and a crowd.
        (
            "stranger_breaks_rules",
            then(&[
                MEET, SAY, 0, 0, 130, 0, 0, MEET, SAY, 0, 0, 170, 0, 0, MEET, SAY, 0, 0, 190, 0, 0, FLOOD, 160, 4,
                OPEN, 0,
            ]),
        ),
        // Behind who lends the name, who believes it and the length of its script come the liar's answers: none is a lie, and then
        // descriptors of other files, an end in the middle, and a block that has the name of an honest one.
        ("believed", then(&[BELIEVE, 255, 0, 3, 0, 0, 0, STOP_BELIEVING, 0, 1, 0])),
        ("other_files", then(&[BELIEVE, 255, 0, 7, 0, 0, 200, 2, 0, 3, 1, BELIEVE, 255, 1, 5, 0, 0, 200, 0, 4])),
        ("liar_ends", then(&[BELIEVE, 255, 0, 2, 0, 240, BELIEVE, 255, 1, 2, 0, 250, OPEN, 0])),
        ("lent_name", then(&[BELIEVE, 0, 0, 3, 0, 0, 0, OPEN, 0, CLOSE, 0, STOP_BELIEVING, 0, 0])),
    ]
}
