//! Traces, configurations and calls of the C interface, as bytes.

use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write as _;

/// Names and contents.
pub type Seeds = Vec<(&'static str, Vec<u8>)>;

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).expect("writing to memory succeeds");
    encoder.finish().expect("writing to memory succeeds")
}

/// Every format of traces, with and without compression, complete and damaged.
pub fn traces() -> Seeds {
    let text = b"# model x\n# events 5\n# capacity_bytes 67108864\na 1 4096 0\na 2 9000000 7\nm step\nf 1\nf 2\n";
    let small = b"a 9 0 0\na 8 70000000 3\nf 9\n";
    let log = b"Thread,Time,Action,Pointer,Size,Stream\n1,09:00:00:1,allocate,0x7f00,4096,0x2\n\
        1,09:00:00:2,free,0x7f00,4096,0x2\n1,09:00:00:3,allocate failure,(nil),99999999,1\n1,09:00:00:4,free,0x10,512,0\n";
    let bad_log = b"Thread,Time,Action,Pointer,Size,Stream\n1,t,allocate,0x7g00,4096,0\n";
    let snapshot = snapshot();
    let cut = snapshot[..snapshot.len() / 2].to_vec();
    // d = {"n": 1}; [d, d]: a shared value. And a list that contains itself.
    let shared = b"\x80\x04\x95\x0f\0\0\0\0\0\0\0]\x94(}\x94\x8c\x01n\x94K\x01sh\x01e.";
    let cycle = b"\x80\x02}(X\x0d\0\0\0device_traces]q\0h\0au.";
    let numbers =
        b"\x80\x03(\x8a\x06\0\0\0\0\0\x7f\x8b\x01\0\0\0\xffG?\xf0\0\0\0\0\0\0J\xff\xff\xff\xffM\x01\x02C\x02ab\x88Nt.";
    let object = b"\x80\x02cos\nsystem\nX\x02\0\0\0idq\0\x85R.";
    vec![
        ("whole", text.to_vec()),
        ("out_of_memory", small.to_vec()),
        ("two_gzips", [gzip(text), gzip(small)].concat()),
        ("rmm", log.to_vec()),
        ("rmm_gzip", gzip(log)),
        ("rmm_damaged", bad_log.to_vec()),
        ("snapshot_gzip", gzip(&snapshot)),
        ("snapshot", snapshot),
        ("snapshot_cut", cut),
        ("pickle_shared", shared.to_vec()),
        ("pickle_cycle", cycle.to_vec()),
        ("pickle_numbers", numbers.to_vec()),
        ("pickle_object", object.to_vec()),
        ("pickle_tuple_over_a_mark", b"\x80\x02NN(N\x87t.".to_vec()),
        ("pickle_marks", gzip(&[&b"\x80\x02"[..], &[b'('; 5000]].concat())),
    ]
}

/// A PyTorch memory snapshot with every kind of entry, as Python's pickle would write it.
fn snapshot() -> Vec<u8> {
    fn text(text: &str) -> Vec<u8> {
        [&[0x8c, u8::try_from(text.len()).expect("a short text")], text.as_bytes()].concat()
    }
    fn number(number: u64) -> Vec<u8> {
        [&[0x8a, 9][..], &number.to_le_bytes(), &[0]].concat()
    }
    fn dict(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let entries: Vec<u8> = entries.iter().flat_map(|(key, value)| [text(key), value.clone()].concat()).collect();
        [&b"}("[..], &entries, b"u"].concat()
    }
    fn list(items: &[Vec<u8>]) -> Vec<u8> {
        [&b"]("[..], &items.concat(), b"e"].concat()
    }
    let frame = dict(&[("filename", text("m.py")), ("line", b"K\x0c".to_vec()), ("name", text("f"))]);
    let entry = |action: &str, addr: u64, size: u64, time: u64| {
        dict(&[
            ("action", text(action)),
            ("addr", number(addr)),
            ("size", number(size)),
            ("stream", b"K\x00".to_vec()),
            ("time_us", number(time)),
            ("device_free", number(1 << 20)),
            ("frames", list(std::slice::from_ref(&frame))),
        ])
    };
    let block = |size, state: &str| dict(&[("size", number(size)), ("state", text(state))]);
    let segment = dict(&[
        ("device", b"K\x00".to_vec()),
        ("address", number(0x7000)),
        ("total_size", number(2 << 20)),
        ("blocks", list(&[block(512, "active_allocated"), block(512, "inactive")])),
    ]);
    let annotation = dict(&[("name", text("step")), ("stage", text("END")), ("time_us", number(2))]);
    let history = [
        entry("segment_alloc", 0x7000, 2 << 20, 1),
        entry("alloc", 0x9000, 100, 2),
        entry("free_requested", 0x9000, 100, 3),
        entry("free_requested", 0xa000, 4096, 3),
        entry("alloc", 0xb000, 100, 4),
        entry("alloc", 0xb000, 200, 5),
        entry("oom", 0, 1 << 40, 6),
    ];
    let whole = dict(&[
        ("segments", list(&[segment])),
        ("device_traces", list(&[list(&history)])),
        ("external_annotations", list(&[annotation])),
    ]);
    [&b"\x80\x04"[..], &whole, b"."].concat()
}

/// Configurations with every key and every kind of error.
pub fn configurations() -> Seeds {
    let texts = [
        (
            "every_key",
            "budget:24GiB, slack:1.25,chunk:2MiB ,region:4TiB,log:on,record:/t/a:b%d.gz,report_on_failure:True",
        ),
        ("fraction", "budget:0.9,chunk:auto"),
        ("percent", "budget: 90 %,slack:inf"),
        ("pytorch", "max_split_size_mb:128,roundup_power2_divisions:[256:1,512:2,>:4],expandable_segments:True"),
        ("pytorch_fraction", "per_process_memory_fraction:0.5,backend:native,slack:1.1"),
        ("bad_fraction", "per_process_memory_fraction:o"),
        ("unknown", "log:on,bugdet:1GiB"),
        ("twice", "log:on,log:off"),
        ("no_value", "budget"),
        ("brackets", "a:[1,2"),
        ("bad_values", "slack:0.9,chunk:-1"),
        ("empty_parts", " , ,"),
        ("odd_numbers", "budget:1.5GiB,region:99999999999TiB,slack:1e300"),
    ];
    texts.iter().map(|(name, text)| (*name, text.as_bytes().to_vec())).collect()
}

/// Calls of the C interface in the encoding of `crates/capi/tests/fuzzed/calls`: call, handle, what, how, number.
pub fn calls() -> Seeds {
    type Call = (u8, u8, u8, u8, u32);
    let alloc = |pages: u32, stream: u8| -> Call { (0, 0, 4, stream, pages) };
    let (free, destroy): (fn(u32) -> Call, Call) = (|number| (4, 0, 0, 0, number), (13, 0, 0, 0, 0));
    let fail = |function: u8, code: u8| -> Call { (240, 0, function, code, 0) };
    // PyTorch's entry points: the call's number is 15 plus 20 times theirs.
    let torch = |what: u8, number: u32| -> Call { (15, 0, what, 0, number) };
    // The same on a process-wide allocator: device 0's for handle 0, the other one's for 128. 128 to 131 as a stream are the
    // streams of their own, two of device 0 and two of the other one.
    let on = |handle: u8, pages: u32, stream: u8| -> Call { (15, handle, 4, stream, pages) };
    let give = |handle: u8, number: u32| -> Call { (95, handle, 1, 0, number) };
    let begin = |pool: u8| -> Call { (17, pool, 0, 0, 0) };
    let end = |pool: u8| -> Call { (17, pool, 1, 0, 0) };
    // Blocks that streams of one of the devices use are freed by every door, and their size is requested again.
    let used = |other_memory: bool, other_streams: bool| -> Vec<Call> {
        let (handle, first) = (if other_memory { 128 } else { 0 }, if other_streams { 130 } else { 128 });
        let own = if other_memory { 130 } else { 128 };
        let again = [on(handle, 2, 0), on(handle, 2, own), on(handle, 2, 0)];
        let frees = [give(handle, 0), (215, handle, 2, 0, 0), give(handle, 0)];
        let records: [Call; 3] =
            [(115, handle, 0, first, 0), (235, handle, 2, first + 1, 0), (115, handle, 0, first, 0)];
        let mut calls = Vec::new();
        for (record, free) in records.into_iter().zip(frees) {
            calls.extend([on(handle, 2, 0), record, free]);
            calls.extend(again);
            calls.extend([
                (215, handle, 1, 0, 0),
                (155, handle, 1, 0, 3),
                give(handle, 0),
                give(handle, 0),
                give(handle, 0),
            ]);
        }
        // Freed on the stream, without a record.
        calls.extend([on(handle, 2, 0), (215, handle, 130, first, 0)]);
        calls.extend(again);
        calls.push((235, handle, 130, 100, 0));
        calls
    };
    let seeds: Vec<(&str, Vec<Call>)> = vec![
        ("a_life", vec![(12, 0, 0, 2, 0), alloc(3, 0), alloc(1, 1), (7, 0, 0, 1, 1), free(0), free(0), destroy]),
        (
            "wrong_frees",
            vec![
                alloc(2, 0),
                free(0),
                (4, 0, 160, 0, 0),
                alloc(1, 0),
                (4, 0, 180, 7, 0),
                (4, 0, 220, 0, 0),
                (4, 0, 240, 0, 0),
            ],
        ),
        ("two_allocators", vec![(12, 0, 0, 2, 0), (12, 0, 96, 2, 0), alloc(2, 0), (0, 1, 4, 1, 2), (4, 1, 200, 0, 0)]),
        (
            "bad_handles",
            vec![
                alloc(1, 0),
                destroy,
                (0, 240, 1, 0, 9),
                (0, 244, 1, 0, 9),
                (4, 248, 0, 0, 0),
                (10, 251, 150, 0, 0),
                (13, 252, 0, 0, 0),
                (11, 252, 0, 0, 0),
            ],
        ),
        (
            "absurd_sizes",
            vec![(0, 0, 7, 0, 0), (0, 0, 6, 0, u32::MAX), (0, 0, 4, 0, 23), (2, 0, 1, 0, 40), (3, 0, 0, 0, 3)],
        ),
        ("leaked", vec![alloc(1, 0), alloc(2, 1), destroy, (0, 0, 0, 247, 1), (0, 0, 0, 250, 1)]),
        ("settings", (0..16).map(|kind| (12, 0, kind * 16, kind, 3 << 20)).chain([destroy, destroy]).collect()),
        (
            "buffers",
            vec![
                (0, 0, 4, 0, 23),
                (11, 0, 0, 1, 7),
                (11, 0, 1, 2, 100),
                (11, 0, 2, 3, 1),
                (11, 0, 0, 255, 0),
                (10, 0, 0, 0, 40),
                (10, 0, 0, 0, 8),
                (10, 0, 128, 255, 0),
                (10, 0, 200, 32, 1),
            ],
        ),
        (
            "budgets",
            vec![alloc(6, 0), free(0), (9, 0, 0, 0, 4 << 20), (8, 0, 1, 100, 0), (8, 0, 0, 0, 0), (9, 0, 207, 0, 1)],
        ),
        (
            "recorded",
            vec![
                (14, 0, 0, 0, 0),
                alloc(1, 0),
                (14, 0, 4, 1, 0),
                free(0),
                (14, 0, 0, 1, 0),
                (14, 0, 6, 0, 0),
                (14, 0, 1, 1, 0),
                alloc(1, 0),
                (14, 0, 3, 200, 0),
                destroy,
            ],
        ),
        (
            "torch",
            vec![
                torch(2, 5000),
                torch(4, 1),
                (95, 0, 0, 0, 0),
                (115, 0, 200, 0, 0),
                (155, 0, 1, 1, 9),
                (135, 0, 0, 0, 0),
                (135, 0, 200, 0, 0.5_f32.to_bits()),
                (13, 232, 0, 0, 0),
                (0, 232, 1, 0, 70),
                (15, 254, 1, 0, 5),
            ],
        ),
        (
            "torch_pools",
            vec![
                torch(4, 1),
                (17, 0, 0, 0, 0),
                torch(4, 2),
                (17, 1, 0, 0, 0),
                torch(2, 100),
                (17, 1, 1, 0, 0),
                (17, 0, 1, 0, 0),
                (155, 0, 0, 0, 3),
                (17, 1, 2, 0, 0),
                (95, 0, 0, 0, 1),
                (17, 0, 2, 0, 0),
                (155, 0, 1, 0, 3),
                torch(4, 1),
            ],
        ),
        // The functions for a device's memory: 175 and 195 allocate, 215 frees, 235 records a stream or trims.
        (
            "device_memory",
            vec![
                (175, 0, 130, 0, 5000),
                (195, 0, 68, 1, 9),
                (175, 0, 4, 0, 3),
                (235, 0, 2, 1, 0),
                (17, 0, 0, 0, 0),
                (175, 0, 132, 0, 2),
                (235, 0, 2, 1, 2),
                (17, 0, 1, 0, 0),
                (155, 0, 0, 0, 3),
                (215, 0, 2, 5, 2),
                (215, 0, 2, 0, 0),
                (215, 0, 1, 0, 0),
                (215, 0, 0, 0, 0),
                (195, 0, 132, 0, 23),
                (195, 0, 132, 0, 23),
                (195, 0, 134, 0, 4096),
                (175, 0, 132, 250, 1),
                (195, 255, 132, 0, 1),
                (235, 0, 130, 100, 0),
                (155, 0, 1, 0, 3),
                (17, 0, 2, 0, 0),
            ],
        ),
        ("own_streams", used(false, false)),
        ("own_streams_of_a_pool", [&[begin(0)][..], &used(false, false), &[end(0)]].concat()),
        ("own_streams_of_the_other_device", used(true, true)),
        ("foreign_streams", used(false, true)),
        ("foreign_streams_of_a_pool", [&[begin(129)][..], &used(true, false), &[end(129)]].concat()),
        ("foreign_streams_of_the_other_device", used(true, false)),
        (
            "default_streams",
            [0, 1, 2]
                .iter()
                .flat_map(|how| [on(0, 2, 0), (235, 0, 2, *how, 0), give(0, 0), on(0, 2, 0), give(0, 0)])
                .collect(),
        ),
        // The last use is on the default stream, or on the second of two of the other device.
        ("freed_on_the_default_stream", vec![on(0, 2, 129), (215, 0, 130, 0, 0), on(0, 2, 129), give(0, 0)]),
        (
            "two_foreign_streams",
            vec![on(0, 2, 0), (115, 0, 0, 130, 0), (115, 0, 0, 131, 0), give(0, 0), (235, 0, 130, 100, 0)],
        ),
        // What the main allocator holds free is worth less than a pool's request, than a lower budget, and counts.
        (
            "budgets_of_pools",
            vec![
                (135, 0, 200, 0, 0.5_f32.to_bits()),
                on(0, 12, 0),
                begin(0),
                give(0, 0),
                on(0, 14, 0),
                (155, 0, 1, 0, 3),
                end(0),
                on(0, 1, 0),
                (135, 0, 200, 0, 0.25_f32.to_bits()),
                give(0, 1),
                give(0, 0),
                (17, 0, 2, 0, 0),
                on(0, 7, 0),
                begin(1),
                give(0, 0),
                (135, 0, 200, 0, 0.125_f32.to_bits()),
                on(0, 3, 0),
                (155, 0, 1, 0, 3),
            ],
        ),
        // What the other device uses is most of the memory: the next request has to wait for it.
        (
            "foreign_stream_waited_for",
            vec![on(0, 20, 0), (115, 0, 0, 130, 0), give(0, 0), on(0, 23, 0), (155, 0, 1, 0, 3)],
        ),
        (
            "pools_of_two_devices",
            vec![
                on(0, 3, 0),
                on(128, 3, 0),
                begin(129),
                on(128, 2, 0),
                on(0, 2, 0),
                begin(0),
                on(0, 1, 129),
                on(128, 1, 131),
                (155, 0, 0, 0, 3),
                (155, 128, 1, 0, 3),
                (135, 128, 200, 0, 0.25_f32.to_bits()),
                on(128, 5, 0),
                on(128, 5, 0),
                end(129),
                give(128, 0),
                (17, 129, 2, 0, 0),
                (155, 128, 1, 0, 3),
                (235, 128, 130, 100, 0),
                on(128, 6, 0),
            ],
        ),
        // Each driver function fails once while memory is mapped, moved to another stream or trimmed.
        (
            "failing_growths",
            (0..12).flat_map(|function| [fail(function, 1), alloc(2, 0), alloc(2, 0), free(0), free(0)]).collect(),
        ),
        (
            "failing_moves",
            (0..12).flat_map(|function| [alloc(9, 0), free(0), fail(function, 3), alloc(10, 1), free(0)]).collect(),
        ),
        (
            "failing_trims",
            (2..12)
                .flat_map(|function| [alloc(6, 0), alloc(1, 1), free(0), free(0), fail(function, 0), (8, 0, 1, 100, 0)])
                .collect(),
        ),
        // A pool with a budget below one page: it exists, but cannot hold memory.
        (
            "torch_pool_without_room",
            vec![
                torch(2, 5000),
                (135, 0, 200, 0, 0.001_f32.to_bits()),
                (17, 0, 0, 0, 0),
                torch(2, 100),
                (155, 0, 1, 0, 3),
            ],
        ),
        (
            "texts",
            (0..7).flat_map(|kind| [(18, 0, kind, 0, 0), (19, 0, kind, 0, 0)]).chain([(19, 200, 0, 0, 0)]).collect(),
        ),
    ];
    let bytes = |calls: &[Call]| {
        let record = |(call, handle, what, how, number): &Call| {
            [&[*call, *handle, *what, *how][..], &number.to_le_bytes()].concat()
        };
        calls.iter().flat_map(record).collect()
    };
    seeds.iter().map(|(name, calls)| (*name, bytes(calls))).collect()
}
