//! Advice as text: what happened, what would have helped, what fits.

use crate::count::{count, grouped};
use crate::printable;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table};
use gapless::ByteSize;
use gapless_trace::advice::{Advice, Cause, Gpu, Holder, PolicyOutcome, Recorder, Stranded};
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
                format!("{} refused", advice.recorder.name())
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
        Cause::Others { bytes } => {
            format!(
                "{} of the device went to others, libraries of the program included, since a request was refused before",
                ByteSize(*bytes)
            )
        }
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
        ("as recorded", advice.recorder.name())
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
    table.load_preset(HEADER_LINE).set_content_arrangement(ContentArrangement::Disabled);
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    let head = ["smallest device", "calls", "waits"].map(|name| right(name.replacen(' ', "\n", 1)));
    table.set_header(["setting", "outcome"].map(Cell::new).into_iter().chain(head));
    for policy in &advice.policies {
        let figure = |text: String| right(if policy.not_replayed.is_some() { "-".into() } else { text });
        table.add_row([
            Cell::new(in_lines(policy)),
            Cell::new(outcome(policy)),
            figure(
                policy.smallest_device_bytes.map_or_else(|| "none found".into(), |bytes| ByteSize(bytes).to_string()),
            ),
            figure(grouped(policy.driver_calls)),
            figure(grouped(policy.host_waits)),
        ]);
    }
    writeln!(out, "{}", in_columns(table))?;
    let mut reasons: Vec<&str> = advice.policies.iter().filter_map(|policy| policy.not_replayed.as_deref()).collect();
    reasons.dedup();
    for reason in reasons {
        writeln!(out, "Not replayed: {reason}.")?;
    }
    verdict(out, advice)
}

/// Returns a table without space on its left.
pub(super) fn in_columns(mut table: Table) -> String {
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((u16::from(index > 0), 1));
    }
    table.trim_fmt()
}

/// Returns all of it.
pub(super) fn whole(advice: &Advice) -> String {
    let mut text = Vec::new();
    write(&mut text, advice).expect("a vector takes every text");
    String::from_utf8_lossy(&text).trim_end().to_owned()
}

/// Returns what to do, by itself.
pub(super) fn verdict_alone(advice: &Advice) -> String {
    if advice.policies.is_empty() {
        return NO_VERDICT.into();
    }
    let mut text = Vec::new();
    verdict(&mut text, advice).expect("a vector takes every text");
    String::from_utf8_lossy(&text).trim_end().to_owned()
}

/// Writes what to do.
fn verdict(out: &mut impl Write, advice: &Advice) -> io::Result<()> {
    if let Some(Cause::Limit { .. }) = advice.causes.first() {
        writeln!(out, "Raise the limit or take it away: the table is about the device without it.")?;
    }
    let survivors = advice.survivors();
    let Some(best) = survivors.first() else { return nothing_helps(out, advice) };
    if best.setting == NATIVE {
        return match advice.reproduced {
            Some(false) => writeln!(out, "PyTorch's defaults survive in the replay, though the run failed: see above."),
            _ => writeln!(out, "PyTorch's defaults survive on this device."),
        };
    }
    writeln!(out, "Simplest: {}{}", to_paste(best, advice), margin(best, advice))?;
    let least = survivors.iter().min_by_key(|policy| policy.smallest_device_bytes.unwrap_or(u64::MAX));
    if let Some(least) = least.filter(|least| least.smallest_device_bytes < best.smallest_device_bytes) {
        writeln!(out, "Needs least: {}{}", to_paste(least, advice), margin(least, advice))?;
    }
    let of_pytorch = |policy: &&PolicyOutcome| policy.setting != GAPLESS;
    if survivors.iter().any(|policy| policy.setting == GAPLESS) {
        writeln!(out, "gapless has run on one GPU so far, an NVIDIA H100.")?;
    }
    if !survivors.iter().copied().any(|policy| of_pytorch(&policy)) {
        let tried = advice.policies.iter().filter(of_pytorch).any(|policy| policy.not_replayed.is_none());
        let said = if tried { "that was tried survives" } else { "was replayed" };
        writeln!(out, "No setting of PyTorch's own allocator {said}.")?;
    }
    Ok(())
}

/// Says how much of the device a policy leaves.
fn margin(policy: &PolicyOutcome, advice: &Advice) -> String {
    match policy.smallest_device_bytes.and_then(|bytes| advice.device_bytes.checked_sub(bytes)) {
        Some(spare) => format!(", with {} to spare", ByteSize(spare)),
        None => String::new(),
    }
}

/// Writes why nothing helps, and what would.
fn nothing_helps(out: &mut impl Write, advice: &Advice) -> io::Result<()> {
    let failed = advice.failed.map_or(0, |failed| failed.bytes);
    let needed = advice.live_bytes.saturating_add(failed).max(advice.peak_live_bytes);
    let device = ByteSize(advice.device_bytes);
    let largest: Vec<String> = advice.holders.iter().take(3).map(describe).collect();
    if failed > Device::MOST_BYTES {
        return writeln!(out, "Nothing helps: the size of the request that failed has to be mended.");
    }
    if !advice.growth.is_empty() {
        return writeln!(out, "Nothing helps for long: memory grows steadily, as said below.");
    }
    if let Some(surplus) = needed.checked_sub(advice.device_bytes).filter(|surplus| *surplus > 0) {
        write!(
            out,
            "Nothing that was tried helps: {} are live at once with the request that failed, of {device}. It takes {} less, such \
             as a batch that is {} % smaller.",
            ByteSize(needed),
            ByteSize(surplus),
            percent(surplus, needed),
        )?;
    } else {
        write!(
            out,
            "Nothing that was tried helps, though {} of {device} would do for what was live and the request: {}.",
            ByteSize(needed),
            obstacle(advice),
        )?;
    }
    if let Some(others) =
        advice.stranded.as_ref().map(|stranded| stranded.other_processes_bytes).filter(|bytes| *bytes > 0)
    {
        write!(out, " Others hold {} of the device.", ByteSize(others))?;
    }
    if largest.is_empty() { writeln!(out) } else { writeln!(out, " The largest are {}.", largest.join("; ")) }
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

fn what_fits(out: &mut impl Write, advice: &Advice) -> io::Result<()> {
    let smallest = |is_considered: fn(&PolicyOutcome) -> bool| {
        let found = advice.policies.iter().filter(|policy| is_considered(policy));
        found.filter_map(|policy| Some((policy.smallest_device_bytes?, policy))).min_by_key(|(bytes, _)| *bytes)
    };
    let Some((bytes, policy)) = smallest(|_| true) else { return Ok(()) };
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
    // Where that is gapless, and PyTorch's own allocator needs another GPU.
    if let Some((own_bytes, own)) = smallest(|policy| policy.setting != GAPLESS)
        && let Some(gpu) = Gpu::smallest_with(own_bytes)
        && Gpu::smallest_with(bytes).is_some_and(|smaller| smaller.name != gpu.name)
    {
        writeln!(out, "  the {} ({} usable) with {}", gpu.name, ByteSize(gpu.usable_bytes()), own.setting)?;
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

/// The setting in short lines, so that the table is narrow.
fn in_lines(policy: &PolicyOutcome) -> String {
    let mut text = policy.setting.replace(',', ",\n");
    if text.lines().any(|line| line.len() > LONGEST_SETTING) {
        text = text.replace(':', ":\n");
    }
    if policy.as_recorded {
        text.push_str("\n(as it ran)");
    }
    text
}

/// A line that selects the policy. Versions of PyTorch that know `PYTORCH_ALLOC_CONF` know the older name too, and 2.9.1 knows no
/// other for CUDA.
pub(super) fn to_paste(policy: &PolicyOutcome, advice: &Advice) -> String {
    match policy.setting.as_str() {
        GAPLESS if advice.recorder == Recorder::Rmm => {
            "rmm.mr.set_current_device_resource(gapless.rmm.resource())".into()
        }
        GAPLESS => "python -m gapless.torch SCRIPT".into(),
        setting => match setting.strip_suffix(EMPTY_CACHE) {
            None => format!("PYTORCH_CUDA_ALLOC_CONF={setting}"),
            Some("") => format!("{EMPTY_CACHE} at the end of each step"),
            Some(rest) => {
                let rest = rest.trim_end_matches(',');
                format!("PYTORCH_CUDA_ALLOC_CONF={rest}, and {EMPTY_CACHE} at the end of each step")
            }
        },
    }
}

/// Said where no policy was replayed.
pub(super) const NO_VERDICT: &str = "No verdict: the file does not say enough about what was live before it begins.";
/// A table with a line below its header, and between columns.
pub(super) const HEADER_LINE: &str = "     ═╪ ┆          ";
/// Most characters of a line in the column of settings, if it can be broken.
const LONGEST_SETTING: usize = 29;
const GAPLESS: &str = "gapless";
const NATIVE: &str = "native";
const EMPTY_CACHE: &str = "torch.cuda.empty_cache()";
/// Most refused requests that are listed.
const MOST_REFUSALS: usize = 8;
/// Most places that memory grows at which are listed.
const MOST_GROWTHS: usize = 3;
/// Most streams whose free memory is listed.
const MOST_STREAMS: usize = 8;
