//! Several tags in one call: all of them sleep or wake, or none.

use super::world::{Filled, World};
use super::{CACHE, CAPACITY, MORE_WEIGHTS, NOW, WEIGHTS, is_short};
use gapless::allocator::Backup;
use gapless::driver::DriverCall;
use gapless::units::MIB;
use gapless_process::PoolKind;

/// Two tags whose bytes are to be discarded, one whose bytes are kept, that of a captured graph, and the device's own memory.
const TAGS: [(Option<&str>, Backup); 4] = [
    (Some("cache"), Backup::Discard),
    (Some("scratch"), Backup::Discard),
    (Some("weights"), Backup::Pinned),
    (None, Backup::Pinned),
];
const SCRATCH: (u64, u64) = (2, 2);

fn world(conf: &str) -> (World, [Filled; 5]) {
    let world = World::new(conf);
    world.tagged(CACHE, PoolKind::Ordinary, "cache");
    world.tagged(SCRATCH, PoolKind::Ordinary, "scratch");
    world.tagged(WEIGHTS, PoolKind::Ordinary, "weights");
    world.tagged(MORE_WEIGHTS, PoolKind::Graph, "weights");
    let pools = [Some(CACHE), Some(SCRATCH), Some(WEIGHTS), Some(MORE_WEIGHTS), None];
    let blocks = std::array::from_fn(|number| world.filled(pools[number], 3 + number as u64, number as u64));
    (world, blocks)
}

/// Each tag has the backup that the call gives it, and what is not named has that of the rest.
#[test]
fn each_tag_has_its_backup() {
    let (world, blocks) = world("");
    let device = world.device();
    let slept = device.sleep_tags(&TAGS).unwrap();
    assert!(slept.copied_bytes >= (5 + 6 + 7) * MIB && slept.copied_bytes < (3 + 4 + 5 + 6 + 7) * MIB, "{slept:?}");
    assert_eq!(world.reserved(), 0);
    // Only what is named wakes.
    device.wake_tags(&[Some("cache"), Some("weights")], NOW).unwrap();
    let asleep: Vec<_> = device.asleep().into_iter().map(|its| its.tag).collect();
    assert_eq!(asleep, [None, Some("scratch".to_owned())]);
    world.expect(&blocks[2..4]);
    device.wake_tags(&[None], NOW).unwrap();
    world.expect(&blocks[2..]);
    world.check();
}

/// Each call of the driver is refused once, and from some time on: as long as the driver takes back what it has done, everything
/// is awake with its bytes, also those that were to be discarded.
#[test]
fn what_is_to_be_discarded_is_there_if_a_later_tag_is_refused() {
    for call in DriverCall::ALL.into_iter().filter(|call| *call != DriverCall::MemoryInfo) {
        for passing in 0.. {
            let (world, blocks) = world("");
            let refused = || world.device().sleep_tags(&TAGS);
            let Err(error) = world.refusing_one((call, passing), refused) else { break };
            assert_eq!(world.asleep(), 0, "{call:?} {passing}: {error}");
            world.check();
            world.expect(&blocks);
            world.device().sleep_tags(&TAGS).unwrap();
            world.device().wake(None, NOW).unwrap();
            world.expect(&blocks[2..]);
        }
    }
}

/// A wake that is short, or is refused a call, leaves everything as it was: bytes that were discarded get no backup, pages that
/// were awake stay so, and it works once there is memory.
#[test]
fn a_wake_that_is_undone_changes_nothing() {
    let (world, blocks) = world("");
    let device = world.device();
    device.sleep_tags(&TAGS).unwrap();
    // Of the graph's pool, a part is awake.
    let fresh = world.filled(Some(MORE_WEIGHTS), 2, 9);
    device.free(fresh.addr, 0, super::MAIN).unwrap();
    let asleep = || {
        let mut found = Vec::new();
        device.each_allocator(None, |_, allocator| found.push((allocator.asleep(), allocator.reserved_bytes())));
        found
    };
    let before = asleep();
    let external = world.driver.inner().inner();
    external.set_external(CAPACITY - (world.asleep() + 2) * MIB + 4 * MIB);
    let outcome = device.wake(None, NOW);
    assert!(is_short(&outcome), "{outcome:?}");
    assert_eq!(asleep(), before);
    external.set_external(0);
    for call in [DriverCall::Create, DriverCall::Map, DriverCall::SetAccess, DriverCall::CopyIn] {
        let before = asleep();
        for passing in 0.. {
            let Err(error) = world.refusing_one((call, passing), || device.wake(None, NOW)) else { break };
            assert_eq!(asleep(), before, "{call:?} {passing}: {error}");
            world.check();
        }
        device.sleep_tags(&TAGS).unwrap();
    }
    device.wake(None, NOW).unwrap();
    world.expect(&blocks[2..]);
    world.check();
}

/// A lack of the host's memory is found before anything is given up.
#[test]
fn the_backups_of_all_tags_together_keep_to_a_budget() {
    let (world, blocks) = world("host:16MiB");
    world.device().sleep_tags(&TAGS).unwrap_err();
    assert_eq!((world.asleep(), world.device().allocator().host_budget().taken()), (0, 0));
    world.expect(&blocks);
    world.device().sleep_tags(&TAGS[..3]).unwrap();
    world.device().wake_tags(&TAGS.map(|(tag, _)| tag), NOW).unwrap();
    world.expect(&blocks[2..]);
}
