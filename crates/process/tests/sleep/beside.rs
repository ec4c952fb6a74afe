//! Sleep beside other threads and beside everything else that memory is used for.

use super::simulated;
use super::world::{Filled, World};
use super::{CACHE, LIMIT, MAIN, NOW, WEIGHTS};
use gapless::allocator::Backup;
use gapless::driver::WorkDriver;
use gapless::units::MIB;
use gapless_process::{PoolKind, Request, StreamLives};
use gapless_share::FOLDER;

/// Two threads put different tags to sleep and wake them, while a third one allocates.
#[test]
fn several_threads_at_once() {
    let world = World::new("budget:60MiB");
    let device = world.device();
    let tags = [(WEIGHTS, "weights"), (CACHE, "cache")];
    tags.iter().for_each(|(pool, tag)| world.tagged(*pool, PoolKind::Ordinary, tag));
    let blocks = tags.map(|(pool, _)| world.filled(Some(pool), 12, pool.0));
    std::thread::scope(|scope| {
        for (_, tag) in tags {
            scope.spawn(move || {
                for _ in 0..20 {
                    device.sleep(Some(tag), Backup::Pinned).unwrap();
                    device.wake(Some(tag), LIMIT).unwrap();
                }
            });
        }
        for _ in 0..200 {
            let addr = device.alloc(&Request::new(3 * MIB, MAIN)).unwrap();
            device.free(addr, 0, MAIN).unwrap();
        }
    });
    assert_eq!(world.asleep(), 0);
    world.expect(&blocks);
    world.check();
}

/// Defragmentation, memory of a captured graph, a block that is open in another process, and sleep of everything: in one process.
#[test]
fn everything_at_once() {
    let place = tempfile::tempdir().unwrap();
    let sockets = place.path().join("sockets");
    let settings = [(FOLDER, sockets.to_str().unwrap())];
    simulated::with_settings("beside::everything_at_once", &settings, sleep_beside_everything);
}

fn sleep_beside_everything() {
    let (world, elsewhere) = (World::new("budget:60MiB,chunk:2MiB"), World::new(""));
    let device = world.device();
    world.tagged(WEIGHTS, PoolKind::Ordinary, "weights");
    // Free memory in pieces, which a large block is made of.
    let pieces: Vec<Filled> = (0..10).map(|seed| world.filled(None, 2, seed)).collect();
    for piece in pieces.iter().step_by(2) {
        device.free(piece.addr, 0, MAIN).unwrap();
    }
    let mut blocks: Vec<Filled> = pieces.into_iter().skip(1).step_by(2).collect();
    device.set_budget(48 * MIB).unwrap();
    blocks.push(world.filled(None, 9, 20));
    assert!(device.stats().harvested_chunks > 0);
    blocks.push(world.filled(Some(WEIGHTS), 5, 21));
    // A graph's memory.
    let host = world.driver.inner().inner();
    let stream = host.create_stream().unwrap();
    let outer = super::simulated::stream(stream.as_raw() | 1 << 40);
    device.pools().begin(CACHE).unwrap();
    host.begin_capture(stream);
    let request = Request { lives: StreamLives::AsLongAsTheProcess, ..Request::new(4 * MIB, outer) };
    let captured = device.alloc(&request).unwrap();
    host.end_capture(stream);
    device.end_pool(CACHE);
    world.driver.fill(outer, captured, 4 * MIB, 22).unwrap();
    world.driver.synchronize(outer).unwrap();
    blocks.push(Filled { addr: captured, bytes: 4 * MIB, seed: 22 });
    // A block that another process has open.
    let exported = world.filled(None, 4, 23);
    world.driver.synchronize(MAIN).unwrap();
    let (handle, _) = device.export(exported.addr).unwrap();
    let (there, _) = elsewhere.device().import(&handle).unwrap();
    for turn in 0..3 {
        let slept = device.sleep(None, Backup::Pinned).unwrap();
        assert!(
            (4 * MIB..=6 * MIB).contains(&slept.left_awake.pinned_bytes),
            "it lies in three pages at most: {slept:?}"
        );
        let left_awake = slept.left_awake.pinned_bytes + slept.left_awake.refused_bytes;
        assert_eq!(device.memory_use().reserved, left_awake);
        let seen = Filled { addr: there, ..exported };
        elsewhere.expect(&[seen]);
        world.expect(&[exported]);
        let other = world.filled(Some(WEIGHTS), 20, turn);
        device.free(other.addr, 0, MAIN).unwrap();
        device.wake(None, NOW).unwrap();
        world.expect(&blocks);
        world.check();
    }
    elsewhere.device().close_import(there).unwrap();
}
