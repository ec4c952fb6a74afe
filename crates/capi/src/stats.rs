//! Statistics as a C struct. The header's is written from the table of figures (`tests/header.rs`), so that its fields have names.

use crate::out::{check_out, write_sized};
use crate::status::Answer;
use gapless::allocator::Figures;

/// Statistics at one moment.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gapless_stats {
    /// `sizeof(gapless_stats)` of the program that asks.
    pub size: u64,
    /// The figures.
    pub figures: Figures,
}

impl Default for gapless_stats {
    fn default() -> Self {
        Self { size: size_of::<Self>() as u64, figures: Figures::default() }
    }
}

/// Writes the figures that `take` returns to a caller's struct, as many bytes as its size says.
///
/// # Safety
/// `stats` is null or points to as many bytes as its first field says.
pub(crate) unsafe fn write_stats(stats: *mut gapless_stats, take: impl FnOnce() -> Answer<Figures>) -> Answer<()> {
    check_out(stats, "stats")?;
    let take = || Ok(gapless_stats { figures: take()?, ..gapless_stats::default() });
    // SAFETY: not null, so as many bytes as its first field says (the function's contract).
    unsafe { write_sized(stats, "gapless_stats", take) }
}
