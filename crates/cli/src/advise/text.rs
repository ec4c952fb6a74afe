//! Advice as text: what happened, what would have helped, what fits.

use crate::count::{count, grouped};
use crate::printable;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use gapless::ByteSize;
use gapless_trace::advice::{Advice, Gpu, Holder, PolicyOutcome, Stranded};
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
    writeln!(
        out,
        "{name}: at most {} asked for at once, on a device with {} for its allocator",
        ByteSize(advice.peak_live_bytes),
        ByteSize(advice.device_bytes)
    )?;
    writeln!(out, "\nWhat happened")?;
    match advice.failed {
        Some(failed) => writeln!(
            out,
            "  {} of {} at op {}, when {} were live",
            if advice.failure_is_recorded { "PyTorch refused a request" } else { "PyTorch would refuse a request" },
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
    writeln!(out, "  The rest of the device, as PyTorch's defaults lay it out:")?;
    let free = stranded.free_in_whole_pages_bytes + stranded.free_in_partly_used_pages_bytes;
    let blocks: u64 = stranded.by_size.iter().map(|size| size.blocks).sum();
    for (bytes, what) in [
        (stranded.unreserved_bytes, "not held by PyTorch".to_owned()),
        (
            stranded.free_in_whole_pages_bytes,
            "free in its cache, in whole pages of 2 MiB, which could be mapped elsewhere".to_owned(),
        ),
        (stranded.free_in_partly_used_pages_bytes, "free in its cache, in pages that live blocks use too".to_owned()),
        (stranded.rounding_bytes, "added to live blocks by rounding".to_owned()),
    ] {
        writeln!(out, "    {:>10}  {what}", ByteSize(bytes).to_string())?;
    }
    if stranded.other_processes_bytes > 0 {
        let others = ByteSize(stranded.other_processes_bytes);
        writeln!(out, "    {:>10}  held by others, beside the {}", others.to_string(), ByteSize(advice.device_bytes))?;
    }
    if blocks > 0 {
        let largest = ByteSize(stranded.largest_free_block_bytes);
        writeln!(out, "  The cache had {} free in {}, the largest {largest}", ByteSize(free), count(blocks, "block"))?;
    }
    if stranded.by_stream.len() > 1 {
        let streams: Vec<String> = stranded
            .by_stream
            .iter()
            .take(MOST_STREAMS)
            .map(|free| format!("{} of stream {}", ByteSize(free.bytes), free.stream))
            .collect();
        writeln!(out, "  Of these, each stream can use only its own: {}", streams.join(", "))?;
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
        table.add_row([
            Cell::new(&policy.setting),
            Cell::new(outcome(policy)),
            right(
                policy.smallest_device_bytes.map_or_else(|| "none found".into(), |bytes| ByteSize(bytes).to_string()),
            ),
            Cell::new(gpu(policy)),
            right(grouped(policy.driver_calls)),
            right(grouped(policy.host_waits)),
        ]);
    }
    writeln!(out, "{table}")?;
    verdict(out, advice)
}

/// Writes what to do.
pub(super) fn verdict(out: &mut impl Write, advice: &Advice) -> io::Result<()> {
    let survivors = advice.survivors();
    let Some(best) = survivors.first() else { return nothing_helps(out, advice) };
    if survivors.iter().any(|policy| policy.setting == "native") {
        return writeln!(out, "PyTorch's defaults survive on this device.");
    }
    writeln!(out, "Needs least: {}", to_paste(best))?;
    let of_pytorch = survivors.iter().find(|policy| policy.setting != GAPLESS);
    match of_pytorch {
        Some(policy) if policy.setting != best.setting => {
            writeln!(out, "With PyTorch's own allocator: {}", to_paste(policy))
        }
        Some(_) => Ok(()),
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
    Ok(())
}

fn outcome(policy: &PolicyOutcome) -> String {
    policy.oom_op.map_or_else(|| "survives".into(), |op| format!("fails at op {}", grouped(op)))
}

fn gpu(policy: &PolicyOutcome) -> &'static str {
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
/// Most streams whose free memory is listed.
const MOST_STREAMS: usize = 8;
