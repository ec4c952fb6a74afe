//! Memory of the host for large tables, which are read at random, and for backups: with huge pages, most reads need no walk through
//! the system's page tables.

use rustix::mm::{Advice, madvise};
use std::collections::TryReserveError;
use std::mem::MaybeUninit;

/// Memory below this many bytes is left as it is: the processor knows the pages of so few.
const LARGE: usize = 4 << 20;

/// Makes a slice of `len` equal elements; a large one in huge pages, where the system has them.
pub fn table<T: Clone>(value: T, len: usize) -> Box<[T]> {
    let mut elements = Vec::with_capacity(len);
    prefer_huge_pages(elements.spare_capacity_mut());
    elements.resize(len, value);
    elements.into_boxed_slice()
}

/// Reserves memory for bytes, in huge pages where the system has them and there are many.
///
/// # Errors
/// Where the system does not have so much.
pub fn reserve(bytes: usize) -> Result<Vec<u8>, TryReserveError> {
    let mut reserved = Vec::new();
    reserved.try_reserve_exact(bytes)?;
    prefer_huge_pages(reserved.spare_capacity_mut());
    Ok(reserved)
}

/// Asks for huge pages behind memory that has not been written yet. Whether it gets them changes nothing but time.
fn prefer_huge_pages<T>(memory: &mut [MaybeUninit<T>]) {
    let (start, bytes) = (memory.as_mut_ptr().cast::<u8>(), size_of_val(memory));
    if bytes < LARGE {
        return;
    }
    let to_page = start.align_offset(rustix::param::page_size());
    let whole = bytes.saturating_sub(to_page);
    // SAFETY: the range lies in `memory`, and the advice changes neither its content nor its protection.
    let _advice = unsafe { madvise(start.wrapping_add(to_page).cast(), whole, Advice::LinuxHugepage) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_any_size_are_filled() {
        for len in [0, 1, 1000, LARGE / 8, LARGE / 8 + 12_345] {
            let table = table(7_u64, len);
            assert_eq!(table.len(), len);
            assert!(table.iter().all(|element| *element == 7));
        }
    }
}
