//! Work on the memory of the process-wide allocators, on streams of both of their devices.
//!
//! A *use* keeps a stream busy, then reads what a block holds and writes the same again. So a block that is handed out while a
//! use of it is queued shows up on either side: the use reads what the next owner has written, or writes over it. An event
//! behind each use shows when it is over.
//!
//! A block with *foreign* uses, by streams of the other device, is freed later, by a *deferred free*: it counts as live, and nobody
//! gets any of it before these uses are over.

use super::effect::stream_named;
use super::*;
use gapless::driver::cuda::CudaDriver;
use gapless::driver::{EventHandle, StreamDriver, WorkDriver, pattern_word};
use gapless::{DeviceAddr, StreamId};
use std::time::Duration;

/// A device with a process-wide allocator, as a program uses it beside the library.
pub(super) struct Gpu {
    pub(super) device: i32,
    pub(super) driver: CudaDriver,
    /// Streams that live as long as the process.
    pub(super) streams: [StreamId; 2],
}

/// The stream that a handle stands for, seen from a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    /// A default stream: the handle does not say of which device.
    Default,
    /// One that was created on the device.
    Own,
    /// One that was created on the other device.
    Foreign,
    Unknown,
}

impl Stream {
    /// Whether memory of the device can be requested for it.
    pub(super) fn serves(self) -> bool {
        matches!(self, Self::Default | Self::Own)
    }
}

/// The use of a block, by a stream that was recorded on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    /// Of the device that has the stream, and recorded behind the work; none where no work was queued.
    event: Option<(usize, EventHandle)>,
    foreign: bool,
    /// By another stream of the block's own device, which it waits for when it is freed.
    shared: bool,
}

/// A block that was freed, the free of which may be deferred.
#[derive(Clone, Debug)]
pub(super) struct FreedBlock {
    pub(super) block: Block,
    uses: Vec<Use>,
}

/// Uses in one input: each takes its time.
const MOST_USES: usize = 16;
/// How long a stream is busy before the work of a block's first use, and at most.
const BUSY: Duration = Duration::from_micros(500);
const LONGEST: Duration = Duration::from_millis(4);

/// Returns the stream that has a handle, or none.
pub(super) fn stream_of(handle: u64) -> StreamId {
    // SAFETY: it is compared, or goes to the simulated library, which looks at what it gets.
    unsafe { StreamId::from_raw(handle) }
}

impl Gpu {
    /// A device of the simulated library, with all that work needs.
    pub(super) fn open(library: &Path, device: i32) -> Self {
        // SAFETY: it is a driver library.
        let builder = unsafe { CudaDriver::builder().library(library) };
        // SAFETY: the simulated library looks at what it gets.
        let driver = unsafe { builder.device(device.unsigned_abs()).open() }.expect("a device");
        let streams = [(); 2].map(|()| driver.create_stream().expect("a stream"));
        let gpu = Self { device, driver, streams };
        for stream in gpu.streams {
            gpu.driver.delay(stream, Duration::ZERO).expect("the kernels can be loaded");
        }
        gpu
    }
}

impl Calls {
    fn gpu(&self, number: usize) -> &'static Gpu {
        &self.environment.gpus[number]
    }

    /// Whether the library has forgotten nothing that it must remember: no call of the driver has failed.
    pub(super) fn is_sound(&self) -> bool {
        self.failing.is_none()
    }

    /// Queues a use of a live block on a stream that was recorded on it, or that it is going to be freed on.
    pub(super) fn use_block(&mut self, addr: u64, stream: *mut CUstream_st, kind: Stream) {
        let own = self.live[&addr].device;
        let handle = stream_of(stream.addr() as u64);
        let found = match kind {
            // Recorded on both devices; what is queued on the own one is no news.
            Stream::Default => self.environment.gpus.iter().position(|gpu| gpu.device != own),
            _ => self.environment.gpus.iter().position(|gpu| gpu.streams.contains(&handle)),
        };
        if let Some(number) = found {
            self.queue(addr, number, handle);
        }
    }

    /// The device that `use_block` uses a block of `own` on.
    pub(super) fn device_of_use(&self, own: i32, stream: *mut CUstream_st, kind: Stream) -> i32 {
        let handle = stream_of(stream.addr() as u64);
        let mut gpus = self.environment.gpus.iter();
        let found = match kind {
            Stream::Default => gpus.find(|gpu| gpu.device != own),
            _ => gpus.find(|gpu| gpu.streams.contains(&handle)),
        };
        found.map_or(own, |gpu| gpu.device)
    }

    /// Queues a use of a live block on a stream of the device with that number.
    pub(super) fn queue(&mut self, addr: u64, number: usize, stream: StreamId) {
        let block = self.live[&addr];
        let gpu = self.gpu(number);
        let foreign = gpu.device != block.device;
        let mut one = Use {
            event: None,
            foreign,
            shared: !foreign && stream_named(block.home.as_raw()) != stream_named(stream.as_raw()),
        };
        let words = self.words(addr, block.bytes);
        if self.is_sound() && self.events.len() < MOST_USES && !words.is_empty() {
            // Longer for each further use: who waits for one of them only is found out.
            let mut busy = BUSY;
            for (_, earlier) in self.uses.get(&addr).into_iter().flatten().filter_map(|earlier| earlier.event) {
                gpu.driver.stream_wait(stream, earlier).expect("streams can be ordered");
                busy = (2 * busy).min(LONGEST);
            }
            gpu.driver.delay(stream, busy).expect("work can be queued");
            for word in words {
                gpu.driver.verify(stream, DeviceAddr(word), 8, block.stamp).expect("work can be queued");
                gpu.driver.fill(stream, DeviceAddr(word), 8, block.stamp).expect("work can be queued");
            }
            let event = gpu.driver.event_create().expect("an event");
            gpu.driver.event_record(event, stream).expect("an event can be recorded");
            self.events.push((number, event));
            one.event = Some((number, event));
        }
        self.uses.entry(addr).or_default().push(one);
    }

    /// Notes that a block may have a foreign use without work: a call that was to record one met a driver that fails.
    pub(super) fn use_perhaps(&mut self, addr: u64) {
        self.uses.entry(addr).or_default().push(Use { event: None, foreign: true, shared: false });
    }

    fn is_over(&self, one: &Use) -> bool {
        one.event.is_none_or(|(number, event)| match self.gpu(number).driver.event_query(event) {
            Ok(over) => over,
            Err(error) => panic!("work on a block that was within reach: {error}"),
        })
    }

    /// Whether a live block has been used since it was allocated, or is about to be.
    pub(super) fn is_used(&self, addr: u64) -> bool {
        self.uses.contains_key(&addr)
    }

    /// Whether the uses of a live block are over, so that its bytes may be looked at.
    pub(super) fn is_quiet(&self, addr: u64) -> bool {
        self.uses.get(&addr).is_none_or(|uses| uses.iter().all(|one| self.is_over(one)))
    }

    /// A block is freed, through a door that knows of its foreign uses.
    pub(super) fn let_go(&mut self, addr: u64, block: Block) {
        let uses = self.uses.remove(&addr).unwrap_or_default();
        if uses.iter().any(|one| one.foreign) {
            let uses = uses.into_iter().filter(|one| one.foreign).collect();
            self.deferred.insert(addr, FreedBlock { block, uses });
        } else {
            let uses: Vec<Use> = uses.into_iter().filter(|one| one.shared).collect();
            if !uses.is_empty() {
                self.waiting.insert(addr, FreedBlock { block, uses });
            }
            self.freed.push(addr);
        }
    }

    /// New memory was handed out: no part of it waits for a deferred free, and its stream may write to it.
    pub(super) fn check_handed_out(&mut self, addr: u64, block: &Block) {
        let end = addr + block.bytes.max(1);
        while let Some((at, freed)) = self.deferred.range(..end).next_back() {
            if at + freed.block.bytes.max(1) <= addr {
                break;
            }
            let over = freed.uses.iter().all(|one| self.is_over(one));
            assert!(over, "{block:?} at {addr:#x} was handed out, and {freed:?} at {at:#x} is in use");
            let at = *at;
            self.deferred.remove(&at);
            self.freed.push(at);
        }
        self.waiting.retain(|at, freed| *at >= end || at + freed.block.bytes.max(1) <= addr);
        if let Some(gpu) = self.environment.gpus.iter().find(|gpu| gpu.device == block.device)
            && !self.events.is_empty()
        {
            gpu.driver.synchronize(block.home).expect("a stream that the request was made for");
        }
    }

    /// Bytes and number of those freed blocks that an allocator may still count as live: at least, and at most. To be asked
    /// for after its figures.
    pub(super) fn deferred_bounds(&self, of: impl Fn(&Block) -> bool) -> [(u64, u64); 2] {
        let mut bounds = [(0, 0); 2];
        for freed in self.deferred.values().filter(|freed| of(&freed.block)) {
            let sure = !freed.uses.iter().all(|one| self.is_over(one));
            for (bytes, number) in bounds.iter_mut().skip(usize::from(!sure)) {
                *bytes += freed.block.bytes;
                *number += 1;
            }
        }
        bounds
    }

    /// Addresses and bytes of freed blocks that must be waiting for streams of their own device: to be asked for after what is
    /// compared with it.
    pub(super) fn surely_waiting(&self, of: impl Fn(&Block) -> bool) -> Vec<(u64, u64)> {
        let waiting = self.waiting.iter().filter(|(_, freed)| of(&freed.block));
        waiting
            .filter(|(_, freed)| freed.uses.iter().any(|one| one.event.is_some() && !self.is_over(one)))
            .map(|(at, freed)| (*at, freed.block.bytes))
            .collect()
    }

    /// No free of a device is deferred any more, after a call that had to wait for the uses.
    pub(super) fn expect_settled(&mut self, device: i32) {
        let over: Vec<u64> =
            self.deferred.iter().filter(|(_, freed)| freed.block.device == device).map(|(at, _)| *at).collect();
        for addr in over {
            let freed = self.deferred.remove(&addr).expect("just seen");
            assert!(freed.uses.iter().all(|one| self.is_over(one)), "nobody has waited for the uses of {freed:?}");
            self.freed.push(addr);
        }
    }

    /// Waits for all uses, which found the bytes that they expected.
    pub(super) fn wait_for_uses(&self) {
        if self.events.is_empty() {
            return;
        }
        for gpu in &self.environment.gpus {
            for stream in gpu.streams.into_iter().chain([0, 1, 2].map(stream_of)) {
                gpu.driver.synchronize(stream).expect("a stream of a device that works");
            }
            let wrong = gpu.driver.take_mismatches();
            assert!(wrong.is_empty(), "memory was used by others too early: {wrong:#?}");
        }
    }

    /// Ends all uses.
    pub(super) fn end_uses(&mut self) {
        self.wait_for_uses();
        for (number, event) in std::mem::take(&mut self.events) {
            self.gpu(number).driver.event_destroy(event).expect("an event");
        }
        self.uses.clear();
        self.waiting.clear();
    }
}

/// Returns the first eight bytes of a pattern.
pub(super) fn word_of(stamp: u64) -> u64 {
    pattern_word(stamp, 0)
}
