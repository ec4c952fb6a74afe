//! Reads a pickle's bytes: most reads are of one to eight bytes, and there are hundreds of millions of them.

use super::ahead::ReadAhead;
use std::io::{self, ErrorKind, Read};
use std::thread::Scope;

/// A reader with a buffer of its own, so that a small read is a copy from it.
pub struct Input<'scope, 'env, R> {
    source: Source<R>,
    /// What a thread that reads ahead belongs to.
    scope: &'scope Scope<'scope, 'env>,
    buffer: Box<[u8]>,
    /// The bytes of `buffer` that were not read yet.
    unread: std::ops::Range<usize>,
    /// Position of the end of the buffer in the source.
    filled: u64,
}

/// Where the bytes come from.
enum Source<R> {
    /// From a source that is short, as far as is known.
    Here(R),
    Ahead(ReadAhead),
    /// From a source for which there is no other thread.
    OnlyHere(R),
    /// For a moment only.
    Nothing,
}

impl<'scope, 'env, R: Read + Send + 'scope> Input<'scope, 'env, R> {
    pub fn new(source: R, scope: &'scope Scope<'scope, 'env>) -> Self {
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        Self { source: Source::Here(source), scope, buffer, unread: 0..0, filled: 0 }
    }

    /// Returns the number of bytes read so far.
    pub fn offset(&self) -> u64 {
        self.filled - self.unread.len() as u64
    }

    /// Returns the next bytes as far as they are in the buffer. They are read by [`consume`](Self::consume).
    pub fn buffered(&self) -> &[u8] {
        &self.buffer[self.unread.clone()]
    }

    /// Reads the first `bytes` bytes of what is in the buffer.
    pub fn consume(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.unread.len(), "{bytes} of {:?}", self.unread);
        self.unread.start += bytes;
    }

    /// Reads the next bytes. Fails with [`ErrorKind::UnexpectedEof`] if there are fewer.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        if let Some(bytes) = self.buffer[self.unread.clone()].first_chunk() {
            self.unread.start += N;
            return Ok(*bytes);
        }
        self.array_across()
    }

    /// Reads bytes of which some are not in the buffer yet.
    #[cold]
    fn array_across<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    /// Fills `bytes` with the next bytes. Fails with [`ErrorKind::UnexpectedEof`] if there are fewer.
    pub fn fill(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < bytes.len() {
            let piece = self.piece(bytes.len() - filled)?;
            bytes[filled..filled + piece.len()].copy_from_slice(piece);
            filled += piece.len();
        }
        Ok(())
    }

    /// Returns up to `most` of the next bytes, at least one. Fails with [`ErrorKind::UnexpectedEof`] if there are none.
    pub fn piece(&mut self, most: usize) -> io::Result<&[u8]> {
        if self.unread.is_empty() {
            let read = loop {
                match self.read() {
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    other => break other?,
                }
            };
            if read == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            self.filled += read as u64;
            self.unread = 0..read;
        }
        let start = self.unread.start;
        let end = self.unread.end.min(start.saturating_add(most));
        self.unread.start = end;
        Ok(&self.buffer[start..end])
    }

    /// Reads from the source into the buffer: once it is known to be large, ahead.
    fn read(&mut self) -> io::Result<usize> {
        if self.filled >= HERE_BYTES {
            self.source = match std::mem::replace(&mut self.source, Source::Nothing) {
                Source::Here(source) => {
                    ReadAhead::start(self.scope, source).map_or_else(Source::OnlyHere, Source::Ahead)
                }
                other => other,
            };
        }
        match &mut self.source {
            Source::Here(source) | Source::OnlyHere(source) => source.read(&mut self.buffer),
            Source::Ahead(ahead) => ahead.read(&mut self.buffer),
            Source::Nothing => Ok(0),
        }
    }
}

const BUFFER_BYTES: usize = 64 << 10;
/// Bytes that are read before a thread does it: smaller sources are read sooner without one.
const HERE_BYTES: u64 = 1 << 20;
