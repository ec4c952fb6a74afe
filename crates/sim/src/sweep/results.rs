//! What a sweep has found, and its report.

use crate::program::{Ending, Ran, Told};
use gapless_sim_libcuda::broken::Broken;
use gapless_sim_libcuda::faults::Fault;
use gapless_sim_libcuda::functions::{self, Function};
use gapless_sim_libcuda::held::Held;
use gapless_sim_libcuda::record::Record;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// All that a sweep has found.
#[derive(Debug)]
pub struct Results {
    pub program: Vec<String>,
    pub settings: BTreeMap<String, String>,
    pub plain: Plain,
    pub cases: Vec<Case>,
    /// How many cases there were to be.
    pub runs: usize,
    /// The distance between two calls of a function that fail.
    pub every: u64,
}

/// The two runs without a fault.
#[derive(Debug)]
pub struct Plain {
    /// How often each function was called, in the order of the names: in the run with more calls of it.
    pub calls: Vec<(Function, u64)>,
    pub differing: Vec<Differing>,
    /// The memory that was held at the end, in the run that held more.
    pub held_bytes: u64,
    /// The time of the longer one.
    pub time: Duration,
    /// What the first of them told.
    pub told: Told,
}

/// A function that was called more often in one of the two runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Differing {
    pub function: &'static str,
    pub calls: [u64; 2],
}

/// A run with a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    pub function: Function,
    pub call: u64,
    pub code: u32,
    pub ending: Ending,
    /// The memory that was held at the end. None where no process of the program left a record.
    pub held_bytes: Option<u64>,
    /// Whether the call was made.
    pub reached: bool,
    pub finding: Option<Finding>,
    /// The rules that were broken, and not at the same place without a fault, and what was held of a place that held less without a
    /// fault, where the run is a finding for that.
    pub told: Told,
}

/// What is wrong with how a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    Crashed,
    TimeLimit,
    /// More memory than without a fault, and the call that failed was not to give any back.
    HeldMemory,
}

/// Which programs may hold more memory at their end than they do without a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MayHold {
    Never,
    /// Those that end with another status than 0.
    WhereItGaveUp,
}

impl Plain {
    pub fn of(records: [&Record; 2], time: Duration, told: Told) -> Self {
        let count = |name: &str| records.map(|record| record.calls.get(name).copied().unwrap_or(0));
        let mut all: Vec<Function> = functions::all().filter(|function| count(function.name) != [0, 0]).collect();
        all.sort_unstable_by_key(|function| function.name);
        let most = |function: &Function| count(function.name).into_iter().max().unwrap_or(0);
        let differing = all.iter().map(|function| Differing { function: function.name, calls: count(function.name) });
        Self {
            differing: differing.filter(|differing| differing.calls[0] != differing.calls[1]).collect(),
            calls: all.iter().map(|function| (*function, most(function))).collect(),
            held_bytes: records.map(|record| record.held_bytes).into_iter().max().unwrap_or(0),
            time,
            told,
        }
    }
}

impl Case {
    pub fn of(fault: &Fault, ran: &Ran, plain: &Plain, may_hold: MayHold) -> Self {
        let Fault { function, call, code } = *fault;
        let call = call.unwrap_or(1);
        let held_bytes = ran.record.as_ref().map(|record| record.held_bytes);
        let made = |record: &Record| record.calls.get(function.name).is_some_and(|calls| *calls >= call);
        let finding = match ran.ending {
            Ending::Signal(_) => Some(Finding::Crashed),
            Ending::TimeLimit => Some(Finding::TimeLimit),
            Ending::Exit(_) if function.gives_back => None,
            Ending::Exit(status) if status != 0 && may_hold == MayHold::WhereItGaveUp => None,
            Ending::Exit(_) => held_bytes.filter(|held| *held > plain.held_bytes).map(|_| Finding::HeldMemory),
        };
        let reached = ran.record.as_ref().is_none_or(made);
        let broken = ran.told.broken_beyond(&plain.told);
        let is_more = |held: &&Held| {
            let mut before = plain.told.held.iter().filter(|before| held.is_of_same_place(before));
            finding == Some(Finding::HeldMemory) && before.all(|before| before.count < held.count)
        };
        let held = ran.told.held.iter().filter(is_more).cloned().collect();
        Self { function, call, code, ending: ran.ending, held_bytes, reached, finding, told: Told { broken, held } }
    }

    /// Whether something is wrong.
    pub fn is_found(&self) -> bool {
        self.finding.is_some() || !self.told.broken.is_empty()
    }

    /// The names of the rules that were broken.
    pub fn rules(&self) -> BTreeSet<&str> {
        self.told.broken.iter().map(|broken| broken.rule.as_str()).collect()
    }
}

impl Results {
    /// All rules that were broken, without a fault and with one.
    pub fn broken(&self) -> Vec<Broken> {
        self.told().flat_map(|told| &told.broken).cloned().collect()
    }

    /// What was held without a fault, and where more was held with one.
    pub fn held(&self) -> Vec<Held> {
        self.told().flat_map(|told| &told.held).cloned().collect()
    }

    fn told(&self) -> impl Iterator<Item = &Told> {
        std::iter::once(&self.plain.told).chain(self.cases.iter().map(|case| &case.told))
    }

    /// Whether something was found.
    pub fn have_found(&self) -> bool {
        self.plain.told != Told::default() || self.cases.iter().any(Case::is_found)
    }

    /// What `--report` writes.
    pub fn report(&self) -> Report<'_> {
        let runs = self.cases.iter().map(|case| ReportedCase {
            function: case.function.name,
            call: case.call,
            code: case.code,
            ended: case.ending,
            held_bytes: case.held_bytes,
            reached: case.reached,
            finding: case.finding,
            broken: &case.told.broken,
            held: &case.told.held,
        });
        Report {
            program: &self.program,
            settings: &self.settings,
            without_fault: ReportedPlain {
                calls: self.plain.calls.iter().map(|(function, calls)| (function.name, *calls)).collect(),
                differing: &self.plain.differing,
                held_bytes: self.plain.held_bytes,
                seconds: self.plain.time.as_secs_f64(),
                broken: &self.plain.told.broken,
                held: &self.plain.told.held,
            },
            runs: runs.collect(),
        }
    }
}

/// The JSON of a sweep.
#[derive(Serialize)]
pub struct Report<'a> {
    program: &'a [String],
    settings: &'a BTreeMap<String, String>,
    without_fault: ReportedPlain<'a>,
    runs: Vec<ReportedCase<'a>>,
}

#[derive(Serialize)]
struct ReportedPlain<'a> {
    calls: BTreeMap<&'a str, u64>,
    differing: &'a [Differing],
    held_bytes: u64,
    seconds: f64,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    broken: &'a [Broken],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    held: &'a [Held],
}

#[derive(Serialize)]
struct ReportedCase<'a> {
    function: &'static str,
    call: u64,
    code: u32,
    ended: Ending,
    held_bytes: Option<u64>,
    reached: bool,
    finding: Option<Finding>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    broken: &'a [Broken],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    held: &'a [Held],
}
