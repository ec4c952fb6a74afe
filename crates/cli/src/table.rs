//! The results of one trace as a table, with a column for each policy.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use gapless::ByteSize;
use gapless_report::count::{count, grouped};
use gapless_report::printable;
use gapless_trace::{Phase, PhaseKind, ReplayResult, SearchResult};
use std::io::{self, Write};

/// Writes a headline, the table, and the report of every replay that ran out of memory. All `results` belong to one
/// trace.
pub(super) fn write(out: &mut impl Write, results: &[ReplayResult]) -> io::Result<()> {
    let Some(first) = results.first() else { return Ok(()) };
    let costs = first.costs.map(|costs| format!(", costs: {costs}")).unwrap_or_default();
    writeln!(
        out,
        "{}: {}, peak live {}, on a {} device of {}{costs}",
        printable(&first.trace),
        count(first.ops, "op"),
        ByteSize(first.peak_live_bytes),
        first.driver,
        ByteSize(first.capacity_bytes),
    )?;
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Disabled);
    let names = results.iter().map(|result| Cell::new(result.policy).set_alignment(CellAlignment::Right));
    table.set_header(std::iter::once(Cell::new("")).chain(names));
    let sleeps = results.iter().any(|result| !result.phases.is_empty());
    for (label, cell) in ROWS.iter().chain(PHASE_ROWS.iter().filter(|_| sleeps)) {
        let cells = results.iter().map(|result| Cell::new(cell(result)).set_alignment(CellAlignment::Right));
        table.add_row(std::iter::once(Cell::new(label)).chain(cells));
    }
    writeln!(out, "{table}")?;
    for result in results {
        if let Some(oom) = &result.oom {
            writeln!(out, "\n{} ran out of memory at op {}:\n{}", result.policy, grouped(oom.op_index), oom.report)?;
        }
    }
    writeln!(out)
}

type CellOf = fn(&ReplayResult) -> String;

const ROWS: [(&str, CellOf); 10] = [
    ("outcome", outcome),
    ("peak live", |result| ByteSize(result.peak_live_bytes).to_string()),
    ("peak reserved", |result| of_peak(result, result.peak_reserved_bytes)),
    ("smallest device", |result| capacity(result, |found| found.min_capacity_bytes)),
    ("safe from this size up", |result| capacity(result, |found| found.safe_capacity_bytes)),
    ("driver calls", |result| grouped(result.driver_calls.total())),
    ("calls in a later step", later_step),
    ("modelled driver time", |result| result.modelled_driver_seconds.map_or_else(|| DASH.into(), seconds)),
    ("host waits", |result| grouped(result.host_waits)),
    ("CPU time per op", |result| format!("{:.0} ns", result.ns_per_op)),
];

/// The rows of a trace that sleeps.
const PHASE_ROWS: [(&str, CellOf); 6] = [
    ("peak awake", |result| ByteSize(result.peak_awake_bytes).to_string()),
    ("sleeps, wakes", |result| format!("{}, {}", phases(result, PhaseKind::Sleep), phases(result, PhaseKind::Wake))),
    ("copied out / live", |result| over_live(result, PhaseKind::Sleep, |phase| phase.copied_bytes)),
    ("mapped again / live", |result| over_live(result, PhaseKind::Wake, |phase| phase.mapped_bytes)),
    ("modelled time of a sleep", |result| phase_time(result, PhaseKind::Sleep)),
    ("modelled time of a wake", |result| phase_time(result, PhaseKind::Wake)),
];

/// Number of sleeps, or of wakes.
fn phases(result: &ReplayResult, kind: PhaseKind) -> String {
    grouped(result.phases.iter().filter(|phase| phase.kind == kind).count() as u64)
}

/// Bytes of all sleeps or wakes over what was live of them, and the most of one. Those whose bytes are discarded copy nothing.
fn over_live(result: &ReplayResult, kind: PhaseKind, bytes: fn(&Phase) -> u64) -> String {
    let (mut sum, mut live, mut most) = (0, 0, 0.0_f64);
    for phase in result.phases_of(kind).filter(|phase| bytes(phase) > 0) {
        (sum, live) = (sum + bytes(phase), live + phase.live_bytes);
        most = most.max(ratio(bytes(phase), phase.live_bytes));
    }
    if live == 0 { DASH.into() } else { format!("{:.4} (at most {most:.4})", ratio(sum, live)) }
}

#[allow(clippy::cast_precision_loss, reason = "a ratio with four decimals")]
fn ratio(bytes: u64, live_bytes: u64) -> f64 {
    bytes as f64 / live_bytes as f64
}

/// The mean, and the most.
fn phase_time(result: &ReplayResult, kind: PhaseKind) -> String {
    let times: Vec<f64> = result.phases_of(kind).filter_map(|phase| phase.modelled_driver_seconds).collect();
    if times.is_empty() {
        return DASH.into();
    }
    #[allow(clippy::cast_precision_loss, reason = "traces have far fewer than 2^52 phases")]
    let mean = times.iter().sum::<f64>() / times.len() as f64;
    format!("{} (at most {})", seconds(mean), seconds(times.iter().copied().fold(0.0, f64::max)))
}

fn outcome(result: &ReplayResult) -> String {
    match &result.oom {
        None => "survives".into(),
        Some(oom) => format!("fails at op {}", grouped(oom.op_index)),
    }
}

/// A size, and its ratio to the peak of bytes that are live and awake.
fn of_peak(result: &ReplayResult, bytes: u64) -> String {
    if result.peak_awake_bytes == 0 {
        return ByteSize(bytes).to_string();
    }
    #[allow(clippy::cast_precision_loss, reason = "a ratio with three decimals")]
    let ratio = bytes as f64 / result.peak_awake_bytes as f64;
    format!("{} ({ratio:.3} x)", ByteSize(bytes))
}

fn capacity(result: &ReplayResult, of: fn(SearchResult) -> Option<u64>) -> String {
    match result.search.map(of) {
        None => DASH.into(),
        Some(None) => "none found".into(),
        Some(Some(bytes)) => of_peak(result, bytes),
    }
}

/// The median over the steps after the second; the first two fill the cache.
fn later_step(result: &ReplayResult) -> String {
    let mut later = result.driver_calls_per_step.get(2..).unwrap_or_default().to_vec();
    later.sort_unstable();
    later.get(later.len() / 2).map_or_else(|| DASH.into(), |&calls| grouped(calls))
}

fn seconds(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.1} ms", seconds * 1e3) } else { format!("{seconds:.2} s") }
}

const DASH: &str = "-";
