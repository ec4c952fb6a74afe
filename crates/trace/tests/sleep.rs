//! Replays of traces that sleep: what is copied and mapped, what is held meanwhile, and what a wake needs.

use gapless::StreamId;
use gapless::driver::{DriverCall, DriverErrorKind, Fault, FaultDriver, ModelConfig, ModelDriver};
use gapless_trace::advice::{AdviceOptions, PolicyOutcome, advise};
use gapless_trace::caching::{CachingAllocator, CachingSettings};
use gapless_trace::{
    Device, GaplessSettings, Phase, PhaseKind, PolicyError, PolicyKind, ReplayError, ReplayOptions, ReplayResult,
    Touch, Trace, replay,
};
use std::num::NonZero;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const LAG_OPS: u64 = 2;

fn trace(text: &str) -> Trace {
    Trace::read("t", text.as_bytes()).unwrap()
}

/// Replays on a device of `capacity_bytes` on which work is in flight. Nothing may be left in the driver.
fn run(text: &str, policy: PolicyKind, capacity_bytes: u64) -> ReplayResult {
    let driver = Arc::new(ModelDriver::new(ModelConfig { capacity_bytes, lag_ops: LAG_OPS, ..ModelConfig::default() }));
    let options = ReplayOptions {
        policy,
        gapless: GaplessSettings::default(),
        caching: CachingSettings::default(),
        capacity_bytes,
        touch: Touch::for_model(LAG_OPS),
        progress: None,
    };
    let result = replay(&trace(text), Arc::clone(&driver), &options).unwrap();
    let left = driver.usage();
    assert_eq!((left.chunks, left.mappings, left.events, left.host_memory), (0, 0, 0, 0), "{left:?}");
    result
}

fn bytes(phase: &Phase) -> (PhaseKind, u64, u64, u64) {
    (phase.kind, phase.live_bytes / MIB, phase.mapped_bytes / MIB, phase.copied_bytes / MIB)
}

/// Live blocks of 3 MiB and of 1 MiB, and one that is free.
const HALF_FREE: &str = "a 1 3145728 0\na 2 20971520 0\na 3 1048576 0\nf 2\n";

#[test]
fn gapless_copies_live_bytes_and_the_segments_model_whole_segments() {
    let text = format!("{HALF_FREE}s * keep\nw *\nf 1\nf 3\n");
    let phases = |policy| run(&text, policy, 256 * MIB).phases.iter().map(bytes).collect::<Vec<_>>();
    let gapless = [(PhaseKind::Sleep, 4, 6, 4), (PhaseKind::Wake, 4, 6, 4)];
    assert_eq!(phases(PolicyKind::Gapless), gapless);
    // A segment of 20 MiB, since less than 10 are wanted, and one of 2 MiB, since no more than one is. The third one is given back.
    let segments = [(PhaseKind::Sleep, 4, 22, 22), (PhaseKind::Wake, 4, 22, 22)];
    assert_eq!(phases(PolicyKind::Caching), segments);
}

#[test]
fn what_is_discarded_is_mapped_and_not_copied() {
    let text = format!("{HALF_FREE}s * discard\nw *\nf 1\nf 3\n");
    for policy in [PolicyKind::Gapless, PolicyKind::Caching] {
        let phases = run(&text, policy, 256 * MIB).phases;
        assert!(phases.iter().all(|phase| phase.copied_bytes == 0 && phase.mapped_bytes > 0), "{phases:?}");
    }
}

#[test]
fn copies_and_driver_calls_take_modelled_time() {
    let seconds = |word: &str| -> f64 {
        let result = run(&format!("a 1 104857600 0\ns * {word}\nw *\n"), PolicyKind::Gapless, 256 * MIB);
        result.phases.iter().map(|phase| phase.modelled_driver_seconds.unwrap()).sum()
    };
    // 100 MiB are copied twice, at 20 us a MiB, into memory that costs 250 us a MiB.
    let copies = seconds("keep") - seconds("discard");
    assert!((copies - (0.100 * 0.250 + 2.0 * 0.100 * 0.020)).abs() < 0.001, "{copies}");
}

/// Two phases that need the device by turns: it is as large as the larger one, and not as both together.
#[test]
fn tags_take_turns_on_one_device() {
    let text =
        "a 1 62914560 0 train\ns train keep\na 2 41943040 1 engine\ns engine discard\nw train\nf 1\nw engine\nf 2\n";
    assert_eq!((trace(text).peak_live_bytes(), trace(text).peak_awake_bytes()), (100 * MIB, 60 * MIB));
    for policy in [PolicyKind::Gapless, PolicyKind::Caching] {
        let result = run(text, policy, 60 * MIB);
        assert_eq!((result.oom, result.peak_reserved_bytes), (None, 60 * MIB), "{policy}");
        assert_eq!(result.phases.len(), 4);
    }
}

/// Free memory of one tag goes back to the device before a request of another fails.
#[test]
fn what_a_tag_does_not_use_serves_the_others() {
    let text = "a 1 62914560 0 train\nf 1\na 2 62914560 0 engine\nf 2\na 3 62914560 0\n";
    for policy in [PolicyKind::Gapless, PolicyKind::Caching] {
        assert_eq!(run(text, policy, 60 * MIB).oom, None, "{policy}");
    }
}

/// A wake that is short at first counts all that it maps.
#[test]
fn a_wake_counts_what_it_mapped_before_others_gave_back() {
    let text = "a 1 31457280 0 train\na 2 31457280 0 train\ns train keep\na 3 20971520 0\nf 3\nw train\n";
    for policy in [PolicyKind::Gapless, PolicyKind::Caching] {
        let result = run(text, policy, 60 * MIB);
        assert_eq!(result.oom, None, "{policy}");
        assert_eq!(bytes(&result.phases[1]), (PhaseKind::Wake, 60, 60, 60), "{policy}");
    }
}

/// Another process does not give back for this one what it does not use, unless it sleeps.
#[test]
fn another_process_keeps_what_it_does_not_use() {
    let text = "a 1 62914560 0 engine/kv\nf 1\na 2 62914560 0\n";
    let asleep = "a 1 62914560 0 engine/kv\nf 1\ns engine/kv keep\na 2 62914560 0\n";
    for policy in [PolicyKind::Gapless, PolicyKind::Caching] {
        assert_eq!(run(text, policy, 60 * MIB).oom.unwrap().op_index, 2, "{policy}");
        assert_eq!(run(asleep, policy, 60 * MIB).oom, None, "{policy}");
    }
}

#[test]
fn a_wake_that_is_short_ends_the_replay() {
    let text = "a 1 62914560 0 train\ns train keep\na 2 41943040 0 engine\nw train\nf 1\n";
    for policy in [PolicyKind::Gapless, PolicyKind::Caching] {
        let oom = run(text, policy, 80 * MIB).oom.unwrap();
        assert_eq!((oom.op_index, oom.requested_bytes), (3, 60 * MIB), "{policy}");
    }
}

/// Frees and allocations while everything sleeps, sleeping twice, and waking what is awake.
#[test]
fn everything_may_happen_meanwhile() {
    let text = "a 1 3000000 0 x\na 2 900 0 x\na 3 900 1\ns x keep\nf 2\ns x discard\na 4 900 0 x\nf 1\ns * keep\nw y\n\
                a 5 25000000 0 x\nw x\nf 4\nw x\nf 5\nw *\nf 3\n";
    for policy in [PolicyKind::Gapless, PolicyKind::Caching] {
        assert_eq!(run(text, policy, 256 * MIB).oom, None, "{policy}");
    }
}

/// What is asleep needs no memory, and expandable segments get no verdict.
#[test]
fn advice_is_on_what_is_awake() {
    let text = "a 1 62914560 0 train\ns train keep\na 2 41943040 1 engine\ns engine discard\nw train\nm step\n";
    let trace = trace(text);
    let settings = ["native", "expandable_segments:True", "gapless"].map(|setting| setting.parse().unwrap()).to_vec();
    let options = AdviceOptions {
        device: Device::of(64 * MIB),
        settings,
        threads: NonZero::<usize>::MIN,
        progress: None,
        known: None,
    };
    let advice = advise(&trace, &options).unwrap();
    let holders: Vec<u64> = advice.holders.iter().map(|holder| holder.bytes / MIB).collect();
    assert_eq!((advice.peak_live_bytes, advice.live_bytes, holders), (60 * MIB, 60 * MIB, vec![60]));
    let survives: Vec<bool> = advice.policies.iter().map(PolicyOutcome::survives).collect();
    assert_eq!(survives, [true, false, true]);
    assert!(advice.policies[1].not_replayed.as_ref().unwrap().contains("sleeps"), "{:?}", advice.policies[1]);
}

#[test]
fn expandable_segments_cannot_sleep() {
    let trace = trace("a 1 900 0\ns * keep\n");
    let device = Device::of(256 * MIB);
    let options = ReplayOptions {
        policy: PolicyKind::Caching,
        gapless: GaplessSettings::default(),
        caching: "expandable_segments:True".parse().unwrap(),
        capacity_bytes: device.capacity_bytes,
        touch: Touch::Nothing,
        progress: None,
    };
    let error = replay(&trace, Arc::new(device.model()), &options).unwrap_err();
    assert!(matches!(error, ReplayError::Policy { op_index: 1, cause: PolicyError::Limit(_) }), "{error}");
}

/// Where the second segment cannot be copied, nothing is asleep, and the first one's backup is given back.
#[test]
fn a_sleep_of_segments_that_fails_keeps_no_memory_of_the_host() {
    let driver = Arc::new(FaultDriver::new(ModelDriver::new(ModelConfig::default())));
    let mut caching = CachingAllocator::new(Arc::clone(&driver), CachingSettings::default());
    for _ in 0..2 {
        caching.alloc(40 * MIB, StreamId::DEFAULT).unwrap();
    }
    for call in [DriverCall::HostAlloc, DriverCall::CopyOut] {
        driver.arm(Fault::nth(1, DriverErrorKind::Other).only([call]));
        assert!(caching.sleep(true).is_err());
        driver.disarm();
        assert_eq!(driver.inner().usage().host_memory, 0, "{call:?}");
    }
    assert_eq!(caching.sleep(true).unwrap().copied_bytes, 80 * MIB);
    assert_eq!(caching.wake().unwrap().copied_bytes, 80 * MIB);
    assert_eq!(driver.inner().usage().host_memory, 0);
}
