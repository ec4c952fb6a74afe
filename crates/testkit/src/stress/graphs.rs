//! The part of the stress test that captures graphs: every thread captures a stream of its own into one pool, and replays its
//! graphs on any stream, while the others use the pool and another allocator.
//!
//! The invariants are those of `runner/pools.rs`. Nobody but its thread replays a graph, so a thread can order its replays and its
//! other work with the pool.

use super::gate::Gate;
use super::shared::{Owners, Random};
use crate::device::Device;
use crate::op::CaptureMode;
use crate::oracle::Subject;
use crate::witness::Witness;
use gapless::allocator::AllocError;
use gapless::driver::{ChunkHandle, HoldStreams, StreamDriver, WorkDriver};
use gapless::units::{DeviceAddr, StreamId};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug)]
struct Step {
    write: bool,
    addr: DeviceAddr,
    bytes: u64,
    seed: u64,
}

/// One thread's use of the pool.
pub(crate) struct Graphs<'a, D: Device> {
    pool: Subject<D>,
    owners: &'a Owners,
    gate: &'a Gate,
    page_bytes: u64,
    /// The stream that this thread captures. Only it uses the stream.
    stream: StreamId,
    capture: Option<Vec<Step>>,
    graphs: Vec<Vec<Step>>,
    /// Live blocks, and whether they were allocated in the capture that is in progress.
    blocks: Vec<(Step, bool)>,
    handed: BTreeMap<u64, (ChunkHandle, u64)>,
    replaying: Option<StreamId>,
    /// The time of the gate when `handed` was looked at.
    looked_at: u64,
}

impl<'a, D: Device> Graphs<'a, D> {
    pub fn new(pool: Subject<D>, owners: &'a Owners, gate: &'a Gate, page_bytes: u64, stream: StreamId) -> Self {
        Self {
            pool,
            owners,
            gate,
            page_bytes,
            stream,
            capture: None,
            graphs: Vec::new(),
            blocks: Vec::new(),
            handed: BTreeMap::new(),
            replaying: None,
            looked_at: 0,
        }
    }

    /// Runs one operation. Returns the error of a request that failed, unless memory ran out.
    pub fn step(&mut self, random: &mut Random, anywhere: StreamId) -> Result<(), AllocError> {
        match random.below(12) {
            0 => self.begin(random),
            1 => self.end(),
            2..=6 => return self.alloc(random),
            7..=9 if !self.blocks.is_empty() => {
                let index = usize::try_from(random.below(self.blocks.len() as u64)).expect("small");
                self.free(index);
            }
            10 => {
                let trimmed = self.pool.trim(0);
                trimmed.map(drop)?;
            }
            _ => self.replay(random, anywhere),
        }
        self.gate.pass(0, || {
            self.forget_what_slept();
            for (page, memory) in &self.handed {
                let now = self.witness().memory_at(DeviceAddr(*page));
                assert_eq!(now, Some(*memory), "G1: the memory behind {}", DeviceAddr(*page));
            }
        });
        Ok(())
    }

    /// Other memory may be behind the pool's addresses once it has slept.
    fn forget_what_slept(&mut self) {
        let time = self.gate.time();
        if std::mem::replace(&mut self.looked_at, time) != time {
            self.handed.clear();
        }
    }

    /// Ends the capture, and frees the thread's blocks.
    pub fn free_all(&mut self) {
        self.end();
        while !self.blocks.is_empty() {
            self.free(0);
        }
    }

    fn witness(&self) -> &Witness<D> {
        self.pool.driver().inner()
    }

    fn begin(&mut self, random: &mut Random) {
        if self.capture.is_none() {
            self.witness().synchronize(self.stream).expect("a stream can be waited for");
            let mode = CaptureMode::ALL[usize::try_from(random.below(3)).expect("small")];
            self.witness().inner().capture_as(mode, random.below(2) == 0);
            self.witness().inner().set_capturing(self.stream, true);
            if self.witness().is_capturing(self.stream) {
                self.capture = Some(Vec::new());
            }
        }
    }

    fn end(&mut self) {
        let Some(mut steps) = self.capture.take() else { return };
        self.witness().inner().set_capturing(self.stream, false);
        for (block, captured) in &mut self.blocks {
            if std::mem::take(captured) {
                steps.push(Step { write: false, ..*block });
            }
        }
        self.graphs.push(steps);
    }

    fn alloc(&mut self, random: &mut Random) -> Result<(), AllocError> {
        let bytes = random.below(2 * self.page_bytes);
        let born = self.gate.time();
        let addr = match self.pool.alloc_raw(bytes, self.stream) {
            Ok(addr) => addr,
            Err(AllocError::OutOfMemory(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        let block = Step { write: true, addr, bytes, seed: random.below(u64::MAX) };
        self.gate.pass(born, || self.note_memory(&block));
        if let Some(steps) = &mut self.capture {
            steps.push(block);
        } else {
            self.gate.pass(born, || {
                self.follow(self.stream);
                self.run(self.stream, &[block, Step { write: false, ..block }]);
            });
        }
        self.blocks.push((block, self.capture.is_some()));
        Ok(())
    }

    fn note_memory(&mut self, block: &Step) {
        self.forget_what_slept();
        for page in block.addr.0 / self.page_bytes..(block.addr.0 + block.bytes).div_ceil(self.page_bytes) {
            let page = page * self.page_bytes;
            let memory = self.witness().memory_at(DeviceAddr(page)).expect("G1: handed out with access");
            self.handed.entry(page).or_insert(memory);
            let owner = *self.owners.lock().entry(memory).or_insert(self.stream);
            assert_eq!(owner, self.stream, "G4: {} is memory of another stream", DeviceAddr(page));
        }
    }

    fn free(&mut self, index: usize) {
        let (block, captured) = self.blocks.swap_remove(index);
        if let (Some(steps), true) = (&mut self.capture, captured) {
            steps.push(Step { write: false, ..block });
        }
        self.pool.free(block.addr).expect("a live block can be freed");
    }

    /// Replays a graph on a stream, unless the pool may be asleep. A last one is in flight when the pool is closed.
    pub fn replay(&mut self, random: &mut Random, anywhere: StreamId) {
        self.gate.pass(0, || self.replay_awake(random, anywhere));
    }

    fn replay_awake(&mut self, random: &mut Random, anywhere: StreamId) {
        let Some(last) = (self.graphs.len() as u64).checked_sub(1) else { return };
        let graph = self.graphs[usize::try_from(random.below(last + 1)).expect("small")].clone();
        if self.capture.is_none() {
            self.witness().order(self.stream, anywhere).expect("streams can be ordered");
        }
        self.follow(anywhere);
        self.witness().hold(anywhere);
        self.run(anywhere, &graph);
        self.replaying = Some(anywhere);
    }

    /// Orders a stream behind the last replay.
    fn follow(&self, stream: StreamId) {
        if let Some(replaying) = self.replaying.filter(|replaying| *replaying != stream) {
            self.witness().order(replaying, stream).expect("streams can be ordered");
        }
    }

    fn run(&self, stream: StreamId, steps: &[Step]) {
        for Step { write, addr, bytes, seed } in steps.iter().copied() {
            let result = match write {
                true => self.witness().fill(stream, addr, bytes, seed),
                false => self.witness().verify(stream, addr, bytes, seed),
            };
            result.expect("G1: the pool's memory can be used");
        }
    }
}
