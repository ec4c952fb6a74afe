//! An exporter that keeps to no rule: it answers as its script says.

use super::device;
use super::packets::{
    self, BUSY, CHUNKS, CLOSE, CLOSED, DESCRIPTORS, FEW_DESCRIPTORS, GONE, LISTED, OPEN, OPENED, PASSED, REFUSED,
    packet,
};
use super::{Input, PAGE};
use gapless::driver::{ChunkHandle, HostDriver, MemoryDriver};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Chunks of the block that it has.
const CHUNKS_OF_IT: u64 = 3;
/// How long it looks for questions before it looks whether it is to stop, in nanoseconds.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };

pub struct Liar {
    listener: OwnedFd,
    connections: Vec<OwnedFd>,
    driver: Arc<HostDriver>,
    chunks: Vec<ChunkHandle>,
}

/// What comes of a connection.
enum Then {
    GoesOn,
    Ends,
}

impl Liar {
    pub fn new(path: &Path) -> Self {
        let flags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket");
        bind(&listener, &SocketAddrUnix::new(path).expect("a path")).expect("the name is free");
        listen(&listener, 16).expect("it listens");
        let driver = device();
        let chunks = (0..CHUNKS_OF_IT).map(|_| driver.create(PAGE).expect("there is room")).collect();
        Self { listener, connections: Vec::new(), driver, chunks }
    }

    /// Answers questions with a byte of the script each, until it is to stop. When the script has ended, it ends connections.
    pub fn answer(&mut self, script: &mut Input<'_>, is_over: &AtomicBool) {
        while !is_over.load(Ordering::Acquire) {
            let mut watched = vec![PollFd::new(&self.listener, PollFlags::IN)];
            watched.extend(self.connections.iter().map(|socket| PollFd::new(socket, PollFlags::IN)));
            if poll(&mut watched, Some(&LOOK)).is_err() {
                continue;
            }
            let ready: Vec<bool> = watched.iter().map(|one| !one.revents().is_empty()).collect();
            if let Ok(socket) = accept_with(&self.listener, SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK)) {
                self.connections.push(socket);
            }
            for index in (0..ready.len() - 1).rev().filter(|index| ready[index + 1]) {
                let socket = self.connections.swap_remove(index);
                if matches!(self.answer_one(&socket, script), Then::GoesOn) {
                    self.connections.push(socket);
                }
            }
        }
    }

    fn answer_one(&self, socket: &OwnedFd, script: &mut Input<'_>) -> Then {
        let Ok((question, _)) = packets::hear(socket, RecvFlags::DONTWAIT) else { return Then::Ends };
        if question.is_empty() || script.0.is_empty() {
            return Then::Ends;
        }
        let (number, kind, which) = read(&question);
        let (right, descriptors) = self.right(number, kind, &which);
        let nothing = Vec::new;
        let (answer, descriptors) = match script.byte() {
            0..140 => (right, descriptors),
            140..150 => (packet(&[number, u64::from(GONE)]), nothing()),
            150..155 => (packet(&[number, u64::from(BUSY)]), nothing()),
            155..165 => ([&packet(&[number, u64::from(REFUSED), 5]), &b"\x1b[2J\n"[..]].concat(), nothing()),
            165..170 => (packet(&[number, u64::from(FEW_DESCRIPTORS)]), nothing()),
            170..180 => (packet(&[number, u64::from(script.byte() % 9), script.number()]), descriptors),
            180..188 => ([&right[..right.len() / 2], script.bytes(3)].concat(), descriptors),
            188..194 => (packet(&[script.number(), u64::from(CLOSED)]), descriptors),
            194..226 => self.wrong(number, kind, script, which.len()),
            // Twice, and the second time nobody has asked.
            226..234 => {
                packets::say(socket, &right, &descriptors);
                (right, descriptors)
            }
            234..247 => return Then::Ends,
            // No answer, or one that comes when the next question does.
            247..251 => return Then::GoesOn,
            _ => {
                packets::say(socket, &right, &descriptors);
                return Then::Ends;
            }
        };
        if answer.is_empty() || packets::say(socket, &answer, &descriptors) { Then::GoesOn } else { Then::Ends }
    }

    /// The answer of one that does not lie.
    fn right(&self, number: u64, kind: u8, which: &[u64]) -> (Vec<u8>, Vec<OwnedFd>) {
        match kind {
            OPEN => (packet(&[number, u64::from(OPENED), 9, 2 * PAGE, 100, CHUNKS_OF_IT]), Vec::new()),
            CHUNKS => {
                let listed = (0..CHUNKS_OF_IT).flat_map(|chunk| [chunk, PAGE]);
                (
                    packet(&[&[number, u64::from(LISTED), CHUNKS_OF_IT], &*listed.collect::<Vec<_>>()].concat()),
                    Vec::new(),
                )
            }
            DESCRIPTORS => {
                let chunks = which.iter().map(|index| self.chunks[*index as usize % self.chunks.len()]);
                let descriptors = chunks.map(|chunk| self.driver.export(chunk).expect("it is there")).collect();
                (packet(&[number, u64::from(PASSED)]), descriptors)
            }
            _ => (packet(&[number, u64::from(CLOSED)]), Vec::new()),
        }
    }

    /// An answer of the right kind that is wrong.
    fn wrong(&self, number: u64, kind: u8, script: &mut Input<'_>, asked: usize) -> (Vec<u8>, Vec<OwnedFd>) {
        match kind {
            OPEN => {
                let told = [script.number(), script.number(), script.number()];
                (packet(&[&[number, u64::from(OPENED), 9], &told[..]].concat()), Vec::new())
            }
            CHUNKS => {
                // None, one, one twice, too many, empty ones, and those of sizes that they do not have.
                let length = [0, 1, 2, 3, 4, 500][script.index(6).unwrap_or(0)];
                let (same, bytes) =
                    (script.byte() % 2, [PAGE, 0, 1, 2 * PAGE, 1 << 40, u64::MAX][script.index(6).unwrap_or(0)]);
                let listed = (0..length).flat_map(|chunk| [if same == 1 { 0 } else { chunk }, bytes]);
                (packet(&[&[number, u64::from(LISTED), length], &*listed.collect::<Vec<_>>()].concat()), Vec::new())
            }
            DESCRIPTORS => {
                let length = [0, 1, asked, asked, asked, asked + 1][script.index(6).unwrap_or(0)].min(64);
                let descriptors = (0..length).map(|index| self.descriptor(script.byte(), index)).collect();
                (packet(&[number, u64::from(PASSED)]), descriptors)
            }
            CLOSE => (packet(&[number, u64::from(OPENED), 9, 1, 0, 1]), Vec::new()),
            _ => (Vec::new(), Vec::new()),
        }
    }

    /// A descriptor of something: of the chunk of that index, of another one, or of none.
    fn descriptor(&self, kind: u8, index: usize) -> OwnedFd {
        match kind % 10 {
            0 => File::open("/dev/null").expect("a device").into(),
            1 => std::io::pipe().expect("a pipe").0.into(),
            // A file without a name: an empty one, and one that is too short.
            size @ 2..=3 => {
                let file = memfd_create("liar", MemfdFlags::CLOEXEC).expect("a file");
                ftruncate(&file, u64::from(size - 2) * PAGE / 2).expect("there is room");
                file
            }
            4 => self.listener.try_clone().expect("a descriptor"),
            5 => self.driver.export(self.chunks[0]).expect("it is there"),
            _ => self.driver.export(self.chunks[index % self.chunks.len()]).expect("it is there"),
        }
    }

    /// Nobody has anything of it any more.
    pub fn end(self) {
        drop(self.connections);
        self.chunks.iter().for_each(|chunk| self.driver.release(*chunk).expect("it is not mapped"));
        assert!(self.driver.usage().is_empty(), "S4: left by the liar: {:?}", self.driver.usage());
    }
}

/// The number and kind of a question, and the chunks whose descriptors it is for.
fn read(mut question: &[u8]) -> (u64, u8, Vec<u64>) {
    let mut next = || packets::number(&mut question).unwrap_or(0);
    let (number, kind) = (next(), next() as u8);
    let which = if kind == DESCRIPTORS { (next(), (0..next()).map(|_| next()).collect()).1 } else { Vec::new() };
    (number, kind, which)
}
