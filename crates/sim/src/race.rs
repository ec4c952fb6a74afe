//! A race: the program is run with pauses before its calls and its queued work, and each time they are others.
//!
//! What is right whatever the order is right every time.

use crate::Failure;
use crate::environment::Environment;
use crate::many::{self, ManyArguments};
use crate::program::{self, Ending, Ran, Stderr, Stop, Told};
use crate::report::{self, words};
use crate::sarif;
use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use gapless::ByteSize;
use gapless_sim_libcuda::broken::Broken;
use gapless_sim_libcuda::held::Held;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Write};
use std::num::NonZeroU64;
use std::path::Path;
use std::time::Duration;

/// The variable of the seed.
const SEED: &str = "GAPLESS_SIM_RACE";
/// What pauses may add to the time of a run.
const PAUSES: Duration = Duration::from_secs(30);

/// What `--report` writes.
#[derive(Serialize)]
struct Report {
    program: Vec<String>,
    settings: BTreeMap<String, String>,
    without_pauses: Plain,
    runs: Vec<Run>,
}

/// The run without pauses.
#[derive(Serialize)]
struct Plain {
    held_bytes: u64,
    seconds: f64,
    #[serde(flatten)]
    told: Told,
}

/// A run with pauses.
#[derive(Debug, Serialize)]
struct Run {
    seed: u64,
    ended: Ending,
    /// None where no process of the program left a record.
    held_bytes: Option<u64>,
    /// The rules that were broken, and not at the same place without pauses.
    broken: Vec<Broken>,
    #[serde(skip)]
    more_bytes: u64,
}

impl Run {
    fn of(seed: u64, ran: &Ran, plain: &Plain) -> Self {
        let held_bytes = ran.record.as_ref().map(|record| record.held_bytes);
        Self {
            seed,
            ended: ran.ending,
            held_bytes,
            broken: ran.told.broken_beyond(&plain.told),
            more_bytes: held_bytes.map_or(0, |held| held.saturating_sub(plain.held_bytes)),
        }
    }

    /// Whether it is another end than that without pauses.
    fn is_found(&self) -> bool {
        self.ended != Ending::Exit(0) || self.more_bytes > 0 || !self.broken.is_empty()
    }

    /// What it shares with others of its line in the table.
    fn outcome(&self) -> [String; 3] {
        let more = if self.more_bytes == 0 { String::new() } else { ByteSize(self.more_bytes).to_string() };
        let rules = if self.broken.is_empty() { String::new() } else { sarif::rules(&self.broken) };
        [self.ended.to_string(), more, rules]
    }
}

/// Runs the program again and again, and returns the exit code.
pub fn run(
    runs: NonZeroU64,
    arguments: &ManyArguments,
    program: &[OsString],
    environment: &Environment,
    file: Option<&Path>,
    stop: &Stop,
) -> Result<u8, Failure> {
    if environment.get(SEED).is_some() {
        return Err(Failure::Bad(format!("{SEED} is set, and a race has seeds of its own")));
    }
    let (ran, record) = many::plain("pauses", program, environment, arguments.given_limit(), Stderr::Shown, stop)?;
    let plain = Plain { held_bytes: record.held_bytes, seconds: ran.time.as_secs_f64(), told: ran.told };
    let limit = arguments.limit(ran.time, PAUSES);
    let seeds: Vec<u64> = (1..=runs.get()).collect();
    let runs = many::each(&seeds, arguments.jobs.get(), &|&seed: &u64| {
        let mut environment = environment.clone();
        environment.set(SEED, seed.to_string());
        let ran = program::run_alone(program, &environment, Some(limit), Stderr::Dropped, stop)?;
        Ok(if stop.wanted() { None } else { Some(Run::of(seed, &ran, &plain)) })
    })?;
    let report = Report { program: words(program), settings: environment.settings(), without_pauses: plain, runs };
    write(&mut io::stdout().lock(), &report)?;
    match file {
        Some(file) if report::is_sarif(file) => report::write(file, &report.log())?,
        Some(file) => report::write(file, &report)?,
        None => {}
    }
    if stop.wanted() {
        return Err(Failure::Bad("interrupted: the table has the runs that were over".into()));
    }
    let is_found = report.without_pauses.told != Told::default() || report.runs.iter().any(Run::is_found);
    Ok(u8::from(is_found))
}

impl Report {
    fn log(&self) -> serde_json::Value {
        let plain = &self.without_pauses.told;
        let broken: Vec<Broken> =
            plain.broken.iter().chain(self.runs.iter().flat_map(|run| &run.broken)).cloned().collect();
        sarif::log(&broken, &plain.held)
    }
}

/// Writes a line for each way in which runs ended, with the first seed that led there.
fn write(out: &mut impl Write, report: &Report) -> io::Result<()> {
    let mut outcomes: BTreeMap<[String; 3], Vec<u64>> = BTreeMap::new();
    for run in &report.runs {
        outcomes.entry(run.outcome()).or_default().push(run.seed);
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["runs", "the program ended with", "held more", "broke", "first seed"]);
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    for ([ended, more, rules], seeds) in &outcomes {
        let first = right(seeds[0].to_string());
        table.add_row([right(seeds.len().to_string()), Cell::new(ended), right(more.clone()), Cell::new(rules), first]);
    }
    writeln!(out, "{table}")?;
    let plain = &report.without_pauses.told;
    if !plain.broken.is_empty() {
        writeln!(out, "Without pauses, the program broke {}.", sarif::rules(&plain.broken))?;
    }
    if !plain.held.is_empty() {
        let held: Vec<String> = plain.held.iter().map(Held::amount).collect();
        writeln!(out, "Without pauses, the program held {} at its end.", held.join(", "))?;
    }
    let found: Vec<u64> = report.runs.iter().filter(|run| run.is_found()).map(|run| run.seed).collect();
    writeln!(out, "{} runs: {} ended otherwise than without pauses", report.runs.len(), found.len())?;
    if let Some(seed) = found.first() {
        writeln!(out, "See one again with {SEED}={seed} before the command in the place of --race.")?;
    }
    Ok(())
}
