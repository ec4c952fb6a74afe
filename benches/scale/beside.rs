//! The cost of a cached pair on one stream while another thread grows, puts memory to sleep, or reads statistics.
//!
//! Pairs are due at fixed times, so that one that keeps the next ones waiting is counted for each of them. Rounds in which the
//! system took a processor away from one of the two threads are left out: they tell of what else runs on the machine. But on a
//! busy machine a thread that waits for a lock loses its processor too. So these rows are for an idle machine with two
//! processors or more; a test counts what is done under each lock.

use super::table::{Cost, Random, Table};
use gapless::allocator::{Backup, Pin};
use gapless::driver::{ModelConfig, ModelDriver, WorkDriver};
use gapless::units::{KIB, MIB};
use gapless::{Allocator, ChunkPolicy, DeviceAddr, StreamId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PAGE: u64 = 2 * MIB;
const MAIN: StreamId = StreamId::DEFAULT;
/// Time between two pairs.
const PACE: Duration = Duration::from_micros(1);
/// Rounds that count, of those that were not disturbed.
const ROUNDS: usize = 30;
/// Most rounds that are tried.
const TRIES: usize = 150;
/// Most that the slowest of a hundred pairs takes.
const TARGET: Option<Cost> = Some(Cost::Nanoseconds(1_000.0));
/// Sleeps of which the slowest pair counts, of those that were not disturbed, and most that are tried.
const SLEEPS: (usize, usize) = (100, 1_000);
/// Most that the slowest of a hundred pairs takes beside a sleep.
const SLEEP_TARGET: Option<Cost> = Some(Cost::Nanoseconds(10_000.0));
/// Most that anything waits for statistics.
const STATS_TARGET: Option<Cost> = Some(Cost::Nanoseconds(200_000.0));

/// All rows.
pub fn rows(table: &mut Table) {
    beside(
        table,
        "nothing",
        1_000,
        |chunks| Setting::new(2 * chunks),
        |_| std::thread::sleep(Duration::from_millis(3)),
    );
    for chunks in [1_000, 4_000] {
        beside(table, "a growth, new chunks", chunks, new_chunks, |setting| setting.grow(chunks));
        beside(table, "a growth, its chunks moved", chunks, moved, |setting| setting.grow(chunks));
        beside(table, "a growth, stale views", chunks, stale, |setting| setting.grow(chunks));
        beside(table, "a growth, 10,000 blocks", chunks, many_blocks, |setting| setting.grow(chunks));
        beside(table, "statistics, n chunks free", chunks, moved, |setting| drop(setting.allocator.stats()));
        statistics(table, chunks);
    }
}

/// The rows of sleeps, and of nothing for as long: what the machine itself adds.
pub fn sleep_rows(table: &mut Table) {
    let nothing = |_: &Setting| std::thread::sleep(Duration::from_millis(3));
    beside_each(table, "nothing", 1_000, |chunks| Setting::new(2 * chunks), nothing, None);
    beside_sleeps(table, "other stream", 1_000, others_sleep);
    beside_sleeps(table, "same stream", 1_000, own_sleeps);
    beside_sleeps(table, "its page too", 1_000, all_sleeps);
}

/// An allocator, the stream of the pairs, and what is live.
struct Setting {
    allocator: Allocator<ModelDriver>,
    other: StreamId,
    /// Keeps the page of the pairs awake.
    pin: Option<Pin<ModelDriver>>,
}

impl Setting {
    fn new(pages: u64) -> Self {
        let config = ModelConfig {
            capacity_bytes: (pages + 8) * PAGE,
            granularity: PAGE,
            max_mappings: usize::MAX,
            address_bits: 56,
            ..ModelConfig::default()
        };
        let builder = Allocator::builder(Arc::new(ModelDriver::new(config))).mapping_limit(usize::MAX);
        let allocator = builder.chunk_policy(ChunkPolicy::Fixed(PAGE)).build().expect("it fits");
        let other = allocator.driver().create_stream().expect("the model has streams");
        allocator.keep_stream(other).expect("few streams");
        let setting = Self { allocator, other, pin: None };
        let [_live, cached] = [(); 2].map(|()| setting.alloc(4 * KIB, other));
        setting.free(cached);
        setting
    }

    /// `pages` pages of a stream, each with live blocks and free memory between them; the page of the pairs stays awake.
    fn asleep_beside(pages: u64, stream: impl Fn(&Self) -> StreamId) -> Self {
        let mut setting = Self::new(2 * pages);
        let live = setting.alloc(4 * KIB, setting.other);
        setting.pin = Some(setting.allocator.pin(live).expect("a live block"));
        setting.live_pages(pages, stream(&setting));
        setting
    }

    /// `pages` pages, each with live blocks and free memory between them.
    fn live_pages(&self, pages: u64, stream: StreamId) {
        let blocks: Vec<_> = (0..2 * pages).map(|_| self.alloc(PAGE / 2, stream)).collect();
        blocks.into_iter().step_by(4).for_each(|block| self.free(block));
    }

    fn alloc(&self, bytes: u64, stream: StreamId) -> DeviceAddr {
        self.allocator.alloc_raw(bytes, stream).expect("the memory suffices")
    }

    fn free(&self, addr: DeviceAddr) {
        self.allocator.free(addr).expect("the block is live");
    }

    fn grow(&self, pages: u64) {
        self.alloc(pages * PAGE, MAIN);
    }

    /// `pages` live pages of a stream, of which every other is freed.
    fn every_other_free(&self, pages: u64, stream: StreamId) {
        let blocks: Vec<_> = (0..pages).map(|_| self.alloc(PAGE, stream)).collect();
        blocks.into_iter().step_by(2).for_each(|block| self.free(block));
    }
}

fn new_chunks(chunks: u64) -> Setting {
    Setting::new(2 * chunks)
}

/// The free chunks are those of the stream of the pairs, between live ones.
fn moved(chunks: u64) -> Setting {
    let setting = Setting::new(2 * chunks);
    setting.every_other_free(2 * chunks, setting.other);
    setting
}

/// They have been elsewhere before, so that there are stale views.
fn stale(chunks: u64) -> Setting {
    let setting = Setting::new(2 * chunks);
    let blocks: Vec<_> = (0..2 * chunks).map(|_| setting.alloc(PAGE, MAIN)).collect();
    blocks.iter().step_by(2).for_each(|block| setting.free(*block));
    let joined = setting.alloc(chunks * PAGE, MAIN);
    setting.free(joined);
    let apart: Vec<_> = (0..chunks).map(|_| setting.alloc(PAGE, MAIN)).collect();
    blocks.iter().skip(1).step_by(2).step_by(2).for_each(|block| setting.free(*block));
    apart.iter().step_by(2).for_each(|block| setting.free(*block));
    setting
}

/// Small blocks on several streams, half of them free, and free chunks of all of those.
fn many_blocks(chunks: u64) -> Setting {
    const STREAMS: u64 = 8;
    let setting = Setting::new(2 * chunks + 200);
    let mut random = Random(5);
    for number in 0..STREAMS {
        let stream = if number == 0 { setting.other } else { setting.allocator.driver().create_stream().expect("one") };
        setting.allocator.keep_stream(stream).expect("few streams");
        let blocks: Vec<_> =
            (0..10_000 / STREAMS).map(|_| setting.alloc((1 + random.below(16)) * KIB, stream)).collect();
        blocks.into_iter().step_by(2).for_each(|block| setting.free(block));
        setting.every_other_free(2 * chunks / STREAMS, stream);
    }
    setting
}

/// The memory of another stream sleeps.
fn others_sleep(chunks: u64) -> Setting {
    Setting::asleep_beside(chunks, |_| MAIN)
}

/// The memory of the pairs' own stream sleeps, but for their page.
fn own_sleeps(chunks: u64) -> Setting {
    Setting::asleep_beside(chunks, |setting| setting.other)
}

/// All memory sleeps, and with it the page that the pairs have: they need another one.
fn all_sleeps(chunks: u64) -> Setting {
    let setting = Setting::new(2 * chunks);
    setting.live_pages(chunks, MAIN);
    setting
}

/// Pairs beside sleeps of `n` pages.
fn beside_sleeps(table: &mut Table, what: &str, n: u64, setting: impl Fn(u64) -> Setting) {
    let sleep = |setting: &Setting| {
        let slept = setting.allocator.sleep(Backup::Pinned).expect("it sleeps");
        assert!(slept.asleep_bytes >= n * PAGE, "{slept:?}");
    };
    beside_each(table, &format!("a sleep, {what}"), n, setting, sleep, SLEEP_TARGET);
}

/// Pairs beside `work`, of which a hundred rounds count: those that were the latest, and how long pairs took by themselves. A pair
/// is late, too, where the machine was away between two pairs.
fn beside_each(
    table: &mut Table,
    what: &str,
    n: u64,
    setting: impl Fn(u64) -> Setting,
    work: impl Fn(&Setting) + Sync,
    target: Option<Cost>,
) {
    let (rounds, tries) = SLEEPS;
    let of_rounds = rounds_beside(n, setting, work, rounds, tries);
    if of_rounds.is_empty() {
        println!("cached pair beside {what}, n = {n}: every round was disturbed");
        return;
    }
    let (late, by_itself): (Vec<_>, Vec<_>) = of_rounds.into_iter().map(|pairs| (pairs.late, pairs.by_itself)).unzip();
    for (how, of_rounds) in [("late", late), ("by itself", by_itself)] {
        let mut slowest: Vec<Duration> = of_rounds.iter().filter_map(|round| round.iter().max().copied()).collect();
        slowest.sort_unstable();
        let latencies = sorted(of_rounds);
        let what = format!("cached pair beside {what}, {how}");
        table.row(&format!("{what}: median"), n, part_of(&latencies, 0.5), None);
        table.row(&format!("{what}: 99 %"), n, part_of(&latencies, 0.99), target);
        table.row(&format!("{what}: slowest of each, median"), n, part_of(&slowest, 0.5), None);
        table.row(&format!("{what}: slowest of {} rounds", slowest.len()), n, part_of(&slowest, 1.0), None);
    }
}

/// Pairs beside `work`, each time in a setting of its own.
fn beside(table: &mut Table, what: &str, n: u64, setting: impl Fn(u64) -> Setting, work: impl Fn(&Setting) + Sync) {
    let of_rounds = rounds_beside(n, setting, work, ROUNDS, TRIES);
    let latencies = sorted(of_rounds.into_iter().map(|pairs| pairs.late).collect());
    if latencies.is_empty() {
        println!("cached pair beside {what}, n = {n}: every round was disturbed");
        return;
    }
    let part = |part: f64| part_of(&latencies, part);
    table.row(&format!("cached pair beside {what}: median"), n, part(0.5), None);
    table.row(&format!("cached pair beside {what}: 99 %"), n, part(0.99), TARGET);
    table.row(&format!("cached pair beside {what}: 99.9 %"), n, part(0.999), None);
    table.row(&format!("cached pair beside {what}: slowest"), n, part(1.0), None);
}

/// The pairs of as many rounds as were not disturbed.
fn rounds_beside(
    n: u64,
    setting: impl Fn(u64) -> Setting,
    work: impl Fn(&Setting) + Sync,
    rounds: usize,
    tries: usize,
) -> Vec<Pairs> {
    let undisturbed = (0..tries).filter_map(|_| round(&setting(n), &work));
    undisturbed.take(rounds).collect()
}

/// All of them, in ascending order.
fn sorted(of_rounds: Vec<Vec<Duration>>) -> Vec<Duration> {
    let mut latencies = of_rounds.concat();
    latencies.sort_unstable();
    latencies
}

/// The latency that so many of them do not exceed.
fn part_of(latencies: &[Duration], part: f64) -> Cost {
    Cost::per(latencies[((latencies.len() - 1) as f64 * part) as usize], 1)
}

/// The pairs beside `work`; `None` where one of the threads lost its processor.
fn round(setting: &Setting, work: impl Fn(&Setting) + Sync) -> Option<Pairs> {
    let (begun, done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            while !begun.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            let before = preemptions();
            work(setting);
            done.store(true, Ordering::Release);
            preemptions() == before
        });
        let before = preemptions();
        let pairs = Pairs::until(setting, &begun, &done);
        let undisturbed = preemptions() == before;
        (worker.join().expect("it does not panic") && undisturbed).then_some(pairs)
    })
}

/// Returns how many times the system has taken the processor away from this thread, where it reports that.
fn preemptions() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:")?.trim().parse().ok())
}

/// Pairs that were due at fixed times.
struct Pairs {
    /// When each was done, after it was due.
    late: Vec<Duration>,
    /// How long each took.
    by_itself: Vec<Duration>,
}

impl Pairs {
    /// Those that are due until `done`.
    fn until(setting: &Setting, begun: &AtomicBool, done: &AtomicBool) -> Self {
        let [mut late, mut by_itself] = [(); 2].map(|()| Vec::with_capacity(1 << 16));
        begun.store(true, Ordering::Release);
        let mut due = Instant::now();
        while !done.load(Ordering::Acquire) {
            let mut start = Instant::now();
            while start < due {
                start = Instant::now();
            }
            setting.free(setting.alloc(4 * KIB, setting.other));
            let end = Instant::now();
            late.push(end - due);
            by_itself.push(end - start);
            due += PACE;
        }
        Self { late, by_itself }
    }
}

/// Statistics while another thread grows. The slowest of each round; the median of those.
fn statistics(table: &mut Table, chunks: u64) {
    let mut slowest: Vec<Duration> = (0..ROUNDS).map(|_| slowest_statistics(&moved(chunks), chunks)).collect();
    // In some rounds the growth was over before anything was asked.
    slowest.retain(|slowest| !slowest.is_zero());
    slowest.sort_unstable();
    if slowest.is_empty() {
        println!("slowest statistics beside a growth, n = {chunks}: every growth was over before");
        return;
    }
    let cost = Cost::per(slowest[slowest.len() / 2], 1);
    table.row("slowest statistics beside a growth of n chunks", chunks, cost, STATS_TARGET);
}

fn slowest_statistics(setting: &Setting, chunks: u64) -> Duration {
    let (begun, done) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            begun.store(true, Ordering::Release);
            setting.grow(chunks);
            done.store(true, Ordering::Release);
        });
        while !begun.load(Ordering::Acquire) {
            std::hint::spin_loop();
        }
        let mut slowest = Duration::ZERO;
        while !done.load(Ordering::Acquire) {
            let start = Instant::now();
            std::hint::black_box(setting.allocator.stats());
            slowest = slowest.max(start.elapsed());
        }
        slowest
    })
}
