//! The few lines that are printed beside an out-of-memory error.

use crate::words;
use gapless::ByteSize;
use gapless_trace::Extent;
use gapless_trace::advice::{Advice, Stranded};

/// Returns what was asked for, what holds the memory, what is stranded, and what would have helped: at most [`MOST_LINES`] lines,
/// each of at most [`MOST_CHARACTERS`] characters.
pub fn lines(advice: &Advice) -> Vec<String> {
    let mut said = Vec::new();
    let mut happened = words::happened(advice).into_iter();
    said.extend(happened.next().map(|first| format!("{first}, of {}", ByteSize(advice.device_bytes))));
    if advice.history.extent != Extent::Whole {
        said.push("The history begins in the middle of the run: what would have helped is an estimate".into());
    }
    for (index, holder) in advice.holders.iter().take(MOST_HOLDERS).enumerate() {
        let begin = if index == 0 { "Held by" } else { "       " };
        said.push(format!("{begin} {:>10}  {}", ByteSize(holder.bytes).to_string(), words::holder(holder)));
    }
    said.extend(advice.stranded.as_ref().map(stranded));
    said.extend(happened.take(MOST_CAUSES));
    said.extend(words::verdict_in_short(advice).into_iter().take(MOST_VERDICTS));
    said.extend(words::fits(advice).into_iter().next().map(|fits| format!("Fits: {fits}")));
    for line in &mut said {
        if let Some((at, _)) = line.char_indices().nth(MOST_CHARACTERS) {
            line.truncate(at);
        }
    }
    said
}

/// Returns where the memory is that no live block uses.
fn stranded(stranded: &Stranded) -> String {
    let parts = [
        (stranded.free_in_whole_pages_bytes, "free in whole pages"),
        (stranded.free_in_partly_used_pages_bytes, "free beside live blocks"),
        (stranded.free_in_private_pools_bytes, "free in private pools"),
        (stranded.waiting_bytes, "waiting for other streams"),
        (stranded.rounding_bytes, "lost to rounding"),
        (stranded.unreserved_bytes, "not held"),
        (stranded.other_processes_bytes, "held by others"),
    ];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(bytes, _)| *bytes > 0)
        .map(|(bytes, what)| format!("{} {what}", ByteSize(*bytes)))
        .collect();
    format!("Stranded: {}", if parts.is_empty() { "nothing".into() } else { parts.join(", ") })
}

/// Most lines of a summary.
pub const MOST_LINES: usize = 3 + MOST_HOLDERS + MOST_CAUSES + MOST_VERDICTS + 1;
/// Most characters of a line.
pub const MOST_CHARACTERS: usize = 600;
const MOST_HOLDERS: usize = 3;
const MOST_CAUSES: usize = 1;
const MOST_VERDICTS: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_trace::advice::{AdviceOptions, Setting, advise};
    use gapless_trace::{Device, Trace};
    use std::num::NonZero;

    fn summary(text: &str) -> Vec<String> {
        let trace = Trace::read("t", text.as_bytes()).unwrap();
        let device = Device::for_trace(&trace).unwrap();
        let settings = Setting::usual(&trace);
        let options = AdviceOptions { device, settings, threads: NonZero::<usize>::MIN, progress: None, known: None };
        lines(&advise(&trace, &options).unwrap())
    }

    #[test]
    fn holes_are_named_with_what_would_have_served_the_request() {
        // Five of them share a segment of 20 MiB.
        let blocks: String = (0..125).map(|id| format!("a {id} 4194304 0\n")).collect();
        let holes: String = (0..125).step_by(2).map(|id| format!("f {id}\n")).collect();
        let said = summary(&format!("# capacity_bytes 524288000\n{blocks}{holes}r 134217728 0\n"));
        assert_eq!(
            said,
            [
                "PyTorch refused a request of 128 MiB at op 188, when 248 MiB were live, of 500 MiB",
                "Held by    248 MiB  62 blocks of 4 MiB, from ops 1 to 123",
                "Stranded: 252 MiB free in whole pages",
                "Simplest: python -m gapless.torch SCRIPT, with 0 B to spare",
                "gapless has run on one GPU so far, an NVIDIA H100.",
                "Fits: the RTX 4060 (7.11 GiB usable) is the smallest GPU of those known here, with gapless",
            ]
        );
    }

    #[test]
    fn a_summary_has_few_lines_and_short_ones() {
        let text: String = (0..50).map(|id| format!("a {id} {} {id}\n", (id + 1) << 21)).collect();
        let said = summary(&format!("# capacity_bytes 2684354560\n# external_bytes 5\n{text}r 1073741824 0\n"));
        assert!(said.len() <= MOST_LINES && said.len() > 5, "{said:#?}");
        assert!(said.iter().all(|line| line.chars().count() <= MOST_CHARACTERS && !line.contains('\n')), "{said:#?}");
    }
}
