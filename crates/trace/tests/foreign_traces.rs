//! Recordings of other allocators: their format is detected, they are converted, or they are refused with a reason.

mod foreign;

use foreign::pickle::Py::{self, Dict, Int, List, Text};
use foreign::{ops, pickle, read};
use gapless_trace::advice::{AdviceOptions, PolicyOutcome, advise};
use gapless_trace::{Device, Extent, FailedRequest, Trace};
use std::io::Write;
use std::num::NonZero;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

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
        assert_eq!(trace.origin(2), Some("forward (model.py:12), in torch.nn.linear.forward"));
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

/// A mark may have any label, a header any text, and an op any tag: also one that names the columns of a log.
#[test]
fn a_line_of_a_trace_that_names_columns_is_no_log() {
    let columns = ",Action,Pointer,Size,Stream";
    for mark in [format!("m {columns}"), format!("m\t{columns}"), format!("\u{feff} m {columns}")] {
        let trace = Trace::read("t", format!("{mark}\na 1 512 0\n").as_bytes()).unwrap();
        assert_eq!(trace.labels().collect::<Vec<_>>(), [columns], "{mark:?}");
        assert_eq!(trace.ops().len(), 2, "{mark:?}");
    }
    for op in ["w", "s", "a 1 512 0"] {
        let content = if op == "s" { " keep" } else { "" };
        let trace = Trace::read("t", format!("{op} {columns}{content}\n").as_bytes()).unwrap();
        assert_eq!(trace.tags().collect::<Vec<_>>(), [columns], "{op}");
        assert_eq!(trace.ops().len(), 1, "{op}");
    }
    let trace = Trace::read("t", format!("# made{columns}\na 1 512 0\n").as_bytes()).unwrap();
    assert_eq!(trace.ops().len(), 1);
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
            known: None,
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
