//! The small concurrent parts under loom, which tries every schedule with few preemptions and every order that the
//! memory model allows: `cargo xtask model-check loom`.
#![cfg(loom)]

use gapless::Allocator;
use gapless::allocator::ChunkPolicy;
use gapless::driver::{HoldStreams, MemoryDriver, ModelConfig, ModelDriver, WorkDriver};
use gapless::internals::{Entries, RawAsymmetricMutex, StreamTable};
use gapless::units::StreamId;
use gapless_testkit::Witness;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

const PAGE: u64 = 64 << 10;

/// Returns the stream that has a handle, or none.
fn stream_of(handle: u64) -> StreamId {
    // SAFETY: no driver gets it.
    unsafe { StreamId::from_raw(handle) }
}

fn bounded(preemptions: usize, body: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.max_branches = 50_000;
    model.check(body);
}

/// A key is added only once, and a thread that finds it also finds its value.
#[test]
fn streams_are_added_once() {
    bounded(3, || {
        let (table, made) = (Arc::<StreamTable<u64>>::default(), Arc::<AtomicU32>::default());
        let add = |table: &StreamTable<u64>, made: &AtomicU32, key: u64| {
            let make = || {
                made.fetch_add(1, Ordering::Relaxed);
                10 * key
            };
            table.find_or_add(stream_of(key), make).copied().expect("the table is not full")
        };
        let other = (Arc::clone(&table), Arc::clone(&made));
        let thread = loom::thread::spawn(move || [add(&other.0, &other.1, 7), add(&other.0, &other.1, 8)]);
        if let Some(found) = table.find(stream_of(7)) {
            assert_eq!(*found, 70, "the value is not complete");
        }
        assert_eq!((add(&table, &made, 7), add(&table, &made, 9)), (70, 90));
        assert_eq!(thread.join().unwrap(), [70, 80]);
        assert_eq!(made.load(Ordering::Relaxed), 3);
    });
}

/// Entries get numbers of their own, and a thread that sees one also sees what is in it.
#[test]
fn entries_are_numbered() {
    bounded(3, || {
        let entries: Arc<Entries<(u32, u32)>> = Arc::default();
        let add =
            |entries: &Entries<(u32, u32)>| entries.push(|index| (index.0, index.0)).copied().expect("there is room");
        let other = Arc::clone(&entries);
        let thread = loom::thread::spawn(move || [add(&other), add(&other)]);
        assert!(entries.iter().all(|(number, same)| number == same));
        let own = add(&entries);
        let [one, two] = thread.join().unwrap();
        let mut numbers = [own.0, one.0, two.0];
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 1, 2]);
        assert_eq!(entries.iter().count(), 3);
    });
}

/// Two threads are never in the section at once, and a thread that sleeps is woken: loom reports a run in which all sleep.
#[test]
fn a_plain_store_unlocks() {
    struct Locked(RawAsymmetricMutex, loom::cell::UnsafeCell<u32>);
    // SAFETY: the cell is used with the lock taken; loom checks that.
    unsafe impl Sync for Locked {}
    let add = |locked: &Locked| {
        locked.0.lock();
        // SAFETY: nobody else has the lock.
        locked.1.with_mut(|sum| unsafe { *sum += 1 });
        locked.0.unlock();
    };
    bounded(3, move || {
        let locked = Arc::new(Locked(RawAsymmetricMutex::new(), loom::cell::UnsafeCell::new(0)));
        let threads = [0, 1].map(|_| {
            let locked = Arc::clone(&locked);
            loom::thread::spawn(move || add(&locked))
        });
        add(&locked);
        for thread in threads {
            thread.join().unwrap();
        }
        locked.0.lock();
        // SAFETY: as above.
        assert_eq!(locked.1.with(|sum| unsafe { *sum }), 3);
    });
}

type Subject = Allocator<Witness<ModelDriver>>;

fn allocator(pages: u64) -> (Subject, Arc<Witness<ModelDriver>>, StreamId) {
    let config = ModelConfig { capacity_bytes: pages * PAGE, granularity: PAGE, ..ModelConfig::default() };
    let driver = Arc::new(Witness::new(ModelDriver::new(config)));
    let other = driver.create_stream().unwrap();
    let builder = Allocator::builder(Arc::clone(&driver)).chunk_policy(ChunkPolicy::Fixed(PAGE));
    (builder.slack(f64::INFINITY).build().unwrap(), driver, other)
}

/// The peak of live bytes is recorded if two streams exceed their limits at the same time.
#[test]
fn the_peak_is_dealt_without_losing_it() {
    bounded(2, || {
        let (allocator, _, other) = allocator(4);
        // A cached block for each stream, so that both allocate without the slow path, which distributes limits in any
        // case.
        let cached = [StreamId::DEFAULT, other].map(|stream| allocator.alloc_raw(PAGE, stream).unwrap());
        for addr in cached {
            allocator.free(addr).unwrap();
        }
        allocator.reset_peaks();
        let clone = allocator.clone();
        let thread = loom::thread::spawn(move || clone.alloc_raw(PAGE, other).unwrap());
        let one = allocator.alloc_raw(PAGE, StreamId::DEFAULT).unwrap();
        let two = thread.join().unwrap();
        for addr in [one, two] {
            allocator.free(addr).unwrap();
        }
        // Read the statistics only now, since their peak is never below the current sum.
        assert_eq!(allocator.stats().peak_live_bytes, 2 * PAGE);
        allocator.check();
        allocator.close().unwrap();
    });
}

/// A free on one stream while the growth of another stream seals the first one's epoch: the block must not count as
/// passed before its work has.
#[test]
fn a_free_is_stamped_no_earlier_than_its_event() {
    bounded(2, || {
        let (allocator, driver, other) = allocator(2);
        let addrs = [0, 1].map(|_| allocator.alloc_raw(PAGE, StreamId::DEFAULT).unwrap());
        allocator.free(addrs[0]).unwrap();
        driver.hold(StreamId::DEFAULT);
        let clone = allocator.clone();
        let work = Arc::clone(&driver);
        let thread = loom::thread::spawn(move || {
            work.fill(StreamId::DEFAULT, addrs[1], PAGE, 1).unwrap();
            clone.free(addrs[1]).unwrap();
        });
        let first = allocator.alloc_raw(PAGE, other).unwrap();
        driver.fill(other, first, PAGE, 2).unwrap();
        thread.join().unwrap();
        let second = allocator.alloc_raw(PAGE, other).unwrap();
        driver.fill(other, second, PAGE, 3).unwrap();
        assert_eq!(driver.take_observations(), [""; 0]);
        allocator.check();
        for addr in [first, second] {
            allocator.free(addr).unwrap();
        }
        allocator.close().unwrap();
        assert_eq!(driver.granularity(), PAGE);
    });
}
