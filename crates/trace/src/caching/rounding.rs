//! How sizes are rounded: those of requests, and those of the segments that serve them.

use gapless::units::{MIB, round_up};

/// Returns the size of the block for a request of `bytes` bytes (`round_size`), or `None` on overflow.
pub(super) fn block_bytes(bytes: u64, divisions: Option<u64>) -> Option<u64> {
    match divisions {
        Some(divisions) if bytes > ROUNDING_BYTES.saturating_mul(divisions) => next_division(bytes, divisions),
        _ => round_up(bytes.max(1), ROUNDING_BYTES),
    }
}

/// Rounds `bytes` up to one of the `divisions` equal steps between the powers of two around it
/// (`roundup_power2_next_division`). Both are at least 1, and `divisions` is a power of two of at most `bytes`.
fn next_division(bytes: u64, divisions: u64) -> Option<u64> {
    let step = (1 << bytes.ilog2()) >> divisions.ilog2();
    round_up(bytes, step)
}

/// Returns the size of the segment for a block of `size` bytes (`get_allocation_size`), or `None` on overflow.
pub(super) const fn segment_bytes(size: u64) -> Option<u64> {
    if size <= SMALL_BYTES {
        Some(SMALL_SEGMENT_BYTES)
    } else if size < LARGE_REQUEST_BYTES {
        Some(LARGE_SEGMENT_BYTES)
    } else {
        round_up(size, SEGMENT_ROUNDING_BYTES)
    }
}

/// `kMinBlockSize`: every size is rounded up to a multiple of it.
pub(super) const ROUNDING_BYTES: u64 = 512;
/// `kSmallSize`: the largest request of the small pool.
pub(super) const SMALL_BYTES: u64 = MIB;
/// `kSmallBuffer`: the size of a segment in the small pool.
pub(super) const SMALL_SEGMENT_BYTES: u64 = 2 * MIB;
/// `kMinLargeAlloc`: the smallest request whose segment depends on its size.
const LARGE_REQUEST_BYTES: u64 = 10 * MIB;
/// `kLargeBuffer`: the size of a segment in the large pool for smaller requests.
pub(super) const LARGE_SEGMENT_BYTES: u64 = 20 * MIB;
/// `kRoundLarge`: sizes of larger segments are rounded up to a multiple of it.
const SEGMENT_ROUNDING_BYTES: u64 = 2 * MIB;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_rounded_to_512_bytes() {
        for (bytes, block) in [(1, 512), (512, 512), (513, 1024), (MIB + 1, MIB + 512)] {
            assert_eq!(block_bytes(bytes, None), Some(block), "{bytes}");
        }
        assert_eq!(block_bytes(u64::MAX, None), None);
    }

    #[test]
    fn requests_are_rounded_to_divisions_of_powers_of_two() {
        // PyTorch's own example: between 1024 and 2048 four divisions are 1024, 1280, 1536 and 1792.
        assert_eq!(next_division(1200, 4), Some(1280));
        for (bytes, block) in [
            (1200, 1536),
            (2048, 2048),
            // Below 512 bytes times the divisions nothing changes.
            (4096, 4096),
            (4097, 4608),
            (5000, 5120),
            (9 * MIB, 9 * MIB),
            (9 * MIB + 1, 10 * MIB),
            (15 * MIB + 1, 16 * MIB),
            (16 * MIB, 16 * MIB),
        ] {
            assert_eq!(block_bytes(bytes, Some(8)), Some(block), "{bytes}");
        }
        assert_eq!(block_bytes(u64::MAX, Some(8)), None);
    }

    #[test]
    fn segments_have_the_sizes_of_the_original() {
        for (size, segment) in [
            (512, 2 * MIB),
            (MIB, 2 * MIB),
            (MIB + 512, 20 * MIB),
            (10 * MIB - 512, 20 * MIB),
            (10 * MIB, 10 * MIB),
            (10 * MIB + 512, 12 * MIB),
        ] {
            assert_eq!(segment_bytes(size), Some(segment), "{size}");
        }
        assert_eq!(segment_bytes(!511), None);
    }
}
