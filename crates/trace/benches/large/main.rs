//! The cost of large recordings: reading a memory snapshot of 1 GB, advice on it, and replays of ten million ops.
//!
//! `cargo bench -p gapless-trace --bench large` prints a table with the cost that each row should not exceed; a number after
//! `--` stands for the size of the snapshot in MB. The snapshot is written to a temporary file first, as PyTorch writes it: with
//! the stacks that `_record_memory_history` records, 40 frames for each event.

mod snapshot;

use gapless_trace::advice::{AdviceOptions, Setting, advise};
use gapless_trace::{Device, Op, Trace};
use std::fmt::{self, Write as _};
use std::io::BufWriter;
use std::num::NonZero;
use std::path::Path;
use std::time::Instant;

/// Ops of the replays.
const OPS: u64 = 10_000_000;
/// Size of the snapshot in MB, unless another is asked for.
const SNAPSHOT_MB: u64 = 1_000;
/// Seconds for the snapshot, from the file to the advice, on two cores.
const TARGET_SECONDS: f64 = 8.0;
/// Memory of the process by then, in MiB.
const TARGET_MIB: u64 = 1_024;
/// Nanoseconds for an op of a replay.
const TARGET_NS: f64 = 150.0;

fn main() {
    let megabytes = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(SNAPSHOT_MB);
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces/llama7b_zero3.trace.gz");
    let recorded = Trace::open(&recorded).expect("a trace of the repository");

    row("what", "cost", "target");
    println!("| {:-<58} | {:->9}: | {:->9}: |", "", "", "");
    // First, since the peak of the process's memory is never reset.
    large_snapshot(&recorded, megabytes);
    long_replays(&recorded);
}

fn large_snapshot(recorded: &Trace, megabytes: u64) {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    snapshot::write(BufWriter::new(file.as_file_mut()), recorded, megabytes * 1_000_000)
        .expect("the file can be written");
    let begin = Instant::now();
    let trace = Trace::open(file.path()).expect("a snapshot");
    let read = begin.elapsed().as_secs_f64();
    row(&format!("snapshot of {megabytes} MB, {} ops: read", trace.ops().len()), &format!("{read:.1} s"), "");
    let options = AdviceOptions {
        device: Device::for_trace(&trace).expect("a device"),
        settings: Setting::usual(&trace),
        threads: threads(),
        progress: None,
        known: None,
    };
    advise(&trace, &options).expect("advice");
    let target = if megabytes == SNAPSHOT_MB { format!("{TARGET_SECONDS} s") } else { String::new() };
    row("... and advice", &format!("{:.1} s", begin.elapsed().as_secs_f64()), &target);
    row("... the most memory of the process", &format!("{} MiB", peak_memory_mib()), &format!("{TARGET_MIB} MiB"));
}

/// The program again and again, until it has enough ops.
fn long_replays(recorded: &Trace) {
    let times = OPS / recorded.ops().len() as u64 + 1;
    let trace = Trace::read("long", repeated(recorded, times).as_bytes()).expect("a trace");
    // Large enough for every policy: one that fails at once has few ops.
    let device = Device::of(trace.peak_live_bytes() / 2 * 3);
    for setting in Setting::usual(&trace) {
        let begin = Instant::now();
        let replayed = setting.replay(&trace, &device).expect("a replay");
        let ops = replayed.oom.map_or(trace.ops().len() as u64, |oom| oom.op_index);
        let ns = begin.elapsed().as_nanos() as f64 / ops as f64;
        row(&format!("an op of {ops}: {setting}"), &format!("{ns:.0} ns"), &format!("{TARGET_NS} ns"));
    }
}

/// The text of a trace that runs the recorded program `times` times. What is live at its end is freed before the next run.
fn repeated(recorded: &Trace, times: u64) -> String {
    let mut text = String::new();
    let mut line = |args: fmt::Arguments<'_>| text.write_fmt(args).expect("a text takes everything");
    let mut live = vec![None; recorded.slots() as usize];
    let mut ids = 0..;
    for _ in 0..times {
        for op in recorded.ops() {
            match *op {
                Op::Alloc { slot, stream, bytes, .. } => {
                    let id: u64 = ids.next().expect("numbers do not end");
                    live[slot as usize] = Some(id);
                    line(format_args!("a {id} {bytes} {stream}\n"));
                }
                Op::Free { slot } => {
                    let id = live[slot as usize].take().expect("a trace frees what is live");
                    line(format_args!("f {id}\n"));
                }
                Op::Refused { stream, bytes } => line(format_args!("r {bytes} {stream}\n")),
                Op::Sleep { .. } | Op::Wake { .. } => {}
                Op::Mark { .. } => line(format_args!("m step\n")),
            }
        }
        live.iter_mut().filter_map(Option::take).for_each(|id| line(format_args!("f {id}\n")));
    }
    text
}

fn threads() -> NonZero<usize> {
    std::thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN)
}

/// The most memory that the process had at any time.
fn peak_memory_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux says so");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("and how much");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") / 1024
}

fn row(what: &str, cost: &str, target: &str) {
    println!("| {what:<58} | {cost:>10} | {target:>10} |");
}
