//! A memory snapshot as Python writes it: `pickle.dump(torch.cuda.memory._snapshot(), file)`, in protocol 4.
//!
//! Keys and actions are stored once and fetched from the memo; every event has a dictionary and a list of frames of its own; the
//! frames themselves are shared.

use gapless_trace::{Op, Trace};
use std::collections::HashMap;
use std::io::{self, Write};

/// Frames of each event, and how many different stacks there are.
const FRAMES: u32 = 40;
const STACKS: u32 = 500;
/// Items that Python appends to a list at once.
const BATCH: usize = 1000;

/// Writes a snapshot of `bytes` bytes and a little more: of the recorded program, again and again.
pub fn write(file: impl Write, recorded: &Trace, bytes: u64) -> io::Result<()> {
    let mut pickle = Pickle { file, written: 0, memo: 0, texts: HashMap::new() };
    pickle.raw(b"\x80\x04}\x94(")?;
    pickle.text("segments")?;
    pickle.raw(b"]\x94")?;
    pickle.memo += 2;
    pickle.text("device_traces")?;
    pickle.raw(b"]\x94]\x94")?;
    pickle.memo += 2;
    let frames = pickle.frames()?;
    let mut events = Events { pickle, frames, time_us: 1_700_000_000_000_000, in_batch: 0 };
    let mut live = vec![None; recorded.slots() as usize];
    while events.pickle.written < bytes {
        for op in recorded.ops() {
            match *op {
                Op::Alloc { slot, bytes, .. } => {
                    events.event("alloc", slot, bytes)?;
                    live[slot as usize] = Some(bytes);
                }
                Op::Free { slot } => events.free(slot, live[slot as usize].take().unwrap_or(0))?,
                Op::Sleep { .. } | Op::Wake { .. } | Op::Refused { .. } | Op::Mark { .. } => {}
            }
        }
        for (slot, bytes) in (0..).zip(&mut live) {
            if let Some(bytes) = bytes.take() {
                events.free(slot, bytes)?;
            }
        }
    }
    let mut pickle = events.end()?;
    pickle.raw(b"au.")?;
    pickle.file.flush()
}

struct Pickle<W> {
    file: W,
    written: u64,
    /// Number of memo entries so far.
    memo: u32,
    texts: HashMap<&'static str, u32>,
}

impl<W: Write> Pickle<W> {
    fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    fn memoized(&mut self, bytes: &[u8]) -> io::Result<u32> {
        self.raw(bytes)?;
        self.raw(b"\x94")?;
        self.memo += 1;
        Ok(self.memo - 1)
    }

    fn fetch(&mut self, entry: u32) -> io::Result<()> {
        match u8::try_from(entry) {
            Ok(entry) => self.raw(&[b'h', entry]),
            Err(_) => {
                self.raw(b"j")?;
                self.raw(&entry.to_le_bytes())
            }
        }
    }

    /// A text that occurs more than once.
    fn text(&mut self, text: &'static str) -> io::Result<()> {
        if let Some(&entry) = self.texts.get(text) {
            return self.fetch(entry);
        }
        let entry = self.new_text(text)?;
        self.texts.insert(text, entry);
        Ok(())
    }

    fn new_text(&mut self, text: &str) -> io::Result<u32> {
        self.raw(&[0x8c, u8::try_from(text.len()).expect("a short text")])?;
        self.memoized(text.as_bytes())
    }

    fn number(&mut self, number: u64) -> io::Result<()> {
        if let Ok(number) = u8::try_from(number) {
            return self.raw(&[b'K', number]);
        }
        if let Ok(number) = u16::try_from(number) {
            self.raw(b"M")?;
            return self.raw(&number.to_le_bytes());
        }
        if let Ok(number) = i32::try_from(number) {
            self.raw(b"J")?;
            return self.raw(&number.to_le_bytes());
        }
        // With a byte for the sign.
        let length = 8 - number.leading_zeros() / 8 + u32::from(number.leading_zeros().is_multiple_of(8));
        let bytes = number.to_le_bytes();
        self.raw(&[0x8a, u8::try_from(length).expect("at most nine")])?;
        self.raw(&bytes[..(length as usize).min(8)])?;
        if length == 9 { self.raw(&[0]) } else { Ok(()) }
    }

    /// The frames of all stacks, which only the memo keeps. Returns the entry of each.
    fn frames(&mut self) -> io::Result<Vec<u32>> {
        let mut entries = Vec::new();
        for frame in 0..STACKS + FRAMES {
            entries.push(self.memoized(b"}")?);
            self.raw(b"(")?;
            self.text("name")?;
            self.new_text(&format!("forward_{frame}"))?;
            self.text("filename")?;
            self.new_text(&format!("/home/user/project/model/layers_{}.py", frame / 10))?;
            self.text("line")?;
            self.number(u64::from(frame))?;
            self.raw(b"u0")?;
        }
        Ok(entries)
    }
}

struct Events<W> {
    pickle: Pickle<W>,
    frames: Vec<u32>,
    time_us: u64,
    in_batch: usize,
}

impl<W: Write> Events<W> {
    fn free(&mut self, slot: u32, bytes: u64) -> io::Result<()> {
        self.event("free_requested", slot, bytes)?;
        self.event("free_completed", slot, bytes)
    }

    fn event(&mut self, action: &'static str, slot: u32, bytes: u64) -> io::Result<()> {
        if self.in_batch == 0 {
            self.pickle.raw(b"(")?;
        }
        self.time_us += 7;
        let pickle = &mut self.pickle;
        pickle.memoized(b"}")?;
        pickle.raw(b"(")?;
        pickle.text("action")?;
        pickle.text(action)?;
        pickle.text("addr")?;
        pickle.number(0x7f00_0000_0000 + (u64::from(slot) << 21))?;
        pickle.text("size")?;
        pickle.number(bytes)?;
        pickle.text("stream")?;
        pickle.number(0)?;
        pickle.text("time_us")?;
        pickle.number(self.time_us)?;
        pickle.text("compile_context")?;
        pickle.text("N/A")?;
        pickle.text("user_metadata")?;
        pickle.text("")?;
        pickle.text("frames")?;
        pickle.memoized(b"]")?;
        pickle.raw(b"(")?;
        let stack = (slot % STACKS) as usize;
        for &frame in &self.frames[stack..stack + FRAMES as usize] {
            pickle.fetch(frame)?;
        }
        pickle.raw(b"eu")?;
        self.in_batch += 1;
        if self.in_batch == BATCH {
            self.in_batch = 0;
            self.pickle.raw(b"e")?;
        }
        Ok(())
    }

    fn end(mut self) -> io::Result<Pickle<W>> {
        if self.in_batch > 0 {
            self.pickle.raw(b"e")?;
        }
        Ok(self.pickle)
    }
}
