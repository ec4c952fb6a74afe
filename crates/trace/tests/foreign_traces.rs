//! Recordings of other allocators: their format is detected, they are converted, or they are refused with a reason.

use gapless_trace::advice::{Advice, AdviceOptions, Cause, PolicyOutcome, Setting, advise};
use gapless_trace::{Device, Extent, FailedRequest, Op, Trace};
use std::io::Write;
use std::num::NonZero;

fn read(bytes: &[u8]) -> Result<Trace, String> {
    Trace::read("t", bytes).map_err(|error| error.to_string())
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Returns `a BYTES STREAM`, `f`, `r BYTES STREAM` or `m LABEL` for each op.
fn ops(trace: &Trace) -> Vec<String> {
    let op = |op: &Op| match *op {
        Op::Alloc { bytes, stream, .. } => format!("a {bytes} {}", trace.streams()[usize::from(stream)]),
        Op::Free { .. } => "f".into(),
        Op::Refused { bytes, stream } => format!("r {bytes} {}", trace.streams()[usize::from(stream)]),
        Op::Mark { label } => format!("m {}", trace.labels().nth(label as usize).unwrap()),
    };
    trace.ops().iter().map(op).collect()
}

/// A writer of the parts of Python's pickle format that are needed here.
mod pickle {
    pub enum Py<'a> {
        Int(u64),
        Bool(bool),
        Text(&'a str),
        List(Vec<Py<'a>>),
        Dict(Vec<(&'a str, Py<'a>)>),
    }

    pub fn dump(value: &Py<'_>) -> Vec<u8> {
        let mut bytes = b"\x80\x04".to_vec();
        write(value, &mut bytes);
        bytes.push(b'.');
        bytes
    }

    fn text(text: &str, bytes: &mut Vec<u8>) {
        bytes.push(b'X');
        bytes.extend(u32::try_from(text.len()).unwrap().to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes.push(0x94);
    }

    fn write(value: &Py<'_>, bytes: &mut Vec<u8>) {
        match value {
            Py::Int(number) => {
                bytes.extend([0x8a, 9]);
                bytes.extend(number.to_le_bytes());
                bytes.push(0);
            }
            Py::Bool(value) => bytes.push(if *value { 0x88 } else { 0x89 }),
            Py::Text(value) => text(value, bytes),
            Py::List(items) => {
                bytes.extend(b"]\x94(");
                items.iter().for_each(|item| write(item, bytes));
                bytes.push(b'e');
            }
            Py::Dict(entries) => {
                bytes.extend(b"}\x94(");
                for (key, value) in entries {
                    text(key, bytes);
                    write(value, bytes);
                }
                bytes.push(b'u');
            }
        }
    }
}
use pickle::Py::{self, Bool, Dict, Int, List, Text};

fn entry<'a>(action: &'a str, addr: u64, size: u64, stream: u64, time: u64) -> Py<'a> {
    let frame = |file, line| Dict(vec![("filename", Text(file)), ("line", Int(line)), ("name", Text("forward"))]);
    Dict(vec![
        ("action", Text(action)),
        ("addr", Int(addr)),
        ("size", Int(size)),
        ("stream", Int(stream)),
        ("time_us", Int(time)),
        ("frames", List(vec![frame("??", 0), frame("/lib/torch/nn/linear.py", 134), frame("model.py", 12)])),
    ])
}

fn snapshot(history: Vec<Py<'_>>) -> Vec<u8> {
    let block = |address, size, state| {
        Dict(vec![
            ("address", Int(address)),
            ("size", Int(size)),
            ("requested_size", Int(size - 12)),
            ("state", Text(state)),
        ])
    };
    let segment = Dict(vec![
        ("device", Int(1)),
        ("address", Int(0x7f00_0000_0000)),
        ("total_size", Int(5 << 20)),
        ("stream", Int(0)),
        (
            "blocks",
            List(vec![
                block(0x7f00_0000_0000, 512, "active_allocated"),
                block(0x7f00_0000_0200, 1024, "inactive"),
                block(0x7f00_0000_0600, 512, "active_pending_free"),
            ]),
        ),
    ]);
    let other = Dict(vec![("device", Int(0)), ("address", Int(0)), ("blocks", List(vec![]))]);
    let end =
        Dict(vec![("name", Text("ProfilerStep#1")), ("stage", Text("END")), ("device", Int(1)), ("time_us", Int(25))]);
    pickle::dump(&Dict(vec![
        ("segments", List(vec![other, segment])),
        ("device_traces", List(vec![List(vec![]), List(history)])),
        ("external_annotations", List(vec![end])),
    ]))
}

fn history() -> Vec<Py<'static>> {
    vec![
        entry("segment_alloc", 0x7f00_0000_0000, 2 << 20, 0, 5),
        entry("alloc", 0x1000, 100, 0, 10),
        entry("free_requested", 0x9000, 4096, 7, 20),
        entry("free_completed", 0x9000, 4096, 7, 30),
        entry("free_requested", 0x1000, 100, 0, 40),
        entry("free_completed", 0x1000, 100, 0, 45),
        Dict(vec![
            ("action", Text("oom")),
            ("device_free", Int(1 << 20)),
            ("size", Int(1 << 40)),
            ("stream", Int(0)),
            ("time_us", Int(50)),
            (
                "frames",
                List(vec![Dict(vec![("filename", Text("model.py")), ("line", Int(12)), ("name", Text("forward"))])]),
            ),
        ]),
        entry("segment_alloc", 0x7f10_0000_0000, 3 << 20, 0, 55),
        entry("snapshot", 0, 0, 0, 60),
    ]
}

#[test]
fn a_snapshot_becomes_a_trace() {
    let bytes = snapshot(history());
    for bytes in [bytes.clone(), gzip(&bytes)] {
        let trace = read(&bytes).unwrap();
        assert_eq!(
            ops(&trace),
            [
                // Blocks live before the history begins: they are freed in it, or live at its end.
                "a 4096 7",
                "a 500 0",
                "a 100 0",
                "f",
                "m ProfilerStep#1",
                "f",
                "r 1099511627776 0",
            ]
        );
        assert_eq!(trace.header().value("device"), Some("1"));
        // 2 MiB held when memory ran out, plus the device's free memory at that time.
        assert_eq!(trace.header().capacity_bytes, Some(3 << 20));
        assert_eq!(trace.origin(2), Some("forward (model.py:12)"));
        assert_eq!(trace.origin(6), Some("forward (model.py:12)"));
        assert_eq!((trace.origin(0), trace.origin(3), trace.origin(99)), (None, None, None));
    }
}

#[test]
fn a_snapshot_without_a_history_explains_how_to_record_one() {
    assert!(read(&snapshot(vec![])).unwrap_err().contains("_record_memory_history"));
    assert!(read(&pickle::dump(&Dict(vec![]))).unwrap_err().contains("device_traces"));
    assert!(read(&pickle::dump(&List(vec![Int(1)]))).unwrap_err().contains("a list of 1"));
    let error = read(&snapshot(vec![Dict(vec![("action", Text("alloc"))])])).unwrap_err();
    assert!(error.contains("entry 0") && error.contains("'size'"), "{error}");
    let error = read(&snapshot(vec![Int(3)])).unwrap_err();
    assert!(error.contains("'action'"), "{error}");
}

/// Many annotations may share one text as their name, so each name is cut.
#[test]
fn long_names_of_annotations_are_cut() {
    let name = "é\n".repeat(5000);
    let end = || Dict(vec![("name", Text(&name)), ("stage", Text("END")), ("time_us", Int(25))]);
    let bytes = pickle::dump(&Dict(vec![
        ("device_traces", List(vec![List(history())])),
        ("external_annotations", List(vec![end(), end()])),
    ]));
    let trace = read(&bytes).unwrap();
    let cut = "é ".repeat(100);
    assert_eq!(trace.labels().collect::<Vec<_>>(), [&*cut, &*cut]);
}

#[test]
fn every_cut_of_a_snapshot_is_an_error() {
    let bytes = snapshot(history());
    for length in 2..bytes.len() {
        let error = read(&bytes[..length]).unwrap_err();
        assert!(error.contains("cut short") || error.contains("damaged"), "{length}: {error}");
    }
    let packed = gzip(&bytes);
    for length in (40..packed.len() - 32).step_by(7) {
        assert!(read(&packed[..length]).is_err(), "{length}");
    }
}

#[test]
fn changed_bytes_never_cause_a_panic() {
    let bytes = snapshot(history());
    for at in 0..bytes.len() {
        for flip in [0x01, 0x10, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] ^= flip;
            let _ = read(&changed);
        }
    }
}

const LOG: &str = "Thread,Time,Action,Pointer,Size,Stream
140,10:00:00:000001,allocate,0x7f0000000000,1024,0x0
140,10:00:00:000002,allocate,0x7f0000000400,2048,0x55d0
141,10:00:00:000003,free,0x7f0000009000,77,0x2
140,10:00:00:000004,free,0x7f0000000000,1024,(nil)
140,10:00:00:000005,allocate failure,(nil),99999,0x1
140,10:00:00:000006,allocate,0x7f0000000400,10,0
";

#[test]
fn an_rmm_log_becomes_a_trace() {
    for bytes in [LOG.as_bytes().to_vec(), gzip(LOG.as_bytes()), LOG.replace('\n', "\r\n").into_bytes()] {
        let trace = read(&bytes).unwrap();
        assert_eq!(ops(&trace), ["a 77 2", "a 1024 0", "a 2048 1", "f", "f", "r 99999 0", "f", "a 10 0"]);
        assert_eq!(trace.origin(0), None);
    }
}

#[test]
fn errors_in_rows_name_the_line() {
    for (row, hint) in [
        ("1,2,allocate,0x1,1", "line 8: not a row of an RMM log: 5 fields"),
        ("1,2,allocate,0x1,-1,0x0", "the size '-1'"),
        ("1,2,allocate,zzz,1,0x0", "the pointer 'zzz'"),
        ("1,2,allocate,0x1,1,x", "the stream 'x'"),
        ("1,2,explode,0x1,1,0x0", "the action 'explode'"),
        ("1,2,allocate,0x1ffffffffffffffff,1,0x0", "the pointer"),
    ] {
        let error = read(format!("{LOG}{row}\n").as_bytes()).unwrap_err();
        assert!(error.contains(hint), "{row}: {error}");
    }
    assert!(read(format!("{LOG}{}", "x".repeat(100_000)).as_bytes()).unwrap_err().contains("longer than"));
    let mut bytes = LOG.as_bytes().to_vec();
    bytes.extend(b"\xff\xff\n");
    assert!(read(&bytes).unwrap_err().contains("UTF-8"));
    assert!(read(&gzip(LOG.as_bytes())[..60]).is_err());
}

#[test]
fn a_refused_request_never_was_live() {
    let trace = read(LOG.as_bytes()).unwrap();
    assert_eq!(trace.peak_live_bytes(), 77 + 1024 + 2048);
    // An allocation follows: the program went on.
    assert_eq!(trace.failed_request(), None);
    assert_eq!(trace.survived_refusals().collect::<Vec<_>>(), [FailedRequest { op_index: 5, bytes: 99999 }]);
    let until_then = LOG.lines().take(6).map(|line| format!("{line}\n")).collect::<String>();
    let ended = read(until_then.as_bytes()).unwrap();
    assert_eq!(ended.failed_request(), Some(FailedRequest { op_index: 5, bytes: 99999 }));
    assert_eq!((ended.survived_refusals().count(), ended.peak_live_bytes()), (0, 77 + 1024 + 2048));
    assert_eq!(trace.scaled(2.0).unwrap().peak_live_bytes(), 2 * (77 + 1024 + 2048));
    assert_eq!(read(b"a 1 10 0\n").unwrap().failed_request(), None);
    let scenario = read(b"# satisfiable no\na 1 10 0\na 2 20 0\nm end\n").unwrap();
    assert_eq!(scenario.failed_request(), Some(FailedRequest { op_index: 1, bytes: 20 }));
}

#[test]
fn a_history_says_how_much_of_the_run_it_is() {
    let snapshot = read(&snapshot(history())).unwrap().history();
    assert_eq!(
        (snapshot.extent, snapshot.live_at_start_bytes, snapshot.held_at_start_bytes),
        (Extent::LaterPart, 4096 + 500, Some(0)),
    );
    let log = read(LOG.as_bytes()).unwrap().history();
    assert_eq!((log.extent, log.live_at_start_bytes, log.held_at_start_bytes), (Extent::Unknown, 77, None));
    let whole = read(LOG.replace("141,10:00:00:000003,free,0x7f0000009000,77,0x2\n", "").as_bytes()).unwrap().history();
    assert_eq!((whole.extent, whole.live_at_start_bytes), (Extent::Whole, 0));
}

/// The memory that PyTorch held before the first entry follows from what it holds at the end.
#[test]
fn a_cache_from_before_the_history_is_noticed() {
    let later: Vec<_> = history().into_iter().skip(1).filter(|entry| matches!(entry, Dict(_))).collect();
    let history = read(&snapshot(later)).unwrap().history();
    assert_eq!((history.extent, history.held_at_start_bytes), (Extent::LaterPart, Some(2 << 20)));
}

#[test]
fn of_several_devices_the_one_that_failed_is_read() {
    let oom = || Dict(vec![("action", Text("oom")), ("device_free", Int(0)), ("size", Int(70)), ("stream", Int(0))]);
    let long = vec![entry("alloc", 0x1000, 100, 0, 1), entry("alloc", 0x2000, 100, 0, 2)];
    let bytes = pickle::dump(&Dict(vec![(
        "device_traces",
        List(vec![List(vec![]), List(long), List(vec![oom()]), List(vec![entry("alloc", 0x1000, 5, 0, 1)])]),
    )]));
    let device =
        |number| Trace::read_device("t", &bytes[..], number).map(|trace| trace.header().value("device") == Some("2"));
    assert!(device(None).unwrap());
    assert!(!device(Some(1)).unwrap());
    let error = device(Some(0)).unwrap_err().to_string();
    assert!(error.contains("no history of device 0, only of 1, 2, 3"), "{error}");
    assert!(device(Some(usize::MAX)).is_err());
}

/// Where the blocks lay that were live before the history is not known, but what was held is.
#[test]
fn no_device_that_is_smaller_than_what_was_held_is_said_to_be_enough() {
    let later: Vec<_> = history().into_iter().skip(1).filter(|entry| matches!(entry, Dict(_))).collect();
    let without_failure: Vec<_> = later.into_iter().take(5).collect();
    let trace = read(&snapshot(without_failure)).unwrap();
    let held = trace.history().held_at_start_bytes.unwrap();
    assert_eq!(held, 5 << 20, "without the segment that is created later");
    let on = |capacity_bytes| {
        let settings = ["native", "gapless"].map(|text| text.parse().unwrap()).to_vec();
        let options = AdviceOptions {
            device: Device::of(capacity_bytes),
            settings,
            threads: NonZero::<usize>::MIN,
            progress: None,
        };
        let advice = advise(&trace, &options).unwrap();
        assert!(!advice.history_complete);
        let outcome = |policy: PolicyOutcome| {
            (policy.setting, policy.not_replayed.is_some(), policy.oom_op, policy.smallest_device_bytes)
        };
        advice.policies.into_iter().map(outcome).collect::<Vec<_>>()
    };
    let gapless = ("gapless".to_owned(), false, None, Some(2 << 20));
    assert_eq!(on(4 << 20), [("native".to_owned(), true, None, None), gapless.clone()]);
    assert_eq!(on(8 << 20), [("native".to_owned(), false, None, Some(held)), gapless]);
}

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
    assert_eq!(found.causes, [Cause::Limit { device_free_bytes: 700 * MIB, setting: None }]);
    let conf = "expandable_segments:True,per_process_memory_fraction:0.5";
    let settings = vec![("PYTORCH_CUDA_ALLOC_CONF", Text(conf)), ("expandable_segments", Bool(true))];
    let found = advice(&recording(history(), segments(), settings));
    let Cause::Limit { setting, .. } = &found.causes[0] else { panic!("{:?}", found.causes) };
    assert_eq!(setting.as_deref(), Some("per_process_memory_fraction:0.5"));
    // What was on is a row of the table.
    assert_eq!(found.causes[1], Cause::Settings { settings: "expandable_segments:True".into() });
    let recorded: Vec<_> =
        found.policies.iter().filter(|policy| policy.as_recorded).map(|policy| &policy.setting).collect();
    assert_eq!(recorded, ["expandable_segments:True"]);
    let lists = "roundup_power2_divisions:[256:1,>:8]";
    let found = advice(&recording(history(), segments(), vec![("PYTORCH_CUDA_ALLOC_CONF", Text(lists))]));
    assert_eq!(found.causes[1..], [Cause::Settings { settings: lists.into() }]);
    let settings = vec![("max_split_size", Int(100 * MIB))];
    let found = advice(&recording(history(), segments(), settings));
    assert_eq!(found.policies[1].setting, "max_split_size_mb:100");
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

/// A handle of RMM's log names another stream on each thread, or the default stream by another name.
#[test]
fn streams_of_a_log_are_told_apart_by_what_they_are() {
    let head = "Thread,Time,Action,Pointer,Size,Stream\n";
    let rows = [("7", "0x2"), ("8", "0x2"), ("7", "0x1"), ("7", "0x2"), ("7", "0x50"), ("8", "0x50"), ("8", "0")];
    let rows: String =
        (1..).zip(rows).map(|(at, (thread, stream))| format!("{thread},1,allocate,0x{at}00,1,{stream}\n")).collect();
    let trace = read(format!("{head}{rows}").as_bytes()).unwrap();
    assert_eq!(ops(&trace), ["a 1 1", "a 1 2", "a 1 0", "a 1 1", "a 1 3", "a 1 3", "a 1 0"]);
}

#[test]
fn a_second_header_in_a_log_is_another_process() {
    let head = "Thread,Time,Action,Pointer,Size,Stream\n";
    let one = format!("{head}1,1,allocate,0x100,1000,0x50\n1,1,allocate,0x900,10,0x0\n");
    let two = format!("{head}1,1,allocate,0x800,1000,0x50\n1,1,free,0x700,10,0x0\n1,1,free,0x800,1000,0x50\n");
    let trace = read(format!("{one}{two}").as_bytes()).unwrap();
    assert_eq!(ops(&trace), ["a 1000 1", "a 10 0", "f", "f", "a 1000 2", "f"]);
    assert_eq!(trace.peak_live_bytes(), 1010);
}

#[test]
fn a_log_without_threads_and_absurd_requests_are_read() {
    let log =
        "Time,Action,Pointer,Size,Stream\n1,allocate,0x100,1000,0\n2,allocate failure,(nil),18446744073709551615,0\n";
    let trace = read(log.as_bytes()).unwrap();
    assert_eq!(ops(&trace), ["a 1000 0", "r 18446744073709551615 0"]);
    let saved = ",Thread,Time,Action,Pointer,Size,Stream\n0,7,1,allocate,0x100,1000,0x2\n";
    assert_eq!(ops(&read(saved.as_bytes()).unwrap()), ["a 1000 1"]);
    assert!(read(format!("{log}1,2,free,0x100,1000,0\n").as_bytes()).unwrap_err().contains("6 fields instead of 5"));
}
