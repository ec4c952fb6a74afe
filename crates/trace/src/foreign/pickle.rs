//! Reader of Python pickles that consist of plain data: numbers, texts, lists, tuples, dictionaries.
//!
//! - I1  no code in a file is run: opcodes that create objects (GLOBAL, REDUCE, BUILD and others) are errors.
//! - I2  memory is bounded by a constant for every file: each value counts towards [`MOST_BYTES`]. It is also bounded by a
//!   multiple of the file's size after decompression: most memo entries up to the last are written.
//! - I3  no input causes a panic or recursion: values are in one array and refer to each other by number, so sharing
//!   and even cycles are harmless.
//! - I4  a lookup in a dictionary takes bounded time, however large and however often shared the dictionary is: only
//!   entries with the caller's keys are kept.
//!
//! Protocols 0 to 5, without the text opcodes of protocol 0 and without out-of-band buffers. Opcodes are documented in
//! Python's `pickletools`.

use super::super::error::{ReadErrorKind, excerpt};
use super::super::text::reading_failed;
use std::io::{self, Read};

/// The first opcode of every pickle since protocol 2.
pub const PROTO: u8 = 0x80;

/// The number of a value.
pub type Ref = u32;

/// A value of a pickle.
#[derive(Debug)]
pub enum Value {
    /// Python's `None`.
    None,
    /// Python's `True` or `False`.
    Bool(bool),
    /// An `int` that fits.
    Int(i128),
    /// A `float`, or an `int` that does not fit.
    Float(f64),
    /// A `str`.
    Text(Box<str>),
    /// A `bytes` object. Its content is not needed.
    Bytes,
    /// A list or a tuple.
    List(Vec<Ref>),
    /// A dictionary: the values of known keys, each with the index of its key.
    Dict(Vec<(u8, Ref)>),
}

/// All values of a pickle.
#[derive(Debug)]
pub struct Values {
    all: Vec<Value>,
    keys: &'static [&'static str],
}

impl Values {
    /// Returns the value with a number.
    pub fn get(&self, at: Ref) -> &Value {
        &self.all[at as usize]
    }

    /// Returns the value of a key in a dictionary. If the key occurs twice, its last value counts, as in Python.
    pub fn field(&self, dict: Ref, key: &str) -> Option<&Value> {
        self.field_ref(dict, key).map(|at| self.get(at))
    }

    /// Like [`field`](Self::field), but returns the value's number.
    pub fn field_ref(&self, dict: Ref, key: &str) -> Option<Ref> {
        let Value::Dict(entries) = self.get(dict) else { return None };
        let key = self.key(key);
        debug_assert!(key.is_some(), "the key is one of those given to `read`");
        entries.iter().find(|(of, _)| Some(*of) == key).map(|(_, value)| *value)
    }

    fn key(&self, text: &str) -> Option<u8> {
        (0..).zip(self.keys).find(|(_, key)| **key == text).map(|(number, _)| number)
    }

    /// Sets the value of a key as Python does: a later value replaces an earlier one.
    fn set(&mut self, dict: Ref, key: Ref, value: Ref) {
        let Value::Text(text) = self.get(key) else { return };
        let Some(key) = self.key(text) else { return };
        let Value::Dict(entries) = &mut self.all[dict as usize] else { return };
        match entries.iter_mut().find(|(of, _)| *of == key) {
            Some((_, old)) => *old = value,
            None => entries.push((key, value)),
        }
    }

    /// Returns the value of a key if it is a list.
    pub fn list(&self, dict: Ref, key: &str) -> Option<&[Ref]> {
        match self.field(dict, key)? {
            Value::List(items) => Some(items),
            _ => None,
        }
    }

    /// Returns the value of a key if it is a whole number that fits in 64 bits.
    pub fn number(&self, dict: Ref, key: &str) -> Option<u64> {
        match self.field(dict, key)? {
            Value::Int(number) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    /// Returns the value of a key if it is a text.
    pub fn text(&self, dict: Ref, key: &str) -> Option<&str> {
        match self.field(dict, key)? {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// Reads one pickle, and nothing after it. Returns all values, and the number of the pickle's own value. Dictionaries
/// keep only the entries with one of `keys`.
pub fn read(source: impl Read, gzip: bool, keys: &'static [&'static str]) -> Result<(Values, Ref), ReadErrorKind> {
    Machine {
        source,
        gzip,
        offset: 0,
        values: Values { all: Vec::new(), keys },
        bytes: 0,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Vec::new(),
        memo_len: 0,
    }
    .run()
}

struct Machine<R> {
    source: R,
    gzip: bool,
    offset: u64,
    values: Values,
    /// Memory that the values use, in bytes.
    bytes: usize,
    stack: Vec<Ref>,
    marks: Vec<usize>,
    memo: Vec<Option<Ref>>,
    /// Number of memo entries that were written.
    memo_len: usize,
}

impl<R: Read> Machine<R> {
    fn run(mut self) -> Result<(Values, Ref), ReadErrorKind> {
        loop {
            let [opcode] = self.array()?;
            match opcode {
                PROTO => {
                    let [version] = self.array()?;
                    if version > NEWEST_PROTOCOL {
                        return Err(self.bad(format!("protocol {version}: write the snapshot with protocol 4")));
                    }
                }
                // FRAME: only announces the length of the data that follows.
                0x95 => drop(self.array::<8>()?),
                b'.' => {
                    let value = self.pop()?;
                    return Ok((self.values, value));
                }
                b'(' => {
                    self.charge(size_of::<usize>())?;
                    self.marks.push(self.stack.len());
                }
                b'0' => drop(self.pop()?),
                b'1' => drop(self.since_mark()?),
                b'2' => {
                    let top = self.top()?;
                    self.push_ref(top)?;
                }
                b'N' => self.push(Value::None)?,
                0x88 => self.push(Value::Bool(true))?,
                0x89 => self.push(Value::Bool(false))?,
                b'J' => {
                    let number = i32::from_le_bytes(self.array()?);
                    self.push(Value::Int(number.into()))?;
                }
                b'K' => {
                    let [number] = self.array()?;
                    self.push(Value::Int(number.into()))?;
                }
                b'M' => {
                    let number = u16::from_le_bytes(self.array()?);
                    self.push(Value::Int(number.into()))?;
                }
                0x8a => {
                    let [length] = self.array()?;
                    self.long(usize::from(length))?;
                }
                0x8b => {
                    let length = u32::from_le_bytes(self.array()?) as usize;
                    self.long(length)?;
                }
                b'G' => {
                    let number = f64::from_be_bytes(self.array()?);
                    self.push(Value::Float(number))?;
                }
                // Texts, including Python 2 strings, by the width of their length.
                0x8c | b'U' => {
                    let [length] = self.array()?;
                    self.text(length.into())?;
                }
                b'X' | b'T' => {
                    let length = u32::from_le_bytes(self.array()?);
                    self.text(length.into())?;
                }
                0x8d => {
                    let length = u64::from_le_bytes(self.array()?);
                    self.text(length)?;
                }
                b'C' => {
                    let [length] = self.array()?;
                    self.skip(length.into())?;
                }
                b'B' => {
                    let length = u32::from_le_bytes(self.array()?);
                    self.skip(length.into())?;
                }
                0x8e | 0x96 => {
                    let length = u64::from_le_bytes(self.array()?);
                    self.skip(length)?;
                }
                b']' | b')' => self.push(Value::List(Vec::new()))?,
                b'}' => self.push(Value::Dict(Vec::new()))?,
                b'l' | b't' => {
                    let items = self.since_mark()?;
                    self.push_list(items)?;
                }
                0x85..=0x87 => {
                    let length = usize::from(opcode - 0x84);
                    let from = self.stack.len().checked_sub(length).filter(|from| *from >= self.floor());
                    let items = self.stack.split_off(from.ok_or_else(|| self.empty())?);
                    self.push_list(items)?;
                }
                b'd' => {
                    let items = self.since_mark()?;
                    self.push(Value::Dict(Vec::new()))?;
                    self.set_items(&items)?;
                }
                b'a' => {
                    let item = self.pop()?;
                    self.append(&[item])?;
                }
                b'e' => {
                    let items = self.since_mark()?;
                    self.append(&items)?;
                }
                b's' => {
                    let value = self.pop()?;
                    let key = self.pop()?;
                    self.set_items(&[key, value])?;
                }
                b'u' => {
                    let items = self.since_mark()?;
                    self.set_items(&items)?;
                }
                b'q' => {
                    let [index] = self.array()?;
                    self.put(index.into())?;
                }
                b'r' => {
                    let index = u32::from_le_bytes(self.array()?);
                    self.put(index as usize)?;
                }
                0x94 => self.put(self.memo.len())?,
                b'h' => {
                    let [index] = self.array()?;
                    self.fetch(index.into())?;
                }
                b'j' => {
                    let index = u32::from_le_bytes(self.array()?);
                    self.fetch(index as usize)?;
                }
                b'c' | 0x93 | b'R' | b'b' | b'o' | b'i' | 0x81 | 0x92 | b'P' | b'Q' | 0x82..=0x84 => {
                    return Err(self.bad(
                        "it holds an object, which only running its code could create; a memory snapshot holds only \
                         plain data"
                            .into(),
                    ));
                }
                _ => return Err(self.bad(format!("opcode {opcode:#04x} is not one of plain data in protocols 2 to 4"))),
            }
        }
    }

    fn bad(&self, reason: String) -> ReadErrorKind {
        ReadErrorKind::BadPickle { offset: self.offset, reason }
    }

    fn empty(&self) -> ReadErrorKind {
        self.bad("it uses more values than there are: the file is damaged".into())
    }

    fn failed(&self, error: io::Error) -> ReadErrorKind {
        if error.kind() == io::ErrorKind::UnexpectedEof && !self.gzip {
            return self.bad("the pickle ends too early: the file was cut short".into());
        }
        reading_failed(error, self.gzip)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ReadErrorKind> {
        let mut bytes = [0; N];
        self.source.read_exact(&mut bytes).map_err(|error| self.failed(error))?;
        self.offset += N as u64;
        Ok(bytes)
    }

    /// Counts memory before it is used.
    fn charge(&mut self, bytes: usize) -> Result<(), ReadErrorKind> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > MOST_BYTES {
            return Err(self.bad(format!("the values take more than {} MiB of memory", MOST_BYTES >> 20)));
        }
        Ok(())
    }

    fn push(&mut self, value: Value) -> Result<(), ReadErrorKind> {
        self.charge(size_of::<Value>())?;
        // Fewer than 2^32, since each counts towards the limit of memory.
        let at = u32::try_from(self.values.all.len()).map_err(|_| self.bad("too many values".into()))?;
        self.values.all.push(value);
        self.push_ref(at)
    }

    fn push_ref(&mut self, at: Ref) -> Result<(), ReadErrorKind> {
        self.charge(size_of::<Ref>())?;
        self.stack.push(at);
        Ok(())
    }

    fn push_list(&mut self, items: Vec<Ref>) -> Result<(), ReadErrorKind> {
        self.charge(items.len() * size_of::<Ref>())?;
        self.push(Value::List(items))
    }

    /// Returns the height of the stack at the last mark. Values below it cannot be used until the mark is removed.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn top(&self) -> Result<Ref, ReadErrorKind> {
        self.stack.last().filter(|_| self.stack.len() > self.floor()).copied().ok_or_else(|| self.empty())
    }

    fn pop(&mut self) -> Result<Ref, ReadErrorKind> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn since_mark(&mut self) -> Result<Vec<Ref>, ReadErrorKind> {
        let mark = self.marks.pop().ok_or_else(|| self.empty())?;
        Ok(self.stack.split_off(mark))
    }

    fn append(&mut self, items: &[Ref]) -> Result<(), ReadErrorKind> {
        self.charge(2 * size_of_val(items))?;
        let list = self.top()? as usize;
        match &mut self.values.all[list] {
            Value::List(list) => {
                list.extend_from_slice(items);
                Ok(())
            }
            _ => Err(self.bad("it appends to something that is not a list: the file is damaged".into())),
        }
    }

    fn set_items(&mut self, items: &[Ref]) -> Result<(), ReadErrorKind> {
        self.charge(2 * size_of_val(items))?;
        let dict = self.top()?;
        if !matches!(self.values.get(dict), Value::Dict(_)) || !items.len().is_multiple_of(2) {
            return Err(self.bad("it sets items of something that is not a dictionary: the file is damaged".into()));
        }
        for pair in items.chunks_exact(2) {
            self.values.set(dict, pair[0], pair[1]);
        }
        Ok(())
    }

    fn put(&mut self, index: usize) -> Result<(), ReadErrorKind> {
        let top = self.top()?;
        if index >= self.memo.len() {
            // Python numbers memo entries consecutively: no file that it writes has such gaps.
            if index > 2 * self.memo_len + MOST_GAP {
                return Err(self.bad(format!("memo entry {index} is far from the others: the file is damaged")));
            }
            self.charge((index + 1 - self.memo.len()) * size_of::<Option<Ref>>())?;
            self.memo.resize(index + 1, None);
        }
        if self.memo[index].replace(top).is_none() {
            self.memo_len += 1;
        }
        Ok(())
    }

    fn fetch(&mut self, index: usize) -> Result<(), ReadErrorKind> {
        match self.memo.get(index).copied().flatten() {
            Some(value) => self.push_ref(value),
            None => Err(self.bad(format!("memo entry {index} was never written: the file is damaged"))),
        }
    }

    /// Reads a little-endian number in two's complement. If it does not fit, its value does not matter here, and it
    /// becomes a float.
    fn long(&mut self, length: usize) -> Result<(), ReadErrorKind> {
        if length > 16 {
            return Err(self.bad(format!("a number of {length} bytes")));
        }
        let mut bytes = [0; 16];
        self.source.read_exact(&mut bytes[..length]).map_err(|error| self.failed(error))?;
        self.offset += length as u64;
        if length > 0 && bytes[length - 1] & 0x80 != 0 {
            bytes[length..].fill(0xff);
        }
        self.push(Value::Int(i128::from_le_bytes(bytes)))
    }

    /// Reads a text in pieces, so that a wrong length uses no memory.
    fn text(&mut self, length: u64) -> Result<(), ReadErrorKind> {
        let bytes = usize::try_from(length).unwrap_or(usize::MAX);
        self.charge(bytes)?;
        let mut text = Vec::new();
        let read = self.source.by_ref().take(length).read_to_end(&mut text).map_err(|error| self.failed(error))?;
        if read < bytes {
            return Err(self.failed(io::ErrorKind::UnexpectedEof.into()));
        }
        self.offset += length;
        // Python writes lone surrogates, which are not valid UTF-8: they are replaced instead of refused.
        let text = String::from_utf8_lossy(&text).into_owned();
        self.push(Value::Text(text.into_boxed_str()))
    }

    fn skip(&mut self, length: u64) -> Result<(), ReadErrorKind> {
        let skipped = io::copy(&mut self.source.by_ref().take(length), &mut io::sink());
        if skipped.map_err(|error| self.failed(error))? < length {
            return Err(self.failed(io::ErrorKind::UnexpectedEof.into()));
        }
        self.offset += length;
        self.push(Value::Bytes)
    }
}

/// Describes a value for messages.
pub fn describe(value: &Value) -> String {
    match value {
        Value::None => "None".into(),
        Value::Bool(value) => value.to_string(),
        Value::Int(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Text(text) => format!("'{}'", excerpt(text)),
        Value::Bytes => "bytes".into(),
        Value::List(items) => format!("a list of {}", items.len()),
        Value::Dict(_) => "a dictionary".into(),
    }
}

/// Maximum memory for the values of a file, in bytes.
const MOST_BYTES: usize = 1 << 30;
/// How much larger the number of a memo entry may be than twice the number of entries.
const MOST_GAP: usize = 1 << 10;
const NEWEST_PROTOCOL: u8 = 5;

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: &[&str] = &["n", "m"];

    fn fails(bytes: &[u8]) -> String {
        read(bytes, false, KEYS).unwrap_err().to_string()
    }

    #[test]
    fn shared_values_stay_shared() {
        // d = {"n": 1}; [d, d] in protocol 4, as Python 3.11 writes it.
        let bytes = b"\x80\x04\x95\x0f\0\0\0\0\0\0\0]\x94(}\x94\x8c\x01n\x94K\x01sh\x01e.";
        let (values, top) = read(&bytes[..], false, KEYS).unwrap();
        let Value::List(items) = values.get(top) else { panic!() };
        assert_eq!(items.len(), 2);
        assert_eq!(items[0], items[1]);
        assert_eq!(values.number(items[0], "n"), Some(1));
        assert_eq!(values.number(items[0], "m"), None);
    }

    #[test]
    fn the_last_value_of_a_key_counts_and_others_are_not_kept() {
        // {"n": 1, "x": 2, 3: 4, "n": 5}
        let bytes = b"\x80\x04}(\x8c\x01nK\x01\x8c\x01xK\x02K\x03K\x04\x8c\x01nK\x05u.";
        let (values, top) = read(&bytes[..], false, KEYS).unwrap();
        assert!(matches!(values.get(top), Value::Dict(entries) if entries.len() == 1));
        assert_eq!((values.number(top, "n"), values.number(top, "m")), (Some(5), None));
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
            (b"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\0", i128::from(u64::MAX)),
        ] {
            let pickle = [&b"\x80\x02"[..], bytes, b"."].concat();
            let (values, top) = read(&pickle[..], false, KEYS).unwrap();
            assert!(matches!(values.get(top), Value::Int(number) if *number == expected), "{bytes:?}");
        }
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
        let Err(error) = read(marks, false, KEYS) else { panic!("an endless pickle was read") };
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
        read(&with_gaps_of(1)[..], false, KEYS).unwrap();
        for gap in [10, 1_000, 60_000] {
            assert!(fails(&with_gaps_of(gap)).contains("far from the others"), "a gap of {gap}");
        }
    }

    #[test]
    fn a_list_may_contain_itself() {
        let (values, top) = read(&b"\x80\x02]q\0h\0a."[..], false, KEYS).unwrap();
        assert!(matches!(values.get(top), Value::List(items) if items[..] == [top]));
    }

    #[test]
    fn values_may_be_deeply_nested() {
        let mut bytes = b"\x80\x02".to_vec();
        bytes.extend(std::iter::repeat_n(b']', 1_000_000));
        bytes.extend(std::iter::repeat_n(b'a', 999_999));
        bytes.push(b'.');
        drop(read(&bytes[..], false, KEYS).unwrap());
    }
}
