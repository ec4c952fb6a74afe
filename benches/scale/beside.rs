//! The cost of a cached pair on one stream while another thread grows, puts memory to sleep, or reads statistics.
//!
//! Pairs are due at fixed times, so that one that keeps the next ones waiting is counted for each of them. Where the machine was
//! away between two pairs, neither of them is to blame, and the later ones are due that much later. Rounds in which the system
//! took a processor away from one of the two threads are left out: they tell of what else runs on the machine. But on a busy
//! machine a thread that waits for a lock loses its processor too. So these rows are for an idle machine with two processors or
//! more; a test counts what is done under each lock.
//!
//! A pair waits as well while the machine is away from a thread that has the lock. How often that is, the first line says.

use super::table::{Cost, Goal, Random, Row, Table};
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
/// Rounds that count, of those that were not disturbed, and most that are tried.
const ROUNDS: (usize, usize) = (30, 150);
/// The same for sleeps.
const SLEEPS: (usize, usize) = (100, 1_000);
/// Most that the slowest of a hundred pairs takes.
const PAIR: Option<Goal> = Some(Goal::ns(1_000.0));
/// Most that the slowest of a hundred pairs takes beside a sleep.
const PAIR_BESIDE_SLEEP: Option<Goal> = Some(Goal::ns(10_000.0));
/// Most that anything waits for statistics.
const STATISTICS: Option<Goal> = Some(Goal::ns(200_000.0));

/// All rows.
pub fn rows(table: &mut Table) {
    machine();
    let mut rows = Rows { table, rounds: ROUNDS, goal: PAIR, nothing: None };
    rows.beside_nothing();
    for chunks in [1_000, 4_000] {
        rows.beside("a growth, new chunks", chunks, new_chunks, |setting| setting.grow(chunks));
        rows.beside("a growth, its chunks moved", chunks, moved, |setting| setting.grow(chunks));
        rows.beside("a growth, stale views", chunks, stale, |setting| setting.grow(chunks));
        rows.beside("a growth, 10,000 blocks", chunks, many_blocks, |setting| setting.grow(chunks));
        rows.beside("statistics, n chunks free", chunks, moved, |setting| drop(setting.allocator.stats()));
        statistics(rows.table, chunks);
    }
}

/// The rows of sleeps.
pub fn sleep_rows(table: &mut Table) {
    let mut rows = Rows { table, rounds: SLEEPS, goal: PAIR_BESIDE_SLEEP, nothing: None };
    rows.beside_nothing();
    let pages = 1_000;
    let sleep = |setting: &Setting| {
        let slept = setting.allocator.sleep(Backup::Pinned).expect("it sleeps");
        assert!(slept.asleep_bytes >= pages * PAGE, "{slept:?}");
    };
    rows.beside("a sleep, other stream", pages, others_sleep, sleep);
    rows.beside("a sleep, same stream", pages, own_sleeps, sleep);
    rows.beside("a sleep, its page too", pages, all_sleeps, sleep);
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

/// How late pairs were, each by a part of the pairs of all rounds.
#[derive(Clone, Copy)]
struct Latencies {
    /// Half of them were not later.
    median: Cost,
    /// 99 of 100 were not later.
    most: Cost,
    /// The median over what that is in each round.
    most_of_a_round: Cost,
    /// The median over the slowest of each round.
    slowest_of_a_round: Cost,
    slowest: Cost,
}

impl Latencies {
    /// Those of some rounds, of which there is one at least.
    fn new(rounds: &[Vec<Duration>]) -> Self {
        let at = |sorted: &[Duration], part: f64| sorted[((sorted.len() - 1) as f64 * part) as usize];
        let sorted = |mut latencies: Vec<Duration>| {
            latencies.sort_unstable();
            latencies
        };
        let rounds: Vec<_> = rounds.iter().cloned().map(sorted).collect();
        let of_rounds = |part: f64| sorted(rounds.iter().map(|round| at(round, part)).collect());
        let all = sorted(rounds.concat());
        let cost = |sorted: &[Duration], part: f64| Cost::per(at(sorted, part), 1);
        Self {
            median: cost(&all, 0.5),
            most: cost(&all, 0.99),
            most_of_a_round: cost(&of_rounds(0.99), 0.5),
            slowest_of_a_round: cost(&of_rounds(1.0), 0.5),
            slowest: cost(&all, 1.0),
        }
    }
}

/// The rows of pairs beside something, compared with those beside nothing for as long: what the machine itself adds.
struct Rows<'a> {
    table: &'a mut Table,
    /// Rounds that count, of those that were not disturbed, and most that are tried.
    rounds: (usize, usize),
    /// Most that the slowest of a hundred pairs takes.
    goal: Option<Goal>,
    nothing: Option<Latencies>,
}

impl Rows<'_> {
    fn beside_nothing(&mut self) {
        let nothing = |_: &Setting| std::thread::sleep(Duration::from_millis(3));
        self.nothing = self.beside("nothing", 1_000, |chunks| Setting::new(2 * chunks), nothing);
    }

    /// Pairs beside `work`, each time in a setting of its own.
    fn beside(
        &mut self,
        what: &str,
        n: u64,
        setting: impl Fn(u64) -> Setting,
        work: impl Fn(&Setting) + Sync,
    ) -> Option<Latencies> {
        let (rounds, tries) = self.rounds;
        let undisturbed = (0..tries).filter_map(|_| round(&setting(n), &work));
        let rounds: Vec<_> = undisturbed.take(rounds).filter(|pairs| !pairs.is_empty()).collect();
        if rounds.is_empty() {
            println!("pair beside {what}, n = {n}: every round was disturbed");
            return None;
        }
        let latencies = Latencies::new(&rounds);
        let mut row = |part: &str, of: fn(&Latencies) -> Cost, goal| {
            let baseline = self.nothing.map(|nothing| ("nothing", of(&nothing)));
            let what = format!("pair beside {what}: {part}");
            self.table.print(&Row { what: &what, n, cost: of(&latencies), baseline, goal });
        };
        row("median", |latencies| latencies.median, None);
        row("99 %", |latencies| latencies.most, self.goal);
        row("99 % of a round, median", |latencies| latencies.most_of_a_round, None);
        row("slowest, median", |latencies| latencies.slowest_of_a_round, None);
        row("slowest", |latencies| latencies.slowest, None);
        Some(latencies)
    }
}

/// How late pairs are beside `work`; `None` where one of the threads lost its processor.
fn round(setting: &Setting, work: impl Fn(&Setting) + Sync) -> Option<Vec<Duration>> {
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
        let pairs = pairs_until(setting, &begun, &done);
        let undisturbed = preemptions() == before;
        (worker.join().expect("it does not panic") && undisturbed).then_some(pairs)
    })
}

/// Returns how many times the system has taken the processor away from this thread, where it reports that.
fn preemptions() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    status.lines().find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:")?.trim().parse().ok())
}

/// How late each pair was that was due until `done`.
fn pairs_until(setting: &Setting, begun: &AtomicBool, done: &AtomicBool) -> Vec<Duration> {
    let mut late = Vec::with_capacity(1 << 16);
    begun.store(true, Ordering::Release);
    let mut due = Instant::now();
    let mut end = due;
    while !done.load(Ordering::Acquire) {
        let ready = due.max(end);
        let mut start = Instant::now();
        while start < ready {
            start = Instant::now();
        }
        due += start - ready;
        setting.free(setting.alloc(4 * KIB, setting.other));
        end = Instant::now();
        late.push(end - due);
        due += PACE;
    }
    late
}

/// Prints how often, and for how long, the machine is away from a thread that does nothing but read the clock.
fn machine() {
    const LONG: Duration = Duration::from_micros(1);
    let begun = Instant::now();
    let (mut last, mut times, mut away) = (begun, 0_u32, Duration::ZERO);
    while last - begun < Duration::from_secs(1) {
        let now = Instant::now();
        let gap = now - last;
        if gap >= LONG {
            times += 1;
            away += gap;
        }
        last = now;
    }
    println!("the machine is away from a thread for a microsecond or more {times} times a second, {away:.1?} of it");
}

/// Statistics while another thread grows. The slowest of each round; the median of those.
fn statistics(table: &mut Table, chunks: u64) {
    let mut slowest: Vec<Duration> = (0..ROUNDS.0).map(|_| slowest_statistics(&moved(chunks), chunks)).collect();
    // In some rounds the growth was over before anything was asked.
    slowest.retain(|slowest| !slowest.is_zero());
    slowest.sort_unstable();
    if slowest.is_empty() {
        println!("slowest statistics beside a growth, n = {chunks}: every growth was over before");
        return;
    }
    let cost = Cost::per(slowest[slowest.len() / 2], 1);
    table.row("slowest statistics beside a growth of n chunks", chunks, cost, STATISTICS);
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
