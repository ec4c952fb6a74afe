//! Reads a pickle's bytes: most reads are of one to eight bytes, and there are hundreds of millions of them.

use std::io::{self, ErrorKind, Read};

/// A reader with a buffer of its own, so that a small read is a copy from it.
pub struct Input<R> {
    source: R,
    buffer: Box<[u8]>,
    /// The bytes of `buffer` that were not read yet.
    unread: std::ops::Range<usize>,
    /// Position of the end of the buffer in the source.
    filled: u64,
}

impl<R: Read> Input<R> {
    pub fn new(source: R) -> Self {
        Self { source, buffer: vec![0; BUFFER_BYTES].into_boxed_slice(), unread: 0..0, filled: 0 }
    }

    /// Returns the number of bytes read so far.
    pub fn offset(&self) -> u64 {
        self.filled - self.unread.len() as u64
    }

    /// Reads the next bytes. Fails with [`ErrorKind::UnexpectedEof`] if there are fewer.
    pub fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        if let Some(bytes) = self.buffer[self.unread.clone()].first_chunk() {
            self.unread.start += N;
            return Ok(*bytes);
        }
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
                match self.source.read(&mut self.buffer) {
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
}

const BUFFER_BYTES: usize = 64 << 10;
