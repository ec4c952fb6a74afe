//! The causes of a refused request that a recording shows, beside what was live.

use super::limits;
use super::stranded::Stranded;
use crate::Trace;
use crate::caching::CachingSettings;
use crate::history::FRACTION;

/// A reason that a request could not have memory which was free.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Cause {
    /// The device had enough memory, so something else refused the request: a memory fraction, a budget.
    Limit {
        /// Memory that the device had free, in bytes.
        device_free_bytes: u64,
        /// The limit is at least this, in bytes: what the allocator held at most.
        at_least_bytes: u64,
        /// The limit is below this, in bytes: what the allocator held when it refused the request, and what it would have taken.
        below_bytes: u64,
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

/// Returns what the recording shows of why the request was refused that the run failed at.
pub(super) fn of(trace: &Trace, stranded: Option<&Stranded>) -> Vec<Cause> {
    let mut causes = Vec::new();
    if let (Some(limit), Some(layout)) = (limits::of(trace), trace.layout()) {
        causes.push(Cause::Limit {
            device_free_bytes: layout.device_free_bytes,
            at_least_bytes: limit.start,
            below_bytes: limit.end,
            setting: trace.settings().and_then(|settings| settings.part(FRACTION)).map(ToOwned::to_owned),
        });
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
    if let Some(recorded) = trace.settings() {
        let replayed = recorded.caching(None);
        // What cannot be replayed is said as it was set.
        let is_said =
            |part: &str| !part.is_empty() && !part.starts_with(FRACTION) && !CachingSettings::changes_nothing(part);
        if replayed != CachingSettings::default() {
            causes.push(Cause::Settings { settings: replayed.to_string() });
        } else if CachingSettings::parts(&recorded.text).any(is_said) {
            causes.push(Cause::Settings { settings: recorded.text.clone() });
        }
    }
    causes
}

/// Least memory that others are said to have taken: contexts and libraries take some, too.
const LEAST_TAKEN: u64 = 64 << 20;
