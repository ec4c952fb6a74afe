//! Advice as text: what happened, what would have helped, what fits.

use crate::count::{count, grouped};
use crate::printable;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use gapless::ByteSize;
use gapless_trace::advice::{Advice, Cause, Gpu, Holder, PolicyOutcome, Stranded};
use gapless_trace::{Device, Extent, FailedRequest};
use std::io::{self, Write};

/// Writes all of it.
pub(super) fn write(out: &mut impl Write, advice: &Advice) -> io::Result<()> {
    what_happened(out, advice)?;
    if advice.policies.is_empty() {
        writeln!(out, "\n{NO_VERDICT}\n")?;
        return Ok(());
    }
    what_helps(out, advice)?;
    what_fits(out, advice)?;
    writeln!(out)
}

fn what_happened(out: &mut impl Write, advice: &Advice) -> io::Result<()> {
    let name = printable(&advice.trace);
    let steps = if advice.steps > 0 { format!(" in {}", count(advice.steps, "step")) } else { String::new() };
    writeln!(
        out,
        "{name}: at most {} asked for at once{steps}, on {} with {} for its allocator",
        ByteSize(advice.peak_live_bytes),
        if advice.device_is_assumed { "an assumed device" } else { "a device" },
        ByteSize(advice.device_bytes)
    )?;
    writeln!(out, "\nWhat happened")?;
    match advice.failed {
        Some(failed) => writeln!(
            out,
            "  {} a request of {} at op {}, when {} were live",
            if advice.failure_is_recorded {
                format!("{} refused", advice.recorder)
            } else {
                "PyTorch's defaults would refuse".into()
            },
            ByteSize(failed.bytes),
            grouped(failed.op_index),
            ByteSize(advice.live_bytes)
        )?,
        None => writeln!(
            out,
            "  {}, and nothing would with PyTorch's defaults. At the peak, at op {}, {} were live",
            if advice.survived_refusals.is_empty() { "nothing failed" } else { "nothing failed at the end" },
            grouped(advice.moment_op.saturating_sub(1)),
            ByteSize(advice.live_bytes)
        )?,
    }
    if let Some(failed) = advice.failed.filter(|failed| failed.bytes > Device::MOST_BYTES) {
        writeln!(
            out,
            "  No device has {} bytes: the size itself is wrong, as after an overflow",
            grouped(failed.bytes)
        )?;
    }
    for cause in &advice.causes {
        writeln!(out, "  {}", describe_cause(cause))?;
    }
    if advice.reproduced == Some(false) {
        writeln!(
            out,
            "  The replay does not reproduce the failure: PyTorch's defaults serve this request on this device"
        )?;
    }
    survived(out, &advice.survived_refusals)?;
    earlier(out, advice)?;
    if let Some(stranded) = &advice.stranded {
        gap(out, advice, stranded)?;
    }
    if advice.holders.is_empty() {
        return Ok(());
    }
    writeln!(out, "  The largest holders then:")?;
    for holder in &advice.holders {
        writeln!(out, "    {:>10}  {}", ByteSize(holder.bytes).to_string(), describe(holder))?;
    }
    Ok(())
}

/// Says why a request could not have memory that was free.
fn describe_cause(cause: &Cause) -> String {
    match cause {
        Cause::Limit { device_free_bytes, setting } => format!(
            "The device had {} free, enough for it: a limit refused it, {}",
            ByteSize(*device_free_bytes),
            match setting {
                Some(setting) => printable(setting),
                None => "such as torch.cuda.set_per_process_memory_fraction or a budget".into(),
            }
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
        Cause::Settings { settings } => format!("PyTorch ran with {}", printable(settings)),
    }
}

/// Writes which requests were refused and survived.
fn survived(out: &mut impl Write, refusals: &[FailedRequest]) -> io::Result<()> {
    if refusals.is_empty() {
        return Ok(());
    }
    let listed = refusals.iter().take(MOST_REFUSALS);
    let listed = listed.map(|refused| format!("{} at op {}", ByteSize(refused.bytes), grouped(refused.op_index)));
    let mut listed: Vec<String> = listed.collect();
    if refusals.len() > MOST_REFUSALS {
        listed.push(format!("{} more", refusals.len() - MOST_REFUSALS));
    }
    writeln!(
        out,
        "  {} refused that the run survived, so {} fail again here: {}",
        if refusals.len() == 1 { "A request was" } else { "Requests were" },
        if refusals.len() == 1 { "it may" } else { "they may" },
        listed.join(", ")
    )
}

/// Writes where the native policy fails before the recorded run did.
fn earlier(out: &mut impl Write, advice: &Advice) -> io::Result<()> {
    match (advice.failed.filter(|_| advice.failure_is_recorded), advice.native_fails) {
        (Some(recorded), Some(native)) if native.op_index < recorded.op_index => writeln!(
            out,
            "  Replayed with PyTorch's defaults, it fails earlier: at op {}, with a request of {}",
            grouped(native.op_index),
            ByteSize(native.bytes)
        ),
        _ => Ok(()),
    }
}

/// Writes where the rest of the device was.
fn gap(out: &mut impl Write, advice: &Advice, stranded: &Stranded) -> io::Result<()> {
    let (whose, who) = if advice.stranded_is_recorded {
        ("as recorded", advice.recorder)
    } else {
        ("as PyTorch's defaults lay it out", "PyTorch")
    };
    writeln!(out, "  The rest of the device, {whose}:")?;
    let free = stranded.free_in_whole_pages_bytes + stranded.free_in_partly_used_pages_bytes;
    let blocks: u64 = stranded.by_size.iter().map(|size| size.blocks).sum();
    for (bytes, what) in [
        (stranded.unreserved_bytes, format!("not held by {who}")),
        (
            stranded.free_in_whole_pages_bytes,
            "free in its cache, in whole pages of 2 MiB, which could be mapped elsewhere".to_owned(),
        ),
        (stranded.free_in_partly_used_pages_bytes, "free in its cache, in pages that live blocks use too".to_owned()),
        (stranded.rounding_bytes, "added to live blocks by rounding".to_owned()),
    ] {
        writeln!(out, "    {:>10}  {what}", ByteSize(bytes).to_string())?;
    }
    for (bytes, what) in [
        (stranded.free_in_private_pools_bytes, "free in private pools, for requests of these pools alone".to_owned()),
        (stranded.waiting_bytes, "freed, but still in use by work of other streams".to_owned()),
        (stranded.other_processes_bytes, format!("held by others, beside the {}", ByteSize(advice.device_bytes))),
    ] {
        if bytes > 0 {
            writeln!(out, "    {:>10}  {what}", ByteSize(bytes).to_string())?;
        }
    }
    if blocks > 0 {
        let largest = ByteSize(stranded.largest_free_block_bytes);
        writeln!(out, "  The cache had {} free in {}, the largest {largest}", ByteSize(free), count(blocks, "block"))?;
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
        writeln!(out, "  Of these, each stream can use only its own: {}", parts.join(", "))?;
    }
    Ok(())
}

fn describe(holder: &Holder) -> String {
    let blocks = match holder.block_bytes {
        Some(bytes) => format!("{} of {}", count(holder.blocks, "block"), ByteSize(bytes)),
        None => count(holder.blocks, "block"),
    };
    let age = if holder.oldest_op == holder.newest_op {
        format!("from op {}", grouped(holder.oldest_op))
    } else {
        format!("from ops {} to {}", grouped(holder.oldest_op), grouped(holder.newest_op))
    };
    match &holder.origin {
        Some(origin) => format!("{} ({blocks}, {age})", printable(origin)),
        None => format!("{blocks}, {age}"),
    }
}

fn what_helps(out: &mut impl Write, advice: &Advice) -> io::Result<()> {
    writeln!(out, "\nWhat would have helped, each replayed on this device")?;
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Disabled);
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    table.set_header(["setting", "outcome", "smallest device", "fits", "driver calls", "host waits"]);
    for policy in &advice.policies {
        let mut setting = policy.setting.clone();
        if policy.as_recorded {
            setting.push_str(" (as it ran)");
        }
        let figure = |text: String| right(if policy.not_replayed.is_some() { "-".into() } else { text });
        table.add_row([
            Cell::new(setting),
            Cell::new(outcome(policy)),
            figure(
                policy.smallest_device_bytes.map_or_else(|| "none found".into(), |bytes| ByteSize(bytes).to_string()),
            ),
            Cell::new(gpu(policy)),
            figure(grouped(policy.driver_calls)),
            figure(grouped(policy.host_waits)),
        ]);
    }
    writeln!(out, "{table}")?;
    let mut reasons: Vec<&str> = advice.policies.iter().filter_map(|policy| policy.not_replayed.as_deref()).collect();
    reasons.dedup();
    for reason in reasons {
        writeln!(out, "Not replayed: {reason}.")?;
    }
    verdict(out, advice)
}

/// Writes what to do.
pub(super) fn verdict(out: &mut impl Write, advice: &Advice) -> io::Result<()> {
    if let Some(Cause::Limit { .. }) = advice.causes.first() {
        writeln!(out, "Raise the limit or take it away: the table is about the device without it.")?;
    }
    let survivors = advice.survivors();
    let Some(best) = survivors.first() else { return nothing_helps(out, advice) };
    if survivors.iter().any(|policy| policy.setting == "native") {
        return match advice.reproduced {
            Some(false) => writeln!(out, "PyTorch's defaults survive in the replay, though the run failed: see above."),
            _ => writeln!(out, "PyTorch's defaults survive on this device."),
        };
    }
    writeln!(out, "Needs least: {}", to_paste(best))?;
    let of_pytorch = survivors.iter().find(|policy| policy.setting != GAPLESS);
    let mut tried = advice.policies.iter().filter(|policy| policy.setting != GAPLESS && policy.not_replayed.is_none());
    match of_pytorch {
        Some(policy) if policy.setting != best.setting => {
            writeln!(out, "With PyTorch's own allocator: {}", to_paste(policy))
        }
        Some(_) => Ok(()),
        None if tried.next().is_none() => writeln!(out, "No setting of PyTorch's own allocator was replayed."),
        None => writeln!(out, "No setting of PyTorch's own allocator that was tried survives."),
    }
}

fn nothing_helps(out: &mut impl Write, advice: &Advice) -> io::Result<()> {
    let live = advice.live_bytes.saturating_add(advice.failed.map_or(0, |failed| failed.bytes));
    let largest: Vec<String> = advice.holders.iter().take(3).map(describe).collect();
    writeln!(
        out,
        "Nothing that was tried helps: {} are live at once with the request that failed, of {}. The largest are {}.",
        ByteSize(live.max(advice.peak_live_bytes)),
        ByteSize(advice.device_bytes),
        largest.join("; ")
    )
}

fn what_fits(out: &mut impl Write, advice: &Advice) -> io::Result<()> {
    let least = advice
        .policies
        .iter()
        .filter_map(|policy| Some((policy.smallest_device_bytes?, policy)))
        .min_by_key(|(bytes, _)| *bytes);
    let Some((bytes, policy)) = least else { return Ok(()) };
    writeln!(out, "\nWhat fits")?;
    if !advice.growth.is_empty() {
        return leaks(out, advice);
    }
    match Gpu::smallest_with(bytes) {
        Some(gpu) => writeln!(
            out,
            "  the {} ({} usable) is the smallest GPU of those known here, with {}",
            gpu.name,
            ByteSize(gpu.usable_bytes()),
            policy.setting
        )?,
        None => {
            writeln!(out, "  no GPU known here has the {} that are needed with {}", ByteSize(bytes), policy.setting)?
        }
    }
    if advice.history.extent == Extent::LaterPart {
        writeln!(out, "  (counted from where the history begins: what came before may have needed more)")?;
    }
    if advice.failure_is_recorded {
        writeln!(out, "  (counted until the failure: what would have come after it may need more)")?;
    }
    Ok(())
}

/// Writes what grows, in place of a device that only lasts longer.
fn leaks(out: &mut impl Write, advice: &Advice) -> io::Result<()> {
    writeln!(out, "  no device in the end: memory grows steadily, and a larger one only lasts longer")?;
    for growth in advice.growth.iter().take(MOST_GROWTHS) {
        let every = if growth.by_step { "step".to_owned() } else { count(growth.ops_between, "op") };
        writeln!(
            out,
            "    {:>10}  every {every}, {} times, never freed: {}",
            ByteSize(growth.bytes_each).to_string(),
            grouped(growth.times),
            growth.origin.as_deref().map_or_else(|| "where from is not recorded".into(), printable),
        )?;
    }
    if advice.growth.iter().any(|growth| !growth.by_step) {
        writeln!(out, "  (unless all of this is one step: the recording marks none)")?;
    }
    Ok(())
}

fn outcome(policy: &PolicyOutcome) -> String {
    if policy.not_replayed.is_some() {
        return "not replayed".into();
    }
    policy.oom_op.map_or_else(|| "survives".into(), |op| format!("fails at op {}", grouped(op)))
}

fn gpu(policy: &PolicyOutcome) -> &'static str {
    if policy.not_replayed.is_some() {
        return "-";
    }
    policy.smallest_device_bytes.and_then(Gpu::smallest_with).map_or("none known", |gpu| gpu.name)
}

/// A line that selects the policy.
fn to_paste(policy: &PolicyOutcome) -> String {
    match policy.setting.as_str() {
        GAPLESS => "python -m gapless.torch SCRIPT".into(),
        setting => match setting.strip_suffix(EMPTY_CACHE) {
            None => format!("PYTORCH_ALLOC_CONF={setting}"),
            Some("") => format!("{EMPTY_CACHE} at the end of each step"),
            Some(rest) => {
                format!("PYTORCH_ALLOC_CONF={}, and {EMPTY_CACHE} at the end of each step", rest.trim_end_matches(','))
            }
        },
    }
}

/// Said where no policy was replayed.
pub(super) const NO_VERDICT: &str = "No verdict: the file does not say enough about what was live before it begins.";
const GAPLESS: &str = "gapless";
const EMPTY_CACHE: &str = "torch.cuda.empty_cache()";
/// Most refused requests that are listed.
const MOST_REFUSALS: usize = 8;
/// Most places that memory grows at which are listed.
const MOST_GROWTHS: usize = 3;
/// Most streams whose free memory is listed.
const MOST_STREAMS: usize = 8;
