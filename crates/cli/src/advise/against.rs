//! Two recordings of one program: what has changed, as text or as JSON, and whether that is too much.

use super::tolerance::Tolerance;
use super::{AdviseArguments, print, text};
use crate::{Failure, Outcome};
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table};
use gapless::ByteSize;
use gapless_report::result::{FileResult, Found, VERSION};
use gapless_report::{printable, words};
use gapless_trace::Extent;
use gapless_trace::advice::{Advice, Change, Comparison, HolderChange};
use std::io::{self, Write};

/// The object of `--json`.
#[derive(serde::Serialize)]
struct Compared<'a> {
    version: u32,
    old: &'a str,
    new: &'a str,
    tolerance_percent: f64,
    /// Whether the exit code is 3.
    regression: bool,
    #[serde(flatten)]
    comparison: &'a Comparison,
}

/// Shows what has changed.
pub(super) fn show(arguments: &AdviseArguments, old: &FileResult, new: &FileResult) -> Result<Outcome, Failure> {
    let (Some(before), Some(after)) = (usable(old), usable(new)) else { return Ok(Outcome::BadInput) };
    let Tolerance(percent) = arguments.tolerance.unwrap_or_default();
    let comparison = Comparison::of(before, after);
    let too_much = comparison.peak.exceeds(percent);
    let regression = too_much || comparison.fails_now;
    if arguments.json {
        let (old, new, tolerance_percent) = (&*old.file, &*new.file, percent);
        print(&Compared { version: VERSION, old, new, tolerance_percent, regression, comparison: &comparison })?;
    } else {
        let mut out = io::stdout().lock();
        writeln!(out, "{} against {}\n", printable(&new.file), printable(&old.file))?;
        write(&mut out, &comparison)?;
        let verdict = if too_much {
            let grown = share(&comparison.peak);
            let grown = grown.trim_start_matches('+');
            format!("The peak grew by {grown}, more than the {percent} % that are tolerated.")
        } else {
            format!("The peak did not grow by more than the {percent} % that are tolerated.")
        };
        writeln!(out, "{verdict}")?;
        if comparison.fails_now {
            writeln!(out, "The new run ends with a request that was refused, and the old one did not.")?;
        }
        writeln!(out)?;
    }
    Ok(if regression { Outcome::OutOfMemory } else { Outcome::Success })
}

/// Returns the advice that can be compared. Says why, if there is none.
fn usable(result: &FileResult) -> Option<&Advice> {
    let reason = match &result.found {
        Found::Advice(advice) if advice.history.extent == Extent::Unknown => words::NO_VERDICT,
        Found::Advice(advice) => return Some(advice),
        Found::Error { error } => error,
    };
    eprintln!("error: {}: {}", printable(&result.file), printable(reason));
    None
}

fn write(out: &mut impl Write, comparison: &Comparison) -> io::Result<()> {
    let mut table = table();
    table.set_header([Cell::new("")].into_iter().chain(["old", "new", "change"].map(right)));
    let figures = [("most asked for at once", Some(&comparison.peak)), (RESERVED, comparison.reserved.as_ref())];
    for (name, change) in figures {
        let Some(change) = change else { continue };
        table.add_row([
            Cell::new(name),
            right(&ByteSize(change.old_bytes).to_string()),
            right(&ByteSize(change.new_bytes).to_string()),
            right(&share(change)),
        ]);
    }
    writeln!(out, "{}\n", text::in_columns(table))?;
    let (more, less): (Vec<_>, Vec<_>) = comparison.holders.iter().partition(|change| change.growth_bytes > 0);
    for (changes, what) in [(more, "Holds more at the peak"), (less.into_iter().rev().collect(), "Holds less")] {
        if !changes.is_empty() {
            writeln!(out, "{what}\n{}\n", holders(&changes))?;
        }
    }
    Ok(())
}

fn holders(changes: &[&HolderChange]) -> String {
    let mut table = table();
    table.set_header(["change", "old", "new"].map(right).into_iter().chain([Cell::new("by")]));
    let size = |bytes: Option<u64>| bytes.map_or_else(|| "not listed".into(), |bytes| ByteSize(bytes).to_string());
    for change in changes.iter().take(MOST_HOLDERS) {
        let grown = u64::try_from(change.growth_bytes.unsigned_abs()).unwrap_or(u64::MAX);
        let sign = if change.growth_bytes < 0 { "-" } else { "+" };
        let by = match (&change.origin, change.block_bytes) {
            (Some(origin), _) => printable(origin),
            (None, Some(bytes)) => format!("blocks of {}", ByteSize(bytes)),
            (None, None) => "blocks of several sizes".into(),
        };
        table.add_row([
            right(&format!("{sign}{}", ByteSize(grown))),
            right(&size(change.old_bytes)),
            right(&size(change.new_bytes)),
            Cell::new(by),
        ]);
    }
    let rest = changes.len().saturating_sub(MOST_HOLDERS);
    let text = text::in_columns(table);
    if rest > 0 { format!("{text}\n({rest} more)") } else { text }
}

fn table() -> Table {
    let mut table = Table::new();
    table.load_style(text::HEADER_LINE).set_content_arrangement(ContentArrangement::Disabled);
    table
}

fn right(text: &str) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

/// The change in percent of the old figure.
fn share(change: &Change) -> String {
    #[allow(clippy::cast_precision_loss, reason = "a share with two decimals")]
    let (old, new) = (change.old_bytes as f64, change.new_bytes as f64);
    match change.old_bytes {
        0 if change.new_bytes == 0 => "none".into(),
        0 => "all of it".into(),
        _ => format!("{:+.2} %", (new - old) / old * 100.0),
    }
}

const RESERVED: &str = "reserved, with PyTorch's defaults";
/// Most holders that are listed each way.
const MOST_HOLDERS: usize = 10;
