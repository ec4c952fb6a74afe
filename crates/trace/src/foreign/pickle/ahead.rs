//! Reads a large source on a thread of its own, a few pieces ahead of who takes them: reading and unpacking a file take as long as
//! making values of it.

use std::io::{self, ErrorKind, Read};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{Builder, Scope};

/// A source that is read on another thread. That thread ends with the source, or once a read of it has returned after this was
/// dropped.
pub struct ReadAhead {
    filled: Receiver<io::Result<Vec<u8>>>,
    emptied: Sender<Vec<u8>>,
    piece: Vec<u8>,
    taken: usize,
}

impl ReadAhead {
    /// Starts to read `source`. Gives it back where the system has no thread for it.
    pub fn start<'scope, R: Read + Send + 'scope>(scope: &'scope Scope<'scope, '_>, source: R) -> Result<Self, R> {
        let (to_thread, given) = channel();
        let (emptied, empty) = channel();
        let (full, filled) = sync_channel(PIECES);
        let thread = move || {
            if let Ok(source) = given.recv() {
                fill(source, &empty, &full);
            }
        };
        if Builder::new().spawn_scoped(scope, thread).is_err() {
            return Err(source);
        }
        to_thread.send(source).map_err(|lost| lost.0)?;
        Ok(Self { filled, emptied, piece: Vec::new(), taken: 0 })
    }
}

impl Read for ReadAhead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.piece.len() {
            // After its last piece the thread is gone.
            let Ok(next) = self.filled.recv() else { return Ok(0) };
            let emptied = std::mem::replace(&mut self.piece, next?);
            self.taken = 0;
            let _ = self.emptied.send(emptied);
        }
        let read = (&self.piece[self.taken..]).read(buffer)?;
        self.taken += read;
        Ok(read)
    }
}

/// Reads a source to its end or its first error, as long as anybody takes what is read.
fn fill(mut source: impl Read, empty: &Receiver<Vec<u8>>, full: &SyncSender<io::Result<Vec<u8>>>) {
    loop {
        let mut piece = empty.try_recv().unwrap_or_default();
        piece.resize(PIECE_BYTES, 0);
        let read = loop {
            match source.read(&mut piece) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        let is_last = matches!(read, Ok(0) | Err(_));
        let piece = read.map(|read| {
            piece.truncate(read);
            piece
        });
        if full.send(piece).is_err() || is_last {
            return;
        }
    }
}

/// Most pieces that are read ahead.
const PIECES: usize = 4;
/// Most bytes of a piece.
const PIECE_BYTES: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns few bytes at a time, is interrupted in between, and fails at its end, if it has one.
    struct Slow {
        left: usize,
        calls: usize,
    }

    impl Read for Slow {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.calls += 1;
            if self.calls.is_multiple_of(3) {
                return Err(ErrorKind::Interrupted.into());
            }
            if self.left == 0 {
                return Err(ErrorKind::TimedOut.into());
            }
            let read = self.left.min(buffer.len()).min(70_000);
            buffer[..read].fill(7);
            self.left -= read;
            Ok(read)
        }
    }

    #[test]
    fn all_bytes_arrive_and_then_the_error() {
        std::thread::scope(|scope| {
            let Ok(mut ahead) = ReadAhead::start(scope, Slow { left: 3_000_000, calls: 0 }) else {
                panic!("there is a thread")
            };
            let mut read = Vec::new();
            assert_eq!(ahead.read_to_end(&mut read).unwrap_err().kind(), ErrorKind::TimedOut);
            assert!(read.len() == 3_000_000 && read.iter().all(|byte| *byte == 7));
            assert_eq!(ahead.read(&mut [0; 4]).unwrap(), 0);
        });
    }

    #[test]
    fn an_endless_source_is_read_no_further_than_it_is_taken() {
        std::thread::scope(|scope| {
            let Ok(mut ahead) = ReadAhead::start(scope, io::repeat(9)) else { panic!("there is a thread") };
            let mut buffer = [0; 10];
            ahead.read_exact(&mut buffer).unwrap();
            assert_eq!(buffer, [9; 10]);
        });
    }
}
