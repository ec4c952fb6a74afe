//! Replay of a recorded trace, for programs that do not run the command line.

use crate::abi::{json_options, text};
use crate::last_error::guard;
use crate::out::write_json;
use crate::status::{Failure, gapless_status};
use gapless_trace::caching::CachingSettings;
use gapless_trace::{Device, GaplessSettings, PolicyKind, ReplayOptions, ReplayResult, Search, Touch, Trace, replay};
use serde::Deserialize;
use std::ffi::c_char;
use std::num::NonZero;
use std::sync::Arc;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Options {
    capacity_bytes: Option<u64>,
    policies: Vec<PolicyKind>,
    search_capacity: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { capacity_bytes: None, policies: vec![PolicyKind::Gapless, PolicyKind::Caching], search_capacity: false }
    }
}

/// Replays a recorded trace on a simulated device and writes the results as a JSON array into buffer, as
/// gapless_stats_json does: one object for each policy, with the keys of gapless replay --json.
///
/// options is NULL or a JSON object with any of capacity_bytes, policies (["gapless", "caching"]) and search_capacity.
///
/// # Safety
/// path is a NUL-terminated string, options is one or NULL; the rest is as in gapless_stats_json.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_replay_json(
    path: *const c_char,
    options: *const c_char,
    buffer: *mut c_char,
    capacity: u64,
    needed: *mut u64,
) -> gapless_status {
    guard(|| {
        // SAFETY: the function's contract.
        let path = unsafe { text(path, "path") }?;
        // SAFETY: the function's contract.
        let options: Options = unsafe { json_options(options) }?;
        let results = run(path.as_ref(), &options)?;
        // SAFETY: the same contract.
        unsafe { write_json(&results, buffer, capacity, needed) }
    })
}

fn run(path: &std::path::Path, options: &Options) -> Result<Vec<ReplayResult>, Failure> {
    let named = |error: &dyn std::fmt::Display| Failure::argument(format!("{}: {error}", path.display()));
    let trace = Trace::open(path).map_err(|error| named(&error))?;
    let device = match options.capacity_bytes {
        Some(bytes) => Device::of(bytes),
        None => Device::for_trace(&trace).map_err(|error| named(&error))?,
    };
    let mut results = Vec::new();
    for &policy in &options.policies {
        let settings = ReplayOptions {
            policy,
            gapless: GaplessSettings::default(),
            caching: CachingSettings::default(),
            capacity_bytes: device.capacity_bytes,
            touch: Touch::Nothing,
            progress: None,
        };
        let mut result = replay(&trace, Arc::new(device.model()), &settings).map_err(|error| named(&error))?;
        if options.search_capacity {
            let search = Search {
                trace: &trace,
                policy,
                gapless: GaplessSettings::default(),
                caching: CachingSettings::default(),
                lag_ops: 0,
                threads: NonZero::<usize>::MIN,
                progress: None,
            };
            result.search = Some(search.run().map_err(|error| named(&error))?);
        }
        results.push(result);
    }
    Ok(results)
}
