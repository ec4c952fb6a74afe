//! Traces and configurations, as bytes.

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
    let sleeps = b"a 1 9000000 0 kv\na 2 4096 1\ns kv discard\na 3 5000000 0 kv\nf 1\nm\ns * keep\nf 2\nw kv\nw *\n";
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
        ("sleeps", sleeps.to_vec()),
        ("tag_of_columns", b"#\nw ,Action,Pointer,Size,Stream\n".to_vec()),
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
        ("private", "ipc:private,chunk:2MiB"),
        ("never_shared", "sharing:never,peers:none,host:64GiB"),
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
