//! Searches for the smallest device that survives a trace, and for the smallest one from which on all larger ones do.
//!
//! A device *survives* a trace if the replay on it does not run out of memory. Survival is not monotone: on a larger
//! device an allocator may decide differently and fail. So the smallest device found by bisection means little by
//! itself, and larger ones are tried too: [`NEAR_SAMPLES`] close by, where memory is shortest, and [`SAMPLES`] far above.
//! Once a device has more than the policy ever holds, larger ones may make no difference. Where the smallest such sample and
//! the largest survive with the same driver calls, those between them are not tried. Policies that go by the size of the device
//! make other calls on each.
//!
//! PyTorch's allocator learns how large the device is only by what it is refused, unless a setting makes it ask. So a replay says
//! what happens on all devices that refuse the same, and none of them is tried.
//!
//! What is asked of most devices is only whether a replay fails, and where. There, no more than the capacity is simulated
//! ([`CapacityDriver`](crate::capacity::CapacityDriver)).
//!
//! Threads: replays are independent, and those on larger devices run on [`Search::threads`] threads. The result does
//! not depend on their number. Cost: about 14 replays for the bisection, plus at most one for each sample. A replay that
//! fails ends there, so where programs fail early the bisection tries small devices first.

use crate::caching::CachingSettings;
use crate::device::PAGE_BYTES;
use crate::replay::{PolicySettings, probe, replay_alone};
use crate::replay_error::ReplayError;
use crate::search_result::SearchResult;
use crate::{Device, GaplessSettings, PolicyKind, ReplayResult, Trace};
use gapless::driver::DriverCalls;
use std::fmt;
use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A search on simulated devices.
#[derive(Clone, Copy)]
pub struct Search<'a> {
    /// The trace to replay.
    pub trace: &'a Trace,
    /// The policy to replay through.
    pub policy: PolicyKind,
    /// Settings of gapless, if it is the policy.
    pub gapless: GaplessSettings,
    /// Settings of the baseline, if it is the policy.
    pub caching: CachingSettings,
    /// Number of ops after which work completes; see [`Device::lag_ops`].
    pub lag_ops: u64,
    /// Number of threads that replay at the same time.
    pub threads: NonZero<usize>,
    /// Called after each replay.
    pub progress: Option<&'a (dyn Fn() + Sync)>,
}

impl fmt::Debug for Search<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Search").finish_non_exhaustive()
    }
}

impl Search<'_> {
    /// Number of replays in a search at most, approximately, for progress bars.
    pub const EXPECTED_REPLAYS: u64 = NEAR_SAMPLES + SAMPLES + Self::EXPECTED_BISECTION;

    /// Approximate number of replays that find the smallest device.
    pub const EXPECTED_BISECTION: u64 = 14;

    /// Runs the search.
    ///
    /// # Errors
    /// Returns the errors of [`replay`](crate::replay()).
    pub fn run(&self) -> Result<SearchResult, ReplayError> {
        let Some(min) = self.smallest_pages(None)? else {
            return Ok(SearchResult { min_capacity_bytes: None, safe_capacity_bytes: None });
        };
        let larger = samples(min);
        let safe = safe(min, &larger, &self.survive_all(&larger)?);
        Ok(SearchResult {
            min_capacity_bytes: Some(min * PAGE_BYTES),
            safe_capacity_bytes: safe.map(|pages| pages * PAGE_BYTES),
        })
    }

    /// Runs only the first half of [`run`](Self::run), given the result of a replay on a device of `known.0` bytes. Returns
    /// the size of the smallest device that survives in bytes, or `None` if none was found.
    ///
    /// # Errors
    /// Returns the errors of [`replay`](crate::replay()).
    pub fn min_capacity_bytes(&self, known: Option<(u64, &ReplayResult)>) -> Result<Option<u64>, ReplayError> {
        let known = known.filter(|(bytes, _)| bytes.is_multiple_of(PAGE_BYTES));
        let known = known.map(|(bytes, result)| (bytes / PAGE_BYTES, self.part_of(result)));
        Ok(self.smallest_pages(known)?.map(|pages| pages * PAGE_BYTES))
    }

    /// Searches from a number of pages that is known to survive, or to fail after some part of the ops.
    fn smallest_pages(&self, known: Option<(u64, Option<f64>)>) -> Result<Option<u64>, ReplayError> {
        // A device with fewer pages than were asked for at once cannot survive.
        let least = self.trace.demand_bytes().div_ceil(PAGE_BYTES).max(1);
        let most = least.saturating_mul(MOST_TIMES).min(Device::MOST_BYTES / PAGE_BYTES);
        if least > most {
            return Ok(None);
        }
        let known = known.filter(|(pages, _)| (least..=most).contains(pages));
        let mut known: Vec<(Range<u64>, Option<f64>)> =
            known.map(|(pages, part)| (pages..pages + 1, part)).into_iter().collect();
        let start = known.first().map_or((least + least / 2 + 1).min(most), |(pages, _)| pages.start);
        let mut failed_after = |pages| {
            if let Some((_, part)) = known.iter().find(|(range, _)| range.contains(&pages)) {
                return Ok(*part);
            }
            let (result, alike) = self.probe(pages)?;
            let part = self.part_of(&result);
            known.push((alike, part));
            Ok(part)
        };
        let mut costs = Costs::default();
        let mut fails = least - 1;
        let mut survives = start;
        while let Some(part) = failed_after(survives)? {
            costs.add(part);
            fails = survives;
            if survives >= most {
                return Ok(None);
            }
            survives = survives.saturating_mul(2).min(most);
        }
        bisect(fails, survives, costs, failed_after).map(Some)
    }

    /// Returns whether a device with each number of pages survives, in ascending order. Tries those where it makes a difference.
    fn survive_all(&self, pages: &[u64]) -> Result<Vec<bool>, ReplayError> {
        let Some((&largest, smaller)) = pages.split_last() else { return Ok(Vec::new()) };
        let with_room = self.replay(largest)?;
        let enough = smaller.partition_point(|pages| pages * PAGE_BYTES < with_room.peak_reserved_bytes);
        let (short, ample) = smaller.split_at(enough);
        let mut survived = self.survive_each(short)?;
        if let Some((&least, between)) = ample.split_first() {
            let with_least = self.replay(least)?;
            survived.push(with_least.oom.is_none());
            let both = with_least.oom.is_none() && with_room.oom.is_none();
            if both && Calls::of(&with_least) == Calls::of(&with_room) {
                survived.resize(smaller.len(), true);
            } else {
                survived.extend(self.survive_each(between)?);
            }
        }
        survived.push(with_room.oom.is_none());
        Ok(survived)
    }

    /// Replays on devices with each number of pages. Returns whether each one survives.
    fn survive_each(&self, pages: &[u64]) -> Result<Vec<bool>, ReplayError> {
        let next = AtomicUsize::new(0);
        let work = || -> Result<Vec<(usize, bool)>, ReplayError> {
            let mut found = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(&pages) = pages.get(index) else { return Ok(found) };
                found.push((index, self.probe(pages)?.0.oom.is_none()));
            }
        };
        let mut survived = vec![false; pages.len()];
        let threads = self.threads.get().min(pages.len());
        let found: Vec<_> = std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let own = work();
            let joined = others.into_iter().map(|thread| match thread.join() {
                Ok(found) => found,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            std::iter::once(own).chain(joined).collect()
        });
        for part in found {
            for (index, outcome) in part? {
                survived[index] = outcome;
            }
        }
        Ok(survived)
    }

    /// Replays on a device with so many pages.
    fn replay(&self, pages: u64) -> Result<ReplayResult, ReplayError> {
        let result = replay_alone(self.trace, &self.device(pages), self.policy())?;
        self.replayed();
        Ok(result)
    }

    /// Replays on a device with so many pages, to learn where it fails. Returns also the numbers of pages with which the replay is
    /// known to be the same.
    fn probe(&self, pages: u64) -> Result<(ReplayResult, Range<u64>), ReplayError> {
        let (result, alike) = probe(self.trace, &self.device(pages), self.policy())?;
        self.replayed();
        let sees_no_more = self.policy == PolicyKind::Caching && !self.caching.asks_for_the_capacity();
        let alike = alike.start.div_ceil(PAGE_BYTES)..alike.end.div_ceil(PAGE_BYTES);
        Ok((result, if sees_no_more { alike } else { pages..pages + 1 }))
    }

    fn device(&self, pages: u64) -> Device {
        Device { lag_ops: self.lag_ops, ..Device::of(pages * PAGE_BYTES) }
    }

    const fn policy(&self) -> PolicySettings {
        (self.policy, self.gapless, self.caching)
    }

    fn replayed(&self) {
        if let Some(progress) = self.progress {
            progress();
        }
    }

    /// Returns which part of the ops had run when a replay failed, or `None` if it survived.
    #[allow(clippy::cast_precision_loss, reason = "a part of a trace, to decide what to try next")]
    fn part_of(&self, result: &ReplayResult) -> Option<f64> {
        result.oom.as_ref().map(|oom| oom.op_index as f64 / self.trace.ops().len() as f64)
    }
}

/// The driver calls of a replay, as far as its result reports them: what was called in each step, what was created in all, and what
/// that costs, which follows from the sizes.
#[derive(PartialEq)]
struct Calls<'a> {
    of_kind: DriverCalls,
    of_step: &'a [u64],
    host_waits: u64,
    peak_reserved_bytes: u64,
    seconds: Option<f64>,
}

impl<'a> Calls<'a> {
    fn of(result: &'a ReplayResult) -> Self {
        Self {
            of_kind: result.driver_calls,
            of_step: &result.driver_calls_per_step,
            host_waits: result.host_waits,
            peak_reserved_bytes: result.peak_reserved_bytes,
            seconds: result.modelled_driver_seconds,
        }
    }
}

/// The costs of replays that failed, as parts of one that survives.
#[derive(Clone, Copy, Debug, Default)]
struct Costs {
    sum: f64,
    count: u32,
}

impl Costs {
    fn add(&mut self, part: f64) {
        self.sum += part;
        self.count += 1;
    }

    /// Returns where to divide a range so that the search costs least, as a part of it from the end that fails.
    ///
    /// If the smallest size is anywhere in the range with the same probability, and an outcome of cost `c` leaves the part
    /// `x^-c` of it, then every unit of cost divides the range by `x`. The parts of the two outcomes are the whole:
    /// `x^-1 + x^-c = 1`. With `c = 1` both are a half.
    fn division(&self) -> f64 {
        let cost = if self.count == 0 { 1.0 } else { (self.sum / f64::from(self.count)).clamp(LEAST_COST, 1.0) };
        let (mut low, mut high) = (0.0, 0.5);
        for _ in 0..20 {
            let middle: f64 = (low + high) / 2.0;
            if middle + middle.powf(cost) < 1.0 { low = middle } else { high = middle }
        }
        high
    }
}

/// Divides the range between a size that fails and one that survives until they are neighbours, and returns the latter.
/// If survival is not monotone, the pair that is found depends on the start and on what failures cost.
fn bisect<E>(
    mut fails: u64,
    mut survives: u64,
    mut costs: Costs,
    mut failed_after: impl FnMut(u64) -> Result<Option<f64>, E>,
) -> Result<u64, E> {
    while survives - fails > 1 {
        #[allow(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "any size between the two will do"
        )]
        let step = ((survives - fails) as f64 * costs.division()) as u64;
        let middle = fails + step.clamp(1, survives - fails - 1);
        match failed_after(middle)? {
            None => survives = middle,
            Some(part) => {
                costs.add(part);
                fails = middle;
            }
        }
    }
    Ok(survives)
}

/// Returns the sizes above `min` to try, in ascending order.
fn samples(min: u64) -> Vec<u64> {
    let near = (1..=NEAR_SAMPLES).map(|i| min + (min * i).div_ceil(NEAR_SAMPLES_IN_ALL));
    let far = (1..=SAMPLES).map(|i| min + min.div_ceil(2) * i / SAMPLES);
    let mut samples: Vec<u64> = near.chain(far).filter(|&pages| pages > min).collect();
    samples.sort_unstable();
    samples.dedup();
    samples
}

/// Returns the first of `min` and `larger` after the last one that failed.
fn safe(min: u64, larger: &[u64], survived: &[bool]) -> Option<u64> {
    match survived.iter().rposition(|&survived| !survived) {
        None => Some(min),
        Some(last) => larger.get(last + 1).copied(),
    }
}

/// Number of larger devices to try close to the smallest one, in steps of 0.05 % of it.
const NEAR_SAMPLES: u64 = 40;
/// Number of such steps in the smallest device.
const NEAR_SAMPLES_IN_ALL: u64 = 2000;
/// Number of larger devices to try, evenly spaced up to one and a half times the smallest.
const SAMPLES: u64 = 40;
/// Largest device to try, in multiples of what was asked for at once.
const MOST_TIMES: u64 = 16;
/// Least cost of a failed replay, as a part of one that survives: an empty device has to be made for it, too.
const LEAST_COST: f64 = 0.02;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advice::Setting;
    use gapless::allocator::ChunkPolicy;
    use std::convert::Infallible;

    #[test]
    fn bisection_ends_at_neighbours() {
        for threshold in 11..=50 {
            for part in [0.0, 0.1, 1.0] {
                let after = |pages| Ok::<_, Infallible>((pages < threshold).then_some(part));
                assert_eq!(bisect(10, 50, Costs::default(), after), Ok(threshold));
            }
        }
        assert_eq!(bisect(10, 11, Costs::default(), |_| Err("not called")), Ok(11));
    }

    #[test]
    fn early_failures_make_the_search_cheaper() {
        let cost = |part: f64, assumed: f64| {
            let costs = Costs { sum: assumed * 1e6, count: 1_000_000 };
            let mut total = 0.0;
            for threshold in 1..=5_000 {
                let after = |pages| {
                    total += if pages < threshold { part } else { 1.0 };
                    Ok::<_, Infallible>((pages < threshold).then_some(part))
                };
                assert_eq!(bisect(0, 5_000, costs, after), Ok(threshold));
            }
            total / 5_000.0
        };
        let halves = Costs { sum: 1.0, count: 1 }.division();
        assert!((halves - 0.5).abs() < 1e-5, "{halves}");
        assert!(cost(0.05, 0.05) < 0.65 * cost(0.05, 1.0));
        assert!(cost(0.5, 0.5) < cost(0.5, 1.0));
    }

    #[test]
    fn what_is_known_of_a_device_changes_no_result() {
        // Twenty blocks of 3 MiB, of which every other is freed, and one of 20 MiB.
        let mut text: String = (0..20).map(|id| format!("a {id} {} 0\n", 3 << 20)).collect();
        text.extend((0..20).step_by(2).map(|id| format!("f {id}\n")));
        text.push_str(&format!("a 20 {} 0\n", 20 << 20));
        let trace = Trace::read("t", text.as_bytes()).unwrap();
        for setting in ["native", "gapless"].map(|setting| setting.parse::<Setting>().unwrap()) {
            let (policy, _, caching) = setting.policy();
            let search = Search {
                trace: &trace,
                policy,
                gapless: GaplessSettings::default(),
                caching,
                lag_ops: 0,
                threads: NonZero::<usize>::MIN,
                progress: None,
            };
            let found = search.min_capacity_bytes(None).unwrap();
            let pages = found.expect("a large enough device survives") / PAGE_BYTES;
            for pages in [pages - 20, pages - 1, pages, pages + 1, pages * 3, pages * 40] {
                let device = Device::of(pages * PAGE_BYTES);
                let result = setting.replay(&trace, &device).unwrap();
                let known = Some((device.capacity_bytes, &result));
                assert_eq!(search.min_capacity_bytes(known).unwrap(), found, "{setting} on {pages} pages");
            }
        }
    }

    /// Large blocks of which every third is freed, small ones, and larger ones, which need the gaps or more memory.
    #[test]
    fn devices_that_are_not_tried_survive() {
        let mut text: String = (0..8).map(|id| format!("a {id} {} 0\n", 4_u64 << 30)).collect();
        text.extend((1000..1100).map(|id| format!("a {id} {} 0\n", 40 << 10)));
        text.extend((0..8).step_by(3).map(|id| format!("f {id}\n")));
        text.extend((200..202).map(|id| format!("a {id} {} 0\n", 5_u64 << 30)));
        let trace = Trace::read("t", text.as_bytes()).unwrap();
        let chunks = |chunk| GaplessSettings { chunk: Some(chunk), ..GaplessSettings::default() };
        // With chunks of its own choice, the allocator goes by the size of the device.
        let settings = [
            (PolicyKind::Gapless, chunks(ChunkPolicy::Fixed(64 << 20)), false),
            (PolicyKind::Gapless, chunks(ChunkPolicy::Auto), true),
            (PolicyKind::Caching, GaplessSettings::default(), false),
        ];
        for (policy, gapless, tries_all) in settings {
            let replays = AtomicUsize::new(0);
            let count = || _ = replays.fetch_add(1, Ordering::Relaxed);
            let search = Search {
                trace: &trace,
                policy,
                gapless,
                caching: CachingSettings::default(),
                lag_ops: 0,
                threads: NonZero::<usize>::MIN,
                progress: Some(&count),
            };
            let larger = samples(search.smallest_pages(None).unwrap().unwrap());
            let expected = if tries_all { vec![true; larger.len()] } else { search.survive_each(&larger).unwrap() };
            replays.store(0, Ordering::Relaxed);
            assert_eq!(search.survive_all(&larger).unwrap(), expected, "{policy}");
            let tried = replays.load(Ordering::Relaxed);
            assert!(tried <= larger.len(), "{policy}: {tried} of {}", larger.len());
            assert_eq!(tried == larger.len(), tries_all, "{policy}: {tried} of {}", larger.len());
        }
    }

    /// What a replay says of devices that are not tried is what a replay on each of them says.
    #[test]
    fn devices_that_are_alike_end_alike() {
        let mut text = String::new();
        let (mut random, mut live) = (1_u64, Vec::new());
        let mut draw = |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % below
        };
        for id in 0..400 {
            let bytes = [300, 70_000, 3 << 20, 11 << 20, 25 << 20, 70 << 20][draw(6)];
            text.push_str(&format!("a {id} {bytes} 0\n"));
            live.push(id);
            while live.len() > 40 || draw(3) == 0 && !live.is_empty() {
                text.push_str(&format!("f {}\n", live.swap_remove(draw(live.len()))));
            }
        }
        let trace = Trace::read("t", text.as_bytes()).unwrap();
        let least = trace.demand_bytes().div_ceil(PAGE_BYTES);
        for (setting, skips) in [
            ("native", true),
            ("max_split_size_mb:64", true),
            ("roundup_power2_divisions:8", true),
            ("expandable_segments:True", false),
            ("garbage_collection_threshold:0.8,per_process_memory_fraction:1", false),
            ("gapless", false),
        ] {
            let (policy, gapless, caching) = setting.parse::<Setting>().unwrap().policy();
            let threads = NonZero::<usize>::MIN;
            let search = Search { trace: &trace, policy, gapless, caching, lag_ops: 0, threads, progress: None };
            let replays: Vec<_> = (least..least * 2).map(|pages| search.probe(pages).unwrap()).collect();
            let (mut failed, mut skipped) = (0, 0);
            for ((result, alike), pages) in replays.iter().zip(least..) {
                assert!(alike.contains(&pages), "{setting} on {pages} pages: {alike:?}");
                failed += usize::from(result.oom.is_some());
                for other in alike.start.max(least)..alike.end.min(least * 2) {
                    let (found, _) = &replays[(other - least) as usize];
                    assert_eq!(search.part_of(found), search.part_of(result), "{setting}: {pages} and {other} pages");
                    assert!(Calls::of(found) == Calls::of(result), "{setting}: {pages} and {other} pages");
                    skipped += usize::from(other != pages);
                }
            }
            assert!(failed > 0 && failed < replays.len(), "{setting}: {failed} of {}", replays.len());
            assert_eq!(skipped > 0, skips, "{setting}");
        }
    }

    #[test]
    fn samples_are_above_the_smallest_and_reach_half_more() {
        for min in [1, 2, 3, 40, 41, 10_000] {
            let samples = samples(min);
            assert!(samples.windows(2).all(|pair| pair[0] < pair[1]) && samples[0] > min, "{min}");
            assert_eq!(samples.last(), Some(&(min + min.div_ceil(2))));
            assert!(samples.len() as u64 <= NEAR_SAMPLES + SAMPLES);
        }
        assert_eq!(samples(20_000)[..4], [20_010, 20_020, 20_030, 20_040]);
        assert_eq!(samples(20_000)[39..42], [20_400, 20_500, 20_750]);
    }

    #[test]
    fn safe_is_after_the_last_failure() {
        let larger = [12, 14, 16];
        assert_eq!(safe(10, &larger, &[true, true, true]), Some(10));
        assert_eq!(safe(10, &larger, &[false, true, true]), Some(14));
        assert_eq!(safe(10, &larger, &[true, false, true]), Some(16));
        assert_eq!(safe(10, &larger, &[true, true, false]), None);
    }
}
