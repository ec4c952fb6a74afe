//! Processes that see others by other numbers, or have other limits: containers, and what stands around them.

mod apart;
mod offer;

use apart::{Apart, can_be_started_by, role};
use gapless_share::{Importer, ShareError};
use offer::{LIMIT, OPENED, Offer, PAGE, device, eventually, folder};
use rustix::fd::OwnedFd;
use rustix::net::{SendFlags, send};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::time::Duration;

/// A namespace of users in which this user has no number: they and all strangers are one.
const NOBODY: [&str; 2] = ["unshare", "--user"];
/// One in which it keeps its number, and has no rights over the others.
const SAME_USER: [&str; 3] = ["unshare", "--user", "--map-current-user"];
/// One of processes, as a container has it.
const CONTAINER: [&str; 5] = ["unshare", "--user", "--map-current-user", "--pid", "--fork"];

/// Runs `inside` in a process that `program` starts, with the handle of an exporter of this one. The answer of that is `expected`.
fn in_a_namespace(name: &str, program: &[&str], expected: &str, inside: impl FnOnce(&Imported) -> String) {
    if let Some(handle) = role() {
        return apart::say(&inside(&Importer::new(device()).open_within(&handle, LIMIT)));
    }
    if !can_be_started_by(program) {
        return eprintln!("skipped: {program:?} is not allowed here");
    }
    let place = tempfile::tempdir().unwrap();
    let _turn = folder(&place.path().join("sockets"));
    let offer = Offer::new();
    let mut other = Apart::start(name, program, &offer.handle);
    let heard = other.hear();
    other.end();
    assert!(heard.contains(expected), "{heard}");
    offer.still_serves();
    offer.end();
}

type Imported = Result<gapless_share::SharedBlock<gapless::driver::HostDriver>, ShareError>;

fn in_words(answer: &Imported) -> String {
    match answer {
        Ok(block) => format!("{} bytes", block.bytes()),
        Err(error) => error.to_string(),
    }
}

/// Where all strangers have this user's number, nobody's socket is taken for one of the user.
#[test]
fn where_strangers_have_the_number_of_this_user() {
    in_a_namespace("where_strangers_have_the_number_of_this_user", &NOBODY, "cannot be told from strangers", in_words);
}

/// A process that has no number here is served as any other.
#[test]
fn a_process_of_another_namespace_is_served() {
    in_a_namespace("a_process_of_another_namespace_is_served", &CONTAINER, &format!("{PAGE} bytes"), in_words);
}

/// Sets how many descriptors this process may have from now on.
fn limit_descriptors(current: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum }).unwrap();
}

/// A limit of descriptors that is lowered below what there is ends nothing: others are served once there is room again.
#[test]
fn a_limit_of_descriptors_that_is_lowered() {
    const NAME: &str = "a_limit_of_descriptors_that_is_lowered";
    let place = tempfile::tempdir().unwrap();
    let turn = folder(&place.path().join("sockets"));
    let offer = Offer::new();
    if role().is_none() {
        drop(turn);
        let mut other = Apart::start(NAME, &[], &offer.handle);
        assert_eq!(other.hear(), "done");
        other.end();
        return offer.end();
    }
    let before = getrlimit(Resource::Nofile).current.unwrap();
    let others: Vec<OwnedFd> = (0..50).map(|_| offer.connect()).collect();
    assert!(others.iter().all(|socket| offer.open_by(socket) == OPENED));
    limit_descriptors(20);
    // Nobody new is accepted; those who are connected are answered.
    assert!(others.iter().all(|socket| offer.open_by(socket) == OPENED));
    limit_descriptors(before);
    drop(others);
    offer.still_serves();
    offer.end();
    apart::say("done");
}

/// Descriptors that somebody asks for and does not read are many on their way, and the system takes no more of the user. What
/// others have open stays, and they are told that descriptors are few.
#[test]
fn descriptors_that_nobody_reads() {
    const NAME: &str = "descriptors_that_nobody_reads";
    const LIMIT_OF_DESCRIPTORS: u64 = 200;
    let place = tempfile::tempdir().unwrap();
    let turn = folder(&place.path().join("sockets"));
    let offer = Offer::new();
    if role().is_none() {
        drop(turn);
        // Where the user has rights over the others, the system takes any number.
        if can_be_started_by(&SAME_USER) {
            let mut other = Apart::start(NAME, &SAME_USER, &offer.handle);
            assert_eq!(other.hear(), "done");
            other.end();
        } else {
            eprintln!("skipped: {SAME_USER:?} is not allowed here");
        }
        return offer.end();
    }
    let honest = Importer::new(device());
    let open = honest.open(&offer.handle).unwrap();
    let second = offer.allocator.alloc_raw(PAGE, offer::MAIN).unwrap();
    let handle = offer.exporter.export(&offer.allocator, second).unwrap();
    limit_descriptors(LIMIT_OF_DESCRIPTORS);
    let hoarder = offer.connect();
    assert_eq!(offer.open_by(&hoarder), OPENED);
    let question: Vec<u8> = [7, 2, 0, 60].into_iter().chain([0; 60]).collect();
    for _ in 0..8 {
        send(&hoarder, &question, SendFlags::empty()).unwrap();
    }
    let few = || matches!(honest.open_within(&handle, LIMIT), Err(ShareError::FewDescriptors));
    eventually("so many are on their way", few);
    let pins = || {
        let snapshot = offer.allocator.snapshot();
        snapshot.regions.iter().flat_map(|region| &region.blocks).map(|block| block.pins).sum::<u32>()
    };
    eventually("what the honest one has open, and the hoarder", || pins() == 2);
    drop(hoarder);
    let has_room = || honest.open_within(&handle, Duration::from_secs(1)).is_ok();
    eventually("they are gone with whoever did not read them", has_room);
    drop(open);
    offer.allocator.free(second).unwrap();
    offer.end();
    apart::say("done");
}
