//! Memory for other processes: what owners, users, strangers and liars do to each other. Owners and users are honest; a stranger
//! asks an exporter what it likes, a liar answers importers as it likes.
//!
//! - S1  what was opened holds its bytes, whatever others do.
//! - S2  a handle opens its own block, or nothing.
//! - S4  no descriptor, no memory and no mapping is left, of any side.
//! - After each step, a user is served in a bounded time.
//!
//! A block that is closed while the importer's default stream is captured stays mapped until the capture has ended.

mod input;
mod liar;
mod packets;
pub mod step;
mod stranger;

use gapless::driver::{HostConfig, HostDriver, StreamDriver, WorkDriver};
use gapless::units::MIB;
use gapless::{Allocator, DeviceAddr, StreamId};
use gapless_share::{Exporter, HANDLE_BYTES, Handle, Importer, ShareError, SharedBlock};
use input::Input;
use liar::Liar;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use step::{ALLOC, BELIEVE, CLOSE, FLOOD, FREE, LEAVE, MEET, OFFER, OPEN, OPEN_FORGED, SAY, STOP_BELIEVING};
use stranger::{Ended, Known, Stranger, flood};

const MAIN: StreamId = StreamId::DEFAULT;
const PAGE: u64 = 64 << 10;
const CAPACITY: u64 = 4 * MIB;
/// Most blocks, handles, opened blocks and connections at a time.
const MOST: usize = 8;
const MOST_STEPS: usize = 200;

/// The last two of the numbers that a step may have. The others keep their meaning.
pub const BEGIN_CAPTURE: u8 = 254;
pub const END_CAPTURE: u8 = 255;

/// Where the token is in the bytes of a handle; the path of the socket follows, with its length before it.
const TOKEN: Range<usize> = 24..40;
/// Where the device begins, with which a handle ends.
const DEVICE: usize = HANDLE_BYTES - 16;

/// How long a liar is waited for.
const LITTLE_TIME: Duration = Duration::from_millis(20);
/// How long anything takes that depends on nobody hostile, or waits for one as long as it may.
const LIMIT: Duration = Duration::from_secs(20);

/// How often something has happened, so that one knows that it does.
#[derive(Debug, Default)]
pub struct Reached {
    /// Opens of a live block by a user, and of one that is gone.
    pub opened: usize,
    pub gone: usize,
    /// Questions of strangers that were answered, and those that ended a connection.
    pub answered: usize,
    pub ended: usize,
    /// Blocks of the liar that were mapped, and lies that were found out.
    pub believed: usize,
    pub found_out: usize,
    /// What was not answered in time, or at all.
    pub given_up: usize,
    /// What the driver refused to import or to map.
    pub refused_by_driver: usize,
}

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

impl Offered {
    fn token(&self) -> &[u8] {
        &self.bytes[TOKEN]
    }

    /// The path of its socket.
    fn path(&self) -> &[u8] {
        &self.bytes[TOKEN.end + 1..][..usize::from(self.bytes[TOKEN.end])]
    }
}

/// A user: a device, and what is open on it.
struct User {
    target: Arc<HostDriver>,
    importer: Importer<HostDriver>,
    opened: Vec<(SharedBlock<HostDriver>, Block)>,
}

struct World {
    allocator: Allocator<HostDriver>,
    exporter: Exporter<HostDriver>,
    users: [User; 2],
    blocks: Vec<Block>,
    offered: Vec<Offered>,
    strangers: Vec<Stranger>,
    liar: Liar,
    /// The handle of what the liar offers, in its own name.
    lie: [u8; HANDLE_BYTES],
    /// Blocks of the liar that users have open.
    believed: Vec<SharedBlock<HostDriver>>,
    seed: u64,
    steps: usize,
    reached: Reached,
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

/// Tells the liar to stop.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// The same handle with another socket.
fn with_socket(mut handle: [u8; HANDLE_BYTES], path: &Path) -> [u8; HANDLE_BYTES] {
    let path = path.as_os_str().as_bytes();
    handle[TOKEN.end..DEVICE].fill(0);
    handle[TOKEN.end] = u8::try_from(path.len()).expect("a short path");
    handle[TOKEN.end + 1..][..path.len()].copy_from_slice(path);
    handle
}

impl World {
    /// `folder` is the one of the sockets.
    fn new(folder: &Path) -> Self {
        let allocator = Allocator::builder(device()).build().expect("an allocator");
        let place = folder.join("liar");
        let _ = std::fs::remove_file(&place);
        let mut lie = [3; HANDLE_BYTES];
        lie[..8].copy_from_slice(b"gapless2");
        lie[DEVICE..].fill(0);
        let user = || {
            let target = device();
            User { importer: Importer::new(Arc::clone(&target)), target, opened: Vec::new() }
        };
        Self {
            allocator,
            exporter: Exporter::new(),
            users: [user(), user()],
            blocks: Vec::new(),
            offered: Vec::new(),
            strangers: Vec::new(),
            liar: Liar::new(&place),
            lie: with_socket(lie, &place),
            believed: Vec::new(),
            seed: 0,
            steps: 0,
            reached: Reached::default(),
        }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let number = input.byte();
        self.steps += 1;
        match number % 16 {
            _ if number == BEGIN_CAPTURE => self.users[0].target.begin_capture(MAIN),
            _ if number == END_CAPTURE => self.users[0].target.end_capture(MAIN),
            ALLOC..FREE => self.alloc(input),
            FREE => self.free(input),
            OFFER => self.offer(input),
            OPEN..CLOSE => self.open(input),
            CLOSE => self.close(input),
            OPEN_FORGED => self.open_forged(input),
            MEET => self.meet(),
            SAY..LEAVE => self.say(input),
            LEAVE => {
                if let Some(index) = input.index(self.strangers.len()) {
                    drop(self.strangers.swap_remove(index));
                } else {
                    let _ = self.allocator.trim(0);
                }
            }
            FLOOD => self.flood(input),
            BELIEVE..STOP_BELIEVING => self.believe(input),
            _ => self.stop_believing(input),
        }
        self.look();
    }

    fn alloc(&mut self, input: &mut Input<'_>) {
        let bytes = u64::from(input.byte()) * 4096 + u64::from(input.byte()) + 1;
        if self.blocks.len() >= MOST {
            return;
        }
        if let Ok(addr) = self.allocator.alloc_raw(bytes, MAIN) {
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

    /// A user opens a block of the owner. The next byte says which of the users, and which block.
    fn open(&mut self, input: &mut Input<'_>) {
        let number = usize::from(input.byte());
        let Some(index) = number.checked_rem(self.offered.len()) else { return };
        let Offered { bytes, block, is_live } = &self.offered[index];
        let user = &mut self.users[number / 128];
        let is_open = user.opened.iter().any(|(_, opened)| opened.seed == block.seed);
        // Some have no time: the answer comes when nobody waits for it any more.
        let patience = if number % 16 == 15 { Duration::ZERO } else { LIMIT };
        match user.importer.open_within(&Handle::from_bytes(bytes).expect("a handle"), patience) {
            Err(ShareError::NoAnswer { .. }) if patience.is_zero() => self.reached.given_up += 1,
            Ok(shared) => {
                assert!(*is_live || is_open, "S2: a block was opened that was freed");
                expect_bytes(&user.target, "S2", shared.addr(), *block);
                self.reached.opened += 1;
                if user.opened.len() < MOST {
                    user.opened.push((shared, *block));
                }
            }
            Err(ShareError::Gone) => {
                assert!(!is_live, "S2: a live block is gone");
                self.reached.gone += 1;
            }
            Err(other) => panic!("a handle of its own was refused: {other}"),
        }
    }

    fn close(&mut self, input: &mut Input<'_>) {
        let number = usize::from(input.byte());
        let User { target, opened, .. } = &mut self.users[number / 128];
        let Some(index) = number.checked_rem(opened.len()) else { return };
        let (shared, block) = opened.swap_remove(index);
        expect_bytes(target, "S1", shared.addr(), block);
        let mapped = target.usage().mappings;
        drop(shared);
        let stays = target.is_capturing(MAIN);
        assert!(!stays || target.usage().mappings == mapped, "S1: unmapped during a capture");
    }

    /// The token is what counts: with another one nothing is opened, with the same one only its own block.
    fn open_forged(&mut self, input: &mut Input<'_>) {
        let Some(index) = input.index(self.offered.len()) else { return };
        let (at, with) = (usize::from(input.byte()) % HANDLE_BYTES, input.byte());
        let Offered { mut bytes, block, .. } = self.offered[index];
        bytes[at] ^= with;
        let User { target, importer, .. } = &self.users[0];
        if let Ok(handle) = Handle::from_bytes(&bytes)
            && let Ok(shared) = importer.open_within(&handle, LIMIT)
        {
            assert!(with == 0 || !TOKEN.contains(&at), "S2: a forged token opened {}", shared.addr());
            expect_bytes(target, "S2", shared.addr(), block);
        }
    }

    /// A stranger connects to the socket, if there is one by now.
    fn meet(&mut self) {
        let Some(offered) = self.offered.first() else { return };
        if self.strangers.len() < MOST {
            self.strangers.extend(Stranger::connect(offered.path()));
        }
    }

    fn say(&mut self, input: &mut Input<'_>) {
        let Some(index) = input.index(self.strangers.len()) else { return };
        let known: Vec<_> =
            self.offered.iter().map(|offered| Known { token: offered.token(), is_live: offered.is_live }).collect();
        match self.strangers[index].say(input, &known) {
            Ok(()) => self.reached.answered += 1,
            Err(Ended) => {
                self.strangers.swap_remove(index);
                self.reached.ended += 1;
            }
        }
    }

    fn flood(&mut self, input: &mut Input<'_>) {
        let known: Vec<_> =
            self.offered.iter().map(|offered| Known { token: offered.token(), is_live: offered.is_live }).collect();
        if let Some(offered) = self.offered.first() {
            flood(offered.path(), input, &known);
        }
    }

    /// Does something while the liar answers by the script.
    fn while_it_lies<T: Send>(liar: &mut Liar, script: &[u8], act: impl FnOnce() -> T) -> T {
        let (is_over, start) = (AtomicBool::new(false), Instant::now());
        let done = std::thread::scope(|scope| {
            // Also where `act` panics: the scope waits for the liar.
            let _over = Over(&is_over);
            scope.spawn(|| liar.answer(&mut Input(script), &is_over));
            act()
        });
        assert!(start.elapsed() < LIMIT, "a liar was waited for {:?}", start.elapsed());
        done
    }

    /// A user opens a block of the liar, which may have lent itself the name and the token of an honest one.
    fn believe(&mut self, input: &mut Input<'_>) {
        let (lent, user) = (input.byte(), &self.users[usize::from(input.byte() % 2)]);
        let length = input.byte() % 16;
        let script = input.bytes(length.into());
        let honest = self.offered.get(usize::from(lent) % 16).map(|offered| offered.bytes);
        let place =
            Path::new(std::ffi::OsStr::from_bytes(&self.lie[TOKEN.end + 1..][..usize::from(self.lie[TOKEN.end])]));
        let handle = honest.map_or(self.lie, |bytes| with_socket(bytes, place));
        let handle = Handle::from_bytes(&handle).expect("a handle");
        let opened = Self::while_it_lies(&mut self.liar, script, || user.importer.open_within(&handle, LITTLE_TIME));
        match opened {
            Ok(shared) => {
                self.reached.believed += 1;
                // It is mapped, whatever it is.
                if shared.bytes() > 0 {
                    fill(&user.target, shared.addr(), shared.bytes(), 1);
                }
                if self.believed.len() < MOST {
                    self.believed.push(shared);
                } else {
                    Self::while_it_lies(&mut self.liar, script, || drop(shared));
                }
            }
            Err(ShareError::Message(_)) => self.reached.found_out += 1,
            Err(ShareError::Driver(_)) => self.reached.refused_by_driver += 1,
            Err(ShareError::NoAnswer { .. } | ShareError::Busy) => self.reached.given_up += 1,
            Err(
                ShareError::Gone | ShareError::ExporterGone(_) | ShareError::FewDescriptors | ShareError::Refused(_),
            ) => {}
            Err(other) => panic!("a liar brought about {other:?}"),
        }
    }

    fn stop_believing(&mut self, input: &mut Input<'_>) {
        let Some(index) = input.index(self.believed.len()) else { return };
        let length = input.byte() % 4;
        let script = input.bytes(length.into());
        let shared = self.believed.swap_remove(index);
        Self::while_it_lies(&mut self.liar, script, || drop(shared));
    }

    /// What is open has its bytes, and a user is served.
    fn look(&self) {
        for User { target, opened, .. } in &self.users {
            for (shared, block) in opened {
                expect_bytes(target, "S1", shared.addr(), *block);
            }
        }
        let live: Vec<_> = self.offered.iter().filter(|offered| offered.is_live).collect();
        let Some(index) = self.steps.checked_rem(live.len()) else { return };
        let (start, User { target, importer, .. }) = (Instant::now(), &self.users[self.steps / 2 % 2]);
        let handle = Handle::from_bytes(&live[index].bytes).expect("a handle");
        let shared = importer.open_within(&handle, LIMIT).expect("a user is served");
        expect_bytes(target, "S2", shared.addr(), live[index].block);
        drop(shared);
        assert!(start.elapsed() < LIMIT, "a user was served after {:?}", start.elapsed());
    }

    fn end(mut self) -> Reached {
        self.users[0].target.end_capture(MAIN);
        for User { target, importer, opened } in &mut self.users {
            // Where nothing is opened or closed after a capture, what was closed in it is unmapped by this alone.
            Self::while_it_lies(&mut self.liar, &[], || importer.settle());
            for (shared, block) in opened.drain(..) {
                expect_bytes(target, "S1", shared.addr(), block);
            }
        }
        Self::while_it_lies(&mut self.liar, &[], || self.believed.clear());
        self.strangers.clear();
        for block in &self.blocks {
            expect_bytes(self.allocator.driver(), "a live block", block.addr, *block);
            self.allocator.free(block.addr).expect("it is live");
        }
        drop(self.exporter);
        self.allocator.check();
        let driver = Arc::clone(self.allocator.driver());
        self.allocator.close().expect("nothing is pinned any more");
        let targets = self.users.map(|user| user.target);
        for device in targets.iter().chain([&driver]) {
            assert!(device.usage().is_empty(), "S4: left in the driver: {:?}", device.usage());
        }
        self.liar.end();
        self.reached
    }
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc").count()
}

/// Runs the steps of an input. `folder` is the one of the sockets, and of nobody else meanwhile.
pub fn run_steps(bytes: &[u8], folder: &Path) -> Reached {
    let before = descriptors();
    let mut world = World::new(folder);
    let mut input = Input(bytes);
    for _ in 0..MOST_STEPS {
        if input.0.is_empty() {
            break;
        }
        world.step(&mut input);
    }
    let reached = world.end();
    assert_eq!(descriptors(), before, "S4: descriptors are left");
    reached
}
