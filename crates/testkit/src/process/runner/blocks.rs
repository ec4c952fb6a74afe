//! Operations on blocks.

use super::super::book::{Block, OfDevice, Place};
use super::super::device::Simulates;
use super::{Outcome, ProcessRunner};
use gapless::allocator::{AllocError, FreeError};
use gapless::driver::{DriverCall, EventHandle, StreamDriver, WorkDriver};
use gapless::units::{DeviceAddr, StreamId};
use gapless_process::{NO_POOL, Request, StreamLives};

impl<M: Simulates> ProcessRunner<M> {
    fn lives(&self) -> StreamLives {
        if self.devices.kept { StreamLives::AsLongAsTheProcess } else { StreamLives::Unknown }
    }

    pub(super) fn alloc(
        &mut self,
        device: usize,
        bytes: u64,
        stream: u8,
        place: Place,
        asked: gapless_process::Place,
    ) -> Outcome {
        let stream = self.stream_of(device, stream);
        let request = Request { lives: self.lives(), ..Request::new(bytes, stream) };
        let page = self.devices.page_bytes;
        let bytes = if self.devices.private && bytes >= page { bytes.next_multiple_of(page) } else { bytes };
        let promised = match self.devices.single_pages {
            true => self.books[device].promised_pages(self.device(device), place, page),
            false => 0,
        };
        let held = self.device(device).memory_use().reserved;
        match self.device(device).alloc_worded(asked, &request, |error| error) {
            Ok(addr) => {
                self.take_in(device, addr, bytes, stream, place);
                Outcome::Done
            }
            Err(error) => {
                let struck = self.struck();
                assert!(
                    self.device(device).memory_use().reserved <= held || struck,
                    "a failed call kept memory: {error}"
                );
                if matches!(error, AllocError::OutOfMemory(_) | AllocError::TooLarge { .. }) {
                    self.books[device].out_of_memory += 1;
                    self.summary.out_of_memory += 1;
                }
                match error {
                    AllocError::OutOfMemory(report) => {
                        let kept = bytes.max(1).div_ceil(page) > promised || struck;
                        assert!(kept, "{promised} pages were free for {bytes} bytes: {report}");
                        if struck { Outcome::Injected } else { Outcome::Done }
                    }
                    AllocError::TooLarge { region_bytes, .. } => {
                        assert!(bytes >= region_bytes.min(self.devices.bytes() / 2), "{error}");
                        Outcome::Done
                    }
                    other => {
                        if matches!(&other, AllocError::Driver(error) if error.call == DriverCall::Clear) {
                            self.books[device].note_allocated_and_freed(bytes);
                        }
                        self.outcome::<()>(Err(other.into()))
                    }
                }
            }
        }
    }

    fn take_in(&mut self, device: usize, addr: DeviceAddr, bytes: u64, stream: StreamId, place: Place) {
        let (pool, live) = self.device(device).live_around(addr).expect("a new allocation is live");
        assert_eq!((live.addr, live.bytes), (addr, bytes));
        match place {
            Place::Pool(expected) => assert_eq!(pool, expected, "a request of an open pool"),
            Place::Ending(ending) if pool == ending => {}
            Place::Main | Place::Ending(_) if pool == NO_POOL => {}
            Place::Main | Place::Ending(_) => self.summary.lent += 1,
        }
        self.summary.in_pools += u64::from(pool != NO_POOL);
        self.next_serial += 1;
        let serial = self.next_serial;
        let block = Block {
            addr,
            bytes,
            pool,
            own: vec![stream],
            foreign: Vec::new(),
            unsure: false,
            last_user: (device, stream),
            seed: serial,
            serial,
        };
        self.books[device].add(block, &self.drivers);
        let filled = self.drivers[device].inner().fill(stream, addr, bytes, serial);
        filled.expect("a live block can be written");
    }

    /// Queues work on a stream that uses a block, behind the last work on it.
    fn work(&mut self, device: usize, block: &Block, user: OfDevice) {
        let (last, last_stream) = block.last_user;
        let witness = self.drivers[user.0].inner();
        if last == user.0 {
            witness.order(last_stream, user.1).expect("streams can be ordered");
        } else {
            // Between devices the host waits.
            self.drivers[last].inner().synchronize(last_stream).expect("a stream can be waited for");
        }
        if user.0 == device {
            let seed = block.seed + (1 << 32);
            witness.fill(user.1, block.addr, block.bytes, seed).expect("a live block can be written");
            self.block(device, block.addr).seed = seed;
        } else {
            witness.use_elsewhere(user.1, block.addr, block.bytes.max(1)).expect("a stream can be delayed");
            self.summary.foreign_uses += 1;
        }
        self.block(device, block.addr).last_user = user;
    }

    fn block(&mut self, device: usize, addr: DeviceAddr) -> &mut Block {
        self.books[device].live.get_mut(&addr).expect("a live block")
    }

    /// Whether streams of a device can reach a block of another one.
    pub(super) fn reaches(&self, user: usize, device: usize) -> bool {
        user == device || self.device(user).reaches(self.device(device))
    }

    pub(super) fn record(&mut self, device: usize, block: Block, stream: u8) -> Outcome {
        let user = self.any_stream(device, stream);
        let recorded = self.process.record_stream(self.device(device), block.addr, user.1, self.lives());
        let outcome = self.outcome(recorded);
        if outcome == Outcome::Done {
            self.note_recorded(device, block.addr, user);
            if self.reaches(user.0, device) {
                self.work(device, &block, user);
            }
        } else {
            self.block(device, block.addr).unsure = true;
        }
        outcome
    }

    /// Notes that a stream was recorded. The handle of the default one stands for that of every device in use.
    fn note_recorded(&mut self, device: usize, addr: DeviceAddr, user: OfDevice) {
        let others: Vec<usize> =
            self.process.devices().map(|other| other.ordinal() as usize).filter(|other| *other != device).collect();
        let foreign: Vec<OfDevice> = match user {
            (_, StreamId::DEFAULT) => others.into_iter().map(|other| (other, StreamId::DEFAULT)).collect(),
            (its, _) if its != device => vec![user],
            _ => Vec::new(),
        };
        let block = self.block(device, addr);
        if user.0 == device {
            block.own.push(user.1);
        }
        block.foreign.extend(foreign);
    }

    /// The ends of what is queued on the streams of the other device that may use a block.
    fn ends(&self, block: &Block) -> Vec<(usize, EventHandle)> {
        let end = |(device, stream): &OfDevice| {
            let simulated = self.drivers[*device].inner().inner();
            let event = simulated.event_create().expect("the device can create events");
            simulated.event_record(event, *stream).expect("a stream of the device");
            (*device, event)
        };
        block.foreign.iter().map(end).collect()
    }

    pub(super) fn free(&mut self, device: usize, block: Block) -> Outcome {
        let (last, stream) = block.last_user;
        if last == device {
            let verified = self.drivers[device].inner().verify(stream, block.addr, block.bytes, block.seed);
            verified.expect("a live block can be read");
        }
        let ends = self.ends(&block);
        self.device(device).free(block.addr, block.bytes, block.own[0]).expect("a live block can be freed");
        self.note_free(device, &block, ends);
        Outcome::Done
    }

    pub(super) fn free_on(&mut self, device: usize, block: Block, stream: u8) -> Outcome {
        let user = self.any_stream(device, stream);
        if !self.reaches(user.0, device) {
            return Outcome::Done;
        }
        self.work(device, &block, user);
        let mut known = self.block(device, block.addr).clone();
        if user.0 != device {
            known.foreign.push(user);
        }
        let ends = self.ends(&known);
        let freed = self.process.free_on(self.device(device), block.addr, block.bytes, user.1);
        if self.outcome(freed) == Outcome::Injected {
            for (device, end) in ends {
                self.drivers[device].inner().inner().event_destroy(end).expect("an event of the device");
            }
            // The work went on: it ends before anything else is done with the block.
            self.drivers[user.0].inner().synchronize(user.1).expect("a stream can be waited for");
            let live = self.block(device, block.addr);
            (live.unsure, live.last_user) = (true, (device, block.own[0]));
            return Outcome::Injected;
        }
        self.note_free(device, &known, ends);
        Outcome::Done
    }

    fn note_free(&mut self, device: usize, block: &Block, ends: Vec<(usize, EventHandle)>) {
        let live = self.device(device).live_around(block.addr);
        let is_deferred = live.is_some_and(|(_, live)| live.addr == block.addr);
        let may_be = !ends.is_empty() || block.unsure;
        assert!(may_be || !is_deferred, "the free of {} is deferred for nobody", block.addr);
        self.summary.deferred_frees += u64::from(is_deferred);
        match self.device(device).free(block.addr, 0, StreamId::DEFAULT) {
            Err(FreeError::NotAllocated { .. }) => {}
            other => panic!("a free of what was freed: {other:?}"),
        }
        self.books[device].free(block, ends);
    }
}
