//! Two devices, threads, and no order but what `record_stream` gives: copies from device to device, frees while they run,
//! pools, streams that are destroyed. Every block has the bytes that were written to it last.

mod gpu;
#[path = "../../../tests/simulated/mod.rs"]
mod simulated;

use gapless_capi::*;
use gpu::{Gpu, with_devices};
use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const SIZES: [usize; 5] = [700, 40 * KIB, 300 * KIB, 2 * MIB, 5 * MIB];
const MAIN: *mut CUstream_st = null_mut();
/// Streams of each device that live as long as the process, the default one first.
const LASTING: usize = 3;
/// Blocks at a time, of each thread.
const MOST_BLOCKS: usize = 14;

/// A stream of one of the devices.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    device: usize,
    stream: *mut CUstream_st,
    /// Whether the stream is destroyed after its use.
    passing: bool,
}

struct Block {
    at: *mut c_void,
    bytes: usize,
    home: Place,
    /// The value of every byte, once the work is done.
    byte: u8,
    writer: Place,
    /// Those that read it since.
    readers: Vec<Place>,
}

struct Program {
    gpus: [Gpu; 2],
    streams: [Vec<*mut CUstream_st>; 2],
    blocks: Vec<Block>,
    passing: Vec<Place>,
    random: u64,
    pool: u64,
    open: Option<usize>,
    served: u64,
}

impl Program {
    fn new(seed: u64) -> Self {
        let gpus = [Gpu::open(0), Gpu::open(1)];
        let streams = [0, 1].map(|device: usize| {
            let mut streams = vec![MAIN];
            streams.extend((1..LASTING).map(|_| gpus[device].stream()));
            streams
        });
        let (blocks, passing) = (Vec::new(), Vec::new());
        let pool = seed << 32;
        Self { gpus, streams, blocks, passing, random: seed, pool, open: None, served: 0 }
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.random >> 33) % limit as u64) as usize
    }

    fn any_lasting(&mut self) -> Place {
        let device = self.below(2);
        let stream = self.below(LASTING);
        Place { device, stream: self.streams[device][stream], passing: false }
    }

    /// A lasting stream, or one that is destroyed behind its work.
    fn any(&mut self) -> Place {
        let lasting = self.any_lasting();
        if self.below(4) > 0 {
            return lasting;
        }
        let place = Place { stream: self.gpus[lasting.device].stream(), passing: true, ..lasting };
        self.passing.push(place);
        place
    }

    /// Makes later work at one place wait for that at another.
    fn order(&self, later: Place, earlier: Place) {
        if later != earlier {
            self.gpus[later.device].order_behind(later.stream, &self.gpus[earlier.device], earlier.stream);
        }
    }

    fn alloc(&mut self) {
        let home = self.any_lasting();
        // Few sizes, so that freed blocks are found again at once.
        let bytes = SIZES[self.below(SIZES.len())];
        self.alloc_at(home, bytes);
    }

    fn alloc_at(&mut self, home: Place, bytes: usize) {
        let mut at = null_mut();
        // SAFETY: the out-parameter is valid.
        let status = unsafe { gapless_device_alloc(home.device as i32, bytes as u64, home.stream, &raw mut at) };
        if status == GAPLESS_ERROR_OUT_OF_MEMORY {
            return self.free();
        }
        assert_eq!(status, GAPLESS_OK, "{}", error_text());
        self.served += 1;
        let byte = self.below(256) as u8;
        self.gpus[home.device].fill(home.stream, at, byte, bytes);
        self.blocks.push(Block { at, bytes, home, byte, writer: home, readers: Vec::new() });
    }

    /// Records a use away from home. Streams that are destroyed are recorded where nothing is promised about them.
    fn record(&self, block: usize, user: Place) {
        let block = &self.blocks[block];
        if user.passing {
            let status = gapless_device_record_stream(block.home.device as i32, block.at, user.stream);
            assert_eq!(status, GAPLESS_OK, "{}", error_text());
        } else if user != block.home {
            gapless_torch_record_stream(block.at, user.stream);
        }
    }

    /// Copies one block over another, on any stream of either device, or fills it there.
    fn write(&mut self) {
        let (to, from) = (self.below(self.blocks.len()), self.below(self.blocks.len()));
        let at = self.any();
        if self.below(2) == 0 {
            let milliseconds = self.below(6) as u64;
            self.gpus[at.device].delay(at.stream, milliseconds);
        }
        let before: Vec<Place> = self.blocks[to].readers.iter().copied().chain([self.blocks[to].writer]).collect();
        before.into_iter().for_each(|earlier| self.order(at, earlier));
        self.record(to, at);
        let gpu = &self.gpus[at.device];
        let whole = self.blocks[from].bytes >= self.blocks[to].bytes && from != to;
        if whole {
            self.order(at, self.blocks[from].writer);
            self.record(from, at);
            gpu.copy(at.stream, self.blocks[to].at, self.blocks[from].at, self.blocks[to].bytes);
            self.blocks[to].byte = self.blocks[from].byte;
            self.blocks[from].readers.push(at);
        } else {
            let byte = (self.random >> 40) as u8;
            gpu.fill(at.stream, self.blocks[to].at, byte, self.blocks[to].bytes);
            self.blocks[to].byte = byte;
        }
        self.blocks[to].writer = at;
        self.blocks[to].readers.clear();
        // The next owner comes before the work is done, on the same stream.
        if self.below(3) == 0 {
            let over = if whole && self.below(2) == 0 { from } else { to };
            let (home, bytes) = (self.blocks[over].home, self.blocks[over].bytes);
            self.free_one(over);
            self.alloc_at(home, bytes);
        }
    }

    fn check(&self, block: usize) {
        let block = &self.blocks[block];
        let gpu = &self.gpus[block.writer.device];
        let found = gpu.read(block.writer.stream, block.at, block.bytes);
        let wrong = found.iter().position(|byte| *byte != block.byte);
        assert_eq!(wrong, None, "{} bytes at {:?} of device {}", block.bytes, block.at, block.home.device);
    }

    /// Frees a block whose uses are not over.
    fn free(&mut self) {
        if self.blocks.is_empty() {
            return;
        }
        let block = self.below(self.blocks.len());
        if self.below(4) == 0 {
            self.check(block);
        }
        self.free_one(block);
    }

    fn free_one(&mut self, block: usize) {
        let block = self.blocks.swap_remove(block);
        let status = gapless_device_free(block.home.device as i32, block.at, block.bytes as u64);
        assert_eq!(status, GAPLESS_OK, "{}", error_text());
    }

    /// Destroys the streams that no block names as its writer or reader any more: their work may be running.
    fn destroy(&mut self) {
        let blocks = &self.blocks;
        let named = |place: &Place| blocks.iter().any(|block| block.writer == *place || block.readers.contains(place));
        let (kept, over): (Vec<Place>, Vec<Place>) = std::mem::take(&mut self.passing).into_iter().partition(named);
        self.passing = kept;
        over.into_iter().for_each(|place| self.gpus[place.device].destroy_stream(place.stream));
    }

    fn pool(&mut self) {
        let pool = |first| gapless_torch_pool { first, second: 9 };
        match self.open.take() {
            None => {
                self.pool += 1;
                let device = self.below(2);
                gapless_torch_begin_allocate_to_pool(device as i32, pool(self.pool), null_mut());
                self.open = Some(device);
            }
            Some(device) => {
                gapless_torch_end_allocate_to_pool(device as i32, pool(self.pool));
                gapless_torch_release_pool(device as i32, pool(self.pool));
            }
        }
    }

    fn run(&mut self, steps: usize) {
        for _ in 0..steps {
            match self.below(100) {
                0..30 if self.blocks.len() < MOST_BLOCKS => self.alloc(),
                0..65 if !self.blocks.is_empty() => self.write(),
                65..90 => self.free(),
                90..94 => self.destroy(),
                94..96 if !self.blocks.is_empty() => {
                    let block = self.below(self.blocks.len());
                    self.check(block);
                }
                96 => {
                    let device = self.below(2) as i32;
                    // SAFETY: null is allowed.
                    assert_eq!(unsafe { gapless_device_trim(device, 0, null_mut()) }, GAPLESS_OK, "{}", error_text());
                }
                97..100 => self.pool(),
                _ => {}
            }
        }
        (0..self.blocks.len()).for_each(|block| self.check(block));
        while !self.blocks.is_empty() {
            self.free();
        }
        if self.open.is_some() {
            self.pool();
        }
        self.destroy();
    }
}

fn error_text() -> String {
    // SAFETY: a NUL-terminated text until the next failure on this thread.
    unsafe { CStr::from_ptr(gapless_last_error()) }.to_string_lossy().into_owned()
}

/// The live bytes of a device, once all deferred frees have been carried out.
fn live_bytes(device: i32) -> u64 {
    // SAFETY: null is allowed.
    assert_eq!(unsafe { gapless_device_trim(device, 0, null_mut()) }, GAPLESS_OK, "{}", error_text());
    let mut handle = null_mut();
    // SAFETY: the out-parameter is valid.
    assert_eq!(unsafe { gapless_device_allocator(device, &raw mut handle) }, GAPLESS_OK);
    let mut stats = gapless_stats::default();
    // SAFETY: a valid struct of the size it says.
    assert_eq!(unsafe { gapless_get_stats(handle, &raw mut stats) }, GAPLESS_OK);
    stats.figures.live_bytes
}

fn stress(threads: u64, steps: usize) {
    let first: u64 = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    // A device reaches the memory of others from its own first use on.
    for device in [0, 1] {
        assert_eq!(live_bytes(device), 0);
    }
    let runners: Vec<_> = (first..first + threads)
        .map(|seed| {
            std::thread::spawn(move || {
                let mut program = Program::new(seed);
                program.run(steps);
                program.served
            })
        })
        .collect();
    let served: u64 = runners.into_iter().map(|runner| runner.join().expect("a runner")).sum();
    assert!(served > steps as u64 / 10, "{served} requests were served: too few to say anything");
    for gpu in [Gpu::open(0), Gpu::open(1)] {
        gpu.wait_for_all();
    }
    assert_eq!((live_bytes(0), live_bytes(1)), (0, 0));
}

fn silent(text: Option<String>) {
    assert!(text.as_ref().is_none_or(|text| !text.contains("gapless:")), "{text:?}");
}

const SETTINGS: [(&str, &str); 1] = [("GAPLESS_SIM_CAPACITY", "48MiB")];

#[test]
fn one_program() {
    silent(with_devices("one_program", &SETTINGS, || stress(1, 1500)));
}

#[test]
fn three_threads() {
    silent(with_devices("three_threads", &SETTINGS, || stress(3, 500)));
}
