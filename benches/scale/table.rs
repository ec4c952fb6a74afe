//! The table: one row for what is measured and its n, printed as soon as it is known.

use std::fmt;
use std::time::{Duration, Instant};

/// Rounds of which the fastest counts: many short ones, since other programs run beside this one.
const ROUNDS: u64 = 50;

/// A cost that was measured, or that is the target.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub enum Cost {
    /// Time per operation, in nanoseconds.
    Nanoseconds(f64),
    /// How many times another row's cost.
    Times(f64),
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&match *self {
            Self::Nanoseconds(ns) if ns < 1e3 => format!("{ns:.1} ns"),
            Self::Nanoseconds(ns) if ns < 1e6 => format!("{:.2} us", ns / 1e3),
            Self::Nanoseconds(ns) => format!("{:.2} ms", ns / 1e6),
            Self::Times(times) => format!("{times:.2} x"),
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
    /// Panics unless both are times.
    pub fn over(self, other: Self) -> Self {
        match (self, other) {
            (Self::Nanoseconds(one), Self::Nanoseconds(other)) => Self::Times(one / other),
            _ => panic!("{self} and {other} are not both times"),
        }
    }
}

/// Prints rows, and at the end how many of them are within their target.
#[derive(Debug, Default)]
pub struct Table {
    rows: usize,
    missed: Vec<String>,
}

impl Table {
    /// Prints a row: what was measured, for which n, what it cost, and the most that it should cost, if that is said.
    pub fn row(&mut self, what: &str, n: u64, cost: Cost, target: Option<Cost>) {
        if self.rows == 0 {
            println!("| {:<54} | {:>9} | {:>10} | {:>10} |", "what", "n", "cost", "target");
            println!("| {:-<54} | {:->8}: | {:->9}: | {:->9}: |", "", "", "", "");
        }
        self.rows += 1;
        let shown = target.map_or_else(String::new, |target| target.to_string());
        println!("| {what:<54} | {n:>9} | {cost:>10} | {shown:>10} |");
        if target.is_some_and(|target| cost > target) {
            self.missed.push(format!("{what}, n = {n}: {cost} for {shown}"));
        }
    }

    /// Prints which rows are beyond their target.
    pub fn finish(self) {
        println!("\n{} rows, {} beyond their target", self.rows, self.missed.len());
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
