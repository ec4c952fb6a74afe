use super::*;

const KEYS: Keys = &["n", "m"];
const N: Key = Key::of(KEYS, "n");
const M: Key = Key::of(KEYS, "m");
const KEPT: Kept = Kept { keys: KEYS, shortened: None };

fn fails(bytes: &[u8]) -> String {
    match read(bytes, false, KEPT) {
        Ok(_) => panic!("{bytes:?} was read"),
        Err(error) => error.to_string(),
    }
}

/// Reads a pickle of a list and returns its items.
fn items(bytes: &[u8], kept: Kept) -> (Values, Vec<Ref>) {
    let (values, top) = read(bytes, false, kept).unwrap();
    let Value::List(list) = values.get(top) else { panic!("{}", values.describe(top)) };
    let items = values.items(list).to_vec();
    (values, items)
}

#[test]
fn shared_values_stay_shared() {
    // d = {"n": 1}; [d, d] in protocol 4, as Python 3.11 writes it.
    let bytes = b"\x80\x04\x95\x0f\0\0\0\0\0\0\0]\x94(}\x94\x8c\x01n\x94K\x01sh\x01e.";
    let (values, items) = items(bytes, KEPT);
    assert_eq!(items.len(), 2);
    assert_eq!(items[0], items[1]);
    assert_eq!(values.number(items[0], N), Some(1));
    assert_eq!(values.number(items[0], M), None);
}

#[test]
fn the_last_value_of_a_key_counts_and_others_are_not_kept() {
    // {"n": 1, "x": 2, 3: 4, "n": 5}
    let bytes = b"\x80\x04}(\x8c\x01nK\x01\x8c\x01xK\x02K\x03K\x04\x8c\x01nK\x05u.";
    let (values, top) = read(&bytes[..], false, KEPT).unwrap();
    assert_eq!((values.number(top, N), values.number(top, M)), (Some(5), None));
    let Value::Dict(fields) = values.get(top) else { panic!() };
    assert_eq!(fields.len(), 1);
}

#[test]
fn numbers_of_every_width() {
    for (bytes, expected) in [
        (&b"K\xff"[..], 255),
        (b"M\x01\x02", 513),
        (b"J\xff\xff\xff\xff", -1),
        (b"\x8a\x00", 0),
        (b"\x8a\x01\xff", -1),
        (b"\x8a\x06\0\0\0\0\0\x7f", 0x7f00_0000_0000),
    ] {
        let pickle = [&b"\x80\x02"[..], bytes, b"."].concat();
        let (values, top) = read(&pickle[..], false, KEPT).unwrap();
        assert!(matches!(values.get(top), Value::Int(number) if number == expected), "{bytes:?}");
    }
    let (values, top) = read(&b"\x80\x02\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\0."[..], false, KEPT).unwrap();
    assert!(matches!(values.get(top), Value::Large(u64::MAX)));
}

#[test]
fn nothing_is_run() {
    for bytes in [&b"\x80\x02cos\nsystem\nX\x02\0\0\0idq\0\x85R."[..], b"\x80\x04\x8c\x02os\x8c\x06system\x93."] {
        assert!(fails(bytes).contains("holds an object"), "{}", fails(bytes));
    }
}

#[test]
fn damaged_files_are_errors() {
    for (bytes, hint) in [
        (&b"\x80\x04]\x94(K\x01"[..], "cut short"),
        (b"\x80\x09.", "protocol 9"),
        (b"\x80\x04.", "more values than there are"),
        (b"\x80\x04a.", "more values than there are"),
        (b"\x80\x04(K\x01e.", "more values than there are"),
        (b"\x80\x04\x85.", "more values than there are"),
        (b"\x80\x04NN(N\x87t.", "more values than there are"),
        (b"\x80\x04K\x01(K\x01e.", "not a list"),
        (b"\x80\x04}(K\x01u.", "not a dictionary"),
        (b"\x80\x04h\x05.", "memo entry 5"),
        (b"\x80\x04Nr\xff\xff\xff\xff.", "far from the others"),
        (b"\x80\x04X\xff\xff\xff\xff", "more than 1024 MiB"),
        (b"\x80\x04X\xff\xff\xff\x0fab", "cut short"),
        (b"\x80\x04\x8b\xff\xff\xff\x7f", "a number of"),
        (b"\x80\x04B\xff\xff\xff\xffabc", "cut short"),
        (b"\x80\x04\x01.", "opcode 0x01"),
    ] {
        assert!(fails(bytes).contains(hint), "{bytes:?}: {}", fails(bytes));
    }
}

/// Marks use memory too, and a file of nothing but marks compresses to a thousandth of its size.
#[test]
fn marks_count_towards_the_memory_limit() {
    let marks = b"\x80\x02".chain(io::repeat(b'('));
    let Err(error) = read(marks, false, KEPT) else { panic!("an endless pickle was read") };
    assert!(error.to_string().contains("more than 1024 MiB"), "{error}");
}

/// A few bytes for an entry would otherwise take as much memory as all numbers below it.
#[test]
fn memo_entries_with_gaps_are_refused() {
    let with_gaps_of = |gap: u32| {
        let mut bytes = b"\x80\x02N".to_vec();
        for entry in 1..=2_000 {
            bytes.push(b'r');
            bytes.extend((entry * gap).to_le_bytes());
        }
        bytes.push(b'.');
        bytes
    };
    read(&with_gaps_of(1)[..], false, KEPT).unwrap();
    for gap in [10, 1_000, 60_000] {
        assert!(fails(&with_gaps_of(gap)).contains("far from the others"), "a gap of {gap}");
    }
}

#[test]
fn a_list_may_contain_itself() {
    let (values, top) = read(&b"\x80\x02]q\0h\0a."[..], false, KEPT).unwrap();
    assert!(matches!(values.get(top), Value::List(list) if values.items(list) == [top]));
}

#[test]
fn values_may_be_deeply_nested() {
    let mut bytes = b"\x80\x02".to_vec();
    bytes.extend(std::iter::repeat_n(b']', 1_000_000));
    bytes.extend(std::iter::repeat_n(b'a', 999_999));
    bytes.push(b'.');
    drop(read(&bytes[..], false, KEPT).unwrap());
}

/// Fields are stored beside each other: those of one dictionary have to make room when another was filled meanwhile.
#[test]
fn dictionaries_may_be_filled_in_turn() {
    // a = {}; b = {}; a["m"] = 1; b["m"] = 2; a["n"] = 3; b["n"] = 4; a["m"] = 5; [a, b]
    let bytes =
        b"\x80\x02}q\0}q\x01(h\0X\x01\0\0\0mq\x02K\x01s0h\x01h\x02K\x02s0h\0X\x01\0\0\0nq\x03K\x03s0h\x01h\x03K\x04s0\
                  h\0h\x02K\x05s01h\0h\x01\x86.";
    let (values, items) = items(bytes, KEPT);
    let fields = |dict| (values.number(dict, M), values.number(dict, N));
    assert_eq!((fields(items[0]), fields(items[1])), ((Some(5), Some(3)), (Some(2), Some(4))));
}

/// The larger of two numbers, as the item to keep.
const LARGEST: Kept = Kept {
    keys: KEYS,
    shortened: Some((N, |values, items| {
        let number = |at: &Ref| if let Value::Int(number) = values.get(*at) { number } else { 0 };
        items.iter().max_by_key(|at| number(at)).copied()
    })),
};

#[test]
fn one_item_of_a_list_is_kept() {
    // [{"n": l, "m": [1]}, {"n": l}] with l = [3, 7]
    let bytes = b"\x80\x02](}(X\x01\0\0\0nq\0](K\x03K\x07eq\x01X\x01\0\0\0m]K\x01au}h\0h\x01se.";
    let (values, items) = items(bytes, LARGEST);
    for dict in &items {
        let kept = values.shortened(*dict, N).unwrap();
        assert!(matches!(values.get(kept.item), Value::Int(7)));
        assert_eq!(values.list(*dict, N), None);
        let numbers: Vec<Value> = values.whole(kept.whole.unwrap()).iter().map(|at| values.get(*at)).collect();
        assert!(matches!(numbers[..], [Value::Int(3), Value::Int(7)]), "{numbers:?}");
    }
    assert_eq!(values.list(items[0], M).map(<[Ref]>::len), Some(1));
}

#[test]
fn lists_that_are_equal_are_kept_once() {
    let event = [&b"}X\x01\0\0\0n]("[..], &b"h\0".repeat(1_000), b"es0"].concat();
    let bytes = [&b"\x80\x02K\x01q\x000"[..], &event.repeat(100), b"N."].concat();
    let kept = |kept| read(&bytes[..], false, kept).unwrap().0.bytes();
    assert!(kept(KEPT) > 100 * 1_000 * size_of::<Ref>());
    assert!(kept(LARGEST) < 100 * 100 + 1_100 * size_of::<Ref>());
}

/// A list of one value, `count` times, which are fetched from the memo; longer than what is read without a thread.
fn fetches(count: usize) -> Vec<u8> {
    let mut bytes = b"\x80\x04](K\x07r\x2c\x01\0\0".to_vec();
    bytes.extend(b"j\x2c\x01\0\0".repeat(count));
    bytes
}

#[test]
fn memo_entries_are_fetched_in_runs() {
    let bytes = [&fetches(700_000)[..], b"h\x01e."].concat();
    // The last one is none that was written.
    let problem = "memo entry 1 was never written: the file is damaged";
    assert!(fails(&bytes).ends_with(problem), "{}", fails(&bytes));
    // The last one has the number of a memo entry, and fetches none.
    for (end, more) in
        [(&b"e."[..], &[][..]), (b"K\x07j\x2c\x01\0\0e.", &[7, 7]), (b"J\x2c\x01\0\0j\x2c\x01\0\0e.", &[300, 7])]
    {
        let bytes = [&fetches(700_000)[..], end].concat();
        let (values, items) = items(&bytes, KEPT);
        let numbers = items.iter().map(|item| match values.get(*item) {
            Value::Int(number) => number,
            _ => panic!("{}", values.describe(*item)),
        });
        assert!(numbers.eq(std::iter::repeat_n(7, 700_001).chain(more.iter().copied())));
        for cut in 1..end.len() {
            assert!(fails(&bytes[..bytes.len() - cut]).ends_with("the pickle ends too early: the file was cut short"));
        }
    }
    let bytes = [&fetches(10)[..], b"j\x2d\x01\0\0e."].concat();
    let found = fails(&bytes);
    let problem = "memo entry 301 was never written: the file is damaged";
    assert!(found.ends_with(problem) && found.contains(&format!("{}", bytes.len() - 2)), "{found}");
}

/// What comes after the pickle is not read, so that a source may stay open.
#[test]
fn a_short_source_is_read_no_further_than_its_pickle() {
    struct Open<'a>(&'a [u8]);

    impl Read for Open<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            assert!(!self.0.is_empty(), "it would wait");
            self.0.read(buffer)
        }
    }

    assert!(read(Open(&[&fetches(1_000)[..], b"e."].concat()), false, KEPT).is_ok());
}
