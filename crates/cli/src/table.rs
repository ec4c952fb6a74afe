//! The results of one trace, for a person: one column a policy.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use gapless::ByteSize;
use gapless_trace::ReplayResult;
use std::io::{self, Write};

/// Writes a headline, the table, and the report of every replay that ran out of memory. `results` are of one trace.
pub(super) fn write(out: &mut impl Write, results: &[ReplayResult]) -> io::Result<()> {
    let Some(first) = results.first() else { return Ok(()) };
    writeln!(
        out,
        "{}: {} ops, peak live {}, on a {} device of {}",
        first.trace,
        grouped(first.ops),
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
    ("smallest device that survives", |result| capacity(result, result.min_capacity_bytes)),
    ("safe from there on up", |result| capacity(result, result.safe_capacity_bytes)),
    ("driver calls in all", |result| grouped(result.driver_calls.total())),
    ("driver calls, typical later step", later_step),
    ("modelled driver time", |result| result.modelled_driver_seconds.map_or_else(|| DASH.into(), seconds)),
    ("host waits", |result| grouped(result.host_waits)),
    ("processor time per op", |result| format!("{:.0} ns", result.ns_per_op)),
];

fn outcome(result: &ReplayResult) -> String {
    match &result.oom {
        None => "survives".into(),
        Some(oom) => format!("out of memory, op {}", grouped(oom.op_index)),
    }
}

/// A size, and how many times the peak of live bytes that is.
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

/// The median of the steps after the second; the first ones fill the cache.
fn later_step(result: &ReplayResult) -> String {
    let mut later = result.driver_calls_per_step.get(2..).unwrap_or_default().to_vec();
    later.sort_unstable();
    later.get(later.len() / 2).map_or_else(|| DASH.into(), |&calls| grouped(calls))
}

fn seconds(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.1} ms", seconds * 1e3) } else { format!("{seconds:.2} s") }
}

/// `1234567` as `1,234,567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

const DASH: &str = "-";

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn digits_are_grouped_by_three() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), text);
        }
    }
}
