//! Compares two results of the GPU bundle on the same kind of device: a stored baseline and a new run.
//!
//! Times alone are not compared, nor are answers that are times or counts.

use crate::failure::Failure;
use crate::files;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The baselines that a benchmark is compared with, where its group has them.
const OF_THE_DRIVER: [&str; 4] = ["cuMemAlloc", "cuMemAllocAsync", "raw calls", "raw calls, a chunk a page"];
const MOST_SLOWER: f64 = 1.15;
/// Keys of an answer of the probe that say how it was asked.
const NOT_COMPARED: [&str; 2] = ["seconds", "question"];

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Fails, with a line for each reason, when a stage of the new run failed (verified bytes that were lost are such \
                  a failure), when the device answers a question of the probe or of the rules differently, or when gapless became \
                  slower by more than 15 % against the driver's own allocator or raw calls, measured in the same run."
)]
pub struct GpuCompareArguments {
    /// The stored results, such as benches/results/GPU/results.json
    baseline: PathBuf,
    /// The results of the new run
    results: PathBuf,
}

pub fn run(arguments: &GpuCompareArguments) -> Result<(), Failure> {
    let compared = compare(&read(&arguments.baseline)?, &read(&arguments.results)?)?;
    println!("{compared}");
    Ok(())
}

fn read(path: &Path) -> Result<Value, Failure> {
    let text = files::read(path)?;
    let about = |text: &str| Failure::new(format!("{}: {text}", path.display()));
    let results: Value = serde_json::from_str(&text).map_err(|error| about(&error.to_string()))?;
    let is_whole = ["stages", "probe", "bench"].iter().all(|part| results.get(part).is_some());
    if is_whole { Ok(results) } else { Err(about("it has no stages, probe or bench")) }
}

/// Returns a line that says what was compared.
fn compare(baseline: &Value, results: &Value) -> Result<String, Failure> {
    let [old, new] = [baseline, results].map(|results| &results["probe"]["device"]["name"]);
    if old != new {
        return Err(Failure::new(format!("not the same device: {old} and {new}")));
    }
    let (answers, rules) = (changed_answers(baseline, results), changed_rules(baseline, results));
    let reasons = [failed_stages(results), answers, rules, slower(baseline, results)].concat();
    if !reasons.is_empty() {
        return Err(Failure::new(reasons.join("\n")));
    }
    let (stages, ratios) = (list(&results["stages"]).len(), ratios(results).len());
    Ok(format!("as before on {}: {stages} stages, {ratios} ratios", text(new)))
}

fn failed_stages(results: &Value) -> Vec<String> {
    let failed = list(&results["stages"]).iter().filter(|stage| !matches!(text(&stage["outcome"]), "ok" | "skipped"));
    failed.map(|stage| format!("stage {}: {}", text(&stage["name"]), text(&stage["outcome"]))).collect()
}

/// An answer without its numbers: what is left is the same each time that a device is asked.
fn facts(answer: &Value) -> Value {
    match answer {
        Value::Object(parts) => {
            let compared = parts.iter().filter(|(key, _)| !NOT_COMPARED.contains(&key.as_str()));
            Value::Object(compared.map(|(key, part)| (key.clone(), facts(part))).collect())
        }
        Value::Array(parts) => Value::Array(parts.iter().map(facts).collect()),
        Value::Number(_) => "number".into(),
        Value::Null | Value::Bool(_) | Value::String(_) => answer.clone(),
    }
}

fn changed_answers(baseline: &Value, results: &Value) -> Vec<String> {
    let none = Map::new();
    let [old, new] = [baseline, results].map(|results| results["probe"]["answers"].as_object().unwrap_or(&none));
    let reason = |(question, before): (&String, &Value)| {
        let Some(now) = new.get(question) else { return Some(format!("probe {question}: it was not asked")) };
        let (before, now) = (facts(before), facts(now));
        (before != now).then(|| format!("probe {question}: the answer was {before}, and is {now}"))
    };
    old.iter().filter_map(reason).collect()
}

/// Of rules the numbers count: they are the driver's codes.
fn changed_rules(baseline: &Value, results: &Value) -> Vec<String> {
    let none = Map::new();
    let [old, new] = [baseline, results].map(|results| results["rules"].as_object().unwrap_or(&none));
    let reason = |(rule, before): (&String, &Value)| {
        let Some(now) = new.get(rule) else { return Some(format!("rule {rule}: it was not asked")) };
        (before != now).then(|| format!("rule {rule}: the answer was {before}, and is {now}"))
    };
    old.iter().filter_map(reason).collect()
}

/// Each benchmark against each of the driver's own in its group, with the same parameter.
fn ratios(results: &Value) -> BTreeMap<String, f64> {
    let mut groups: BTreeMap<(&str, &str), BTreeMap<&str, f64>> = BTreeMap::new();
    for bench in list(&results["bench"]) {
        let (group, rest) = text(&bench["name"]).split_once('/').unwrap_or_default();
        let (name, parameter) = rest.split_once('/').unwrap_or((rest, ""));
        if let Some(time) = bench["mean_ns"].as_f64().filter(|time| *time > 0.0) {
            groups.entry((group, parameter)).or_default().insert(name, time);
        }
    }
    let of_driver = BTreeSet::from(OF_THE_DRIVER);
    let mut found = BTreeMap::new();
    for ((group, parameter), times) in &groups {
        for (own, own_time) in times.iter().filter(|(name, _)| of_driver.contains(*name)) {
            for (name, time) in times.iter().filter(|(name, _)| !of_driver.contains(*name)) {
                found.insert(format!("{group}/{name}/{parameter} against {own}"), time / own_time);
            }
        }
    }
    found
}

fn slower(baseline: &Value, results: &Value) -> Vec<String> {
    let new = ratios(results);
    let reason = |(name, before): (String, f64)| {
        let Some(now) = new.get(&name) else { return Some(format!("bench {name}: it was not measured")) };
        let is_slower = *now > MOST_SLOWER * before;
        is_slower.then(|| format!("bench {name}: {before:.3} times before, {now:.3} times now"))
    };
    ratios(baseline).into_iter().filter_map(reason).collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn results() -> Value {
        json!({
            "stages": [{"name": "doctor", "outcome": "ok"}, {"name": "python", "outcome": "skipped"}],
            "probe": {
                "device": {"name": "A GPU"},
                "answers": {"dead_stream": {"value": {"query": "invalid handle", "ns": 410}, "seconds": 0.2}},
            },
            "rules": {"map_part": {"answer": 801, "exit_code": 0}, "dead_stream": {"answer": null, "exit_code": 139}},
            "bench": [
                {"name": "cached block/cuMemAllocAsync/4 KiB", "mean_ns": 800.0},
                {"name": "cached block/gapless/4 KiB", "mean_ns": 40.0},
                {"name": "cached block/gapless/20 MiB", "mean_ns": 40.0},
            ],
        })
    }

    /// The results with another value at a path, as JSON pointers have it.
    fn with_change(path: &str, value: Value) -> Value {
        let mut results = results();
        *results.pointer_mut(path).expect("a part of the results") = value;
        results
    }

    #[test]
    fn other_times_alone_are_no_failure() {
        let answer = json!({"value": {"query": "invalid handle", "ns": 9}, "seconds": 7});
        let mut changed = with_change("/probe/answers/dead_stream", answer);
        for (number, time) in [1600.0, 88.0, 200.0].into_iter().enumerate() {
            changed["bench"][number]["mean_ns"] = time.into();
        }
        assert_eq!(compare(&results(), &changed).unwrap(), "as before on A GPU: 2 stages, 1 ratios");
    }

    #[test]
    fn reasons_are_named() {
        for (path, value, reason) in [
            ("/stages/0/outcome", json!("failed"), "stage doctor: failed"),
            ("/probe/answers/dead_stream/value/query", json!("crash"), "probe dead_stream: the answer was"),
            ("/probe/answers", json!({}), "probe dead_stream: it was not asked"),
            ("/rules/map_part/answer", json!(1), "rule map_part: the answer was"),
            ("/rules/dead_stream", json!({"answer": 400, "exit_code": 0}), "rule dead_stream: the answer was"),
            ("/rules", json!({}), "rule map_part: it was not asked"),
            (
                "/bench/1/mean_ns",
                json!(47.0),
                "bench cached block/gapless/4 KiB against cuMemAllocAsync: 0.050 times before, 0.059 times now",
            ),
            ("/bench", json!([]), "it was not measured"),
            ("/probe/device/name", json!("Another"), "not the same device: \"A GPU\" and \"Another\""),
        ] {
            let error = compare(&results(), &with_change(path, value)).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn a_file_without_results_is_refused() {
        let folder = files::temporary_folder().unwrap();
        let path = folder.path().join("new");
        files::write(&path, "[]").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("it has no stages, probe or bench"));
    }
}
