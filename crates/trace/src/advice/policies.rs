//! The outcome of a trace under each policy: whether it survives on a device, and the smallest device on which it does.

use super::known::{Digest, Question, Replayed};
use super::{AdviceOptions, limits};
use crate::caching::{CachingSettings, ParseSettingsError};
use crate::replay::{PolicySettings, probe, replay_alone};
use crate::{
    Device, Extent, GaplessSettings, Op, PolicyKind, RecordedAllocator, RecordedSettings, ReplayError, ReplayResult,
    Search, Trace,
};
use gapless::ByteSize;
use std::fmt;
use std::num::NonZero;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A policy with its settings. As text `gapless` with settings as in `GAPLESS_CONF`, or what [`CachingSettings`] are as text.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Setting {
    /// gapless under these settings.
    Gapless(GaplessSettings),
    /// PyTorch's allocator under these settings.
    Caching(CachingSettings),
}

impl Setting {
    /// Returns the policy, and the settings of each, of which those of the other one are the defaults.
    pub(crate) fn policy(self) -> PolicySettings {
        match self {
            Self::Gapless(settings) => (PolicyKind::Gapless, settings, CachingSettings::default()),
            Self::Caching(settings) => (PolicyKind::Caching, GaplessSettings::default(), settings),
        }
    }

    /// Returns the settings to compare by default: those that PyTorch's documentation and the articles about it advise,
    /// and gapless. Settings that were on in the recorded run are among them. A log of RMM is replayed through a
    /// caching allocator with PyTorch's defaults, and gapless.
    #[must_use]
    pub fn usual(trace: &Trace) -> Vec<Self> {
        // Settings of PyTorch's allocator mean nothing to RMM.
        let applies = |text: &&&str| match text {
            &&(NATIVE | GAPLESS) => true,
            text => {
                trace.allocator() != RecordedAllocator::Rmm
                    && (!text.contains("empty_cache") || trace.labels().len() > 0)
            }
        };
        let texts = USUAL.iter().filter(applies);
        let mut settings: Vec<Self> =
            texts.map(|text| text.parse().expect("the usual settings are settings")).collect();
        if let Some(recorded) = Self::recorded(trace).filter(|recorded| !settings.contains(recorded)) {
            settings.insert(1, recorded);
        }
        settings
    }

    /// Returns the allocator and the settings that were on in the recorded run, unless they were PyTorch's defaults or the file
    /// does not say. A limit is one that the recording allows: it refuses the same request.
    pub fn recorded(trace: &Trace) -> Option<Self> {
        let limit = limits::of(trace);
        match trace.allocator() {
            RecordedAllocator::Rmm => None,
            RecordedAllocator::Gapless => {
                let budget_bytes = limit.map(|limit| limit.start);
                Some(Self::Gapless(GaplessSettings { budget_bytes, ..GaplessSettings::default() }))
            }
            RecordedAllocator::PyTorch => {
                let recorded = trace.settings();
                let wanted = recorded.and_then(RecordedSettings::memory_fraction);
                let fraction = limit.zip(trace.header().capacity_bytes);
                let fraction = fraction.and_then(|(limit, whole)| limits::part_in(&limit, whole, wanted));
                let settings = recorded.cloned().unwrap_or_default().caching(fraction);
                (settings != CachingSettings::default()).then_some(Self::Caching(settings))
            }
        }
    }

    /// Returns a setting that does the same to `trace`: the same one, of all that differ in nothing that matters to it.
    pub(super) fn in_effect(self, trace: &Trace) -> Self {
        let requests = trace.ops().iter().filter_map(|op| match *op {
            Op::Alloc { bytes, .. } | Op::Refused { bytes, .. } => Some(bytes),
            Op::Free { .. } | Op::Mark { .. } | Op::Sleep { .. } | Op::Wake { .. } => None,
        });
        match self {
            Self::Caching(settings) => Self::Caching(settings.in_effect(requests)),
            Self::Gapless(_) => self,
        }
    }

    /// Replays `trace` through the policy on `device`.
    ///
    /// # Errors
    /// Returns the errors of [`replay`](crate::replay()).
    pub fn replay(&self, trace: &Trace, device: &Device) -> Result<ReplayResult, ReplayError> {
        replay_alone(trace, device, self.policy())
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gapless(settings) => settings.fmt(f),
            Self::Caching(settings) => settings.fmt(f),
        }
    }
}

/// Reads `gapless` without settings, or settings of PyTorch's allocator.
impl FromStr for Setting {
    type Err = ParseSettingsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == GAPLESS { Ok(Self::Gapless(GaplessSettings::default())) } else { text.parse().map(Self::Caching) }
    }
}

/// The outcome of a trace under one policy.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PolicyOutcome {
    /// The policy: `native`, `gapless` with settings as in `GAPLESS_CONF`, or the settings of PyTorch's allocator to paste.
    pub setting: String,
    /// Whether the recorded run had these settings.
    pub as_recorded: bool,
    /// Why a replay would say nothing about the run, if so: then the figures below are empty.
    pub not_replayed: Option<String>,
    /// Index of the op that failed on the device, or `None` if the policy survives.
    pub oom_op: Option<u64>,
    /// The smallest device on which the policy survives, in bytes. `None` if none was found, and for the recorded settings under a
    /// limit.
    pub smallest_device_bytes: Option<u64>,
    /// Number of driver calls on the device, up to the failure.
    pub driver_calls: u64,
    /// Number of times that the host waited on the device, up to the failure.
    pub host_waits: u64,
}

impl PolicyOutcome {
    /// Returns whether the policy was replayed and survived.
    #[must_use]
    pub const fn survives(&self) -> bool {
        self.not_replayed.is_none() && self.oom_op.is_none()
    }
}

/// Returns what survivors are put in order by, the simplest first; see [`Advice::survivors`](super::Advice::survivors).
pub(super) fn simplicity(
    setting: &str,
    host_waits: u64,
    driver_calls: u64,
    smallest_device_bytes: Option<u64>,
) -> impl Ord + use<> {
    let kind = match setting.parse() {
        Ok(Setting::Caching(settings)) if settings == CachingSettings::default() => 0,
        Ok(Setting::Caching(settings)) if !settings.empties_cache => 1,
        Ok(Setting::Caching(_)) => 2,
        Ok(Setting::Gapless(_)) | Err(_) => 3,
    };
    (kind, host_waits, driver_calls, smallest_device_bytes.unwrap_or(u64::MAX))
}

/// Replays `trace` through each of `settings`.
pub(super) fn replay_each(
    trace: &Trace,
    options: &AdviceOptions<'_>,
    settings: &[Setting],
) -> Result<Vec<PolicyOutcome>, ReplayError> {
    let ops = options.known.map(|_| Digest::of(trace));
    let next = AtomicUsize::new(0);
    let work = || {
        let mut found = Vec::new();
        loop {
            // The last first: more replays of gapless survive than of the others, so that it takes longest.
            let left = settings.len().checked_sub(1 + next.fetch_add(1, Ordering::Relaxed));
            let Some(index) = left else { return found };
            found.push((index, outcome(trace, ops, options, &settings[index])));
        }
    };
    let mut all: Vec<(usize, Result<PolicyOutcome, ReplayError>)> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..options.threads.get().min(settings.len())).map(|_| scope.spawn(work)).collect();
        let mut all = work();
        for thread in others {
            all.extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        all
    });
    all.sort_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, outcome)| outcome).collect()
}

fn outcome(
    trace: &Trace,
    ops: Option<Digest>,
    options: &AdviceOptions<'_>,
    setting: &Setting,
) -> Result<PolicyOutcome, ReplayError> {
    let device = &options.device;
    let as_recorded = Setting::recorded(trace) == Some(*setting);
    let history = trace.history();
    let not_replayed = no_verdict(trace, setting, device);
    // Which part of another device the limit of the recorded run would be is not known.
    let searches = !(as_recorded && limits::of(trace).is_some());
    let replayed = match (&not_replayed, options.known.zip(ops)) {
        (Some(_), _) => Replayed { oom_op: None, smallest_device_bytes: None, driver_calls: 0, host_waits: 0 },
        (None, Some((known, ops))) => {
            let setting = setting.in_effect(trace);
            let question = Question { ops, device: *device, setting: format!("{setting:?}"), searches };
            known.answer(question, || replay_and_search(trace, options, &setting, searches))?
        }
        (None, None) => replay_and_search(trace, options, setting, searches)?,
    };
    // What was held before the history begins is known to have been enough, and nothing smaller is.
    let least = match (history.extent, setting) {
        (Extent::LaterPart, Setting::Caching(_)) => history.held_at_start_bytes.unwrap_or(0),
        _ => 0,
    };
    Ok(PolicyOutcome {
        setting: setting.to_string(),
        as_recorded,
        not_replayed,
        oom_op: replayed.oom_op,
        smallest_device_bytes: replayed.smallest_device_bytes.map(|bytes| bytes.max(least)),
        driver_calls: replayed.driver_calls,
        host_waits: replayed.host_waits,
    })
}

/// Replays a trace through a policy on the device, and on others if the smallest one is wanted.
fn replay_and_search(
    trace: &Trace,
    options: &AdviceOptions<'_>,
    setting: &Setting,
    searches: bool,
) -> Result<Replayed, ReplayError> {
    let device = &options.device;
    let (result, _) = probe(trace, device, setting.policy())?;
    if let Some(progress) = options.progress {
        progress();
    }
    let (policy, gapless, caching) = setting.policy();
    let search = Search {
        trace,
        policy,
        gapless,
        caching,
        lag_ops: device.lag_ops,
        threads: NonZero::<usize>::MIN,
        progress: options.progress,
    };
    let known = Some((device.capacity_bytes, &result));
    let smallest_device_bytes = if searches { search.min_capacity_bytes(known)? } else { None };
    Ok(Replayed {
        smallest_device_bytes,
        driver_calls: result.driver_calls.total(),
        host_waits: result.host_waits,
        oom_op: result.oom.map(|oom| oom.op_index),
    })
}

/// Returns the peak of the memory that PyTorch's defaults hold on a device like `device` that is never short of memory, in bytes,
/// or `None` if a replay says nothing about the run.
pub(super) fn peak_reserved_bytes(trace: &Trace, device: &Device) -> Result<Option<u64>, ReplayError> {
    let native = Setting::Caching(CachingSettings::default());
    let ample = Device { lag_ops: device.lag_ops, ..Device::of(Device::MOST_BYTES) };
    if no_verdict(trace, &native, &ample).is_some() {
        return Ok(None);
    }
    probe(trace, &ample, native.policy()).map(|(result, _)| Some(result.peak_reserved_bytes))
}

/// Returns why a replay on `device` says nothing about the run, if it does not.
fn no_verdict(trace: &Trace, setting: &Setting, device: &Device) -> Option<String> {
    let history = trace.history();
    match (history.extent, setting) {
        (_, Setting::Caching(caching)) if caching.expandable_segments && trace.sleeps() => {
            Some("memory sleeps, which expandable segments cannot".into())
        }
        (Extent::Whole, _) | (Extent::LaterPart, Setting::Gapless(_)) => None,
        (Extent::LaterPart, Setting::Caching(_)) => match history.held_at_start_bytes {
            Some(held) if held <= device.capacity_bytes => None,
            Some(held) => Some(format!(
                "{} were held when the history begins, more than the device has, and where they lay is not known",
                ByteSize(held)
            )),
            None => Some("what was held when the history begins is not known".into()),
        },
        (Extent::Unknown, _) => Some("what was live when the history begins is not known".into()),
    }
}

const GAPLESS: &str = "gapless";
const NATIVE: &str = "native";
const USUAL: [&str; 10] = [
    NATIVE,
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "max_split_size_mb:512",
    "roundup_power2_divisions:8",
    "garbage_collection_threshold:0.8,per_process_memory_fraction:1",
    "torch.cuda.empty_cache()",
    GAPLESS,
];
