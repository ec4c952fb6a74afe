//! Writing to a caller's out-parameters and buffers.

use crate::status::{Answer, Failure, GAPLESS_ERROR_BUFFER_TOO_SMALL};
use gapless::allocator::OutOfMemory;
use serde::Serialize;
use std::ffi::c_char;

/// Refuses a null out-parameter, which `what` names.
#[inline]
pub(crate) fn check_out<T>(pointer: *mut T, what: &str) -> Answer<()> {
    if pointer.is_null() { Err(Failure::argument(format!("the out-parameter {what} is null"))) } else { Ok(()) }
}

/// Writes a struct that begins with its size to a caller's, as many bytes as that one says it has; `what` names the struct.
///
/// # Safety
/// `target` points to as many bytes as its first field says, and `T` begins with a `u64` that is the size.
pub(crate) unsafe fn write_sized<T: Copy>(target: *mut T, what: &str, take: impl FnOnce() -> Answer<T>) -> Answer<()> {
    const SIZE: usize = size_of::<u64>();
    // SAFETY: it points to at least the first field (the function's contract).
    let size = unsafe { target.cast::<u64>().read_unaligned() };
    let Some(size) = usize::try_from(size).ok().filter(|size| (2 * SIZE..=size_of::<T>()).contains(size)) else {
        return Err(Failure::argument(format!(
            "the {what} says it has {size} bytes, this library's has {}: set size to sizeof({what}) before the call, and compile \
             with this library's header",
            size_of::<T>()
        )));
    };
    let found = take()?;
    let source = (&raw const found).cast::<u8>().wrapping_add(SIZE);
    let target = target.cast::<u8>().wrapping_add(SIZE);
    // SAFETY: `size` bytes at the target may be written (the function's contract), and `found` has at least as many. The first
    // field stays as it is.
    unsafe { std::ptr::copy_nonoverlapping(source, target, size - SIZE) };
    Ok(())
}

/// A report with its text for a person beside the figures.
pub(crate) fn described(report: &OutOfMemory) -> Answer<serde_json::Value> {
    let mut value = serde_json::to_value(report)?;
    value["text"] = report.to_string().into();
    Ok(value)
}

/// Writes a JSON text into a caller's buffer, or the size that it needs.
///
/// # Safety
/// As `gapless_stats_json`.
pub(crate) unsafe fn write_json(
    value: &impl Serialize,
    buffer: *mut c_char,
    capacity: u64,
    needed: *mut u64,
) -> Answer<()> {
    check_out(needed, "needed")?;
    let text = serde_json::to_vec(value)?;
    let bytes = text.len() as u64 + 1;
    // SAFETY: not null, so valid for a write (the function's contract).
    unsafe { needed.write(bytes) };
    if capacity < bytes {
        return Err(Failure::new(GAPLESS_ERROR_BUFFER_TOO_SMALL, format!("the text needs {bytes} bytes")));
    }
    if buffer.is_null() {
        return Err(Failure::argument("the buffer is null and its capacity is not 0"));
    }
    let buffer = buffer.cast::<u8>();
    // SAFETY: `buffer` has `capacity` bytes (the function's contract), more than the text's.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), buffer, text.len()) };
    // SAFETY: as above: the last of the bytes that it takes.
    unsafe { buffer.wrapping_add(text.len()).write(0) };
    Ok(())
}
