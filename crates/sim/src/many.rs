//! A program that is run many times: several at once, with a progress bar.

use crate::Failure;
use crate::environment::Environment;
use crate::program::{self, Ending, Ran, Stderr, Stop};
use clap::Args;
use gapless_sim_libcuda::record::Record;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Arguments of `--sweep` and `--race`.
#[derive(Args, Debug)]
pub struct ManyArguments {
    /// Programs that run at once
    #[arg(long, value_name = "N", default_value = "2", requires = "many")]
    pub jobs: NonZeroUsize,

    /// Time that each run may take [default: ten times that of the plain run, and at least 10; of a race 30 more]
    #[arg(long, value_name = "SECONDS", requires = "many")]
    limit: Option<NonZeroU64>,
}

/// The shortest time limit of a run, where none is given.
const SHORTEST_LIMIT: Duration = Duration::from_secs(10);

impl ManyArguments {
    /// The limit that was given.
    pub fn given_limit(&self) -> Option<Duration> {
        self.limit.map(|seconds| Duration::from_secs(seconds.get()))
    }

    /// The limit, where a plain run took some time, and the others may take `more`.
    pub fn limit(&self, plain: Duration, more: Duration) -> Duration {
        self.given_limit().unwrap_or_else(|| (10 * plain).max(SHORTEST_LIMIT) + more)
    }
}

/// Runs the program without what the others have, such as "a fault": what they are compared with.
pub fn plain(
    without: &str,
    program: &[OsString],
    environment: &Environment,
    limit: Option<Duration>,
    stderr: Stderr,
    stop: &Stop,
) -> Result<(Ran, Record), Failure> {
    let ran = program::run_alone(program, environment, limit, stderr, stop)?;
    if stop.wanted() {
        return Err(Failure::Bad("interrupted".into()));
    }
    if ran.ending != Ending::Exit(0) {
        return Err(Failure::Bad(format!(
            "the program ended with {} without {without}: it has to end well then",
            ran.ending
        )));
    }
    let text = "the program called no function of the simulated driver, or left by _exit: it may be linked with another driver";
    let record = ran.record.clone().filter(|record| !record.calls.is_empty());
    let record = record.ok_or_else(|| Failure::Bad(text.into()))?;
    Ok((ran, record))
}

/// Calls `work` for each item, on `jobs` threads, and returns what it returned, in the order of the items. The first failure ends
/// all of it.
pub fn each<T: Sync, R: Send>(
    items: &[T],
    jobs: usize,
    work: &(impl Fn(&T) -> Result<Option<R>, Failure> + Sync),
) -> Result<Vec<R>, Failure> {
    let bar = bar(items.len() as u64);
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, R)>> = Mutex::default();
    let go_on = || -> Result<(), Failure> {
        while let Some((index, item)) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| Some((at, items.get(at)?)))
        {
            let result = work(item).inspect_err(|_| next.store(items.len(), Ordering::Relaxed))?;
            bar.inc(1);
            let Some(result) = result else { break };
            done.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..jobs.min(items.len())).map(|_| scope.spawn(go_on)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    bar.finish_and_clear();
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(index, _)| *index);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

/// The progress over all runs, hidden unless stderr is a terminal.
fn bar(runs: u64) -> ProgressBar {
    let target = if io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template("{wide_bar} {pos} of {len} runs {eta:>4}");
    ProgressBar::with_draw_target(Some(runs), target).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
