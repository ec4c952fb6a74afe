//! Works on many files at once.
//!
//! - I1  a recording is dropped as soon as there is advice on it: the memory of a run is that of as many recordings as there are
//!   threads, and the results.

use crate::{Failure, progress};
use gapless_report::printable;
use gapless_report::result::{FileResult, Found};
use std::collections::HashSet;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Calls `advise` for every file, on at most as many threads as there are cores. It gets the number of threads that it may use
/// itself: what few files leave of the cores. The results are in the order of the files.
pub(super) fn on_each(
    files: &[PathBuf],
    cores: NonZero<usize>,
    advise: impl Fn(&Path, NonZero<usize>) -> Found + Sync,
) -> Vec<FileResult> {
    keep_freed_memory();
    let workers = cores.get().min(files.len());
    let threads = NonZero::new(cores.get() / workers.max(1)).unwrap_or(NonZero::<usize>::MIN);
    let bar = progress::of_steps(files.len() as u64, format!("{} files", files.len()));
    let next = AtomicUsize::new(0);
    let work = || {
        let mut found = Vec::new();
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(path) = files.get(index) else { return found };
            found.push((index, FileResult::new(path, advise(path, threads))));
            bar.inc(1);
        }
    };
    let mut all: Vec<(usize, FileResult)> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..workers).map(|_| scope.spawn(work)).collect();
        let mut all = work();
        for thread in others {
            all.extend(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        all
    });
    bar.finish_and_clear();
    all.sort_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, result)| result).collect()
}

/// Makes the C library keep more of the memory that is freed, for the next replay. By default it gives most back to the kernel,
/// which has to clear it each time that it is wanted again.
///
/// glibc learns from the largest block so far that had a mapping of its own and was freed: smaller ones get none from then on,
/// and up to twice as much stays at the end of each heap (`M_MMAP_THRESHOLD` in `mallopt(3)`). Elsewhere this changes nothing.
fn keep_freed_memory() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(KEPT_BYTES)));
}

/// More than the largest table of a replay of a recording of some MB, and less than 32 MiB, the most that glibc learns.
const KEPT_BYTES: usize = 16 << 20;

/// Refuses a file that is named twice, in whatever way.
pub(super) fn refuse_repeated<'a>(paths: impl Iterator<Item = &'a PathBuf>) -> Result<(), Failure> {
    let mut seen = HashSet::new();
    for path in paths {
        if !seen.insert(path.canonicalize().unwrap_or_else(|_| path.clone())) {
            let name = printable(&path.to_string_lossy());
            return Err(Failure::BadArguments(format!("{name} is given twice: give each file once")));
        }
    }
    Ok(())
}
