//! Settings of the simulation, read once from environment variables:
//!
//! | variable | meaning | default |
//! | --- | --- | --- |
//! | `GAPLESS_SIM_CAPACITY` | memory of each device, as in `512MiB` | `1GiB` |
//! | `GAPLESS_SIM_DEVICES` | number of devices, up to 64; with 0, `cuInit` returns "no device" | 1 |
//! | `GAPLESS_SIM_VISIBLE` | which of them this process sees, and in which order, as in `1,0` | all |
//! | `GAPLESS_SIM_PEERS` | `all`, or `none`: whether devices can access each other's memory | `all` |
//! | `GAPLESS_SIM_VERSION` | version that `cuDriverGetVersion` returns | 13000 |
//! | `GAPLESS_SIM_NO_VMM` | when set, devices have no virtual memory management | |
//! | `GAPLESS_SIM_NO_EXPORT` | when set, chunks cannot be exported | |
//! | `GAPLESS_SIM_SHARED` | path of a file: the processes that name it share the memory of the devices | |
//! | `GAPLESS_SIM_SOFT` | size: devices are integrated, and so much of what is free is given but not reported | |
//! | `GAPLESS_SIM_RDMA` | `no`, `yes`, or `refused`: reported, but access to such chunks fails (as in WSL) | `yes` |
//! | `GAPLESS_SIM_LAX_CAPTURES` | when set, calls about virtual memory break no capture, as on an H100 | |
//! | `GAPLESS_SIM_NO_COPIES` | when set, copies between host and device are checked and counted, and move no byte | |
//! | `GAPLESS_SIM_FAIL` | `function:n:code,...`: the n-th call of the function (from 1, `*` for all) returns `code` | |

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// Support for RDMA-capable chunks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Rdma {
    /// Not supported.
    No,
    /// Supported, and it works.
    Yes,
    /// Reported as supported, but refused by `cuMemSetAccess`.
    Refused,
}

/// The settings of this process.
pub struct Settings {
    /// Memory of each device in bytes.
    pub capacity: u64,
    /// Number of devices that this process sees.
    pub devices: usize,
    /// Which device of the machine each of these is.
    pub physical: Vec<usize>,
    /// Whether devices can access each other's memory.
    pub peers: bool,
    /// Version that `cuDriverGetVersion` returns.
    pub version: i32,
    /// Whether devices support virtual memory management.
    pub vmm: bool,
    /// Whether calls about virtual memory break captures.
    pub strict_captures: bool,
    /// Whether chunks can be exported as file descriptors.
    pub export: bool,
    /// Whether copies between host and device move bytes.
    pub copies: bool,
    /// The file of the accounts of all processes that share the devices.
    pub shared: Option<PathBuf>,
    /// Where devices are integrated: free bytes that are not reported.
    pub soft: Option<u64>,
    /// Support for RDMA-capable chunks.
    pub rdma: Rdma,
}

impl Settings {
    /// Returns the settings. The first call reads the environment.
    pub fn read() -> &'static Self {
        static SETTINGS: OnceLock<Settings> = OnceLock::new();
        SETTINGS.get_or_init(|| {
            let text = |name| std::env::var(name).ok();
            if let Some(faults) = text("GAPLESS_SIM_FAIL") {
                plan_faults(&faults);
            }
            let devices = text("GAPLESS_SIM_DEVICES").and_then(|text| text.parse().ok()).unwrap_or(1).min(64);
            let physical: Vec<usize> = match text("GAPLESS_SIM_VISIBLE") {
                Some(list) => list.split(',').map_while(|one| one.parse().ok()).filter(|one| *one < devices).collect(),
                None => (0..devices).collect(),
            };
            Self {
                capacity: text("GAPLESS_SIM_CAPACITY")
                    .and_then(|text| text.parse::<gapless::ByteSize>().ok())
                    .map_or(gapless::units::GIB, |size| size.0),
                devices: physical.len(),
                physical,
                peers: text("GAPLESS_SIM_PEERS").as_deref() != Some("none"),
                version: text("GAPLESS_SIM_VERSION").and_then(|text| text.parse().ok()).unwrap_or(13_000),
                vmm: text("GAPLESS_SIM_NO_VMM").is_none(),
                strict_captures: text("GAPLESS_SIM_LAX_CAPTURES").is_none(),
                export: text("GAPLESS_SIM_NO_EXPORT").is_none(),
                copies: text("GAPLESS_SIM_NO_COPIES").is_none(),
                shared: std::env::var_os("GAPLESS_SIM_SHARED").map(PathBuf::from),
                soft: text("GAPLESS_SIM_SOFT")
                    .and_then(|text| text.parse::<gapless::ByteSize>().ok())
                    .map(|size| size.0),
                rdma: match text("GAPLESS_SIM_RDMA").as_deref() {
                    Some("no") => Rdma::No,
                    Some("refused") => Rdma::Refused,
                    _ => Rdma::Yes,
                },
            }
        })
    }
}

#[derive(Default)]
struct Faults {
    planned: Vec<(String, Option<u64>, u32)>,
    calls: HashMap<&'static str, u64>,
}

static FAULTS: Mutex<Option<Faults>> = Mutex::new(None);
/// Whether a fault is planned. Most calls ask no more.
static ARE_PLANNED: AtomicBool = AtomicBool::new(false);

/// Replaces the planned faults by those in `text` (see the table above) and restarts the counts of calls.
pub fn plan_faults(text: &str) {
    let planned: Vec<_> = text
        .split(',')
        .filter_map(|fault| {
            let mut parts = fault.trim().split(':');
            let function = parts.next()?.to_owned();
            let nth = parts.next()?.parse().ok();
            Some((function, nth, parts.next()?.parse().ok()?))
        })
        .collect();
    let mut faults = FAULTS.lock();
    ARE_PLANNED.store(!planned.is_empty(), Ordering::Release);
    *faults = Some(Faults { planned, calls: HashMap::new() });
}

/// Counts this call of `function`, and returns the code of its fault if one is planned.
pub fn planned_fault(function: &'static str) -> Option<u32> {
    if !ARE_PLANNED.load(Ordering::Acquire) {
        return None;
    }
    let mut guard = FAULTS.lock();
    let faults = guard.as_mut()?;
    let calls = faults.calls.entry(function).or_default();
    *calls += 1;
    let now = *calls;
    let hit = |(name, nth, _): &&(String, Option<u64>, u32)| name == function && nth.is_none_or(|nth| nth == now);
    faults.planned.iter().find(hit).map(|(_, _, code)| *code)
}
