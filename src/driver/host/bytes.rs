//! Reads and writes of simulated device memory, by address.
//!
//! Streams that an allocator under test fails to order race for the same bytes. So every access is a relaxed atomic one:
//! a race then results in stale or mixed bytes, which the test detects, and not in undefined behaviour.

use crate::driver::{pattern_byte, pattern_word};
use crate::sync::unseen::{AtomicU8, AtomicU64, Ordering};

/// A range of this process's memory that another thread may write at any time.
#[derive(Clone, Copy)]
pub(super) struct Bytes {
    addr: u64,
    len: u64,
}

/// The difference of some bytes from a pattern.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Difference {
    pub first: u64,
    pub count: u64,
}

impl Bytes {
    /// # Safety
    /// `[addr, addr + len)` is mapped readable and writable for as long as the value is used, and is reached by nothing
    /// but `Bytes` in that time.
    pub unsafe fn new(addr: u64, len: u64) -> Self {
        Self { addr, len }
    }

    pub fn fill(self, seed: u64) {
        for index in 0..self.words() {
            self.word(index).store(pattern_word(seed, index).to_le(), Ordering::Relaxed);
        }
        for offset in self.rest() {
            self.byte(offset).store(pattern_byte(seed, offset), Ordering::Relaxed);
        }
    }

    pub fn clear(self) {
        for index in 0..self.words() {
            self.word(index).store(0, Ordering::Relaxed);
        }
        for offset in self.rest() {
            self.byte(offset).store(0, Ordering::Relaxed);
        }
    }

    pub fn compare(self, seed: u64) -> Option<Difference> {
        let mut difference: Option<Difference> = None;
        let mut differs = |offset| {
            difference.get_or_insert(Difference { first: offset, count: 0 }).count += 1;
        };
        for index in 0..self.words() {
            let found = self.word(index).load(Ordering::Relaxed);
            let expected = pattern_word(seed, index).to_le();
            if found != expected {
                let bytes = found.to_ne_bytes().into_iter().zip(expected.to_ne_bytes());
                (8 * index..)
                    .zip(bytes)
                    .filter(|(_, (found, expected))| found != expected)
                    .for_each(|(at, _)| differs(at));
            }
        }
        for offset in self.rest() {
            if self.byte(offset).load(Ordering::Relaxed) != pattern_byte(seed, offset) {
                differs(offset);
            }
        }
        difference
    }

    /// Copies all of `source`, which has the same length.
    pub fn copy_from(self, source: Self) {
        debug_assert_eq!(self.len, source.len);
        let words = self.words().min(source.words());
        for index in 0..words {
            self.word(index).store(source.word(index).load(Ordering::Relaxed), Ordering::Relaxed);
        }
        for offset in 8 * words..self.len {
            self.byte(offset).store(source.byte(offset).load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Returns how many whole words can be accessed as words: none when the range is not aligned to them.
    fn words(self) -> u64 {
        if self.addr.is_multiple_of(8) { self.len / 8 } else { 0 }
    }

    /// Returns the offsets behind the whole words.
    fn rest(self) -> std::ops::Range<u64> {
        8 * self.words()..self.len
    }

    fn word<'a>(self, index: u64) -> &'a AtomicU64 {
        debug_assert!(index < self.words());
        // SAFETY: by the contract of `new` the word is mapped with access; `words` has checked that it is aligned and
        // inside; every access of it is atomic.
        unsafe { AtomicU64::from_ptr(pointer(self.addr + 8 * index)) }
    }

    fn byte<'a>(self, offset: u64) -> &'a AtomicU8 {
        debug_assert!(offset < self.len);
        // SAFETY: by the contract of `new` the byte is mapped with access; every access of it is atomic.
        unsafe { AtomicU8::from_ptr(pointer(self.addr + offset)) }
    }
}

/// The bytes of a range.
///
/// # Safety
/// `[addr, addr + len)` is mapped readable, and nothing writes to it, for as long as the value is used.
pub(super) unsafe fn slice<'a>(addr: u64, len: u64) -> &'a [u8] {
    let len = usize::try_from(len).expect("a mapped range is one of this process");
    // SAFETY: the function's contract; bytes need no alignment.
    unsafe { std::slice::from_raw_parts(pointer(addr), len) }
}

/// The bytes of a range, to be changed.
///
/// # Safety
/// `[addr, addr + len)` is mapped readable and writable, and reached by nothing else, for as long as the value is used.
pub(super) unsafe fn slice_mut<'a>(addr: u64, len: u64) -> &'a mut [u8] {
    let len = usize::try_from(len).expect("a mapped range is one of this process");
    // SAFETY: the function's contract; bytes need no alignment.
    unsafe { std::slice::from_raw_parts_mut(pointer(addr), len) }
}

/// An address as a pointer to memory that Rust's own objects never lie in.
fn pointer<T>(addr: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(usize::try_from(addr).expect("a mapped address is one of this process"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_any_alignment_and_length() {
        let mut buffer = vec![0_u64; 64];
        let base = buffer.as_mut_ptr().expose_provenance() as u64;
        for (start, len) in [(0, 0), (0, 512), (0, 13), (8, 100), (3, 77), (16, 7)] {
            // SAFETY: inside `buffer`, which nothing else reaches meanwhile.
            let bytes = unsafe { Bytes::new(base + start, len) };
            bytes.fill(42);
            assert_eq!(bytes.compare(42), None);
            assert!((0..len).all(|offset| bytes.byte(offset).load(Ordering::Relaxed) == pattern_byte(42, offset)));
            if len > 5 {
                bytes.byte(5).fetch_xor(1, Ordering::Relaxed);
                assert_eq!(bytes.compare(42), Some(Difference { first: 5, count: 1 }));
            }
        }
    }

    #[test]
    fn copies_between_different_alignments() {
        let mut buffer = vec![0_u64; 64];
        let base = buffer.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: inside `buffer`, which nothing else reaches meanwhile.
        let source = unsafe { Bytes::new(base, 100) };
        // SAFETY: as above.
        let target = unsafe { Bytes::new(base + 203, 100) };
        source.fill(7);
        target.copy_from(source);
        assert_eq!(target.compare(7), None);
    }
}
