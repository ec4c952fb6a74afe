//! The cost of `gapless advise` for a job of many ranks: 1,000 snapshots of 1 MB each, with the stacks of 40 frames that
//! `_record_memory_history` records.
//!
//! `cargo bench -p gapless-cli --bench many_files` prints a table with the cost that each row should not exceed; a number after `--`
//! stands for the number of files.

#[path = "../../trace/benches/large/snapshot.rs"]
mod snapshot;

use gapless_trace::Trace;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Number of files, unless another is asked for.
const FILES: u64 = 1_000;
const BYTES_EACH: u64 = 1_000_000;
const TARGET_SECONDS: f64 = 20.0;
const TARGET_MIB: u64 = 1_024;

fn main() {
    let number = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(FILES);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/oom/oom_10.trace.gz");
    let recorded = Trace::open(&recorded).expect("a trace of the repository");
    let name = |rank: u64, ending: &str| folder.path().join(format!("{rank}.{ending}"));
    snapshot::write(BufWriter::new(File::create(name(0, "pickle")).expect("a file")), &recorded, BYTES_EACH)
        .expect("the file can be written");
    let bytes = fs::metadata(name(0, "pickle")).expect("a file").len();
    for rank in 1..number {
        fs::copy(name(0, "pickle"), name(rank, "pickle")).expect("a copy");
    }
    let ops = Trace::open(&name(0, "pickle")).expect("a snapshot").ops().len();
    println!("{number} files of {bytes} bytes and {ops} ops\n");
    println!("| {:<34} | {:>8} | {:>8} | {:>8} |", "what", "wall", "CPU", "memory");
    println!("| {:-<34} | {:->7}: | {:->7}: | {:->7}: |", "", "", "", "");
    println!("| {:<34} | {:>6.0} s | {:>8} | {TARGET_MIB:>4} MiB |", "target for recordings", TARGET_SECONDS, "");
    let files = |ending: &str| (0..number).map(|rank| name(rank, ending)).collect::<Vec<_>>();
    let mut recordings = Command::new(env!("CARGO_BIN_EXE_gapless"));
    recordings.arg("advise").args(files("pickle")).arg("--html").arg(folder.path().join("page.html"));
    row("recordings: text and page", &mut recordings);
    let mut json = Command::new(env!("CARGO_BIN_EXE_gapless"));
    let lines = json.args(["advise", "--json"]).arg(name(0, "pickle")).output().expect("advice").stdout;
    for rank in 0..number {
        fs::write(name(rank, "json"), &lines).expect("a file");
    }
    let mut merged = Command::new(env!("CARGO_BIN_EXE_gapless"));
    merged.args(["advise", "--merge"]).args(files("json")).arg("--html").arg(folder.path().join("page.html"));
    row("--merge: text and page", &mut merged);
    let page = fs::metadata(folder.path().join("page.html")).expect("a page").len();
    println!("\nThe page has {page} bytes, and the result of one file {}.", lines.len());
}

/// Runs a command and prints what it cost.
fn row(what: &str, command: &mut Command) {
    let begin = Instant::now();
    let mut process = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program");
    let (mut mib, mut seconds) = (0, 0.0);
    // The figures go with the process: the last ones before its end are taken.
    while process.try_wait().expect("a process").is_none() {
        mib = peak_mib(process.id()).unwrap_or(mib);
        seconds = processor_seconds(process.id()).unwrap_or(seconds);
        std::thread::sleep(Duration::from_millis(2));
    }
    let wall = begin.elapsed().as_secs_f64();
    println!("| {what:<34} | {wall:>6.1} s | {seconds:>6.1} s | {mib:>4} MiB |");
}

/// The most memory that a process had.
fn peak_mib(process: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib / 1024)
}

/// Its processor time, of all threads, in user and kernel.
fn processor_seconds(process: u32) -> Option<f64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let ticks = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    Some(ticks / TICKS_PER_SECOND)
}

/// `USER_HZ`, in which the kernel counts the time of processes.
const TICKS_PER_SECOND: f64 = 100.0;
