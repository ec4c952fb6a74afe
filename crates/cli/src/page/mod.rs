//! The page of `advise --html` and `replay --html`: one file that needs nothing else. That of several files is in [`ranks`].
//!
//! - I1  the file is at most [`MOST_BYTES`] long, whatever the trace: the timeline is bounded, and texts are cut.
//! - I2  what comes from a trace is only ever JSON in which no `<` occurs, and `page.js` shows it as text.

pub(super) mod ranks;

use super::{Failure, printable};
use gapless_trace::advice::{Advice, Holder, PolicyOutcome, Stranded};
use gapless_trace::timeline::{MOST_CHOSEN, Subject, Timeline, timeline};
use gapless_trace::{Device, ReplayError, Trace};
use std::io;
use std::path::Path;

/// The contents of a page besides the timeline.
pub(super) struct Contents<'a> {
    /// The title of the page.
    pub title: &'a str,
    pub trace: &'a Trace,
    pub device: &'a Device,
    pub advice: &'a Advice,
    /// The table of policies.
    pub policies: &'a [PolicyOutcome],
    /// The verdict in words: the things to do.
    pub verdict: Option<String>,
    /// The policies that are drawn.
    pub subjects: &'a [Subject],
}

/// The object in the page.
#[derive(serde::Serialize)]
struct Data<'a> {
    title: &'a str,
    trace: String,
    device_bytes: u64,
    peak_live_bytes: u64,
    failed_op: Option<u64>,
    failed_bytes: Option<u64>,
    failure_is_recorded: bool,
    moment_op: u64,
    live_bytes: u64,
    verdict: Option<&'a str>,
    holders: Vec<Holder>,
    stranded: Option<&'a Stranded>,
    policies: &'a [PolicyOutcome],
    timeline: Timeline,
}

/// Returns the page.
///
/// # Errors
/// Returns the errors of the replays.
pub(super) fn render(contents: &Contents<'_>) -> Result<String, ReplayError> {
    let advice = contents.advice;
    let failures = contents.policies.iter().filter_map(|policy| policy.oom_op);
    let moments: Vec<u64> = std::iter::once(advice.moment_op).chain(failures).take(MOST_CHOSEN).collect();
    let data = Data {
        title: contents.title,
        trace: cut(&advice.trace),
        device_bytes: advice.device_bytes,
        peak_live_bytes: advice.peak_live_bytes,
        failed_op: advice.failed.map(|failed| failed.op_index),
        failed_bytes: advice.failed.map(|failed| failed.bytes),
        failure_is_recorded: advice.failure_is_recorded,
        moment_op: advice.moment_op,
        live_bytes: advice.live_bytes,
        verdict: contents.verdict.as_deref(),
        holders: advice
            .holders
            .iter()
            .map(|holder| Holder { origin: holder.origin.as_deref().map(cut), ..holder.clone() })
            .collect(),
        stranded: advice.stranded.as_ref(),
        policies: contents.policies,
        timeline: timeline(contents.trace, contents.device, contents.subjects, &moments)?,
    };
    Ok(assemble(&data))
}

/// Writes the page to `path`.
pub(super) fn write(path: &Path, page: &str) -> Result<(), Failure> {
    std::fs::write(path, page).map_err(|error: io::Error| {
        let path = printable(&path.to_string_lossy());
        Failure::BadArguments(format!("cannot write the page to {path}: {error}. Name a file in a folder that exists"))
    })
}

fn assemble(data: &Data<'_>) -> String {
    let json = serde_json::to_string(data).expect("the data are numbers, texts and lists of them");
    // In JSON, `<` occurs in texts only, where its escape means the same.
    let json = json.replace('<', "\\u003c");
    fill(TEMPLATE, &[("{{css}}", STYLE), ("{{data}}", &json), ("{{js}}", include_str!("page.js"))])
}

/// Puts texts into the places of a template, which are there in this order. What was put in is not looked at again.
fn fill(template: &str, texts: &[(&str, &str)]) -> String {
    let (mut page, mut rest) = (String::new(), template);
    for (place, text) in texts {
        let (before, after) = rest.split_once(place).expect("each place is in the template");
        page += before;
        page += text;
        rest = after;
    }
    page + rest
}

/// A text that is no longer than [`MOST_CHARACTERS`].
fn cut(text: &str) -> String {
    match text.char_indices().nth(MOST_CHARACTERS) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

const TEMPLATE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
/// Most characters of a name or a frame.
const MOST_CHARACTERS: usize = 2000;
/// The size of a page is below this.
#[cfg(test)]
const MOST_BYTES: usize = 5 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_trace::advice::{AdviceOptions, advise};
    use gapless_trace::caching::CachingSettings;
    use gapless_trace::{GaplessSettings, PolicyKind};
    use std::fmt::Write;
    use std::num::NonZero;

    fn page(name: &str, text: &str, subjects: usize) -> String {
        let trace = Trace::read(name, text.as_bytes()).unwrap();
        let device = Device::for_trace(&trace).unwrap();
        let options = AdviceOptions { device, settings: Vec::new(), threads: NonZero::<usize>::MIN, progress: None };
        let advice = advise(&trace, &options).unwrap();
        let subject = |index: usize| Subject {
            name: format!("native {index}"),
            policy: PolicyKind::Caching,
            gapless: GaplessSettings::default(),
            caching: CachingSettings::default(),
        };
        let subjects: Vec<Subject> = (0..subjects).map(subject).collect();
        let (trace, device, advice) = (&trace, &device, &advice);
        let contents =
            Contents { title: "a page", trace, device, advice, policies: &[], verdict: None, subjects: &subjects };
        render(&contents).unwrap()
    }

    #[test]
    fn a_million_ops_on_many_streams_stay_below_the_limit() {
        // The device is large enough for every replay to reach the end.
        let mut text = String::from("# capacity_bytes 4398046511104\n");
        // Blocks of many sizes on 40 streams; every other one stays for a while, so that the maps are full of gaps.
        for id in 0..500_000_u64 {
            let bytes = 512 + (id * 7919) % 8_000_000;
            writeln!(text, "a {id} {bytes} {}", id % 40).unwrap();
            if id >= 20_000 {
                let freed = if id % 2 == 0 { id - 20_000 } else { id - 200 };
                // Ids of each parity are freed once: the even ones late, the odd ones early.
                let freed = if freed % 2 == id % 2 { freed } else { freed + 1 };
                writeln!(text, "f {freed}").unwrap();
            }
        }
        let page = page("large", &text, 13);
        assert!(page.len() <= MOST_BYTES, "{}", page.len());
        assert!(page.len() > MOST_BYTES / 4, "the test is about a large page: {}", page.len());
    }

    #[test]
    fn names_cannot_leave_the_data() {
        let name = "</script><script>alert(1)</script><!--{{js}}{{css}}";
        let page = page(name, "a 1 100 0\nf 1\n", 1);
        let ours = TEMPLATE.matches("<script").count();
        assert_eq!((page.matches("<script").count(), page.matches("</script").count()), (ours, ours));
        assert!(!page.contains("<!--") && page.contains("alert(1)"));
        let json = page.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
        let data: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(data["trace"], name);
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(cut("frame"), "frame");
        let long = cut(&"é".repeat(MOST_CHARACTERS + 5));
        assert_eq!((long.chars().count(), long.chars().last()), (MOST_CHARACTERS + 1, Some('…')));
    }

    /// Nothing in the template is fetched.
    #[test]
    fn the_page_names_no_address() {
        let page = page("t", "a 1 100 0\nf 1\n", 1);
        for scheme in ["http:", "https:", "//cdn", "@import", "src="] {
            assert!(!page.contains(scheme), "{scheme}");
        }
    }
}
