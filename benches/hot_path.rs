//! Measures one alloc-and-free pair on memory that is already held, and two baselines in the same run.
//!
//! `cargo bench --bench hot_path` measures `pair/CASE/IMPL`, and prints the ratios at the end, beside the goals:
//!
//! | case | meaning of a pair |
//! | --- | --- |
//! | `cached_SIZE` | allocate SIZE, free it |
//! | `random_N_SIZES` | of N live blocks, free a random one and allocate one of a random size instead |
//! | `two_threads_...` | like `cached_4KiB`, on two threads at the same time: time per pair of one thread |
//!
//! `mixed` draws 512 B, 4 KiB, 64 KiB, 2 MiB and 64 MiB with equal probability. Two threads that do not contend need
//! the same time per pair as one thread in `cached_4KiB`.
//!
//! The baselines have neither streams nor a driver. [`BestFit`] is a best fit in ordered maps with one lock.
//! `offset_allocator` is the crate of that name with a lock. Its caller keeps the block's handle, which saves the
//! lookup by address, and it uses units of [`OFFSET_UNIT`] bytes, so that a million mixed blocks fit.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hint::black_box;
use std::path::PathBuf;
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use criterion::{BenchmarkGroup, BenchmarkId, Criterion, criterion_group, criterion_main, measurement::WallTime};
use gapless::driver::{ModelConfig, ModelDriver, WorkDriver};
use gapless::units::{GIB, KIB, MIB, TIB};
use gapless::{Allocator, DeviceAddr, StreamId};

/// An allocator to be measured.
trait Subject: Sync {
    /// The argument of `free`.
    type Block: Copy + Send;

    /// Creates an allocator for up to `bytes` bytes in `blocks` live blocks.
    fn new(bytes: u64, blocks: u32) -> Self;
    /// Name of the allocator in benchmark ids.
    const NAME: &'static str;

    fn alloc(&self, bytes: u64, stream: StreamId) -> Self::Block;
    fn free(&self, block: Self::Block);
    /// Returns a stream for the second thread.
    fn second_stream(&self) -> StreamId;
    /// Returns the number of driver calls so far, as `DriverCalls::total` counts them.
    fn driver_calls(&self) -> u64 {
        0
    }
}

struct Gapless(Allocator<ModelDriver>);

impl Subject for Gapless {
    type Block = DeviceAddr;
    const NAME: &'static str = "gapless";

    fn new(bytes: u64, _: u32) -> Self {
        let config =
            ModelConfig { capacity_bytes: bytes, max_mappings: usize::MAX, address_bits: 56, ..ModelConfig::default() };
        Self(Allocator::builder(Arc::new(ModelDriver::new(config))).mapping_limit(usize::MAX).build().unwrap())
    }

    #[inline]
    fn alloc(&self, bytes: u64, stream: StreamId) -> DeviceAddr {
        self.0.alloc_raw(bytes, stream).expect("the memory suffices")
    }

    #[inline]
    fn free(&self, block: DeviceAddr) {
        self.0.free(block).expect("the block is live");
    }

    fn second_stream(&self) -> StreamId {
        let stream = self.0.driver().create_stream().unwrap();
        self.0.keep_stream(stream).unwrap();
        stream
    }

    fn driver_calls(&self) -> u64 {
        self.0.driver().calls().total()
    }
}

/// Best fit with coalescing: a straightforward implementation with ordered maps and a lock.
struct BestFit(Mutex<Maps>);

struct Maps {
    /// Free ranges: length by start.
    by_start: BTreeMap<u64, u64>,
    /// The same ranges as pairs of length and start.
    by_length: BTreeSet<(u64, u64)>,
    live: HashMap<u64, u64>,
}

impl Maps {
    fn insert(&mut self, start: u64, length: u64) {
        self.by_start.insert(start, length);
        self.by_length.insert((length, start));
    }

    fn remove(&mut self, start: u64, length: u64) {
        self.by_start.remove(&start);
        self.by_length.remove(&(length, start));
    }
}

impl Subject for BestFit {
    type Block = u64;
    const NAME: &'static str = "mutex_best_fit";

    fn new(bytes: u64, _: u32) -> Self {
        let mut maps = Maps { by_start: BTreeMap::new(), by_length: BTreeSet::new(), live: HashMap::new() };
        maps.insert(0, bytes);
        Self(Mutex::new(maps))
    }

    fn alloc(&self, bytes: u64, _: StreamId) -> u64 {
        let bytes = bytes.next_multiple_of(512);
        let mut maps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let &(length, start) = maps.by_length.range((bytes, 0)..).next().expect("the memory suffices");
        maps.remove(start, length);
        if length > bytes {
            maps.insert(start + bytes, length - bytes);
        }
        maps.live.insert(start, bytes);
        start
    }

    fn free(&self, block: u64) {
        let mut maps = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut start, mut length) = (block, maps.live.remove(&block).expect("the block is live"));
        if let Some((&before, &before_length)) = maps.by_start.range(..start).next_back()
            && before + before_length == start
        {
            maps.remove(before, before_length);
            start = before;
            length += before_length;
        }
        if let Some(&after_length) = maps.by_start.get(&(start + length)) {
            maps.remove(start + length, after_length);
            length += after_length;
        }
        maps.insert(start, length);
    }

    fn second_stream(&self) -> StreamId {
        // SAFETY: no driver gets it.
        unsafe { StreamId::from_raw(1) }
    }
}

struct OffsetAllocator(Mutex<offset_allocator::Allocator>);

impl Subject for OffsetAllocator {
    type Block = offset_allocator::Allocation;
    const NAME: &'static str = "offset_allocator";

    fn new(bytes: u64, blocks: u32) -> Self {
        let units = u32::try_from(bytes / OFFSET_UNIT).unwrap_or(u32::MAX);
        Self(Mutex::new(offset_allocator::Allocator::with_max_allocs(units, 3 * blocks + 1024)))
    }

    fn alloc(&self, bytes: u64, _: StreamId) -> Self::Block {
        let units = u32::try_from(bytes.div_ceil(OFFSET_UNIT)).expect("the sizes of the cases fit");
        self.0.lock().unwrap_or_else(PoisonError::into_inner).allocate(units).expect("the memory suffices")
    }

    fn free(&self, block: Self::Block) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).free(block);
    }

    fn second_stream(&self) -> StreamId {
        // SAFETY: no driver gets it.
        unsafe { StreamId::from_raw(1) }
    }
}

fn cached<S: Subject>(group: &mut BenchmarkGroup<'_, WallTime>, case: &str, bytes: u64) {
    let subject = S::new(4 * GIB, 1000);
    // Keep another block live, so that the cached block is not the only one.
    let beside: Vec<_> = (0..8).map(|_| subject.alloc(bytes, StreamId::DEFAULT)).collect();
    group.bench_function(BenchmarkId::new(case, S::NAME), |bencher| {
        bencher.iter(|| {
            let block = subject.alloc(black_box(bytes), StreamId::DEFAULT);
            subject.free(black_box(block));
        });
    });
    beside.into_iter().for_each(|block| subject.free(block));
}

/// Live blocks, and a sequence of replacements that is drawn in advance.
struct Churn<S: Subject> {
    subject: S,
    live: Vec<S::Block>,
    replacements: Vec<(u32, u32)>,
    next: usize,
    steps: u64,
}

impl<S: Subject> Churn<S> {
    fn new(blocks: u32, sizes: &[u64]) -> Self {
        let mut random = Random(0x9e37_79b9);
        let size = |random: &mut Random| sizes[random.below(sizes.len() as u32) as usize];
        let mean = sizes.iter().sum::<u64>() / sizes.len() as u64;
        let subject = S::new((2 * mean * u64::from(blocks)).clamp(GIB, 16 * TIB), blocks);
        // Long enough that every block is replaced about four times before the sequence repeats.
        let drawn = (4 * blocks).next_power_of_two();
        let live = (0..blocks).map(|_| subject.alloc(size(&mut random), StreamId::DEFAULT)).collect();
        let replacements =
            (0..drawn).map(|_| (random.below(blocks), u32::try_from(size(&mut random)).unwrap())).collect();
        let mut churn = Self { subject, live, replacements, next: 0, steps: 0 };
        // Reach a steady state: every block is replaced about twice.
        (0..2 * blocks).for_each(|_| churn.step());
        churn
    }

    #[inline]
    fn step(&mut self) {
        let (slot, bytes) = self.replacements[self.next];
        self.next = (self.next + 1) & (self.replacements.len() - 1);
        let live = &mut self.live[slot as usize];
        self.steps += 1;
        self.subject.free(*live);
        *live = self.subject.alloc(u64::from(bytes), StreamId::DEFAULT);
    }
}

fn random<S: Subject>(group: &mut BenchmarkGroup<'_, WallTime>, case: &str, blocks: u32, sizes: &[u64]) {
    let mut churn = None;
    group.bench_function(BenchmarkId::new(case, S::NAME), |bencher| {
        let churn = churn.get_or_insert_with(|| Churn::<S>::new(blocks, sizes));
        let before = (churn.subject.driver_calls(), churn.steps);
        bencher.iter(|| churn.step());
        let calls = churn.subject.driver_calls() - before.0;
        if calls > 0 {
            // Then not only the hot path was measured.
            eprintln!("{case}: {calls} driver calls in {} pairs", churn.steps - before.1);
        }
    });
}

fn two_threads<S: Subject>(group: &mut BenchmarkGroup<'_, WallTime>, case: &str, streams: usize) {
    let subject = S::new(4 * GIB, 1000);
    let second = subject.second_stream();
    let on = [StreamId::DEFAULT, if streams == 2 { second } else { StreamId::DEFAULT }];
    on.iter().for_each(|&stream| subject.free(subject.alloc(4 * KIB, stream)));
    group.bench_function(BenchmarkId::new(case, S::NAME), |bencher| {
        bencher.iter_custom(|pairs| {
            let barrier = Barrier::new(2);
            let run = |stream| {
                barrier.wait();
                let start = Instant::now();
                for _ in 0..pairs {
                    let block = subject.alloc(black_box(4 * KIB), stream);
                    subject.free(black_box(block));
                }
                start.elapsed()
            };
            std::thread::scope(|scope| {
                let threads = on.map(|stream| scope.spawn(move || run(stream)));
                threads.map(|thread| thread.join().unwrap()).into_iter().sum::<Duration>() / 2
            })
        });
    });
}

/// Runs one case for every implementation, and adds it to the table. `$goal` is the most that gapless takes, as a multiple of
/// `offset_allocator`.
macro_rules! case {
    ($table:ident, $group:ident, $run:ident, $goal:expr, $case:expr $(, $argument:expr)*) => {{
        let start = SystemTime::now();
        $run::<Gapless>(&mut $group, $case $(, $argument)*);
        $run::<BestFit>(&mut $group, $case $(, $argument)*);
        $run::<OffsetAllocator>(&mut $group, $case $(, $argument)*);
        $table.extend(Row::measured($case, $goal, start));
    }};
}

fn pairs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pair");
    group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_millis(2500)).sample_size(30);
    let mut table = Vec::new();
    case!(table, group, cached, 1.2, "cached_4KiB", 4 * KIB);
    case!(table, group, cached, 1.2, "cached_2MiB", 2 * MIB);
    case!(table, group, cached, 1.2, "cached_64MiB", 64 * MIB);
    case!(table, group, random, 1.5, "random_10k_4KiB", 10_000, &[4 * KIB]);
    case!(table, group, random, 1.5, "random_10k_mixed", 10_000, &MIXED);
    case!(table, group, random, 1.5, "random_1M_mixed", 1_000_000, &MIXED);
    case!(table, group, two_threads, 1.5, "two_threads_two_streams", 2);
    case!(table, group, two_threads, 1.5, "two_threads_one_stream", 1);
    group.finish();
    print(&table);
}

/// The results of a case: nanoseconds a pair by median.
struct Row {
    case: &'static str,
    /// Of [`Gapless`], [`BestFit`] and [`OffsetAllocator`].
    times: [f64; 3],
    /// The most that the ratio of the first to the last should be.
    goal: f64,
}

impl Row {
    /// The results of a case since `start`; `None` where one of the three was not selected.
    fn measured(case: &'static str, goal: f64, start: SystemTime) -> Option<Self> {
        let times = [Gapless::NAME, BestFit::NAME, OffsetAllocator::NAME].map(|name| estimate(case, name, start));
        let [Some(gapless), Some(best_fit), Some(offset)] = times else { return None };
        Some(Self { case, times: [gapless, best_fit, offset], goal })
    }
}

/// Prints a row for each case: the times, and those of gapless as multiples of the others', the last beside its goal.
fn print(table: &[Row]) {
    if table.is_empty() {
        return;
    }
    eprintln!("| ns a pair | gapless | mutex_best_fit | offset_allocator | over best fit | over offset | goal |");
    eprintln!("| --- | --: | --: | --: | --: | --: | --: |");
    for Row { case, times: [gapless, best_fit, offset], goal } in table {
        let over = [gapless / best_fit, gapless / offset];
        let missed = if over[1] > *goal { ", missed" } else { "" };
        eprintln!(
            "| {case} | {gapless:.1} | {best_fit:.1} | {offset:.1} | {:.2} | {:.2} | {goal}{missed} |",
            over[0], over[1]
        );
    }
}

/// Returns Criterion's estimate of the median in nanoseconds, if it is newer than `start`.
fn estimate(case: &str, name: &str, start: SystemTime) -> Option<f64> {
    let home = std::env::var_os("CRITERION_HOME").map(PathBuf::from).or_else(|| {
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
        Some(target.join("criterion"))
    })?;
    let path = home.join("pair").join(case).join(name).join("new/estimates.json");
    if std::fs::metadata(&path).ok()?.modified().ok()? < start {
        return None;
    }
    let estimates: serde_json::Value = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    estimates["median"]["point_estimate"].as_f64()
}

/// A linear congruential generator: the same sequence in every run and for every implementation.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        u32::try_from((self.0 >> 32) % u64::from(limit)).expect("the result is below `limit`")
    }
}

const MIXED: [u64; 5] = [512, 4 * KIB, 64 * KIB, 2 * MIB, 64 * MIB];
/// Unit of sizes in `offset_allocator`, which are 32 bits wide, in bytes.
const OFFSET_UNIT: u64 = 4 * KIB;

criterion_group!(benches, pairs);
criterion_main!(benches);
