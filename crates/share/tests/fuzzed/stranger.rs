//! An importer that keeps to no rule: it knows tokens, and says what it likes.

use super::input::Input;
use super::packets::{
    self, BUSY, CHUNKS, CLOSE, CLOSED, DESCRIPTORS, GONE, LISTED, OPEN, OPENED, PASSED, REFUSED, packet,
};
use rustix::fd::OwnedFd;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// How long an answer may take. Most take microseconds.
const LIMIT: Duration = Duration::from_secs(20);

/// What a stranger knows of a block that was offered.
#[derive(Clone, Copy)]
pub struct Known<'a> {
    pub token: &'a [u8],
    pub is_live: bool,
}

pub struct Stranger {
    socket: OwnedFd,
    /// The blocks that it has open: how often, by their numbers. `None` where it has not read what it was answered.
    open: Option<HashMap<u64, u64>>,
    asked: u64,
}

/// The connection has ended.
pub struct Ended;

impl Stranger {
    /// Connects to a socket, if there is one.
    pub fn connect(path: &[u8]) -> Option<Self> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let socket = socket.expect("a socket");
        connect(&socket, &SocketAddrUnix::new(OsStr::from_bytes(path)).expect("a path")).ok()?;
        set_socket_timeout(&socket, Timeout::Recv, Some(LIMIT)).expect("a time");
        Some(Self { socket, open: Some(HashMap::new()), asked: 0 })
    }

    /// Says one thing, of which the input tells what, and how.
    pub fn say(&mut self, input: &mut Input<'_>, known: &[Known<'_>]) -> Result<(), Ended> {
        let (kind, manner) = (input.byte(), input.byte());
        let raw = input.index(32).unwrap_or(0);
        self.asked += 1;
        let mut question = packet(&[self.asked, u64::from(kind % 4)]);
        let mut token = None;
        match kind % 4 {
            _ if kind >= 240 => question = input.bytes(8 * raw).to_vec(),
            OPEN => {
                let index = usize::from(input.byte());
                token = known.get(index % 16).copied().filter(|_| index < 240);
                question.extend_from_slice(token.map_or(&[7; 16], |known| known.token));
            }
            CHUNKS => [input.number(), input.number()].iter().for_each(|number| packets::push(&mut question, *number)),
            DESCRIPTORS => {
                packets::push(&mut question, input.number());
                // Up to one more than are passed at a time.
                let which: Vec<u64> = (0..if raw == 31 { 65 } else { raw }).map(|_| input.number()).collect();
                packets::push(&mut question, which.len() as u64);
                which.iter().for_each(|number| packets::push(&mut question, *number));
            }
            _ => packets::push(&mut question, input.number()),
        }
        let (is_well_said, mut with) = (kind < 240 && manner < 128, Vec::new());
        match manner {
            0..128 => {}
            // The half of it, more than it, or a descriptor with it.
            128..144 => question.truncate(question.len() / 2),
            144..160 => question.push(manner),
            160..168 => question.resize(40_000, 0),
            168..176 => with.push(self.socket.try_clone().expect("a descriptor")),
            // Many times, and not read.
            176..200 => {
                self.open = None;
                for _ in 0..manner {
                    self.speak(&question, &[])?;
                }
                return Ok(());
            }
            // Once, and not read.
            _ => {
                self.open = None;
                return self.speak(&question, &[]);
            }
        }
        if question.is_empty() {
            return Ok(());
        }
        self.speak(&question, &with)?;
        let (answer, descriptors) = packets::hear(&self.socket, RecvFlags::empty()).map_err(|error| {
            assert!(error != rustix::io::Errno::AGAIN, "a question is not answered: {question:?}");
            Ended
        })?;
        if answer.is_empty() {
            // The answers to what was not read may have been too many, and what makes no sense ends the connection.
            return Err(Ended);
        }
        if is_well_said && self.open.is_some() {
            return self.look_at(&question, &answer, descriptors, token);
        }
        let is_busy = answer.get(1) == Some(&BUSY);
        assert!(kind >= 240 || self.open.is_none() || is_busy, "nonsense is answered: {question:?}: {answer:?}");
        self.open = None;
        Ok(())
    }

    fn speak(&self, question: &[u8], descriptors: &[OwnedFd]) -> Result<(), Ended> {
        if packets::say(&self.socket, question, descriptors) { Ok(()) } else { Err(Ended) }
    }

    /// The answer to a question that makes sense is what it has to be.
    fn look_at(
        &mut self,
        question: &[u8],
        mut answer: &[u8],
        descriptors: usize,
        token: Option<Known<'_>>,
    ) -> Result<(), Ended> {
        let open = self.open.as_mut().expect("all was read");
        let (mut asked, said) = (question, format!("{question:?}: {answer:?}"));
        let next = |packet: &mut &[u8]| packets::number(packet).expect("a number");
        let (number, kind) = (next(&mut asked), next(&mut asked) as u8);
        let (answered, reply) = (next(&mut answer), next(&mut answer) as u8);
        if reply == BUSY {
            return Err(Ended);
        }
        assert_eq!(number, answered, "{said}");
        assert!(descriptors == 0 || reply == PASSED, "{said}");
        if kind == OPEN {
            match reply {
                OPENED => {
                    assert!(token.is_some_and(|known| known.is_live), "S2: opened, though it is gone: {said}");
                    *open.entry(next(&mut answer)).or_insert(0) += 1;
                }
                GONE => assert!(token.is_none_or(|known| !known.is_live), "S2: a live block is gone: {said}"),
                _ => panic!("{said}"),
            }
            return Ok(());
        }
        let named = next(&mut asked);
        let is_open = open.get(&named).is_some_and(|times| *times > 0);
        match (kind, reply) {
            (CHUNKS, LISTED) | (DESCRIPTORS, PASSED) => assert!(is_open, "not open: {said}"),
            (CLOSE, CLOSED) => {
                assert!(is_open, "it was not open: {said}");
                *open.get_mut(&named).expect("it is open") -= 1;
            }
            (CHUNKS | CLOSE, REFUSED) => assert!(!is_open, "refused, though it is open: {said}"),
            (DESCRIPTORS, REFUSED) => {}
            _ => panic!("{said}"),
        }
        if reply == PASSED {
            assert_eq!(descriptors as u64, next(&mut asked), "{said}");
        }
        Ok(())
    }
}

/// Many that connect at once, say something or nothing, and are gone without a word.
pub fn flood(path: &[u8], input: &mut Input<'_>, known: &[Known<'_>]) {
    let (number, says) = (usize::from(input.byte()) / 4, input.byte());
    let mut question = packet(&[1, 0]);
    question.extend_from_slice(known.first().map_or(&[7; 16], |known| known.token));
    let all: Vec<Stranger> = (0..number).map_while(|_| Stranger::connect(path)).collect();
    for (index, one) in all.iter().enumerate() {
        if index % 8 < usize::from(says % 9) {
            let _ = one.speak(&question, &[]);
        }
    }
}
