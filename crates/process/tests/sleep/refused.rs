//! When nothing sleeps or wakes.

use super::world::{World, add_device};
use super::{CACHE, LIMIT, MAIN, MORE_WEIGHTS, NOW, WEIGHTS};
use gapless::allocator::{AllocError, Backup, InListener, MapListener, MappedRange, Refusal, SleepError};
use gapless::driver::{DriverCall, DriverErrorKind, WorkDriver};
use gapless::units::MIB;
use gapless_process::{Error, Place, PoolKind, Request};
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// Nothing sleeps and nothing wakes in a capture, nor while a pool may be open for one.
#[test]
fn not_in_a_capture() {
    let world = World::new("");
    let device = world.device();
    world.tagged(WEIGHTS, PoolKind::Ordinary, "weights");
    let block = world.filled(Some(WEIGHTS), 4, 1);
    let refuses = || {
        let slept = device.sleep(Some("weights"), Backup::Pinned);
        assert!(matches!(slept, Err(Error::Capturing(0))), "{slept:?}");
        let woken = device.wake(Some("weights"), LIMIT);
        assert!(matches!(woken, Err(Error::Capturing(0))), "{woken:?}");
    };
    device.pools().begin(CACHE).unwrap();
    refuses();
    device.pools().end(CACHE);
    let host = world.driver.inner().inner();
    let stream = host.create_stream().unwrap();
    let outer = super::simulated::stream(stream.as_raw() | 1 << 40);
    device.allocator().keep_stream(outer).unwrap();
    host.begin_capture(stream);
    refuses();
    host.end_capture(stream);
    // An ordinary pool is not open for a capture.
    device.pools().begin(WEIGHTS).unwrap();
    device.sleep(Some("weights"), Backup::Pinned).unwrap();
    device.wake(Some("weights"), NOW).unwrap();
    device.pools().end(WEIGHTS);
    world.expect(&[block]);
}

/// Calls sleep and wake in its callback.
#[derive(Default)]
struct Sleepy {
    world: OnceLock<Weak<World>>,
    refused: Mutex<u32>,
}

impl MapListener for Sleepy {
    fn on_map(&self, _: MappedRange) -> Result<(), Refusal> {
        if let Some(world) = self.world.get().and_then(Weak::upgrade) {
            for outcome in
                [world.device().sleep(None, Backup::Pinned).map(drop), world.device().wake(None, LIMIT).map(drop)]
            {
                assert!(matches!(outcome, Err(Error::Alloc(AllocError::InListener(InListener { .. })))), "{outcome:?}");
                *self.refused.lock().unwrap() += 1;
            }
        }
        Ok(())
    }

    fn before_unmap(&self, _: MappedRange) -> Result<(), Refusal> {
        Ok(())
    }
}

#[test]
fn not_in_a_callback() {
    let world = Arc::new(World::new(""));
    let listener = Arc::new(Sleepy::default());
    listener.world.set(Arc::downgrade(&world)).unwrap();
    world.device().allocator().listeners().add(Arc::clone(&listener) as Arc<dyn MapListener>).unwrap();
    world.filled(None, 4, 1);
    assert!(*listener.refused.lock().unwrap() >= 2);
}

/// What a setting allows of the host's memory is for all devices together, and for all of a tag.
#[test]
fn not_beyond_what_the_host_has_for_it() {
    let world = World::new("host:10MiB");
    let other = add_device(&world.process, 1);
    let elsewhere = world.process.device(1).unwrap();
    let addr = elsewhere.alloc_worded(Place::Main, &Request::new(2 * MIB, MAIN), |error| error).unwrap();
    other.fill(MAIN, addr, 2 * MIB, 7).unwrap();
    elsewhere.sleep(None, Backup::Pinned).unwrap();
    world.tagged(WEIGHTS, PoolKind::Ordinary, "weights");
    world.tagged(MORE_WEIGHTS, PoolKind::Ordinary, "weights");
    let blocks = [world.filled(Some(WEIGHTS), 4, 1), world.filled(Some(MORE_WEIGHTS), 6, 2)];
    let refused = world.device().sleep(Some("weights"), Backup::Pinned).unwrap_err();
    assert!(matches!(refused, Error::Sleep(SleepError::HostMemory { .. })), "{refused}");
    assert_eq!(
        refused.to_string(),
        "a backup of 6 MiB does not fit in the 4 MiB that are left of the host's memory for backups"
    );
    assert_eq!((world.asleep(), world.device().allocator().host_budget().taken()), (0, 2 * MIB));
    world.expect(&blocks);
    elsewhere.wake(None, NOW).unwrap();
    world.device().sleep(Some("weights"), Backup::Pinned).unwrap();
    world.device().wake(Some("weights"), NOW).unwrap();
    world.expect(&blocks);
}

/// Does not see memory unmapped.
struct Holds;

impl MapListener for Holds {
    fn on_map(&self, _: MappedRange) -> Result<(), Refusal> {
        Ok(())
    }

    fn before_unmap(&self, _: MappedRange) -> Result<(), Refusal> {
        Err(Refusal::new("the test holds it"))
    }
}

/// What a listener holds stays awake, in every pool, and is counted.
#[test]
fn not_what_a_listener_holds() {
    let world = World::new("");
    let device = world.device();
    world.tagged(WEIGHTS, PoolKind::Ordinary, "weights");
    world.tagged(MORE_WEIGHTS, PoolKind::Ordinary, "weights");
    let blocks = [world.filled(Some(WEIGHTS), 4, 1), world.filled(Some(MORE_WEIGHTS), 6, 2)];
    let holds: Arc<dyn MapListener> = Arc::new(Holds);
    let mut added = Vec::new();
    device.each_allocator(None, |_, allocator| added.push(allocator.listeners().add(Arc::clone(&holds)).unwrap()));
    let slept = device.sleep(Some("weights"), Backup::Pinned).unwrap();
    assert_eq!((slept.left_awake.refused_bytes, slept.asleep_bytes), (10 * MIB, 0), "{slept:?}");
    world.expect(&blocks);
    let mut added = added.into_iter();
    device.each_allocator(None, |_, allocator| {
        assert!(allocator.listeners().remove(added.next().unwrap()).unwrap());
    });
}

/// On a lost device nothing sleeps, and nothing that was tried before is undone by force.
#[test]
fn not_on_a_lost_device() {
    let world = World::new("");
    let device = world.device();
    world.tagged(WEIGHTS, PoolKind::Ordinary, "weights");
    world.filled(Some(WEIGHTS), 4, 1);
    *world.driver.hook().0.lock().unwrap() = vec![(DriverCall::HostAlloc, 0, DriverErrorKind::DeviceLost)];
    for _ in 0..2 {
        let outcome = device.sleep(Some("weights"), Backup::Pinned);
        match outcome {
            Err(Error::Alloc(AllocError::Driver(error))) => assert_eq!(error.kind, DriverErrorKind::DeviceLost),
            other => panic!("{other:?}"),
        }
        assert_eq!(world.asleep(), 0);
    }
}
