//! Writer of the text format, for recorders.
//!
//! Header lines come first, then ops. A written file reads back as the same ops. The caller keeps ids unique.
//!
//! Threads: not synchronized. Cost: plain text is written line by line, so pass a buffered writer for a file.

use crate::op::{ALL, is_tag};
use crate::{Content, TraceOp};
use flate2::write::GzEncoder;
use std::fmt;
use std::io::{self, Write};

/// The compression of a trace file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Compression {
    /// Plain text.
    Plain,
    /// gzip; the file has about a tenth of the size.
    Gzip,
}

/// Writes one trace. Call [`finish`](Self::finish) at the end: without it, a gzip file may be incomplete.
pub struct TextWriter<W: Write> {
    target: Target<W>,
}

impl<W: Write> fmt::Debug for TextWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextWriter").finish_non_exhaustive()
    }
}

enum Target<W: Write> {
    Plain(W),
    Gzip(GzEncoder<W>),
}

impl<W: Write> TextWriter<W> {
    /// Creates a writer of an empty trace to `target`.
    pub fn new(target: W, compression: Compression) -> Self {
        let target = match compression {
            Compression::Plain => Target::Plain(target),
            Compression::Gzip => Target::Gzip(GzEncoder::new(target, flate2::Compression::default())),
        };
        Self { target }
    }

    /// Writes a header line. `key` is one word. `value` is trimmed when it is read back.
    ///
    /// # Errors
    /// Returns `InvalidInput` if the key is not one word or the value contains a line break, and the errors of the
    /// target.
    pub fn header(&mut self, key: &str, value: &str) -> io::Result<()> {
        if key.is_empty() || key.contains(char::is_whitespace) {
            return Err(invalid("a header key is one word"));
        }
        check_line(value)?;
        writeln!(self.sink(), "# {key} {value}")
    }

    /// Writes a comment: a `#` line that readers skip after the first op.
    ///
    /// # Errors
    /// Returns `InvalidInput` if the text contains a line break, and the errors of the target.
    pub fn comment(&mut self, text: &str) -> io::Result<()> {
        check_line(text)?;
        writeln!(self.sink(), "# {text}")
    }

    /// Writes an op.
    ///
    /// # Errors
    /// Returns `InvalidInput` if a label contains a line break, or if a tag is not one word of at most 100 bytes, begins with a
    /// digit or is `*`, and the errors of the target.
    pub fn op(&mut self, op: &TraceOp) -> io::Result<()> {
        match op {
            TraceOp::Alloc { id, bytes, stream, tag: None } => writeln!(self.sink(), "a {id} {bytes} {stream}"),
            TraceOp::Alloc { id, bytes, stream, tag } => {
                let tag = word(tag)?;
                writeln!(self.sink(), "a {id} {bytes} {stream} {tag}")
            }
            TraceOp::Free { id } => writeln!(self.sink(), "f {id}"),
            TraceOp::Refused { bytes, stream } => writeln!(self.sink(), "r {bytes} {stream}"),
            TraceOp::Sleep { tag, content } => {
                let (tag, content) = (
                    word(tag)?,
                    match content {
                        Content::Keep => "keep",
                        Content::Discard => "discard",
                    },
                );
                writeln!(self.sink(), "s {tag} {content}")
            }
            TraceOp::Wake { tag } => {
                let tag = word(tag)?;
                writeln!(self.sink(), "w {tag}")
            }
            TraceOp::Mark(label) => {
                check_line(label)?;
                writeln!(self.sink(), "m {label}")
            }
        }
    }

    /// Completes the file, flushes the target and returns it.
    ///
    /// # Errors
    /// Returns the errors of the target.
    pub fn finish(self) -> io::Result<W> {
        let mut target = match self.target {
            Target::Plain(target) => target,
            Target::Gzip(encoder) => encoder.finish()?,
        };
        target.flush()?;
        Ok(target)
    }

    fn sink(&mut self) -> &mut dyn Write {
        match &mut self.target {
            Target::Plain(target) => target,
            Target::Gzip(encoder) => encoder,
        }
    }
}

/// The word for a tag, or for all memory.
fn word(tag: &Option<Box<str>>) -> io::Result<&str> {
    match tag.as_deref() {
        None => Ok(ALL),
        Some(tag) if is_tag(tag) => Ok(tag),
        Some(_) => Err(invalid("a tag is one word of at most 100 bytes, not * and not a number")),
    }
}

fn check_line(text: &str) -> io::Result<()> {
    if text.contains(['\n', '\r']) { Err(invalid("a line break inside a line of a trace")) } else { Ok(()) }
}

fn invalid(text: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TextReader;

    #[test]
    fn a_written_trace_reads_back() {
        let ops = [
            TraceOp::Alloc { id: u64::MAX, bytes: 0, stream: 3, tag: None },
            TraceOp::Alloc { id: 1, bytes: 9, stream: 0, tag: Some("kv_cache".into()) },
            TraceOp::Sleep { tag: Some("kv_cache".into()), content: Content::Discard },
            TraceOp::Sleep { tag: None, content: Content::Keep },
            TraceOp::Wake { tag: None },
            TraceOp::Mark("step 1 of 2".into()),
            TraceOp::Free { id: u64::MAX },
            TraceOp::Refused { bytes: u64::MAX, stream: 3 },
        ];
        for compression in [Compression::Plain, Compression::Gzip] {
            let mut writer = TextWriter::new(Vec::new(), compression);
            writer.header("model", "a model").unwrap();
            ops.iter().for_each(|op| writer.op(op).unwrap());
            let file = writer.finish().unwrap();
            let mut reader = TextReader::new(&file[..]).unwrap();
            assert_eq!(reader.by_ref().map(Result::unwrap).collect::<Vec<_>>(), ops);
            assert_eq!(reader.header().value("model"), Some("a model"));
        }
    }

    #[test]
    fn text_that_would_not_read_back_is_refused() {
        let mut writer = TextWriter::new(Vec::new(), Compression::Plain);
        assert!(writer.header("two words", "x").is_err());
        assert!(writer.header("key", "x\ny").is_err());
        assert!(writer.op(&TraceOp::Mark("x\na 1 1 1".into())).is_err());
        assert!(writer.finish().unwrap().is_empty());
    }
}
