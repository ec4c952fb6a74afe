//! Rules of the simulation, each with what a driver is asked, what the simulation answers, and how that is known.
//!
//! `crates/sim/tests/programs/rules.c` asks each question by the name of its rule; it can be asked of a GPU as well. Tests of
//! `crates/sim` compare the answers with these, and write the table of `docs/using/sim.md` from them.

use std::fmt::{self, Write};

/// A rule.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The name of the question.
    pub name: &'static str,
    /// What is asked for.
    pub what: &'static str,
    /// What the simulation does.
    pub answer: Answer,
    /// How it is known.
    pub known: Known,
}

/// What the simulation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It returns a code.
    Code(u32),
    /// It ends the process.
    Ends,
}

/// How a rule is known. The text names the question in `docs/internals/driver-facts.md`, or the page of the driver API.
#[derive(Clone, Copy, Debug)]
pub enum Known {
    /// A GPU has answered the same.
    Answered(&'static str),
    /// A GPU allows more.
    Stricter(&'static str),
    /// The page of the function says so. No GPU was asked.
    Documented(&'static str),
    /// No document says so, or not with this code.
    Assumed,
}

impl Known {
    /// Where the questions are written down.
    const FACTS: &str = "docs/internals/driver-facts.md";

    fn text(self, fact: impl Fn(&str) -> String) -> String {
        match self {
            Answered(id) => format!("an H100 answers the same: {}", fact(id)),
            Stricter(id) => format!("an H100 allows it: {}", fact(id)),
            Documented(page) => format!("the page of `{page}`; a GPU was not asked"),
            Assumed => "assumed; a GPU has to say".to_owned(),
        }
    }

    /// For a document in `docs/using`.
    fn linked(self) -> String {
        self.text(|id| format!("[`{id}`](../internals/driver-facts.md#{id})"))
    }
}

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(|id| format!("`{id}` in {}", Self::FACTS)))
    }
}

const fn rule(name: &'static str, what: &'static str, code: u32, known: Known) -> Rule {
    Rule { name, what, answer: Answer::Code(code), known }
}

use Known::{Answered, Assumed, Documented, Stricter};

/// The rules that a program can break by one call.
pub const RULES: [Rule; 40] = [
    rule("begin_without_init", "a call before `cuInit`", 3, Documented("cuInit")),
    rule(
        "info_without_context",
        "a call that needs a current context, such as `cuMemGetInfo`, without one",
        201,
        Answered("without_context"),
    ),
    rule("create_without_context", "`cuMemCreate` without a current context", 0, Answered("without_context")),
    rule("reserve_odd", "a reservation that is no multiple of 2 MiB, but of 4 KiB", 1, Assumed),
    rule("create_odd", "a chunk that is no multiple of 2 MiB", 1, Documented("cuMemCreate")),
    rule("create_too_much", "a chunk that is larger than the device", 2, Assumed),
    rule("map_part", "to map a part of a chunk", 801, Answered("sub_size_map")),
    rule("map_offset", "to map with an offset", 1, Documented("cuMemMap")),
    rule("map_released", "to map a chunk whose handle was released", 1, Assumed),
    rule("map_unreserved", "to map at addresses that are not reserved", 1, Documented("cuMemMap")),
    rule("map_over", "to map where something is mapped", 1, Documented("cuMemMap")),
    rule("map_again", "to map a chunk at a second address", 0, Answered("alias_coherence")),
    rule("unmap_two", "to unmap two adjacent mappings by one call", 0, Answered("unmap_two")),
    rule("unmap_again", "to unmap what was unmapped", 1, Stricter("unmap_two")),
    rule("unmap_part", "to unmap a part of a mapping", 1, Answered("unmap_part")),
    rule("unmap_hole", "to unmap two mappings and a hole between them", 1, Stricter("unmap_hole")),
    rule("access_part", "access to a part of a mapping", 1, Answered("access_part")),
    rule("access_unmapped", "access to what is not mapped", 1, Documented("cuMemSetAccess")),
    rule("access_read_only", "access for reading alone", 1, Stricter("read_only")),
    rule("release_twice", "to release a handle twice", 1, Assumed),
    rule("release_mapped", "to use a mapping whose handle was released", 0, Documented("cuMemRelease")),
    rule("free_mapped", "to free addresses where something is mapped", 1, Assumed),
    rule("free_part", "to free a part of a reservation", 1, Documented("cuMemAddressFree")),
    rule("free_again", "to free addresses that were freed", 1, Assumed),
    rule("free_twice", "to free memory of `cuMemAlloc` twice", 1, Assumed),
    rule("work_unmapped", "to wait for work where nothing is mapped", 700, Assumed),
    rule("work_without_access", "to wait for work on a mapping without access", 700, Documented("cuMemMap")),
    rule(
        "wait_after_unmap",
        "to wait for work whose memory was unmapped, or freed, under it",
        700,
        Answered("unmap_in_use"),
    ),
    rule("create_after_loss", "a chunk after such work", 700, Stricter("unmap_in_use")),
    rule(
        "reset_info",
        "a call that needs a context, such as `cuMemGetInfo`, after a reset",
        709,
        Answered("context_reset"),
    ),
    rule("reset_chunk", "to unmap after a reset of the context", 0, Answered("context_reset")),
    Rule {
        name: "dead_stream",
        what: "a call about a stream that was destroyed",
        answer: Answer::Ends,
        known: Answered("dead_stream"),
    },
    rule(
        "capture_create",
        "to create memory in a capture of the global mode, with `cuMemCreate`",
        900,
        Stricter("capture_same_thread"),
    ),
    rule(
        "capture_query",
        "to ask for an event or a stream in a capture of the global mode, with `cuEventQuery`",
        900,
        Answered("capture_same_thread"),
    ),
    rule(
        "capture_synchronize",
        "to wait for what is captured, with `cuCtxSynchronize`",
        900,
        Answered("capture_synchronize"),
    ),
    rule("capture_event", "`cuEventQuery` of an event that was recorded in a capture", 907, Answered("captured_event")),
    rule("capture_wait", "that a captured stream waits for an event from outside", 905, Answered("capture_wait")),
    rule(
        "capture_id",
        "the number or the context of a captured stream, with `cuStreamGetId`",
        900,
        Answered("stream_ids"),
    ),
    rule("capture_legacy", "the legacy stream while a blocking one is captured", 906, Answered("capture_blocking")),
    rule("capture_end", "the graph of a capture that was broken", 901, Answered("capture_synchronize")),
];

/// Rules whose answer is no fault of the program: memory may be short, and a fault before has consequences.
pub const NO_FAULTS: [&str; 3] = ["create_too_much", "create_after_loss", "capture_end"];

/// Returns the rule of a name.
pub fn find(name: &str) -> Rule {
    *RULES.iter().find(|rule| rule.name == name).expect("the name of a rule")
}

/// Returns the rules as a table for a document in `docs/using`.
pub fn table() -> String {
    let mut text = String::from("| rule | asked for | answer | how it is known |\n| --- | --- | --- | --- |\n");
    for rule in &RULES {
        let answer = match rule.answer {
            Answer::Code(0) => "succeeds".to_owned(),
            Answer::Code(code) => code.to_string(),
            Answer::Ends => "the process ends".to_owned(),
        };
        let known = rule.known.linked();
        writeln!(text, "| `{}` | {} | {answer} | {known} |", rule.name, rule.what).expect("a string can be written to");
    }
    text
}
