//! A connection of the importing side: one question at a time, with its answer.
//!
//! An answer that does not come in time is one that may still come: questions are numbered, and what answers one that was given
//! up is not taken for the answer to another.
//!
//! Threads: any; those that ask the same exporter wait for each other.

use crate::error::ShareError;
use crate::handle::{Source, Token};
use crate::messages::{Answer, ListedChunk, Question, Reply, Request, UNASKED};
use crate::patience::Patience;
use crate::sockets::{self, Packet};
use parking_lot::{Mutex, MutexGuard};
use rustix::event::PollFlags;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Most chunks of a block: as many as 2 TiB have in pages of 2 MiB.
const MOST_CHUNKS: u64 = 1 << 20;
/// How long one waits to hear that something is closed.
const FAREWELL: Duration = Duration::from_millis(900);
/// Most questions without an answer, of which all but one were given up: the exporter gives up a connection that does not read.
const MOST_UNANSWERED: u64 = 32;

/// A connection to an exporter. What is open through it counts as long as it lasts.
#[derive(Debug)]
pub struct Connection {
    /// No other connection of this process has or had it.
    pub id: u64,
    pub source: Source,
    socket: OwnedFd,
    talk: Mutex<Talk>,
    /// The blocks whose end is to be reported as soon as that can be done. Locked for moments only.
    owed: Mutex<Vec<u64>>,
    /// Number of opens whose end is not owed yet. Counted up with the talk locked.
    open: AtomicU64,
}

/// How far the questions and answers have come.
#[derive(Debug)]
struct Talk {
    /// The number of the last question.
    last: u64,
    /// The number of the last one that was answered. Answers come in the order of their questions.
    heard: u64,
    /// The number of the last one that asks for a block to be opened.
    opening: u64,
}

/// A block that the exporter has pinned.
#[derive(Debug)]
pub struct Opened {
    pub open: u64,
    /// Where it is in its chunks.
    pub place: Range<u64>,
    /// Their number.
    pub chunks: u64,
}

impl Connection {
    /// A connection to an exporter.
    pub fn new(source: &Source, patience: &Patience) -> Result<Self, ShareError> {
        static CONNECTIONS: AtomicU64 = AtomicU64::new(0);
        let socket = sockets::connected(&source.socket, patience)?;
        let (talk, owed) = (Mutex::new(Talk { last: UNASKED, heard: UNASKED, opening: UNASKED }), Mutex::default());
        let id = CONNECTIONS.fetch_add(1, Ordering::Relaxed);
        Ok(Self { id, source: source.clone(), socket, talk, owed, open: AtomicU64::new(0) })
    }

    /// The talk, once nobody else asks.
    fn talk(&self, patience: &Patience) -> Result<MutexGuard<'_, Talk>, ShareError> {
        let locked = match patience.until() {
            Some(until) => self.talk.try_lock_until(until),
            None => Some(self.talk.lock()),
        };
        locked.ok_or_else(|| patience.over())
    }

    /// Asks, and waits for the answer.
    fn ask(&self, request: Request, patience: &Patience) -> Result<(Reply, Vec<OwnedFd>), ShareError> {
        let mut talk = self.talk(patience)?;
        self.say_what_is_owed(&mut talk, patience)?;
        self.say(&mut talk, request, patience)?;
        let answer = self.answer(&mut talk, patience);
        if matches!(answer, Ok((Reply::Opened { .. }, _))) {
            self.open.fetch_add(1, Ordering::Relaxed);
        }
        let _ = self.say_what_is_owed(&mut talk, &Patience::of(Duration::ZERO));
        answer
    }

    /// Closes what others could not, or could not wait to.
    fn say_what_is_owed(&self, talk: &mut Talk, patience: &Patience) -> Result<(), ShareError> {
        while talk.last - talk.heard < MOST_UNANSWERED {
            let Some(open) = pop(&self.owed) else { break };
            if let Err(error) = self.say(talk, Request::Close { open }, patience) {
                self.owed.lock().push(open);
                return Err(error);
            }
        }
        Ok(())
    }

    fn say(&self, talk: &mut Talk, request: Request, patience: &Patience) -> Result<(), ShareError> {
        let question = Question { number: talk.last + 1, request };
        loop {
            match sockets::send(&self.socket, &question, &[]) {
                Err(Errno::AGAIN) => sockets::wait(&self.socket, PollFlags::OUT, patience)?,
                Err(errno) => return Err(self.lost(errno)),
                Ok(()) => {
                    talk.last = question.number;
                    if matches!(question.request, Request::Open { .. }) {
                        talk.opening = question.number;
                    }
                    return Ok(());
                }
            }
        }
    }

    /// The answer to the last question.
    fn answer(&self, talk: &mut Talk, patience: &Patience) -> Result<(Reply, Vec<OwnedFd>), ShareError> {
        loop {
            let (Answer { number, reply }, descriptors) = match sockets::receive(&self.socket) {
                Ok(Packet::Message(answer, descriptors)) => (answer, descriptors),
                Ok(Packet::NoRoom(Answer { number, .. })) => {
                    talk.heard = number;
                    return Err(ShareError::FewDescriptors);
                }
                Ok(Packet::End) => return Err(ShareError::ExporterGone(io::ErrorKind::ConnectionAborted.into())),
                Ok(Packet::Nonsense) => return Err(ShareError::Message("a packet that is none")),
                Err(Errno::AGAIN) => {
                    sockets::wait(&self.socket, PollFlags::IN, patience)?;
                    continue;
                }
                Err(errno) => return Err(self.lost(errno)),
            };
            if matches!(reply, Reply::Busy) {
                return Err(ShareError::Busy);
            }
            if !(talk.heard + 1..=talk.last).contains(&number) {
                return Err(ShareError::Message("an answer to nothing that was asked"));
            }
            talk.heard = number;
            match reply {
                // Whoever asked does not wait any more, and nobody knows that it is open.
                Reply::Opened { open, .. } if number < talk.last => self.owed.lock().push(open),
                _ if number < talk.last => {}
                Reply::Gone => return Err(ShareError::Gone),
                Reply::Refused(reason) => return Err(ShareError::Refused(printable(&reason))),
                Reply::FewDescriptors => return Err(ShareError::FewDescriptors),
                reply => return Ok((reply, descriptors)),
            }
        }
    }

    /// Why the connection does not go on: what its end was said to be for, or that it has ended.
    fn lost(&self, errno: Errno) -> ShareError {
        match sockets::receive::<Answer>(&self.socket) {
            Ok(Packet::Message(Answer { reply: Reply::Busy, .. }, _)) => ShareError::Busy,
            _ => ShareError::ExporterGone(errno.into()),
        }
    }

    /// Opens a block.
    pub fn open(&self, token: Token, patience: &Patience) -> Result<Opened, ShareError> {
        let (Reply::Opened { open, bytes, offset, chunks }, _) = self.ask(Request::Open { token }, patience)? else {
            return Err(ShareError::Message("no block where one was asked for"));
        };
        let Some(end) = offset.checked_add(bytes) else {
            self.close_unheard(open);
            return Err(ShareError::Message("a block that is larger than its chunks"));
        };
        Ok(Opened { open, place: offset..end, chunks })
    }

    /// The chunks of an open block.
    pub fn chunks(&self, opened: &Opened, patience: &Patience) -> Result<Vec<ListedChunk>, ShareError> {
        let listed = self.list(opened.open, opened.chunks, patience)?;
        match listed.iter().try_fold(0_u64, |sum, chunk| sum.checked_add(chunk.bytes)) {
            Some(total) if opened.place.end <= total => Ok(listed),
            _ => Err(ShareError::Message("a block that is larger than its chunks")),
        }
    }

    fn list(&self, open: u64, chunks: u64, patience: &Patience) -> Result<Vec<ListedChunk>, ShareError> {
        if chunks == 0 || chunks > MOST_CHUNKS {
            return Err(ShareError::Message("a block without chunks, or with too many"));
        }
        let mut listed = Vec::new();
        while (listed.len() as u64) < chunks {
            let (Reply::Chunks(more), _) = self.ask(Request::Chunks { open, from: listed.len() as u64 }, patience)?
            else {
                return Err(ShareError::Message("no chunks where these were asked for"));
            };
            if more.is_empty() || more.iter().any(|chunk| chunk.bytes == 0) {
                return Err(ShareError::Message("chunks that are missing or empty"));
            }
            listed.extend(more);
        }
        let numbers: HashSet<u64> = listed.iter().map(|chunk| chunk.number).collect();
        if numbers.len() as u64 != chunks || listed.len() as u64 != chunks {
            return Err(ShareError::Message("more chunks than the block has, or one of them twice"));
        }
        Ok(listed)
    }

    /// Descriptors of chunks, in the order of `which`.
    pub fn descriptors(&self, open: u64, which: &[u64], patience: &Patience) -> Result<Vec<OwnedFd>, ShareError> {
        match self.ask(Request::Descriptors { open, which: which.to_vec() }, patience)? {
            (Reply::Descriptors, descriptors) if descriptors.len() == which.len() => Ok(descriptors),
            _ => Err(ShareError::Message("other descriptors than were asked for")),
        }
    }

    /// Closes a block, without a wait for anybody: the exporter is notified now, or with the next question.
    pub fn close_unheard(&self, open: u64) {
        self.owe_close(open);
        if let Some(mut talk) = self.talk.try_lock() {
            let _ = self.say_what_is_owed(&mut talk, &Patience::of(Duration::ZERO));
        }
    }

    fn owe_close(&self, open: u64) {
        self.owed.lock().push(open);
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Ends it if nobody asks, nothing is open through it, and something may be at the exporter that nobody would close: what an
    /// answer opens that comes too late, or what could not be reported. Returns whether it has ended; then the next question needs
    /// another one.
    pub fn end_in_vain(&self) -> bool {
        let Some(talk) = self.talk.try_lock() else { return false };
        let is_left = talk.heard < talk.opening || !self.owed.lock().is_empty();
        let is_in_vain = is_left && self.open.load(Ordering::Relaxed) == 0;
        if is_in_vain {
            // Mappings that are kept hold the socket.
            let _ = shutdown(&self.socket, Shutdown::Both);
        }
        is_in_vain
    }

    /// Closes what answers have opened that came too late, if they are there by now. Waits for nobody.
    pub fn hear_late_answers(&self) {
        if let Some(mut talk) = self.talk.try_lock() {
            self.hear(&mut talk);
        }
    }

    fn hear(&self, talk: &mut Talk) {
        let now = Patience::of(Duration::ZERO);
        if talk.heard < talk.last
            && let Ok((Reply::Opened { open, .. }, _)) = self.answer(talk, &now)
        {
            self.owed.lock().push(open);
        }
        let _ = self.say_what_is_owed(talk, &now);
    }

    /// Closes a block. Returns once the exporter has closed it, too, unless that does not answer: then it is notified all the same.
    pub fn close(&self, open: u64) {
        self.owe_close(open);
        let patience = Patience::of(FAREWELL);
        // Whoever asks something meanwhile says it then.
        let Ok(mut talk) = self.talk(&patience) else { return };
        if talk.heard < talk.last {
            // An answer is owed already: what comes is not waited for.
            self.hear(&mut talk);
        } else if self.say_what_is_owed(&mut talk, &patience).is_ok() {
            // Where the other process has ended, there is nothing to give back.
            let _ = self.answer(&mut talk, &patience);
        }
    }
}

/// A text of the other process as it may be printed: what a terminal takes for orders is left out.
fn printable(text: &str) -> String {
    let is_order = |c: &char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().filter(|c| !is_order(c)).collect()
}

fn pop(owed: &Mutex<Vec<u64>>) -> Option<u64> {
    owed.lock().pop()
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn a_reason_gives_no_orders_to_a_terminal() {
        assert_eq!(
            printable("kein Platz für \u{1b}[2Jeins\n\u{202e}und\u{2066} zwei"),
            "kein Platz für [2Jeinsund zwei"
        );
    }
}
