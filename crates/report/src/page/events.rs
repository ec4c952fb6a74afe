//! The ops around a moment, one by one.

use gapless_trace::{Op, Tags, Trace};

/// An op.
pub(super) struct Event {
    pub op: u64,
    pub what: &'static str,
    /// Size of the block or of the request, in bytes. `None` for a mark.
    pub bytes: Option<u64>,
    /// The recorder's number of the stream.
    pub stream: Option<u64>,
    /// The index of the op that asked for the memory: its own, or for a free that of the allocation.
    pub asked_at: Option<u64>,
    /// The label of a mark, or the tag of a sleep or a wake.
    pub label: Option<String>,
}

/// Returns the ops around a moment, which is the index of an op.
pub(super) fn around(trace: &Trace, moment: u64) -> Vec<Event> {
    let from = moment.saturating_sub(BEFORE);
    let until = moment.saturating_add(AFTER);
    let mut blocks = vec![(0, 0, 0_u16); trace.slots() as usize];
    let mut events = Vec::new();
    for (op, what) in (0..until).zip(trace.ops()) {
        let event = match *what {
            Op::Alloc { slot, stream, bytes, .. } => {
                blocks[slot as usize] = (op, bytes, stream);
                ("alloc", Some((op, bytes, stream)), None)
            }
            Op::Free { slot } => ("free", Some(blocks[slot as usize]), None),
            Op::Refused { stream, bytes } => ("refused", Some((op, bytes, stream)), None),
            Op::Sleep { tags, .. } => ("sleep", None, tag(trace, tags)),
            Op::Wake { tags } => ("wake", None, tag(trace, tags)),
            Op::Mark { label } => ("mark", None, trace.labels().nth(label as usize)),
        };
        if op < from {
            continue;
        }
        let (what, block, label) = event;
        events.push(Event {
            op,
            what,
            bytes: block.map(|(_, bytes, _)| bytes),
            stream: block.map(|(_, _, stream)| trace.streams()[usize::from(stream)]),
            asked_at: block.map(|(asked_at, _, _)| asked_at),
            label: label.map(ToOwned::to_owned),
        });
    }
    events
}

/// The name of a tag, or nothing for all memory.
fn tag(trace: &Trace, tags: Tags) -> Option<&str> {
    match tags {
        Tags::All => None,
        Tags::One(tag) => trace.tags().nth(usize::from(tag).checked_sub(1)?),
    }
}

/// Ops before the moment, and from it on.
const BEFORE: u64 = 150;
const AFTER: u64 = 50;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_names_the_allocation() {
        let trace = Trace::read("t", &b"a 1 100 7\nf 1\nm end\nr 50 7\n"[..]).unwrap();
        let events: Vec<_> = around(&trace, 3)
            .into_iter()
            .map(|event| (event.op, event.what, event.bytes, event.stream, event.asked_at, event.label))
            .collect();
        assert_eq!(
            events,
            [
                (0, "alloc", Some(100), Some(7), Some(0), None),
                (1, "free", Some(100), Some(7), Some(0), None),
                (2, "mark", None, None, None, Some("end".into())),
                (3, "refused", Some(50), Some(7), Some(3), None),
            ]
        );
    }

    #[test]
    fn sleeps_and_wakes_name_their_tags() {
        let trace = Trace::read("t", &b"a 1 100 7 kv\ns kv discard\nw *\n"[..]).unwrap();
        let events: Vec<_> = around(&trace, 3).into_iter().map(|event| (event.what, event.label)).collect();
        assert_eq!(events, [("alloc", None), ("sleep", Some("kv".into())), ("wake", None)]);
    }

    #[test]
    fn few_ops_are_listed_of_many() {
        let text: String = (0..1000).map(|id| format!("a {id} 1 0\n")).collect();
        let trace = Trace::read("t", text.as_bytes()).unwrap();
        let ops: Vec<u64> = around(&trace, 500).iter().map(|event| event.op).collect();
        assert_eq!(ops, (350..550).collect::<Vec<_>>());
    }
}
