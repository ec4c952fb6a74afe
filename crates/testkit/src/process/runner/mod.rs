//! Runner: applies operations to a process with two devices, and checks the results with a book for each device.

mod blocks;

use super::book::{Block, Book, OfDevice, Place};
use super::device::{Layers, Simulates, TwoDevices};
use super::op::ProcessOp;
use super::summary::ProcessSummary;
use crate::op::Failure;
use crate::witness::Witness;
use gapless::allocator::{AllocError, Backup, FreeError, StreamError};
use gapless::driver::cuda::OpenError;
use gapless::driver::{DriverError, Fault, HoldStreams, StreamDriver, WorkDriver};
use gapless::units::{DeviceAddr, StreamId};
use gapless_process::{Device, Error, PoolId, PoolKind, Process};
use std::sync::Arc;
use std::time::Duration;

/// The number of names of pools of a device.
const POOLS: u8 = 3;

/// A process with two devices, and what callers hold of them.
pub struct ProcessRunner<M: Simulates> {
    devices: TwoDevices,
    process: Process<Layers<M>>,
    drivers: [Arc<Layers<M>>; 2],
    books: [Book; 2],
    /// Streams that were created, of both devices.
    created: Vec<OfDevice>,
    armed: Option<(usize, Failure)>,
    next_serial: u64,
    summary: ProcessSummary,
}

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It did what it is for, or there was nothing to do, or memory ran out.
    Done,
    /// It failed with the error that was injected.
    Injected,
}

impl<M: Simulates> ProcessRunner<M> {
    /// Creates two devices with their streams, and a process that uses the first one.
    pub fn new(devices: &TwoDevices) -> Self {
        let first = Witness::new(M::simulated(devices, 0));
        let second = first.beside(M::simulated(devices, 1), 1);
        let drivers = [first, second].map(|witness| Arc::new(Layers::<M>::new(witness)));
        let process: Process<Layers<M>> = Process::new(|ordinal, _| Err(OpenError::NoSuchDevice { ordinal, count: 2 }));
        process.configure(&devices.conf()).expect("a configuration that parses");
        let mut created = Vec::new();
        for (device, driver) in drivers.iter().enumerate() {
            for _ in 0..devices.streams {
                created.push((device, driver.inner().create_stream().expect("the device can create streams")));
            }
        }
        let mut runner = Self {
            devices: *devices,
            process,
            drivers,
            books: [(); 2].map(|()| Book::new(devices.budget())),
            created,
            armed: None,
            next_serial: 0,
            summary: ProcessSummary::default(),
        };
        runner.open(0);
        runner
    }

    /// Runs one operation, then checks everything.
    ///
    /// # Panics
    /// Panics if a check fails.
    pub fn step(&mut self, op: ProcessOp) -> Outcome {
        let outcome = self.act(op);
        self.note_fault();
        self.check();
        self.summary.ops += 1;
        outcome
    }

    /// The number of injected failures that occurred.
    pub fn faults(&self) -> u64 {
        self.summary.faults
    }

    fn act(&mut self, op: ProcessOp) -> Outcome {
        match op {
            ProcessOp::Alloc { device, bytes, stream } => {
                let device = self.open(device);
                let place = self.books[device].open.last().map_or(Place::Main, |pool| Place::Pool(*pool));
                self.alloc(device, bytes, stream, place, gapless_process::Place::OpenPool)
            }
            ProcessOp::AllocInPool { device, pool, bytes, stream } => {
                let (device, pool) = (self.open(device), name(pool));
                let place = self.books[device].place_of(pool);
                self.alloc(device, bytes, stream, place, gapless_process::Place::Pool(pool))
            }
            ProcessOp::AllocInMain { device, bytes, stream } => {
                let device = self.open(device);
                self.alloc(device, bytes, stream, Place::Main, gapless_process::Place::Main)
            }
            ProcessOp::Free { block } => self.with_block(block, Self::free),
            ProcessOp::FreeOn { block, stream } => {
                self.with_block(block, |runner, device, block| runner.free_on(device, block, stream))
            }
            ProcessOp::Use { block, stream } => {
                self.with_block(block, |runner, device, block| runner.record(device, block, stream))
            }
            ProcessOp::Hold { stream } => self.with_created(stream, |driver, stream| driver.hold(stream)),
            ProcessOp::Resume { stream } => self.with_created(stream, |driver, stream| driver.resume(stream)),
            ProcessOp::Begin { device, pool } => {
                let (device, pool) = (self.open(device), name(pool));
                let outcome = self.device(device).pools().begin(pool);
                let outcome = self.outcome(outcome);
                if outcome == Outcome::Done {
                    *self.books[device].users.entry(pool).or_default() += 1;
                    self.books[device].open.push(pool);
                }
                outcome
            }
            ProcessOp::AddUser { device, pool } => {
                let (device, pool) = (self.open(device), name(pool));
                let outcome = self.device(device).pools().add_user(pool);
                let outcome = self.outcome(outcome);
                if outcome == Outcome::Done {
                    *self.books[device].users.entry(pool).or_default() += 1;
                }
                outcome
            }
            ProcessOp::End { device, pool } => {
                let (device, pool) = (self.open(device), name(pool));
                self.device(device).pools().end(pool);
                let open = &mut self.books[device].open;
                if let Some(at) = open.iter().rposition(|other| *other == pool) {
                    open.remove(at);
                }
                Outcome::Done
            }
            ProcessOp::Release { device, pool } => {
                let (device, pool) = (self.open(device), name(pool));
                self.device(device).pools().release(pool);
                if let Some(users) = self.books[device].users.get_mut(&pool) {
                    *users = users.saturating_sub(1);
                }
                Outcome::Done
            }
            ProcessOp::Lend { device, pool, lends } => {
                let device = self.open(device);
                if let Some(pool) = self.device(device).pools().named(name(pool)) {
                    pool.set_lends(lends);
                }
                Outcome::Done
            }
            ProcessOp::Budget { device, pages } => {
                let device = self.open(device);
                let bytes = u64::from(pages) % (self.devices.pages + 2) * self.devices.page_bytes;
                let outcome = self.device(device).set_budget(bytes);
                // It is set even where memory could not be given back.
                self.books[device].budget = Some(bytes);
                self.outcome(outcome)
            }
            ProcessOp::Trim { device, keep } => {
                let device = self.open(device);
                let outcome = self.device(device).trim(u64::from(keep) * self.devices.page_bytes);
                let outcome = self.outcome(outcome.map(drop).map_err(Error::from));
                if outcome == Outcome::Done && !self.struck() {
                    self.check();
                    self.books[device].check_trimmed(self.process.device(number(device)).expect("a device in use"));
                }
                outcome
            }
            ProcessOp::CloseReleased { device } => {
                let device = self.open(device);
                let before = self.device(device).memory_use().reserved;
                let closed = self.device(device).close_released_pools();
                let after = self.device(device).memory_use().reserved;
                assert_eq!(before - closed, after, "what went back is held no more");
                Outcome::Done
            }
            ProcessOp::Declare { device, pool, ordinary } => {
                let device = self.open(device);
                let kind = if ordinary { PoolKind::Ordinary } else { PoolKind::Graph };
                match self.device(device).pools().declare(name(pool), kind, Some(&tag(pool))) {
                    Err(Error::PoolInUse(_)) => {
                        assert!(self.books[device].pools().contains(&name(pool)), "{pool} is not in use");
                        Outcome::Done
                    }
                    outcome => self.outcome(outcome),
                }
            }
            ProcessOp::Nap { device, tag: number } => {
                let device = self.open(device);
                self.disarm();
                self.nap(device, number.map(tag).as_deref());
                Outcome::Done
            }
            ProcessOp::Fail { device, nth, kind } => {
                self.disarm();
                let device = usize::from(device) % 2;
                self.drivers[device].arm(Fault::nth(u64::from(nth), kind.kind()));
                self.armed = Some((device, kind));
                Outcome::Done
            }
        }
    }

    /// Has the process use a device, if it does not: a second try succeeds after an injected failure.
    fn open(&mut self, device: u8) -> usize {
        let device = usize::from(device) % 2;
        if self.process.devices().all(|open| open.ordinal() != number(device)) {
            let driver = &self.drivers[device];
            if let Err(error) = self.process.add(number(device), Arc::clone(driver)).map(drop) {
                assert_eq!(self.outcome::<()>(Err(error)), Outcome::Injected);
                self.note_fault();
                self.process.add(number(device), Arc::clone(&self.drivers[device])).expect("nothing fails now");
            }
            for owner in self.process.devices() {
                for peer in self.process.devices().filter(|peer| peer.ordinal() != owner.ordinal()) {
                    let told_otherwise = !self.devices.peers || self.struck();
                    assert!(peer.reaches(owner) || told_otherwise, "devices get access to each other's memory");
                    if peer.reaches(owner) {
                        let peer = u8::try_from(peer.ordinal()).expect("one of two");
                        owner.allocator().driver().inner().rely_on_peer(peer);
                    }
                }
            }
        }
        device
    }

    /// Puts the pools of a tag to sleep, or everything, and wakes them.
    fn nap(&mut self, device: usize, tag: Option<&str>) {
        let (sleeper, before) = (self.device(device), self.device(device).memory_use());
        if before.set_budget.is_some_and(|budget| budget < before.reserved) {
            // What it gave back, it would not get again.
            return;
        }
        let backup = if tag.is_some() { Backup::Pageable } else { Backup::Pinned };
        let slept = match sleeper.sleep(tag, backup) {
            Err(Error::Capturing(_)) => {
                assert!(!self.books[device].open.is_empty(), "nothing is open that could be for a capture");
                return;
            }
            slept => slept.unwrap_or_else(|error| panic!("nothing fails: {error}")),
        };
        let memory = sleeper.memory_use();
        assert_eq!(memory.reserved + slept.released_bytes, before.reserved, "what went back is held no more");
        let asleep: u64 = sleeper.asleep().iter().map(|its| its.asleep_bytes).sum();
        assert_eq!((asleep, sleeper.stats().asleep_bytes), (slept.asleep_bytes, slept.asleep_bytes));
        let left = slept.left_awake.total_bytes();
        assert!(tag.is_some() || memory.reserved == left, "{slept:?} and {memory:?}");
        let woken = sleeper.wake(tag, Duration::ZERO).unwrap_or_else(|error| panic!("there was memory: {error}"));
        assert_eq!((woken.mapped_bytes, sleeper.stats().asleep_bytes), (slept.asleep_bytes, 0));
        self.summary.slept += u64::from(slept.live_bytes > 0);
    }

    fn device(&self, device: usize) -> &Device<Layers<M>> {
        self.process.device(number(device)).expect("a device in use")
    }

    /// A stream of a device, by a number: the default one, or one that was created.
    fn stream_of(&self, device: usize, stream: u8) -> StreamId {
        let own: Vec<StreamId> =
            self.created.iter().filter(|(its, _)| *its == device).map(|(_, stream)| *stream).collect();
        usize::from(stream).checked_rem(own.len() + 1).and_then(|at| own.get(at)).copied().unwrap_or(StreamId::DEFAULT)
    }

    /// A stream that a block of a device is used on: one that was created, of whichever device, or the default one of its own.
    fn any_stream(&mut self, device: usize, stream: u8) -> OfDevice {
        let found = self.created.get(usize::from(stream) % (self.created.len() + 1)).copied();
        let (user, stream) = found.unwrap_or((device, StreamId::DEFAULT));
        self.open(u8::try_from(user).expect("one of two"));
        (user, stream)
    }

    fn with_created(&mut self, stream: u8, act: impl Fn(&Layers<M>, StreamId)) -> Outcome {
        if let Some(at) = usize::from(stream).checked_rem(self.created.len()) {
            let (device, stream) = self.created[at];
            act(&self.drivers[device], stream);
        }
        Outcome::Done
    }

    fn with_block(&mut self, block: u16, act: impl Fn(&mut Self, usize, Block) -> Outcome) -> Outcome {
        let mut live: Vec<(u64, usize, DeviceAddr)> = Vec::new();
        for (device, book) in self.books.iter().enumerate() {
            live.extend(book.live.values().map(|block| (block.serial, device, block.addr)));
        }
        live.sort_unstable();
        let Some(at) = usize::from(block).checked_rem(live.len()) else { return Outcome::Done };
        let (_, device, addr) = live[at];
        let block = self.books[device].live[&addr].clone();
        act(self, device, block)
    }

    /// Returns the outcome of a call, which may fail with the injected error only.
    fn outcome<T>(&self, result: Result<T, Error>) -> Outcome {
        let error = match result {
            Ok(_) => return Outcome::Done,
            Err(error) => error,
        };
        let cause: &DriverError = match &error {
            Error::Driver(cause) | Error::Alloc(AllocError::Driver(cause)) => cause,
            Error::Alloc(
                AllocError::OutOfMappings { cause, .. } | AllocError::Stream(StreamError::Foreign { cause, .. }),
            )
            | Error::Free(FreeError::Stream(StreamError::Foreign { cause, .. }))
            | Error::Foreign { cause: StreamError::Foreign { cause, .. }, .. } => cause,
            other => {
                let is_injected = other.to_string().contains("injected");
                assert!(is_injected && self.struck(), "an error that was not injected: {other}");
                return Outcome::Injected;
            }
        };
        let injected = self.armed.is_some_and(|(_, kind)| kind.kind() == cause.kind) && self.struck();
        assert!(injected, "an error that was not injected: {error}");
        Outcome::Injected
    }

    /// Whether the injected failure has occurred.
    fn struck(&self) -> bool {
        self.armed.is_some_and(|(device, _)| self.drivers[device].fired() > 0)
    }

    /// Ends the injection if the failure has occurred. What could not be given back to the driver then is lost.
    fn note_fault(&mut self) {
        if self.struck() {
            self.summary.faults += 1;
            self.disarm();
            for device in 0..2 {
                if self.process.devices().any(|open| open.ordinal() == number(device)) {
                    let held = self.device(device).memory_use().reserved;
                    let usage = self.drivers[device].inner().inner().inner().usage();
                    self.books[device].lost_bytes = usage.bytes - held;
                }
            }
        }
    }

    fn disarm(&mut self) {
        if let Some((device, _)) = self.armed.take() {
            self.drivers[device].disarm();
        }
    }

    /// Checks both devices.
    fn check(&mut self) {
        for device in self.process.devices() {
            self.books[device.ordinal() as usize].check(device, &self.drivers);
        }
        for driver in &self.drivers {
            let witness = driver.inner();
            let broken = witness.inner().inner().broken_rules();
            assert!(broken.is_empty(), "the driver contract was violated: {broken:#?}");
            let observed = witness.take_observations();
            assert!(observed.is_empty(), "what was seen of the order of work: {observed:#?}");
            let mismatches = witness.take_mismatches();
            assert!(mismatches.is_empty(), "the content of live memory changed: {mismatches:#?}");
        }
    }

    /// Frees everything, and checks that all memory is back; then ends the process, and checks that nothing is left on the devices.
    ///
    /// # Panics
    /// Panics if a check fails.
    pub fn finish(mut self) -> ProcessSummary {
        self.disarm();
        while self.books.iter().any(|book| !book.live.is_empty()) {
            self.step(ProcessOp::Free { block: 0 });
        }
        for device in 0..2 {
            for pool in 0..POOLS {
                while self.books[usize::from(device)].open.contains(&name(pool)) {
                    self.step(ProcessOp::End { device, pool });
                }
                while self.books[usize::from(device)].users.get(&name(pool)).is_some_and(|users| *users > 0) {
                    self.step(ProcessOp::Release { device, pool });
                }
            }
            // What other devices used is freed by the first trim, which does not wait for streams of its own device; what several
            // of these use is asked about one after the other.
            for _ in 0..3 {
                self.step(ProcessOp::Trim { device, keep: 0 });
                self.drivers[usize::from(device)].inner().synchronize_device().expect("a device can be waited for");
            }
            self.step(ProcessOp::Trim { device, keep: 0 });
            let device = usize::from(device);
            let (book, memory) = (&self.books[device], self.device(device).memory_use());
            assert_eq!((memory.live, memory.reserved), (0, 0), "everything was freed");
            assert_eq!(book.allocs, book.frees, "as many frees as allocations");
        }
        let Self { process, drivers, books, created, mut summary, .. } = self;
        drop(process);
        for (device, stream) in created {
            drivers[device].inner().destroy_stream(stream).expect("the stream can be destroyed");
        }
        for (driver, book) in drivers.iter().zip(&books) {
            let usage = driver.inner().inner().inner().usage();
            let is_back = if summary.faults == 0 { usage.is_empty() } else { usage.bytes == book.lost_bytes };
            assert!(is_back, "left in the driver: {usage:?}");
        }
        summary.ops = summary.ops.max(1);
        summary
    }
}

fn number(device: usize) -> u32 {
    u32::try_from(device).expect("one of two")
}

fn name(pool: u8) -> PoolId {
    (7, u64::from(pool % POOLS))
}

fn tag(pool: u8) -> String {
    format!("tag {}", pool % POOLS)
}

/// Prints operations if it is dropped during a panic.
struct PrintOnPanic<'a>(&'a TwoDevices, &'a [ProcessOp]);

impl Drop for PrintOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{:?}\n{:#?}", self.0, self.1);
        }
    }
}

/// Runs a sequence on two new devices, and checks everything after each operation and at the end.
///
/// # Panics
/// Panics if a check fails. The sequence is printed.
pub fn run_process<M: Simulates>(devices: &TwoDevices, ops: &[ProcessOp]) -> ProcessSummary {
    let _print = PrintOnPanic(devices, ops);
    let mut runner = ProcessRunner::<M>::new(devices);
    for op in ops {
        runner.step(*op);
    }
    runner.finish()
}
