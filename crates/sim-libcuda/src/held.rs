//! What a process has not given back when it ends, where `GAPLESS_SIM_LEAKS` asks for it.
//!
//! It is told on stderr: for each place in the program how many objects it has made that are there still, with the first of these
//! calls. Where `GAPLESS_SIM_RECORD` names a folder, each place is a line of JSON in the file `PROCESS.held` there as well. The end
//! is that of the [record](crate::record).

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use gapless::ByteSize;
use serde::{Deserialize, Serialize};

use crate::broken::{Call, Noted};
use crate::kept::{Kept, Map};
use crate::state::State;

/// The ending of the name of a process's file.
pub const ENDING: &str = "held";
/// The most places that are told on stderr.
const MOST_PLACES: usize = 10;

/// Objects that one place in a program has made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// What they are, such as `chunk`.
    pub what: String,
    /// How many.
    pub count: u64,
    /// Their bytes, of memory and of addresses.
    pub bytes: u64,
    /// The first of the calls.
    pub call: Call,
}

impl Held {
    /// Whether another process, or another run, has made such objects at the same place.
    pub fn is_of_same_place(&self, other: &Self) -> bool {
        let of = |held: &Self| (held.what.clone(), held.call.function.clone());
        of(self) == of(other) && self.call.stack == other.call.stack && self.call.python == other.call.python
    }

    /// How many of what, such as `2 chunks, 4 MiB`.
    pub fn amount(&self) -> String {
        let Self { what, count, bytes, .. } = self;
        let ending = if *count == 1 { "" } else { "s" };
        let bytes = if *bytes == 0 { String::new() } else { format!(", {}", ByteSize(*bytes)) };
        format!("{count} {what}{ending}{bytes}")
    }
}

/// All that a process holds, the largest first.
struct AtTheEnd<'a>(&'a [Held]);

impl fmt::Display for AtTheEnd<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "held at the end")?;
        let (told, rest) = self.0.split_at(self.0.len().min(MOST_PLACES));
        told.iter().try_for_each(|held| write!(f, "  {}\n{}", held.amount(), held.call))?;
        if rest.is_empty() {
            return Ok(());
        }
        let sum = |of: fn(&Held) -> u64| rest.iter().map(of).sum::<u64>();
        let (count, bytes) = (sum(|held| held.count), ByteSize(sum(|held| held.bytes)));
        writeln!(f, "  and {count} of {} other places, {bytes}", rest.len())
    }
}

/// Objects with one stack.
struct Group {
    what: &'static str,
    count: u64,
    bytes: u64,
    first: Noted,
}

/// Groups by what they are and by where their calls were.
#[derive(Default)]
struct Groups(HashMap<(&'static str, &'static str, usize), Group>);

impl Groups {
    fn add<M: Map>(&mut self, what: &'static str, table: &Kept<M>, bytes: impl Fn(&M::Object) -> u64) {
        for (object, call) in table.with_calls() {
            let (function, stack) = call.place();
            let new = || Group { what, count: 0, bytes: 0, first: call.clone() };
            let group = self.0.entry((what, function, stack)).or_insert_with(new);
            (group.count, group.bytes) = (group.count + 1, group.bytes + bytes(object));
            if call.order() < group.first.order() {
                group.first = call.clone();
            }
        }
    }

    /// Several calls of a function may be on one line.
    fn finish(self) -> Vec<Held> {
        let mut groups: Vec<Group> = self.0.into_values().collect();
        groups.sort_unstable_by_key(|group| group.first.order());
        let mut all: Vec<Held> = Vec::new();
        for Group { what, count, bytes, first } in groups {
            let held = Held { what: what.to_owned(), count, bytes, call: first.call() };
            match all.iter_mut().find(|before| before.is_of_same_place(&held)) {
                Some(before) => (before.count, before.bytes) = (before.count + count, before.bytes + bytes),
                None => all.push(held),
            }
        }
        all.sort_by_key(|held| std::cmp::Reverse((held.bytes, held.count)));
        all
    }
}

/// All that this process holds.
fn all(state: &State) -> Vec<Held> {
    let mut groups = Groups::default();
    groups.add("chunk", &state.chunks.lock(), |chunk| chunk.bytes);
    groups.add("mapping", &state.mappings.read(), |mapping| mapping.bytes);
    groups.add("reservation", &state.reservations.lock(), |(bytes, _)| *bytes);
    groups.add("allocation", &state.plain.lock(), |memory| memory.bytes);
    groups.add("allocation of another process", &state.opened.lock(), |memory| memory.bytes);
    groups.add("allocation of pinned memory", &state.pinned.lock(), |bytes| *bytes as u64);
    groups.add("stream", &state.streams.created(), |_| 0);
    groups.add("event", &state.events.lock(), |_| 0);
    groups.finish()
}

/// Tells what this process holds, and writes it to a file in `folder`.
pub fn tell(state: &State, folder: Option<&Path>) {
    let held = all(state);
    if held.is_empty() {
        return;
    }
    eprint!("gapless-sim: {}", AtTheEnd(&held));
    if let Some(Err(error)) = folder.map(|folder| write(folder, &held)) {
        eprintln!("gapless-sim: no record of it: {error}");
    }
}

fn write(folder: &Path, held: &[Held]) -> io::Result<()> {
    let lines: Vec<String> = held.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    let file = |ending: &str| folder.join(format!("{}.{ending}", std::process::id()));
    let part = file("part-of-held");
    fs::write(&part, lines.join("\n"))?;
    fs::rename(part, file(ENDING))
}
