//! When a wake that waits tries again: once what is free may cover what is asleep, and not before, since a try takes what there is
//! from the driver and gives it back.

use super::world::{Filled, World};
use super::{CACHE, CAPACITY, MORE_WEIGHTS, NOW, WEIGHTS, is_short};
use gapless::DeviceAddr;
use gapless::allocator::Backup;
use gapless::driver::{DriverCall, DriverErrorKind};
use gapless::units::MIB;
use gapless_process::PoolKind;
use std::time::Duration;

/// A wake that never tries again before its time is over does not come back.
const FOREVER: Duration = Duration::from_secs(3600);
/// The wake is waiting by then, most of the time; what it finds at once is no failure.
const A_WHILE: Duration = Duration::from_millis(30);

/// A device whose tag `weights` has 40 MiB asleep, in two pools.
fn asleep(conf: &str) -> (World, [Filled; 2]) {
    let world = World::new(conf);
    world.tagged(WEIGHTS, PoolKind::Ordinary, "weights");
    world.tagged(MORE_WEIGHTS, PoolKind::Ordinary, "weights");
    world.tagged(CACHE, PoolKind::Ordinary, "cache");
    let weights = [world.filled(Some(WEIGHTS), 24, 1), world.filled(Some(MORE_WEIGHTS), 16, 2)];
    world.device().sleep(Some("weights"), Backup::Pinned).unwrap();
    (world, weights)
}

/// Wakes while `free` makes room on another thread.
fn wakes_once(world: &World, weights: &[Filled], free: impl FnOnce()) {
    assert!(is_short(&world.device().wake(Some("weights"), NOW)));
    std::thread::scope(|scope| {
        let waking = scope.spawn(|| world.device().wake(Some("weights"), FOREVER));
        std::thread::sleep(A_WHILE);
        free();
        assert_eq!(waking.join().unwrap().unwrap().mapped_bytes, 40 * MIB);
    });
    world.expect(weights);
    world.check();
}

/// Frees blocks of the device, and of a pool.
fn free(world: &World, blocks: &[Filled]) {
    blocks.iter().for_each(|block| world.device().free(block.addr, 0, super::MAIN).unwrap());
}

#[test]
fn others_give_memory_back() {
    let (world, weights) = asleep("");
    let device = world.driver.inner().inner();
    device.set_external(CAPACITY - 20 * MIB);
    wakes_once(&world, &weights, || device.set_external(0));
}

/// What is free within the budget counts, and no more.
#[test]
fn the_budget_has_room() {
    let (world, weights) = asleep("budget:50MiB");
    let blocks = [world.filled(None, 6, 3), world.filled(Some(CACHE), 8, 4)];
    let device = world.device();
    wakes_once(&world, &weights, || {
        free(&world, &blocks[..1]);
        device.trim(0).unwrap();
    });
    world.expect(&blocks[1..]);
}

#[test]
fn the_device_s_own_memory_becomes_free() {
    let (world, weights) = asleep("");
    let block = world.filled(None, 60, 3);
    wakes_once(&world, &weights, || free(&world, &[block]));
}

/// Neither of the two would do, nor the difference.
#[test]
fn memory_of_the_device_and_of_a_pool_becomes_free() {
    let (world, weights) = asleep("");
    let (own, cache) = (world.filled(None, 24, 3), world.filled(Some(CACHE), 40, 4));
    let more = [own, cache];
    wakes_once(&world, &weights, || free(&world, &more));
}

/// A range keeps chunks that nothing is mapped at.
#[test]
fn idle_chunks_count_beside_free_ones() {
    let (world, weights) = asleep("");
    let allocator = world.device().allocator();
    let mut range = allocator.reserve_range(30 * MIB).unwrap();
    range.grow(30 * MIB, super::MAIN).unwrap();
    let block = world.filled(None, 34, 3);
    wakes_once(&world, &weights, || {
        range.shrink(30 * MIB).unwrap();
        assert_eq!(allocator.stats().idle_bytes, 30 * MIB);
        free(&world, &[block]);
    });
}

/// The number of chunks that are created while something is done.
fn created(world: &World, act: impl FnOnce()) -> u32 {
    let counted = (DriverCall::Create, u32::MAX, DriverErrorKind::Other);
    *world.driver.hook().0.lock().unwrap() = vec![counted];
    act();
    u32::MAX - world.driver.hook().0.lock().unwrap().remove(0).1
}

/// While there is too little, nothing is tried but at the beginning and at the end.
fn tries_twice(world: &World) {
    let wake = |wait| assert!(is_short(&world.device().wake(Some("weights"), wait)));
    let once = created(world, || wake(NOW));
    assert!(once > 0, "nothing was tried");
    let twice = created(world, || wake(Duration::from_millis(200)));
    assert!(twice <= 2 * once, "one try creates {once} chunks; {twice} were created");
}

#[test]
fn it_does_not_try_in_vain() {
    let (world, _) = asleep("");
    world.driver.inner().inner().set_external(CAPACITY - 30 * MIB);
    tries_twice(&world);
}

/// What the device and its pools hold of the budget is not free.
#[test]
fn it_does_not_try_in_vain_beyond_the_budget() {
    let (world, _) = asleep("budget:50MiB");
    let blocks = [world.filled(None, 6, 3), world.filled(Some(CACHE), 8, 4)];
    tries_twice(&world);
    world.expect(&blocks);
}

/// A graph pool keeps what is free in it.
#[test]
fn it_does_not_try_in_vain_for_what_a_graph_pool_has_free() {
    let (world, _) = asleep("");
    let graph = (9, 9);
    world.device().pools().add_user(graph).unwrap();
    let blocks: [DeviceAddr; 2] = [30, 4].map(|mib| world.filled(Some(graph), mib, 5).addr);
    world.device().free(blocks[0], 0, super::MAIN).unwrap();
    tries_twice(&world);
}
