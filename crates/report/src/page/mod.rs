//! The page of `advise --html` and `replay --html`: one file that needs nothing else. That of several files is in [`ranks`].
//!
//! What can be said in sentences and tables is HTML, and says what the text says. The pictures, and the stacks of single blocks,
//! are drawn by `page.js`.
//!
//! - I1  the file is at most `MOST_BYTES` long, whatever the trace: the timeline is bounded, and texts are cut.
//! - I2  what comes from a trace is HTML only where `html.rs` has escaped it, or JSON in which no `<` occurs, which `page.js` shows
//!   as text.

mod events;
mod html;
pub mod ranks;
mod sections;
mod stacks;

use gapless_trace::advice::{Advice, PolicyOutcome, Setting};
use gapless_trace::timeline::{MOST_CHOSEN, Subject, Timeline, timeline};
use gapless_trace::{Device, ReplayError, Trace};
use stacks::Stacks;

/// The contents of a page besides the timeline.
pub struct Contents<'a> {
    /// The title of the page.
    pub title: &'a str,
    /// The recording.
    pub trace: &'a Trace,
    /// The device of the replays.
    pub device: &'a Device,
    /// What is said of it.
    pub advice: &'a Advice,
    /// The table of policies.
    pub policies: &'a [PolicyOutcome],
    /// Whether the page says what to do, and what fits.
    pub gives_advice: bool,
    /// The policies that are drawn.
    pub subjects: &'a [Subject],
}

/// The object in the page, for its script.
#[derive(serde::Serialize)]
struct Data {
    device_bytes: u64,
    failed_op: Option<u64>,
    moment_op: u64,
    timeline: Timeline,
    /// The stacks of blocks and events.
    stacks: Stacks,
    /// For each list of live blocks of the timeline, the number of the stack of each block.
    block_stacks: Vec<Vec<Option<usize>>>,
}

/// Returns the page of an advice on the recording `trace`, which was replayed on `device` with the settings that were `tried`. The
/// policies that have a verdict are drawn.
///
/// # Errors
/// Returns the errors of the replays.
pub fn of_advice(trace: &Trace, device: &Device, advice: &Advice, tried: &[Setting]) -> Result<String, ReplayError> {
    let tried: Vec<Setting> = tried.iter().copied().chain(Setting::recorded(trace)).collect();
    let replayed = advice.policies.iter().filter(|policy| policy.not_replayed.is_none());
    let setting = |name: &str| tried.iter().find(|setting| setting.to_string() == name).copied();
    let subjects: Vec<Subject> = replayed.filter_map(|policy| setting(&policy.setting)).map(Subject::from).collect();
    render(&Contents {
        title: "what to do about its memory",
        trace,
        device,
        advice,
        policies: &advice.policies,
        gives_advice: true,
        subjects: &subjects,
    })
}

/// Returns the page.
///
/// # Errors
/// Returns the errors of the replays.
pub fn render(contents: &Contents<'_>) -> Result<String, ReplayError> {
    let (trace, advice) = (contents.trace, contents.advice);
    let mut failures: Vec<u64> = contents.policies.iter().filter_map(|policy| policy.oom_op).collect();
    failures.sort_unstable();
    failures.retain(|op| *op != advice.moment_op);
    failures.dedup();
    // The first two are looked at closely: the moment that the advice is about, and the earliest failure.
    let moments: Vec<u64> = std::iter::once(advice.moment_op).chain(failures).take(MOST_CHOSEN).collect();
    let timeline = timeline(trace, contents.device, contents.subjects, &moments)?;
    let drawn: Vec<String> = timeline.policies.iter().map(|policy| policy.name.clone()).collect();
    let mut stacks = Stacks::default();
    let events = events::around(trace, advice.moment_op);
    let events = sections::events(&events, trace, advice.moment_op, &mut stacks);
    let block_stacks = timeline.blocks.iter().map(|blocks| {
        let of_op = |op: &u64| stacks.of_op(trace, *op);
        blocks.allocated_at.iter().map(of_op).collect()
    });
    let block_stacks = block_stacks.collect();
    let data = Data {
        device_bytes: advice.device_bytes,
        failed_op: advice.failed.map(|failed| failed.op_index),
        moment_op: advice.moment_op,
        timeline,
        block_stacks,
        stacks,
    };
    let title = html::escape(&html::cut(&format!("{}: {}", crate::printable(&advice.trace), contents.title)));
    let given = if contents.gives_advice { sections::advice(advice) } else { String::new() };
    Ok(html::fill(
        TEMPLATE,
        &[
            ("title", &title),
            ("css", include_str!("page.css")),
            ("heading", &title),
            ("happened", &sections::happened(advice)),
            ("advice", &given),
            ("policies", &sections::policies(advice, contents.policies, &drawn)),
            ("holders", &sections::holders(advice, trace)),
            ("rest", &sections::rest(advice)),
            ("events", &events),
            ("data", &json(&data)),
            ("js", include_str!("page.js")),
        ],
    ))
}

fn json(data: &Data) -> String {
    let json = serde_json::to_string(data).expect("the data are numbers, texts and lists of them");
    // In JSON, `<` occurs in texts only, where its escape means the same.
    json.replace('<', "\\u003c")
}

const TEMPLATE: &str = include_str!("page.html");
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
        let options =
            AdviceOptions { device, settings: Vec::new(), threads: NonZero::<usize>::MIN, progress: None, known: None };
        let advice = advise(&trace, &options).unwrap();
        let subject = |index: usize| Subject {
            name: format!("native {index}"),
            policy: PolicyKind::Caching,
            gapless: GaplessSettings::default(),
            caching: CachingSettings::default(),
        };
        let subjects: Vec<Subject> = (0..subjects).map(subject).collect();
        // A second moment that is looked at closely.
        let fails_early = PolicyOutcome {
            setting: "gapless".into(),
            as_recorded: false,
            not_replayed: None,
            oom_op: Some(trace.ops().len() as u64 / 2),
            smallest_device_bytes: None,
            driver_calls: 0,
            host_waits: 0,
        };
        let (trace, device, advice, policies) = (&trace, &device, &advice, &[fails_early]);
        let contents =
            Contents { title: "a page", trace, device, advice, policies, gives_advice: true, subjects: &subjects };
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
        assert_eq!(
            page.matches("{{css}}").count(),
            page.matches("{{js}}{{css}}").count(),
            "a name is no place to fill"
        );
        let json = page.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
        let data: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(data["timeline"]["ops"], 2);
    }

    #[test]
    fn names_cannot_turn_the_line_around() {
        let page = page("/m/\u{202e}yp.niart\u{2069}", "a 1 100 0\nf 1\n", 1);
        assert!(!page.contains(['\u{202e}', '\u{2069}']) && page.contains(r"\u{202e}yp.niart\u{2069}"));
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
