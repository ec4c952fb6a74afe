//! Graphs: the memory of a pool in a world in which streams are captured into the pool, and graphs replayed on whatever
//! stream, while the pool goes on being used.
//!
//! A captured stream runs nothing. What would run becomes the steps of a graph: every block is written when it is
//! allocated, and checked when it is freed or when its capture ends. A replay runs the steps. As in a program, a replay
//! and other work with the pool's memory do not overlap; calls of the allocator overlap with everything.
//!
//! - G1  every page that was handed out stays mapped with access to the same bytes until the pool is released.
//! - G2  every check of a replay finds what the replay wrote.
//! - G3  no rule of the driver is broken: nothing is unmapped that a replay in flight uses.
//! - G4  bytes that were handed out on one stream are never handed out on another: replays of graphs that were captured on
//!   different streams may overlap.

use crate::device::{Device, World};
use crate::witness::Witness;
use gapless::allocator::AllocError;
use gapless::driver::{ChunkHandle, HoldStreams, WorkDriver};
use gapless::{Allocator, DeviceAddr, StreamId};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// An operation in a world with graphs. Numbers count modulo what there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphOp {
    /// Begins to capture a stream, unless it is being captured.
    Begin {
        /// The stream.
        stream: u8,
    },
    /// Ends a capture: its graph can be replayed from now on.
    End {
        /// The capture, among those in progress.
        capture: u8,
    },
    /// Allocates from the pool on a stream, captured or not.
    Alloc {
        /// The stream.
        stream: u8,
        /// Bytes, in granules.
        granules: u16,
    },
    /// Frees a live block.
    Free {
        /// The block.
        block: u16,
    },
    /// Records that a stream that is not being captured uses a block.
    Record {
        /// The block.
        block: u16,
        /// The stream.
        stream: u8,
    },
    /// Replays a graph on a stream that is not being captured. It is in flight until the pool's memory is used otherwise.
    Replay {
        /// The graph.
        graph: u8,
        /// The stream.
        stream: u8,
    },
    /// Trims the pool.
    Trim,
    /// Changes the budget.
    Budget {
        /// The new one, in pages.
        pages: u8,
    },
}

/// What a graph does.
#[derive(Clone, Copy, Debug)]
enum Step {
    Write(DeviceAddr, u64, u64),
    Check(DeviceAddr, u64, u64),
}

#[derive(Debug)]
struct Capture {
    stream: StreamId,
    number: usize,
    steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    addr: DeviceAddr,
    bytes: u64,
    seed: u64,
    /// The number of the capture in which it was allocated.
    capture: Option<usize>,
}

struct Graphs<D: Device> {
    driver: Arc<Witness<D>>,
    pool: Allocator<Witness<D>>,
    page_bytes: u64,
    streams: Vec<StreamId>,
    captures: Vec<Capture>,
    begun: usize,
    graphs: Vec<Vec<Step>>,
    blocks: Vec<Block>,
    next_seed: u64,
    /// Streams on which a replay may be in flight.
    replaying: Vec<StreamId>,
    /// The memory behind every page that was handed out.
    handed: BTreeMap<u64, (ChunkHandle, u64)>,
    /// The stream that every page of memory was handed out on.
    users: HashMap<(ChunkHandle, u64), StreamId>,
}

/// Runs operations with graphs on the device of a world.
///
/// # Panics
/// When one of the invariants does not hold.
pub fn run_graphs<D: Device>(world: &World, ops: &[GraphOp]) {
    let driver = Arc::new(Witness::new(D::open(world)));
    let pool = world.settings(Allocator::builder(Arc::clone(&driver))).keep_mappings().build().expect("good settings");
    let streams = (0..world.streams).map(|_| driver.create_stream().expect("a stream")).collect();
    let mut graphs = Graphs {
        driver,
        pool,
        page_bytes: world.page_bytes,
        streams,
        captures: Vec::new(),
        begun: 0,
        graphs: Vec::new(),
        blocks: Vec::new(),
        next_seed: 1,
        replaying: Vec::new(),
        handed: BTreeMap::new(),
        users: HashMap::new(),
    };
    for op in ops {
        graphs.apply(*op);
        graphs.check();
    }
    graphs.finish();
}

impl<D: Device> Graphs<D> {
    fn apply(&mut self, op: GraphOp) {
        match op {
            GraphOp::Begin { stream } => self.begin(self.stream(stream)),
            GraphOp::End { capture } if !self.captures.is_empty() => self.end(usize::from(capture)),
            GraphOp::Alloc { stream, granules } => self.alloc(self.stream(stream), u64::from(granules) * 512),
            GraphOp::Free { block } if !self.blocks.is_empty() => self.free(usize::from(block) % self.blocks.len()),
            GraphOp::Record { block, stream } if !self.blocks.is_empty() => {
                let block = self.blocks[usize::from(block) % self.blocks.len()];
                self.pool.record_stream(block.addr, self.stream(stream)).expect("a live block");
            }
            GraphOp::Replay { graph, stream } if !self.graphs.is_empty() => {
                self.replay(usize::from(graph) % self.graphs.len(), self.stream(stream));
            }
            GraphOp::Trim => drop(self.pool.trim(0).expect("trimmed")),
            GraphOp::Budget { pages } => self.pool.set_budget(u64::from(pages) * self.page_bytes).expect("set"),
            _ => {}
        }
    }

    fn stream(&self, number: u8) -> StreamId {
        self.streams[usize::from(number) % self.streams.len()]
    }

    fn capture_of(&mut self, stream: StreamId) -> Option<&mut Capture> {
        self.captures.iter_mut().find(|capture| capture.stream == stream)
    }

    fn begin(&mut self, stream: StreamId) {
        if self.capture_of(stream).is_none() {
            // A capture has nothing to do with what was queued before.
            self.synchronize(stream);
            self.driver.inner().set_capturing(stream, true);
            self.captures.push(Capture { stream, number: self.begun, steps: Vec::new() });
            self.begun += 1;
        }
    }

    fn end(&mut self, number: usize) {
        let mut capture = self.captures.remove(number % self.captures.len());
        self.driver.inner().set_capturing(capture.stream, false);
        let outputs = self.blocks.iter().filter(|block| block.capture == Some(capture.number));
        capture.steps.extend(outputs.map(|block| Step::Check(block.addr, block.bytes, block.seed)));
        self.graphs.push(capture.steps);
    }

    fn alloc(&mut self, stream: StreamId, bytes: u64) {
        let addr = match self.pool.alloc(bytes, stream) {
            Ok(addr) => addr,
            Err(AllocError::OutOfMemory(_)) => return,
            Err(error) => panic!("{bytes} bytes on {stream:?}: {error}"),
        };
        for page in (addr.0 / self.page_bytes..).map(|page| page * self.page_bytes) {
            if page >= addr.0 + bytes {
                break;
            }
            let memory = self.driver.memory_at(DeviceAddr(page)).expect("G1: handed out with access");
            self.handed.entry(page).or_insert(memory);
            let user = *self.users.entry(memory).or_insert(stream);
            assert_eq!(user, stream, "G4: {} is memory of another stream", DeviceAddr(page));
        }
        let seed = self.next_seed;
        self.next_seed += 1;
        let capture = match self.capture_of(stream) {
            Some(capture) => {
                capture.steps.push(Step::Write(addr, bytes, seed));
                Some(capture.number)
            }
            None => {
                self.finish_replays();
                self.driver.fill(stream, addr, bytes, seed).expect("a stream's own memory");
                self.driver.verify(stream, addr, bytes, seed).expect("a stream's own memory");
                None
            }
        };
        self.blocks.push(Block { addr, bytes, seed, capture });
    }

    fn free(&mut self, number: usize) {
        let block = self.blocks.swap_remove(number);
        if let Some(capture) = self.captures.iter_mut().find(|capture| Some(capture.number) == block.capture) {
            capture.steps.push(Step::Check(block.addr, block.bytes, block.seed));
        }
        self.pool.free(block.addr).expect("a live block");
    }

    fn replay(&mut self, graph: usize, stream: StreamId) {
        if self.capture_of(stream).is_some() {
            return;
        }
        for stream in self.streams.clone() {
            if self.capture_of(stream).is_none() {
                self.synchronize(stream);
            }
        }
        self.driver.hold(stream);
        for step in &self.graphs[graph] {
            match *step {
                Step::Write(addr, bytes, seed) => self.driver.fill(stream, addr, bytes, seed),
                Step::Check(addr, bytes, seed) => self.driver.verify(stream, addr, bytes, seed),
            }
            .expect("a replay uses its addresses");
        }
        self.replaying.push(stream);
    }

    fn synchronize(&mut self, stream: StreamId) {
        self.driver.synchronize(stream).expect("a stream that is not captured");
        if self.replaying.contains(&stream) {
            self.driver.resume(stream);
            self.replaying.retain(|other| *other != stream);
        }
    }

    /// Waits for the replays, as a program does before it uses what they wrote.
    fn finish_replays(&mut self) {
        while let Some(stream) = self.replaying.last().copied() {
            self.synchronize(stream);
        }
    }

    fn check(&self) {
        self.pool.check();
        for (page, memory) in &self.handed {
            let now = self.driver.memory_at(DeviceAddr(*page));
            assert_eq!(now, Some(*memory), "G1: the memory behind {}", DeviceAddr(*page));
        }
        assert_eq!(self.driver.take_mismatches(), [], "G2");
        assert_eq!(self.driver.inner().broken_rules(), [""; 0], "G3");
        assert_eq!(self.driver.take_observations(), [""; 0], "G3");
    }

    fn finish(mut self) {
        while !self.captures.is_empty() {
            self.end(0);
        }
        for graph in 0..self.graphs.len() {
            self.replay(graph, self.stream(graph as u8));
            self.check();
        }
        for block in std::mem::take(&mut self.blocks) {
            self.pool.free(block.addr).expect("a live block");
        }
        self.check();
        // The last replay is in flight still.
        self.pool.close().expect("closed");
        assert_eq!(self.driver.take_observations(), [""; 0], "G3");
        assert_eq!(self.driver.take_mismatches(), [], "G2");
        let usage = self.driver.inner().usage();
        assert_eq!((usage.bytes, usage.mappings, usage.reservations), (0, 0, 0));
    }
}
