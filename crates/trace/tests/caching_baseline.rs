//! Compares the baseline with the real allocator: the smallest device on which each trace survives.

use gapless_trace::caching::CachingSettings;
use gapless_trace::{Device, GaplessSettings, PolicyKind, ReplayOptions, ReplayResult, Search, Touch, Trace, replay};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The traces of this repository.
const HERE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces");

/// Results of PyTorch 2.13's native allocator with the same traces: the trace, the ratio of the smallest device to the
/// peak of live bytes, and the ratio of the peaks of reserved and live bytes on a large device.
const REAL: [(&str, f64, f64); 12] = [
    ("colocated_serving_vit", 1.1087, 1.246),
    ("dlrm_small_tensors", 1.0412, 1.065),
    ("efficientnet_b5", 1.0542, 1.392),
    ("gpt2xl_varlen", 1.0677, 1.297),
    ("llama7b_lora_ckpt", 1.1011, 1.468),
    ("llama7b_zero3", 1.0959, 1.445),
    ("moe_train", 1.0461, 1.196),
    ("offload_two_streams", 1.0618, 1.219),
    ("rlhf_alternate", 1.0759, 1.098),
    ("serving_llama7b", 1.2828, 1.371),
    ("unet_multires", 1.0278, 1.060),
    ("vit_l_multiscale", 1.0548, 1.055),
];

/// Results of the same allocator with `max_split_size_mb:512` and with `expandable_segments:True`: the ratio of the
/// smallest device to the peak of live bytes; and with the latter, on a device of 1.02 times that peak, how often the host
/// waits for a stream, and the driver calls.
const REAL_UNDER_SETTINGS: [(&str, f64, f64, u64, u64); 12] = [
    ("colocated_serving_vit", 1.1087, 1.0086, 34, 10253),
    ("dlrm_small_tensors", 1.0223, 1.0125, 3, 3798),
    ("efficientnet_b5", 1.0113, 1.0018, 0, 3542),
    ("gpt2xl_varlen", 1.0563, 1.0082, 0, 7511),
    ("llama7b_lora_ckpt", 1.0637, 1.0088, 46, 8491),
    ("llama7b_zero3", 1.0698, 1.0022, 16, 9444),
    ("moe_train", 1.0320, 1.0028, 5, 6319),
    ("offload_two_streams", 1.0262, 1.0122, 61, 12725),
    ("rlhf_alternate", 1.0452, 1.0074, 140, 10616),
    ("serving_llama7b", 1.2828, 1.0064, 0, 3134),
    ("unet_multires", 1.0266, 1.0083, 0, 3350),
    ("vit_l_multiscale", 1.0548, 1.0028, 0, 3182),
];

/// Maximum relative difference of the baseline, in either direction. The figures above are rounded.
const TOLERANCE: f64 = 0.001;

/// The same under settings.
const SETTINGS_TOLERANCE: f64 = 0.01;

#[test]
fn traces_of_this_repository_need_what_the_real_allocator_needs() {
    let found = compare(Path::new(HERE), |_| true);
    assert_eq!(found, 3, "traces/ holds three of these");
}

/// `GAPLESS_TRACES` is a folder with the traces that are not in this repository.
#[test]
fn other_traces_need_what_the_real_allocator_needs() {
    let Some(folder) = std::env::var_os("GAPLESS_TRACES").filter(|folder| !folder.is_empty()) else {
        eprintln!("skipped: GAPLESS_TRACES is not set");
        return;
    };
    let found = compare(Path::new(&folder), |name| !path_of(Path::new(HERE), name).exists());
    assert!(found > 0, "no traces in {}", folder.display());
}

fn path_of(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.trace.gz"))
}

/// Compares those of the traces in a folder that are `wanted`. Returns how many there are.
fn compare(folder: &Path, wanted: impl Fn(&str) -> bool) -> usize {
    let is_present = |name: &str| wanted(name) && path_of(folder, name).exists();
    let mut present = 0;
    for (name, real_smallest, real_reserved) in REAL.iter().filter(|(name, ..)| is_present(name)) {
        present += 1;
        let trace = Trace::open(&path_of(folder, name)).unwrap();
        let smallest = smallest(&trace, CachingSettings::default());
        agree(&trace, "smallest device", smallest, *real_smallest);
        let device = Device::of(trace.peak_live_bytes() * 4);
        let result = run(&trace, CachingSettings::default(), &device);
        agree(&trace, "peak reserved", result.peak_reserved_bytes, *real_reserved);
    }
    for (name, split, expandable, waits, calls) in REAL_UNDER_SETTINGS.into_iter().filter(|(name, ..)| is_present(name))
    {
        let trace = Trace::open(&path_of(folder, name)).unwrap();
        for (setting, real) in [("max_split_size_mb:512", split), ("expandable_segments:True", expandable)] {
            agree_under_settings(&trace, setting, real);
        }
        let device = Device::of(trace.peak_live_bytes() / 100 * 102);
        let result = run(&trace, "expandable_segments:True".parse().unwrap(), &device);
        let total = result.driver_calls.total();
        eprintln!(
            "{name:24} host waits {}, driver calls {total}, expected {waits} and {calls}; {:.0} ns per op",
            result.host_waits, result.ns_per_op
        );
        assert!(total.abs_diff(calls) * 1000 <= calls, "{name}: {total} driver calls, expected {calls}");
        assert_eq!((result.oom, result.host_waits), (None, waits), "{name}");
    }
    present
}

/// Compares the smallest device under a setting. Survival is not monotone, so there may be several sizes that survive while a
/// page less fails, and a bisection finds one of them. Where that is not the one that was found with the real allocator, a
/// bisection close to that one has to find it.
fn agree_under_settings(trace: &Trace, setting: &str, real: f64) {
    let caching = setting.parse().unwrap();
    #[allow(clippy::cast_precision_loss, reason = "a ratio")]
    let ratio = |bytes: u64| bytes as f64 / trace.peak_live_bytes() as f64;
    let found = ratio(smallest(trace, caching));
    eprintln!("{:24} {setting:24} {found:.4}, expected {real:.4}", trace.name());
    if (found / real - 1.0).abs() > SETTINGS_TOLERANCE {
        for (times, survives) in [(1.0 - TOLERANCE, false), (1.0 + TOLERANCE, true)] {
            assert_eq!(survives_on(trace, caching, real * times), survives, "{} {setting} x{real}", trace.name());
        }
    }
}

fn survives_on(trace: &Trace, caching: CachingSettings, ratio: f64) -> bool {
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "far below 2^52 bytes"
    )]
    let device = Device::of((trace.peak_live_bytes() as f64 * ratio) as u64);
    run(trace, caching, &device).oom.is_none()
}

fn run(trace: &Trace, caching: CachingSettings, device: &Device) -> ReplayResult {
    let options = ReplayOptions {
        policy: PolicyKind::Caching,
        gapless: GaplessSettings::default(),
        caching,
        capacity_bytes: device.capacity_bytes,
        touch: Touch::Nothing,
        progress: None,
    };
    replay(trace, Arc::new(device.model()), &options).unwrap()
}

fn smallest(trace: &Trace, caching: CachingSettings) -> u64 {
    let search = Search {
        trace,
        policy: PolicyKind::Caching,
        gapless: GaplessSettings::default(),
        caching,
        lag_ops: 0,
        threads: NonZero::new(2).unwrap(),
        progress: None,
    };
    search.min_capacity_bytes(None).unwrap().expect("a large enough device survives")
}

fn agree(trace: &Trace, what: &str, bytes: u64, real: f64) {
    #[allow(clippy::cast_precision_loss, reason = "a ratio")]
    let ratio = bytes as f64 / trace.peak_live_bytes() as f64;
    let difference = ratio / real - 1.0;
    eprintln!("{:24} {what:16} {ratio:.4}, expected {real:.4} {:+.3}%", trace.name(), difference * 100.0);
    assert!(difference.abs() <= TOLERANCE, "{}: {what} {ratio:.4}, expected {real:.4}", trace.name());
}
