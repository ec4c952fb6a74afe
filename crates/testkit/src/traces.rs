//! Checks of the trace readers with arbitrary bytes as a file.

use gapless::driver::{ModelConfig, ModelDriver};
use gapless::units::{MIB, round_up};
use gapless_trace::caching::CachingSettings;
use gapless_trace::{
    Compression, GaplessSettings, Op, PolicyKind, ReplayOptions, Tags, TextWriter, Touch, Trace, TraceOp, replay,
};
use std::sync::Arc;

/// The result of reading arbitrary bytes as a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadTrace {
    /// The reader returned an error.
    Refused,
    /// The bytes are a trace, which was replayed.
    Replayed {
        /// How many of the two replays ran out of memory.
        out_of_memory: usize,
    },
    /// The bytes are a trace that takes too long to replay.
    Long,
}

/// Reads bytes as `gapless replay` reads a file. If they are a trace, its figures must match its ops, it must read back
/// the same after it is written as text, and it must replay on a small device without an error, through gapless and
/// through the baseline.
///
/// # Panics
/// Panics if one of these conditions does not hold.
pub fn check_trace(bytes: &[u8]) -> ReadTrace {
    let trace = match Trace::read("bytes", bytes) {
        Ok(trace) => trace,
        Err(error) => {
            assert!(!error.to_string().is_empty(), "the error has a message");
            return ReadTrace::Refused;
        }
    };
    check_figures(&trace);
    check_written(&trace);
    if trace.ops().len() > MOST_OPS || trace.streams().len() > MOST_STREAMS || trace.tags().len() > MOST_TAGS {
        return ReadTrace::Long;
    }
    let policies = [PolicyKind::Gapless, PolicyKind::Caching];
    ReadTrace::Replayed { out_of_memory: policies.iter().filter(|policy| !survives(&trace, **policy)).count() }
}

/// Checks that the figures of a trace match its ops.
fn check_figures(trace: &Trace) {
    let mut live: Vec<Option<u64>> = vec![None; trace.slots() as usize];
    let mut streams_seen = 0;
    let (mut allocations, mut marks, mut live_bytes, mut peak, mut most_live, mut now_live) = (0, 0, 0_u64, 0, 0, 0);
    for (index, op) in trace.ops().iter().enumerate() {
        match *op {
            Op::Alloc { slot, stream, tag, bytes } => {
                assert!(usize::from(tag) <= trace.tags().len(), "op {index}: tag {tag} is listed");
                assert!(live[slot as usize].replace(bytes).is_none(), "op {index}: slot {slot} is not empty");
                assert!(
                    usize::from(stream) <= streams_seen,
                    "op {index}: streams are numbered in the order of their appearance"
                );
                streams_seen = streams_seen.max(usize::from(stream) + 1);
                allocations += 1;
                live_bytes = live_bytes.checked_add(bytes).expect("the live bytes fit in 64 bits");
                now_live += 1;
            }
            Op::Free { slot } => {
                live_bytes -= live[slot as usize].take().expect("a free of a live block");
                now_live -= 1;
            }
            Op::Refused { stream, .. } => {
                assert!(
                    usize::from(stream) <= streams_seen,
                    "op {index}: streams are numbered in the order of their appearance"
                );
                streams_seen = streams_seen.max(usize::from(stream) + 1);
            }
            Op::Sleep { tags, .. } | Op::Wake { tags } => {
                let listed = trace.tags().len();
                assert!(
                    matches!(tags, Tags::All) || matches!(tags, Tags::One(1..)),
                    "op {index}: memory without a tag"
                );
                assert!(!matches!(tags, Tags::One(tag) if usize::from(tag) > listed), "op {index}: {tags:?} is listed");
            }
            Op::Mark { label } => {
                assert_eq!(label as usize, marks, "op {index}: labels are in order");
                marks += 1;
            }
        }
        peak = peak.max(live_bytes);
        most_live = most_live.max(now_live);
        // Only requests have an origin.
        let origin = trace.origin(index as u64);
        assert!(
            origin.is_none() || matches!(op, Op::Alloc { .. } | Op::Refused { .. }),
            "op {index} has the origin {origin:?}"
        );
    }
    assert_eq!(trace.origin(trace.ops().len() as u64), None);
    assert_eq!(
        (trace.allocations(), trace.peak_live_bytes(), trace.streams().len(), trace.labels().len(), trace.slots()),
        (allocations, peak, streams_seen, marks, most_live)
    );
    let mut streams = trace.streams().to_vec();
    streams.sort_unstable();
    streams.dedup();
    assert_eq!(streams.len(), trace.streams().len(), "every stream is listed once");
    let complete = trace.header().events.is_none_or(|events| events == trace.ops().len() as u64)
        && trace.header().peak_live_bytes.is_none_or(|bytes| bytes == trace.peak_live_bytes());
    assert_eq!(trace.warning().is_none(), complete, "{:?}", trace.warning());
}

/// Checks that a trace of any format reads back the same after it is written as text.
fn check_written(trace: &Trace) {
    // The reader accepts a carriage return inside a label; the writer refuses it.
    if trace.labels().any(|label| label.contains(['\r', '\n'])) {
        return;
    }
    let mut writer = TextWriter::new(Vec::new(), Compression::Plain);
    let mut ids = vec![0; trace.slots() as usize];
    let mut next_id = 0;
    let mut labels = trace.labels();
    let tag_of = |tag: u8| usize::from(tag).checked_sub(1).map(|tag| trace.tags().nth(tag).expect("listed").into());
    let tag_of_all = |tags: Tags| if let Tags::One(tag) = tags { tag_of(tag) } else { None };
    for op in trace.ops() {
        let op = match *op {
            Op::Alloc { slot, stream, tag, bytes } => {
                next_id += 1;
                ids[slot as usize] = next_id;
                let stream = trace.streams()[usize::from(stream)];
                TraceOp::Alloc { id: next_id, bytes, stream, tag: tag_of(tag) }
            }
            Op::Free { slot } => TraceOp::Free { id: ids[slot as usize] },
            Op::Refused { stream, bytes } => TraceOp::Refused { bytes, stream: trace.streams()[usize::from(stream)] },
            Op::Sleep { tags, content } => TraceOp::Sleep { tag: tag_of_all(tags), content },
            Op::Wake { tags } => TraceOp::Wake { tag: tag_of_all(tags) },
            Op::Mark { .. } => TraceOp::Mark(labels.next().expect("every mark has a label").to_owned()),
        };
        writer.op(&op).expect("a trace that was read can be written");
    }
    let text = writer.finish().expect("writing to memory succeeds");
    match Trace::read("bytes", &text[..]) {
        Ok(again) => {
            assert_eq!(again.ops(), trace.ops(), "after writing and reading");
            assert_eq!(again.streams(), trace.streams(), "after writing and reading");
            assert!(again.tags().eq(trace.tags()), "after writing and reading");
            assert!(again.labels().eq(trace.labels().map(str::trim)), "after writing and reading");
        }
        // Labels in other formats may be longer than a line of the text format.
        Err(error) => {
            assert!(trace.labels().any(|label| label.len() > 60 << 10), "a written trace cannot be read: {error}")
        }
    }
}

fn survives(trace: &Trace, policy: PolicyKind) -> bool {
    let options = ReplayOptions {
        policy,
        gapless: GaplessSettings::default(),
        caching: CachingSettings::default(),
        capacity_bytes: CAPACITY,
        touch: Touch::for_model(LAG_OPS),
        progress: None,
    };
    let driver = ModelDriver::new(ModelConfig { capacity_bytes: CAPACITY, lag_ops: LAG_OPS, ..ModelConfig::default() });
    let driver = Arc::new(driver);
    let result = replay(trace, Arc::clone(&driver), &options).expect("a trace that was read can be replayed");
    let usage = driver.usage();
    let left = (usage.chunks, usage.mappings, usage.events, usage.host_memory);
    assert!(left == (0, 0, 0, 0), "left in the driver: {usage:?}");
    assert!(result.peak_reserved_bytes <= CAPACITY, "{result:?}");
    assert_eq!(result.steps, result.driver_calls_per_step.len() as u64);
    let Some(end) = &result.oom else {
        assert_eq!(result.steps, trace.labels().len() as u64);
        return true;
    };
    let op = trace.ops()[usize::try_from(end.op_index).expect("an index")];
    assert!(
        matches!(op, Op::Alloc { bytes, .. } | Op::Refused { bytes, .. } if bytes == end.requested_bytes)
            || matches!(op, Op::Wake { .. }),
        "{end:?} is not {op:?}"
    );
    // A request of at most half the device can only fail because of other live blocks.
    let alone = round_up(end.requested_bytes.max(1), ModelConfig::default().granularity);
    let live = trace.peak_live_bytes() > end.requested_bytes || end.op_index > 0;
    assert!(live || alone.is_none_or(|bytes| bytes > CAPACITY / 2), "{end:?} on an empty device of {CAPACITY} bytes");
    false
}

/// Memory of the device that traces are replayed on, in bytes.
const CAPACITY: u64 = 64 * MIB;
/// Number of ops after which work completes, so that some is in flight.
const LAG_OPS: u64 = 3;
/// Maximum number of ops in a trace that is replayed.
const MOST_OPS: usize = 4096;
const MOST_STREAMS: usize = 64;
const MOST_TAGS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_refused_or_replayed() {
        assert_eq!(check_trace(b"f 1\n"), ReadTrace::Refused);
        assert_eq!(check_trace(b""), ReadTrace::Replayed { out_of_memory: 0 });
        assert_eq!(check_trace(b"a 1 100 0\nm x\nf 1\n"), ReadTrace::Replayed { out_of_memory: 0 });
        assert_eq!(check_trace(b"a 1 18446744073709551615 0\n"), ReadTrace::Replayed { out_of_memory: 2 });
        let csv = b"Thread,Time,Action,Pointer,Size,Stream\n1,0,allocate,0x10,4096,0x2\n1,0,free,0x10,4096,0x2\n";
        assert_eq!(check_trace(csv), ReadTrace::Replayed { out_of_memory: 0 });
    }

    /// Allocations, frees, sleeps and wakes of three tags, two of them of other processes, in any order.
    fn program(mut random: u64, ops: usize) -> String {
        let mut draw = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let tags = ["kv", "other/kv", "other/weights", "*"];
        let (mut text, mut live) = (String::new(), Vec::new());
        for id in 0..ops {
            let line = match draw(12) {
                0 => format!("s {} {}", tags[draw(4) as usize], ["keep", "discard"][draw(2) as usize]),
                1 | 2 => format!("w {}", tags[draw(4) as usize]),
                3..6 if !live.is_empty() => {
                    let index = draw(live.len() as u64) as usize;
                    format!("f {}", live.swap_remove(index))
                }
                _ => {
                    live.push(id);
                    let most = [900, 90_000, 900_000, 9_000_000][draw(4) as usize];
                    let bytes = draw(most);
                    let tag = ["", "kv", "other/kv", "other/weights"][draw(4) as usize];
                    format!("a {id} {bytes} {} {tag}", draw(2))
                }
            };
            text += &format!("{line}\n");
        }
        text
    }

    #[test]
    fn programs_that_sleep_are_replayed() {
        let mut survived = 0;
        for seed in 0..400 {
            let text = program(seed, 30 + seed as usize / 10);
            match check_trace(text.as_bytes()) {
                ReadTrace::Replayed { out_of_memory } => survived += usize::from(out_of_memory == 0),
                other => panic!("{other:?}: {text}"),
            }
        }
        assert!((100..300).contains(&survived), "{survived} of 400");
    }
}
