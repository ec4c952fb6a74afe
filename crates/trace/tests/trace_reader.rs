//! Malformed input: the reader returns an error with the line, never panics, and never uses much memory.

use flate2::Compression;
use flate2::write::GzEncoder;
use gapless_trace::{Content, Limits, Op, ReadError, ReadErrorKind, Tags, TextReader, TextWriter, Trace, TraceOp};
use proptest::prelude::*;
use std::io::{self, Read, Write};
use std::path::Path;

fn read(text: &[u8]) -> Result<Trace, ReadError> {
    Trace::read("test", text)
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn errors_name_the_line_and_the_reason() {
    for (text, message) in [
        ("a 1 2 0\nx 1\n", "line 2: unknown op 'x'"),
        ("alloc 1 2 0\n", "line 1: unknown op 'alloc'"),
        ("a 1 2 0\na 1 2 0\n", "line 2: id 1 was allocated before"),
        ("a 1 2 0\nf 1\na 1 2 0\n", "line 3: id 1 was allocated before"),
        ("f 9\n", "line 1: free of id 9, which was never allocated"),
        ("a 9 2 0\n\nf 9\nf 9\n", "line 4: free of id 9, which was freed before"),
        ("a 1 2x 0\n", "line 1: the number of bytes '2x' is not a whole number"),
        ("a 1 -2 0\n", "line 1: the number of bytes '-2' is not a whole number"),
        ("a 1 18446744073709551616 0\n", "line 1: the number of bytes '18446744073709551616'"),
        ("a one 2 0\n", "line 1: the id 'one'"),
        ("a 1 2 default\n", "line 1: the stream 'default'"),
        ("a 1 2\n", "line 1: the stream is missing"),
        ("a\n", "line 1: the id is missing"),
        ("f\n", "line 1: the id is missing"),
        ("a 1 2 0 4\n", "line 1: '4' is one word too many"),
        ("a 1 2 0 kv 4\n", "line 1: '4' is one word too many"),
        ("a 1 2 0\nf 1 0\n", "line 2: '0' is one word too many"),
        ("s\n", "line 1: the tag is missing"),
        ("s * keep\ns kv\n", "line 2: the word keep or discard is missing"),
        ("s kv kept\n", "line 1: 'kept' is neither keep nor discard"),
        ("w 7\n", "line 1: '7' is not a tag: a word of at most 100 bytes"),
        ("a 1 18446744073709551615 0\na 2 1 0\n", "line 2: the live bytes exceed"),
        ("# capacity_bytes much\n", "line 1: the header 'capacity_bytes' has the value 'much'"),
        ("# satisfiable perhaps\n", "line 1: the header 'satisfiable' has the value 'perhaps', expected yes or no"),
    ] {
        for file in [text.as_bytes().to_vec(), gzip(text.as_bytes())] {
            let error = read(&file).unwrap_err().to_string();
            assert!(error.starts_with(message), "{text:?}: {error}");
        }
    }
}

#[test]
fn texts_of_the_file_are_cut_and_escaped_in_messages() {
    let error = read(format!("{}\u{1b}[31m\n", "y".repeat(39)).as_bytes()).unwrap_err().to_string();
    assert!(!error.contains('\u{1b}') && error.len() < 200, "{error}");
}

#[test]
fn bytes_that_are_not_text_are_refused() {
    assert!(matches!(read(b"a 1 2 0\n\xff\xfe\n").unwrap_err(), ReadError { line: 2, kind: ReadErrorKind::NotUtf8 }));
    assert!(matches!(read(b"m \xc3\x28\n").unwrap_err().kind, ReadErrorKind::NotUtf8));
}

#[test]
fn truncated_gzip_is_detected_at_every_length() {
    let text: String = (0..200).map(|id| format!("a {id} {} 0\n", id * 37 + 1)).collect();
    let whole = gzip(text.as_bytes());
    assert_eq!(read(&whole).unwrap().ops().len(), 200);
    for length in 2..whole.len() {
        let error = read(&whole[..length]).unwrap_err();
        assert!(matches!(error.kind, ReadErrorKind::TruncatedGzip), "{length} of {}: {error}", whole.len());
    }
}

#[test]
fn damaged_gzip_is_detected() {
    let mut file = gzip(b"a 1 2 0\nf 1\n");
    let checksum = file.len() - 6;
    file[checksum] ^= 0xff;
    assert!(matches!(read(&file).unwrap_err().kind, ReadErrorKind::CorruptGzip(_)));
}

#[test]
fn several_gzip_members_are_one_file() {
    let file = [gzip(b"a 1 2 0\n"), gzip(b"f 1\n")].concat();
    assert_eq!(read(&file).unwrap().ops().len(), 2);
}

#[test]
fn empty_files_are_traces_without_ops() {
    for file in [&b""[..], b"\n\n", b"# model none\n", &gzip(b"")] {
        assert!(read(file).unwrap().ops().is_empty());
    }
}

/// Repeats `pattern` up to a total of `left` bytes: a file of any size that uses no memory.
struct Repeated {
    pattern: &'static [u8],
    left: u64,
    at: usize,
}

impl Read for Repeated {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        for byte in &mut buffer[..most] {
            *byte = self.pattern[self.at];
            self.at = (self.at + 1) % self.pattern.len();
        }
        self.left -= most as u64;
        Ok(most)
    }
}

const ENDLESS: u64 = 1 << 50;

#[test]
fn an_endless_line_is_refused_early() {
    let file = Repeated { pattern: b"m", left: ENDLESS, at: 0 };
    assert!(matches!(Trace::read("t", file).unwrap_err().kind, ReadErrorKind::LineTooLong { .. }));
}

#[test]
fn endless_headers_and_labels_are_refused_early() {
    for pattern in [&b"# key value\n"[..], b"#\n", b"m some label\n", b"m\n"] {
        let file = Repeated { pattern, left: ENDLESS, at: 0 };
        let error = Trace::read("t", file).unwrap_err();
        assert!(matches!(error.kind, ReadErrorKind::TooMuchText { .. }), "{error}");
    }
}

#[test]
fn a_gzip_bomb_is_refused_early() {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    io::copy(&mut Repeated { pattern: b" ", left: 256 << 20, at: 0 }, &mut encoder).unwrap();
    let bomb = encoder.finish().unwrap();
    assert!(bomb.len() < 1 << 20);
    assert!(matches!(read(&bomb).unwrap_err(), ReadError { line: 1, kind: ReadErrorKind::LineTooLong { .. } }));
}

/// A file of two megabytes may hold billions of lines.
#[test]
fn lines_without_ops_are_limited() {
    let columns = "Thread,Time,Action,Pointer,Size,Stream\n";
    for (start, pattern) in [("a 1 2 0\n", "\n"), (columns, columns)] {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(start.as_bytes()).unwrap();
        io::copy(&mut Repeated { pattern: pattern.as_bytes(), left: 80 << 20, at: 0 }, &mut encoder).unwrap();
        let error = read(&encoder.finish().unwrap()).unwrap_err();
        assert!(matches!(error.kind, ReadErrorKind::TooMuchFiller { limit } if limit == 64 << 20), "{error}");
    }
    let limits = Limits { filler_bytes: 10, ..Limits::default() };
    let load = |text: &str| Trace::from_reader("t", TextReader::with_limits(text.as_bytes(), limits).unwrap());
    assert_eq!(load("# 3456 8\na 1 1 0\n").unwrap().ops().len(), 1);
    for filler in ["\n \n", " \r\n", "#x\n"] {
        let error = load(&format!("# 3456 8\na 1 1 0\n{filler}")).unwrap_err();
        assert!(matches!(error.kind, ReadErrorKind::TooMuchFiller { limit: 10 }), "{error}");
    }
}

#[test]
fn a_byte_order_mark_is_passed_over() {
    let log = "Thread,Time,Action,Pointer,Size,Stream\n1,00:00:00.0,allocate,0x100,256,0x0\n";
    for text in ["a 1 2 0\n", "# events 1\na 1 2 0\n", log] {
        let marked = format!("\u{feff}{text}");
        for file in [marked.as_bytes().to_vec(), gzip(marked.as_bytes())] {
            let (trace, plain) = (read(&file).unwrap(), read(text.as_bytes()).unwrap());
            assert_eq!((trace.ops(), trace.header()), (plain.ops(), plain.header()), "{text}");
        }
    }
    let error = read("a 1 2 0\n\u{feff}a 2 2 0\n".as_bytes()).unwrap_err();
    assert!(matches!(error, ReadError { line: 2, kind: ReadErrorKind::UnknownOp { .. } }), "{error}");
}

#[test]
fn the_limits_of_ops_and_streams_are_enforced() {
    let limits = Limits { ops: 3, streams: 2, ..Limits::default() };
    let load = |text: &str| Trace::from_reader("t", TextReader::with_limits(text.as_bytes(), limits).unwrap());
    assert_eq!(load("a 1 1 0\na 2 1 9\na 3 1 0\n").unwrap().ops().len(), 3);
    let error = load("a 1 1 0\na 2 1 9\nf 1\nf 2\n").unwrap_err();
    assert!(matches!(error, ReadError { line: 4, kind: ReadErrorKind::TooManyOps { limit: 3 } }), "{error}");
    let error = load("a 1 1 0\na 2 1 9\na 3 1 7\n").unwrap_err();
    assert!(matches!(error, ReadError { line: 3, kind: ReadErrorKind::TooManyStreams { limit: 2 } }), "{error}");
}

#[test]
fn missing_files_are_errors() {
    let error = Trace::open(Path::new("no/such.trace.gz")).unwrap_err().to_string();
    assert!(error.starts_with("cannot be read"), "{error}");
    assert!(Trace::open(Path::new(".")).is_err());
}

#[test]
fn the_traces_of_this_repository_agree_with_their_headers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../traces");
    let mut count = 0;
    for folder in [folder.clone(), folder.join("oom")] {
        for file in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if file.extension().is_some_and(|extension| extension == "gz") {
                let trace = Trace::open(&file).unwrap();
                assert_eq!(trace.warning(), None, "{}", file.display());
                assert!(trace.header().peak_live_bytes.is_some() && trace.header().events.is_some());
                count += 1;
            }
        }
    }
    assert_eq!(count, 13);
}

/// Lines that are almost valid, so that they reach the checks after the parser.
fn line() -> impl Strategy<Value = String> {
    prop_oneof![
        (0_u64..6, any::<u32>(), 0_u64..3).prop_map(|(id, bytes, stream)| format!("a {id} {bytes} {stream}")),
        (0_u64..6, any::<u32>(), "[ab]").prop_map(|(id, bytes, tag)| format!("a {id} {bytes} 0 {tag}")),
        (0_u64..6).prop_map(|id| format!("f {id}")),
        "s [ab*] (keep|discard)",
        "w [ab*]",
        "m [a-z ]{0,8}",
        "# ?(capacity_bytes|satisfiable|events|x) ?(yes|[0-9]{0,21})",
        "[afmsw#x] ?[0-9]{0,21} ?[0-9a-z-]{0,4}",
    ]
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let _ = read(&bytes);
        let _ = read(&gzip(&bytes));
        let _ = read(&[&[0x1f, 0x8b][..], &bytes].concat());
    }

    #[test]
    fn damaged_gzip_never_panics(lines in proptest::collection::vec(line(), 0..40), at in any::<usize>(), bit in 0_u8..8) {
        let mut file = gzip(lines.join("\n").as_bytes());
        let at = at % file.len();
        file[at] ^= 1_u8 << bit;
        let _ = read(&file);
    }

    #[test]
    fn traces_that_can_be_read_are_consistent(lines in proptest::collection::vec(line(), 0..40)) {
        if let Ok(trace) = read(lines.join("\n").as_bytes()) {
            let mut live = vec![None; trace.slots() as usize];
            let mut peak = 0;
            for op in trace.ops() {
                match *op {
                    Op::Alloc { slot, stream, tag, bytes } => {
                        prop_assert!(usize::from(tag) <= trace.tags().len());
                        prop_assert!(usize::from(stream) < trace.streams().len());
                        prop_assert_eq!(live[slot as usize].replace(bytes), None);
                    }
                    Op::Free { slot } => prop_assert!(live[slot as usize].take().is_some()),
                    Op::Refused { stream, .. } => prop_assert!(usize::from(stream) < trace.streams().len()),
                    Op::Sleep { tags: Tags::One(tag), .. } | Op::Wake { tags: Tags::One(tag) } => {
                        prop_assert!((1..=trace.tags().len()).contains(&usize::from(tag)));
                    }
                    Op::Sleep { .. } | Op::Wake { .. } => {}
                    Op::Mark { label } => prop_assert!((label as usize) < trace.labels().len()),
                }
                peak = peak.max(live.iter().flatten().sum());
            }
            prop_assert_eq!(peak, trace.peak_live_bytes());
            prop_assert!(trace.peak_awake_bytes() <= peak);
        }
    }

    #[test]
    fn written_traces_read_back(ids in proptest::collection::hash_set(any::<u64>(), 0..50), label in "[ -~]{0,20}") {
        let tag_of = |id: u64| [None, Some("weights".into()), Some("kv\u{e9}".into())][(id % 3) as usize].clone();
        let mut ops: Vec<TraceOp> =
            ids.iter().map(|&id| TraceOp::Alloc { id, bytes: id >> 8, stream: id % 3, tag: tag_of(id) }).collect();
        for tag in (0..3).map(tag_of) {
            ops.push(TraceOp::Sleep { tag: tag.clone(), content: if tag.is_some() { Content::Keep } else { Content::Discard } });
            ops.push(TraceOp::Wake { tag });
        }
        ops.push(TraceOp::Mark(label.trim().to_owned()));
        ops.extend(ids.iter().map(|&id| TraceOp::Free { id }));
        let mut writer = TextWriter::new(Vec::new(), gapless_trace::Compression::Gzip);
        for op in &ops {
            writer.op(op).unwrap();
        }
        let file = writer.finish().unwrap();
        let back: Vec<TraceOp> = TextReader::new(&file[..]).unwrap().map(Result::unwrap).collect();
        prop_assert_eq!(back, ops);
        prop_assert!(read(&file).is_ok());
    }
}
