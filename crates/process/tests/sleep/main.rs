//! Sleep and wake of tags, and of everything: several allocators of a device, as one.

mod backups;
mod beside;
mod files;
mod recording;
mod refused;
#[path = "../../../../tests/simulated/mod.rs"]
mod simulated;
mod together;
mod waits;
mod world;

use gapless::StreamId;
use gapless::allocator::{AllocError, Backup, Slept};
use gapless::driver::{DriverCall, DriverErrorKind, HoldStreams, WorkDriver};
use gapless::units::MIB;
use gapless_process::{Contents, Error, PoolId, PoolKind, StreamLives, TagAsleep, pop_tag, push_tag};
use std::time::{Duration, Instant};
use world::{World, add_device};

const MAIN: StreamId = StreamId::DEFAULT;
const WEIGHTS: PoolId = (1, 1);
const MORE_WEIGHTS: PoolId = (1, 2);
const CACHE: PoolId = (2, 1);
const GRAPH: PoolId = (0, 3);
const NOW: Duration = Duration::ZERO;
/// How long a test waits for what takes milliseconds.
const LIMIT: Duration = Duration::from_secs(10);
const CAPACITY: u64 = 64 * MIB;

fn is_short<T: std::fmt::Debug>(outcome: &Result<T, Error>) -> bool {
    matches!(outcome, Err(Error::Alloc(AllocError::OutOfMemory(_))))
}

/// All pools of a tag sleep, and no other memory. Where nothing has the tag, nothing happens.
#[test]
fn a_tag_sleeps_and_wakes_with_its_bytes() {
    let world = World::new("");
    let device = world.device();
    world.tagged(WEIGHTS, PoolKind::Ordinary, "weights");
    world.tagged(MORE_WEIGHTS, PoolKind::Ordinary, "weights");
    world.tagged(CACHE, PoolKind::Ordinary, "cache");
    let weights = [world.filled(Some(WEIGHTS), 9, 1), world.filled(Some(MORE_WEIGHTS), 5, 2)];
    let others = [world.filled(Some(CACHE), 8, 3), world.filled(None, 3, 4)];
    for tag in ["kv_cache", ""] {
        assert_eq!(device.sleep(Some(tag), Backup::Discard).unwrap(), Slept::default());
        assert_eq!(device.wake(Some(tag), NOW).unwrap().mapped_bytes, 0);
    }
    let slept = device.sleep(Some("weights"), Backup::Pinned).unwrap();
    assert_eq!((slept.live_bytes, slept.copied_bytes), (14 * MIB, 14 * MIB));
    assert_eq!((slept.asleep_bytes, world.asleep(), world.reserved()), (16 * MIB, 16, 12));
    assert_eq!(device.memory_use().live, 25 * MIB, "what is asleep is live");
    world.expect(&others);
    assert_eq!(device.sleep(Some("weights"), Backup::Pinned).unwrap(), Slept::default(), "a second time");
    let of_weights = TagAsleep { tag: Some("weights".to_owned()), live_bytes: 14 * MIB, asleep_bytes: 16 * MIB };
    assert_eq!(device.asleep(), [of_weights]);
    assert_eq!(device.describe_asleep(), "14 MiB of tag weights are asleep and need 16 MiB.");
    let report = serde_json::to_value(device.report(Contents::Figures)).unwrap();
    assert_eq!(report["asleep"][0]["tag"], "weights");
    assert_eq!(report.get("asleep_blocks"), None);
    let snapshot = serde_json::to_value(device.report(Contents::Snapshot)).unwrap();
    assert_eq!(snapshot["asleep_blocks"].as_array().map(Vec::len), Some(2));
    let mut addresses = weights.map(|block| block.addr);
    addresses.sort_unstable();
    assert_eq!(device.asleep_blocks(), addresses);
    assert_eq!((&report["pools"][0]["kind"], &report["pools"][2]["tag"]), (&"ordinary".into(), &"cache".into()));
    let woken = device.wake(Some("weights"), NOW).unwrap();
    assert_eq!((woken.mapped_bytes, woken.copied_bytes, world.asleep()), (16 * MIB, 14 * MIB, 0));
    assert_eq!(device.wake(Some("weights"), NOW).unwrap().mapped_bytes, 0, "a second time");
    world.expect(&[weights, others].concat());
    assert!(device.asleep().is_empty() && device.describe_asleep().is_empty());
    world.check();
}

/// After everything has fallen asleep, nothing is held; memory of no tag is named as such.
#[test]
fn everything_sleeps() {
    let world = World::new("");
    let device = world.device();
    world.tagged(WEIGHTS, PoolKind::Ordinary, "weights");
    let blocks = [world.filled(Some(WEIGHTS), 9, 1), world.filled(None, 6, 2)];
    // Released, and not closed yet.
    device.pools().begin(CACHE).unwrap();
    let gone = world.filled(Some(CACHE), 4, 3);
    device.free(gone.addr, 0, MAIN).unwrap();
    device.end_pool(CACHE);
    device.pools().release(CACHE);
    let slept = device.sleep(None, Backup::Pinned).unwrap();
    assert_eq!((world.asleep(), world.reserved(), slept.released_bytes), (16, 0, 20 * MIB));
    assert_eq!(
        device.describe_asleep(),
        "6 MiB without a tag are asleep and need 6 MiB.\n9 MiB of tag weights are asleep and need 10 MiB."
    );
    device.wake(None, NOW).unwrap();
    world.expect(&blocks);
    world.check();
}

/// What a program allocates in a tag that sleeps has memory of its own, and a free there needs none.
#[test]
fn a_sleeping_tag_serves_and_frees() {
    for conf in ["", "budget:32MiB"] {
        let world = World::new(conf);
        let device = world.device();
        world.tagged(WEIGHTS, PoolKind::Ordinary, "weights");
        let [kept, freed] = [world.filled(Some(WEIGHTS), 8, 1), world.filled(Some(WEIGHTS), 8, 2)];
        device.sleep(Some("weights"), Backup::Pinned).unwrap();
        let fresh = world.filled(Some(WEIGHTS), 6, 3);
        assert_eq!((world.asleep(), world.reserved()), (16, 6));
        assert_eq!(device.live_around(fresh.addr).map(|(pool, _)| pool), Some(WEIGHTS));
        device.free(freed.addr, 0, MAIN).unwrap();
        world.expect(&[fresh]);
        assert_eq!(device.wake(Some("weights"), NOW).unwrap().mapped_bytes, 8 * MIB);
        world.expect(&[kept, fresh]);
        world.check();
    }
}

/// Without a backup the bytes are lost, and the addresses are not.
#[test]
fn what_is_discarded_has_other_bytes() {
    let world = World::new("");
    let device = world.device();
    world.tagged(CACHE, PoolKind::Ordinary, "cache");
    let block = world.filled(Some(CACHE), 4, 1);
    assert_eq!(device.sleep(Some("cache"), Backup::Discard).unwrap().copied_bytes, 0);
    assert_eq!(device.wake(Some("cache"), NOW).unwrap().copied_bytes, 0);
    world.driver.verify(MAIN, block.addr, block.bytes, block.seed).unwrap();
    world.driver.synchronize(MAIN).unwrap();
    assert_eq!(world.driver.take_mismatches().len(), 1);
}

/// The second pool cannot sleep: the first one is awake again, with its bytes.
#[test]
fn a_sleep_happens_whole_or_not_at_all() {
    for conf in ["", "budget:48MiB"] {
        let world = World::new(conf);
        let device = world.device();
        world.tagged(WEIGHTS, PoolKind::Ordinary, "weights");
        world.tagged(MORE_WEIGHTS, PoolKind::Ordinary, "weights");
        let blocks =
            [world.filled(Some(WEIGHTS), 9, 1), world.filled(Some(MORE_WEIGHTS), 5, 2), world.filled(None, 3, 3)];
        for tag in [Some("weights"), None] {
            let outcome = world.refusing(&[(DriverCall::HostAlloc, 1)], || device.sleep(tag, Backup::Pinned));
            assert!(matches!(outcome, Err(Error::Alloc(AllocError::Driver(_)))), "{outcome:?}");
            assert_eq!(world.asleep(), 0);
            world.expect(&blocks);
            world.check();
        }
        device.sleep(None, Backup::Pinned).unwrap();
        device.wake(None, NOW).unwrap();
        world.expect(&blocks);
    }
}

/// If the driver refuses to map the first one again, too, that is asleep, and counted. It wakes later.
#[test]
fn what_cannot_be_undone_is_counted() {
    let world = World::new("");
    let device = world.device();
    world.tagged(WEIGHTS, PoolKind::Ordinary, "weights");
    world.tagged(MORE_WEIGHTS, PoolKind::Ordinary, "weights");
    let blocks = [world.filled(Some(WEIGHTS), 9, 1), world.filled(Some(MORE_WEIGHTS), 5, 2)];
    let mappings = device.allocator().driver().inner().inner().usage().mappings;
    // The last one of them.
    let calls = [(DriverCall::Unmap, u32::try_from(mappings).unwrap() - 1), (DriverCall::Map, 0)];
    world.refusing(&calls, || device.sleep(Some("weights"), Backup::Pinned)).unwrap_err();
    assert!(world.asleep() >= 10);
    device.wake(Some("weights"), NOW).unwrap();
    world.expect(&blocks);
    world.check();
}

/// Each call of the driver fails from some time on, in a sleep and in a wake of two pools and the main allocator: nothing is lost,
/// and then it works.
#[test]
fn any_call_may_fail() {
    let calls = DriverCall::ALL.into_iter();
    for call in calls.filter(|call| *call != DriverCall::MemoryInfo) {
        for passing in 0..12 {
            let world = World::new("");
            let device = world.device();
            world.tagged(WEIGHTS, PoolKind::Ordinary, "weights");
            world.tagged(MORE_WEIGHTS, PoolKind::Ordinary, "weights");
            let blocks =
                [world.filled(Some(WEIGHTS), 3, 1), world.filled(Some(MORE_WEIGHTS), 5, 2), world.filled(None, 3, 3)];
            let refusing = |act: &dyn Fn() -> bool| {
                *world.driver.hook().0.lock().unwrap() = vec![(call, passing, DriverErrorKind::Other)];
                let is_done = act();
                world.driver.hook().0.lock().unwrap().clear();
                is_done
            };
            let slept = refusing(&|| device.sleep(None, Backup::Pinned).is_ok());
            world.check();
            if !slept {
                // What could not be mapped again.
                device.wake(None, NOW).unwrap();
                world.expect(&blocks);
                device.sleep(None, Backup::Pinned).unwrap();
            }
            let woken = refusing(&|| device.wake(None, NOW).is_ok());
            world.check();
            device.wake(None, NOW).unwrap();
            assert_eq!(world.asleep(), 0, "{call:?} {passing}");
            world.expect(&blocks);
            if slept && woken {
                break;
            }
        }
    }
}

/// There is memory for one of two: none wakes. What was allocated in the first one meanwhile stays awake. Once there is enough,
/// both wake with their bytes.
#[test]
fn a_wake_happens_whole_or_not_at_all() {
    let world = World::new("");
    let device = world.device();
    world.tagged(WEIGHTS, PoolKind::Ordinary, "weights");
    world.tagged(MORE_WEIGHTS, PoolKind::Ordinary, "weights");
    let blocks = [world.filled(Some(WEIGHTS), 13, 1), world.filled(Some(MORE_WEIGHTS), 20, 2)];
    device.sleep(Some("weights"), Backup::Pinned).unwrap();
    let fresh = world.filled(Some(WEIGHTS), 4, 3);
    world.driver.inner().inner().set_external(CAPACITY - 30 * MIB);
    let outcome = device.wake(Some("weights"), NOW);
    assert!(is_short(&outcome), "{outcome:?}");
    assert_eq!((world.asleep(), world.reserved()), (34, 4));
    world.expect(&[fresh]);
    world.check();
    world.driver.inner().inner().set_external(CAPACITY - 40 * MIB);
    device.wake(Some("weights"), NOW).unwrap();
    world.expect(&[blocks[0], blocks[1], fresh]);
    world.check();
}

/// What woke sleeps again although nothing in it is live: replays use what a capture has freed.
#[test]
fn freed_memory_of_a_graph_sleeps_again() {
    let world = World::new("");
    let device = world.device();
    world.tagged(CACHE, PoolKind::Graph, "engine");
    world.tagged(WEIGHTS, PoolKind::Ordinary, "engine");
    let (freed, block) = (world.filled(Some(CACHE), 8, 1), world.filled(Some(WEIGHTS), 20, 2));
    device.free(freed.addr, 0, MAIN).unwrap();
    device.sleep(Some("engine"), Backup::Pinned).unwrap();
    assert_eq!((world.asleep(), world.reserved()), (28, 0));
    world.driver.inner().inner().set_external(CAPACITY - 12 * MIB);
    let outcome = device.wake(Some("engine"), NOW);
    assert!(is_short(&outcome), "{outcome:?}");
    assert_eq!((world.asleep(), world.reserved()), (28, 0));
    world.driver.inner().inner().set_external(0);
    device.wake(Some("engine"), NOW).unwrap();
    world.expect(&[block]);
    world.check();
}

/// What an earlier wake of the tag left asleep is asked for again when there is memory, for as long as the caller waits.
#[test]
fn a_wake_waits() {
    let world = World::new("");
    let device = world.device();
    world.tagged(WEIGHTS, PoolKind::Ordinary, "weights");
    world.tagged(MORE_WEIGHTS, PoolKind::Ordinary, "weights");
    world.tagged(CACHE, PoolKind::Ordinary, "cache");
    let blocks = [world.filled(Some(WEIGHTS), 13, 1), world.filled(Some(MORE_WEIGHTS), 20, 2)];
    device.sleep(Some("weights"), Backup::Pinned).unwrap();
    let cache = world.filled(Some(CACHE), 40, 3);
    let began = Instant::now();
    assert!(is_short(&device.wake(Some("weights"), Duration::from_millis(50))));
    assert!(began.elapsed() >= Duration::from_millis(50));
    std::thread::scope(|scope| {
        let waking = scope.spawn(|| device.wake(Some("weights"), LIMIT));
        std::thread::sleep(Duration::from_millis(30));
        // Another tag makes room meanwhile.
        device.sleep(Some("cache"), Backup::Pinned).unwrap();
        waking.join().unwrap().unwrap();
    });
    world.expect(&blocks);
    assert!(is_short(&device.wake(Some("cache"), NOW)));
    device.sleep(Some("weights"), Backup::Discard).unwrap();
    device.wake(Some("cache"), NOW).unwrap();
    world.expect(&[cache]);
}

/// What sleeps holds nothing of a budget: others may have all of it. At a wake, it has its part again.
#[test]
fn a_budget_is_lent_and_returned() {
    let world = World::new("budget:32MiB");
    let device = world.device();
    world.tagged(WEIGHTS, PoolKind::Ordinary, "weights");
    world.tagged(CACHE, PoolKind::Ordinary, "cache");
    let weights = world.filled(Some(WEIGHTS), 24, 1);
    assert_eq!(device.allocator().budget(), 0, "the pool was lent all that was left");
    device.sleep(Some("weights"), Backup::Pinned).unwrap();
    assert_eq!(device.allocator().budget(), 32 * MIB);
    let cache = world.filled(Some(CACHE), 30, 2);
    assert!(is_short(&device.wake(Some("weights"), NOW)));
    device.sleep(Some("cache"), Backup::Pinned).unwrap();
    let own = world.filled(None, 32, 3);
    device.sleep(None, Backup::Pinned).unwrap();
    device.wake(Some("weights"), NOW).unwrap();
    world.expect(&[weights]);
    let used = device.memory_use();
    assert_eq!((used.reserved, used.set_budget), (24 * MIB, Some(32 * MIB)));
    assert!(is_short(&device.wake(None, NOW)));
    assert_eq!(device.allocator().budget(), 8 * MIB);
    device.sleep(Some("weights"), Backup::Pinned).unwrap();
    device.wake(Some("cache"), NOW).unwrap();
    world.expect(&[cache]);
    device.free(own.addr, 0, MAIN).unwrap();
    device.sleep(Some("cache"), Backup::Pinned).unwrap();
    device.free(cache.addr, 0, MAIN).unwrap();
    device.wake(None, NOW).unwrap();
    world.expect(&[weights]);
    world.check();
}

/// Free memory of the main allocator and of other ordinary pools goes to what wakes, and that of ordinary pools to whoever asks.
#[test]
fn free_memory_of_others_is_trimmed() {
    for conf in ["", "budget:60MiB"] {
        let world = World::new(conf);
        let device = world.device();
        world.tagged(WEIGHTS, PoolKind::Ordinary, "weights");
        world.tagged(CACHE, PoolKind::Ordinary, "cache");
        let weights = world.filled(Some(WEIGHTS), 40, 1);
        device.sleep(Some("weights"), Backup::Pinned).unwrap();
        for block in [world.filled(Some(CACHE), 30, 2), world.filled(None, 26, 3)] {
            device.free(block.addr, 0, MAIN).unwrap();
        }
        assert_eq!(world.reserved(), 56);
        assert_eq!(device.stats().free_chunk_bytes, 56 * MIB);
        device.wake(Some("weights"), NOW).unwrap();
        world.expect(&[weights]);
        device.free(weights.addr, 0, MAIN).unwrap();
        let own = world.filled(None, 50, 4);
        device.free(own.addr, 0, MAIN).unwrap();
        let cache = world.filled(Some(CACHE), 50, 5);
        device.free(cache.addr, 0, MAIN).unwrap();
        let other = world.filled(Some(WEIGHTS), 50, 5);
        device.free(other.addr, 0, MAIN).unwrap();
        assert_eq!(device.trim(0).unwrap().released_bytes, 50 * MIB);
        assert_eq!(world.reserved(), 0);
        world.check();
    }
}

/// The kind of a pool is known before it has memory, though whoever makes it does not know it yet. It cannot change afterwards.
#[test]
fn a_pool_s_kind_is_declared() {
    let world = World::new("");
    let device = world.device();
    let pools = device.pools();
    let kind_of = |pool| pools.named(pool).map(|pool| (pool.kind(), pool.tag()));
    pools.add_user(WEIGHTS).unwrap();
    assert_eq!(kind_of(WEIGHTS), Some((PoolKind::Graph, None)));
    pools.declare(WEIGHTS, PoolKind::Ordinary, Some("weights")).unwrap();
    assert_eq!(kind_of(WEIGHTS), Some((PoolKind::Ordinary, Some("weights".to_owned()))));
    assert_eq!((pools.users(WEIGHTS), pools.all().len()), (1, 1));
    world.filled(Some(WEIGHTS), 2, 1);
    let refused = pools.declare(WEIGHTS, PoolKind::Graph, Some("other")).unwrap_err();
    assert_eq!(refused.to_string(), "pool (1, 1) is in use already: declare its kind before it is opened");
    assert_eq!(kind_of(WEIGHTS), Some((PoolKind::Ordinary, Some("weights".to_owned()))));
    pools.declare(WEIGHTS, PoolKind::Ordinary, None).unwrap();
    assert_eq!(kind_of(WEIGHTS), Some((PoolKind::Ordinary, None)));
    pools.begin(CACHE).unwrap();
    assert!(matches!(pools.declare(CACHE, PoolKind::Ordinary, None), Err(Error::PoolInUse(CACHE))));
    pools.end(CACHE);
    pools.declare(CACHE, PoolKind::Ordinary, None).unwrap();
    assert!(matches!(pools.declare(CACHE, PoolKind::Ordinary, Some("")), Err(Error::EmptyTag)));
    // What was declared of a pool that never was is forgotten with it.
    pools.declare(MORE_WEIGHTS, PoolKind::Ordinary, None).unwrap();
    pools.release(MORE_WEIGHTS);
    pools.add_user(MORE_WEIGHTS).unwrap();
    assert_eq!(kind_of(MORE_WEIGHTS), Some((PoolKind::Graph, None)));
}

/// A thread's tag is that of the pools that it makes, unless something else was declared of them.
#[test]
fn a_thread_gives_its_tag() {
    let world = World::new("");
    let pools = world.device().pools();
    assert!(matches!(push_tag(""), Err(Error::EmptyTag)));
    assert!(matches!(pop_tag(), Err(Error::NoTag)));
    push_tag("outer").unwrap();
    push_tag("inner").unwrap();
    pools.declare(CACHE, PoolKind::Ordinary, None).unwrap();
    pools.add_user(WEIGHTS).unwrap();
    pools.add_user(CACHE).unwrap();
    pop_tag().unwrap();
    pools.add_user(MORE_WEIGHTS).unwrap();
    pop_tag().unwrap();
    let tag_of = |pool| pools.named(pool).unwrap().tag();
    assert_eq!(tag_of(WEIGHTS).as_deref(), Some("inner"));
    assert_eq!((tag_of(CACHE), tag_of(MORE_WEIGHTS).as_deref()), (None, Some("outer")));
}

/// A pool for graphs has memory that replays use, freed or not: all of it sleeps.
#[test]
fn a_graph_pool_sleeps_whole() {
    let world = World::new("");
    let device = world.device();
    world.tagged(CACHE, PoolKind::Graph, "graphs");
    let block = world.filled(Some(CACHE), 8, 1);
    let slept = device.sleep(Some("graphs"), Backup::Pinned).unwrap();
    assert_eq!((slept.asleep_bytes, slept.copied_bytes), (8 * MIB, 8 * MIB));
    assert_eq!((world.asleep(), world.reserved()), (8, 0));
    device.wake(Some("graphs"), NOW).unwrap();
    world.expect(&[block]);
}

/// Work of another device that was recorded for a block is waited for before the block loses its memory. One that was freed does
/// not sleep.
#[test]
fn work_of_another_device_is_waited_for() {
    for frees in [false, true] {
        let world = World::new("");
        let other = add_device(&world.process, 1);
        let device = world.device();
        world.tagged(WEIGHTS, PoolKind::Ordinary, "weights");
        let [block, beside] = [world.filled(Some(WEIGHTS), 4, 1), world.filled(Some(WEIGHTS), 6, 2)];
        let reader = other.create_stream().unwrap();
        let used = if frees { beside } else { block };
        world.process.record_stream(device, used.addr, reader, StreamLives::Unknown).unwrap();
        let hold = |busy: bool| {
            let inner = other.inner().inner();
            let own = simulated::stream(reader.as_raw() & ((1 << 40) - 1));
            if busy { inner.hold(own) } else { inner.resume(own) }
        };
        hold(true);
        other.delay(reader, Duration::from_millis(1)).unwrap();
        device.free(beside.addr, 0, MAIN).unwrap();
        let waits = other.inner().inner().host_waits();
        assert_eq!(device.sleep(Some("weights"), Backup::Pinned).unwrap().asleep_bytes, 4 * MIB);
        assert!(other.inner().inner().host_waits() > waits, "the host waits for it");
        hold(false);
        device.wake(Some("weights"), NOW).unwrap();
        world.expect(&[block]);
    }
}
