//! gapless's kernels on the CPU, by name.

use gapless::driver::{pattern_byte, pattern_word};

/// The ranges that a kernel reads and writes, each as address and size in bytes.
pub type Ranges = Vec<(u64, u64)>;

/// Returns the number of eight-byte parameters of the kernel `name`, or `None` if it is not one of gapless's.
pub fn parameters_of(name: &str) -> Option<usize> {
    Some(match name {
        "spin" => 1,
        "fill_pattern" | "bandwidth_read" | "bandwidth_write" | "bandwidth_copy" | "pointer_chase"
        | "dependent_write" => 3,
        "verify_pattern" | "pointer_chase_link" | "dependent_check" => 4,
        _ => return None,
    })
}

/// Returns the ranges that the kernel accesses with parameters `p`.
pub fn ranges_of(name: &str, p: &[u64]) -> Ranges {
    match name {
        "fill_pattern" | "bandwidth_read" | "bandwidth_write" => vec![(p[0], p[1])],
        "verify_pattern" => vec![(p[0], p[1]), (p[3], 16)],
        "bandwidth_copy" => vec![(p[0], p[2]), (p[1], p[2])],
        "pointer_chase_link" => vec![(p[0], p[1].saturating_sub(1) * p[2] + 8)],
        "pointer_chase" => vec![(p[0], 8), (p[2], 16)],
        "dependent_write" => vec![(p[0], p[1] * 8)],
        "dependent_check" => vec![(p[0], p[1] * 8), (p[3], 8)],
        _ => vec![],
    }
}

/// Runs the kernel with parameters `p`.
///
/// # Safety
/// The ranges of [`ranges_of`] must be readable and writable until this returns.
pub unsafe fn run(name: &str, p: &[u64]) {
    match name {
        "spin" => std::thread::sleep(std::time::Duration::from_nanos(p[0])),
        "fill_pattern" => {
            // SAFETY: guaranteed by the caller.
            let data = unsafe { bytes_at(p[0], p[1]) };
            fill(data, p[2]);
        }
        "verify_pattern" => {
            // SAFETY: guaranteed by the caller.
            let data = unsafe { bytes_at(p[0], p[1]) };
            let (count, first) = verify(data, p[2]);
            // SAFETY: guaranteed by the caller.
            let result = unsafe { words_at(p[3], 2) };
            result[0] = result[0].wrapping_add(count);
            result[1] = result[1].min(first);
        }
        "dependent_write" => {
            // SAFETY: guaranteed by the caller.
            let data = unsafe { words_at(p[0], p[1]) };
            (0..).zip(data).for_each(|(index, word)| *word = pattern_word(p[2], index));
        }
        "dependent_check" => {
            // SAFETY: guaranteed by the caller.
            let data = unsafe { words_at(p[0], p[1]) };
            let wrong = (0..).zip(data.iter()).filter(|&(index, word)| *word != pattern_word(p[2], index)).count();
            // SAFETY: guaranteed by the caller.
            let result = unsafe { words_at(p[3], 1) };
            result[0] += wrong as u64;
        }
        "bandwidth_read" => {
            // SAFETY: guaranteed by the caller.
            let data = unsafe { words_at(p[0], p[1] / 8) };
            std::hint::black_box(data.iter().fold(0, |sum, word| sum ^ word));
        }
        "bandwidth_write" => {
            // SAFETY: guaranteed by the caller.
            unsafe { words_at(p[0], p[1] / 8) }.fill(p[2]);
        }
        "bandwidth_copy" => {
            // SAFETY: guaranteed by the caller; the ranges do not overlap.
            unsafe { copy(p[0], p[1], p[2]) };
        }
        "pointer_chase_link" => {
            let [data, slots, stride, multiplier] = [p[0], p[1], p[2], p[3]];
            for i in 0..slots {
                let next = multiplier.wrapping_mul(i).wrapping_add(1) & (slots - 1);
                // SAFETY: guaranteed by the caller.
                let place = unsafe { words_at(data + i * stride, 1) };
                place[0] = data + next * stride;
            }
        }
        "pointer_chase" => {
            let start = std::time::Instant::now();
            let mut place = p[0];
            for _ in 0..p[1] {
                // SAFETY: guaranteed by the caller, who ran `pointer_chase_link` on the range.
                place = unsafe { words_at(place, 1) }[0];
            }
            // SAFETY: guaranteed by the caller.
            let result = unsafe { words_at(p[2], 2) };
            result[0] = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
            result[1] = place;
        }
        _ => {}
    }
}

/// Copies `bytes` between simulated addresses.
///
/// # Safety
/// Both ranges must be accessible and must not overlap.
pub unsafe fn copy(target: u64, source: u64, bytes: u64) {
    let target: *mut u8 = std::ptr::with_exposed_provenance_mut(target as usize);
    let source: *const u8 = std::ptr::with_exposed_provenance(source as usize);
    // SAFETY: guaranteed by the caller.
    unsafe { std::ptr::copy_nonoverlapping(source, target, bytes as usize) };
}

fn fill(data: &mut [u8], seed: u64) {
    let (words, rest) = data.as_chunks_mut::<8>();
    for (index, word) in words.iter_mut().enumerate() {
        *word = pattern_word(seed, index as u64).to_le_bytes();
    }
    let done = words.len() as u64 * 8;
    for (offset, byte) in rest.iter_mut().enumerate() {
        *byte = pattern_byte(seed, done + offset as u64);
    }
}

fn verify(data: &[u8], seed: u64) -> (u64, u64) {
    let (mut count, mut first) = (0, u64::MAX);
    let (words, rest) = data.as_chunks::<8>();
    let done = words.len() as u64 * 8;
    let mut compare = |offset: u64, byte: u8| {
        if byte != pattern_byte(seed, offset) {
            count += 1;
            first = first.min(offset);
        }
    };
    for (index, word) in words.iter().enumerate() {
        if *word != pattern_word(seed, index as u64).to_le_bytes() {
            for (within, &byte) in word.iter().enumerate() {
                compare(index as u64 * 8 + within as u64, byte);
            }
        }
    }
    for (offset, &byte) in rest.iter().enumerate() {
        compare(done + offset as u64, byte);
    }
    (count, first)
}

/// # Safety
/// The range must be accessible, and nothing else may access it during the slice's lifetime. The latter holds if the
/// simulated program has no data races.
unsafe fn bytes_at<'a>(addr: u64, bytes: u64) -> &'a mut [u8] {
    // SAFETY: guaranteed by the caller.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(addr as usize), bytes as usize) }
}

/// # Safety
/// The same as for [`bytes_at`], and `addr` must be a multiple of 8.
unsafe fn words_at<'a>(addr: u64, words: u64) -> &'a mut [u64] {
    // SAFETY: guaranteed by the caller.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(addr as usize), words as usize) }
}
