//! Recordings of other allocators: how the tests write and read them.

#[allow(dead_code, reason = "each test file uses a part of it")]
pub mod pickle;

use gapless_trace::{Op, Trace};

pub fn read(bytes: &[u8]) -> Result<Trace, String> {
    Trace::read("t", bytes).map_err(|error| error.to_string())
}

/// Returns `a BYTES STREAM`, `f`, `r BYTES STREAM` or `m LABEL` for each op.
pub fn ops(trace: &Trace) -> Vec<String> {
    let op = |op: &Op| match *op {
        Op::Alloc { bytes, stream, .. } => format!("a {bytes} {}", trace.streams()[usize::from(stream)]),
        Op::Free { .. } => "f".into(),
        Op::Refused { bytes, stream } => format!("r {bytes} {}", trace.streams()[usize::from(stream)]),
        Op::Sleep { .. } | Op::Wake { .. } => unreachable!("no other format has them"),
        Op::Mark { label } => format!("m {}", trace.labels().nth(label as usize).unwrap()),
    };
    trace.ops().iter().map(op).collect()
}
