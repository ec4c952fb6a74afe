//! Advice in words: sentences and rows, for the text and for the page.
//!
//! Names and frames of a recording come out with their control characters escaped.

use crate::count::{count, grouped};
use crate::printable;
use gapless::ByteSize;
use gapless_trace::advice::{Advice, Cause, Gpu, Holder, PolicyOutcome, Stranded};
use gapless_trace::caching::CachingSettings;
use gapless_trace::{Device, Extent, RecordedAllocator};

/// The trace and its device in one line.
pub fn summary(advice: &Advice) -> String {
    let steps = if advice.steps > 0 { format!(" in {}", count(advice.steps, "step")) } else { String::new() };
    format!(
        "{}: at most {} asked for at once{steps}, on {} with {} for its allocator",
        printable(&advice.trace),
        ByteSize(advice.peak_live_bytes),
        if advice.device_is_assumed { "an assumed device" } else { "a device" },
        ByteSize(advice.device_bytes)
    )
}

/// What happened, in sentences without a full stop.
pub fn happened(advice: &Advice) -> Vec<String> {
    let mut said = Vec::new();
    said.push(match advice.failed {
        Some(failed) => format!(
            "{} a request of {} at op {}, when {} were live",
            if advice.failure_is_recorded {
                format!("{} refused", advice.recorder)
            } else {
                "PyTorch's defaults would refuse".into()
            },
            ByteSize(failed.bytes),
            grouped(failed.op_index),
            ByteSize(advice.live_bytes)
        ),
        None => format!(
            "{}{}. At the peak, at op {}, {} were live",
            if advice.survived_refusals.is_empty() { "nothing failed" } else { "nothing failed at the end" },
            if advice.policies.is_empty() { "" } else { ", and nothing would with PyTorch's defaults" },
            grouped(advice.moment_op.saturating_sub(1)),
            ByteSize(advice.live_bytes)
        ),
    });
    if let Some(failed) = advice.failed.filter(|failed| failed.bytes > Device::MOST_BYTES) {
        said.push(format!(
            "No device has {} bytes: the size itself is wrong, as after an overflow",
            grouped(failed.bytes)
        ));
    }
    said.extend(advice.causes.iter().map(cause));
    if advice.reproduced == Some(false) {
        said.push(
            "The replay does not reproduce the failure: PyTorch's defaults serve this request on this device".into(),
        );
    }
    said.extend(survived(advice));
    said.extend(earlier(advice));
    said
}

/// Says why a request could not have memory that was free.
fn cause(cause: &Cause) -> String {
    match cause {
        Cause::Limit { device_free_bytes, at_least_bytes, below_bytes, setting } => format!(
            "The device had {} free, enough for it: a limit refused it, {}. It is at least {}, and less than {}",
            ByteSize(*device_free_bytes),
            match setting {
                Some(setting) => printable(setting),
                None => "such as torch.cuda.set_per_process_memory_fraction or a budget".into(),
            },
            ByteSize(*at_least_bytes),
            ByteSize(*below_bytes),
        ),
        Cause::PrivatePools { pools, free_bytes } => format!(
            "{} lay free in {}, of captured graphs or a MemPool: no other request can use them",
            ByteSize(*free_bytes),
            count(*pools, "private pool"),
        ),
        Cause::WaitingForStreams { bytes } => format!(
            "{} were freed, but work of other streams (record_stream) or a capture still had them",
            ByteSize(*bytes)
        ),
        Cause::Others { bytes } => format!(
            "{} of the device went to others, libraries of the program included, since a request was refused before",
            ByteSize(*bytes)
        ),
        Cause::Settings { settings } => format!("PyTorch ran with {}", printable(settings)),
    }
}

/// Which requests were refused and survived.
fn survived(advice: &Advice) -> Option<String> {
    let refusals = &advice.survived_refusals;
    let listed = refusals.iter().take(MOST_REFUSALS);
    let listed = listed.map(|refused| format!("{} at op {}", ByteSize(refused.bytes), grouped(refused.op_index)));
    let mut listed: Vec<String> = listed.collect();
    if refusals.len() > MOST_REFUSALS {
        listed.push(format!("{} more", refusals.len() - MOST_REFUSALS));
    }
    let (which, may) = match refusals.len() {
        0 => return None,
        1 => ("A request was", "it may"),
        _ => ("Requests were", "they may"),
    };
    Some(format!("{which} refused that the run survived, so {may} fail again here: {}", listed.join(", ")))
}

/// Where the native policy fails before the recorded run did.
fn earlier(advice: &Advice) -> Option<String> {
    let recorded = advice.failed.filter(|_| advice.failure_is_recorded)?;
    let native = advice.native_fails.filter(|native| native.op_index < recorded.op_index)?;
    Some(format!(
        "Replayed with PyTorch's defaults, it fails earlier: at op {}, with a request of {}",
        grouped(native.op_index),
        ByteSize(native.bytes)
    ))
}

/// The part of the device that is not live.
pub struct Rest {
    /// What the parts are of.
    pub heading: String,
    /// How many bytes are where.
    pub parts: Vec<(u64, String)>,
    /// What is said below, in sentences without a full stop.
    pub notes: Vec<String>,
}

/// Where the rest of the device was, if that is known.
pub fn rest(advice: &Advice) -> Option<Rest> {
    let stranded = advice.stranded.as_ref()?;
    let (whose, who) = if advice.stranded_is_recorded {
        ("as recorded", advice.recorder)
    } else {
        ("as PyTorch's defaults lay it out", RecordedAllocator::PyTorch)
    };
    let mut parts = vec![
        (stranded.unreserved_bytes, format!("not held by {who}")),
        (
            stranded.free_in_whole_pages_bytes,
            "free in its cache, in whole pages of 2 MiB, which could be mapped elsewhere".to_owned(),
        ),
        (stranded.free_in_partly_used_pages_bytes, "free in its cache, in pages that live blocks use too".to_owned()),
        (stranded.rounding_bytes, "added to live blocks by rounding".to_owned()),
    ];
    let only_if_any = [
        (stranded.free_in_private_pools_bytes, "free in private pools, for requests of these pools alone".to_owned()),
        (stranded.waiting_bytes, "freed, but still in use by work of other streams".to_owned()),
        (stranded.other_processes_bytes, format!("held by others, beside the {}", ByteSize(advice.device_bytes))),
    ];
    parts.extend(only_if_any.into_iter().filter(|(bytes, _)| *bytes > 0));
    Some(Rest { heading: format!("The rest of the device, {whose}"), parts, notes: free(stranded) })
}

/// Says what was free in the cache, and on which streams.
fn free(stranded: &Stranded) -> Vec<String> {
    let mut said = Vec::new();
    let bytes = stranded.free_in_whole_pages_bytes + stranded.free_in_partly_used_pages_bytes;
    let blocks: u64 = stranded.by_size.iter().map(|size| size.blocks).sum();
    if blocks > 0 {
        let largest = ByteSize(stranded.largest_free_block_bytes);
        said.push(format!(
            "The cache had {} free in {}, the largest {largest}",
            ByteSize(bytes),
            count(blocks, "block")
        ));
    }
    if stranded.by_stream.len() > 1 {
        let mut streams = stranded.by_stream.clone();
        streams.sort_by_key(|free| (std::cmp::Reverse(free.bytes), free.stream));
        let (named, others) = streams.split_at(streams.len().min(MOST_STREAMS));
        let mut parts: Vec<String> =
            named.iter().map(|free| format!("{} of stream {}", ByteSize(free.bytes), free.stream)).collect();
        if !others.is_empty() {
            let bytes = others.iter().map(|free| free.bytes).sum();
            parts.push(format!("{} of {} others", ByteSize(bytes), grouped(others.len() as u64)));
        }
        said.push(format!("Of these, each stream can use only its own: {}", parts.join(", ")));
    }
    said
}

/// What a holder has, without its size.
pub fn holder(holder: &Holder) -> String {
    let blocks = match holder.block_bytes {
        Some(bytes) => format!("{} of {}", count(holder.blocks, "block"), ByteSize(bytes)),
        None => count(holder.blocks, "block"),
    };
    match &holder.origin {
        Some(origin) => format!("{} ({blocks}, {})", printable(origin), age(holder)),
        None => format!("{blocks}, {}", age(holder)),
    }
}

/// When the blocks of a holder were allocated.
pub fn age(holder: &Holder) -> String {
    if holder.oldest_op == holder.newest_op {
        format!("from op {}", grouped(holder.oldest_op))
    } else {
        format!("from ops {} to {}", grouped(holder.oldest_op), grouped(holder.newest_op))
    }
}

/// How a policy ended.
pub fn outcome(policy: &PolicyOutcome) -> String {
    if policy.not_replayed.is_some() {
        return "not replayed".into();
    }
    policy.oom_op.map_or_else(|| "survives".into(), |op| format!("fails at op {}", grouped(op)))
}

/// The smallest device, the driver calls and the waits of a policy.
pub fn figures(policy: &PolicyOutcome) -> [String; 3] {
    if policy.not_replayed.is_some() {
        return ["-", "-", "-"].map(str::to_owned);
    }
    let smallest = policy.smallest_device_bytes;
    [
        match smallest {
            Some(bytes) => ByteSize(bytes).to_string(),
            None if is_limited(policy) => "-".into(),
            None => "none found".into(),
        },
        grouped(policy.driver_calls),
        grouped(policy.host_waits),
    ]
}

/// Why policies were not replayed, and what else is said below the table, in sentences.
pub fn below_the_table(advice: &Advice) -> Vec<String> {
    let mut said: Vec<String> = Vec::new();
    let reasons = advice.policies.iter().filter_map(|policy| policy.not_replayed.as_deref());
    for reason in reasons.map(|reason| format!("Not replayed: {reason}.")) {
        if said.last() != Some(&reason) {
            said.push(reason);
        }
    }
    if advice.policies.iter().any(is_limited) {
        said.push("As it ran: under a limit that refuses the same request. The other rows are without one.".into());
    }
    said
}

/// What to do, in sentences. Where nothing helps, the last one names the largest holders.
pub fn verdict(advice: &Advice) -> Vec<String> {
    let mut said = verdict_in_short(advice);
    let holders: Vec<String> = advice.holders.iter().take(3).map(holder).collect();
    if is_short_of_memory(advice)
        && !holders.is_empty()
        && let Some(last) = said.last_mut()
    {
        last.push_str(&format!(" The largest are {}.", holders.join("; ")));
    }
    said
}

/// Whether nothing helps but to hold less.
fn is_short_of_memory(advice: &Advice) -> bool {
    let is_possible = advice.failed.is_none_or(|failed| failed.bytes <= Device::MOST_BYTES);
    !advice.policies.is_empty() && advice.survivors().is_empty() && advice.growth.is_empty() && is_possible
}

/// What to do, in sentences, for where the holders are named already.
pub fn verdict_in_short(advice: &Advice) -> Vec<String> {
    if advice.policies.is_empty() {
        return vec![NO_VERDICT.into()];
    }
    let mut said = Vec::new();
    if let Some(Cause::Limit { .. }) = advice.causes.first() {
        said.push("Raise the limit or take it away: the table is about the device without it.".into());
    }
    let survivors = advice.survivors();
    let Some(best) = survivors.first() else {
        said.push(nothing_helps(advice));
        return said;
    };
    if caching(best) == Some(CachingSettings::default()) {
        said.push(match advice.reproduced {
            Some(false) => "PyTorch's defaults survive in the replay, though the run failed: see above.".into(),
            _ => "PyTorch's defaults survive on this device.".into(),
        });
        return said;
    }
    said.push(format!("Simplest: {}{}", to_paste(best, advice), margin(best, advice)));
    let least = survivors.iter().min_by_key(|policy| policy.smallest_device_bytes.unwrap_or(u64::MAX));
    if let Some(least) = least.filter(|least| least.smallest_device_bytes < best.smallest_device_bytes) {
        said.push(format!("Needs least: {}{}", to_paste(least, advice), margin(least, advice)));
    }
    if survivors.iter().any(|policy| is_gapless(policy)) {
        said.push("gapless has run on one GPU so far, an NVIDIA H100.".into());
    }
    if survivors.iter().all(|policy| is_gapless(policy)) {
        let tried = advice.policies.iter().any(|policy| !is_gapless(policy) && policy.not_replayed.is_none());
        let what = if tried { "that was tried survives" } else { "was replayed" };
        said.push(format!("No setting of PyTorch's own allocator {what}."));
    }
    said
}

/// Says how much of the device a policy leaves.
fn margin(policy: &PolicyOutcome, advice: &Advice) -> String {
    match policy.smallest_device_bytes.and_then(|bytes| advice.device_bytes.checked_sub(bytes)) {
        Some(spare) => format!(", with {} to spare", ByteSize(spare)),
        None => String::new(),
    }
}

/// Says why nothing helps, and what would.
fn nothing_helps(advice: &Advice) -> String {
    let failed = advice.failed.map_or(0, |failed| failed.bytes);
    let needed = advice.live_bytes.saturating_add(failed).max(advice.peak_live_bytes);
    let device = ByteSize(advice.device_bytes);
    if failed > Device::MOST_BYTES {
        return "Nothing helps: the size of the request that failed has to be mended.".into();
    }
    if !advice.growth.is_empty() {
        return "Nothing helps for long: memory grows steadily, as said below.".into();
    }
    let mut said = match needed.checked_sub(advice.device_bytes).filter(|surplus| *surplus > 0) {
        Some(surplus) => format!(
            "Nothing that was tried helps: {} are live at once with the request that failed, of {device}. It takes {} less, such \
             as a batch that is {} % smaller.",
            ByteSize(needed),
            ByteSize(surplus),
            percent(surplus, needed),
        ),
        None => format!(
            "Nothing that was tried helps, though {} of {device} would do for what was live and the request: {}.",
            ByteSize(needed),
            obstacle(advice),
        ),
    };
    let others = advice.stranded.as_ref().map_or(0, |stranded| stranded.other_processes_bytes);
    if others > 0 {
        said.push_str(&format!(" Others hold {} of the device.", ByteSize(others)));
    }
    said
}

/// Says what keeps free memory from a request.
fn obstacle(advice: &Advice) -> String {
    let mut obstacles = Vec::new();
    if let Some(stranded) = &advice.stranded {
        let free = stranded.free_in_whole_pages_bytes + stranded.free_in_partly_used_pages_bytes;
        let failed = advice.failed.map_or(0, |failed| failed.bytes);
        for (bytes, what) in [
            (stranded.free_in_private_pools_bytes, "in private pools, of which fewer or shared ones would hold less"),
            (stranded.waiting_bytes, "with work of other streams, which fewer uses on other streams would end sooner"),
        ] {
            if bytes > 0 {
                obstacles.push(format!("{} are {what}", ByteSize(bytes)));
            }
        }
        if stranded.by_stream.len() > 1 && free >= failed {
            obstacles.push(format!(
                "{} are free on {} streams, each of which can use only its own, so that fewer streams would hold less",
                ByteSize(free),
                grouped(stranded.by_stream.len() as u64),
            ));
        }
    }
    if obstacles.is_empty() { "free memory lies between live blocks".into() } else { obstacles.join("; ") }
}

/// `part` of `whole` in percent, rounded up.
fn percent(part: u64, whole: u64) -> u64 {
    u64::try_from((u128::from(part) * 100).div_ceil(u128::from(whole.max(1)))).unwrap_or(100)
}

/// Which device the program fits on, in lines; those that belong to the line above begin with blanks.
pub fn fits(advice: &Advice) -> Vec<String> {
    let smallest = |is_considered: fn(&PolicyOutcome) -> bool| {
        let found = advice.policies.iter().filter(|policy| is_considered(policy) && !is_limited(policy));
        found.filter_map(|policy| Some((policy.smallest_device_bytes?, policy))).min_by_key(|(bytes, _)| *bytes)
    };
    let Some((bytes, policy)) = smallest(|_| true) else { return Vec::new() };
    if !advice.growth.is_empty() {
        return leaks(advice);
    }
    let mut said = Vec::new();
    said.push(match Gpu::smallest_with(bytes) {
        Some(gpu) => format!(
            "the {} ({} usable) is the smallest GPU of those known here, with {}",
            gpu.name,
            ByteSize(gpu.usable_bytes()),
            policy.setting
        ),
        None => format!("no GPU known here has the {} that are needed with {}", ByteSize(bytes), policy.setting),
    });
    // Where that is gapless, and PyTorch's own allocator needs another GPU.
    if let Some((own_bytes, own)) = smallest(|policy| !is_gapless(policy))
        && let Some(gpu) = Gpu::smallest_with(own_bytes)
        && Gpu::smallest_with(bytes).is_some_and(|smaller| smaller.name != gpu.name)
    {
        said.push(format!("the {} ({} usable) with {}", gpu.name, ByteSize(gpu.usable_bytes()), own.setting));
    }
    if advice.history.extent == Extent::LaterPart {
        said.push("(counted from where the history begins: what came before may have needed more)".into());
    }
    if advice.failure_is_recorded {
        said.push("(counted until the failure: what would have come after it may need more)".into());
    }
    said
}

/// What grows, in place of a device that only lasts longer.
fn leaks(advice: &Advice) -> Vec<String> {
    let mut said = vec!["no device in the end: memory grows steadily, and a larger one only lasts longer".to_owned()];
    for growth in advice.growth.iter().take(MOST_GROWTHS) {
        let every = if growth.by_step { "step".to_owned() } else { count(growth.ops_between, "op") };
        said.push(format!(
            "  {:>10}  every {every}, {} times, never freed: {}",
            ByteSize(growth.bytes_each).to_string(),
            grouped(growth.times),
            growth.origin.as_deref().map_or_else(|| "where from is not recorded".into(), printable),
        ));
    }
    if advice.growth.iter().any(|growth| !growth.by_step) {
        said.push("(unless all of this is one step: the recording marks none)".into());
    }
    said
}

/// A line that selects the policy. Versions of PyTorch that know `PYTORCH_ALLOC_CONF` know the older name too, and 2.9.1 knows no
/// other for CUDA.
pub fn to_paste(policy: &PolicyOutcome, advice: &Advice) -> String {
    if is_gapless(policy) {
        let conf = match policy.setting.split_once(',') {
            Some((_, conf)) => format!("GAPLESS_CONF={conf} "),
            None => String::new(),
        };
        return if advice.recorder == RecordedAllocator::Rmm {
            format!("{conf}rmm.mr.set_current_device_resource(gapless.rmm.resource())")
        } else {
            format!("{conf}python -m gapless.torch SCRIPT")
        };
    }
    let at_steps = format!("{EMPTY_CACHE} at the end of each step");
    match caching(policy) {
        Some(settings) if settings.empties_cache => {
            let others = CachingSettings { empties_cache: false, ..settings };
            match others == CachingSettings::default() {
                true => at_steps,
                false => format!("PYTORCH_CUDA_ALLOC_CONF={others}, and {at_steps}"),
            }
        }
        _ => format!("PYTORCH_CUDA_ALLOC_CONF={}", policy.setting),
    }
}

/// The settings of PyTorch's allocator, if it is that.
fn caching(policy: &PolicyOutcome) -> Option<CachingSettings> {
    policy.setting.parse().ok()
}

fn is_gapless(policy: &PolicyOutcome) -> bool {
    policy.setting.split(',').next() == Some(GAPLESS)
}

/// Whether the smallest device of a policy is one that a limit of the recorded run leaves a part of.
fn is_limited(policy: &PolicyOutcome) -> bool {
    let is_limit = |part: &str| ["budget:", "per_process_memory_fraction:"].iter().any(|key| part.starts_with(key));
    policy.as_recorded && policy.setting.split(',').any(is_limit)
}

/// Said where no policy was replayed.
pub const NO_VERDICT: &str = "No verdict: the file does not say enough about what was live before it begins.";
const GAPLESS: &str = "gapless";
const EMPTY_CACHE: &str = "torch.cuda.empty_cache()";
/// Most refused requests that are listed.
const MOST_REFUSALS: usize = 8;
/// Most places that memory grows at which are listed.
const MOST_GROWTHS: usize = 3;
/// Most streams whose free memory is listed.
const MOST_STREAMS: usize = 8;
