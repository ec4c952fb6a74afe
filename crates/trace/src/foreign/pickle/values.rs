//! The values of a pickle, in little memory: 16 bytes each, and 4 bytes for each item that is kept.

use crate::error::excerpt;
use foldhash::{HashMap, HashMapExt};
use std::num::NonZero;
use std::rc::Rc;

/// The number of a value.
pub type Ref = u32;

/// Stands for no value. There are fewer of them, since each counts towards the limit of memory.
pub(super) const NONE: Ref = Ref::MAX;

/// A value of a pickle.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    /// Python's `None`.
    None,
    /// Python's `True` or `False`.
    Bool(bool),
    /// An `int` that fits.
    Int(i64),
    /// An `int` that is too large for the variant above.
    Large(u64),
    /// A `float`, or any other `int`.
    Float(f64),
    /// A `str`.
    Text(TextRef),
    /// A `bytes` object. Its content is not needed.
    Bytes,
    /// A list or a tuple.
    List(ListRef),
    /// A list of which one item is kept, and the whole list where there is room for it.
    Shortened(Shortened),
    /// A dictionary: the values of known keys.
    Dict(Fields),
}

const _: () = assert!(size_of::<Value>() == 16, "a snapshot has many values");

/// Index of a text.
#[derive(Clone, Copy, Debug)]
pub struct TextRef(u32);

/// Index of a list.
#[derive(Clone, Copy, Debug)]
pub struct ListRef(u32);

/// A list that was shortened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shortened {
    /// The item that was chosen.
    pub item: Ref,
    /// The whole list, if it is kept. Equal lists are kept once.
    pub whole: Option<WholeRef>,
}

/// Index of a list that was shortened and is kept as a whole, plus one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WholeRef(NonZero<u32>);

/// The fields of a dictionary: those of the keys in a set, in the order of the keys' numbers, beside each other.
#[derive(Clone, Copy, Debug)]
pub struct Fields {
    keys: u32,
    start: u32,
}

impl Fields {
    pub(super) const fn len(self) -> usize {
        self.keys.count_ones() as usize
    }

    /// Where the value of a key is, or would be.
    const fn position(self, key: Key) -> usize {
        self.start as usize + (self.keys & (key.bit() - 1)).count_ones() as usize
    }

    const fn has(self, key: Key) -> bool {
        self.keys & key.bit() != 0
    }
}

/// The number of a key whose values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(u8);

impl Key {
    /// Returns the number of `name` among all keys of a reader.
    ///
    /// # Panics
    /// Panics unless it is one of them; at compile time in a constant.
    pub const fn of(keys: Keys, name: &str) -> Self {
        let mut number = 0;
        while number < keys.len() {
            if equal(keys[number].as_bytes(), name.as_bytes()) {
                return Self(number as u8);
            }
            number += 1;
        }
        panic!("not a key that is read")
    }

    const fn bit(self) -> u32 {
        1 << self.0
    }
}

const fn equal(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

/// The keys whose values are kept: at most 32.
pub type Keys = &'static [&'static str];

/// The values that are kept of a file.
#[derive(Clone, Copy)]
pub struct Kept {
    /// Of dictionaries, the values of these keys.
    pub keys: Keys,
    /// Of a list with this key, one item: the one that the function chooses when the list becomes the key's value. The different
    /// lists are kept as a whole, up to [`MOST_WHOLE_BYTES`].
    pub shortened: Option<(Key, Choose)>,
}

/// Chooses one of a list's items, if any.
pub type Choose = fn(&Values, &[Ref]) -> Option<Ref>;

/// All values of a pickle.
pub struct Values {
    all: Vec<Value>,
    /// Each text with its number among the keys.
    texts: Vec<(Box<str>, Option<Key>)>,
    lists: Vec<Vec<Ref>>,
    fields: Vec<Ref>,
    /// The lists that were shortened and are kept as a whole, each once, and what they were shortened to.
    whole: Vec<Rc<[Ref]>>,
    shortened: HashMap<Rc<[Ref]>, Shortened>,
    /// Memory that these take, in bytes.
    whole_bytes: usize,
    /// Memory of the texts and lists, in bytes.
    heap_bytes: usize,
    kept: Kept,
}

impl Values {
    /// No values yet.
    ///
    /// # Panics
    /// Panics if more than 32 keys are to be kept.
    pub fn new(kept: Kept) -> Self {
        assert!(kept.keys.len() <= u32::BITS as usize, "a dictionary has one bit for each key");
        Self {
            all: Vec::new(),
            texts: Vec::new(),
            lists: Vec::new(),
            fields: Vec::new(),
            whole: Vec::new(),
            shortened: HashMap::new(),
            whole_bytes: 0,
            heap_bytes: 0,
            kept,
        }
    }

    /// Returns the value with a number.
    pub fn get(&self, at: Ref) -> Value {
        self.all[at as usize]
    }

    /// Returns the items of a list.
    pub fn items(&self, list: ListRef) -> &[Ref] {
        &self.lists[list.0 as usize]
    }

    /// Returns the number of a key's value in a dictionary. If the key occurs twice, its last value counts, as in Python.
    pub fn field_ref(&self, dict: Ref, key: Key) -> Option<Ref> {
        let Value::Dict(fields) = self.get(dict) else { return None };
        fields.has(key).then(|| self.fields[fields.position(key)])
    }

    /// Returns the value of a key in a dictionary.
    pub fn field(&self, dict: Ref, key: Key) -> Option<Value> {
        self.field_ref(dict, key).map(|at| self.get(at))
    }

    /// Returns the value of a key if it is a list.
    pub fn list(&self, dict: Ref, key: Key) -> Option<&[Ref]> {
        match self.field(dict, key)? {
            Value::List(list) => Some(self.items(list)),
            _ => None,
        }
    }

    /// Returns what is kept of the list that is the value of a key.
    pub fn shortened(&self, dict: Ref, key: Key) -> Option<Shortened> {
        match self.field(dict, key)? {
            Value::Shortened(shortened) => Some(shortened),
            _ => None,
        }
    }

    /// Returns the items of a list that was shortened and is kept as a whole.
    pub fn whole(&self, list: WholeRef) -> &[Ref] {
        &self.whole[list.0.get() as usize - 1]
    }

    /// Returns the value of a key if it is a whole number that fits in 64 bits.
    pub fn number(&self, dict: Ref, key: Key) -> Option<u64> {
        match self.field(dict, key)? {
            Value::Int(number) => u64::try_from(number).ok(),
            Value::Large(number) => Some(number),
            _ => None,
        }
    }

    /// Returns the value of a key if it is a text.
    pub fn text(&self, dict: Ref, key: Key) -> Option<&str> {
        match self.field(dict, key)? {
            Value::Text(text) => Some(&self.texts[text.0 as usize].0),
            _ => None,
        }
    }

    /// Describes a value for messages.
    pub fn describe(&self, at: Ref) -> String {
        match self.get(at) {
            Value::None => "None".into(),
            Value::Bool(value) => value.to_string(),
            Value::Int(number) => number.to_string(),
            Value::Large(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            Value::Text(text) => format!("'{}'", excerpt(&self.texts[text.0 as usize].0)),
            Value::Bytes => "bytes".into(),
            Value::List(list) => format!("a list of {}", self.items(list).len()),
            Value::Shortened(_) => "a list".into(),
            Value::Dict(_) => "a dictionary".into(),
        }
    }
}

/// The operations of the reader on the values. The numbers of values, texts, lists and fields are below 2^32, since each of them
/// counts towards the limit of memory.
impl Values {
    /// Most memory that new fields of one dictionary take, in bytes.
    pub(super) const BYTES_OF_FIELDS: usize = u32::BITS as usize * size_of::<Ref>();

    /// Memory that a list takes, in bytes. A list that grows has room for up to as many items again.
    pub(super) const fn bytes_of_list(items: usize) -> usize {
        size_of::<Value>() + size_of::<Vec<Ref>>() + items * size_of::<Ref>()
    }

    /// Memory that a text of so many bytes takes, in bytes.
    pub(super) const fn bytes_of_text(bytes: usize) -> usize {
        (size_of::<Value>() + size_of::<(Box<str>, Option<Key>)>()).saturating_add(bytes)
    }

    /// Memory that all values take, in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&self.all[..]) + size_of_val(&self.fields[..]) + self.heap_bytes
    }

    pub(super) fn push(&mut self, value: Value) -> Ref {
        self.all.push(value);
        index(self.all.len() - 1)
    }

    pub(super) fn push_text(&mut self, text: Box<str>) -> Ref {
        self.heap_bytes += Self::bytes_of_text(text.len());
        let key = (0..).zip(self.kept.keys).find(|(_, key)| ***key == *text).map(|(number, _)| Key(number));
        self.texts.push((text, key));
        self.push(Value::Text(TextRef(index(self.texts.len() - 1))))
    }

    pub(super) fn push_list(&mut self, items: Vec<Ref>) -> Ref {
        self.heap_bytes += Self::bytes_of_list(items.len());
        self.lists.push(items);
        self.push(Value::List(ListRef(index(self.lists.len() - 1))))
    }

    pub(super) fn push_dict(&mut self) -> Ref {
        self.push(Value::Dict(Fields { keys: 0, start: 0 }))
    }

    /// Appends to a list. Returns whether it is one.
    pub(super) fn append(&mut self, list: Ref, items: &[Ref]) -> bool {
        match self.get(list) {
            Value::List(list) => {
                let list = &mut self.lists[list.0 as usize];
                // Most lists are filled in one piece, and never again.
                if list.is_empty() {
                    list.reserve_exact(items.len());
                }
                list.extend_from_slice(items);
                self.heap_bytes += size_of_val(items);
                true
            }
            // It was chosen from what was in the list until then.
            Value::Shortened(_) => true,
            _ => false,
        }
    }

    /// Sets values of keys, given in turn, as Python does: a later value replaces an earlier one. Returns whether it is a
    /// dictionary, and each key has a value.
    pub(super) fn set_items(&mut self, dict: Ref, items: &[Ref]) -> bool {
        let Value::Dict(mut fields) = self.get(dict) else { return false };
        let (pairs, rest) = items.as_chunks();
        for &[key, value] in pairs {
            let Value::Text(text) = self.get(key) else { continue };
            let Some(key) = self.texts[text.0 as usize].1 else { continue };
            self.shorten(key, value);
            fields = self.set(fields, key, value);
        }
        self.all[dict as usize] = Value::Dict(fields);
        rest.is_empty()
    }

    fn set(&mut self, fields: Fields, key: Key, value: Ref) -> Fields {
        if fields.has(key) {
            self.fields[fields.position(key)] = value;
            return fields;
        }
        // Room for one more is at the end only: other fields are copied there.
        let (start, len) = (fields.start as usize, fields.len());
        let end = self.fields.len();
        let moved = if len > 0 && start + len == end {
            fields
        } else {
            self.fields.extend_from_within(start..start + len);
            Fields { start: index(end), ..fields }
        };
        self.fields.insert(moved.position(key), value);
        Fields { keys: moved.keys | key.bit(), ..moved }
    }

    /// Shortens a list, if it is the value of the key for that.
    fn shorten(&mut self, key: Key, value: Ref) {
        let Some((_, choose)) = self.kept.shortened.filter(|(of, _)| *of == key) else { return };
        let Value::List(list) = self.get(value) else { return };
        let known = self.shortened.get(self.items(list)).copied();
        let Some(item) = known.map(|known| known.item).or_else(|| choose(self, self.items(list))) else { return };
        let items = std::mem::take(&mut self.lists[list.0 as usize]);
        if list.0 as usize + 1 == self.lists.len() {
            self.lists.pop();
        }
        self.heap_bytes -= Self::bytes_of_list(items.len());
        let shortened = known.unwrap_or_else(|| self.keep_whole(&items, item));
        self.all[value as usize] = Value::Shortened(shortened);
    }

    /// Keeps a list as a whole where there is room for it.
    fn keep_whole(&mut self, items: &[Ref], item: Ref) -> Shortened {
        let bytes = size_of_val(items) + BYTES_OF_WHOLE;
        if self.whole_bytes + bytes > MOST_WHOLE_BYTES {
            return Shortened { item, whole: None };
        }
        let items: Rc<[Ref]> = items.into();
        self.whole.push(Rc::clone(&items));
        let number = WholeRef(NonZero::new(index(self.whole.len())).expect("it holds one"));
        let shortened = Shortened { item, whole: Some(number) };
        self.shortened.insert(items, shortened);
        self.whole_bytes += bytes;
        self.heap_bytes += bytes;
        shortened
    }
}

/// Most memory that shortened lists take that are kept as a whole, in bytes: the stacks of a program are some thousands.
const MOST_WHOLE_BYTES: usize = 64 << 20;
/// Memory that such a list takes beside its items: its counts, and its entries in a list and a table.
const BYTES_OF_WHOLE: usize = 96;

fn index(index: usize) -> u32 {
    u32::try_from(index).expect("fewer than 2^32, since each counts towards the limit of memory")
}
