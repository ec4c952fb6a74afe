//! The results of one trace as a table, with a column for each policy.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use gapless::ByteSize;
use gapless_report::count::{count, grouped};
use gapless_report::printable;
use gapless_trace::ReplayResult;
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
    table.load_preset(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Disabled);
    let names = results.iter().map(|result| Cell::new(result.policy).set_alignment(CellAlignment::Right));
    table.set_header(std::iter::once(Cell::new("")).chain(names));
    for (label, cell) in ROWS {
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
    ("smallest device", |result| capacity(result, result.min_capacity_bytes)),
    ("safe from this size up", |result| capacity(result, result.safe_capacity_bytes)),
    ("driver calls", |result| grouped(result.driver_calls.total())),
    ("calls in a later step", later_step),
    ("modelled driver time", |result| result.modelled_driver_seconds.map_or_else(|| DASH.into(), seconds)),
    ("host waits", |result| grouped(result.host_waits)),
    ("CPU time per op", |result| format!("{:.0} ns", result.ns_per_op)),
];

fn outcome(result: &ReplayResult) -> String {
    match &result.oom {
        None => "survives".into(),
        Some(oom) => format!("fails at op {}", grouped(oom.op_index)),
    }
}

/// A size, and its ratio to the peak of live bytes.
fn of_peak(result: &ReplayResult, bytes: u64) -> String {
    if result.peak_live_bytes == 0 {
        return ByteSize(bytes).to_string();
    }
    #[allow(clippy::cast_precision_loss, reason = "a ratio with three decimals")]
    let ratio = bytes as f64 / result.peak_live_bytes as f64;
    format!("{} ({ratio:.3} x)", ByteSize(bytes))
}

fn capacity(result: &ReplayResult, found: Option<Option<u64>>) -> String {
    match found {
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
