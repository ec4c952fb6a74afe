//! The cost of `gapless advise` for a job of many ranks: 1,000 snapshots of about 1 MB each, with the stacks of 40 frames that
//! `_record_memory_history` records. They are of the first steps of a training, and of a run whose memory is in pieces, for which
//! policies make many more driver calls. The ranks run the same ops, as they do on data of one shape, so that most replays are
//! known; or their sizes differ, so that none is.
//!
//! `cargo bench -p gapless-cli --bench many_files` prints a table with the cost that each row should not exceed; a number after
//! `--` stands for the number of files. Processor time is that of all threads: where other programs run, it says more than the time
//! that passes.

#[path = "../../trace/benches/large/snapshot.rs"]
mod snapshot;

use gapless_trace::{Op, Trace};
use std::fmt::Write;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Number of files, unless another is asked for.
const FILES: u64 = 1_000;
/// Number of ops of each, which make about 1 MB.
const OPS: usize = 2_450;
/// More than the frames take, so that the program is written, and less than it takes, so that it is written once.
const LEAST_BYTES: u64 = 100_000;
const TARGET_SECONDS: u64 = 20;
const TARGET_MIB: u64 = 1_024;

fn main() {
    let number = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(FILES);
    println!("| {:<50} | {:>8} | {:>8} | {:>8} |", format!("{number} files: text and page"), "wall", "CPU", "memory");
    println!("| {:-<50} | {:->7}: | {:->7}: | {:->7}: |", "", "", "", "");
    println!("| {:<50} | {TARGET_SECONDS:>6} s | {:>8} | {TARGET_MIB:>4} MiB |", "target", "");
    for ranks in [Ranks::Alike, Ranks::Different] {
        job("a training", "llama7b_zero3.trace.gz", ranks, number);
        job("memory in pieces", "oom/oom_10.trace.gz", ranks, number);
    }
}

/// How the ops of ranks compare.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ranks {
    Alike,
    /// Each rank's blocks are 512 bytes larger than those of the one before.
    Different,
}

/// Measures a job whose ranks all recorded the beginning of one program.
fn job(what: &str, recorded: &str, ranks: Ranks, number: u64) {
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces").join(recorded);
    let recorded = Trace::open(&recorded).expect("a trace of the repository");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let name = |rank: u64, ending: &str| folder.path().join(format!("{rank}.{ending}"));
    for rank in 0..number {
        if rank > 0 && ranks == Ranks::Alike {
            fs::copy(name(0, "pickle"), name(rank, "pickle")).expect("a copy");
            continue;
        }
        let file = File::create(name(rank, "pickle")).expect("a file");
        let program = beginning(&recorded, rank * 512);
        snapshot::write(BufWriter::new(file), &program, LEAST_BYTES).expect("the file can be written");
    }
    let bytes = fs::metadata(name(0, "pickle")).expect("a file").len();
    let gapless = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gapless"));
        command.arg("advise");
        command
    };
    let all = |ending: &str| (0..number).map(|rank| name(rank, ending)).collect::<Vec<_>>();
    let page = folder.path().join("page.html");
    let what = if ranks == Ranks::Alike { what.to_owned() } else { format!("{what}, ranks that differ") };
    row(&format!("{what}, {bytes} bytes each"), gapless().args(all("pickle")).arg("--html").arg(&page));
    if ranks == Ranks::Different {
        return;
    }
    let result = gapless().arg("--json").arg(name(0, "pickle")).output().expect("advice").stdout;
    for rank in 0..number {
        fs::write(name(rank, "json"), &result).expect("a file");
    }
    let merge = format!("--merge, {} bytes each", result.len());
    row(&merge, gapless().arg("--merge").args(all("json")).arg("--html").arg(&page));
    println!("| the page: {:<40} | {:>8} | {:>8} | {:>8} |", fs::metadata(&page).expect("a page").len(), "", "", "");
}

/// The first ops of a trace, with blocks that are so much larger.
fn beginning(recorded: &Trace, more_bytes: u64) -> Trace {
    let mut text = String::new();
    let mut id_of = vec![0; recorded.slots() as usize];
    for (id, op) in recorded.ops().iter().enumerate().take(OPS) {
        match *op {
            Op::Alloc { slot, stream, bytes, .. } => {
                id_of[slot as usize] = id;
                writeln!(text, "a {id} {} {stream}", bytes + more_bytes)
            }
            Op::Free { slot } => writeln!(text, "f {}", id_of[slot as usize]),
            Op::Sleep { .. } | Op::Wake { .. } | Op::Refused { .. } | Op::Mark { .. } => Ok(()),
        }
        .expect("a text takes everything");
    }
    Trace::read("beginning", text.as_bytes()).expect("a trace")
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
    println!("| {what:<50} | {wall:>6.1} s | {seconds:>6.1} s | {mib:>4} MiB |");
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
