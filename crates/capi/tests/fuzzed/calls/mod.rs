//! Any calls of the C interface, right and wrong, from bytes. Shared with the fuzz target `capi`.
//!
//! ```text
//!   record  call  handle  what  how  number(4)        (little-endian; every record means something)
//! ```
//!
//! Beside the library goes a book of what a caller knows: handles, live pointers and what was written there. After each
//! call: its status is one that it may answer, an out-parameter of a failed call is as it was, the figures of every
//! allocator are those of the book, and no allocation lies in another. On the simulated driver, memory is the program's
//! own, so the bytes are looked at as well, and at the end the driver must hold nothing of the allocators that were
//! destroyed. Any call of the simulated driver may fail once, wherever nothing has to be given back for good.
//!
//! Two devices, 0 and 2 of the simulated driver, have the process-wide allocators behind PyTorch's entry points, which outlive
//! an input: each ends with nothing live in them. Streams of either use blocks of both: see `work`. Device 1 has what
//! `gapless_create` makes. On a GPU there is device 0 alone, and no work.

use gapless_capi::*;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut, without_provenance, without_provenance_mut};

/// A call of the C interface. The macro's callers pass pointers that are null or valid for what the function does with
/// them, and texts that end with NUL.
macro_rules! c {
    ($function:ident($($argument:expr),* $(,)?)) => {{
        // SAFETY: the function's contract, kept by each use of this macro.
        #[allow(unused_unsafe, reason = "some of the functions are safe")]
        let answer = unsafe { $function($($argument),*) };
        answer
    }};
}

mod allocator;
mod asleep;
mod book;
mod budget;
mod call;
mod child;
mod device;
mod effect;
mod environment;
mod history;
mod kept;
mod object;
mod ranges;
mod recording;
mod restore;
mod torch;
mod work;

use book::{Block, Book, Pool};
use call::Call;
use environment::{Environment, OTHER};
use gapless::StreamId;
use gapless::driver::EventHandle;
use history::{Action, Shadow};
use kept::{Pinned, Registered};
use ranges::Range;
use recording::read_recording;
use restore::Kept;
use work::{FreedBlock, Gpu, Stream, Use, word_of};

/// Runs the calls that bytes stand for.
///
/// # Panics
/// When the library answers wrongly.
pub fn run_calls(bytes: &[u8]) {
    let mut calls = Calls::new(Environment::get());
    for record in bytes.chunks_exact(RECORD).take(MOST_CALLS) {
        let record = Record {
            call: Call::decode(record[0]),
            handle: record[1],
            what: record[2],
            how: record[3],
            number: u32::from_le_bytes([record[4], record[5], record[6], record[7]]),
        };
        if calls.shown {
            eprintln!("{record:?}");
        }
        calls.step(record);
    }
    calls.finish();
}

const RECORD: usize = 8;
/// The byte that stands for the calls on growable ranges.
#[allow(dead_code, reason = "for sequences that are mostly of these")]
pub const RANGE: u8 = Call::Range as u8;
const MOST_CALLS: usize = 64;
/// Allocators at a time.
const MOST_HANDLES: usize = 3;
/// Looks at what waits for other streams at the end, a tenth of a millisecond apart.
const MOST_WAITS: u32 = 20_000;
/// The value of out-parameters before a call.
const UNTOUCHED: usize = 0x5eed_5eed_5eed_5eed;

#[derive(Clone, Copy, Debug)]
struct Record {
    call: Call,
    handle: u8,
    what: u8,
    how: u8,
    number: u32,
}

struct Calls {
    environment: &'static Environment,
    books: Vec<Book>,
    /// All live allocations of the process, by address.
    live: BTreeMap<u64, Block>,
    freed: Vec<u64>,
    next_stamp: u64,
    recordings: usize,
    /// Users of PyTorch's pools, and the pools that are open.
    pools: BTreeMap<Pool, u32>,
    open: Vec<Pool>,
    /// Pools that may lend what they have free, and those of which a stream has used a block.
    lending: BTreeSet<Pool>,
    used_pools: BTreeSet<Pool>,
    /// States of pools to go back to, what was freed last at an address, and which pool each stamp was written in.
    saved: Vec<(Pool, Kept)>,
    former: BTreeMap<u64, Block>,
    stamps: BTreeMap<u64, Option<Pool>>,
    history: Shadow,
    forked: bool,
    /// Whether each call is printed.
    shown: bool,
    /// Uses of live blocks, the blocks whose free may be deferred, and all events behind uses.
    uses: BTreeMap<u64, Vec<Use>>,
    deferred: BTreeMap<u64, FreedBlock>,
    /// Freed blocks that other streams of their own device have used.
    waiting: BTreeMap<u64, FreedBlock>,
    events: Vec<(usize, EventHandle)>,
    events_before: u64,
    /// Memory that must stay where it is, by its address, and the listeners of devices.
    pinned: BTreeMap<u64, Pinned>,
    registered: BTreeMap<u64, Registered>,
    listeners: Vec<(i32, u64)>,
    /// Memory that grows and shrinks, by its address.
    ranges: BTreeMap<u64, Range>,
    /// Blocks that were allocated while something was asleep, and tags that this thread has pushed.
    fresh: Vec<u64>,
    tags: u32,
    torch: bool,
    /// The function of the driver that fails, once.
    failing: Option<&'static str>,
    /// Something has failed in this input.
    faulty: bool,
}

/// A pointer that is no handle and no device address.
static NOT_OURS: u64 = 0;

impl Calls {
    fn new(environment: &'static Environment) -> Self {
        Self {
            environment,
            books: Vec::new(),
            live: BTreeMap::new(),
            freed: Vec::new(),
            next_stamp: 1,
            recordings: 0,
            pools: BTreeMap::new(),
            open: Vec::new(),
            lending: BTreeSet::new(),
            used_pools: BTreeSet::new(),
            saved: Vec::new(),
            former: BTreeMap::new(),
            stamps: BTreeMap::new(),
            history: Shadow::default(),
            forked: false,
            shown: std::env::var_os("GAPLESS_FUZZ_SHOW").is_some(),
            uses: BTreeMap::new(),
            deferred: BTreeMap::new(),
            waiting: BTreeMap::new(),
            events: Vec::new(),
            events_before: environment.usage(0).map_or(0, |usage| usage[3]),
            pinned: BTreeMap::new(),
            registered: BTreeMap::new(),
            listeners: Vec::new(),
            ranges: BTreeMap::new(),
            fresh: Vec::new(),
            tags: 0,
            torch: false,
            failing: None,
            faulty: false,
        }
    }

    fn step(&mut self, record: Record) {
        if record.call == Call::Fail {
            self.failing = self.environment.fail(record);
            self.faulty = true;
            return;
        }
        // What cannot be destroyed stays, and is not counted here.
        if matches!(record.call, Call::Destroy | Call::TorchPool) {
            self.mend();
        }
        self.call(record);
        self.mend();
        self.check();
        self.check_kept();
        self.check_ranges();
        [0, OTHER].into_iter().for_each(|device| {
            self.check_held(device);
            self.check_effect(device);
        });
    }

    fn mend(&mut self) {
        if self.failing.take().is_some() {
            self.environment.mend();
        }
    }

    /// An allocator is going to be opened, which tries a mapping: what then cannot be unmapped stays for good.
    fn spare_opening(&mut self) {
        if matches!(self.failing, Some("cuMemUnmap" | "cuMemRelease")) {
            self.mend();
        }
    }

    fn call(&mut self, record: Record) {
        match record.call {
            Call::Alloc | Call::AllocAligned | Call::AllocAlignedOddly => self.alloc(record),
            Call::Free => self.free(record),
            Call::RecordStream => self.record_stream(record),
            Call::Trim => self.trim(record),
            Call::SetBudget => self.set_budget(record),
            Call::GetStats => self.get_stats(record),
            Call::Json => self.json(record),
            Call::Create => self.create(record),
            Call::Destroy => self.destroy(record),
            Call::Recording => self.recording(record),
            Call::TorchAlloc
            | Call::TorchFree
            | Call::TorchUse
            | Call::TorchBudget
            | Call::TorchReport
            | Call::DeviceAlloc
            | Call::DeviceAllocToo
            | Call::DeviceFree
            | Call::DeviceUse => self.torch(record),
            Call::TorchPool => self.torch_pool(record),
            Call::ObjectAlloc
            | Call::ObjectFree
            | Call::ObjectUse
            | Call::ObjectDescribe
            | Call::ObjectLists
            | Call::ObjectPool
            | Call::ObjectRestore
            | Call::ObjectAllocAgain
            | Call::ObjectTrim
            | Call::ObjectHistory
            | Call::ObjectProcess => self.object(record),
            Call::Pin
            | Call::Unpin
            | Call::AllocRegistered
            | Call::UseRegistered
            | Call::FreeRegistered
            | Call::Listen => self.kept(record),
            Call::Range => self.range(record),
            Call::Sleep => self.sleep(record),
            Call::Tag => self.tag(record),
            Call::Conf => self.conf(record),
            Call::Replay => self.replay(record),
            Call::Explain => self.explain(record),
            Call::Fail => unreachable!("`step` has dealt with it"),
        }
    }

    /// A handle, and the book of its allocator where it is a good one.
    fn handle(&mut self, record: Record) -> (*mut gapless_allocator, Option<usize>) {
        let bad = match record.handle {
            240..=243 => 0,
            244..=247 => (&raw const NOT_OURS).addr(),
            // Beside handles, and far beyond all that were given out.
            248..=250 => self.books.first().map_or(7, |book| book.handle + 1),
            251 => self.books.first().map_or(8, |book| book.handle + (16 << 20)),
            252..=255 => match self.books.iter().find(|book| !book.alive) {
                Some(book) => book.handle,
                None => usize::MAX,
            },
            232..=239 if self.books.iter().any(|book| book.lasting) => {
                let book = self.books.iter().position(|book| book.lasting).expect("just seen");
                return (without_provenance_mut(self.books[book].handle), Some(book));
            }
            _ => {
                if !self.books.iter().any(Book::is_owned) {
                    self.create(Record { call: Call::Create, handle: 0, what: 0, how: record.how, number: 0 });
                }
                let alive: Vec<usize> = (0..self.books.len()).filter(|book| self.books[*book].is_owned()).collect();
                // The first input of a process may find no room on a device of others.
                let Some(book) = alive.get(usize::from(record.handle) % alive.len().max(1)) else {
                    return (null_mut(), None);
                };
                return (without_provenance_mut(self.books[*book].handle), Some(*book));
            }
        };
        (without_provenance_mut(bad), None)
    }

    /// A stream, and what it is to a device.
    fn stream(&self, number: u8, device: i32) -> (*mut CUstream_st, Stream) {
        let created: Vec<(i32, StreamId)> =
            self.environment.gpus.iter().flat_map(|gpu| gpu.streams.map(|stream| (gpu.device, stream))).collect();
        let (handle, kind) = match number {
            248.. => ((&raw const NOT_OURS).addr(), Stream::Unknown),
            128.. if !created.is_empty() => {
                let (its, stream) = created[usize::from(number) % created.len()];
                (stream.as_raw() as usize, if its == device { Stream::Own } else { Stream::Foreign })
            }
            _ => (self.environment.streams[usize::from(number) % self.environment.streams.len()], Stream::Default),
        };
        (without_provenance_mut(handle), kind)
    }

    /// The device of an allocator.
    fn device_of(&self, book: Option<usize>) -> i32 {
        book.map_or(self.environment.device, |book| self.books[book].device)
    }

    fn bytes_of(record: Record) -> u64 {
        let number = u64::from(record.number);
        match record.what % 8 {
            0 => number % 4096,
            1 => number % (256 << 10),
            2 | 3 => number % (8 << 20),
            4 => (number % 24) << 21,
            5 => number,
            6 => number << 31,
            _ => u64::MAX - number,
        }
    }

    /// As [`expect`], for calls that need the driver.
    fn expect(&self, status: gapless_status, allowed: &[gapless_status], record: Record) {
        if !(self.failing.is_some() && OF_THE_DRIVER.contains(&status)) {
            expect(status, allowed, record);
        }
    }

    /// Checks what must be true of every live allocator.
    fn check(&self) {
        for (number, book) in self.books.iter().enumerate() {
            if !book.alive {
                continue;
            }
            if book.lasting {
                self.check_handle(number);
            }
            let stats = self.own_figures(number);
            let [least, most] = self.deferred_bounds(|block| block.owner == Some(number));
            let deferred = stats.live_allocations.wrapping_sub(book.live);
            let bytes = stats.live_bytes.wrapping_sub(book.live_bytes);
            assert!(
                (least.0..=most.0).contains(&bytes),
                "{bytes} bytes with a deferred free, not {least:?} to {most:?}: {book:?}, {stats:?}"
            );
            assert!(
                (least.1..=most.1).contains(&deferred),
                "{deferred} deferred frees, not {least:?} to {most:?}: {book:?}, {stats:?}"
            );
            let sums = (book.before.0 + book.allocs, book.before.1 + book.frees);
            assert_eq!((stats.allocs, stats.frees + deferred), sums, "{book:?}, {stats:?}");
            assert!(stats.live_bytes <= stats.reserved_bytes, "{stats:?}");
            assert!(stats.live_bytes <= stats.peak_live_bytes, "{stats:?}");
        }
    }

    /// Ends everything and looks at what is left.
    fn finish(mut self) {
        self.mend();
        self.pop_tags();
        self.let_all_move();
        self.close_ranges();
        self.check_history();
        c!(gapless_torch_record_history(0, 1));
        self.history = Shadow::default();
        while let Some((device, first)) = self.open.pop() {
            c!(gapless_torch_end_allocate_to_pool(device, gapless_torch_pool { first, second: 7 }));
        }
        for ((device, first), users) in std::mem::take(&mut self.pools) {
            for _ in 0..users {
                c!(gapless_torch_release_pool(device, gapless_torch_pool { first, second: 7 }));
            }
        }
        for number in 0..self.books.len() {
            let handle = without_provenance_mut(self.books[number].handle);
            let own: Vec<u64> =
                self.live.iter().filter(|(_, block)| block.owner == Some(number)).map(|(at, _)| *at).collect();
            if self.books[number].alive {
                for addr in own {
                    if self.books[number].lasting {
                        self.torch_free(addr, false);
                        continue;
                    }
                    self.verify(addr);
                    expect_ok(c!(gapless_free(handle, without_provenance_mut(addr as usize))));
                    self.forget(addr);
                }
                let book = &mut self.books[number];
                if book.lasting {
                    if book.recording.is_some() {
                        expect_ok(c!(gapless_record_stop(handle)));
                    }
                } else {
                    expect_ok(c!(gapless_destroy(handle)));
                    book.alive = false;
                }
                if let Some(path) = book.recording.take() {
                    read_recording(&path, self.next_stamp);
                }
            }
        }
        for addr in self.live.keys().copied().collect::<Vec<_>>() {
            self.torch_free(addr, false);
        }
        let lasting: Vec<usize> = (0..self.books.len()).filter(|book| self.books[*book].lasting).collect();
        for book in &self.books {
            if book.lasting && budget::was_set(book.device) {
                expect_ok(c!(gapless_torch_set_fraction(1.0, book.device)));
            }
        }
        // What waits for other streams is not free yet, and the simulated ones are threads of their own.
        for _ in 0..MOST_WAITS {
            c!(gapless_torch_reset());
            self.environment.gpus.iter().for_each(|gpu| self.expect_settled(gpu.device));
            if lasting.iter().all(|book| self.figures(*book).pending_bytes == 0) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_micros(100));
        }
        self.check();
        self.stop_listening();
        self.end_uses();
        self.check_driver();
    }

    /// Nothing of this input is left in the simulated driver. The process-wide allocator keeps its addresses.
    fn check_driver(&self) {
        for device in [0, OTHER] {
            let Some([chunks, mappings, _, events]) = self.environment.usage(device) else { continue };
            let text = || self.torch_text(device);
            assert_eq!(
                (chunks, mappings),
                self.environment.own_work,
                "chunks and mappings left on device {device}: {}",
                text()
            );
            assert!(self.torch || events == self.events_before, "{} events, then {events}", self.events_before);
        }
        if let Some([chunks, mappings, reservations, _]) = self.environment.usage(1) {
            let left = (chunks, mappings, reservations);
            assert_eq!(left, (0, 0, 0), "chunks, mappings and reservations left on device 1");
        }
    }
}

/// Statuses of a call that needs the driver, beside its own, while the driver fails.
const OF_THE_DRIVER: [gapless_status; 4] =
    [GAPLESS_ERROR_DRIVER, GAPLESS_ERROR_OUT_OF_MEMORY, GAPLESS_ERROR_NO_DEVICE, GAPLESS_ERROR_STREAM];

fn expect(status: gapless_status, allowed: &[gapless_status], record: Record) {
    assert!(allowed.contains(&status), "{record:?} answered {status}, not one of {allowed:?}: {}", error_text());
    if status != GAPLESS_OK {
        assert!(!error_text().is_empty(), "{record:?} answered {status} and no text");
        assert_eq!(gapless_last_error_status(), status, "{record:?}: {}", error_text());
    }
}

fn expect_ok(status: gapless_status) {
    assert_eq!(status, GAPLESS_OK, "{}", error_text());
}

/// The text of the last failure.
fn error_text() -> String {
    // SAFETY: a NUL-terminated text until the next failure on this thread.
    unsafe { CStr::from_ptr(gapless_last_error()) }.to_string_lossy().into_owned()
}
