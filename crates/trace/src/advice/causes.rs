//! The causes of a refused request that a recording shows, beside what was live.

use super::stranded::Stranded;
use crate::caching::{CachingSettings, segment_bytes_of};
use crate::{FailedRequest, Trace};

/// A reason that a request could not have memory which was free.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Cause {
    /// The device had enough memory, so something else refused the request: a memory fraction, a budget.
    Limit {
        /// Memory that the device had free, in bytes.
        device_free_bytes: u64,
        /// The memory fraction of the recorded settings, as it is written there, if they have one.
        setting: Option<String>,
    },
    /// Free memory belonged to private pools, such as those of captured graphs.
    PrivatePools {
        /// Number of pools in the recording.
        pools: u64,
        /// Their free memory, in bytes.
        free_bytes: u64,
    },
    /// Freed blocks were still in use by work of other streams.
    WaitingForStreams {
        /// Their size, in bytes.
        bytes: u64,
    },
    /// Between two requests that were refused, others took memory of the device.
    Others {
        /// How much, in bytes.
        bytes: u64,
    },
    /// Settings of PyTorch's allocator were on.
    Settings {
        /// As the environment variable has them.
        settings: String,
    },
}

/// Returns what the recording shows of why `failed` was refused.
pub(super) fn of(trace: &Trace, failed: &FailedRequest, stranded: Option<&Stranded>) -> Vec<Cause> {
    let mut causes = Vec::new();
    let text = trace.settings().map_or("", |settings| &settings.text);
    if let Some(layout) = trace.layout()
        && segment_bytes_of(failed.bytes).is_some_and(|bytes| bytes <= layout.device_free_bytes)
    {
        let setting = text.split(',').map(str::trim).find(|part| part.starts_with(FRACTION)).map(ToOwned::to_owned);
        causes.push(Cause::Limit { device_free_bytes: layout.device_free_bytes, setting });
    }
    if let Some(stranded) = stranded {
        if stranded.free_in_private_pools_bytes > 0 {
            let free_bytes = stranded.free_in_private_pools_bytes;
            causes.push(Cause::PrivatePools { pools: trace.pools().len() as u64, free_bytes });
        }
        if stranded.waiting_bytes > 0 {
            causes.push(Cause::WaitingForStreams { bytes: stranded.waiting_bytes });
        }
    }
    if trace.taken_by_others() >= LEAST_TAKEN {
        causes.push(Cause::Others { bytes: trace.taken_by_others() });
    }
    // What cannot be replayed, such as a list of divisions, is said as it was set.
    let is_said = |part: &str| !part.starts_with(FRACTION) && !CachingSettings::changes_nothing(part);
    match trace.settings().and_then(|settings| settings.caching()) {
        Some(settings) => causes.push(Cause::Settings { settings: settings.to_string() }),
        None if text.split(',').map(str::trim).any(|part| !part.is_empty() && is_said(part)) => {
            causes.push(Cause::Settings { settings: text.to_owned() });
        }
        None => {}
    }
    causes
}

/// Least memory that others are said to have taken: contexts and libraries take some, too.
const LEAST_TAKEN: u64 = 64 << 20;
const FRACTION: &str = "per_process_memory_fraction";
