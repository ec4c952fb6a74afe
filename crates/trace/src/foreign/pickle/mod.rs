//! Reader of Python pickles that consist of plain data: numbers, texts, lists, tuples, dictionaries.
//!
//! - I1  no code in a file is run: opcodes that create objects (GLOBAL, REDUCE, BUILD and others) are errors.
//! - I2  memory is bounded by a constant for every file: each value counts towards [`MOST_BYTES`] as long as it is kept. It is
//!   also bounded by a multiple of the file's size after decompression: most memo entries up to the last are written.
//! - I3  no input causes a panic or recursion: values are in one array and refer to each other by number, so sharing
//!   and even cycles are harmless.
//! - I4  a lookup in a dictionary takes bounded time, however large and however often shared the dictionary is: only
//!   entries with the caller's keys are kept.
//!
//! Protocols 0 to 5, without the text opcodes of protocol 0 and without out-of-band buffers. Opcodes are documented in
//! Python's `pickletools`.

mod ahead;
mod input;
mod numbers;
mod values;

#[cfg(test)]
mod tests;

use super::super::error::ReadErrorKind;
use super::super::text::reading_failed;
use input::Input;
use numbers::Numbers;
use std::io::{self, Read};
use values::NONE;
pub use values::{Kept, Key, Keys, Ref, Shortened, Value, Values};

/// The first opcode of every pickle since protocol 2.
pub const PROTO: u8 = 0x80;

/// Reads one pickle, and nothing after it. Returns all values, and the number of the pickle's own value. Dictionaries
/// and lists keep only what `kept` says. A large source is read ahead on another thread.
pub fn read(source: impl Read + Send, gzip: bool, kept: Kept) -> Result<(Values, Ref), ReadErrorKind> {
    std::thread::scope(|scope| {
        let machine = Machine {
            input: Input::new(source, scope),
            gzip,
            values: Values::new(kept),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Vec::new(),
            memo_len: 0,
            numbers: Numbers::default(),
        };
        machine.run()
    })
}

struct Machine<'scope, 'env, R> {
    input: Input<'scope, 'env, R>,
    gzip: bool,
    values: Values,
    stack: Vec<Ref>,
    marks: Vec<usize>,
    /// The memo's entries; [`NONE`] where none was written.
    memo: Vec<Ref>,
    /// Number of memo entries that were written.
    memo_len: usize,
    numbers: Numbers,
}

impl<'scope, R: Read + Send + 'scope> Machine<'scope, '_, R> {
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
                    self.reserve(size_of::<usize>())?;
                    self.marks.push(self.stack.len());
                }
                b'0' => drop(self.pop()?),
                b'1' => {
                    let mark = self.mark()?;
                    self.stack.truncate(mark);
                }
                b'2' => {
                    let top = self.top()?;
                    self.push_ref(top)?;
                }
                b'N' => self.push(Value::None)?,
                0x88 => self.push(Value::Bool(true))?,
                0x89 => self.push(Value::Bool(false))?,
                b'J' => {
                    let number = i32::from_le_bytes(self.array()?);
                    self.number(number.into())?;
                }
                b'K' => {
                    let [number] = self.array()?;
                    self.number(number.into())?;
                }
                b'M' => {
                    let number = u16::from_le_bytes(self.array()?);
                    self.number(number.into())?;
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
                b']' | b')' => self.push_list(self.stack.len())?,
                b'}' => self.push_dict()?,
                b'l' | b't' => {
                    let mark = self.mark()?;
                    self.push_list(mark)?;
                }
                0x85..=0x87 => {
                    let from = self.last(usize::from(opcode - 0x84))?;
                    self.push_list(from)?;
                }
                b'd' => {
                    let mark = self.mark()?;
                    let items = self.stack.split_off(mark);
                    self.push_dict()?;
                    self.stack.extend_from_slice(&items);
                    self.set_items(mark + 1)?;
                }
                b'a' => {
                    let from = self.last(1)?;
                    self.append(from)?;
                }
                b'e' => {
                    let mark = self.mark()?;
                    self.append(mark)?;
                }
                b's' => {
                    let from = self.last(2)?;
                    self.set_items(from)?;
                }
                b'u' => {
                    let mark = self.mark()?;
                    self.set_items(mark)?;
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
                    self.fetch_more();
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
        ReadErrorKind::BadPickle { offset: self.input.offset(), reason }
    }

    fn empty(&self) -> ReadErrorKind {
        self.bad("it uses more values than there are: the file is damaged".into())
    }

    #[cold]
    fn failed(&self, error: io::Error) -> ReadErrorKind {
        if error.kind() == io::ErrorKind::UnexpectedEof && !self.gzip {
            return self.bad("the pickle ends too early: the file was cut short".into());
        }
        reading_failed(error, self.gzip)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], ReadErrorKind> {
        self.input.array().map_err(|error| self.failed(error))
    }

    /// Checks that there is memory for so many bytes more, before they are used.
    fn reserve(&self, bytes: usize) -> Result<(), ReadErrorKind> {
        if self.has_room(bytes) {
            return Ok(());
        }
        Err(self.bad(format!("the values take more than {} MiB of memory", MOST_BYTES >> 20)))
    }

    fn has_room(&self, bytes: usize) -> bool {
        let stacks = size_of_val(&self.stack[..]) + size_of_val(&self.marks[..]) + size_of_val(&self.memo[..]);
        bytes <= MOST_BYTES.saturating_sub(self.values.bytes() + stacks)
    }

    fn push(&mut self, value: Value) -> Result<(), ReadErrorKind> {
        self.reserve(size_of::<Value>())?;
        let at = self.values.push(value);
        self.push_ref(at)
    }

    fn push_ref(&mut self, at: Ref) -> Result<(), ReadErrorKind> {
        self.reserve(size_of::<Ref>())?;
        self.stack.push(at);
        Ok(())
    }

    fn number(&mut self, number: i64) -> Result<(), ReadErrorKind> {
        if let Some(known) = self.numbers.get(number) {
            return self.push_ref(known);
        }
        self.push(Value::Int(number))?;
        self.numbers.set(number, self.top()?);
        Ok(())
    }

    /// Replaces what is on the stack from a height on by a list of it.
    fn push_list(&mut self, from: usize) -> Result<(), ReadErrorKind> {
        self.reserve(Values::bytes_of_list(self.stack.len() - from))?;
        let at = self.values.push_list(self.stack[from..].to_vec());
        self.stack.truncate(from);
        self.push_ref(at)
    }

    fn push_dict(&mut self) -> Result<(), ReadErrorKind> {
        self.reserve(size_of::<Value>())?;
        let at = self.values.push_dict();
        self.push_ref(at)
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

    /// Removes the last mark. Returns the height of the stack at it.
    fn mark(&mut self) -> Result<usize, ReadErrorKind> {
        self.marks.pop().ok_or_else(|| self.empty())
    }

    /// Returns the height of the stack below its last `count` values.
    fn last(&self, count: usize) -> Result<usize, ReadErrorKind> {
        self.stack.len().checked_sub(count).filter(|from| *from >= self.floor()).ok_or_else(|| self.empty())
    }

    /// Appends what is on the stack from a height on to the list below it.
    fn append(&mut self, from: usize) -> Result<(), ReadErrorKind> {
        self.reserve(Values::bytes_of_list(self.stack.len() - from))?;
        let list = self.below(from)?;
        let is_list = self.values.append(list, &self.stack[from..]);
        self.stack.truncate(from);
        if is_list {
            Ok(())
        } else {
            Err(self.bad("it appends to something that is not a list: the file is damaged".into()))
        }
    }

    /// Sets what is on the stack from a height on, keys and values in turn, as items of the dictionary below it.
    fn set_items(&mut self, from: usize) -> Result<(), ReadErrorKind> {
        let dict = self.below(from)?;
        self.reserve(Values::BYTES_OF_FIELDS)?;
        let is_dict = self.values.set_items(dict, &self.stack[from..]);
        self.stack.truncate(from);
        if is_dict {
            Ok(())
        } else {
            Err(self.bad("it sets items of something that is not a dictionary: the file is damaged".into()))
        }
    }

    /// Returns the value below a height of the stack.
    fn below(&self, from: usize) -> Result<Ref, ReadErrorKind> {
        self.stack[self.floor()..from].last().copied().ok_or_else(|| self.empty())
    }

    fn put(&mut self, index: usize) -> Result<(), ReadErrorKind> {
        let top = self.top()?;
        if index >= self.memo.len() {
            // Python numbers memo entries consecutively: no file that it writes has such gaps.
            if index > 2 * self.memo_len + MOST_GAP {
                return Err(self.bad(format!("memo entry {index} is far from the others: the file is damaged")));
            }
            self.reserve((index + 1 - self.memo.len()) * size_of::<Ref>())?;
            self.memo.resize(index + 1, NONE);
        }
        if std::mem::replace(&mut self.memo[index], top) == NONE {
            self.memo_len += 1;
        }
        Ok(())
    }

    fn fetch(&mut self, index: usize) -> Result<(), ReadErrorKind> {
        match self.memo.get(index) {
            Some(&value) if value != NONE => self.push_ref(value),
            _ => Err(self.bad(format!("memo entry {index} was never written: the file is damaged"))),
        }
    }

    /// Fetches the memo entries that come next in the buffer, as [`fetch`](Self::fetch) would one by one: most of a snapshot is
    /// stacks, which are lists of frames that were written before.
    fn fetch_more(&mut self) {
        let (fetches, _) = self.input.buffered().as_chunks::<5>();
        let fetches = &fetches[..fetches.len().min(MOST_AT_ONCE)];
        if !self.has_room(size_of::<Ref>() * fetches.len()) {
            return;
        }
        let mut values = [NONE; MOST_AT_ONCE];
        let mut fetched = 0;
        for (value, &[opcode, a, b, c, d]) in values.iter_mut().zip(fetches) {
            *value = self.memo.get(u32::from_le_bytes([a, b, c, d]) as usize).copied().unwrap_or(NONE);
            if opcode != b'j' || *value == NONE {
                break;
            }
            fetched += 1;
        }
        self.stack.extend_from_slice(&values[..fetched]);
        self.input.consume(5 * fetched);
    }

    /// Reads a little-endian number in two's complement. If it does not fit, its value does not matter here, and it
    /// becomes a float.
    fn long(&mut self, length: usize) -> Result<(), ReadErrorKind> {
        if length > 16 {
            return Err(self.bad(format!("a number of {length} bytes")));
        }
        let mut bytes = [0; 16];
        self.input.fill(&mut bytes[..length]).map_err(|error| self.failed(error))?;
        if length > 0 && bytes[length - 1] & 0x80 != 0 {
            bytes[length..].fill(0xff);
        }
        let number = i128::from_le_bytes(bytes);
        #[allow(clippy::cast_precision_loss, reason = "its value does not matter")]
        match (i64::try_from(number), u64::try_from(number)) {
            (Ok(number), _) => self.number(number),
            (_, Ok(number)) => self.push(Value::Large(number)),
            _ => self.push(Value::Float(number as f64)),
        }
    }

    /// Reads a text in pieces, so that a wrong length uses no memory.
    fn text(&mut self, length: u64) -> Result<(), ReadErrorKind> {
        let bytes = usize::try_from(length).unwrap_or(usize::MAX);
        self.reserve(Values::bytes_of_text(bytes))?;
        let mut text = Vec::new();
        while text.len() < bytes {
            match self.input.piece(bytes - text.len()) {
                Ok(piece) => text.extend_from_slice(piece),
                Err(error) => return Err(self.failed(error)),
            }
        }
        // Python writes lone surrogates, which are not valid UTF-8: they are replaced instead of refused.
        let text = String::from_utf8_lossy(&text).into_owned();
        let at = self.values.push_text(text.into_boxed_str());
        self.push_ref(at)
    }

    fn skip(&mut self, length: u64) -> Result<(), ReadErrorKind> {
        let mut left = length;
        while left > 0 {
            match self.input.piece(usize::try_from(left).unwrap_or(usize::MAX)) {
                Ok(piece) => left -= piece.len() as u64,
                Err(error) => return Err(self.failed(error)),
            }
        }
        self.push(Value::Bytes)
    }
}

/// Maximum memory for the values of a file, in bytes.
const MOST_BYTES: usize = 1 << 30;
/// How much larger the number of a memo entry may be than twice the number of entries.
const MOST_GAP: usize = 1 << 10;
/// Most memo entries that are fetched at once: a stack has fewer.
const MOST_AT_ONCE: usize = 128;
const NEWEST_PROTOCOL: u8 = 5;
