//! Which blocks serve which requests, and what is cut off them: `max_split_size_mb`.
//!
//! A block of at least the limit is *oversize*. It is never split, so it is a whole segment: it serves only requests
//! that are oversize themselves and not much smaller, and it can be given back to the driver alone.

use super::kind::PoolKind;
use super::rounding::{ROUNDING_BYTES, SMALL_BYTES, block_bytes, segment_bytes};
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

impl CachingSettings {
    /// Returns settings that do the same to requests of so many bytes, with the limit that stands for all which do: that of the
    /// smallest request that is oversize, or none.
    ///
    /// That is known where each request is on one side of the limit: its block and a segment for it are both smaller, or its
    /// block is oversize. Then a segment serves requests of one side only, and is split only on the lower one. So all that is
    /// ever compared with the limit is on the side of some request, and any limit between the two sides does the same.
    pub(crate) fn in_effect(self, requests: impl Iterator<Item = u64>) -> Self {
        let Some(limit) = self.max_split_bytes.filter(|_| !self.expandable_segments) else { return self };
        let divisions = |bytes| self.roundup_divisions.and_then(|divisions| divisions.of(bytes));
        let mut oversize: Option<u64> = None;
        for size in requests.filter_map(|bytes| block_bytes(bytes, divisions(bytes))) {
            if size >= limit {
                oversize = Some(oversize.map_or(size, |least| least.min(size)));
            } else if segment_bytes(size).is_none_or(|segment| segment >= limit) {
                return self;
            }
        }
        Self { max_split_bytes: oversize, ..self }
    }
}

/// `kSmallSize`: a large block is split if more bytes than this remain.
const LARGE_REMAINDER_BYTES: u64 = SMALL_BYTES;
/// `max_non_split_rounding_mb`, by default `kLargeBuffer`: how much larger than a request an oversize block is, at most.
const OVERSIZE_ROUNDING_BYTES: u64 = 20 * MIB;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::probe;
    use crate::{Device, GaplessSettings, PolicyKind, Trace};
    use std::fmt::Write;

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

    #[test]
    fn limits_that_tell_no_requests_apart_are_one() {
        let effect = |limit_mib: u64, requests: &[u64]| {
            let settings = CachingSettings { max_split_bytes: Some(limit_mib * MIB), ..DEFAULT };
            settings.in_effect(requests.iter().copied()).max_split_bytes
        };
        let requests = [512, 5 * MIB, 63 * MIB - 512, 200 * MIB];
        assert_eq!([65, 128, 200].map(|limit| effect(limit, &requests)), [Some(200 * MIB); 3]);
        assert_eq!([201, 512].map(|limit| effect(limit, &requests)), [None; 2]);
        // A segment for the third request has 64 MiB, one for the second has 20.
        assert_eq!([64, 63, 20].map(|limit| effect(limit, &requests)), [64, 63, 20].map(|limit| Some(limit * MIB)));
        assert_eq!(effect(64, &[64 * MIB - 511]), Some(64 * MIB));
        let expandable = CachingSettings { expandable_segments: true, ..LIMITED };
        assert_eq!(expandable.in_effect([512].into_iter()), expandable);
    }

    /// Limits that are said to do the same do: every replay under them ends alike, with the same driver calls.
    #[test]
    fn settings_with_one_effect_replay_alike() {
        let said = |trace: &Trace, bytes, settings| {
            let policy = (PolicyKind::Caching, GaplessSettings::default(), settings);
            let (result, _) = probe(trace, &Device::of(bytes), policy).unwrap();
            let failed = result.oom.map(|oom| oom.op_index);
            (failed, result.driver_calls, result.host_waits, result.peak_reserved_bytes)
        };
        let (mut skipped, mut differ) = (0, 0);
        for seed in 1..25 {
            let (trace, requests) = program(seed);
            let limits = [20, 21, 40, 41, 42, 63, 64, 65, 66, 100, 128, 256, 300].map(|mib| Some(mib * MIB));
            for divisions in ["roundup_power2_divisions:1", "roundup_power2_divisions:4"] {
                let other: CachingSettings = divisions.parse().unwrap();
                for limit in limits {
                    let settings = CachingSettings { max_split_bytes: limit, ..other };
                    let effect = settings.in_effect(requests.iter().copied());
                    for percent in [80, 100, 104, 110, 120, 140, 200] {
                        let bytes = trace.demand_bytes() * percent / 100;
                        let expected = said(&trace, bytes, settings);
                        assert_eq!(said(&trace, bytes, effect), expected, "seed {seed}, {settings}: {effect:?}");
                        skipped += usize::from(effect != settings);
                        differ += usize::from(expected != said(&trace, bytes, other));
                    }
                }
            }
        }
        assert!(skipped > 500 && differ > 500, "{skipped}, {differ}");
    }

    /// A program of blocks of few sizes, close to limits, of small ones and of ones that share a segment; and its requests.
    fn program(seed: u64) -> (Trace, Vec<u64>) {
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut draw = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let near = [20, 21, 40, 41, 64, 66, 128];
        let sizes: Vec<u64> = (0..4).map(|_| near[draw(7) as usize] * MIB - MIB + draw(5) * (MIB / 2)).collect();
        let (mut text, mut live, mut requests) = (String::new(), Vec::new(), Vec::new());
        for id in 0..300 {
            let bytes = match draw(6) {
                0 => 300 + draw(MIB),
                1 => 3 * MIB + draw(6 * MIB),
                _ => sizes[draw(4) as usize],
            };
            requests.push(bytes);
            writeln!(text, "a {id} {bytes} {}", draw(8) / 7).unwrap();
            live.push(id);
            while live.len() > 20 || draw(3) == 0 && !live.is_empty() {
                writeln!(text, "f {}", live.swap_remove(draw(live.len() as u64) as usize)).unwrap();
            }
        }
        (Trace::read("program", text.as_bytes()).unwrap(), requests)
    }
}
