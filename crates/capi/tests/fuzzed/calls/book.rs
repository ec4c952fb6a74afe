//! The book of what a caller knows: allocators, live blocks and what was written there.

use super::*;
use gapless::StreamId;

/// A live allocation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) bytes: u64,
    pub(super) stamp: u64,
    /// Of which book; none for PyTorch's pools.
    pub(super) owner: Option<usize>,
    pub(super) pool: Option<Pool>,
    /// The device, and the stream that it was requested for.
    pub(super) device: i32,
    pub(super) home: StreamId,
}

/// The name of one of PyTorch's pools: its device, and the first half of what PyTorch calls it.
pub(super) type Pool = (i32, u64);

/// The book of one allocator, as its caller knows it.
#[derive(Debug, Default)]
pub(super) struct Book {
    pub(super) handle: usize,
    pub(super) alive: bool,
    /// The process-wide one of a device: `gapless_destroy` refuses it.
    pub(super) lasting: bool,
    pub(super) device: i32,
    pub(super) recording: Option<PathBuf>,
    pub(super) live_bytes: u64,
    pub(super) live: u64,
    pub(super) allocs: u64,
    pub(super) frees: u64,
    /// Of a process-wide allocator: figures from before this input.
    pub(super) before: (u64, u64),
    /// Of a device's: its sums from before this input, and what this input has done.
    pub(super) sums_before: Figures,
    pub(super) done: Done,
    /// The device's budget, if one was set; and what was held when that was looked at last.
    pub(super) whole: Option<u64>,
    pub(super) held_before: u64,
    pub(super) has_had_pools: bool,
}

/// The work of an input on a device with a process-wide allocator.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    pub(super) allocs: u64,
    pub(super) frees: u64,
    pub(super) bytes: u64,
    pub(super) out_of_memory: u64,
    /// Bytes that are live, and the most since the peaks were reset.
    pub(super) live: u64,
    pub(super) peak: u64,
}

impl Calls {
    /// Notes a block: it overlaps no other, and takes its bytes.
    pub(super) fn take_in(&mut self, pointer: *mut c_void, mut block: Block) {
        let addr = pointer.addr() as u64;
        let end = addr + block.bytes.max(1);
        if let Some((other, before)) = self.live.range(..end).next_back() {
            assert!(other + before.bytes.max(1) <= addr, "{block:?} at {addr:#x} lies in {before:?} at {other:#x}");
        }
        self.check_handed_out(addr, &block);
        self.check_apart(addr, block.bytes);
        self.next_stamp += 1;
        block.stamp = self.next_stamp;
        for word in self.words(addr, block.bytes) {
            // SAFETY: inside a live block of the simulated driver, which is memory of this process; nothing runs there.
            unsafe {
                std::ptr::with_exposed_provenance_mut::<u64>(word as usize).write_unaligned(word_of(block.stamp))
            };
        }
        self.live.insert(addr, block);
        self.stamps.insert(block.stamp, block.pool);
        self.former.remove(&addr);
        if let Some(done) = self.done_on(&block) {
            done.allocs += 1;
            done.bytes += block.bytes;
            done.live += block.bytes;
            done.peak = done.peak.max(done.live);
        }
        if let Some(book) = block.owner.map(|owner| &mut self.books[owner]) {
            book.live_bytes += block.bytes;
            book.live += 1;
            book.allocs += 1;
        }
    }

    /// Words of a block that are looked at: the first and the last; none on a GPU.
    pub(super) fn words(&self, addr: u64, bytes: u64) -> Vec<u64> {
        if self.environment.usage.is_none() || bytes < 16 { Vec::new() } else { vec![addr, addr + bytes - 8] }
    }

    /// Looks at a block's bytes before it is freed.
    pub(super) fn verify(&self, addr: u64) {
        let block = self.live[&addr];
        if !self.is_quiet(addr) {
            return;
        }
        for word in self.words(addr, block.bytes) {
            // SAFETY: as in `take_in`.
            let found = unsafe { std::ptr::with_exposed_provenance::<u64>(word as usize).read_unaligned() };
            assert_eq!(found, word_of(block.stamp), "{block:?} at {addr:#x} changed at {word:#x}");
        }
    }

    pub(super) fn forget(&mut self, addr: u64) {
        let block = self.live.remove(&addr).expect("a live block");
        self.note_freed(addr);
        self.let_go(addr, block);
        self.former.insert(addr, block);
        if let Some(done) = self.done_on(&block) {
            done.frees += 1;
            done.live -= block.bytes;
        }
        if let Some(book) = block.owner.map(|owner| &mut self.books[owner]) {
            book.live_bytes -= block.bytes;
            book.live -= 1;
            book.frees += 1;
        }
    }

    /// The work on the device of a block of a process-wide allocator. An allocator of its own may have a block there, too.
    fn done_on(&mut self, block: &Block) -> Option<&mut Done> {
        if !self.is_process_wide(block) {
            return None;
        }
        let book = self.books.iter_mut().find(|book| book.lasting && book.device == block.device);
        Some(&mut book?.done)
    }

    /// A pointer for a call on `book`'s allocator, and whether a live allocation of it starts there.
    pub(super) fn pointer(&self, record: Record, book: Option<usize>) -> (u64, bool) {
        let number = record.number as usize;
        // Calls by handle go past what other streams use.
        let is_own = |(at, block): &(&u64, &Block)| block.owner.is_some() && block.owner == book && !self.is_used(**at);
        let own: Vec<u64> = self.live.iter().filter(is_own).map(|(at, _)| *at).collect();
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

    /// The figures of a live allocator.
    pub(super) fn figures(&self, book: usize) -> Figures {
        let mut stats = gapless_stats::default();
        let status = c!(gapless_get_stats(without_provenance_mut(self.books[book].handle), &raw mut stats));
        assert_eq!(status, GAPLESS_OK, "{}", error_text());
        stats.figures
    }

    /// The figures of a live allocator without pools.
    pub(super) fn own_figures(&self, book: usize) -> Figures {
        let book_of = &self.books[book];
        if book_of.lasting { self.main_figures(book_of.device) } else { self.figures(book) }
    }

    /// Those that the checks look at, of a device's allocator without its pools.
    pub(super) fn main_figures(&self, device: i32) -> Figures {
        let report: serde_json::Value = serde_json::from_str(&self.torch_json(device, 0)).expect("a JSON text");
        let number = |name: &str| report["main"][name].as_u64().expect("a number");
        let mut figures = Figures::default();
        figures.live_bytes = number("live_bytes");
        figures.peak_live_bytes = number("peak_live_bytes");
        figures.live_allocations = number("live_allocations");
        figures.reserved_bytes = number("reserved_bytes");
        figures.allocs = number("allocs");
        figures.frees = number("frees");
        figures
    }
}

impl Book {
    /// Made by `gapless_create`, and not destroyed yet.
    pub(super) fn is_owned(&self) -> bool {
        self.alive && !self.lasting
    }
}
