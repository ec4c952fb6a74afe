//! Backups as others see them, of the device's own memory and of pools.

use super::world::{Filled, World};
use super::{CACHE, CAPACITY, MORE_WEIGHTS, NOW, WEIGHTS, is_short};
use gapless::allocator::{Backup, Wake};
use gapless::driver::{WorkDriver, pattern_byte};
use gapless::units::MIB;
use gapless::{DeviceAddr, StreamId};
use gapless_process::PoolKind;

/// Whether a backup has the bytes of a block; `None` where there is none.
fn has_bytes(world: &World, block: &Filled) -> Option<bool> {
    let is_right = |shown: &[u8]| (0..).zip(shown).all(|(offset, byte)| *byte == pattern_byte(block.seed, offset));
    world.device().backup_at(block.addr, block.bytes, is_right).unwrap()
}

/// A backup is found in whichever allocator the memory is of. It is retained where a wake says so, but not by a pool for graphs.
#[test]
fn backups_are_found_in_all_pools() {
    let world = World::new("");
    let device = world.device();
    world.tagged(WEIGHTS, PoolKind::Ordinary, "weights");
    world.tagged(CACHE, PoolKind::Graph, "graphs");
    let mut blocks = [world.filled(Some(WEIGHTS), 5, 1), world.filled(None, 3, 2), world.filled(Some(CACHE), 4, 3)];
    assert_eq!(blocks.map(|block| has_bytes(&world, &block)), [None; 3]);
    device.sleep(None, Backup::Pinned).unwrap();
    assert_eq!(blocks.map(|block| has_bytes(&world, &block)), [Some(true); 3]);
    assert_eq!(device.backup_at(DeviceAddr(1), 1, |_| ()).unwrap(), None);
    device.wake(Some("weights"), NOW).unwrap();
    assert_eq!(blocks.map(|block| has_bytes(&world, &block)), [None, Some(true), Some(true)]);
    device.wake(None, Wake { wait: NOW, retain: true }).unwrap();
    assert_eq!(blocks.map(|block| has_bytes(&world, &block)), [None, Some(true), None]);
    world.expect(&blocks);
    // What is retained is of the sleep.
    world.driver.fill(StreamId::DEFAULT, blocks[1].addr, blocks[1].bytes, 9).unwrap();
    assert_eq!(has_bytes(&world, &blocks[1]), Some(true));
    blocks[1].seed = 9;
    device.sleep(None, Backup::Discard).unwrap();
    assert_eq!(blocks.map(|block| has_bytes(&world, &block)), [None; 3]);
    world.check();
}

/// Memory of the host that is retained for nothing any more goes with a trim, and that of a pool with the pool.
#[test]
fn retained_backups_end_with_what_they_are_of() {
    let world = World::new("");
    let device = world.device();
    let host_memory = || world.driver.inner().inner().usage().host_memory;
    world.tagged(WEIGHTS, PoolKind::Ordinary, "weights");
    world.tagged(CACHE, PoolKind::Ordinary, "cache");
    let [freed, _kept] = [world.filled(Some(WEIGHTS), 5, 1), world.filled(Some(CACHE), 3, 2)];
    device.sleep(None, Backup::Pinned).unwrap();
    device.wake(None, Wake { wait: NOW, retain: true }).unwrap();
    assert_eq!(host_memory(), 2);
    device.free(freed.addr, 0, StreamId::DEFAULT).unwrap();
    assert_eq!(has_bytes(&world, &freed), None);
    device.trim(0).unwrap();
    assert_eq!(host_memory(), 1);
    device.pools().release(CACHE);
    device.trim(0).unwrap();
    assert_eq!(host_memory(), 1, "a block of the pool lives");
}

/// What was discarded has no backup after a wake that was short, and so was undone.
#[test]
fn an_undone_wake_makes_no_backup() {
    let world = World::new("");
    let device = world.device();
    world.tagged(WEIGHTS, PoolKind::Ordinary, "weights");
    world.tagged(MORE_WEIGHTS, PoolKind::Ordinary, "weights");
    let blocks = [world.filled(Some(WEIGHTS), 13, 1), world.filled(Some(MORE_WEIGHTS), 20, 2)];
    for backup in [Backup::Discard, Backup::Pinned] {
        device.sleep(Some("weights"), backup).unwrap();
        world.driver.inner().inner().set_external(CAPACITY - 30 * MIB);
        assert!(is_short(&device.wake(Some("weights"), Wake { wait: NOW, retain: true })));
        let expected = if backup == Backup::Discard { None } else { Some(true) };
        assert_eq!(blocks.map(|block| has_bytes(&world, &block)), [expected; 2]);
        world.driver.inner().inner().set_external(0);
        device.wake(Some("weights"), NOW).unwrap();
        for block in &blocks {
            world.driver.fill(StreamId::DEFAULT, block.addr, block.bytes, block.seed).unwrap();
        }
    }
    world.expect(&blocks);
    world.check();
}
