//! Statistics as a C struct. The header's is written from the table of figures (`tests/header.rs`), so that its fields have names.

use crate::out::check_out;
use crate::status::{Answer, Failure};
use gapless::allocator::Figures;

/// Statistics at one moment.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gapless_stats {
    /// `sizeof(gapless_stats)` of the program that asks.
    pub size: usize,
    /// The figures.
    pub figures: Figures,
}

impl Default for gapless_stats {
    fn default() -> Self {
        Self { size: size_of::<Self>(), figures: Figures::default() }
    }
}

/// Writes the figures that `take` returns to a caller's struct, as many bytes as its size says.
///
/// # Safety
/// `stats` is null or points to as many bytes as its first field says.
pub(crate) unsafe fn write_stats(stats: *mut gapless_stats, take: impl FnOnce() -> Answer<Figures>) -> Answer<()> {
    check_out(stats, "stats")?;
    // SAFETY: not null, so it points to at least the first field (the function's contract).
    let size = unsafe { stats.cast::<usize>().read_unaligned() };
    if !(2 * size_of::<u64>()..=size_of::<gapless_stats>()).contains(&size) {
        return Err(Failure::argument(format!(
            "the stats say they have {size} bytes, this library's have {}: set size to sizeof(gapless_stats) before the call, and \
             compile with this library's header",
            size_of::<gapless_stats>()
        )));
    }
    let found = gapless_stats { size, figures: take()? };
    // SAFETY: `size` bytes at `stats` may be written (the function's contract), and `found` has at least as many.
    unsafe { std::ptr::copy_nonoverlapping((&raw const found).cast::<u8>(), stats.cast::<u8>(), size) };
    Ok(())
}
