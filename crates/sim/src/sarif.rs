//! The rules that a program broke, and what it held at its end, in the format that code hosts show: SARIF 2.1.0.

use gapless_sim_libcuda::broken::{Broken, Call};
use gapless_sim_libcuda::held::Held;
use gapless_sim_libcuda::stacks::Frame;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Where the rules are written down.
const RULES: &str = "docs/using/sim.md#what-it-knows";

/// What is held at the end is under this name.
const HELD: &str = "held";

/// The log of a run, or of all runs of a sweep.
pub fn log(broken: &[Broken], held: &[Held]) -> Value {
    let mut rules: BTreeMap<&str, Value> = broken.iter().map(|broken| (broken.rule.as_str(), rule(broken))).collect();
    if !held.is_empty() {
        let text = "held at the end";
        rules.insert(
            HELD,
            json!({"id": HELD, "shortDescription": {"text": text}, "defaultConfiguration": {"level": "note"}}),
        );
    }
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": env!("CARGO_BIN_NAME"),
                "version": env!("CARGO_PKG_VERSION"),
                "rules": rules.into_values().collect::<Vec<_>>(),
            }},
            "results": broken.iter().map(result).chain(held.iter().map(note)).collect::<Vec<_>>(),
        }],
    })
}

/// The names of the rules that were broken.
pub fn rules(broken: &[Broken]) -> String {
    let names: BTreeSet<&str> = broken.iter().map(|broken| broken.rule.as_str()).collect();
    let what = if names.len() == 1 { "rule" } else { "rules" };
    format!("{what} {}", names.into_iter().collect::<Vec<_>>().join(", "))
}

fn rule(broken: &Broken) -> Value {
    json!({
        "id": broken.rule,
        "shortDescription": {"text": broken.what},
        "fullDescription": {"text": format!("{}. How it is known: {}. See {RULES}.", broken.what, broken.known)},
        "defaultConfiguration": {"level": level(broken)},
    })
}

/// What no document and no GPU has said may be allowed.
fn level(broken: &Broken) -> &'static str {
    if broken.is_certain { "error" } else { "warning" }
}

fn result(broken: &Broken) -> Value {
    let text = format!("{}: {} ({})", broken.what, broken.detail, place(&broken.call));
    let calls: Vec<&Call> = std::iter::once(&broken.call).chain(&broken.other).collect();
    about(&broken.rule, level(broken), &text, &calls)
}

fn note(held: &Held) -> Value {
    let text = format!("held at the end: {} (first {})", held.amount(), place(&held.call));
    about(HELD, "note", &text, &[&held.call])
}

fn place(call: &Call) -> String {
    let Call { function, number, process, thread, .. } = call;
    format!("{function}, call {number} in process {process}, thread {thread}")
}

/// What is said about calls, at the place of the first.
fn about(rule: &str, level: &str, text: &str, calls: &[&Call]) -> Value {
    let stacks: Vec<Value> = calls.iter().map(|call| stack(call)).collect();
    let mut result = json!({"ruleId": rule, "level": level, "message": {"text": text}, "stacks": stacks});
    if let Some(frame) = calls.first().and_then(|call| frames(call).find(|frame| frame.file.is_some())) {
        result["locations"] = json!([location(frame)]);
    }
    result
}

/// The frames of Python first: they are nearer to what somebody wrote.
fn frames(call: &Call) -> impl Iterator<Item = &Frame> {
    call.python.iter().chain(&call.stack)
}

fn stack(call: &Call) -> Value {
    let frames: Vec<Value> = frames(call).map(|frame| json!({"location": location(frame)})).collect();
    json!({"message": {"text": format!("{}, call {}", call.function, call.number)}, "frames": frames})
}

fn location(frame: &Frame) -> Value {
    let mut location = json!({
        "logicalLocations": [{"name": frame.function, "kind": "function"}],
        "message": {"text": frame.function},
    });
    if let Some(file) = &frame.file {
        location["physicalLocation"] = json!({"artifactLocation": {"uri": file}});
        if let Some(line) = frame.line.filter(|line| *line > 0) {
            location["physicalLocation"]["region"] = json!({"startLine": line});
        }
    }
    location
}
