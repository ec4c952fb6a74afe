//! Reader of the text format, line by line. Gzip compression is detected from the content.
//!
//! - I1  memory is bounded for every file: one line of at most [`Limits::line_bytes`], and header and labels of at most
//!   [`Limits::text_bytes`] together.
//! - I2  no input causes a panic; after the first error, the iterator ends.
//! - I3  time is bounded too: a file is read to its end only if what is not ops comes to at most [`Limits::filler_bytes`].
//!
//! Lines are checked one at a time. That they fit together (no id used twice, no free without an allocation) is checked
//! by [`Trace`](crate::Trace).
//!
//! Threads: not synchronized. Cost: one pass over the file.

use crate::error::{ReadError, ReadErrorKind, excerpt};
use crate::op::{ALL, is_tag};
use crate::{Content, Header, TraceOp};
use flate2::read::MultiGzDecoder;
use std::fmt;
use std::io::{self, BufRead, BufReader, Cursor, Read};

/// Limits on the memory that a reader uses for a file.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum length of a line in bytes.
    pub line_bytes: usize,
    /// Maximum length of header and labels together, in bytes.
    pub text_bytes: usize,
    /// Maximum length of empty lines and comments together, in bytes: a small compressed file may hold very many.
    pub filler_bytes: usize,
    /// Maximum number of ops of a trace in memory: 16 bytes each, and about as much again for ids while it is read.
    pub ops: usize,
    /// Maximum number of different streams.
    pub streams: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { line_bytes: 64 << 10, text_bytes: 4 << 20, filler_bytes: 64 << 20, ops: 16 << 20, streams: 1024 }
    }
}

/// An iterator over the ops of a file.
pub struct TextReader<'a> {
    source: Box<dyn BufRead + Send + 'a>,
    gzip: bool,
    limits: Limits,
    header: Header,
    in_header: bool,
    /// Length of the header and labels read so far, in bytes.
    text_bytes: usize,
    filler: Filler,
    line: Vec<u8>,
    line_number: u64,
    failed: bool,
}

impl fmt::Debug for TextReader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextReader").field("line", &self.line_number).finish_non_exhaustive()
    }
}

impl<'a> TextReader<'a> {
    /// Reads from `file` within the default [`Limits`].
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn new(file: impl Read + Send + 'a) -> Result<Self, ReadError> {
        Self::with_limits(file, Limits::default())
    }

    /// Reads from `file` within `limits`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn with_limits(file: impl Read + Send + 'a, limits: Limits) -> Result<Self, ReadError> {
        let (source, gzip) = unpack(file).map_err(|error| ReadError { line: 0, kind: ReadErrorKind::Io(error) })?;
        Ok(Self {
            source,
            gzip,
            limits,
            header: Header::default(),
            in_header: true,
            text_bytes: 0,
            filler: Filler::default(),
            line: Vec::new(),
            line_number: 0,
            failed: false,
        })
    }

    /// Returns the header. It is complete once the first op or the end of the file has been read.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the number of the last line read, counted from 1.
    #[must_use]
    pub const fn line_number(&self) -> u64 {
        self.line_number
    }

    /// Returns the limits of this reader.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn into_header(self) -> Header {
        self.header
    }

    /// Reads lines up to and including the next op.
    fn advance(&mut self) -> Result<Option<TraceOp>, ReadErrorKind> {
        while self.read_line()? {
            let line = std::str::from_utf8(&self.line).map_err(|_| ReadErrorKind::NotUtf8)?;
            let line = if self.line_number == 1 { without_mark(line) } else { line }.trim();
            if line.is_empty() || line.starts_with('#') {
                self.filler.count(self.line.len(), &self.limits)?;
            }
            if let Some(comment) = line.strip_prefix('#') {
                if self.in_header {
                    count_text(&mut self.text_bytes, comment.len(), &self.limits)?;
                    self.header.push(comment)?;
                }
            } else if !line.is_empty() {
                let op = parse(line)?;
                self.in_header = false;
                if let TraceOp::Mark(label) = &op {
                    count_text(&mut self.text_bytes, label.len(), &self.limits)?;
                }
                return Ok(Some(op));
            }
        }
        Ok(None)
    }

    /// Reads the next line into `self.line`. Returns `false` at the end of the file.
    fn read_line(&mut self) -> Result<bool, ReadErrorKind> {
        self.line.clear();
        let limit = self.limits.line_bytes;
        self.line_number += 1;
        let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
        let read = self.source.by_ref().take(most).read_until(b'\n', &mut self.line);
        let bytes = read.map_err(|error| reading_failed(error, self.gzip))?;
        if self.line.len() > limit && self.line.last() != Some(&b'\n') {
            return Err(ReadErrorKind::LineTooLong { limit });
        }
        Ok(bytes > 0)
    }
}

impl Iterator for TextReader<'_> {
    type Item = Result<TraceOp, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        match self.advance() {
            Ok(op) => op.map(Ok),
            Err(kind) => {
                self.failed = true;
                Some(Err(ReadError { line: self.line_number, kind }))
            }
        }
    }
}

/// The lines read so far that hold nothing to replay.
#[derive(Debug, Default)]
pub(crate) struct Filler {
    bytes: usize,
}

impl Filler {
    /// Counts a line of `bytes` bytes.
    pub(crate) fn count(&mut self, bytes: usize, limits: &Limits) -> Result<(), ReadErrorKind> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > limits.filler_bytes {
            return Err(ReadErrorKind::TooMuchFiller { limit: limits.filler_bytes });
        }
        Ok(())
    }
}

/// The first line of a file without the byte-order mark that some editors begin a file with.
pub(crate) fn without_mark(first_line: &str) -> &str {
    first_line.strip_prefix('\u{feff}').unwrap_or(first_line)
}

/// Returns a reader of the file, decompressed if it is gzip, and whether it is.
pub(crate) fn unpack<'a>(mut file: impl Read + Send + 'a) -> io::Result<(Box<dyn BufRead + Send + 'a>, bool)> {
    let mut start = Vec::with_capacity(GZIP_MAGIC.len());
    file.by_ref().take(GZIP_MAGIC.len() as u64).read_to_end(&mut start)?;
    let gzip = start == GZIP_MAGIC;
    let whole = Cursor::new(start).chain(file);
    let source: Box<dyn BufRead + Send + 'a> =
        if gzip { Box::new(BufReader::new(MultiGzDecoder::new(whole))) } else { Box::new(BufReader::new(whole)) };
    Ok((source, gzip))
}

/// Returns the reason for an error of reading a file that may be compressed.
pub(crate) fn reading_failed(error: io::Error, gzip: bool) -> ReadErrorKind {
    match error.kind() {
        io::ErrorKind::UnexpectedEof if gzip => ReadErrorKind::TruncatedGzip,
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData if gzip => ReadErrorKind::CorruptGzip(error),
        _ => ReadErrorKind::Io(error),
    }
}

/// Counts a text that is kept. Each counts more than its length, so that the number of empty ones is limited too.
fn count_text(total: &mut usize, bytes: usize, limits: &Limits) -> Result<(), ReadErrorKind> {
    *total = total.saturating_add(bytes).saturating_add(TEXT_OVERHEAD_BYTES);
    if *total > limits.text_bytes { Err(ReadErrorKind::TooMuchText { limit: limits.text_bytes }) } else { Ok(()) }
}

/// Whether a trimmed line is one of the text format: an op, a comment, or a part of the header.
pub(crate) fn is_line(line: &str) -> bool {
    line.starts_with('#') || parse(line).is_ok()
}

fn parse(line: &str) -> Result<TraceOp, ReadErrorKind> {
    let (op, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let mut words = rest.split_whitespace().peekable();
    let parsed = match op {
        "a" => TraceOp::Alloc {
            id: number(&mut words, "id")?,
            bytes: number(&mut words, "number of bytes")?,
            stream: number(&mut words, "stream")?,
            tag: words.next_if(|word| is_tag(word)).map(Into::into),
        },
        "f" => TraceOp::Free { id: number(&mut words, "id")? },
        "r" => {
            TraceOp::Refused { bytes: number(&mut words, "number of bytes")?, stream: number(&mut words, "stream")? }
        }
        "s" => TraceOp::Sleep {
            tag: tag_or_all(&mut words)?,
            content: match words.next() {
                Some("keep") => Content::Keep,
                Some("discard") => Content::Discard,
                Some(word) => return Err(ReadErrorKind::BadContent { text: excerpt(word) }),
                None => return Err(ReadErrorKind::MissingField { field: "word keep or discard" }),
            },
        },
        "w" => TraceOp::Wake { tag: tag_or_all(&mut words)? },
        "m" => return Ok(TraceOp::Mark(rest.trim().to_owned())),
        _ => return Err(ReadErrorKind::UnknownOp { op: excerpt(op) }),
    };
    match words.next() {
        None => Ok(parsed),
        Some(word) => Err(ReadErrorKind::ExtraField { text: excerpt(word) }),
    }
}

fn number<'t>(words: &mut impl Iterator<Item = &'t str>, field: &'static str) -> Result<u64, ReadErrorKind> {
    let word = words.next().ok_or(ReadErrorKind::MissingField { field })?;
    word.parse().map_err(|_| ReadErrorKind::BadNumber { field, text: excerpt(word) })
}

/// Returns a tag, or `None` for all memory.
fn tag_or_all<'t>(words: &mut impl Iterator<Item = &'t str>) -> Result<Option<Box<str>>, ReadErrorKind> {
    match words.next() {
        None => Err(ReadErrorKind::MissingField { field: "tag" }),
        Some(ALL) => Ok(None),
        Some(word) if is_tag(word) => Ok(Some(word.into())),
        Some(word) => Err(ReadErrorKind::BadTag { text: excerpt(word) }),
    }
}

/// The first bytes of every gzip file.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// Approximate memory for a text in addition to its length, in bytes.
const TEXT_OVERHEAD_BYTES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_op_is_read() {
        let text = "# model x\r\n#events 3\n\na 7 512 2\r\na 8 1 0 kv\n  f 7 \nr 99 1\n# a comment\n\
                    s kv keep\ns * discard\nw *\nw kv\nm step  one \nm";
        let mut reader = TextReader::new(text.as_bytes()).unwrap();
        let ops: Vec<_> = reader.by_ref().map(Result::unwrap).collect();
        assert_eq!(
            ops,
            [
                TraceOp::Alloc { id: 7, bytes: 512, stream: 2, tag: None },
                TraceOp::Alloc { id: 8, bytes: 1, stream: 0, tag: Some("kv".into()) },
                TraceOp::Free { id: 7 },
                TraceOp::Refused { bytes: 99, stream: 1 },
                TraceOp::Sleep { tag: Some("kv".into()), content: Content::Keep },
                TraceOp::Sleep { tag: None, content: Content::Discard },
                TraceOp::Wake { tag: None },
                TraceOp::Wake { tag: Some("kv".into()) },
                TraceOp::Mark("step  one".into()),
                TraceOp::Mark(String::new()),
            ]
        );
        assert_eq!(reader.header().events, Some(3));
        assert_eq!(reader.header().entries().count(), 2);
    }

    #[test]
    fn what_cannot_sleep_is_refused() {
        let long = format!("w {}", "t".repeat(101));
        for line in ["s", "s kv", "s kv kept", "s kv keep 1", "w", "w * kv", "w 4", "a 1 2 3 *", "a 1 2 3 kv x", &long]
        {
            assert!(TextReader::new(line.as_bytes()).unwrap().next().unwrap().is_err(), "{line}");
        }
    }

    #[test]
    fn the_first_error_ends_the_iterator() {
        let mut reader = TextReader::new("a 1 2 3\nx\na 2 2 3\n".as_bytes()).unwrap();
        assert!(reader.next().unwrap().is_ok());
        assert_eq!(reader.next().unwrap().unwrap_err().line, 2);
        assert!(reader.next().is_none());
    }
}
