//! Advice on the ranks of one job, each of which has a recording of its own, put together.

use super::policies::simplicity;
use super::{Advice, Gpu, PolicyOutcome, Setting};
use crate::Extent;

/// A rank of a job.
#[derive(Clone, Copy, Debug)]
pub struct Rank<'a> {
    /// Its name, which no other rank has.
    pub name: &'a str,
    /// The advice on its recording.
    pub advice: &'a Advice,
}

/// The advice on all ranks of a job together. Serialized, it is the last line of `gapless advise --json` for several files. Lists
/// of ranks have their names, in the order in which the ranks were given.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Job {
    /// Number of ranks.
    pub ranks: u64,
    /// The ranks without a verdict. Neither their peaks nor their policies count below.
    pub without_verdict: Vec<String>,
    /// The ranks whose recorded run ended with a request that failed.
    pub failed: Vec<String>,
    /// The ranks whose memory grew steadily until the recorded failure.
    pub growing: Vec<String>,
    /// The ranks whose history does not begin with the run.
    pub incomplete: Vec<String>,
    /// The peaks of requested bytes that were live. `None` without a rank that has a verdict.
    pub peak_live_bytes: Option<Spread>,
    /// The rank that differs from all others, if one does.
    pub odd: Option<Odd>,
    /// The policies, in the order in which the ranks have them.
    pub policies: Vec<PolicyOnRanks>,
    /// The policies that survive on every rank with a verdict, each on its own device: the simplest first, as
    /// [`Advice::survivors`] has them.
    pub survivors: Vec<String>,
    /// The policy that needs the smallest device for every rank, and the one of PyTorch's own allocator if that is another one.
    pub fits: Vec<Fit>,
}

/// The smallest, the middle and the largest of several figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Spread {
    /// The smallest figure.
    pub least: u64,
    /// The figure in the middle; of an even number, the one halfway between the two in the middle.
    pub median: u64,
    /// The largest figure.
    pub most: u64,
}

/// The rank that differs from all others.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Odd {
    /// Its name.
    pub rank: String,
    /// What is different.
    pub why: Why,
}

/// What makes a rank the odd one. The first that applies is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// It alone failed.
    FailedAlone,
    /// It alone did not fail, of at least three.
    SurvivedAlone,
    /// Its peak differs from the median of at least three by more than one part in twenty, and at least twice as much as that of
    /// any other rank.
    Peak,
}

/// A policy on all ranks.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct PolicyOnRanks {
    /// The policy, as [`PolicyOutcome::setting`] has it.
    pub setting: String,
    /// Number of ranks with a verdict on it.
    pub replayed_on: u64,
    /// The ranks with a verdict on which it does not survive, or was not replayed.
    pub fails_on: Vec<String>,
    /// The smallest device on which it survives on every rank, in bytes. `None` if there is no such device, or if it was not
    /// replayed on every rank.
    pub smallest_device_bytes: Option<u64>,
    /// Number of driver calls on all ranks.
    pub driver_calls: u64,
    /// Number of times that a host waited on its device, on all ranks.
    pub host_waits: u64,
}

/// A device on which every rank fits.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Fit {
    /// The policy that it fits with.
    pub setting: String,
    /// The largest of the smallest devices of the ranks, in bytes.
    pub device_bytes: u64,
    /// Name of the smallest GPU that has so much for an allocator, if one of those in [`GPUS`](super::GPUS) has.
    pub gpu: Option<&'static str>,
}

impl Job {
    /// Puts the advice on the ranks together.
    #[must_use]
    pub fn of(ranks: &[Rank<'_>]) -> Self {
        let names = |is_listed: &dyn Fn(&Advice) -> bool| {
            let listed = ranks.iter().filter(|rank| is_listed(rank.advice));
            listed.map(|rank| rank.name.to_owned()).collect::<Vec<_>>()
        };
        let with_verdict: Vec<Rank<'_>> =
            ranks.iter().copied().filter(|rank| rank.advice.history.extent != Extent::Unknown).collect();
        let peak_live_bytes = Spread::of(with_verdict.iter().map(|rank| rank.advice.peak_live_bytes).collect());
        let policies = policies(&with_verdict);
        let mut survivors: Vec<&PolicyOnRanks> = policies.iter().filter(|policy| policy.fails_on.is_empty()).collect();
        survivors.sort_by_key(|policy| {
            simplicity(&policy.setting, policy.host_waits, policy.driver_calls, policy.smallest_device_bytes)
        });
        Self {
            ranks: ranks.len() as u64,
            without_verdict: names(&|advice| advice.history.extent == Extent::Unknown),
            failed: names(&|advice| advice.failure_is_recorded),
            growing: names(&|advice| !advice.growth.is_empty()),
            incomplete: names(&|advice| !advice.history_complete),
            peak_live_bytes,
            odd: odd(ranks, &with_verdict, peak_live_bytes),
            survivors: survivors.into_iter().map(|policy| policy.setting.clone()).collect(),
            fits: fits(&policies),
            policies,
        }
    }
}

impl Spread {
    fn of(mut figures: Vec<u64>) -> Option<Self> {
        figures.sort_unstable();
        let (least, most) = (*figures.first()?, *figures.last()?);
        let (below, above) = (figures[(figures.len() - 1) / 2], figures[figures.len() / 2]);
        Some(Self { least, median: below.midpoint(above), most })
    }
}

fn policies(ranks: &[Rank<'_>]) -> Vec<PolicyOnRanks> {
    let mut settings: Vec<&str> = Vec::new();
    for policy in ranks.iter().flat_map(|rank| &rank.advice.policies) {
        if !settings.contains(&&*policy.setting) {
            settings.push(&policy.setting);
        }
    }
    settings.into_iter().map(|setting| on_ranks(setting, ranks)).collect()
}

fn on_ranks(setting: &str, ranks: &[Rank<'_>]) -> PolicyOnRanks {
    let mut all = PolicyOnRanks {
        setting: setting.to_owned(),
        replayed_on: 0,
        fails_on: Vec::new(),
        smallest_device_bytes: Some(0),
        driver_calls: 0,
        host_waits: 0,
    };
    for rank in ranks {
        let of_rank = |policy: &&PolicyOutcome| policy.setting == setting && policy.not_replayed.is_none();
        let outcome = rank.advice.policies.iter().find(of_rank);
        if !outcome.is_some_and(PolicyOutcome::survives) {
            all.fails_on.push(rank.name.to_owned());
        }
        let needed = outcome.and_then(|outcome| outcome.smallest_device_bytes);
        all.smallest_device_bytes = all.smallest_device_bytes.zip(needed).map(|(most, needed)| most.max(needed));
        if let Some(outcome) = outcome {
            all.replayed_on += 1;
            all.driver_calls = all.driver_calls.saturating_add(outcome.driver_calls);
            all.host_waits = all.host_waits.saturating_add(outcome.host_waits);
        }
    }
    all
}

fn fits(policies: &[PolicyOnRanks]) -> Vec<Fit> {
    let smallest = |is_considered: fn(&PolicyOnRanks) -> bool| {
        let considered = policies.iter().filter(|policy| is_considered(policy));
        let found = considered.filter_map(|policy| Some((policy.smallest_device_bytes?, policy)));
        found.min_by_key(|(bytes, _)| *bytes)
    };
    let own: fn(&PolicyOnRanks) -> bool = |policy| !matches!(policy.setting.parse(), Ok(Setting::Gapless(_)));
    let mut found: Vec<_> = [smallest(|_| true), smallest(own)].into_iter().flatten().collect();
    found.dedup_by(|a, b| a.1.setting == b.1.setting);
    let fit = |(device_bytes, policy): (u64, &PolicyOnRanks)| Fit {
        setting: policy.setting.clone(),
        device_bytes,
        gpu: Gpu::smallest_with(device_bytes).map(|gpu| gpu.name),
    };
    found.into_iter().map(fit).collect()
}

fn odd(ranks: &[Rank<'_>], with_verdict: &[Rank<'_>], peaks: Option<Spread>) -> Option<Odd> {
    let only =
        |mut found: Vec<&Rank<'_>>| if found.len() == 1 { found.pop().map(|rank| rank.name.to_owned()) } else { None };
    let (failed, survived): (Vec<_>, Vec<_>) = ranks.iter().partition(|rank| rank.advice.failure_is_recorded);
    let (others_survived, enough) = (!survived.is_empty(), ranks.len() >= LEAST_RANKS);
    if let Some(rank) = only(failed).filter(|_| others_survived) {
        return Some(Odd { rank, why: Why::FailedAlone });
    }
    if let Some(rank) = only(survived).filter(|_| enough) {
        return Some(Odd { rank, why: Why::SurvivedAlone });
    }
    let median = peaks.filter(|_| with_verdict.len() >= LEAST_RANKS)?.median;
    let mut distances: Vec<(u64, &str)> =
        with_verdict.iter().map(|rank| (rank.advice.peak_live_bytes.abs_diff(median), rank.name)).collect();
    distances.sort_unstable_by_key(|(distance, _)| std::cmp::Reverse(*distance));
    let [(farthest, rank), (second, _), ..] = *distances else { return None };
    let stands_out = farthest > median / ODD_PART && farthest / 2 >= second;
    stands_out.then(|| Odd { rank: rank.to_owned(), why: Why::Peak })
}

/// Fewest ranks of which one can be the odd one by its peak.
const LEAST_RANKS: usize = 3;
/// A peak stands out if it differs from the median by more than this part of it: one in twenty.
const ODD_PART: u64 = 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advice::{AdviceOptions, advise};
    use crate::{Device, Trace};
    use std::num::NonZero;

    const MIB: u64 = 1 << 20;

    fn advice(text: &str, settings: &[&str]) -> Advice {
        let trace = Trace::read("t", text.as_bytes()).unwrap();
        let device = Device::for_trace(&trace).unwrap();
        let settings = settings.iter().map(|text| text.parse().unwrap()).collect();
        advise(&trace, &AdviceOptions { device, settings, threads: NonZero::<usize>::MIN, progress: None, known: None })
            .unwrap()
    }

    /// Ranks with these peaks in MiB; those of `failed` are refused a request of 1 MiB at the end.
    fn job(peaks: &[u64], failed: &[usize]) -> Job {
        let of = |(index, peak): (usize, &u64)| {
            let end = if failed.contains(&index) { "r 1048576 0\n" } else { "" };
            advice(&format!("# capacity_bytes {}\na 1 {} 0\n{end}", 4096 * MIB, peak * MIB), &["native", "gapless"])
        };
        let all: Vec<(String, Advice)> = peaks.iter().enumerate().map(|it| (it.0.to_string(), of(it))).collect();
        Job::of(&all.iter().map(|(name, advice)| Rank { name, advice }).collect::<Vec<_>>())
    }

    fn odd_of(peaks: &[u64], failed: &[usize]) -> Option<(String, Why)> {
        job(peaks, failed).odd.map(|odd| (odd.rank, odd.why))
    }

    #[test]
    fn the_odd_rank_is_named_where_there_is_one() {
        let named = |rank: &str, why| Some((rank.to_owned(), why));
        assert_eq!(odd_of(&[100, 100, 100, 100], &[2]), named("2", Why::FailedAlone));
        assert_eq!(odd_of(&[100, 100], &[1]), named("1", Why::FailedAlone));
        assert_eq!(odd_of(&[100, 100, 100], &[0, 2]), named("1", Why::SurvivedAlone));
        // A failure says more than a peak.
        assert_eq!(odd_of(&[100, 200, 100], &[2]), named("2", Why::FailedAlone));
        for failed in [&[][..], &[0, 1, 2, 3]] {
            assert_eq!(odd_of(&[100, 101, 150, 100], failed), named("2", Why::Peak));
            assert_eq!(odd_of(&[100, 101, 50, 100], failed), named("2", Why::Peak));
        }
    }

    #[test]
    fn no_rank_is_odd_where_all_are_alike_or_many_differ() {
        for (peaks, failed) in [
            (&[100][..], &[0][..]),
            (&[100, 500], &[]),
            (&[100, 500], &[0, 1]),
            (&[100, 100, 100], &[]),
            (&[100, 100, 105], &[]),
            // The stages of a pipeline, and two that stand out.
            (&[100, 120, 140, 160], &[]),
            (&[100, 100, 100, 100, 300, 290], &[]),
            (&[100, 100, 300, 300], &[]),
        ] {
            assert_eq!(odd_of(peaks, failed), None, "{peaks:?} {failed:?}");
        }
        assert_eq!(odd_of(&[], &[]), None);
        // What PyTorch's defaults would do in a replay is no failure.
        let (fits, fails) = (advice("a 1 1048576 0\n", &["native"]), advice(&fragmented(), &["native"]));
        assert!(fits.failed.is_none() && fails.failed.is_some());
        let job = Job::of(&[Rank { name: "fits", advice: &fits }, Rank { name: "fails", advice: &fails }]);
        assert_eq!((job.odd, job.failed), (None, Vec::new()));
    }

    #[test]
    fn peaks_are_summed_up_by_their_spread() {
        let spread =
            |peaks: &[u64]| job(peaks, &[]).peak_live_bytes.map(|it| (it.least / MIB, it.median / MIB, it.most / MIB));
        assert_eq!(spread(&[7]), Some((7, 7, 7)));
        assert_eq!(spread(&[9, 5, 6]), Some((5, 6, 9)));
        assert_eq!(spread(&[8, 2, 4, 6]), Some((2, 5, 8)));
        assert_eq!(spread(&[]), None);
    }

    /// A device of 170 MiB with 40 blocks of 4 MiB, every other one freed, and a request of 64 MiB.
    fn fragmented() -> String {
        let blocks = (0..40).map(|id| format!("a {id} 4194304 0\n"));
        let frees = (0..40).step_by(2).map(|id| format!("f {id}\n"));
        let all: String = blocks.chain(frees).collect();
        format!("# capacity_bytes 178257920\n{all}a 99 67108864 0\n")
    }

    #[test]
    fn a_policy_survives_if_it_does_on_every_rank() {
        let settings = ["gapless", "max_split_size_mb:64", "native"];
        let (easy, hard) =
            (advice("# capacity_bytes 178257920\na 1 1048576 0\n", &settings), advice(&fragmented(), &settings));
        let ranks = [Rank { name: "easy", advice: &easy }, Rank { name: "hard", advice: &hard }];
        let job = Job::of(&ranks);
        let names = |policies: Vec<&PolicyOutcome>| policies.iter().map(|it| it.setting.clone()).collect::<Vec<_>>();
        assert_eq!(names(easy.survivors()), ["native", "max_split_size_mb:64", "gapless"], "the simplest first");
        assert_eq!((&job.survivors, names(hard.survivors())), (&names(hard.survivors()), vec!["gapless".to_owned()]));
        let of = |setting: &str| job.policies.iter().find(|policy| policy.setting == setting).unwrap();
        assert_eq!((of("native").replayed_on, &*of("native").fails_on), (2, &["hard".to_owned()][..]));
        // The device that fits all is the largest of the smallest.
        for (setting, fit) in [("gapless", &job.fits[0]), ("max_split_size_mb:64", &job.fits[1])] {
            let needs = |advice: &Advice| {
                let policy = advice.policies.iter().find(|policy| policy.setting == setting).unwrap();
                policy.smallest_device_bytes.unwrap()
            };
            assert!(needs(&easy) < needs(&hard));
            assert_eq!((&*fit.setting, fit.device_bytes), (setting, needs(&hard)));
        }
        // The order does not matter.
        assert_eq!(Job::of(&[ranks[1], ranks[0]]).survivors, job.survivors);
    }

    #[test]
    fn a_policy_that_was_not_replayed_on_every_rank_is_no_advice() {
        let (one, other) = (advice("a 1 1048576 0\n", &["native", "gapless"]), advice("a 1 1048576 0\n", &["native"]));
        let job = Job::of(&[Rank { name: "one", advice: &one }, Rank { name: "other", advice: &other }]);
        assert_eq!(job.survivors, ["native"]);
        assert_eq!((job.policies[1].replayed_on, job.policies[1].smallest_device_bytes), (1, None));
        assert_eq!(job.fits.len(), 1);
    }
}
