//! The table: one row for what is measured and its n, printed as soon as it is known.

use std::fmt;
use std::time::{Duration, Instant};

/// Rounds of which the fastest counts: many short ones, since other programs run beside this one.
const ROUNDS: u64 = 50;

/// A cost that was measured.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub enum Cost {
    /// Time per operation, in nanoseconds.
    Nanoseconds(f64),
    /// Driver calls per operation.
    Calls(f64),
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&match *self {
            Self::Nanoseconds(ns) if ns < 1e3 => format!("{ns:.1} ns"),
            Self::Nanoseconds(ns) if ns < 1e6 => format!("{:.2} us", ns / 1e3),
            Self::Nanoseconds(ns) => format!("{:.2} ms", ns / 1e6),
            Self::Calls(calls) => format!("{calls:.2} calls"),
        })
    }
}

impl Cost {
    /// The cost of one of `count` operations that took `elapsed` together.
    pub fn per(elapsed: Duration, count: u64) -> Self {
        Self::Nanoseconds(elapsed.as_nanos() as f64 / count as f64)
    }

    /// How many times the cost of `other` this is.
    ///
    /// # Panics
    /// Panics unless both are times, or both are calls.
    fn over(self, other: Self) -> f64 {
        match (self, other) {
            (Self::Nanoseconds(one), Self::Nanoseconds(other)) | (Self::Calls(one), Self::Calls(other)) => one / other,
            _ => panic!("{self} and {other} are not of one kind"),
        }
    }
}

/// The most that something should cost.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    /// That much.
    Cost(Cost),
    /// So many times the baseline's cost in the same run.
    Times(f64),
}

impl Goal {
    /// So many nanoseconds for each operation.
    pub const fn ns(nanoseconds: f64) -> Self {
        Self::Cost(Cost::Nanoseconds(nanoseconds))
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cost(cost) => cost.fmt(f),
            Self::Times(times) => f.pad(&format!("{times:.2} x")),
        }
    }
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// What was measured.
    pub what: &'a str,
    /// For how many.
    pub n: u64,
    /// What it cost.
    pub cost: Cost,
    /// What it is compared with, and the cost of that in this run.
    pub baseline: Option<(&'a str, Cost)>,
    /// The most that it should cost.
    pub goal: Option<Goal>,
}

impl Row<'_> {
    /// The cost as a multiple of the baseline's.
    fn ratio(&self) -> Option<f64> {
        self.baseline.map(|(_, baseline)| self.cost.over(baseline))
    }

    /// Returns whether it costs more than it should.
    ///
    /// # Panics
    /// Panics where the goal is a multiple and there is no baseline.
    fn is_missed(&self) -> bool {
        self.goal.is_some_and(|goal| match goal {
            Goal::Cost(most) => self.cost > most,
            Goal::Times(most) => self.ratio().expect("a multiple is of something") > most,
        })
    }
}

/// Prints rows, and at the end how many of them are beyond their goal.
#[derive(Debug, Default)]
pub struct Table {
    rows: usize,
    missed: Vec<String>,
}

impl Table {
    /// Prints a row that is compared with nothing.
    pub fn row(&mut self, what: &str, n: u64, cost: Cost, goal: Option<Goal>) {
        self.print(&Row { what, n, cost, baseline: None, goal });
    }

    /// Prints a row.
    pub fn print(&mut self, row: &Row<'_>) {
        if self.rows == 0 {
            println!(
                "| {:<54} | {:>9} | {:>10} | {:<26} | {:>7} | {:>9} |",
                "what", "n", "cost", "baseline", "ratio", "goal"
            );
            println!("| {:-<54} | {:->8}: | {:->9}: | {:-<26} | {:->6}: | {:->8}: |", "", "", "", "", "", "");
        }
        self.rows += 1;
        let Row { what, n, cost, baseline, goal } = row;
        let baseline = baseline.map_or_else(String::new, |(name, cost)| format!("{name}: {cost}"));
        let ratio = row.ratio().map_or_else(String::new, |ratio| format!("{ratio:.2} x"));
        let goal = goal.map_or_else(String::new, |goal| goal.to_string());
        println!("| {what:<54} | {n:>9} | {cost:>10} | {baseline:<26} | {ratio:>7} | {goal:>9} |");
        if row.is_missed() {
            let reached = if matches!(row.goal, Some(Goal::Times(_))) { ratio } else { cost.to_string() };
            self.missed.push(format!("{what}, n = {n}: {reached} for {goal}"));
        }
    }

    /// Prints which rows are beyond their goal.
    pub fn finish(self) {
        println!("\n{} rows, {} beyond their goal", self.rows, self.missed.len());
        for missed in self.missed {
            println!("  {missed}");
        }
    }
}

/// The cost of one call of `operation`, which is called `count` times (at least once a round). The fastest round counts.
pub fn fastest(count: u64, mut operation: impl FnMut()) -> Cost {
    let calls = count.div_ceil(ROUNDS);
    let round = |_| {
        let start = Instant::now();
        (0..calls).for_each(|_| operation());
        start.elapsed()
    };
    let fastest = (0..ROUNDS).map(round).min().expect("several rounds");
    Cost::per(fastest, calls)
}

/// A linear congruential generator: the same sequence in every run.
pub struct Random(pub u64);

impl Random {
    /// A number below `limit`, which must not be 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}
