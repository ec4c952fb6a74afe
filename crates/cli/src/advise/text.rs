//! Advice as text: what happened, what would have helped, what fits.

use comfy_table::{Cell, CellAlignment, ContentArrangement, ContentLineStyle, LineStyle, Table, TableStyle};
use gapless::ByteSize;
use gapless_report::words;
use gapless_trace::advice::{Advice, PolicyOutcome};
use std::io::{self, Write};

/// Writes all of it.
pub(super) fn write(out: &mut impl Write, advice: &Advice) -> io::Result<()> {
    writeln!(out, "{}", words::summary(advice))?;
    what_happened(out, advice)?;
    if advice.policies.is_empty() {
        writeln!(out)?;
    } else {
        what_helps(out, advice)?;
    }
    for line in words::verdict(advice) {
        writeln!(out, "{line}")?;
    }
    let fits = words::fits(advice);
    if !fits.is_empty() {
        writeln!(out, "\nWhat fits")?;
    }
    for line in fits {
        writeln!(out, "  {line}")?;
    }
    writeln!(out)
}

fn what_happened(out: &mut impl Write, advice: &Advice) -> io::Result<()> {
    writeln!(out, "\nWhat happened")?;
    for line in words::happened(advice) {
        writeln!(out, "  {line}")?;
    }
    if let Some(rest) = words::rest(advice) {
        writeln!(out, "  {}:", rest.heading)?;
        for (bytes, what) in rest.parts {
            writeln!(out, "    {:>10}  {what}", ByteSize(bytes).to_string())?;
        }
        for line in rest.notes {
            writeln!(out, "  {line}")?;
        }
    }
    if advice.holders.is_empty() {
        return Ok(());
    }
    writeln!(out, "  The largest holders then:")?;
    for holder in &advice.holders {
        writeln!(out, "    {:>10}  {}", ByteSize(holder.bytes).to_string(), words::holder(holder))?;
    }
    Ok(())
}

fn what_helps(out: &mut impl Write, advice: &Advice) -> io::Result<()> {
    writeln!(out, "\nWhat would have helped, each replayed on this device")?;
    let mut table = Table::new();
    table.load_style(HEADER_LINE).set_content_arrangement(ContentArrangement::Disabled);
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    let head = ["smallest device", "calls", "waits"].map(|name| right(name.replacen(' ', "\n", 1)));
    table.set_header(["setting", "outcome"].map(Cell::new).into_iter().chain(head));
    for policy in &advice.policies {
        let mut outcome = words::outcome(policy);
        if outcome.len() > LONGEST_OUTCOME {
            outcome = outcome.replacen(" op ", " op\n", 1);
        }
        let cells = [Cell::new(in_lines(policy)), Cell::new(outcome)];
        table.add_row(cells.into_iter().chain(words::figures(policy).map(right)));
    }
    writeln!(out, "{}", in_columns(table))?;
    for line in words::below_the_table(advice) {
        writeln!(out, "{line}")?;
    }
    Ok(())
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

/// A table with a line below its header, and between columns.
pub(super) const HEADER_LINE: TableStyle = TableStyle::new()
    .header_lines(ContentLineStyle::none().junction('┆'))
    .header_separator(LineStyle::none().fill('═').junction('╪'))
    .content_lines(ContentLineStyle::none().junction('┆'));
/// Most characters of a line in the column of settings, if it can be broken.
const LONGEST_SETTING: usize = 29;
/// Most characters of an outcome in one line: with the widest figures, the table has 80 columns then.
const LONGEST_OUTCOME: usize = 18;
