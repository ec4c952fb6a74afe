//! Imports that are closed while streams are being captured into graphs: random programs of one exporter and one importer. A wait
//! for the device would break a capture, so none is made while the importer can know of one; what was closed goes when it has
//! ended.

use gapless::Allocator;
use gapless::driver::{DriverCall, FaultDriver, HostConfig, HostDriver, StreamDriver, WorkDriver};
use gapless::units::{DeviceAddr, StreamId};
use gapless_share::{Exporter, FOLDER, Handle, Importer, SharedBlock};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const PAGE: u64 = 64 << 10;
const CAPACITY: u64 = 64 * PAGE;
const MAIN: StreamId = StreamId::DEFAULT;
/// Most blocks that are exported, and most that are open.
const MOST: usize = 6;
const PROGRAMS: u64 = 60;
const STEPS: u64 = 80;

type Device = FaultDriver<HostDriver>;

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

fn device() -> Arc<Device> {
    let config = HostConfig { capacity_bytes: CAPACITY, granularity: PAGE, ..HostConfig::default() };
    Arc::new(FaultDriver::new(HostDriver::new(config).unwrap()))
}

fn fill(driver: &Device, addr: DeviceAddr, bytes: u64, seed: u64) {
    driver.fill(MAIN, addr, bytes, seed).unwrap();
    driver.synchronize(MAIN).unwrap();
}

/// A block of the exporter, with the seed of its bytes.
#[derive(Clone)]
struct Exported {
    addr: DeviceAddr,
    bytes: u64,
    seed: u64,
    handle: Handle,
}

struct World {
    allocator: Allocator<Device>,
    exporter: Exporter<Device>,
    target: Arc<Device>,
    importer: Importer<Device>,
    /// What the importer is told beside what the device says of the default stream.
    told: Arc<AtomicBool>,
    exported: Vec<Exported>,
    opened: Vec<(SharedBlock<Device>, Exported)>,
    /// Most bytes of closed blocks that stay mapped.
    kept: u64,
    /// Number of blocks that were closed during a capture.
    closed_in_captures: u64,
}

impl World {
    fn new() -> Self {
        let (target, told) = (device(), Arc::new(AtomicBool::new(false)));
        let (of_target, of_told) = (Arc::clone(&target), Arc::clone(&told));
        let importer = Importer::with_captures(Arc::clone(&target), move || {
            of_target.is_capturing(MAIN) || of_told.load(Ordering::Relaxed)
        });
        Self {
            allocator: Allocator::builder(device()).build().unwrap(),
            exporter: Exporter::new(),
            target,
            importer,
            told,
            exported: Vec::new(),
            opened: Vec::new(),
            kept: 0,
            closed_in_captures: 0,
        }
    }

    fn is_capturing(&self) -> bool {
        self.target.is_capturing(MAIN) || self.told.load(Ordering::Relaxed)
    }

    fn step(&mut self, random: &mut Random) {
        let waits = self.target.passed()[DriverCall::Synchronize];
        let capturing = self.is_capturing();
        match random.below(12) {
            0 | 1 => self.export(random),
            2 if !self.exported.is_empty() => {
                let block = self.exported.swap_remove(random.below(self.exported.len()));
                self.allocator.free(block.addr).unwrap();
            }
            3 | 4 if !self.exported.is_empty() && self.opened.len() < MOST => {
                let block = self.exported[random.below(self.exported.len())].clone();
                let shared = self.importer.open(&block.handle).expect("the block is live");
                self.opened.push((shared, block));
            }
            5 | 6 if !self.opened.is_empty() => {
                let (shared, block) = self.opened.swap_remove(random.below(self.opened.len()));
                self.expect_bytes(&shared, &block);
                let before = self.target.inner().usage().mappings;
                drop(shared);
                if capturing {
                    assert_eq!(self.target.inner().usage().mappings, before, "it was unmapped during a capture");
                    self.closed_in_captures += 1;
                }
            }
            7 => self.target.inner().begin_capture(MAIN),
            8 => self.target.inner().end_capture(MAIN),
            9 => self.told.store(random.below(2) == 0, Ordering::Relaxed),
            10 => {
                self.kept = random.below(4) as u64 * PAGE;
                self.importer.keep_closed(self.kept);
            }
            _ => self.settle(),
        }
        if capturing && self.is_capturing() {
            let now = self.target.passed()[DriverCall::Synchronize];
            assert_eq!(now, waits, "the device was waited for during a capture");
        }
    }

    fn export(&mut self, random: &mut Random) {
        if self.exported.len() >= MOST {
            return;
        }
        let (bytes, seed) = (1 + random.below(3 * PAGE as usize) as u64, random.0);
        if let Ok(addr) = self.allocator.alloc_raw(bytes, MAIN) {
            fill(self.allocator.driver(), addr, bytes, seed);
            let handle = self.exporter.export(&self.allocator, addr).unwrap();
            self.exported.push(Exported { addr, bytes, seed, handle });
        }
    }

    /// Outside captures, what is not open is unmapped, but for what may stay.
    fn settle(&mut self) {
        self.importer.settle();
        if !self.is_capturing() {
            let mut open: Vec<(DeviceAddr, u64)> =
                self.opened.iter().map(|(shared, _)| (shared.addr(), shared.mapped_bytes())).collect();
            open.sort_unstable();
            open.dedup_by_key(|(addr, _)| *addr);
            let most = open.iter().map(|(_, bytes)| bytes).sum::<u64>() + self.kept;
            let mapped = self.target.inner().usage().mappings as u64 * PAGE;
            assert!(mapped <= most.max(self.kept), "{mapped} bytes are mapped, {most} at most are open or kept");
        }
    }

    fn expect_bytes(&self, shared: &SharedBlock<Device>, block: &Exported) {
        // A check on the default stream would be part of its capture.
        if !self.target.is_capturing(MAIN) {
            self.target.verify(MAIN, shared.addr(), block.bytes, block.seed).unwrap();
            self.target.synchronize(MAIN).unwrap();
            assert!(self.target.take_mismatches().is_empty(), "the bytes of an open block have changed");
        }
    }

    fn end(mut self) -> u64 {
        self.target.inner().end_capture(MAIN);
        self.told.store(false, Ordering::Relaxed);
        for (shared, block) in std::mem::take(&mut self.opened) {
            self.expect_bytes(&shared, &block);
        }
        self.importer.keep_closed(0);
        self.kept = 0;
        self.settle();
        assert!(self.target.inner().usage().is_empty(), "left in the driver: {:?}", self.target.inner().usage());
        for block in self.exported.drain(..) {
            self.allocator.free(block.addr).unwrap();
        }
        drop(self.exporter);
        self.allocator.check();
        self.allocator.close().expect("nothing is pinned any more");
        self.closed_in_captures
    }
}

#[test]
fn imports_are_closed_around_captures() {
    let folder = tempfile::tempdir().unwrap();
    // SAFETY: no other thread of this process reads the environment now.
    unsafe { std::env::set_var(FOLDER, folder.path().join("sockets")) };
    let mut closed = 0;
    for program in 0..PROGRAMS {
        println!("program {program}");
        let (mut world, mut random) = (World::new(), Random(program));
        for _ in 0..STEPS {
            world.step(&mut random);
        }
        closed += world.end();
    }
    assert!(closed > PROGRAMS, "{closed} imports were closed during captures");
}
