//! What a recording of PyTorch says: whose the memory was when a request was refused, what limits there were, how much of the run
//! it is.

mod foreign;

use foreign::pickle::Py::{self, Bool, Dict, Int, List, Text};
use foreign::{ops, pickle, read};
use gapless_trace::advice::{Advice, AdviceOptions, Cause, PolicyOutcome, Setting, advise};
use gapless_trace::{Device, Extent, RecordedAllocator, Trace};
use std::num::NonZero;

const MIB: u64 = 1 << 20;

/// An entry of a history in which sizes are MiB, and addresses count them.
fn at(action: &'static str, addr: u64, size: u64) -> Vec<(&'static str, Py<'static>)> {
    vec![
        ("action", Text(action)),
        ("addr", Int(addr * MIB)),
        ("size", Int(size * MIB)),
        ("stream", Int(0)),
        ("time_us", Int(1)),
    ]
}

/// A request for `size` MiB that was refused with `free` MiB left on the device.
fn oom(size: u64, free: u64) -> Vec<(&'static str, Py<'static>)> {
    let mut entry = at("oom", 0, size);
    entry.push(("device_free", Int(free * MIB)));
    entry
}

/// A segment with one block, or none that is not free.
fn segment(addr: u64, size: u64, pool: u64, state: &'static str) -> Py<'static> {
    let block = vec![
        ("address", Int(addr * MIB)),
        ("size", Int(size * MIB)),
        ("requested_size", Int(size * MIB)),
        ("state", Text(state)),
        ("frames", List(vec![frame("weights.py", 7, "load")])),
    ];
    Dict(vec![
        ("device", Int(0)),
        ("address", Int(addr * MIB)),
        ("total_size", Int(size * MIB)),
        ("stream", Int(0)),
        ("segment_pool_id", List(vec![Int(0), Int(pool)])),
        ("blocks", List(vec![Dict(block)])),
    ])
}

/// The same segment as one that grows.
fn expandable(segment: Py<'static>) -> Py<'static> {
    let Dict(mut fields) = segment else { unreachable!("a segment is a dictionary") };
    fields.push(("is_expandable", Bool(true)));
    Dict(fields)
}

fn frame(file: &'static str, line: u64, name: &'static str) -> Py<'static> {
    Dict(vec![("filename", Text(file)), ("line", Int(line)), ("name", Text(name))])
}

fn recording(
    history: Vec<Vec<(&'static str, Py<'static>)>>,
    segments: Vec<Py<'static>>,
    settings: Vec<(&'static str, Py<'static>)>,
) -> Trace {
    let bytes = pickle::dump(&Dict(vec![
        ("segments", List(segments)),
        ("device_traces", List(vec![List(history.into_iter().map(Dict).collect())])),
        ("allocator_settings", Dict(settings)),
    ]));
    read(&bytes).unwrap()
}

/// The advice on the device of the recording.
fn advice(trace: &Trace) -> Advice {
    let options = AdviceOptions {
        device: Device::for_trace(trace).unwrap(),
        settings: Setting::usual(trace),
        threads: NonZero::<usize>::MIN,
        progress: None,
        known: None,
    };
    advise(trace, &options).unwrap()
}

/// A block of 600 MiB that a pool has freed, and a request that would fit if anybody else could use it.
#[test]
fn memory_of_a_private_pool_helps_nobody_else() {
    let in_pool = |mut entry: Vec<(&'static str, Py<'static>)>, says: bool| {
        if says {
            entry.push(("pool_id", List(vec![Int(0), Int(1)])));
        }
        entry
    };
    // Older versions name the pool of a segment alone.
    for says in [true, false] {
        let history = vec![
            in_pool(at("segment_alloc", 1000, 600), says),
            in_pool(at("alloc", 1000, 600), says),
            in_pool(at("free_requested", 1000, 600), says),
            in_pool(at("free_completed", 1000, 600), says),
            oom(700, 424),
        ];
        let trace = recording(history, vec![segment(1000, 600, 1, "inactive")], vec![]);
        assert_eq!(trace.pools().len(), 1);
        let advice = advice(&trace);
        assert_eq!(advice.survivors().len(), 0, "gapless keeps the memory of pools apart, too");
        assert_eq!(advice.reproduced, Some(true));
        assert_eq!(advice.causes, [Cause::PrivatePools { pools: 1, free_bytes: 600 * MIB }]);
        let stranded = advice.stranded.unwrap();
        assert_eq!((stranded.unreserved_bytes, stranded.free_in_whole_pages_bytes), (424 * MIB, 0));
        for policy in advice.policies {
            assert!(policy.smallest_device_bytes.unwrap() >= 1300 * MIB, "{policy:?}");
        }
    }
}

/// Memory that a pool has freed serves its own requests.
#[test]
fn a_pool_uses_its_own_memory() {
    let in_pool = |mut entry: Vec<(&'static str, Py<'static>)>| {
        entry.push(("pool_id", List(vec![Int(0), Int(1)])));
        entry
    };
    let mut history: Vec<_> =
        (0..3).flat_map(|_| [at("alloc", 1000, 60), at("free_requested", 1000, 60)]).map(in_pool).collect();
    history.push(oom(1000, 40));
    let advice = advice(&recording(history, vec![segment(1000, 60, 1, "inactive")], vec![]));
    for policy in advice.policies {
        assert!((1060..1100).contains(&(policy.smallest_device_bytes.unwrap() / MIB)), "{policy:?}");
    }
}

/// PyTorch waits for streams before it refuses a request: what was not free then could not be had.
#[test]
fn blocks_that_wait_for_streams_are_not_free() {
    let held = |state| vec![segment(1000, 400, 0, state), segment(2000, 400, 0, "active_allocated")];
    let before = || {
        vec![
            at("segment_alloc", 1000, 400),
            at("alloc", 1000, 400),
            at("segment_alloc", 2000, 400),
            at("alloc", 2000, 400),
            at("free_requested", 1000, 400),
        ]
    };
    let waiting = [before(), vec![oom(300, 100)]].into_iter().flatten().collect();
    let trace = recording(waiting, held("active_awaiting_free"), vec![]);
    let found = advice(&trace);
    assert_eq!((found.live_bytes, found.survivors().len()), (400 * MIB, 0));
    assert_eq!(found.causes, [Cause::WaitingForStreams { bytes: 400 * MIB }]);
    assert_eq!(found.holders.iter().map(|holder| holder.bytes).sum::<u64>(), 400 * MIB);
    // A free that is completed before the failure is one of when it was requested.
    let done = [before(), vec![at("free_completed", 1000, 400), oom(300, 100)]].into_iter().flatten().collect();
    let trace = recording(done, held("inactive"), vec![]);
    assert_eq!(ops(&trace)[2..], ["f", "r 314572800 0"]);
    // And one that is completed after a request that was survived ends then.
    let later = vec![oom(900, 100), at("free_completed", 1000, 400), at("alloc", 1000, 400)];
    let trace = recording([before(), later].into_iter().flatten().collect(), held("active_allocated"), vec![]);
    assert_eq!(ops(&trace)[2..], ["r 943718400 0", "f", "a 419430400 0"]);
}

#[test]
fn a_limit_is_named_where_the_device_had_room() {
    let history = || vec![at("segment_alloc", 1000, 300), at("alloc", 1000, 300), oom(300, 700)];
    let segments = || vec![segment(1000, 300, 0, "active_allocated")];
    let trace = recording(history(), segments(), vec![]);
    let found = advice(&trace);
    assert_eq!((found.reproduced, found.device_is_assumed), (Some(false), false));
    let limit = |setting: Option<&str>| Cause::Limit {
        device_free_bytes: 700 * MIB,
        at_least_bytes: 300 * MIB,
        below_bytes: 600 * MIB,
        setting: setting.map(ToOwned::to_owned),
    };
    assert_eq!(found.causes, [limit(None)]);
    // As it ran, the same request is refused.
    let as_it_ran = |found: &Advice| -> Vec<(String, Option<u64>)> {
        let recorded = found.policies.iter().filter(|policy| policy.as_recorded);
        recorded.map(|policy| (policy.setting.clone(), policy.oom_op)).collect()
    };
    assert_eq!(as_it_ran(&found), [("per_process_memory_fraction:0.3".into(), Some(1))]);
    // Nothing is said of other devices: which part of them the limit would be is not known.
    assert!(found.policies.iter().all(|policy| policy.as_recorded == policy.smallest_device_bytes.is_none()));
    let conf = "expandable_segments:True,per_process_memory_fraction:0.5";
    let settings = vec![("PYTORCH_CUDA_ALLOC_CONF", Text(conf)), ("expandable_segments", Bool(true))];
    let found = advice(&recording(history(), segments(), settings));
    let on = Cause::Settings { settings: "expandable_segments:True".into() };
    assert_eq!(found.causes, [limit(Some("per_process_memory_fraction:0.5")), on]);
    // What was on is a row of the table.
    let recorded = "expandable_segments:True,per_process_memory_fraction:0.5";
    assert_eq!(as_it_ran(&found), [(recorded.into(), Some(1))]);
    // A fraction of the whole device may be another one of what the allocator could have.
    let conf = vec![("PYTORCH_CUDA_ALLOC_CONF", Text("per_process_memory_fraction:0.2"))];
    assert_eq!(as_it_ran(&advice(&recording(history(), segments(), conf)))[0].0, "per_process_memory_fraction:0.3");
    let lists = "roundup_power2_divisions:[256:1,>:8]";
    let found = advice(&recording(history(), segments(), vec![("PYTORCH_CUDA_ALLOC_CONF", Text(lists))]));
    assert_eq!(found.causes[1..], [Cause::Settings { settings: lists.into() }]);
    assert_eq!(as_it_ran(&found)[0].0, format!("{lists},per_process_memory_fraction:0.3"));
    let settings = vec![("max_split_size", Int(100 * MIB))];
    let found = advice(&recording(history(), segments(), settings));
    assert_eq!(found.policies[1].setting, "max_split_size_mb:100,per_process_memory_fraction:0.3");
}

/// A holder is the innermost frame of the program with the operator that it called, and its whole stack is there.
#[test]
fn a_place_is_of_the_program_and_names_the_operator() {
    let frames = |line| {
        List(vec![
            frame("/x/lib/libtorch_cpu.so", 7, "at::_ops::mm::call(at::Tensor const&)"),
            frame("/x/site-packages/torch/nn/functional.py", 125, "linear"),
            frame("/home/me/torch/train.py", line, "step"),
            frame("/home/me/torch/train.py", 90, "<module>"),
        ])
    };
    let alloc =
        |addr, line| -> Vec<_> { at("alloc", addr, 300).into_iter().chain([("frames", frames(line))]).collect() };
    let history = vec![at("segment_alloc", 1000, 600), alloc(1000, 12), alloc(1300, 12), oom(900, 100)];
    let segments = vec![segment(1000, 300, 0, "active_allocated"), segment(1300, 300, 0, "active_allocated")];
    let trace = recording(history, segments, vec![]);
    let holder = &advice(&trace).holders[0];
    assert_eq!(holder.origin.as_deref(), Some("step (/home/me/torch/train.py:12), in aten::mm"));
    assert_eq!((holder.blocks, holder.newest_op), (2, 1));
    let stack: Vec<&str> = trace.frames(trace.stack_of(1).unwrap()).collect();
    assert_eq!(
        stack,
        [
            "at::_ops::mm::call(at::Tensor const&) (/x/lib/libtorch_cpu.so:7)",
            "linear (/x/site-packages/torch/nn/functional.py:125)",
            "step (/home/me/torch/train.py:12)",
            "<module> (/home/me/torch/train.py:90)",
        ]
    );
    assert_eq!((trace.stack_of(99), trace.frames(99).len()), (None, 0));
}

/// gapless's snapshots are in PyTorch's form.
#[test]
fn snapshots_of_gapless_are_told_from_those_of_pytorch() {
    let growing = || vec![expandable(segment(1000, 300, 0, "active_allocated"))];
    let map = || vec![at("segment_map", 1000, 300), at("alloc", 1000, 300), oom(300, 700)];
    let off = |text| vec![("PYTORCH_CUDA_ALLOC_CONF", Text(text)), ("expandable_segments", Bool(false))];
    let plug_in = vec![("backend", Text("gapless")), ("expandable_segments", Bool(true))];
    for (settings, allocator) in [
        (off(""), RecordedAllocator::Gapless),
        (plug_in, RecordedAllocator::Gapless),
        (vec![("expandable_segments", Bool(true))], RecordedAllocator::PyTorch),
    ] {
        let trace = recording(map(), growing(), settings);
        assert_eq!(trace.allocator(), allocator);
        let recorded: Vec<String> = advice(&trace)
            .policies
            .into_iter()
            .filter(|policy| policy.as_recorded)
            .map(|policy| policy.setting)
            .collect();
        let expected = if allocator == RecordedAllocator::Gapless {
            "gapless,budget:300MiB"
        } else {
            "expandable_segments:True,per_process_memory_fraction:0.3"
        };
        assert_eq!(recorded, [expected]);
    }
    // Memory of fixed size is PyTorch's.
    let trace = recording(vec![at("segment_alloc", 1000, 300), at("alloc", 1000, 300)], growing(), off(""));
    assert_eq!(trace.allocator(), RecordedAllocator::PyTorch);
}

/// Of two requests that were refused, the later one had less of the device.
#[test]
fn memory_that_others_took_is_named() {
    let history = |free| {
        let before = vec![at("segment_alloc", 1000, 300), at("alloc", 1000, 300), oom(2000, 700)];
        let after = vec![at("segment_alloc", 2000, 100), at("alloc", 2000, 100), oom(500, free)];
        before.into_iter().chain(after).collect()
    };
    let segments = || vec![segment(1000, 300, 0, "active_allocated"), segment(2000, 100, 0, "active_allocated")];
    assert_eq!(advice(&recording(history(600), segments(), vec![])).causes.len(), 1, "the limit alone");
    let found = advice(&recording(history(400), segments(), vec![]));
    assert_eq!(found.causes, [Cause::Others { bytes: 200 * MIB }]);
}

/// A run without a failure fits a device of what it held.
#[test]
fn a_device_that_is_not_recorded_is_assumed_to_have_what_was_held() {
    let history = vec![at("alloc", 1000, 60), at("free_requested", 1000, 60), at("free_completed", 1000, 60)];
    let segments = vec![segment(1000, 600, 0, "inactive"), segment(2000, 100, 0, "active_allocated")];
    let trace = recording(history, segments, vec![]);
    let found = advice(&trace);
    assert_eq!((found.device_is_assumed, found.device_bytes, found.reproduced), (true, 700 * MIB, None));
    assert!(found.policies.iter().all(PolicyOutcome::survives));
    // The stack of the block that was live before is in its segment.
    assert_eq!(found.holders[0].origin.as_deref(), Some("load (weights.py:7)"));
}

/// The segments of one pool beside the history of all, as `memory_snapshot(mempool_id)` lists them.
#[test]
fn sums_that_do_not_fit_together_allow_no_verdict() {
    let history = vec![
        at("segment_alloc", 1000, 600),
        at("alloc", 1000, 600),
        at("segment_alloc", 3000, 100),
        at("alloc", 3000, 100),
        oom(700, 424),
    ];
    let trace = recording(history, vec![segment(3000, 100, 1, "active_allocated")], vec![]);
    assert_eq!((trace.history().extent, trace.header().capacity_bytes), (Extent::Unknown, None));
    assert!(advice(&trace).policies.is_empty());
}

#[test]
fn a_ring_that_has_overflowed_is_not_the_whole_run() {
    let history = || {
        vec![
            at("segment_alloc", 1000, 60),
            at("alloc", 1000, 60),
            at("free_requested", 1000, 60),
            at("segment_free", 1000, 60),
        ]
    };
    let extent =
        |overflowed| recording(history(), vec![], vec![("trace_alloc_overflowed", Bool(overflowed))]).history().extent;
    assert_eq!((extent(true), extent(false)), (Extent::LaterPart, Extent::Whole));
}

/// PyTorch 2.4 writes annotations among the entries, on every device.
#[test]
fn steps_among_the_entries_are_steps_and_no_reason_to_read_a_device() {
    let step = |name, stage| {
        let mut entry = at("user_defined", 0, 0);
        entry.push(("frames", List(vec![frame(name, 0, stage)])));
        Dict(entry)
    };
    let annotations = || (0..4).flat_map(|_| [step("ProfilerStep#3", "START"), step("ProfilerStep#3", "END")]);
    let other: Vec<_> = annotations().collect();
    let device = vec![Dict(at("alloc", 1, 5)), step("ProfilerStep#3", "START"), step("ProfilerStep#3", "END")];
    let trace = read(&pickle::dump(&Dict(vec![("device_traces", List(vec![List(other), List(device)]))]))).unwrap();
    assert_eq!(ops(&trace), ["a 5242880 0", "m ProfilerStep#3"]);
    assert_eq!(trace.header().value("device"), Some("1"));
}
