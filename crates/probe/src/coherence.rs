//! Two mappings of one chunk: what is written through one of them and read through the other, with the reader behind the
//! writer in each of the ways in which work can be ordered.

use std::ffi::CStr;
use std::time::{Duration, Instant};

use gapless::driver::cuda::raw::{Kernel, Module, Threads, raw_stream};
use gapless::driver::{ChunkHandle, DriverCall, DriverResult, EventHandle, MemoryDriver, StreamDriver, WorkDriver};
use gapless::{DeviceAddr, StreamId};
use serde_json::{Value, json};

use crate::graphs::{capture, destroy_exec, destroy_graph, instantiate, launch};
use crate::{Question, Subject, WHOLE, place, skipped};

pub(super) const ALIAS_COHERENCE: Question = Question {
    id: "alias_coherence",
    text: "Is what one kernel writes through one mapping read by the next through another, over every kind of edge?",
    parts: WHOLE,
    experiment: |driver| {
        let views = Views::make(driver)?;
        let answer = json!({
            "bytes": BYTES,
            "stream": views.over(|views, rounds| views.in_stream(rounds))?,
            "event": views.over(|views, rounds| views.over_events(rounds))?,
            "graph": views.over(|views, rounds| views.in_graphs(rounds))?,
            "programmatic_dependent_launch": views.dependent()?,
        });
        views.undo()?;
        Ok(answer)
    },
};

/// Two mappings of one chunk, and what writes and reads them.
struct Views<'a> {
    driver: &'a Subject,
    /// The mappings. They take turns at being written.
    at: [DeviceAddr; 2],
    chunk: ChunkHandle,
    streams: [StreamId; 2],
    events: [EventHandle; 2],
    write: Kernel,
    check: Kernel,
    /// Device memory: how many bytes or words a reader found wrong, and the first.
    result: DeviceAddr,
    modules: Vec<Module>,
}

impl<'a> Views<'a> {
    fn make(driver: &'a Subject) -> DriverResult<Self> {
        let page = driver.granularity();
        let (first, chunk) = place(driver, page)?;
        let second = driver.reserve(page, page)?;
        driver.map(second, page, chunk)?;
        driver.set_access(second, page)?;
        let raw = driver.raw();
        let (writing, [write]) = raw.load(FILL_PATTERN.0, [FILL_PATTERN.1])?;
        let (checking, [check]) = raw.load(VERIFY_PATTERN.0, [VERIFY_PATTERN.1])?;
        Ok(Self {
            driver,
            at: [first, second],
            chunk,
            streams: [driver.create_stream()?, driver.create_stream()?],
            events: [driver.event_create()?, driver.event_create()?],
            write,
            check,
            result: raw.mem_alloc(size_of::<[u64; 2]>() as u64)?,
            modules: vec![writing, checking],
        })
    }

    /// Takes everything away again.
    fn undo(self) -> DriverResult<()> {
        let (driver, page) = (self.driver, self.driver.granularity());
        driver.synchronize_device()?;
        driver.raw().mem_free(self.result)?;
        self.modules.into_iter().for_each(|module| driver.raw().unload(module));
        self.events.into_iter().try_for_each(|event| driver.event_destroy(event))?;
        self.streams.into_iter().try_for_each(|stream| driver.destroy_stream(stream))?;
        self.at.into_iter().try_for_each(|addr| driver.unmap(addr, page))?;
        driver.release(self.chunk)?;
        self.at.into_iter().try_for_each(|addr| driver.address_free(addr, page))
    }

    /// Runs as many rounds of an edge as there are to be or as there is time for. `pass` queues at most that many rounds
    /// and returns how many.
    fn over(&self, mut pass: impl FnMut(&Self, Rounds) -> DriverResult<u64>) -> DriverResult<Value> {
        let wanted = self.driver.settings.rounds;
        self.clear()?;
        let start = Instant::now();
        let mut done = 0;
        while done < wanted && start.elapsed() < EDGE_FOR {
            done += pass(self, Rounds { first: done, count: (wanted - done).min(AT_ONCE) })?;
            // Not too much is queued at once, and the clock is looked at.
            self.driver.synchronize_device()?;
        }
        Ok(json!({ "rounds": done, "wrong": self.wrong()?, "seconds": start.elapsed().as_secs_f64() }))
    }

    /// The reader is behind the writer on the same stream.
    fn in_stream(&self, rounds: Rounds) -> DriverResult<u64> {
        for round in rounds.all() {
            self.write(self.streams[0], round)?;
            self.check(self.streams[0], round)?;
        }
        Ok(rounds.count)
    }

    /// The reader is on another stream, which waits for an event of the writer's, and the next writer for one of its own.
    fn over_events(&self, rounds: Rounds) -> DriverResult<u64> {
        let [writer, reader] = self.streams;
        for round in rounds.all() {
            self.write(writer, round)?;
            self.driver.event_record(self.events[0], writer)?;
            self.driver.stream_wait(reader, self.events[0])?;
            self.check(reader, round)?;
            self.driver.event_record(self.events[1], reader)?;
            self.driver.stream_wait(writer, self.events[1])?;
        }
        Ok(rounds.count)
    }

    /// Writers and readers are the nodes of a graph, which is launched as often as it is needed.
    fn in_graphs(&self, rounds: Rounds) -> DriverResult<u64> {
        let (driver, stream) = (self.driver, self.streams[0]);
        let nodes = Rounds { first: 0, count: rounds.count.min(ROUNDS_IN_GRAPH) };
        let graph = capture(driver, stream, || self.in_stream(nodes).map(drop))?;
        let exec = instantiate(driver, graph)?;
        let launches = rounds.count.div_ceil(nodes.count);
        let launched = (0..launches).try_for_each(|_| launch(driver, exec, stream));
        driver.synchronize(stream)?;
        destroy_exec(driver, exec)?;
        destroy_graph(driver, graph)?;
        launched.map(|()| launches * nodes.count)
    }

    /// Every kernel may start while the one before it still runs, and waits for it before it touches memory.
    fn dependent(&self) -> DriverResult<Value> {
        let (raw, info) = (self.driver.raw(), self.driver.info());
        let (major, minor) = info.compute_capability;
        if major < 9 {
            return Ok(skipped(format!("the device has compute capability {major}.{minor}, this needs 9.0")));
        }
        if raw.optional().cuLaunchKernelEx.is_err() {
            return Ok(skipped("the library has no cuLaunchKernelEx (CUDA 11.6)"));
        }
        let (module, [write, check]) = match raw.load(DEPENDENT.0, DEPENDENT.1) {
            Ok(loaded) => loaded,
            Err(error) => return Ok(skipped(format!("its kernels cannot be loaded: {error}"))),
        };
        let (stream, words) = (self.streams[0], BYTES / 8);
        let answer = self.over(|views, rounds| {
            for round in rounds.all() {
                let [written, read] = views.turn(round);
                let parameters = [written.0, words, round];
                // SAFETY: the kernel's parameters; the range is mapped until `undo`. It waits for the work ahead of it.
                unsafe { raw.launch_dependent(write, stream, Threads::ForItems(words), &parameters) }?;
                let parameters = [read.0, words, round, views.result.0];
                // SAFETY: as above.
                unsafe { raw.launch_dependent(check, stream, Threads::ForItems(words), &parameters) }?;
            }
            Ok(rounds.count)
        });
        raw.unload(module);
        answer
    }

    /// The mapping that is written in a round, and the one that is read.
    fn turn(&self, round: u64) -> [DeviceAddr; 2] {
        let [first, second] = self.at;
        if round.is_multiple_of(2) { [first, second] } else { [second, first] }
    }

    fn write(&self, stream: StreamId, round: u64) -> DriverResult<()> {
        let [written, _] = self.turn(round);
        let threads = Threads::ForItems(BYTES / 8);
        // SAFETY: the kernel's parameters; the range is mapped until `undo`.
        unsafe { self.driver.raw().launch(self.write, stream, threads, &[written.0, BYTES, round]) }
    }

    fn check(&self, stream: StreamId, round: u64) -> DriverResult<()> {
        let [_, read] = self.turn(round);
        let parameters = [read.0, BYTES, round, self.result.0];
        // SAFETY: as in `write`; the result has memory of its own.
        unsafe { self.driver.raw().launch(self.check, stream, Threads::ForItems(BYTES / 8), &parameters) }
    }

    /// Forgets what readers have found.
    fn clear(&self) -> DriverResult<()> {
        let (raw, stream) = (self.driver.raw(), self.streams[0]);
        let _current = raw.enter(DriverCall::Work)?;
        // SAFETY: the result's memory, which nothing uses now.
        let cleared = unsafe { raw.api().cuMemsetD8Async(self.result.0, 0, 16, raw_stream(stream)) };
        raw.check(DriverCall::Work, "cuMemsetD8Async", cleared)?;
        self.driver.synchronize(stream)
    }

    /// How many bytes readers have found wrong; words, with programmatic dependent launch.
    fn wrong(&self) -> DriverResult<u64> {
        let (raw, stream) = (self.driver.raw(), self.streams[0]);
        let mut found = 0_u64;
        let _current = raw.enter(DriverCall::Work)?;
        let target = (&raw mut found).cast();
        // SAFETY: both sides are eight bytes long and live until the synchronisation below.
        let copied = unsafe { raw.api().cuMemcpyDtoHAsync_v2(target, self.result.0, 8, raw_stream(stream)) };
        raw.check(DriverCall::Work, "cuMemcpyDtoHAsync", copied)?;
        self.driver.synchronize(stream)?;
        Ok(found)
    }
}

/// Consecutive rounds. The number of a round is the seed of its bytes.
#[derive(Clone, Copy)]
struct Rounds {
    first: u64,
    count: u64,
}

impl Rounds {
    fn all(self) -> std::ops::Range<u64> {
        self.first..self.first + self.count
    }
}

/// Parameters: data, bytes, seed.
const FILL_PATTERN: (&str, &CStr) = (include_str!("../../../kernels/fill_pattern.ptx"), c"fill_pattern");
/// Parameters: data, bytes, seed, result.
const VERIFY_PATTERN: (&str, &CStr) = (include_str!("../../../kernels/verify_pattern.ptx"), c"verify_pattern");
/// Parameters: data, words, seed; data, words, seed, result.
const DEPENDENT: (&str, [&CStr; 2]) =
    (include_str!("../../../kernels/dependent.ptx"), [c"dependent_write", c"dependent_check"]);

/// Enough for several blocks of threads, and little enough to stay in the caches.
const BYTES: u64 = 256 << 10;
const AT_ONCE: u64 = 512;
const ROUNDS_IN_GRAPH: u64 = 32;
/// For each edge.
const EDGE_FOR: Duration = Duration::from_secs(6);
