//! Replays through the library: their figures, and that work in flight and the content of memory are respected.

use gapless::ChunkPolicy;
use gapless::driver::DriverCall;
use gapless_trace::caching::CachingSettings;
use gapless_trace::{
    Device, GaplessSettings, PolicyKind, ReplayDriver, ReplayOptions, ReplayResult, Search, Touch, Trace, replay,
};
use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn options(policy: PolicyKind, device: &Device, touch: Touch) -> ReplayOptions<'static> {
    ReplayOptions {
        policy,
        gapless: GaplessSettings::default(),
        caching: CachingSettings::default(),
        capacity_bytes: device.capacity_bytes,
        touch,
        progress: None,
    }
}

fn on_model(trace: &Trace, policy: PolicyKind, device: Device) -> ReplayResult {
    on_model_with(trace, policy, GaplessSettings::default(), device)
}

fn on_model_with(trace: &Trace, policy: PolicyKind, gapless: GaplessSettings, device: Device) -> ReplayResult {
    let touch = Touch::for_model(device.lag_ops);
    let options = ReplayOptions { gapless, ..options(policy, &device, touch) };
    replay(trace, Arc::new(device.model()), &options).unwrap()
}

fn trace(text: &str) -> Trace {
    Trace::read("test", text.as_bytes()).unwrap()
}

fn recorded(name: &str) -> Trace {
    Trace::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces").join(name)).unwrap()
}

#[test]
fn calls_are_counted_by_kind_and_step() {
    let trace = trace("a 1 100 0\nm one\na 2 3000000 0\nf 2\nm two\nm three\na 3 100000000 0\n");
    let result = on_model(&trace, PolicyKind::Caching, Device::of(1 << 30));
    assert_eq!(
        (result.driver_calls[DriverCall::Create], result.driver_calls[DriverCall::Map], result.driver_calls.total()),
        (3, 3, 12)
    );
    assert_eq!((&result.driver_calls_per_step[..], result.steps), (&[4, 4, 0][..], 3));
    assert_eq!(result.peak_live_bytes, 100_000_100);
    assert_eq!(result.peak_reserved_bytes, (2 + 20 + 96) * MIB);
    assert!(result.modelled_driver_seconds.unwrap() > 0.0);
}

#[test]
fn the_baseline_waits_flushes_and_tries_again() {
    // The cached 30 MiB segment is in the way of one of 40 MiB.
    let trace = trace("a 1 31457280 0\nf 1\na 2 41943040 0\n");
    let result = on_model(&trace, PolicyKind::Caching, Device { lag_ops: 50, ..Device::of(48 * MIB) });
    assert_eq!(result.oom, None);
    assert_eq!(
        (result.host_waits, result.driver_calls[DriverCall::Unmap], result.driver_calls[DriverCall::Release]),
        (1, 1, 1)
    );
    // With a live block in the segment, flushing does not help.
    let trace = crate::trace("a 1 15728640 0\na 2 15728640 0\nf 1\na 3 41943040 0\n");
    let oom = on_model(&trace, PolicyKind::Caching, Device::of(48 * MIB)).oom.unwrap();
    assert_eq!((oom.op_index, oom.requested_bytes, oom.satisfiable), (3, 41_943_040, false));
}

/// A device is used for several replays, so each must leave it as it was.
#[test]
fn a_replay_leaves_nothing_in_the_driver() {
    let trace = trace("a 1 4096 0\na 2 9000000 1\nf 1\na 3 1 2\n");
    let device = Device { capacity_bytes: 64 << 20, external_bytes: 0, lag_ops: 2 };
    for policy in [PolicyKind::Gapless, PolicyKind::Caching] {
        for touch in [Touch::Nothing, Touch::Whole] {
            let driver = Arc::new(device.model());
            replay(&trace, Arc::clone(&driver), &options(policy, &device, touch)).unwrap();
            let usage = driver.usage();
            assert_eq!((usage.chunks, usage.mappings, usage.reservations, usage.events), (0, 0, 0, 0), "{policy}");
        }
    }
}

#[test]
fn the_baseline_keeps_streams_apart() {
    let result = on_model(&trace("a 1 4096 0\nf 1\na 2 4096 1\n"), PolicyKind::Caching, Device::of(64 * MIB));
    assert_eq!(result.driver_calls[DriverCall::Create], 2, "a cached block of stream 0 does not serve stream 1");
    let result = on_model(&trace("a 1 4096 7\nf 1\na 2 4096 7\n"), PolicyKind::Caching, Device::of(64 * MIB));
    assert_eq!(result.driver_calls[DriverCall::Create], 1);
}

#[test]
fn the_baseline_serves_zero_bytes_without_memory() {
    let result = on_model(&trace("a 1 0 0\na 2 0 0\nf 1\nf 2\n"), PolicyKind::Caching, Device::of(2 * MIB));
    assert_eq!((result.oom, result.driver_calls.total()), (None, 0));
}

#[test]
fn absurd_requests_end_in_a_report() {
    for bytes in [u64::MAX, u64::MAX - 600, 1 << 62] {
        let trace = trace(&format!("a 1 {bytes} 0\n"));
        let oom = on_model(&trace, PolicyKind::Caching, Device::of(64 * MIB)).oom.unwrap();
        assert!(!oom.satisfiable);
    }
}

#[test]
fn a_premature_unmap_would_be_detected() {
    // Every block is in use until 200 ops after its free: the model panics if its memory is unmapped before.
    let trace = recorded("llama7b_zero3.trace.gz");
    let device = Device { lag_ops: 200, ..Device::of(trace.peak_live_bytes() / 20 * 23) };
    let result = on_model(&trace, PolicyKind::Caching, device);
    assert_eq!(result.oom, None);
    let waits = result.driver_calls[DriverCall::EventSynchronize] + result.driver_calls[DriverCall::Synchronize];
    assert!(waits > 0 && result.driver_calls[DriverCall::Unmap] > 0, "memory was released while work was in flight");
    assert!((1..=waits).contains(&result.host_waits), "{} waits in {waits} calls", result.host_waits);
    let device = Device { lag_ops: 200, ..Device::of(trace.peak_live_bytes() / 100 * 103) };
    let result = on_model(&trace, PolicyKind::Gapless, device);
    assert_eq!(result.oom, None);
    assert!(result.driver_calls[DriverCall::Unmap] > 0, "mappings were removed while other work was in flight");
}

#[test]
fn real_memory_keeps_its_bytes() {
    let trace = recorded("vit_l_multiscale.trace.gz");
    for (policy, percent) in [(PolicyKind::Caching, 110), (PolicyKind::Gapless, 102)] {
        let device = Device::of(trace.peak_live_bytes() / 100 * percent);
        let driver = Arc::new(device.host().unwrap());
        let result = replay(&trace, Arc::clone(&driver), &options(policy, &device, Touch::Edges)).unwrap();
        assert_eq!((result.oom, result.driver, result.modelled_driver_seconds), (None, "host", None), "{policy}");
        assert_eq!(driver.violations(), [""; 0], "{policy}");
    }
}

#[test]
fn a_search_finds_the_last_page() {
    let trace = trace("a 1 31457280 0\nf 1\na 2 41943040 0\n");
    let search = |threads| {
        let threads = NonZero::new(threads).unwrap();
        let settings = GaplessSettings::default();
        let caching = CachingSettings::default();
        Search {
            trace: &trace,
            policy: PolicyKind::Caching,
            gapless: settings,
            caching,
            lag_ops: 0,
            threads,
            progress: None,
        }
        .run()
        .unwrap()
    };
    assert_eq!(search(1).min_capacity_bytes, Some(40 * MIB));
    assert_eq!(search(1).safe_capacity_bytes, Some(40 * MIB));
    assert_eq!(search(1), search(3));
}

#[test]
fn out_of_memory_scenarios_fail_in_the_baseline_as_reported() {
    for number in 1..=10 {
        let trace = recorded(&format!("oom/oom_{number:02}.trace.gz"));
        let result = on_model(&trace, PolicyKind::Caching, Device::for_trace(&trace).unwrap());
        let oom = result.oom.expect("it fails");
        assert_eq!(oom.op_index + 1, result.ops, "{}: it fails at its last op", trace.name());
        let header = |key| trace.header().value(key).unwrap().parse::<u64>().unwrap();
        assert_eq!(result.peak_reserved_bytes, header("reserved_bytes"), "{}", trace.name());
        assert_eq!(Some(oom.satisfiable), trace.header().satisfiable, "{}", trace.name());
    }
}

#[test]
fn out_of_memory_scenarios_end_in_gapless_as_their_headers_say() {
    let (mut served, mut by_nobody) = (0, 0);
    for number in 1..=10 {
        let trace = recorded(&format!("oom/oom_{number:02}.trace.gz"));
        let result = on_model(&trace, PolicyKind::Gapless, Device::for_trace(&trace).unwrap());
        if trace.header().satisfiable_by_whole_2mib_chunks == Some(true) {
            assert_eq!(result.oom, None, "{}", trace.name());
            served += 1;
            continue;
        }
        let oom = result.oom.expect("the request cannot be served in whole pages");
        assert_eq!(oom.op_index + 1, result.ops, "{}: it fails at its last op", trace.name());
        assert_eq!(Some(oom.satisfiable), trace.header().satisfiable, "{}: {}", trace.name(), oom.report);
        by_nobody += u32::from(!oom.satisfiable);
    }
    assert_eq!((served, by_nobody), (5, 4), "README says so");
}

#[test]
fn gapless_replays_in_little_more_than_the_live_bytes() {
    // The bounds for the default policy and for chunks of one page, in thousandths of the peak of live bytes.
    for (chunk, thousandths) in [(None, 1008), (Some(ChunkPolicy::Fixed(2 << 20)), 1005)] {
        for name in ["vit_l_multiscale.trace.gz", "llama7b_zero3.trace.gz", "llama7b_lora_ckpt.trace.gz"] {
            let trace = recorded(name);
            let device = Device::of(trace.peak_live_bytes() / 1000 * thousandths);
            let gapless = GaplessSettings { chunk, ..GaplessSettings::default() };
            let result = on_model_with(&trace, PolicyKind::Gapless, gapless, device);
            assert_eq!((result.oom, result.host_waits), (None, 0), "{name} {chunk:?}");
            assert!(result.peak_reserved_bytes >= result.peak_live_bytes, "{name} {chunk:?}");
            assert!(result.peak_reserved_bytes <= result.capacity_bytes, "{name} {chunk:?}");
        }
    }
}
