//! Pages: their numbers, how many, and runs of them.
//!
//! A page is the unit of mapping; its size in bytes is a power of two that only the driver knows, so whoever converts to
//! bytes hands it in.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Range, Sub, SubAssign};

/// The number of a page in its segment, counted from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageIndex(pub u64);

/// A number of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageCount(pub u64);

/// Consecutive pages of one segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PageRange {
    /// The first page.
    pub start: PageIndex,
    /// The page after the last.
    pub end: PageIndex,
}

impl PageIndex {
    /// Returns the page that a byte offset lies in.
    pub fn of(offset: u64, page_bytes: u64) -> Self {
        Self(offset / page_bytes)
    }

    /// Returns the offset of the page in its segment, in bytes.
    pub fn offset(self, page_bytes: u64) -> u64 {
        self.0 * page_bytes
    }

    /// Returns the number of pages before this one.
    pub fn count_before(self) -> PageCount {
        PageCount(self.0)
    }

    /// Returns the page as an index into a slice.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).expect("page numbers fit a 64-bit machine's usize")
    }
}

impl PageCount {
    /// No pages.
    pub const ZERO: Self = Self(0);
    /// One page.
    pub const ONE: Self = Self(1);

    /// Returns the number of whole pages in `bytes`.
    pub fn within(bytes: u64, page_bytes: u64) -> Self {
        Self(bytes / page_bytes)
    }

    /// Returns the number of pages that `bytes` take.
    pub fn covering(bytes: u64, page_bytes: u64) -> Self {
        Self(bytes.div_ceil(page_bytes))
    }

    /// Returns the number of bytes in that many pages.
    pub fn bytes(self, page_bytes: u64) -> u64 {
        self.0 * page_bytes
    }

    /// Returns the difference, or no pages if `other` is larger.
    pub fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl PageRange {
    /// Returns the `count` pages from `start` on.
    pub fn new(start: PageIndex, count: PageCount) -> Self {
        Self { start, end: start + count }
    }

    /// Returns the pages that lie wholly inside a range of byte offsets.
    pub fn inside(bytes: &Range<u64>, page_bytes: u64) -> Self {
        Self { start: PageIndex(bytes.start.div_ceil(page_bytes)), end: PageIndex(bytes.end / page_bytes) }
    }

    /// Returns the pages that a range of byte offsets touches.
    pub fn around(bytes: &Range<u64>, page_bytes: u64) -> Self {
        Self { start: PageIndex(bytes.start / page_bytes), end: PageIndex(bytes.end.div_ceil(page_bytes)) }
    }

    /// Returns the number of pages; 0 if the range ends before it starts.
    pub fn len(self) -> PageCount {
        PageCount(self.end.0.saturating_sub(self.start.0))
    }

    /// Returns `true` if there is no page in the range.
    pub fn is_empty(self) -> bool {
        self.start >= self.end
    }

    /// Returns `true` if all pages of `other` are in the range.
    pub fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// Returns the byte offsets of the pages.
    pub fn bytes(self, page_bytes: u64) -> Range<u64> {
        self.start.offset(page_bytes)..self.end.offset(page_bytes)
    }

    /// Returns the pages as indices into a slice.
    pub fn as_usize(self) -> Range<usize> {
        self.start.as_usize()..self.end.as_usize()
    }
}

impl fmt::Display for PageIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Add<PageCount> for PageIndex {
    type Output = Self;

    fn add(self, count: PageCount) -> Self {
        Self(self.0 + count.0)
    }
}

impl Add for PageCount {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl Sub for PageCount {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl AddAssign for PageCount {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl SubAssign for PageCount {
    fn sub_assign(&mut self, other: Self) {
        self.0 -= other.0;
    }
}

impl Sum for PageCount {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::ZERO, Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_to_pages_and_back() {
        let pages = |start, end| PageRange { start: PageIndex(start), end: PageIndex(end) };
        assert_eq!(PageRange::inside(&(3..17), 4), pages(1, 4));
        assert_eq!(PageRange::around(&(3..17), 4), pages(0, 5));
        assert_eq!(pages(1, 4).bytes(4), 4..16);
        assert_eq!((pages(1, 4).len(), pages(4, 1).len()), (PageCount(3), PageCount::ZERO));
        assert!(PageRange::inside(&(5..7), 4).is_empty());
        assert!(pages(0, 5).contains(pages(1, 5)) && !pages(1, 4).contains(pages(0, 2)));
        assert_eq!((PageCount::within(9, 4), PageCount::covering(9, 4)), (PageCount(2), PageCount(3)));
        assert_eq!([PageCount(2), PageCount(3)].into_iter().sum::<PageCount>(), PageCount(5));
        assert_eq!(PageCount(2).saturating_sub(PageCount(3)), PageCount::ZERO);
    }
}
