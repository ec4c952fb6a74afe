//! The ranks of one job: a line for each, and what is true of all of them. Made of results alone.

use super::names;
use super::{AdviseArguments, print, text};
use crate::destination::Destination;
use crate::{Failure, Outcome};
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table};
use gapless::ByteSize;
use gapless_report::count::{count, grouped};
use gapless_report::page::ranks::{self as page, Row};
use gapless_report::result::{FileResult, Found, VERSION};
use gapless_report::{printable, words};
use gapless_trace::advice::{Fit, Gpu, Holder, Job, Rank, Why};
use std::io::{self, Write};

/// The object for all files: the last line of `--json`.
#[derive(serde::Serialize)]
struct All<'a> {
    version: u32,
    /// Number of files.
    files: usize,
    /// The files without advice.
    not_read: Vec<&'a str>,
    #[serde(flatten)]
    job: &'a Job,
}

/// Shows results as text or as JSON, and writes the page if one is wanted.
pub(super) fn show(arguments: &AdviseArguments, mut results: Vec<FileResult>) -> Result<Outcome, Failure> {
    results.sort_by(|a, b| names::by_number(&a.file, &b.file));
    let ranks: Vec<Rank<'_>> = results.iter().filter_map(rank).collect();
    let job = Job::of(&ranks);
    let not_read: Vec<&str> =
        results.iter().filter(|result| rank(result).is_none()).map(|result| &*result.file).collect();
    let files: Vec<&str> = results.iter().map(|result| &*result.file).collect();
    let folder = names::common_folder(&files);
    let shown = Shown { results: &results, folder, ranks: &ranks, job: &job, not_read: &not_read };
    if arguments.json {
        results.iter().try_for_each(print)?;
        let not_read = not_read.clone();
        print(&All { version: VERSION, files: results.len(), not_read, job: &job })?;
    } else if arguments.html != Some(Destination::Stdout) {
        shown.write(&mut io::stdout().lock())?;
    }
    if let Some(out) = &arguments.html {
        let verdict = shown.verdict();
        let rows: Vec<Row> = results.iter().map(|result| shown.row(result)).collect();
        out.write(&page::render(&verdict, &rows))?;
    }
    if !not_read.is_empty() || !job.without_verdict.is_empty() {
        Ok(Outcome::BadInput)
    } else if job.survivors.is_empty() {
        Ok(Outcome::OutOfMemory)
    } else {
        Ok(Outcome::Success)
    }
}

fn rank(result: &FileResult) -> Option<Rank<'_>> {
    match &result.found {
        Found::Advice(advice) => Some(Rank { name: &result.file, advice }),
        Found::Error { .. } => None,
    }
}

/// What is shown.
struct Shown<'a> {
    results: &'a [FileResult],
    /// Length of the folder of all files.
    folder: usize,
    ranks: &'a [Rank<'a>],
    job: &'a Job,
    not_read: &'a [&'a str],
}

impl Shown<'_> {
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let mut table = Table::new();
        table.load_style(text::HEADER_LINE).set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
        let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
        table.set_header([
            Cell::new("rank"),
            right("peak".into()),
            right("failed op".into()),
            Cell::new("largest holder"),
        ]);
        for result in self.results {
            let row = self.row(result);
            let name = if row.is_odd { format!("{} (odd)", row.name) } else { row.name };
            table.add_row([Cell::new(name), right(row.peak), right(row.failed), Cell::new(row.holder)]);
        }
        writeln!(out, "{}\n\n{}\n", text::in_columns(table), self.verdict())
    }

    /// The row of a file, in words.
    fn row(&self, result: &FileResult) -> Row {
        let name = self.name(&result.file);
        match &result.found {
            Found::Error { error } => Row {
                name,
                is_odd: false,
                peak: DASH.into(),
                failed: DASH.into(),
                holder: format!("no advice: {}", printable(error)),
                report: None,
            },
            Found::Advice(advice) => Row {
                name,
                is_odd: self.job.odd.as_ref().is_some_and(|odd| odd.rank == result.file),
                peak: ByteSize(advice.peak_live_bytes).to_string(),
                failed: match advice.failed {
                    None => DASH.into(),
                    Some(failed) if advice.failure_is_recorded => grouped(failed.op_index),
                    Some(failed) => format!("replay: {}", grouped(failed.op_index)),
                },
                holder: advice.holders.first().map_or_else(|| DASH.into(), in_short),
                report: Some(text::whole(advice)),
            },
        }
    }

    /// A file's name without the folder of all.
    fn name(&self, file: &str) -> String {
        printable(&file[self.folder..])
    }

    /// What is true of all ranks, and what to do.
    fn verdict(&self) -> String {
        let mut lines = vec![self.summary()];
        let failures = [
            (
                self.not_read.len(),
                "could not be advised on: its line says why",
                "could not be advised on: their lines say why",
            ),
            (self.job.without_verdict.len(), "has no verdict", "have no verdict"),
        ];
        for (number, one, several) in failures {
            match number {
                0 => {}
                1 => lines.push(format!("1 file {one}.")),
                _ => lines.push(format!("{} {several}.", count(number as u64, "file"))),
            }
        }
        if let Some(odd) = &self.job.odd {
            let why = match odd.why {
                Why::FailedAlone => "it alone failed".to_owned(),
                Why::SurvivedAlone => "it alone did not fail".to_owned(),
                Why::Peak => {
                    let median = self.job.peak_live_bytes.map_or(0, |peaks| peaks.median);
                    format!("its peak is far from the median, {}", ByteSize(median))
                }
            };
            lines.push(format!("The odd one is {}: {why}.", self.name(&odd.rank)));
        }
        self.what_helps(&mut lines);
        self.what_fits(&mut lines);
        lines.join("\n")
    }

    fn summary(&self) -> String {
        let ranks = count(self.job.ranks, "rank");
        let Some(peaks) = self.job.peak_live_bytes else { return format!("{ranks} with a verdict.") };
        let failed = match self.job.failed.len() {
            0 => "none failed".into(),
            number if number as u64 == self.job.ranks => "all failed".into(),
            number => format!("{} failed", grouped(number as u64)),
        };
        let (least, median, most) = (ByteSize(peaks.least), ByteSize(peaks.median), ByteSize(peaks.most));
        format!("{ranks}, of which {failed}; peaks of {least} to {most}, the median {median}.")
    }

    fn what_helps(&self, lines: &mut Vec<String>) {
        let Some(simplest) = self.job.survivors.first() else { return self.nothing_helps(lines) };
        let first = self.ranks.iter().find_map(|rank| {
            let policy = rank.advice.policies.iter().find(|policy| policy.setting == *simplest)?;
            Some(words::to_paste(policy, rank.advice))
        });
        lines.push(format!("Survives on all: {}.", self.job.survivors.join("; ")));
        if simplest == NATIVE {
            lines.push("PyTorch's defaults survive on every rank.".into());
        } else if let Some(line) = first {
            lines.push(format!("Simplest: {line}"));
        }
    }

    fn nothing_helps(&self, lines: &mut Vec<String>) {
        let Some(best) = self.job.policies.iter().min_by_key(|policy| policy.fails_on.len()) else { return };
        let mut fails: Vec<String> = best.fails_on.iter().take(MOST_NAMED).map(|rank| self.name(rank)).collect();
        if best.fails_on.len() > MOST_NAMED {
            fails.push(format!("{} more", grouped((best.fails_on.len() - MOST_NAMED) as u64)));
        }
        lines.push(format!(
            "No policy that was tried survives on all: {} comes closest, and fails on {}.",
            best.setting,
            fails.join(", ")
        ));
    }

    fn what_fits(&self, lines: &mut Vec<String>) {
        if !self.job.growing.is_empty() {
            let growing = count(self.job.growing.len() as u64, "rank");
            lines.push(format!("Memory grows steadily on {growing}: no device is enough in the end."));
            return;
        }
        let first = self.job.fits.first().map(|fit| fit.gpu);
        // A policy that needs more is worth a line if it does on another GPU.
        let worth_a_line = |(index, fit): &(usize, &Fit)| *index == 0 || first != Some(fit.gpu);
        for (_, Fit { setting, device_bytes, gpu, .. }) in self.job.fits.iter().enumerate().filter(worth_a_line) {
            let needed = ByteSize(*device_bytes);
            lines.push(match gpu.and_then(|name| name.parse::<Gpu>().ok()) {
                Some(gpu) => format!(
                    "Fits all: the {} ({} usable), with {setting}, which needs {needed}.",
                    gpu.name,
                    ByteSize(gpu.usable_bytes())
                ),
                None => format!("No GPU known here has the {needed} that all need with {setting}."),
            });
        }
        if !self.job.fits.is_empty() && self.ranks.iter().any(|rank| rank.advice.failure_is_recorded) {
            lines.push("(counted until the failure: what would have come after it may need more)".into());
        }
    }
}

/// A holder in a few words.
fn in_short(holder: &Holder) -> String {
    let held = ByteSize(holder.bytes);
    match (&holder.origin, holder.block_bytes) {
        (Some(origin), _) => format!("{held} {}", printable(origin)),
        (None, Some(bytes)) => format!("{held} in {} of {}", count(holder.blocks, "block"), ByteSize(bytes)),
        (None, None) => format!("{held} in {}", count(holder.blocks, "block")),
    }
}

const DASH: &str = "-";
const NATIVE: &str = "native";
/// Columns of the table.
const WIDTH: u16 = 80;
/// Most ranks that are named in a sentence.
const MOST_NAMED: usize = 5;
