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
//! destroyed.
//!
//! Device 0 has the process-wide allocator behind PyTorch's entry points, which outlives an input: each ends with nothing
//! live in it. Device 1, where there are two, has what `gapless_create` makes.

use gapless_capi::*;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::{null, null_mut, without_provenance_mut};
use std::sync::OnceLock;

/// Runs the calls that bytes stand for.
///
/// # Panics
/// When the library answers wrongly.
pub fn run_calls(bytes: &[u8]) {
    let mut calls = Calls::new(Environment::get());
    let shown = std::env::var_os("GAPLESS_FUZZ_SHOW").is_some();
    for record in bytes.chunks_exact(RECORD).take(MOST_CALLS) {
        let record = Record {
            call: record[0],
            handle: record[1],
            what: record[2],
            how: record[3],
            number: u32::from_le_bytes([record[4], record[5], record[6], record[7]]),
        };
        if shown {
            eprintln!("{} {record:?}", record.call % 20);
        }
        calls.call(record);
        calls.check();
    }
    calls.finish();
}

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

const RECORD: usize = 8;
const MOST_CALLS: usize = 64;
/// Allocators at a time.
const MOST_HANDLES: usize = 3;
/// Looks at what waits for other streams at the end, a tenth of a millisecond apart.
const MOST_WAITS: u32 = 20_000;
/// What out-parameters hold before a call.
const UNTOUCHED: usize = 0x5eed_5eed_5eed_5eed;

#[derive(Clone, Copy, Debug)]
struct Record {
    call: u8,
    handle: u8,
    what: u8,
    how: u8,
    number: u32,
}

type Usage = unsafe extern "C" fn(device: c_int, counts: *mut [u64; 4]) -> u32;

/// What all inputs share: the driver, streams, a folder.
struct Environment {
    /// The driver library; none for the installed one.
    library: Option<CString>,
    usage: Option<Usage>,
    /// The device that `gapless_create` gets.
    device: i32,
    streams: Vec<usize>,
    folder: PathBuf,
}

impl Environment {
    fn get() -> &'static Self {
        static ENVIRONMENT: OnceLock<Environment> = OnceLock::new();
        ENVIRONMENT.get_or_init(|| {
            let real = std::env::var_os("GAPLESS_FUZZ_DRIVER").is_some_and(|driver| driver == "cuda");
            Self::open(if real { None } else { Some(simulated()) })
        })
    }

    fn open(simulated: Option<PathBuf>) -> Self {
        if simulated.is_some() {
            for (name, value) in [("GAPLESS_SIM_CAPACITY", "64MiB"), ("GAPLESS_SIM_DEVICES", "2"), ("GAPLESS_CONF", "")]
            {
                // SAFETY: whatever else this process does at the same time reads the environment through std, if at all,
                // which locks it.
                unsafe { std::env::set_var(name, value) };
            }
        }
        let library = simulated.as_ref().map(|path| CString::new(path.to_str().expect("UTF-8")).expect("a path"));
        // By its own name from then on: `libcuda.so.1`, which the process-wide allocators ask for.
        let name = library.as_deref().unwrap_or(c"libcuda.so.1");
        // SAFETY: a NUL-terminated name of a driver library.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        assert!(!handle.is_null(), "{} cannot be loaded", name.to_string_lossy());
        // SAFETY: a handle of dlopen and a NUL-terminated name.
        let usage = unsafe { libc::dlsym(handle, c"gapless_sim_usage".as_ptr()) };
        let usage = if usage.is_null() {
            None
        } else {
            // SAFETY: the simulated library's function of that name has this type.
            Some(unsafe { std::mem::transmute::<*mut c_void, Usage>(usage) })
        };
        let folder = std::env::temp_dir().join(format!("gapless-calls-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        std::fs::write(folder.join("trace"), "a 1 4096 0\nm step\na 2 9999999 1\nf 1\n").expect("a temporary file");
        if usage.is_none() {
            // Keeps the GPU's context alive from one input to the next.
            let mut handle: *mut gapless_allocator = null_mut();
            expect_ok(c!(gapless_device_allocator(0, &raw mut handle)));
        }
        // Null, and the driver's other names of a thread's default streams.
        let streams = vec![0, 2, 1];
        Self { device: i32::from(usage.is_some()), library, usage, streams, folder }
    }

    /// Chunks, mappings, reservations of a device, and all events.
    fn usage(&self, device: c_int) -> Option<[u64; 4]> {
        let mut counts = [0; 4];
        // SAFETY: the out-parameter is valid.
        let code = unsafe { self.usage?(device, &raw mut counts) };
        // Before its first use the simulated driver answers that it is not initialised.
        Some(if code == 0 { counts } else { [0; 4] })
    }
}

/// The simulated driver library: where `GAPLESS_SIM_LIBCUDA` says, beside the program, or where cargo builds it.
fn simulated() -> PathBuf {
    const NAME: &str = "libgapless_sim_libcuda.so";
    if let Some(path) = std::env::var_os("GAPLESS_SIM_LIBCUDA") {
        return path.into();
    }
    let program = std::env::current_exe().expect("a path of the program");
    let folder = program.parent().expect("a folder of the program");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in a folder");
    let places = [folder.join(NAME), root.join("target/debug").join(NAME)];
    let found = places.iter().find(|path| path.exists());
    found.unwrap_or_else(|| panic!("{NAME} is missing: cargo build -p gapless-sim-libcuda")).clone()
}

/// A live allocation.
#[derive(Clone, Copy, Debug)]
struct Block {
    bytes: u64,
    stamp: u64,
    /// Of which book; none for PyTorch's pools.
    owner: Option<usize>,
    pool: Option<u64>,
}

/// What a caller knows of one allocator.
#[derive(Debug, Default)]
struct Book {
    handle: usize,
    alive: bool,
    /// The process-wide one of device 0: `gapless_destroy` refuses it.
    lasting: bool,
    recording: Option<PathBuf>,
    live_bytes: u64,
    live: u64,
    allocs: u64,
    frees: u64,
    /// Of a process-wide allocator: figures from before this input.
    before: (u64, u64),
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
    pools: BTreeMap<u64, u32>,
    open: Vec<u64>,
    events_before: u64,
    torch: bool,
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
            events_before: environment.usage(0).map_or(0, |usage| usage[3]),
            torch: false,
        }
    }

    fn call(&mut self, record: Record) {
        match record.call % 20 {
            0..=3 => self.alloc(record),
            4..=6 => self.free(record),
            7 => self.record_stream(record),
            8 => self.trim(record),
            9 => self.set_budget(record),
            10 => self.get_stats(record),
            11 => self.json(record),
            12 => self.create(record),
            13 => self.destroy(record),
            14 => self.recording(record),
            15 | 16 => self.torch(record),
            17 => self.torch_pool(record),
            18 => self.conf(record),
            _ => self.replay(record),
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
                    self.create(Record { call: 0, handle: 0, what: 0, how: record.how, number: 0 });
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

    /// A stream, and whether it is one.
    fn stream(&self, number: u8) -> (*mut CUstream_st, bool) {
        if number >= 248 {
            return (without_provenance_mut((&raw const NOT_OURS).addr()), false);
        }
        let stream = self.environment.streams[usize::from(number) % self.environment.streams.len()];
        (without_provenance_mut(stream), true)
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

    fn alloc(&mut self, record: Record) {
        let (handle, book) = self.handle(record);
        let (stream, known) = self.stream(record.how);
        let bytes = Self::bytes_of(record);
        let mut pointer: *mut c_void = without_provenance_mut(UNTOUCHED);
        let out = if record.how == 247 { null_mut() } else { &raw mut pointer };
        let alignment = match record.call % 20 {
            2 => 1 << (record.number % 41),
            3 => u64::from(record.number) << (record.what % 33),
            _ => 512,
        };
        let status = match record.call % 20 {
            0 | 1 => c!(gapless_alloc(handle, bytes, stream, out)),
            _ => c!(gapless_alloc_aligned(handle, bytes, alignment, stream, out)),
        };
        let allowed: &[gapless_status] = match book {
            _ if out.is_null() => &[GAPLESS_ERROR_INVALID_ARGUMENT],
            None => &[GAPLESS_ERROR_INVALID_HANDLE],
            Some(_) if !alignment.is_power_of_two() => &[GAPLESS_ERROR_INVALID_ARGUMENT],
            // Which of several mistakes is told first does not matter.
            Some(_) if !known => &[GAPLESS_ERROR_STREAM, GAPLESS_ERROR_TOO_LARGE, GAPLESS_ERROR_OUT_OF_MEMORY],
            Some(_) => &[GAPLESS_OK, GAPLESS_ERROR_OUT_OF_MEMORY, GAPLESS_ERROR_TOO_LARGE],
        };
        expect(status, allowed, record);
        if status == GAPLESS_ERROR_TOO_LARGE {
            assert!(bytes > 64 << 20 || alignment > 1 << 20, "{bytes} bytes at {alignment} are not much: {}", told());
        }
        if status != GAPLESS_OK {
            assert_eq!(pointer.addr(), UNTOUCHED, "{record:?} failed and wrote: {}", told());
            return;
        }
        assert!((pointer.addr() as u64).is_multiple_of(alignment.max(512)), "{pointer:p} is not at {alignment}");
        let book = book.expect("served by a good handle");
        self.take_in(pointer, Block { bytes, stamp: 0, owner: Some(book), pool: None });
    }

    /// Notes a block: it overlaps no other, and takes its bytes.
    fn take_in(&mut self, pointer: *mut c_void, mut block: Block) {
        let addr = pointer.addr() as u64;
        let end = addr + block.bytes.max(1);
        if let Some((other, before)) = self.live.range(..end).next_back() {
            assert!(other + before.bytes.max(1) <= addr, "{block:?} at {addr:#x} lies in {before:?} at {other:#x}");
        }
        self.next_stamp += 1;
        block.stamp = self.next_stamp;
        for word in self.words(addr, block.bytes) {
            // SAFETY: inside a live block of the simulated driver, which is memory of this process; nothing runs there.
            unsafe { std::ptr::with_exposed_provenance_mut::<u64>(word as usize).write_unaligned(block.stamp) };
        }
        self.live.insert(addr, block);
        if let Some(book) = block.owner.map(|owner| &mut self.books[owner]) {
            book.live_bytes += block.bytes;
            book.live += 1;
            book.allocs += 1;
        }
    }

    /// Words of a block that are looked at: the first and the last; none on a GPU.
    fn words(&self, addr: u64, bytes: u64) -> Vec<u64> {
        if self.environment.usage.is_none() || bytes < 16 { Vec::new() } else { vec![addr, addr + bytes - 8] }
    }

    /// Looks at a block's bytes before it is freed.
    fn verify(&self, addr: u64) {
        let block = self.live[&addr];
        for word in self.words(addr, block.bytes) {
            // SAFETY: as in `take_in`.
            let found = unsafe { std::ptr::with_exposed_provenance::<u64>(word as usize).read_unaligned() };
            assert_eq!(found, block.stamp, "{block:?} at {addr:#x} changed at {word:#x}");
        }
    }

    fn forget(&mut self, addr: u64) {
        let block = self.live.remove(&addr).expect("a live block");
        self.freed.push(addr);
        if let Some(book) = block.owner.map(|owner| &mut self.books[owner]) {
            book.live_bytes -= block.bytes;
            book.live -= 1;
            book.frees += 1;
        }
    }

    /// A pointer for a call on `book`'s allocator, and whether a live allocation of it starts there.
    fn pointer(&self, record: Record, book: Option<usize>) -> (u64, bool) {
        let number = record.number as usize;
        let own: Vec<u64> = self
            .live
            .iter()
            .filter(|(_, block)| block.owner.is_some() && block.owner == book)
            .map(|(at, _)| *at)
            .collect();
        let other = self.live.iter().find(|(_, block)| block.owner != book).map(|(at, _)| *at);
        let addr = match record.what {
            0..=159 => own.get(number % own.len().max(1)).copied(),
            160..=179 => self.freed.get(number % self.freed.len().max(1)).copied(),
            180..=199 => own.get(number % own.len().max(1)).map(|at| at + 1 + u64::from(record.how)),
            200..=219 => other,
            220..=239 => Some((&raw const NOT_OURS).addr() as u64),
            _ => Some(u64::from(record.number) << (record.how % 33)),
        };
        let addr = addr.unwrap_or(0x1000);
        (addr, own.contains(&addr))
    }

    fn free(&mut self, record: Record) {
        let (handle, book) = self.handle(record);
        let (addr, live) = self.pointer(record, book);
        if live {
            self.verify(addr);
        }
        let status = c!(gapless_free(handle, without_provenance_mut(addr as usize)));
        let allowed = match book {
            None => GAPLESS_ERROR_INVALID_HANDLE,
            Some(_) if live || addr == 0 => GAPLESS_OK,
            Some(_) => GAPLESS_ERROR_NOT_ALLOCATED,
        };
        expect(status, &[allowed], record);
        if live {
            self.forget(addr);
        }
    }

    fn record_stream(&mut self, record: Record) {
        let (handle, book) = self.handle(record);
        let (addr, live) = self.pointer(record, book);
        let (stream, known) = self.stream(record.how);
        let status = c!(gapless_record_stream(handle, without_provenance_mut(addr as usize), stream));
        let allowed: &[gapless_status] = match (book, live, known) {
            (None, ..) => &[GAPLESS_ERROR_INVALID_HANDLE],
            (_, true, true) => &[GAPLESS_OK],
            (_, true, false) => &[GAPLESS_ERROR_STREAM],
            (_, false, true) => &[GAPLESS_ERROR_NOT_ALLOCATED],
            (_, false, false) => &[GAPLESS_ERROR_NOT_ALLOCATED, GAPLESS_ERROR_STREAM],
        };
        expect(status, allowed, record);
    }

    fn trim(&mut self, record: Record) {
        let (handle, book) = self.handle(record);
        let mut released = UNTOUCHED as u64;
        let out = if record.how < 64 { null_mut() } else { &raw mut released };
        let before = book.map(|book| self.figures(book).reserved_bytes);
        let status = match record.what % 3 {
            0 => c!(gapless_reset_peaks(handle)),
            _ => c!(gapless_trim(handle, u64::from(record.number), out)),
        };
        expect(status, &[if book.is_some() { GAPLESS_OK } else { GAPLESS_ERROR_INVALID_HANDLE }], record);
        if let (Some(book), Some(before)) = (book, before) {
            let after = self.figures(book);
            if record.what.is_multiple_of(3) {
                assert_eq!(after.peak_live_bytes, after.live_bytes, "the present is the peak");
            } else if !out.is_null() {
                assert_eq!(before - after.reserved_bytes, released, "what was given back");
            }
        }
        if status != GAPLESS_OK || record.what.is_multiple_of(3) {
            assert_eq!(released, UNTOUCHED as u64, "{record:?}");
        }
    }

    fn set_budget(&mut self, record: Record) {
        let (handle, book) = self.handle(record);
        let bytes = if record.what < 200 { u64::from(record.number) % (96 << 20) } else { Self::bytes_of(record) };
        let status = c!(gapless_set_budget(handle, bytes));
        expect(status, &[if book.is_some() { GAPLESS_OK } else { GAPLESS_ERROR_INVALID_HANDLE }], record);
        if let Some(book) = book {
            assert_eq!(self.figures(book).budget_bytes, bytes);
        }
    }

    /// The figures of a live allocator.
    fn figures(&self, book: usize) -> gapless_stats {
        let mut stats = gapless_stats { size: size_of::<gapless_stats>(), ..gapless_stats::default() };
        let status = c!(gapless_get_stats(without_provenance_mut(self.books[book].handle), &raw mut stats));
        assert_eq!(status, GAPLESS_OK, "{}", told());
        stats
    }

    fn get_stats(&mut self, record: Record) {
        let (handle, book) = self.handle(record);
        let size = match record.what {
            0..=127 => record.number as usize % (2 * size_of::<gapless_stats>()),
            128..=191 => size_of::<gapless_stats>(),
            _ => record.number as usize * (1 << (record.how % 33)),
        };
        // As large as the function may write, and a little more to see that it did not.
        let mut bytes = [0xa5_u8; size_of::<gapless_stats>() + 16];
        bytes[..size_of::<usize>()].copy_from_slice(&size.to_ne_bytes());
        let stats = if record.how == 255 { null_mut() } else { bytes.as_mut_ptr().cast::<gapless_stats>() };
        let status = c!(gapless_get_stats(handle, stats));
        let fits = (16..=size_of::<gapless_stats>()).contains(&size) && !stats.is_null();
        let allowed = match book {
            _ if !fits => GAPLESS_ERROR_INVALID_ARGUMENT,
            None => GAPLESS_ERROR_INVALID_HANDLE,
            Some(_) => GAPLESS_OK,
        };
        expect(status, &[allowed], record);
        let written = if status == GAPLESS_OK { size } else { size_of::<usize>() };
        assert!(bytes[written..].iter().all(|byte| *byte == 0xa5), "{record:?} wrote more than {written} bytes");
        assert_eq!(bytes[..size_of::<usize>()], size.to_ne_bytes(), "{record:?}");
        if let (Some(book), GAPLESS_OK) = (book, status) {
            let live = u64::from_ne_bytes(bytes[8..16].try_into().expect("eight bytes"));
            assert_eq!(live, self.books[book].live_bytes);
        }
    }

    /// The functions with a buffer.
    fn json(&mut self, record: Record) {
        type Report = unsafe extern "C" fn(*mut gapless_allocator, *mut c_char, usize, *mut usize) -> gapless_status;
        let (handle, book) = self.handle(record);
        let function: Report = match record.what % 3 {
            0 => gapless_stats_json,
            1 => gapless_snapshot_json,
            _ => gapless_oom_report_json,
        };
        let call = |buffer: *mut c_char, capacity, needed: *mut usize| {
            // SAFETY: the buffer has that capacity or is null, needed is null or valid.
            unsafe { function(handle, buffer, capacity, needed) }
        };
        if record.how == 255 {
            let status = call(null_mut(), 0, null_mut());
            assert!(status != GAPLESS_OK, "{record:?} wrote nowhere");
            return;
        }
        let mut needed = UNTOUCHED;
        let status = call(null_mut(), 0, &raw mut needed);
        let allowed: &[gapless_status] = match book {
            None => &[GAPLESS_ERROR_INVALID_HANDLE],
            Some(_) if record.what % 3 == 2 => &[GAPLESS_ERROR_BUFFER_TOO_SMALL, GAPLESS_ERROR_NOT_FOUND],
            Some(_) => &[GAPLESS_ERROR_BUFFER_TOO_SMALL],
        };
        expect(status, allowed, record);
        assert_eq!(needed == UNTOUCHED, status != GAPLESS_ERROR_BUFFER_TOO_SMALL, "{record:?}");
        if status == GAPLESS_ERROR_BUFFER_TOO_SMALL {
            self.read_text(record, needed, call);
        }
    }

    /// What `call` writes, a JSON text; into too small a buffer it must write nothing.
    fn read_text(
        &self,
        record: Record,
        needed: usize,
        call: impl Fn(*mut c_char, usize, *mut usize) -> gapless_status,
    ) -> serde_json::Value {
        assert!((3..1 << 24).contains(&needed), "{needed} bytes");
        let mut again = UNTOUCHED;
        let mut buffer = vec![0xa5_u8; needed + 8];
        for small in [needed - 1, record.number as usize % needed] {
            expect(call(buffer.as_mut_ptr().cast(), small, &raw mut again), &[GAPLESS_ERROR_BUFFER_TOO_SMALL], record);
            assert!(again == needed && buffer.iter().all(|byte| *byte == 0xa5), "{record:?} wrote into {small} bytes");
        }
        expect(call(null_mut(), needed, &raw mut again), &[GAPLESS_ERROR_INVALID_ARGUMENT], record);
        let capacity = needed + record.how as usize % 8;
        expect(call(buffer.as_mut_ptr().cast(), capacity, &raw mut again), &[GAPLESS_OK], record);
        assert!(buffer[needed..].iter().all(|byte| *byte == 0xa5), "{record:?} wrote more than {needed} bytes");
        let text = CStr::from_bytes_with_nul(&buffer[..needed]).expect("one NUL, at the end");
        serde_json::from_slice(text.to_bytes()).expect("a JSON text")
    }

    fn create(&mut self, record: Record) {
        if self.books.iter().filter(|book| book.is_owned()).count() >= MOST_HANDLES {
            return;
        }
        let environment = self.environment;
        let library = environment.library.as_ref().map_or(null(), |library| library.as_ptr());
        let peers = [i32::from(record.how), -1];
        // SAFETY: numbers and pointers, for which zero bytes are good values.
        let mut config: gapless_config = unsafe { std::mem::zeroed() };
        config.size = size_of::<gapless_config>();
        config.device = environment.device;
        config.library = library;
        config.budget_bytes = match record.how % 4 {
            0 => 0,
            1 => (2 << 20) + u64::from(record.number) % (80 << 20),
            _ => 24 << 20,
        };
        let mut good = true;
        let mut surely_bad = true;
        match record.what {
            0..=95 => {}
            96..=111 => config.chunk_bytes = u64::from(record.how % 4 + 1) << 21,
            112..=127 => config.slack = 1.0 + f64::from(record.how) / 64.0,
            // What may or may not do: the answer is a status, and nothing else happens.
            128..=143 => (config.chunk_bytes, good, surely_bad) = (u64::from(record.number), false, false),
            144..=159 => (config.region_bytes, good, surely_bad) = (u64::from(record.number), false, false),
            160..=175 => {
                config.budget_bytes = 0;
                config.budget_fraction = f64::from(f32::from_bits(record.number));
                (good, surely_bad) = (false, false);
            }
            176..=191 => (config.slack, good, surely_bad) = (f64::from(f32::from_bits(record.number)), false, false),
            192..=207 => (config.size, good) = (record.number as usize, record.number as usize == config.size),
            208..=223 => (config.device, good) = (if record.how < 128 { -1 } else { 1 << 20 }, false),
            224..=239 => {
                config.peer_count = u32::from(record.how) % 3;
                config.peers = if record.number.is_multiple_of(2) { null() } else { peers.as_ptr() };
                (good, surely_bad) = (false, false);
            }
            240..=247 => (config.library, good) = (c"/nowhere/libcuda.so.1".as_ptr(), false),
            _ => good = false,
        }
        surely_bad &= !good;
        let mut handle: *mut gapless_allocator = without_provenance_mut(UNTOUCHED);
        let status = match record.what {
            248..=251 => c!(gapless_create(null(), &raw mut handle)),
            252..=255 => c!(gapless_create(&raw const config, null_mut())),
            _ => c!(gapless_create(&raw const config, &raw mut handle)),
        };
        assert!((GAPLESS_OK..GAPLESS_ERROR_INTERNAL).contains(&status), "{record:?}: {status}, {}", told());
        // Where others have all of the device, there is no room for what is tried when it is opened, nor for a budget.
        let alone = environment.usage.is_some() && !self.books.iter().any(Book::is_owned);
        assert!(!good || status == GAPLESS_OK || !alone, "{record:?}: {status}, {}", told());
        assert!(!surely_bad || status != GAPLESS_OK, "{record:?} was taken: {config:?}");
        if status == GAPLESS_OK {
            assert!(self.books.iter().all(|book| book.handle != handle.addr()), "a handle is given out once");
            self.books.push(Book { handle: handle.addr(), alive: true, ..Book::default() });
        } else {
            assert_eq!(handle.addr(), UNTOUCHED, "{record:?}");
        }
    }

    fn destroy(&mut self, record: Record) {
        let (handle, book) = self.handle(record);
        let status = c!(gapless_destroy(handle));
        let allowed = match book.map(|book| &self.books[book]) {
            None => GAPLESS_ERROR_INVALID_HANDLE,
            Some(book) if book.lasting => GAPLESS_ERROR_IN_USE,
            Some(book) if book.live > 0 => GAPLESS_ERROR_LEAKED,
            Some(_) => GAPLESS_OK,
        };
        expect(status, &[allowed], record);
        if let Some(number) = book.filter(|book| !self.books[*book].lasting) {
            self.live.retain(|_, block| block.owner != Some(number));
            let book = &mut self.books[number];
            book.alive = false;
            if let Some(path) = book.recording.take() {
                read_recording(&path, self.next_stamp);
            }
        }
    }

    fn recording(&mut self, record: Record) {
        let (handle, book) = self.handle(record);
        let on = book.is_some_and(|book| self.books[book].recording.is_some());
        match record.what % 8 {
            0..=2 => {
                let ending = if record.how.is_multiple_of(2) { "gz" } else { "txt" };
                self.recordings += 1;
                let path = self.environment.folder.join(format!("{}.{ending}", self.recordings));
                let text = CString::new(path.to_str().expect("UTF-8")).expect("a path");
                let status = c!(gapless_record_start(handle, text.as_ptr()));
                let allowed = match book {
                    None => GAPLESS_ERROR_INVALID_HANDLE,
                    Some(_) if on => GAPLESS_ERROR_IN_USE,
                    Some(_) => GAPLESS_OK,
                };
                expect(status, &[allowed], record);
                if let (Some(book), GAPLESS_OK) = (book, status) {
                    self.books[book].recording = Some(path);
                }
            }
            3 => {
                let path = if record.how < 128 { null() } else { c"/nowhere/at/all".as_ptr() };
                let status = c!(gapless_record_start(handle, path));
                assert!(status != GAPLESS_OK && status != GAPLESS_ERROR_INTERNAL, "{record:?}: {status}");
            }
            4 | 5 => {
                let labels = [c"step", c"two\nlines\r", c"", c"\xff\xfe", c"# no comment"];
                let label = labels[usize::from(record.how) % labels.len()];
                let good = label.to_str().is_ok();
                let status = c!(gapless_record_mark(handle, if record.how == 255 { null() } else { label.as_ptr() }));
                let good = good && record.how != 255;
                let allowed: &[gapless_status] = match book {
                    Some(_) if good => &[GAPLESS_OK],
                    None if good => &[GAPLESS_ERROR_INVALID_HANDLE],
                    _ => &[GAPLESS_ERROR_INVALID_ARGUMENT, GAPLESS_ERROR_INVALID_HANDLE],
                };
                expect(status, allowed, record);
            }
            _ => {
                let status = c!(gapless_record_stop(handle));
                let allowed = match book {
                    None => GAPLESS_ERROR_INVALID_HANDLE,
                    Some(_) if on => GAPLESS_OK,
                    Some(_) => GAPLESS_ERROR_NOT_FOUND,
                };
                expect(status, &[allowed], record);
                if let Some(path) = book.and_then(|book| self.books[book].recording.take()) {
                    read_recording(&path, self.next_stamp);
                }
            }
        }
    }

    /// The book of device 0's process-wide allocator, opened at its first use by this input.
    fn torch_book(&mut self) -> Option<usize> {
        let mut handle: *mut gapless_allocator = null_mut();
        let status = c!(gapless_device_allocator(0, &raw mut handle));
        assert!(status == GAPLESS_OK || self.environment.usage.is_none(), "{status}: {}", told());
        if status != GAPLESS_OK {
            return None;
        }
        self.torch = true;
        if let Some(book) = self.books.iter().position(|book| book.handle == handle.addr()) {
            return Some(book);
        }
        let mut stats = gapless_stats { size: size_of::<gapless_stats>(), ..gapless_stats::default() };
        expect_ok(c!(gapless_get_stats(handle, &raw mut stats)));
        assert_eq!(stats.live_bytes, 0, "the input before left something");
        let before = (stats.allocs, stats.frees);
        self.books.push(Book { handle: handle.addr(), alive: true, lasting: true, before, ..Book::default() });
        Some(self.books.len() - 1)
    }

    fn torch(&mut self, record: Record) {
        let Some(book) = self.torch_book() else { return };
        let (stream, known) = self.stream(record.how);
        let device = if record.handle >= 248 { i32::from(record.handle) - 250 } else { 0 };
        let wrong_device = record.handle >= 248 && device != 0 && !(device == 1 && self.environment.device == 1);
        if device == 1 {
            return;
        }
        match record.call / 20 % 8 {
            0..=3 => {
                let bytes = Self::bytes_of(record);
                let pointer = match record.what {
                    250.. => c!(gapless_cupy_malloc(stream.cast(), bytes as usize, device)),
                    _ => c!(gapless_torch_malloc(bytes as libc::ssize_t, device, stream)),
                };
                if pointer.is_null() {
                    return;
                }
                assert!(!wrong_device && known && bytes < 1 << 40, "{record:?} was served");
                // The newest open pool has it: all are this thread's.
                let pool = self.open.last().copied();
                let owner = if pool.is_some() { None } else { Some(book) };
                self.take_in(pointer, Block { bytes, stamp: 0, owner, pool });
            }
            4 => {
                let mine: Vec<u64> = self
                    .live
                    .iter()
                    .filter(|(_, block)| block.owner == Some(book) || block.pool.is_some())
                    .map(|(at, _)| *at)
                    .collect();
                if record.what < 200 && !wrong_device {
                    let Some(addr) = mine.get(record.number as usize % mine.len().max(1)).copied() else { return };
                    self.torch_free(addr, record.what.is_multiple_of(2));
                } else {
                    // Refused, and told on stderr: nothing changes.
                    let addr = self.live.iter().find(|(at, _)| !mine.contains(at)).map_or(0x1000, |(at, _)| *at);
                    c!(gapless_torch_free(without_provenance_mut(addr as usize), 0, device, stream));
                }
            }
            5 => {
                let at = record.number as usize % self.live.len().max(1);
                let addr = self.live.keys().nth(at).map_or(0x1000, |at| at + u64::from(record.what % 4));
                let pointer: *mut c_void = without_provenance_mut(addr as usize);
                if record.what < 128 {
                    c!(gapless_torch_record_stream(pointer, stream));
                    return;
                }
                let mut size = UNTOUCHED;
                let base =
                    c!(gapless_torch_base_alloc(pointer, if record.how == 255 { null_mut() } else { &raw mut size }));
                let found = self.live.range(..=addr).next_back();
                let expected = found.filter(|(at, block)| {
                    (block.owner == Some(book) || block.pool.is_some()) && addr - **at < block.bytes.max(1)
                });
                assert_eq!(base.addr() as u64, expected.map_or(0, |(at, _)| *at), "{record:?}: the base of {addr:#x}");
                let bytes = expected.filter(|_| record.how != 255).map_or(UNTOUCHED, |(_, block)| block.bytes as usize);
                assert_eq!(size, bytes, "{record:?}");
            }
            6 => {
                if record.what < 128 {
                    c!(gapless_torch_reset());
                } else {
                    let part = f64::from(f32::from_bits(record.number));
                    let status = c!(gapless_torch_set_fraction(part, device));
                    let good = part > 0.0 && part <= 1.0 && !wrong_device;
                    let refused: &[gapless_status] = &[GAPLESS_ERROR_INVALID_ARGUMENT, GAPLESS_ERROR_NO_DEVICE];
                    expect(status, if good { &[GAPLESS_OK] } else { refused }, record);
                }
            }
            _ => self.torch_report(record, book),
        }
    }

    fn torch_free(&mut self, addr: u64, cupy: bool) {
        self.verify(addr);
        let pointer: *mut c_void = without_provenance_mut(addr as usize);
        if cupy {
            c!(gapless_cupy_free(null_mut(), pointer, 0));
        } else {
            c!(gapless_torch_free(pointer, self.live[&addr].bytes as usize, 0, null_mut()));
        }
        self.forget(addr);
    }

    fn torch_report(&mut self, record: Record, book: usize) {
        let call = |buffer: *mut c_char, capacity, needed: *mut usize| {
            c!(gapless_torch_report_json(0, i32::from(record.what % 2), buffer, capacity, needed))
        };
        let mut needed = UNTOUCHED;
        expect(call(null_mut(), 0, &raw mut needed), &[GAPLESS_ERROR_BUFFER_TOO_SMALL], record);
        let report = self.read_text(record, needed, call);
        assert_eq!(report["main"]["live_bytes"], self.books[book].live_bytes, "{report}");
        let pools = report["pools"].as_array().expect("a list");
        assert_eq!(pools.len(), self.pools.len() + self.lingering_pools(), "{report}");
        let live: u64 = pools.iter().filter_map(|pool| pool["stats"]["live_bytes"].as_u64()).sum();
        let known: u64 = self.live.values().filter(|block| block.pool.is_some()).map(|block| block.bytes).sum();
        assert_eq!(live, known, "{report}");
    }

    /// Pools without users that still have something live.
    fn lingering_pools(&self) -> usize {
        let mut ids: Vec<u64> = self.live.values().filter_map(|block| block.pool).collect();
        ids.sort_unstable();
        ids.dedup();
        ids.retain(|id| !self.pools.contains_key(id));
        ids.len()
    }

    fn torch_pool(&mut self, record: Record) {
        if self.torch_book().is_none() {
            return;
        }
        let id = u64::from(record.handle % 3) + 1;
        let pool = gapless_torch_pool { first: id, second: 7 };
        match record.what % 3 {
            0 => {
                c!(gapless_torch_begin_allocate_to_pool(0, pool, null_mut()));
                *self.pools.entry(id).or_default() += 1;
                self.open.push(id);
            }
            1 => {
                c!(gapless_torch_end_allocate_to_pool(0, pool));
                if let Some(at) = self.open.iter().rposition(|open| *open == id) {
                    self.open.remove(at);
                }
            }
            // PyTorch ends before it releases.
            _ if self.open.contains(&id) => {}
            _ => {
                c!(gapless_torch_release_pool(0, pool));
                if let Some(users) = self.pools.get_mut(&id) {
                    *users -= 1;
                    if *users == 0 {
                        self.pools.remove(&id);
                    }
                }
            }
        }
    }

    fn conf(&mut self, record: Record) {
        let texts =
            [c"budget:0.5", c"", c"bugdet:1", c"slack:0.1", c"log", c"budget:1GiB,max_split_size_mb:9", c"\xff"];
        let number = usize::from(record.what) % texts.len();
        let text = if record.how == 255 { null() } else { texts[number].as_ptr() };
        let good = [true, true, false, false, false, true, false][number] && record.how != 255;
        let refused = if good { GAPLESS_OK } else { GAPLESS_ERROR_INVALID_ARGUMENT };
        expect(c!(gapless_check_conf(text)), &[refused], record);
        if self.torch_book().is_some() {
            let refused = if good { GAPLESS_ERROR_IN_USE } else { GAPLESS_ERROR_INVALID_ARGUMENT };
            expect(c!(gapless_configure(text)), &[refused], record);
        }
        // SAFETY: a NUL-terminated text of the library.
        let version = unsafe { CStr::from_ptr(gapless_version()) };
        assert!(version.to_bytes().contains(&b'.'), "{version:?}");
    }

    fn replay(&mut self, record: Record) {
        let options: [(&CStr, bool); 8] = [
            (c"{}", true),
            (c"{\"policies\":[]}", true),
            (c"{\"policies\":[\"caching\"],\"capacity_bytes\":4194304}", true),
            (c"{\"search_capacity\":true,\"policies\":[\"gapless\"]}", true),
            (c"{\"capacity_bytes\":-1}", false),
            (c"{\"capacity\":1}", false),
            (c"[", false),
            (c"\xff", false),
        ];
        let (options, good) = options[usize::from(record.what) % options.len()];
        let file = if record.handle < 192 { "trace" } else { "missing" };
        let path = CString::new(self.environment.folder.join(file).to_str().expect("UTF-8")).expect("a path");
        let path = if record.handle == 255 { null() } else { path.as_ptr() };
        let call = |buffer: *mut c_char, capacity, needed: *mut usize| {
            c!(gapless_replay_json(path, options.as_ptr(), buffer, capacity, needed))
        };
        let mut needed = UNTOUCHED;
        let status = call(null_mut(), 0, &raw mut needed);
        if good && record.handle < 192 {
            expect(status, &[GAPLESS_ERROR_BUFFER_TOO_SMALL], record);
            // The time that a replay takes is part of what is written, so that the size is not always the same.
            assert!((3..1 << 16).contains(&needed), "{needed} bytes");
        } else {
            expect(status, &[GAPLESS_ERROR_INVALID_ARGUMENT], record);
            assert_eq!(needed, UNTOUCHED, "{record:?}");
        }
    }

    /// What must be true of every live allocator.
    fn check(&self) {
        for (number, book) in self.books.iter().enumerate() {
            if !book.alive {
                continue;
            }
            let stats = self.figures(number);
            assert_eq!((stats.live_bytes, stats.live_allocations), (book.live_bytes, book.live), "{book:?}, {stats:?}");
            let sums = (book.before.0 + book.allocs, book.before.1 + book.frees);
            assert_eq!((stats.allocs, stats.frees), sums, "{book:?}, {stats:?}");
            assert!(stats.live_bytes <= stats.reserved_bytes, "{stats:?}");
            assert!(stats.live_bytes <= stats.peak_live_bytes, "{stats:?}");
        }
    }

    /// Ends everything and looks at what is left.
    fn finish(mut self) {
        while let Some(id) = self.open.pop() {
            c!(gapless_torch_end_allocate_to_pool(0, gapless_torch_pool { first: id, second: 7 }));
        }
        for (id, users) in std::mem::take(&mut self.pools) {
            for _ in 0..users {
                c!(gapless_torch_release_pool(0, gapless_torch_pool { first: id, second: 7 }));
            }
        }
        for number in 0..self.books.len() {
            let handle = without_provenance_mut(self.books[number].handle);
            let own: Vec<u64> =
                self.live.iter().filter(|(_, block)| block.owner == Some(number)).map(|(at, _)| *at).collect();
            if self.books[number].alive {
                for addr in own {
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
                }
                if let Some(path) = book.recording.take() {
                    read_recording(&path, self.next_stamp);
                }
            }
        }
        for addr in self.live.keys().copied().collect::<Vec<_>>() {
            self.torch_free(addr, false);
        }
        if self.torch {
            expect_ok(c!(gapless_torch_set_fraction(1.0, 0)));
            // What waits for other streams is not free yet, and the simulated ones are threads of their own.
            for _ in 0..MOST_WAITS {
                c!(gapless_torch_reset());
                if self
                    .books
                    .iter()
                    .position(|book| book.lasting)
                    .is_none_or(|book| self.figures(book).pending_bytes == 0)
                {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_micros(100));
            }
        }
        self.check_driver();
    }

    /// The process-wide allocator's report, for messages.
    fn torch_text(&self) -> String {
        let mut buffer = vec![0_u8; 1 << 16];
        let mut needed = 0;
        let status = c!(gapless_torch_report_json(0, 1, buffer.as_mut_ptr().cast(), buffer.len(), &raw mut needed));
        let text = buffer.get(..needed).unwrap_or_default();
        format!("{status}, {}", String::from_utf8_lossy(text))
    }

    /// Nothing of this input is left in the simulated driver. The process-wide allocator keeps its addresses.
    fn check_driver(&self) {
        if let Some([chunks, mappings, _, events]) = self.environment.usage(0) {
            assert_eq!((chunks, mappings), (0, 0), "chunks and mappings left on device 0: {}", self.torch_text());
            assert!(self.torch || events == self.events_before, "{} events, then {events}", self.events_before);
        }
        if let Some([chunks, mappings, reservations, _]) = self.environment.usage(1) {
            let left = (chunks, mappings, reservations);
            assert_eq!(left, (0, 0, 0), "chunks, mappings and reservations left on device 1");
        }
    }
}

impl Book {
    /// Made by `gapless_create`, and not destroyed yet.
    fn is_owned(&self) -> bool {
        self.alive && !self.lasting
    }
}

/// A recording is a trace whose ops are no more than the calls.
fn read_recording(path: &Path, served: u64) {
    let trace = gapless::trace::Trace::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(trace.allocations() <= served, "{} allocations were recorded, of {served}", trace.allocations());
    let _ = std::fs::remove_file(path);
}

fn expect(status: gapless_status, allowed: &[gapless_status], record: Record) {
    assert!(allowed.contains(&status), "{record:?} answered {status}, not one of {allowed:?}: {}", told());
    assert!(status == GAPLESS_OK || !told().is_empty(), "{record:?} answered {status} and no text");
}

fn expect_ok(status: gapless_status) {
    assert_eq!(status, GAPLESS_OK, "{}", told());
}

/// The text of the last failure.
fn told() -> String {
    // SAFETY: a NUL-terminated text until the next failure on this thread.
    unsafe { CStr::from_ptr(gapless_last_error()) }.to_string_lossy().into_owned()
}
