//! The runner's operations on growable ranges, and the checks of their results.

use super::Runner;
use crate::device::Device;
use crate::op::Op;
use crate::oracle::{Range, RangePage};
use gapless::allocator::{AllocError, RangeError, StreamError};
use gapless::driver::WorkDriver;
use gapless::units::{DeviceAddr, StreamId};

/// Maximum number of ranges of one allocator.
const MOST_RANGES: usize = 4;

impl<D: Device> Runner<D> {
    pub(crate) fn act_on_ranges(&mut self, op: Op) {
        match op {
            Op::ReserveRange { pages } => self.reserve_range(u64::from(pages) % (2 * self.world.pages) + 1),
            Op::GrowRange { range, pages, stream } => {
                let pages = u64::from(pages) % (2 * self.world.pages);
                self.with_range(range, |runner, range| {
                    runner.grow_range(range, pages, runner.stream(stream));
                });
            }
            Op::ShrinkRange { range, pages } => {
                self.with_range(range, |runner, range| runner.shrink_range(range, u64::from(pages)));
            }
            Op::TakeRange { to, from, pages, stream } => {
                self.with_range(to, |runner, to| {
                    runner.with_range(from, |runner, from| {
                        if from != to {
                            runner.take_range(to, from, u64::from(pages), runner.stream(stream));
                        }
                    });
                });
            }
            Op::WriteRange { range, stream } => {
                self.with_range(range, |runner, range| runner.launch_on_range(range, runner.stream(stream), true));
            }
            Op::ReadRange { range, stream } => {
                self.with_range(range, |runner, range| runner.launch_on_range(range, runner.stream(stream), false));
            }
            Op::DropRange { range } => self.with_range(range, Self::drop_range),
            _ => unreachable!("an operation on ranges"),
        }
    }

    /// Returns `true` if growing and shrinking a range fail with an error that `refusal` accepts. The oracle does not
    /// change.
    pub fn ranges_refuse(&mut self, refusal: impl Fn(&AllocError) -> bool) -> bool {
        let stream = self.stream(0);
        let ranges = &mut self.instance_mut().ranges;
        ranges.iter_mut().all(|range| {
            matches!(range.grow(1, stream), Err(RangeError::Alloc(error)) if refusal(&error))
                && range.shrink(u64::MAX).is_err_and(|error| refusal(&error))
        })
    }

    fn with_range(&mut self, number: u8, act: impl FnOnce(&mut Self, usize)) {
        if let Some(index) = usize::from(number).checked_rem(self.instance().ranges.len()) {
            act(self, index);
        }
    }

    fn reserve_range(&mut self, pages: u64) {
        if self.instance().ranges.len() >= MOST_RANGES {
            return;
        }
        match self.allocator().reserve_range(pages * self.world.page_bytes) {
            Ok(range) => {
                assert_eq!((range.mapped_bytes(), range.address_bytes()), (0, pages * self.world.page_bytes));
                let addr = range.addr();
                let instance = self.instance_mut();
                instance.ranges.push(range);
                instance.oracle.ranges.push(Range {
                    addr,
                    reserved_pages: pages,
                    pages: Vec::new(),
                    users: Vec::new(),
                });
            }
            Err(AllocError::Driver(error)) => self.expect_injected(&error),
            Err(other) => panic!("reserve_range returned {other}"),
        }
    }

    /// Returns `true` if the range grew.
    pub(crate) fn grow_range(&mut self, index: usize, pages: u64, stream: StreamId) -> bool {
        let bytes = pages * self.world.page_bytes;
        let held = self.allocator().reserved_bytes();
        let result = self.instance_mut().ranges[index].grow(bytes, stream);
        if self.is_displaced(stream) {
            self.expect_range_displaced(result);
            return false;
        }
        let error = match result {
            Ok(()) => {
                self.note_user(index, stream);
                for _ in 0..pages {
                    let seed = self.fresh_seed();
                    let last = self.instance().oracle.ranges[index].pages.len();
                    let addr = at(&self.instance().oracle.ranges[index], last, self.world.page_bytes);
                    let memory = self.driver.inner().memory_at(addr).expect("invariant 2: the new pages are mapped");
                    let page = RangePage { seed, last_user: stream, memory };
                    self.instance_mut().oracle.ranges[index].pages.push(page);
                    self.fill_page(index, last);
                }
                return true;
            }
            Err(RangeError::Alloc(error)) => error,
            Err(full) => {
                let range = &self.instance().oracle.ranges[index];
                let has_room = pages <= range.reserved_pages - range.pages.len() as u64;
                assert!(!has_room && matches!(full, RangeError::Full { .. }), "{full}");
                return false;
            }
        };
        if self.waits_for_capture(&error) {
            assert_eq!(self.allocator().reserved_bytes(), held, "invariant 6: a refused growth kept memory");
            return false;
        }
        self.excuse(&error, bytes, held, true) && self.grow_range(index, pages, stream)
    }

    fn shrink_range(&mut self, index: usize, pages: u64) {
        let mapped = self.instance().oracle.ranges[index].pages.len();
        let going = usize::try_from(pages).expect("few pages").min(mapped);
        let boundary = first_whole_chunk(&self.instance().oracle.ranges[index], mapped - going);
        self.verify_pages(index, mapped - going);
        let page_bytes = self.world.page_bytes;
        let instance = self.instance_mut();
        let result = instance.ranges[index].shrink(pages * page_bytes);
        let left = usize::try_from(instance.ranges[index].mapped_bytes() / page_bytes).expect("few pages");
        assert!((mapped - going..=mapped).contains(&left), "asked to unmap {going} of {mapped} pages, left {left}");
        instance.oracle.ranges[index].pages.truncate(left);
        match result {
            Ok(bytes) => {
                assert_eq!(bytes, (mapped - left) as u64 * page_bytes, "shrink returns the number of bytes unmapped");
                assert_eq!(left, boundary, "all chunks that can be unmapped are unmapped, and no other");
            }
            Err(error) if self.waits_for_capture(&error) => {}
            Err(AllocError::Driver(error)) => {
                self.expect_injected(&error);
                if self.struck() {
                    self.recover();
                    if !self.instance().lost {
                        self.shrink_range(index, (left + going - mapped) as u64);
                    }
                }
            }
            Err(other) => panic!("shrink returned {other}"),
        }
    }

    fn take_range(&mut self, to: usize, from: usize, pages: u64, stream: StreamId) {
        let page_bytes = self.world.page_bytes;
        let theirs = &self.instance().oracle.ranges[from].pages;
        let first = theirs.len() - usize::try_from(pages).expect("few pages").min(theirs.len());
        if !theirs[first..].iter().all(|page| self.order(page.last_user, stream)) {
            return;
        }
        let displaced = self.is_displaced(stream);
        let boundary = first_whole_chunk(&self.instance().oracle.ranges[from], first);
        let unmapped_pages = {
            let range = &self.instance().oracle.ranges[to];
            range.reserved_pages - range.pages.len() as u64
        };
        let instance = self.instance_mut();
        let [taker, giver] = instance.ranges.get_disjoint_mut([to, from]).expect("two ranges");
        match taker.take_from(giver, pages * page_bytes, stream) {
            // Nothing to move: the stream does not matter.
            Ok(0) if displaced => {}
            result if displaced => self.expect_range_displaced(result.map(|_| ())),
            Ok(bytes) => {
                let moved = usize::try_from(bytes / page_bytes).expect("few pages");
                let theirs = &mut instance.oracle.ranges[from].pages;
                assert_eq!(moved, theirs.len() - boundary, "all chunks that can be moved are moved, and no other");
                let start = instance.oracle.ranges[to].pages.len();
                let theirs = &mut instance.oracle.ranges[from].pages;
                let moving = theirs.split_off(theirs.len() - moved);
                let moving = moving.into_iter().map(|page| RangePage { last_user: stream, ..page });
                instance.oracle.ranges[to].pages.extend(moving);
                if moved > 0 {
                    self.note_user(to, stream);
                    self.note_user(from, stream);
                }
                self.verify_pages(to, start);
            }
            Err(RangeError::Full { requested, .. }) => {
                assert!(requested / page_bytes > unmapped_pages, "{requested} bytes fit in {unmapped_pages} pages");
            }
            Err(RangeError::Alloc(error)) if self.waits_for_capture(&error) => {}
            Err(RangeError::Alloc(
                AllocError::Driver(error)
                | AllocError::OutOfMappings { cause: error, .. }
                | AllocError::Stream(StreamError::Foreign { cause: error, .. }),
            )) => {
                self.expect_injected(&error);
                if self.struck() {
                    self.recover();
                    if !self.instance().lost {
                        self.take_range(to, from, pages, stream);
                    }
                }
            }
            Err(other) => panic!("take_from returned {other}"),
        }
    }

    fn launch_on_range(&mut self, index: usize, stream: StreamId, write: bool) {
        // Growing by 0 bytes records the stream.
        let known = self.instance().oracle.ranges[index].users.contains(&stream);
        if !known && !self.grow_range(index, 0, stream) {
            return;
        }
        if !self.instance().oracle.ranges[index].pages.iter().all(|page| self.order(page.last_user, stream)) {
            return;
        }
        for page in 0..self.instance().oracle.ranges[index].pages.len() {
            self.instance_mut().oracle.ranges[index].pages[page].last_user = stream;
            if write {
                let seed = self.fresh_seed();
                self.instance_mut().oracle.ranges[index].pages[page].seed = seed;
                self.fill_page(index, page);
            }
        }
        if !write {
            self.verify_pages(index, 0);
        }
    }

    fn drop_range(&mut self, index: usize) {
        self.verify_pages(index, 0);
        let instance = self.instance_mut();
        drop(instance.ranges.remove(index));
        let range = instance.oracle.ranges.remove(index);
        if self.struck() || self.instance().lost || self.may_be_capturing() {
            self.note_left_behind(range.pages.len() as u64 * self.world.page_bytes);
        }
    }

    /// Queues checks of the pages from `first` on, each on the stream that last used the page, so that the checks add
    /// no order that the allocator should have established. Those of other threads' own streams are not checked.
    pub(crate) fn verify_pages(&mut self, index: usize, first: usize) {
        let page_bytes = self.world.page_bytes;
        let range = &self.instance().oracle.ranges[index];
        for (number, page) in range.pages.iter().enumerate().skip(first) {
            if !self.is_here(page.last_user) {
                continue;
            }
            let result =
                self.driver.inner().verify(page.last_user, at(range, number, page_bytes), page_bytes, page.seed);
            result.expect("invariant 2: a range can be read");
        }
        self.summary.verified_bytes += (range.pages.len() - first) as u64 * page_bytes;
    }

    fn fill_page(&self, index: usize, number: usize) {
        let (range, page_bytes) = (&self.instance().oracle.ranges[index], self.world.page_bytes);
        let page = range.pages[number];
        let result = self.driver.inner().fill(page.last_user, at(range, number, page_bytes), page_bytes, page.seed);
        result.expect("invariant 2: a range can be written");
    }

    /// Returns `true` if a call failed because it would have to wait for a stream that is being captured.
    fn expect_range_displaced(&self, result: Result<(), RangeError>) {
        match result {
            Err(RangeError::Alloc(error)) => self.expect_displaced(Err(error)),
            // What is wrong besides may be said first.
            Err(RangeError::Full { .. }) => {}
            other => panic!("a stream of another context was handed in: {other:?}"),
        }
    }

    fn waits_for_capture(&self, error: &AllocError) -> bool {
        self.may_be_capturing() && matches!(error, AllocError::CannotWait { .. })
    }

    fn note_user(&mut self, index: usize, stream: StreamId) {
        let users = &mut self.instance_mut().oracle.ranges[index].users;
        if !users.contains(&stream) {
            users.push(stream);
        }
    }
}

fn at(range: &Range, page: usize, page_bytes: u64) -> DeviceAddr {
    range.addr.offset(page as u64 * page_bytes)
}

/// Returns the first page from `page` on that begins a chunk, or the number of pages: from the end, whole chunks are given up.
fn first_whole_chunk(range: &Range, page: usize) -> usize {
    (page..range.pages.len()).find(|page| range.pages[*page].memory.1 == 0).unwrap_or(range.pages.len())
}
