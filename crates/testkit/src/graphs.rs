//! The oracle's knowledge of pools, of the captures that use their memory, and of the graphs that these become.

use crate::oracle::Block;
use crate::witness::Witness;
use gapless::driver::ChunkHandle;
use gapless::units::{DeviceAddr, StreamId};
use std::collections::{BTreeMap, HashMap};

/// A page of physical memory: a chunk and an offset in it.
type Memory = (ChunkHandle, u64);

/// A pool, as its owner knows it, without its blocks.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Distinguishes it from all other pools of the runner.
    pub serial: u64,
    /// The memory behind every page that was handed out.
    pub handed: BTreeMap<u64, Memory>,
    /// The number of the stream that every page of memory was handed out on.
    pub owners: HashMap<Memory, u64>,
    /// Streams on which work with the pool's memory may be running.
    pub busy: Vec<StreamId>,
    /// The stream of the last replay.
    pub replaying: Option<StreamId>,
}

impl Pool {
    pub fn rename(&mut self, old: StreamId, new: StreamId) {
        if self.replaying == Some(old) {
            self.replaying = Some(new);
        }
        if self.leave(old) {
            self.enter(new);
        }
    }

    pub fn enter(&mut self, stream: StreamId) {
        if !self.busy.contains(&stream) {
            self.busy.push(stream);
        }
    }

    pub fn leave(&mut self, stream: StreamId) -> bool {
        let before = self.busy.len();
        self.busy.retain(|busy| *busy != stream);
        self.busy.len() < before
    }
}

/// A part of a graph: work with memory of a pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub pool: u64,
    pub action: Action,
    pub addr: DeviceAddr,
    pub bytes: u64,
    pub seed: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Write,
    Check,
}

/// A graph, or the capture that makes it.
#[derive(Clone, Debug)]
pub(crate) struct Graph {
    pub number: u64,
    /// The stream that is captured.
    pub stream: StreamId,
    pub steps: Vec<Step>,
}

/// The captures in progress, and the graphs that can be replayed.
#[derive(Debug, Default)]
pub(crate) struct Graphs {
    pub captures: Vec<Graph>,
    pub finished: Vec<Graph>,
    pub begun: u64,
    pub pools: u64,
}

impl Graphs {
    pub fn new_pool(&mut self) -> Pool {
        self.pools += 1;
        Pool { serial: self.pools, handed: BTreeMap::new(), owners: HashMap::new(), busy: Vec::new(), replaying: None }
    }

    /// Releases the graphs that use the memory of a pool, which is about to be closed.
    pub fn release(&mut self, pool: &Pool) {
        self.finished.retain(|graph| graph.steps.iter().all(|step| step.pool != pool.serial));
    }

    pub fn capture(&mut self, stream: StreamId) -> Option<&mut Graph> {
        self.captures.iter_mut().find(|capture| capture.stream == stream)
    }
}

impl Pool {
    pub fn step(&self, action: Action, block: &Block, seed: u64) -> Step {
        Step { pool: self.serial, action, addr: block.addr, bytes: block.bytes, seed }
    }

    /// Checks G1.
    pub fn check<D>(&self, driver: &Witness<D>) {
        for (page, memory) in &self.handed {
            let now = driver.memory_at(DeviceAddr(*page));
            assert_eq!(now, Some(*memory), "G1: the memory behind {}", DeviceAddr(*page));
        }
    }
}
