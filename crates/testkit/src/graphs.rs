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
    /// Whether it was put to sleep, or a part of it may have been.
    pub asleep: bool,
    /// What each sleep took out of `handed`, with the number of the stream from `owners`.
    slept: Vec<BTreeMap<u64, (Memory, Option<u64>)>>,
    /// What a replay wrote to free memory that is asleep with a backup.
    pub left: Vec<Left>,
}

/// Bytes that a replay wrote to free memory: the address, their number, and their seed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    pub addr: DeviceAddr,
    pub bytes: u64,
    pub seed: u64,
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
        Pool {
            serial: self.pools,
            handed: BTreeMap::new(),
            owners: HashMap::new(),
            busy: Vec::new(),
            replaying: None,
            asleep: false,
            slept: Vec::new(),
            left: Vec::new(),
        }
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
            assert!(now == Some(*memory) || self.asleep && now.is_none(), "G1: {now:?} behind {}", DeviceAddr(*page));
        }
        for page in self.slept.iter().flat_map(BTreeMap::keys) {
            assert_eq!(driver.memory_at(DeviceAddr(*page)), None, "G1: {} is asleep", DeviceAddr(*page));
        }
    }

    /// Notes which memory has gone with a sleep. Checks that chunks sleep at all their addresses.
    pub fn fall_asleep<D>(&mut self, driver: &Witness<D>) {
        self.asleep = true;
        let has_memory = |page: &u64| driver.memory_at(DeviceAddr(*page)).is_some();
        let (awake, gone): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.handed).into_iter().partition(|(page, _)| has_memory(page));
        for (page, (chunk, _)) in &gone {
            assert!(
                awake.values().all(|(other, _)| other != chunk),
                "G1: {page:#x} sleeps, others of {chunk:?} do not"
            );
        }
        let owner = |memory: Memory| self.owners.get(&memory).copied();
        let slept = gone.into_iter().map(|(page, memory)| (page, (memory, owner(memory)))).collect::<BTreeMap<_, _>>();
        self.owners.retain(|(chunk, _), _| awake.values().any(|(other, _)| other == chunk));
        self.handed = awake;
        self.slept.push(slept);
    }

    /// Notes the memory that it has after a wake. Checks G5.
    pub fn wake<D>(&mut self, driver: &Witness<D>) {
        self.asleep = false;
        let mut old_of = HashMap::new();
        for (sleep, slept) in std::mem::take(&mut self.slept).into_iter().enumerate() {
            let mut new_of = HashMap::new();
            for (page, ((old, offset), owner)) in slept {
                let now = driver.memory_at(DeviceAddr(page)).unwrap_or_else(|| panic!("G5: {page:#x} has no memory"));
                assert_eq!(now.1, offset, "G5: the memory behind {page:#x}");
                assert_eq!(*new_of.entry(old).or_insert(now.0), now.0, "G5: {page:#x} shared {old:?} with others");
                assert_eq!(*old_of.entry(now.0).or_insert((sleep, old)), (sleep, old), "G5: {page:#x} shares {now:?}");
                self.handed.insert(page, now);
                self.owners.extend(owner.map(|owner| (now, owner)));
            }
        }
    }
}
