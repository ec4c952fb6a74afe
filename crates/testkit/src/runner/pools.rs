//! Pools: allocators that keep their mappings, graphs that are captured with their memory, and replays of these graphs.
//!
//! Work with a pool's block on a captured stream does not run. It becomes a step of a graph, and a replay runs the steps, on
//! whatever stream: the allocator is notified neither of the replay nor of its stream. As in a program, a replay and other work
//! with the pool's memory run one behind the other, and what a block holds after a replay is known of the blocks alone that
//! the graph left. Calls of the allocator know nothing of this order.
//!
//! - G1  every page that was handed out stays mapped with access to the same bytes until the pool is closed, unless it is asleep.
//! - G2  every check of a replay finds what the replay wrote.
//! - G3  no rule of the driver is broken: nothing is unmapped that a replay in flight uses.
//! - G4  bytes that were handed out on one stream are never handed out on another: replays of graphs that were captured on
//!   different streams may overlap.
//! - G5  after a wake, pages that had the same memory have the same memory again, and those that had not have not. Free memory has
//!   the bytes that a replay left there.

use super::Runner;
use crate::device::Device;
use crate::graphs::{Action, Graph, Left, Pool, Step};
use crate::oracle::fitting_blocks;
use gapless::driver::{HoldStreams, PER_THREAD_STREAM, StreamDriver, WorkDriver};
use gapless::units::{DeviceAddr, StreamId};

/// Number of places in free memory that a replay writes to before a sleep.
const MOST_LEFT: usize = 3;

impl<D: Device> Runner<D> {
    /// Begins the capture of a stream. Its work with pools has to complete before: a replay could not be ordered behind it
    /// during the capture.
    pub(crate) fn begin_capture(&mut self, stream: StreamId) {
        // The driver does not tell which stream a handle stands for during its capture: its last answer counts.
        if self.renewed.contains(&stream) && self.allocator().watch_stream(stream).is_err() {
            return;
        }
        self.end_foreign_uses(stream);
        for instance in &mut self.instances {
            let Some(pool) = &mut instance.pool else { continue };
            if pool.leave(stream) {
                self.driver.inner().synchronize(stream).expect("a stream can be waited for");
                instance.oracle.live.values_mut().for_each(|block| block.was_waited_for(stream));
            }
            pool.replaying = pool.replaying.filter(|replaying| *replaying != stream);
        }
        self.set_capturing(stream, true);
        if self.driver.is_capturing(stream) && self.graphs.capture(stream).is_none() {
            // Nobody but its thread can be sure that a thread's own stream lives.
            self.capture_unseen |= !self.world.kept || stream == PER_THREAD_STREAM;
            self.summary.captures += 1;
            self.summary.captures_at_once += u64::from(!self.graphs.captures.is_empty());
            self.graphs.begun += 1;
            self.graphs.captures.push(Graph { number: self.graphs.begun, stream, steps: Vec::new() });
        }
    }

    /// Ends the capture of a stream. Its graph checks the blocks that it leaves.
    pub(crate) fn end_capture(&mut self, stream: StreamId) {
        self.set_capturing(stream, false);
        let Some(at) = self.graphs.captures.iter().position(|capture| capture.stream == stream) else { return };
        let mut graph = self.graphs.captures.swap_remove(at);
        for instance in &self.instances {
            let Some(pool) = &instance.pool else { continue };
            for block in instance.oracle.live.values() {
                if let Some((_, seed)) = block.graph.filter(|(number, _)| *number == graph.number) {
                    graph.steps.push(pool.step(Action::Check, block, seed));
                }
            }
        }
        if !graph.steps.is_empty() {
            self.graphs.finished.push(graph);
        }
    }

    pub(crate) fn end_captures(&mut self) {
        for capture in self.graphs.captures.clone() {
            self.end_capture(capture.stream);
        }
    }

    /// Replays a graph on a stream that is not being captured, behind all other work with its memory. The stream is held, so
    /// that the replay is in flight until something waits for it.
    pub(crate) fn replay(&mut self, number: usize, stream: StreamId) {
        if self.graphs.finished.is_empty() || self.driver.is_capturing(stream) {
            return;
        }
        let graph = self.graphs.finished[number % self.graphs.finished.len()].clone();
        let uses = |pool: &Pool| graph.steps.iter().any(|step| step.pool == pool.serial);
        if self.instances.iter().filter_map(|it| it.pool.as_ref()).any(|pool| pool.asleep && uses(pool)) {
            return;
        }
        for instance in 0..self.instances.len() {
            if !self.instances[instance].pool.as_ref().is_some_and(uses) {
                continue;
            }
            self.begin_replay(instance, stream);
            for block in self.instances[instance].oracle.live.values_mut() {
                block.content = block.graph.filter(|(number, _)| *number == graph.number).map(|(_, seed)| seed);
                if block.content.is_some() {
                    block.last_user = stream;
                }
            }
        }
        self.driver.hold(stream);
        let witness = self.driver.inner();
        for Step { action, addr, bytes, seed, .. } in graph.steps {
            let result = match action {
                Action::Write => witness.fill(stream, addr, bytes, seed),
                Action::Check => witness.verify(stream, addr, bytes, seed),
            };
            result.expect("G1: a replay can use its addresses");
        }
        self.summary.replays += 1;
    }

    /// Orders what a replay does with the memory of a pool behind all other work with it, and the other way round.
    fn begin_replay(&mut self, instance: usize, stream: StreamId) {
        let pool = self.instances[instance].pool.as_mut().expect("a pool");
        pool.replaying = Some(stream);
        for earlier in std::mem::replace(&mut pool.busy, vec![stream]) {
            assert!(self.order(earlier, stream), "a capture waits for its stream's work with pools");
        }
    }

    /// Writes to free memory of the current pool, as a replay does that is in flight. Returns what it leaves there.
    pub(crate) fn write_free_memory(&mut self) -> Vec<Left> {
        if self.instance().pool.is_none() || self.may_be_capturing() {
            return Vec::new();
        }
        let page_bytes = self.world.page_bytes;
        let free: Vec<(DeviceAddr, u64)> = fitting_blocks(self.allocator(), 1, 1)
            .map(|block| (block.addr, block.bytes.min(page_bytes - block.addr.0 % page_bytes)))
            .take(MOST_LEFT)
            .collect();
        let stream = self.streams[free.len() % self.streams.len()];
        self.begin_replay(self.current, stream);
        self.driver.hold(stream);
        let mut left = Vec::new();
        for (addr, bytes) in free {
            let seed = self.fresh_seed();
            self.driver.inner().fill(stream, addr, bytes, seed).expect("G1: a replay can use free memory");
            left.push(Left { addr, bytes, seed });
        }
        left
    }

    /// Reads what replays left in free memory of the current pool, which has just woken.
    pub(crate) fn verify_free_memory(&mut self) {
        let left = self.instance_mut().pool.as_mut().map(|pool| std::mem::take(&mut pool.left)).unwrap_or_default();
        // The allocator need not know of a capture, and wakes then.
        let free = self.streams.iter().copied().filter(|stream| !self.driver.is_capturing(*stream)).collect::<Vec<_>>();
        if left.is_empty() || free.is_empty() {
            return;
        }
        let stream = free[left.len() % free.len()];
        self.begin_replay(self.current, stream);
        for Left { addr, bytes, seed } in left {
            self.summary.verified_free_bytes += bytes;
            self.driver.inner().verify(stream, addr, bytes, seed).expect("G5: a replay can use free memory");
        }
    }

    /// Runs every graph once more.
    pub(crate) fn replay_all(&mut self) {
        for graph in 0..self.graphs.finished.len() {
            self.replay(graph, self.streams[graph % self.streams.len()]);
        }
    }

    /// Makes work with a block of the current allocator a step of a graph, if the allocator is a pool and the stream is
    /// captured. Returns `true` if so: then nothing is to be run.
    pub(crate) fn captured(&mut self, addr: DeviceAddr, stream: StreamId, write: Option<u64>) -> bool {
        let instance = &mut self.instances[self.current];
        let (Some(pool), Some(capture)) = (&instance.pool, self.graphs.capture(stream)) else { return false };
        let block = instance.oracle.live.get_mut(&addr.0).expect("a live block");
        if let Some(seed) = write {
            block.graph = Some((capture.number, seed));
            capture.steps.push(pool.step(Action::Write, block, seed));
        } else if let Some((_, seed)) = block.graph.filter(|(number, _)| *number == capture.number) {
            capture.steps.push(pool.step(Action::Check, block, seed));
        }
        true
    }

    /// Orders a stream behind the replays that may be running, if the current allocator is a pool, before other work with its
    /// memory is queued there.
    pub(crate) fn enter_pool(&mut self, stream: StreamId) {
        let Some(pool) = &mut self.instance_mut().pool else { return };
        pool.enter(stream);
        if let Some(replaying) = pool.replaying {
            assert!(self.order(replaying, stream), "neither of them is captured");
        }
    }

    /// Notes the memory of a block that was handed out, if the current allocator is a pool. Checks G4.
    pub(crate) fn note_memory(&mut self, addr: DeviceAddr, bytes: u64, stream: StreamId) {
        let (page_bytes, number) = (self.world.page_bytes, self.number(stream));
        let Self { instances, current, driver, .. } = self;
        let Some(pool) = &mut instances[*current].pool else { return };
        for page in addr.0 / page_bytes..(addr.0 + bytes).div_ceil(page_bytes) {
            let page = page * page_bytes;
            let memory = driver.inner().memory_at(DeviceAddr(page)).expect("invariant 2: a new block is mapped");
            pool.handed.entry(page).or_insert(memory);
            let owner = *pool.owners.entry(memory).or_insert(number);
            assert_eq!(owner, number, "G4: {} for {stream:?} is memory of another stream", DeviceAddr(page));
        }
    }

    /// Checks that a request that ran out of memory in a pool could not have had a free block of its own stream.
    pub(crate) fn check_refusal_of_pool(&self, bytes: u64, alignment: u64, stream: StreamId) {
        let Some(pool) = &self.instance().pool else { return };
        let (page_bytes, number) = (self.world.page_bytes, self.number(stream));
        let owner = |addr| {
            let (chunk, offset) = self.driver.inner().memory_at(addr)?;
            pool.owners.get(&(chunk, offset / page_bytes * page_bytes)).copied()
        };
        let fitting =
            fitting_blocks(self.allocator(), bytes, alignment).find(|block| owner(block.addr) == Some(number));
        assert!(fitting.is_none(), "{bytes} bytes for {stream:?}: {fitting:?} was free on it");
    }

    /// Work of the old stream is behind the new one.
    pub(crate) fn rename_in_pools(&mut self, old: StreamId, new: StreamId) {
        for pool in self.instances.iter_mut().filter_map(|instance| instance.pool.as_mut()) {
            pool.rename(old, new);
        }
    }

    /// The number of the stream that a handle stands for.
    fn number(&self, stream: StreamId) -> u64 {
        self.driver.inner().number(stream)
    }
}
