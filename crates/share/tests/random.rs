//! Random steps of honest and of hostile processes, and the seeds of the fuzz target `share`: what they look at is in `fuzzed`.

mod fuzzed;
#[path = "../../../tests/seeds/mod.rs"]
mod seeds;

use fuzzed::step::{ALLOC, BELIEVE, CLOSE, FLOOD, FREE, LEAVE, MEET, OFFER, OPEN, OPEN_FORGED, SAY, STOP_BELIEVING};
use fuzzed::{BEGIN_CAPTURE, END_CAPTURE, Reached, run_steps};
use gapless_share::FOLDER;
use gapless_testkit::{is_reduced, prove};
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use seeds::each_seed;
use std::cell::{OnceCell, RefCell};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// A step: its number, and the bytes that it reads.
type Step = Vec<u8>;

fn with_bytes(step: u8, number: usize) -> impl Strategy<Value = Step> {
    vec(any::<u8>(), number).prop_map(move |bytes| [vec![step], bytes].concat())
}

/// What a liar answers: mostly the truth, else something that is wrong about it, or anything.
fn answer() -> impl Strategy<Value = u8> {
    prop_oneof![6 => 0..140_u8, 3 => 194..226_u8, 3 => any::<u8>()]
}

/// A step of which the last bytes are a script with its length before it.
fn with_script(step: u8, number: usize, most: usize) -> impl Strategy<Value = Step> {
    (vec(any::<u8>(), number), vec(answer(), 0..most))
        .prop_map(move |(bytes, script)| [vec![step], bytes, vec![script.len() as u8], script].concat())
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        // Mostly of few pages: the device has room for several.
        3 => (0..48_u8, any::<u8>()).prop_map(|(pages, bytes)| vec![ALLOC, pages, bytes]),
        2 => with_bytes(FREE, 1),
        3 => with_bytes(OFFER, 1),
        4 => with_bytes(OPEN, 1),
        3 => with_bytes(CLOSE, 1),
        1 => with_bytes(OPEN_FORGED, 3),
        2 => Just(vec![MEET]),
        6 => with_bytes(SAY, 24),
        1 => with_bytes(LEAVE, 1),
        1 => with_bytes(FLOOD, 2),
        5 => with_script(BELIEVE, 2, 12),
        2 => with_script(STOP_BELIEVING, 1, 4),
        1 => Just(vec![BEGIN_CAPTURE]),
        1 => Just(vec![END_CAPTURE]),
    ]
}

/// One test at a time, from the first to the last use of its folder: the descriptors of the process are counted.
fn in_a_folder(act: impl FnOnce(&Path)) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let place = tempfile::tempdir().unwrap();
    // SAFETY: whatever else this process does at the same time reads the environment through std, if at all, which locks it.
    unsafe { std::env::set_var(FOLDER, place.path().join("sockets")) };
    act(place.path());
}

#[test]
fn seeds_of_the_fuzz_target() {
    in_a_folder(|folder| {
        each_seed("share", |bytes| {
            run_steps(bytes, folder);
        });
    });
}

/// Most that the memory of this process grows by, of which the test itself needs a part.
const MOST_GROWTH: u64 = 64 << 20;

/// Bytes of the host's memory that this process has.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn honest_processes_among_hostile_ones() {
    let show = |steps: &Vec<Step>| format!("{steps:?}");
    let (all, before) = (RefCell::new(Vec::new()), OnceCell::new());
    in_a_folder(|folder| {
        prove(60, &vec(step(), 1..60), show, |steps| {
            all.borrow_mut().push(run_steps(&steps.concat(), folder));
            // What the process needs at all, it has by then.
            if all.borrow().len() == 20 {
                before.get_or_init(resident);
            }
        });
    });
    if let Some(before) = before.get() {
        let grown = resident().saturating_sub(*before);
        assert!(grown < MOST_GROWTH, "{grown} bytes more");
    }
    let sum = |count: fn(&Reached) -> usize| all.borrow().iter().map(count).sum::<usize>();
    let reached = [
        ("blocks that were opened", sum(|it| it.opened)),
        ("blocks that were gone", sum(|it| it.gone)),
        ("answers to strangers", sum(|it| it.answered)),
        ("connections that strangers lost", sum(|it| it.ended)),
        ("lies that were believed", sum(|it| it.believed)),
        ("lies that were found out", sum(|it| it.found_out)),
        ("lies that were given up", sum(|it| it.given_up)),
        ("lies that the driver refused", sum(|it| it.refused_by_driver)),
    ];
    println!("{reached:?}");
    assert!(is_reduced() || reached.iter().all(|(_, times)| *times > 0), "{reached:?}");
}
