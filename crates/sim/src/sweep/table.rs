//! The table of a sweep.

use super::results::{Case, Finding, Results};
use crate::program::Told;
use crate::sarif;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use gapless::ByteSize;
use gapless_sim_libcuda::held::Held;
use std::fmt::Write as _;
use std::io::{self, Write};

/// Writes the table, in which calls in a row with one outcome share a line, and below it what was found.
pub fn write(out: &mut impl Write, results: &Results) -> io::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["function", "call", "code", "the program ended with", "held more", "found"]);
    let steps = if results.every == 1 { String::new() } else { format!(" by {}", results.every) };
    for run in results.cases.chunk_by(have_one_outcome) {
        let (first, last) = (&run[0], &run[run.len() - 1]);
        let calls = match run.len() {
            1 => first.call.to_string(),
            _ => format!("{} to {}{steps}", first.call, last.call),
        };
        table.add_row(row(results, first, calls));
    }
    writeln!(out, "{table}")?;
    let plain = &results.plain;
    if plain.held_bytes > 0 {
        writeln!(out, "{} are held without a fault too.", ByteSize(plain.held_bytes))?;
    }
    for differing in &plain.differing {
        let [first, second] = differing.calls;
        let text = "the fault of a call may hit another one next time";
        writeln!(
            out,
            "{} was called {first} and {second} times in two runs without a fault: {text}.",
            differing.function
        )?;
    }
    if !plain.told.broken.is_empty() {
        writeln!(out, "Without a fault, the program broke {}.", sarif::rules(&plain.told.broken))?;
    }
    if !plain.told.held.is_empty() {
        let held: Vec<String> = plain.told.held.iter().map(Held::amount).collect();
        writeln!(out, "Without a fault, the program held {} at its end.", held.join(", "))?;
    }
    writeln!(out, "{}", summary(results))?;
    if let Some(case) = results.cases.iter().find(|case| case.is_found()) {
        let fault = format!("{}:{}:{}", case.function.name, case.call, case.code);
        writeln!(out, "See one again with --fail {fault} in the place of --sweep.")?;
    }
    Ok(())
}

/// How many runs there were, and how many of each finding.
fn summary(results: &Results) -> String {
    let count = |wanted: Finding| results.cases.iter().filter(|case| case.finding == Some(wanted)).count();
    let mut text = format!("{} of {} runs", results.cases.len(), results.runs);
    if results.cases.len() == results.runs {
        text = format!("{} runs", results.runs);
    }
    let found = [
        (count(Finding::Crashed), "crashed"),
        (count(Finding::TimeLimit), "ran into the time limit"),
        (count(Finding::HeldMemory), "held memory"),
    ];
    let _ = write!(text, ": {} {}", found[0].0, found[0].1);
    for (number, what) in &found[1..] {
        let _ = write!(text, ", {number} {what}");
    }
    let broke = results.cases.iter().filter(|case| !case.told.broken.is_empty()).count();
    if broke > 0 {
        let _ = write!(text, ", {broke} broke a rule");
    }
    text
}

/// Whether two calls share a line.
fn have_one_outcome(one: &Case, next: &Case) -> bool {
    let (mut one, mut next) = (one.clone(), next.clone());
    let have_same_rules = one.rules() == next.rules();
    one.call = next.call;
    (one.told, next.told) = (Told::default(), Told::default());
    have_same_rules && one == next
}

fn row(results: &Results, case: &Case, calls: String) -> Vec<Cell> {
    let more = case.held_bytes.map_or_else(
        || "-".into(),
        |held| match held.saturating_sub(results.plain.held_bytes) {
            0 => String::new(),
            more => ByteSize(more).to_string(),
        },
    );
    let rules: Vec<&str> = case.rules().into_iter().collect();
    let found = match case.finding {
        Some(Finding::Crashed) => "crashed",
        Some(Finding::TimeLimit) => "time limit",
        Some(Finding::HeldMemory) => "held memory",
        None if !case.reached => "(not called)",
        None if !more.is_empty() && more != "-" => "(held)",
        None => "",
    };
    let found = [&[found][..], &rules].concat().into_iter().filter(|it| !it.is_empty()).collect::<Vec<_>>().join(", ");
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    vec![
        Cell::new(case.function.name),
        right(calls),
        right(case.code.to_string()),
        Cell::new(case.ending),
        right(more),
        Cell::new(found),
    ]
}
