//! A run in several parts, of which each goes its way whatever became of those before it: programs, and folders of tests under
//! pytest. The last line says what came of all.

use crate::failure::Failure;
use crate::{files, process};
use std::fmt;
use std::ops::AddAssign;
use std::process::Command;

/// What came of the parts until now.
#[derive(Debug, Default)]
pub struct Parts {
    ended: Vec<(String, Result<Outcomes, Failure>)>,
}

impl Parts {
    /// Runs a part that ends well or not.
    pub fn step(&mut self, name: &str, part: impl FnOnce() -> Result<(), Failure>) {
        self.end(name, part().map(|()| Outcomes { passed: 1, ..Outcomes::default() }));
    }

    /// Runs pytest.
    pub fn tests(&mut self, name: &str, pytest: &mut Command) {
        self.end(name, run_tests(pytest));
    }

    fn end(&mut self, name: &str, ended: Result<Outcomes, Failure>) {
        if let Err(failure) = &ended {
            eprintln!("error: {failure}");
        }
        self.ended.push((name.to_owned(), ended));
    }

    /// Prints a line for each part where there are several, and one for all.
    ///
    /// # Errors
    ///
    /// Names the parts of which something failed. Where nothing was run, it says so.
    pub fn finish(self) -> Result<(), Failure> {
        let mut total = Outcomes::default();
        let mut failed = Vec::new();
        for (name, ended) in &self.ended {
            let told = match ended {
                Ok(outcomes) => {
                    total += *outcomes;
                    outcomes.to_string()
                }
                Err(_) => "did not come to its end".to_owned(),
            };
            if self.ended.len() > 1 {
                println!("{name}: {told}");
            }
            if !ended.as_ref().is_ok_and(|outcomes| outcomes.failed == 0) {
                failed.push(name.as_str());
            }
        }
        println!("total: {total}");
        if !failed.is_empty() {
            return Err(Failure::new(format!("failed: {}", failed.join(", "))));
        }
        if total == Outcomes::default() { Err(Failure::new("nothing was run")) } else { Ok(()) }
    }
}

/// How many tests ended in which way.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Outcomes {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl AddAssign for Outcomes {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Outcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// Runs pytest to its end. That a test fails, or that there is none with the name that was asked for, is an outcome.
fn run_tests(pytest: &mut Command) -> Result<Outcomes, Failure> {
    let folder = files::temporary_folder()?;
    let report = folder.path().join("report.xml");
    pytest.arg("--junit-xml").arg(&report);
    let status = process::status(pytest)?;
    if !matches!(status.code(), Some(0 | SOME_FAILED | NONE_FOUND)) {
        return Err(process::failed(pytest, status));
    }
    let text = files::read(&report)?;
    outcomes(&text).ok_or_else(|| Failure::new(format!("{}: no counts of tests", report.display())))
}

/// Exit statuses of pytest.
const SOME_FAILED: i32 = 1;
const NONE_FOUND: i32 = 5;

/// The counts in a report of pytest.
fn outcomes(report: &str) -> Option<Outcomes> {
    let suite = report.split("<testsuite ").nth(1)?.split('>').next()?;
    let count =
        |name: &str| -> Option<u64> { suite.split(&format!(" {name}=\"")).nth(1)?.split('"').next()?.parse().ok() };
    let failed = count("failures")? + count("errors")?;
    let skipped = count("skipped")?;
    Some(Outcomes { passed: count("tests")?.checked_sub(failed + skipped)?, failed, skipped })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_part_that_fails_stops_no_other() {
        let run = Cell::new(0);
        let mut parts = Parts::default();
        for (name, ends_well) in [("first", false), ("second", true)] {
            parts.step(name, || {
                run.set(run.get() + 1);
                if ends_well { Ok(()) } else { Err(Failure::new("it broke")) }
            });
        }
        assert_eq!((run.get(), parts.finish().unwrap_err().to_string().as_str()), (2, "failed: first"));
    }

    #[test]
    fn what_runs_nothing_has_not_passed() {
        assert_eq!(Parts::default().finish().unwrap_err().to_string(), "nothing was run");
    }

    #[test]
    fn pytest_says_what_came_of_its_tests() {
        let python = |code: &str| {
            let mut command = Command::new("python3");
            command.args(["-c", &format!("import sys; report = sys.argv[2]; {code}")]);
            command
        };
        let counted = "open(report, 'w').write('<testsuites><testsuite name=\"pytest\" errors=\"1\" failures=\"2\" \
                       skipped=\"3\" tests=\"10\" time=\"0.5\"></testsuite></testsuites>'); sys.exit(1)";
        let outcomes = Outcomes { passed: 4, failed: 3, skipped: 3 };
        assert_eq!(run_tests(&mut python(counted)).unwrap(), outcomes);
        let killed = run_tests(&mut python("import os; os.abort()")).unwrap_err().to_string();
        assert!(killed.contains("signal: 6"), "{killed}");
        let unread = run_tests(&mut python("sys.exit(2)")).unwrap_err().to_string();
        assert!(unread.contains("exit status: 2"), "{unread}");
    }
}
