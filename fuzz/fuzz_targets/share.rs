//! Memory for other processes: what owners, users and strangers do to one exporter, whose socket anybody of the user can reach.
//!
//! - S1  what was opened holds its bytes, whatever the owner does.
//! - S2  a handle opens its own block, or nothing.
//! - S4  no descriptor and no memory is left.
//!
//! A block that is closed while the importer's default stream is captured stays mapped until the capture has ended.
#![no_main]

use gapless::driver::{HostConfig, HostDriver, StreamDriver, WorkDriver};
use gapless::units::MIB;
use gapless::{Allocator, DeviceAddr, StreamId};
use gapless_share::{Exporter, FOLDER, HANDLE_BYTES, Handle, Importer, ShareError, SharedBlock};
use libfuzzer_sys::fuzz_target;
use rustix::fd::OwnedFd;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, send, socket_with,
};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Once};

const MAIN: StreamId = StreamId::DEFAULT;
const PAGE: u64 = 64 << 10;
const CAPACITY: u64 = 4 * MIB;
/// Most blocks, handles, opened blocks and connections at a time.
const MOST: usize = 8;

/// The last two of the numbers that a step may have. The others keep their meaning.
const BEGIN_CAPTURE: u8 = 254;
const END_CAPTURE: u8 = 255;

/// Where the token is in the bytes of a handle; the path of the socket follows, with its length before it.
const TOKEN: Range<usize> = 24..40;

/// A live block and the seed of its bytes.
#[derive(Clone, Copy)]
struct Block {
    addr: DeviceAddr,
    bytes: u64,
    seed: u64,
}

/// A handle, and the block that it is of.
struct Offered {
    bytes: [u8; HANDLE_BYTES],
    block: Block,
    is_live: bool,
}

struct World {
    allocator: Allocator<HostDriver>,
    exporter: Exporter<HostDriver>,
    target: Arc<HostDriver>,
    importer: Importer<HostDriver>,
    blocks: Vec<Block>,
    offered: Vec<Offered>,
    opened: Vec<(SharedBlock<HostDriver>, Block)>,
    strangers: Vec<OwnedFd>,
    seed: u64,
}

/// The rest of the input.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    fn bytes(&mut self, length: usize) -> &[u8] {
        self.0.split_off(..length.min(self.0.len())).unwrap_or_default()
    }

    fn index(&mut self, length: usize) -> Option<usize> {
        usize::from(self.byte()).checked_rem(length)
    }
}

fn device() -> Arc<HostDriver> {
    let config = HostConfig { capacity_bytes: CAPACITY, granularity: PAGE, ..HostConfig::default() };
    Arc::new(HostDriver::new(config).expect("a device"))
}

fn fill(driver: &HostDriver, addr: DeviceAddr, bytes: u64, seed: u64) {
    driver.fill(MAIN, addr, bytes, seed).expect("it is mapped");
    driver.synchronize(MAIN).expect("the device works");
}

fn expect_bytes(driver: &HostDriver, what: &str, addr: DeviceAddr, block: Block) {
    driver.verify(MAIN, addr, block.bytes, block.seed).expect("it is mapped");
    driver.synchronize(MAIN).expect("the device works");
    assert!(driver.take_mismatches().is_empty(), "{what}: the bytes have changed");
}

impl World {
    fn new() -> Self {
        let target = device();
        Self {
            allocator: Allocator::builder(device()).build().expect("an allocator"),
            exporter: Exporter::new(),
            importer: Importer::new(Arc::clone(&target)),
            target,
            blocks: Vec::new(),
            offered: Vec::new(),
            opened: Vec::new(),
            strangers: Vec::new(),
            seed: 0,
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let number = input.byte();
        match number % 12 {
            _ if number == BEGIN_CAPTURE => self.target.begin_capture(MAIN),
            _ if number == END_CAPTURE => self.target.end_capture(MAIN),
            0 | 1 => self.alloc(input),
            2 => self.free(input),
            3 => self.offer(input),
            4 | 5 => self.open(input),
            6 => {
                if let Some(index) = input.index(self.opened.len()) {
                    let (shared, block) = self.opened.swap_remove(index);
                    expect_bytes(&self.target, "S1", shared.addr(), block);
                    let mapped = self.target.usage().mappings;
                    drop(shared);
                    let stays = self.target.is_capturing(MAIN);
                    assert!(!stays || self.target.usage().mappings == mapped, "S1: unmapped during a capture");
                }
            }
            7 => self.open_forged(input),
            8 => self.meet(),
            9 | 10 => self.say(input),
            _ => {
                if let Some(index) = input.index(self.strangers.len()) {
                    drop(self.strangers.swap_remove(index));
                } else {
                    let _ = self.allocator.trim(0);
                }
            }
        }
    }

    fn alloc(&mut self, input: &mut Input<'_>) {
        let bytes = u64::from(input.byte()) * 4096 + u64::from(input.byte()) + 1;
        if self.blocks.len() >= MOST {
            return;
        }
        if let Ok(addr) = self.allocator.alloc(bytes, MAIN) {
            self.seed += 1;
            fill(self.allocator.driver(), addr, bytes, self.seed);
            self.blocks.push(Block { addr, bytes, seed: self.seed });
        }
    }

    fn free(&mut self, input: &mut Input<'_>) {
        let Some(index) = input.index(self.blocks.len()) else { return };
        let block = self.blocks.swap_remove(index);
        expect_bytes(self.allocator.driver(), "a live block", block.addr, block);
        self.allocator.free(block.addr).expect("it is live");
        self.offered.iter_mut().filter(|offered| offered.block.seed == block.seed).for_each(|it| it.is_live = false);
    }

    fn offer(&mut self, input: &mut Input<'_>) {
        let Some(index) = input.index(self.blocks.len()) else { return };
        let block = self.blocks[index];
        let bytes = self.exporter.export(&self.allocator, block.addr).expect("it is live").to_bytes();
        if self.offered.len() >= MOST {
            self.offered.remove(0);
        }
        self.offered.push(Offered { bytes, block, is_live: true });
    }

    fn open(&mut self, input: &mut Input<'_>) {
        let Some(index) = input.index(self.offered.len()) else { return };
        let Offered { bytes, block, is_live } = &self.offered[index];
        let is_open = self.opened.iter().any(|(_, opened)| opened.seed == block.seed);
        match self.importer.open(&Handle::from_bytes(bytes).expect("a handle")) {
            Ok(shared) => {
                assert!(*is_live || is_open, "S2: a block was opened that was freed");
                expect_bytes(&self.target, "S2", shared.addr(), *block);
                if self.opened.len() < MOST {
                    self.opened.push((shared, *block));
                }
            }
            Err(ShareError::Gone) => assert!(!is_live, "S2: a live block is gone"),
            Err(other) => panic!("a handle of its own was refused: {other}"),
        }
    }

    /// The token is what counts: with another one nothing is opened, with the same one only its own block.
    fn open_forged(&mut self, input: &mut Input<'_>) {
        let Some(index) = input.index(self.offered.len()) else { return };
        let (at, with) = (usize::from(input.byte()) % HANDLE_BYTES, input.byte());
        let Offered { mut bytes, block, .. } = self.offered[index];
        bytes[at] ^= with;
        if let Ok(handle) = Handle::from_bytes(&bytes)
            && let Ok(shared) = self.importer.open(&handle)
        {
            assert!(with == 0 || !TOKEN.contains(&at), "S2: a forged token opened {}", shared.addr());
            expect_bytes(&self.target, "S2", shared.addr(), block);
        }
    }

    /// A stranger connects to the socket, if there is one by now.
    fn meet(&mut self) {
        let Some(offered) = self.offered.first() else { return };
        let length = usize::from(offered.bytes[TOKEN.end]);
        let path = &offered.bytes[TOKEN.end + 1..][..length];
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let socket = socket.expect("a socket");
        let place = SocketAddrUnix::new(std::ffi::OsStr::from_bytes(path)).expect("a path");
        if self.strangers.len() < MOST && connect(&socket, &place).is_ok() {
            self.strangers.push(socket);
        }
    }

    /// A stranger says something, which may begin with the token of a block, and waits for the answer or the end.
    fn say(&mut self, input: &mut Input<'_>) {
        let Some(stranger) = input.index(self.strangers.len()) else { return };
        let (with_token, length) = (input.byte(), usize::from(input.byte()));
        let mut packet = Vec::new();
        if with_token % 2 == 1
            && let Some(offered) = self.offered.get(usize::from(with_token / 2) % MOST)
        {
            packet.extend_from_slice(&[1, 0]);
            packet.extend_from_slice(&offered.bytes[TOKEN]);
        } else {
            packet.extend_from_slice(input.bytes(length));
        }
        let stranger = &self.strangers[stranger];
        if packet.is_empty() || send(stranger, &packet, SendFlags::NOSIGNAL).is_err() {
            return;
        }
        // Descriptors that come with the answer are closed by the kernel, since nothing is there for them.
        let mut answer = [0; 1 << 14];
        let _ = recv(stranger, &mut answer[..], RecvFlags::empty());
    }

    fn end(mut self) {
        self.target.end_capture(MAIN);
        // Where nothing is opened or closed after a capture, what was closed in it is unmapped by this alone.
        self.importer.settle();
        for (shared, block) in self.opened.drain(..) {
            expect_bytes(&self.target, "S1", shared.addr(), block);
        }
        self.strangers.clear();
        for block in &self.blocks {
            expect_bytes(self.allocator.driver(), "a live block", block.addr, *block);
            self.allocator.free(block.addr).expect("it is live");
        }
        drop(self.exporter);
        self.allocator.check();
        let driver = Arc::clone(self.allocator.driver());
        self.allocator.close().expect("nothing is pinned any more");
        drop(self.importer);
        for device in [&driver, &self.target] {
            assert!(device.usage().is_empty(), "S4: left in the driver: {:?}", device.usage());
        }
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc").count()
}

fuzz_target!(|bytes: &[u8]| {
    static START: Once = Once::new();
    START.call_once(|| {
        let folder: PathBuf = std::env::temp_dir().join(format!("gapless-fuzz-{}", std::process::id()));
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var(FOLDER, folder) };
    });
    let before = descriptors();
    let mut world = World::new();
    let mut input = Input(bytes);
    for _ in 0..200 {
        if input.0.is_empty() {
            break;
        }
        world.step(&mut input);
    }
    world.end();
    assert_eq!(descriptors(), before, "S4: descriptors are left");
});
