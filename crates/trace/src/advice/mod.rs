//! Advice on a recorded run: what held the memory when it ran out, what was stranded, and which policy would have
//! survived on which device.
//!
//! ```text
//!   trace ─▶ what was live at the failure or the peak ─▶ holders
//!         ├▶ the recorded layout, or the native policy up to then ─▶ stranded
//!         └▶ every policy, on this device and on smaller ones ─▶ policies
//! ```
//!
//! [`Advice`] is data only: the command line writes it as text or as JSON. [`Job`] puts that of the ranks of one job together, and
//! [`Comparison`] sets two recordings of one program against each other. Both are made of [`Advice`] alone, wherever that comes
//!from.
//! - I1  replays begin with an empty device. Of a history that begins in the middle, only the blocks that were live then
//!   are known, not where they lay: a policy whose result depends on that gets no verdict on a device that is smaller
//!   than what was held, and none at all where blocks may have been live that the file does not mention.
//!
//! Threads: policies are replayed on [`AdviceOptions::threads`] threads. The result does not depend on their number.

mod causes;
mod compare;
mod gpus;
mod growth;
mod holders;
mod known;
mod limits;
mod moment;
mod policies;
mod ranks;
mod stranded;

pub use causes::Cause;
pub use compare::{Change, Comparison, HolderChange};
pub use gpus::{GPUS, Gpu, UnknownGpu};
pub use growth::Growth;
pub use holders::Holder;
pub use known::KnownReplays;
pub use policies::{PolicyOutcome, Setting};
pub use ranks::{Fit, Job, Odd, PolicyOnRanks, Rank, Spread, Why};
pub use stranded::{FreeOfSize, FreeOfStream, Stranded};

use crate::{Device, Extent, FailedRequest, History, RecordedAllocator, ReplayError, Search, Trace};
use moment::Moment;
use std::fmt;
use std::num::NonZero;

/// Options of [`advise`].
#[derive(Clone)]
pub struct AdviceOptions<'a> {
    /// The device that the run is replayed on.
    pub device: Device,
    /// The policies to replay through.
    pub settings: Vec<Setting>,
    /// Number of threads that replay at the same time.
    pub threads: NonZero<usize>,
    /// Called after each replay, of which there are about [`expected_replays`](Self::expected_replays).
    pub progress: Option<&'a (dyn Fn() + Sync)>,
    /// The outcomes of replays of other recordings, which those of the same ops share.
    pub known: Option<&'a KnownReplays>,
}

impl fmt::Debug for AdviceOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdviceOptions").finish_non_exhaustive()
    }
}

impl AdviceOptions<'_> {
    /// Returns the approximate number of replays, for progress bars.
    #[must_use]
    pub fn expected_replays(&self) -> u64 {
        self.settings.len() as u64 * (1 + Search::EXPECTED_BISECTION)
    }
}

/// Advice on one trace. Serialized, it is the most of a line of `gapless advise --json`, and all of it can be read back.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct Advice {
    /// Name of the trace.
    pub trace: String,
    /// Peak of requested bytes that were live. Here and below, what is asleep does not count as live: it needs no memory.
    pub peak_live_bytes: u64,
    /// Peak of the memory that PyTorch's defaults hold for the run on a device that is never short of memory, in bytes. A request
    /// that was refused at the end is served there. `None` if there is no verdict.
    pub peak_reserved_bytes: Option<u64>,
    /// Memory that an allocator may hold on the device, in bytes.
    pub device_bytes: u64,
    /// Whether the recording does not say how much that is, so that it was chosen from what was live and held.
    pub device_is_assumed: bool,
    /// Number of steps that the recording marks.
    pub steps: u64,
    /// Index of the op that failed in the recorded run, or else with the native policy on this device, if one did.
    pub failed_op: Option<u64>,
    /// Whether the trace begins with the run.
    pub history_complete: bool,
    /// The holders of most memory when the request failed, or else at the peak of live bytes: the largest first.
    pub holders: Vec<Holder>,
    /// The holders of most memory at the peak of live bytes, the largest first: each that has more than a fiftieth of it is there.
    pub peak_holders: Vec<Holder>,
    /// Where the rest of the device's memory was at that moment. `None` if the recording does not say, and the native policy does
    /// not come as far.
    pub stranded: Option<Stranded>,
    /// The requests that were refused and that the run survived, in order.
    pub survived_refusals: Vec<FailedRequest>,
    /// The causes of the refusal that the recording shows, beside what was live.
    pub causes: Vec<Cause>,
    /// Whether the native policy refuses the request too, on the device of the recording. `None` without a recorded failure, and on
    /// another device.
    pub reproduced: Option<bool>,
    /// The memory that grew steadily until the recorded failure.
    pub growth: Vec<Growth>,
    /// The outcome of the trace under each policy on this device, in the order of the settings. Empty if there is no verdict.
    pub policies: Vec<PolicyOutcome>,
    /// The request that failed, if one did.
    pub failed: Option<FailedRequest>,
    /// Whether that is recorded, rather than what the native policy would do.
    pub failure_is_recorded: bool,
    /// Whether `stranded` is recorded.
    pub stranded_is_recorded: bool,
    /// The allocator that the run was recorded with.
    pub recorder: RecordedAllocator,
    /// The first request that the native policy cannot serve on this device, up to the recorded failure.
    pub native_fails: Option<FailedRequest>,
    /// Index of the first op that had not run at the moment of `holders` and `stranded`.
    pub moment_op: u64,
    /// Requested bytes that were live then.
    pub live_bytes: u64,
    /// The facts that are known of the run beside the trace.
    pub history: History,
}

impl Advice {
    /// Returns the policies that survive, the simplest first: the defaults, then settings of PyTorch's allocator, then those that
    /// change the program too, then another allocator. Of one kind, those with the fewest waits and driver calls come first.
    #[must_use]
    pub fn survivors(&self) -> Vec<&PolicyOutcome> {
        let mut survivors: Vec<_> = self.policies.iter().filter(|policy| policy.survives()).collect();
        survivors.sort_by_key(|policy| {
            let PolicyOutcome { setting, host_waits, driver_calls, smallest_device_bytes, .. } = policy;
            policies::simplicity(setting, *host_waits, *driver_calls, *smallest_device_bytes)
        });
        survivors
    }
}

/// Replays `trace` through every policy, and looks at the moment when memory ran out.
///
/// # Errors
/// Returns the errors of [`replay`](crate::replay()).
pub fn advise(trace: &Trace, options: &AdviceOptions<'_>) -> Result<Advice, ReplayError> {
    let moment = Moment::find(trace, &options.device)?;
    let recorded = trace.failed_request();
    let failed = recorded.or(moment.native_fails);
    let history = trace.history();
    // Nothing can be said of any policy.
    let settings = if history.extent == Extent::Unknown { &[][..] } else { &options.settings };
    let policies = policies::replay_each(trace, options, settings)?;
    let is_recorded_device = Device::for_trace(trace).is_ok_and(|device| device == options.device);
    let reproduced = recorded.filter(|_| is_recorded_device).map(|_| moment.native_fails.is_some());
    Ok(Advice {
        trace: trace.name().to_owned(),
        peak_live_bytes: trace.peak_awake_bytes(),
        peak_reserved_bytes: policies::peak_reserved_bytes(trace, &options.device)?,
        device_bytes: options.device.capacity_bytes,
        device_is_assumed: is_recorded_device && trace.header().capacity_bytes.is_none(),
        steps: trace.labels().len() as u64,
        failed_op: failed.map(|failed| failed.op_index),
        history_complete: history.extent == Extent::Whole,
        holders: holders::largest(trace, &moment.live, MOST_HOLDERS),
        peak_holders: holders::largest(trace, &moment::live_at_peak(trace), MOST_PEAK_HOLDERS),
        causes: recorded.map_or_else(Vec::new, |_| causes::of(trace, moment.stranded.as_ref())),
        reproduced,
        growth: recorded.map_or_else(Vec::new, |_| growth::steady(trace, &moment.live, moment.op_index)),
        stranded: moment.stranded,
        stranded_is_recorded: moment.is_recorded,
        recorder: trace.allocator(),
        survived_refusals: trace.survived_refusals().collect(),
        policies,
        failed,
        failure_is_recorded: recorded.is_some(),
        native_fails: moment.native_fails,
        moment_op: moment.op_index,
        live_bytes: moment.live.iter().map(|block| block.bytes).sum(),
        history,
    })
}

/// Number of holders that are named at the moment.
const MOST_HOLDERS: usize = 10;
/// Number of holders that are named at the peak. No more than that have a fiftieth of it each.
const MOST_PEAK_HOLDERS: usize = 50;

#[cfg(test)]
mod tests {
    use super::*;

    /// What is read back is the same, and so is all that is made of it.
    #[test]
    fn what_was_written_is_read_back() {
        let leak: String = (0..8).map(|id| format!("a {id} 10485760 {id}\nm step\n")).collect();
        for text in [
            "a 1 100 0\nf 1\n".to_owned(),
            format!("# capacity_bytes 94371840\n{leak}r 20971520 0\n"),
            format!("# capacity_bytes 94371840\n# external_bytes 1048576\nr 5 0\n{leak}"),
            "Thread,Time,Action,Pointer,Size,Stream\n1,1,allocate,0x1,1048576,0x0\n1,2,free,0x9,4096,0x0\n".to_owned(),
        ] {
            let trace = Trace::read("t", text.as_bytes()).unwrap();
            let device = Device::for_trace(&trace).unwrap();
            let settings = Setting::usual(&trace);
            let options =
                AdviceOptions { device, settings, threads: NonZero::<usize>::MIN, progress: None, known: None };
            let advice = advise(&trace, &options).unwrap();
            let line = serde_json::to_string(&advice).unwrap();
            assert_eq!(serde_json::from_str::<Advice>(&line).unwrap(), advice, "{line}");
        }
    }

    #[test]
    fn what_is_reserved_does_not_depend_on_the_device() {
        let text = "a 1 3145728 0\na 2 3145728 0\nf 1\na 3 20971520 0\n";
        let trace = Trace::read("t", text.as_bytes()).unwrap();
        for capacity_bytes in [1 << 21, 1 << 25, 1 << 40] {
            let device = Device::of(capacity_bytes);
            let options = AdviceOptions {
                device,
                settings: Vec::new(),
                threads: NonZero::<usize>::MIN,
                progress: None,
                known: None,
            };
            // A segment of 20 MiB for the small blocks, and the large one.
            assert_eq!(advise(&trace, &options).unwrap().peak_reserved_bytes, Some(40 << 20));
        }
    }

    #[test]
    fn holders_at_the_peak_are_of_that_moment() {
        let text = "# capacity_bytes 1048576000\na 1 104857600 0\na 2 52428800 0\nf 1\nr 2097152000 0\n";
        let trace = Trace::read("t", text.as_bytes()).unwrap();
        let device = Device::for_trace(&trace).unwrap();
        let options =
            AdviceOptions { device, settings: Vec::new(), threads: NonZero::<usize>::MIN, progress: None, known: None };
        let advice = advise(&trace, &options).unwrap();
        let bytes = |holders: &[Holder]| holders.iter().map(|holder| holder.bytes).collect::<Vec<_>>();
        assert_eq!(
            (bytes(&advice.holders), bytes(&advice.peak_holders)),
            (vec![52_428_800], vec![104_857_600, 52_428_800])
        );
    }
}
