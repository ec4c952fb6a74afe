//! Random programs of two threads that capture at once, each a stream into a pool of its own, while both allocate for either
//! capture and for none. What is allocated on a captured stream is its pool's, whichever thread asks, and every capture ends with
//! a graph.

use super::world::*;
use gapless::driver::WorkDriver;
use gapless::{DeviceAddr, StreamId};
use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};

const MIB: u64 = 1 << 20;
const PROGRAMS: u64 = 10;
const STEPS: u64 = 60;
/// Most blocks that are live.
const MOST: usize = 12;

/// The random number generator SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) as usize % limit
    }
}

type Job<'a> = Box<dyn FnOnce() + Send + 'a>;

/// A thread that does what it is told.
struct Thread<'a>(Sender<Job<'a>>);

impl<'a> Thread<'a> {
    fn run<T: Send + 'a>(&self, call: impl FnOnce() -> T + Send + 'a) -> T {
        let (done, wait) = channel();
        let job = move || done.send(call()).expect("somebody waits");
        self.0.send(Box::new(job)).expect("the thread runs");
        wait.recv().expect("the thread did it")
    }
}

/// A graph, as a number: it is a token that every thread may use.
struct Graph(usize);

/// What is going on.
struct Program<'a> {
    world: &'a World,
    threads: [Thread<'a>; 2],
    streams: [StreamId; 2],
    eager: StreamId,
    /// The pool of each thread's capture, while there is one.
    captures: [Option<u64>; 2],
    /// Live blocks: their pools and sizes.
    blocks: Vec<(DeviceAddr, u64, u64)>,
    graphs: Vec<Graph>,
    pools: u64,
    at_once: u64,
}

impl Program<'_> {
    fn step(&mut self, random: &mut Random) {
        let which = random.below(2);
        match random.below(10) {
            0 | 1 if self.captures[which].is_none() && self.blocks.len() < MOST => self.begin(which, random),
            2 => self.end(which),
            3..=6 if self.blocks.len() < MOST => self.alloc(which, random.below(3), random),
            7 | 8 if !self.blocks.is_empty() => {
                let (addr, ..) = self.blocks.swap_remove(random.below(self.blocks.len()));
                self.threads[which].run(move || free(addr));
            }
            _ if !self.graphs.is_empty() => {
                let Graph(number) = self.graphs[random.below(self.graphs.len())];
                self.world.replay(std::ptr::with_exposed_provenance_mut(number), self.eager);
            }
            _ => {}
        }
        let mut expected: BTreeMap<u64, u64> = BTreeMap::new();
        for (_, pool, bytes) in &self.blocks {
            *expected.entry(*pool).or_default() += bytes;
        }
        assert_eq!(live(), expected);
    }

    /// The first request of a pool says what it is for, so the thread makes one on the stream that it captures.
    fn begin(&mut self, which: usize, random: &mut Random) {
        self.pools += 1;
        let (world, pool, stream) = (self.world, self.pools, self.streams[which]);
        self.threads[which].run(move || world.begin(pool, stream));
        self.captures[which] = Some(pool);
        self.at_once += u64::from(self.captures.iter().all(Option::is_some));
        self.alloc(which, which, random);
    }

    fn end(&mut self, which: usize) {
        let Some(pool) = self.captures[which].take() else { return };
        let (world, stream) = (self.world, self.streams[which]);
        let graph = self.threads[which].run(move || Graph(world.end(pool, stream).expose_provenance()));
        self.graphs.push(graph);
    }

    /// Allocates on either stream that is captured at times, or on one that never is, and uses the block there.
    fn alloc(&mut self, which: usize, on: usize, random: &mut Random) {
        let bytes = [2, 4, 6][random.below(3)] * MIB;
        let stream = self.streams.get(on).copied().unwrap_or(self.eager);
        let pool = self.captures.get(on).copied().flatten().unwrap_or(0);
        let world = self.world;
        let addr = self.threads[which].run(move || {
            let addr = malloc(bytes, stream);
            world.driver.fill(stream, addr, bytes, addr.0).expect("a live block");
            world.driver.verify(stream, addr, bytes, addr.0).expect("a live block");
            addr
        });
        self.blocks.push((addr, pool, bytes));
    }

    fn finish(mut self) -> u64 {
        (0..2).for_each(|which| self.end(which));
        for (addr, ..) in self.blocks.drain(..) {
            free(addr);
        }
        for Graph(number) in self.graphs.drain(..) {
            self.world.replay(std::ptr::with_exposed_provenance_mut(number), self.eager);
        }
        self.world.check();
        (1..=self.pools).for_each(release);
        gapless_capi::gapless_torch_reset();
        assert_eq!(self.world.chunks(), 0);
        self.at_once
    }
}

/// Runs the programs.
pub fn captures_at_once(world: &World) {
    let mut at_once = 0;
    let streams = world.streams();
    let [eager] = world.streams();
    for program in 0..PROGRAMS {
        println!("program {program}");
        at_once += std::thread::scope(|scope| {
            let threads = [(); 2].map(|()| {
                let (jobs, queue) = channel::<Job<'_>>();
                scope.spawn(move || {
                    world.make_current();
                    queue.into_iter().for_each(|job| job());
                });
                Thread(jobs)
            });
            let (captures, blocks, graphs) = ([None; 2], Vec::new(), Vec::new());
            let mut state = Program { world, threads, streams, eager, captures, blocks, graphs, pools: 0, at_once: 0 };
            let mut random = Random(program);
            for _ in 0..STEPS {
                state.step(&mut random);
            }
            state.finish()
        });
    }
    assert!(at_once > PROGRAMS, "{at_once} captures began during another");
}
