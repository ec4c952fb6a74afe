//! The parts of a page that need no script: sentences and tables.

use super::events::Event;
use super::html::{Column, Row, breakable, cut, escape, paragraphs, table};
use super::stacks::Stacks;
use crate::count::grouped;
use crate::{printable, words};
use gapless::ByteSize;
use gapless_trace::Trace;
use gapless_trace::advice::{Advice, Holder, PolicyOutcome};

/// What happened, as paragraphs.
pub(super) fn happened(advice: &Advice) -> String {
    let summary = format!("{}.", words::summary(advice));
    let sentences = words::happened(advice);
    let sentences: Vec<String> = sentences.iter().map(|sentence| format!("{}.", capital(&cut(sentence)))).collect();
    paragraphs(std::iter::once(&summary).chain(&sentences).map(String::as_str))
}

/// What to do, and what fits: a heading for each, and its lines.
pub(super) fn advice(advice: &Advice) -> String {
    let lines = |id: &str, heading: &str, lines: &[String]| {
        let lines: Vec<String> = lines.iter().map(|line| breakable(&cut(line))).collect();
        format!("<h2>{heading}</h2>\n<pre id=\"{id}\">{}</pre>\n", lines.join("\n"))
    };
    let mut html = lines("verdict", "What to do", &words::verdict(advice));
    let fits = words::fits(advice);
    if !fits.is_empty() {
        html.push_str(&lines("fits", "What fits", &fits));
    }
    html
}

/// The table of policies with what is said below it. `drawn` are the names of the policies in the pictures.
pub(super) fn policies(advice: &Advice, policies: &[PolicyOutcome], drawn: &[String]) -> String {
    let columns = [
        Column::text("setting"),
        Column::text("outcome"),
        Column::number("smallest device"),
        Column::number("driver calls"),
        Column::number("host waits"),
    ];
    let row = |policy: &PolicyOutcome| {
        let as_it_ran = if policy.as_recorded { " (as it ran)" } else { "" };
        let mut cells = vec![breakable(&policy.setting) + as_it_ran, words::outcome(policy)];
        cells.extend(words::figures(policy));
        let attributes = if policy.survives() { " class=\"survives\"" } else { "" };
        Row { attributes: attributes.into(), cells }
    };
    let rows: Vec<Row> = policies.iter().map(row).collect();
    let mut below = words::below_the_table(advice);
    let replayed = policies.iter().filter(|policy| policy.not_replayed.is_none());
    let left_out: Vec<&str> = replayed
        .map(|policy| policy.setting.as_str())
        .filter(|name| !drawn.iter().any(|drawn| drawn == name))
        .collect();
    if !left_out.is_empty() {
        below.push(format!("Not in the pictures: {}.", left_out.join("; ")));
    }
    table("policies", &columns, &rows) + &paragraphs(below.iter().map(String::as_str))
}

/// The largest holders, with the stack of the oldest block of each.
pub(super) fn holders(advice: &Advice, trace: &Trace) -> String {
    let has_places = advice.holders.iter().any(|holder| holder.origin.is_some());
    let by = if has_places {
        "by the innermost frame of the program that allocated them, with PyTorch's operator"
    } else {
        "by size: the recording has no stack frames"
    };
    let columns = [
        Column::number("held"),
        Column::number("blocks"),
        Column::number("each"),
        Column::text("stack frame"),
        Column::text("allocated"),
    ];
    let mut room = MOST_STACK_BYTES;
    let mut row = |holder: &Holder| {
        let each = holder.block_bytes.map_or_else(|| "several sizes".into(), |bytes| ByteSize(bytes).to_string());
        let place = holder.origin.as_deref().map_or_else(|| "not recorded".into(), |origin| cut(&printable(origin)));
        let stack = stack(trace, holder.oldest_op).filter(|stack| stack.len() <= room);
        room -= stack.as_ref().map_or(0, String::len);
        let place = match stack {
            Some(stack) => format!("<details><summary>{}</summary>{stack}</details>", breakable(&place)),
            None => breakable(&place),
        };
        let cells = vec![ByteSize(holder.bytes).to_string(), grouped(holder.blocks), each, place, words::age(holder)];
        Row { attributes: String::new(), cells }
    };
    let rows: Vec<Row> = advice.holders.iter().map(&mut row).collect();
    let moment = format!("Live before op {}, {by}.", grouped(advice.moment_op));
    paragraphs([moment.as_str()]) + &table("holders", &columns, &rows)
}

/// The stack of the op at an index as a list, if the recording has it.
fn stack(trace: &Trace, op: u64) -> Option<String> {
    let frames = trace.frames(trace.stack_of(op)?);
    let items: String = frames.map(|frame| format!("<li>{}</li>", breakable(&cut(&printable(frame))))).collect();
    (!items.is_empty()).then(|| format!("<ol class=\"stack\">{items}</ol>"))
}

/// Where the rest of the device was, with a heading.
pub(super) fn rest(advice: &Advice) -> String {
    let Some(rest) = words::rest(advice) else { return String::new() };
    let row = |(bytes, what): &(u64, String)| Row {
        attributes: String::new(),
        cells: vec![ByteSize(*bytes).to_string(), escape(what)],
    };
    let rows: Vec<Row> = rest.parts.iter().map(row).collect();
    let notes: Vec<String> = rest.notes.iter().map(|note| format!("{}.", cut(note))).collect();
    format!(
        "<h2>{}</h2>\n<div class=\"scroll\">{}</div>\n{}",
        escape(&rest.heading),
        table("rest", &[Column::number("bytes"), Column::text("where")], &rows),
        paragraphs(notes.iter().map(String::as_str))
    )
}

/// The table of ops around the moment. The script finds the stack of a row by its number.
pub(super) fn events(events: &[Event], trace: &Trace, moment: u64, stacks: &mut Stacks) -> String {
    let columns = [
        Column::number("op"),
        Column::text("what"),
        Column::number("bytes"),
        Column::number("stream"),
        Column::text("stack frame"),
    ];
    let mut row = |event: &Event| {
        let number = event.asked_at.and_then(|op| stacks.of_op(trace, op));
        let number = number.map(|number| format!(" data-stack=\"{number}\"")).unwrap_or_default();
        let class = if event.op == moment { " class=\"moment\"" } else { "" };
        let place = match (&event.label, event.asked_at) {
            (Some(label), _) => label.clone(),
            (None, Some(op)) => trace.origin(op).unwrap_or_default().to_owned(),
            (None, None) => String::new(),
        };
        let freed = match event.asked_at {
            Some(op) if op != event.op => format!(" of op {}", grouped(op)),
            _ => String::new(),
        };
        let cells = vec![
            grouped(event.op),
            format!("{}{freed}", event.what),
            event.bytes.map(|bytes| ByteSize(bytes).to_string()).unwrap_or_default(),
            event.stream.map(|stream| stream.to_string()).unwrap_or_default(),
            breakable(&cut(&printable(&place))),
        ];
        Row { attributes: format!("{number}{class}"), cells }
    };
    let rows: Vec<Row> = events.iter().map(&mut row).collect();
    table("events", &columns, &rows)
}

/// A sentence with a capital at its beginning, unless that is a name.
fn capital(sentence: &str) -> String {
    if sentence.starts_with("gapless") {
        return sentence.to_owned();
    }
    let mut chars = sentence.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// Most bytes of the stacks of holders together.
const MOST_STACK_BYTES: usize = 400 << 10;
