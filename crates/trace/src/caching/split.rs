//! Which blocks serve which requests, and what is cut off them: `max_split_size_mb`.
//!
//! A block of at least the limit is *oversize*. It is never split, so it is a whole segment: it serves only requests
//! that are oversize themselves and not much smaller, and it can be given back to the driver alone.

use super::kind::PoolKind;
use super::rounding::{ROUNDING_BYTES, SMALL_BYTES};
use super::settings::CachingSettings;
use gapless::units::MIB;

/// Returns `true` if a block of `block` bytes may serve a request of `size` bytes that it is large enough for.
pub(super) const fn may_serve(settings: &CachingSettings, block: u64, size: u64) -> bool {
    match settings.max_split_bytes {
        None => true,
        Some(limit) if size < limit => block < limit,
        Some(_) => block - size < OVERSIZE_ROUNDING_BYTES,
    }
}

/// Returns `true` if the remainder is cut off a block that serves a request of `size` bytes (`should_split`).
pub(super) const fn should_split(settings: &CachingSettings, kind: PoolKind, size: u64, remaining: u64) -> bool {
    if matches!(kind, PoolKind::Small) || settings.expandable_segments {
        return remaining >= ROUNDING_BYTES;
    }
    let oversize = match settings.max_split_bytes {
        Some(limit) => size >= limit,
        None => false,
    };
    !oversize && remaining > LARGE_REMAINDER_BYTES
}

/// `kSmallSize`: a large block is split if more bytes than this remain.
const LARGE_REMAINDER_BYTES: u64 = SMALL_BYTES;
/// `max_non_split_rounding_mb`, by default `kLargeBuffer`: how much larger than a request an oversize block is, at most.
const OVERSIZE_ROUNDING_BYTES: u64 = 20 * MIB;

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: CachingSettings = CachingSettings {
        expandable_segments: false,
        max_split_bytes: None,
        roundup_divisions: None,
        garbage_collection_threshold: None,
        memory_fraction: None,
        empties_cache: false,
    };
    const LIMITED: CachingSettings = CachingSettings { max_split_bytes: Some(64 * MIB), ..DEFAULT };

    #[test]
    fn remainders_split_as_in_the_original() {
        let expandable = CachingSettings { expandable_segments: true, ..DEFAULT };
        for (settings, kind, size, remaining, split) in [
            (DEFAULT, PoolKind::Small, 512, 512, true),
            (DEFAULT, PoolKind::Small, 512, 0, false),
            (DEFAULT, PoolKind::Large, 2 * MIB, MIB, false),
            (DEFAULT, PoolKind::Large, 2 * MIB, MIB + 512, true),
            (expandable, PoolKind::Large, 2 * MIB, 512, true),
            (expandable, PoolKind::Large, 2 * MIB, 0, false),
            (LIMITED, PoolKind::Large, 64 * MIB - 512, 2 * MIB, true),
            (LIMITED, PoolKind::Large, 64 * MIB, 2 * MIB, false),
        ] {
            assert_eq!(should_split(&settings, kind, size, remaining), split, "{settings} {kind:?} {size} {remaining}");
        }
    }

    #[test]
    fn oversize_blocks_serve_oversize_requests_that_are_not_much_smaller() {
        for (settings, block, size, serves) in [
            (DEFAULT, 1000 * MIB, 2 * MIB, true),
            (LIMITED, 64 * MIB - 512, 2 * MIB, true),
            (LIMITED, 64 * MIB, 2 * MIB, false),
            (LIMITED, 84 * MIB - 512, 64 * MIB, true),
            (LIMITED, 84 * MIB, 64 * MIB, false),
        ] {
            assert_eq!(may_serve(&settings, block, size), serves, "{settings} {block} {size}");
        }
    }
}
