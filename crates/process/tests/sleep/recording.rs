//! Recordings of programs that sleep and wake, and what a replay makes of them.

use super::world::World;
use super::{CACHE, CAPACITY, GRAPH, MAIN, NOW, WEIGHTS};
use gapless::allocator::Backup;
use gapless::units::MIB;
use gapless_process::{PoolKind, pop_tag, push_tag};
use gapless_trace::caching::CachingSettings;
use gapless_trace::{
    Content, Device, GaplessSettings, Op, PhaseKind, PolicyKind, ReplayOptions, Tags, Touch, Trace, replay,
};
use std::sync::Arc;

/// Two turns of an engine and a trainer, and what was refused meanwhile.
#[test]
fn a_replay_has_the_phases_of_the_program() {
    let world = World::new("");
    let device = world.device();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("turns.trace");
    device.main().record(&path).unwrap();
    world.tagged(WEIGHTS, PoolKind::Ordinary, "the weights");
    world.tagged(CACHE, PoolKind::Ordinary, "kv");
    push_tag("graphs").unwrap();
    device.pools().add_user(GRAPH).unwrap();
    pop_tag().unwrap();
    let mut phases = Vec::new();
    world.filled(Some(WEIGHTS), 9, 1);
    world.filled(Some(GRAPH), 2, 2);
    world.filled(None, 3, 3);
    for turn in 0..2 {
        let cache = world.filled(Some(CACHE), 20, 4);
        let mut sleep = |tag, backup| {
            let slept = device.sleep(tag, backup).unwrap();
            phases.push((PhaseKind::Sleep, slept.live_bytes, slept.asleep_bytes, slept.copied_bytes));
        };
        sleep(Some("kv"), Backup::Discard);
        sleep(Some("the weights"), Backup::Pinned);
        sleep(None, Backup::Pinned);
        let other = world.filled(None, 44, 5);
        assert!(device.wake(None, NOW).is_err(), "not recorded");
        device.free(other.addr, 44 * MIB, MAIN).unwrap();
        let mut wake = |tag, live: u64| {
            let woken = device.wake(tag, NOW).unwrap();
            phases.push((PhaseKind::Wake, live * MIB, woken.mapped_bytes, woken.copied_bytes));
        };
        wake(Some("the weights"), 9);
        wake(None, 25);
        device.main().mark(&format!("turn {turn}"));
        device.free(cache.addr, 20 * MIB, MAIN).unwrap();
    }
    device.main().stop_recording().unwrap();
    let trace = Trace::open(&path).unwrap();
    assert_eq!(trace.tags().collect::<Vec<_>>(), ["the_weights", "graphs", "kv"]);
    let tag_of = |op: &Op| if let Op::Alloc { tag, .. } = *op { Some(tag) } else { None };
    assert_eq!(trace.ops().iter().filter_map(tag_of).collect::<Vec<_>>(), [1, 2, 0, 3, 0, 3, 0]);
    let is_phase = |op: &&Op| matches!(op, Op::Sleep { .. } | Op::Wake { .. });
    let once = [
        Op::Sleep { tags: Tags::One(3), content: Content::Discard },
        Op::Sleep { tags: Tags::One(1), content: Content::Keep },
        Op::Sleep { tags: Tags::All, content: Content::Keep },
        Op::Wake { tags: Tags::One(1) },
        Op::Wake { tags: Tags::All },
    ];
    assert_eq!(trace.ops().iter().filter(is_phase).copied().collect::<Vec<_>>(), [once, once].concat());
    let options = ReplayOptions {
        policy: PolicyKind::Gapless,
        gapless: GaplessSettings::default(),
        caching: CachingSettings::default(),
        capacity_bytes: CAPACITY,
        touch: Touch::for_model(0),
        progress: None,
    };
    let replayed = replay(&trace, Arc::new(Device::of(CAPACITY).model()), &options).unwrap();
    let found = replayed.phases.iter().map(|its| (its.kind, its.live_bytes, its.mapped_bytes, its.copied_bytes));
    assert_eq!(found.collect::<Vec<_>>(), phases);
}

/// What a call says of the rest is of what it does not name, in whatever order.
#[test]
fn the_rest_is_recorded_last() {
    let world = World::new("");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rest.trace");
    world.device().main().record(&path).unwrap();
    world.tagged(CACHE, PoolKind::Ordinary, "kv");
    world.filled(Some(CACHE), 4, 1);
    world.device().sleep_tags(&[(None, Backup::Pinned), (Some("kv"), Backup::Discard)]).unwrap();
    world.device().wake_tags(&[Some("kv"), None], NOW).unwrap();
    world.device().main().stop_recording().unwrap();
    let trace = Trace::open(&path).unwrap();
    let phases = [
        Op::Sleep { tags: Tags::One(1), content: Content::Discard },
        Op::Sleep { tags: Tags::All, content: Content::Keep },
        Op::Wake { tags: Tags::One(1) },
        Op::Wake { tags: Tags::All },
    ];
    assert_eq!(trace.ops()[1..], phases);
}
