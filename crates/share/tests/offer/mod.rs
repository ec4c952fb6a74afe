//! An exporter with one block that is offered, and what plays its peers.

#![allow(dead_code, reason = "each test file uses a part of it")]

use gapless::driver::{HostConfig, HostDriver};
use gapless::units::StreamId;
use gapless::{Allocator, DeviceAddr};
use gapless_share::{Exporter, FOLDER, Handle, Importer};
use rustix::fd::OwnedFd;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, recv, send,
    socket_with,
};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub const PAGE: u64 = 2 << 20;
pub const MAIN: StreamId = StreamId::DEFAULT;

/// Names the folder of the sockets, for one test at a time.
pub fn folder(path: &Path) -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: whatever else this process does at the same time reads the environment through std, if at all, which locks it.
    unsafe { std::env::set_var(FOLDER, path) };
    turn
}

pub const NO_TIME: Duration = Duration::ZERO;
pub const MUCH_TIME: Duration = Duration::from_secs(600);
/// How long a test waits for what takes milliseconds.
pub const LIMIT: Duration = Duration::from_secs(20);

/// Kinds of answers, as they are written behind the number of the question.
pub const OPENED: u8 = 0;
pub const CLOSED: u8 = 3;
pub const GONE: u8 = 4;
pub const BUSY: u8 = 5;
pub const REFUSED: u8 = 6;

pub fn device() -> Arc<HostDriver> {
    Arc::new(HostDriver::new(HostConfig::default()).unwrap())
}

/// An allocator with one block that is offered, and the path of the socket.
pub struct Offer {
    pub allocator: Allocator<HostDriver>,
    pub exporter: Exporter<HostDriver>,
    pub block: DeviceAddr,
    pub handle: Handle,
    pub socket: PathBuf,
}

impl Offer {
    pub fn new() -> Self {
        let allocator = Allocator::builder(device()).build().unwrap();
        let exporter = Exporter::new();
        let block = allocator.alloc_raw(PAGE, MAIN).unwrap();
        let handle = exporter.export(&allocator, block).unwrap();
        let bytes = handle.to_bytes();
        let path = &bytes[41..41 + usize::from(bytes[40])];
        let socket = PathBuf::from(std::ffi::OsStr::from_bytes(path));
        Self { allocator, exporter, block, handle, socket }
    }

    pub fn connect(&self) -> OwnedFd {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(&self.socket).unwrap()).unwrap();
        socket
    }

    /// Opens the block without an importer. Returns which kind of answer came.
    pub fn open_by(&self, socket: &OwnedFd) -> u8 {
        let question: Vec<u8> = [1, 0].into_iter().chain(self.handle.to_bytes()[24..40].iter().copied()).collect();
        send(socket, &question, SendFlags::empty()).unwrap();
        let mut bytes = [0; 1 << 14];
        let (got, _) = recv(socket, &mut bytes[..], RecvFlags::empty()).unwrap();
        assert!(got > 1, "the connection has ended");
        bytes[1]
    }

    /// The same handle, but for the socket, which this process listens at.
    pub fn handle_of_another(&self, path: &Path) -> (Handle, OwnedFd) {
        let mut bytes = self.handle.to_bytes();
        let name = path.as_os_str().as_bytes();
        bytes[40] = u8::try_from(name.len()).unwrap();
        bytes[41..176].fill(0);
        bytes[41..41 + name.len()].copy_from_slice(name);
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(path).unwrap()).unwrap();
        listen(&listener, 8).unwrap();
        // Who waits for a connection that does not come is not to hang.
        set_socket_timeout(&listener, Timeout::Recv, Some(LIMIT)).unwrap();
        (Handle::from_bytes(&bytes).unwrap(), listener)
    }

    /// A name in the same folder as the process's sockets have, of none of them.
    pub fn another_name(&self) -> PathBuf {
        let name = self.socket.file_stem().unwrap().to_str().unwrap();
        let (rest, last) = name.split_at(name.len() - 1);
        self.socket.with_file_name(format!("{rest}{}.sock", if last == "0" { "1" } else { "0" }))
    }

    /// Whether others are served still, and nothing stays pinned.
    pub fn still_serves(&self) {
        let shared = Importer::new(device()).open(&self.handle).unwrap();
        assert_eq!(shared.bytes(), PAGE);
        drop(shared);
        self.allocator.check();
    }

    pub fn end(self) {
        drop(self.exporter);
        self.allocator.free(self.block).unwrap();
        self.allocator.close().unwrap();
    }
}

/// The end of a connection that the other side has closed.
pub fn is_closed(socket: &OwnedFd) -> bool {
    let mut bytes = [0; 1 << 14];
    match recv(socket, &mut bytes[..], RecvFlags::empty()) {
        Ok((got, _)) => got == 0,
        Err(_) => true,
    }
}

/// Returns the question to a process that plays an exporter, its number first.
pub fn asked(connection: &OwnedFd) -> Vec<u8> {
    // A test that fails is not to hang.
    set_socket_timeout(connection, Timeout::Recv, Some(LIMIT)).unwrap();
    let mut bytes = [0; 1 << 14];
    let (got, _) = recv(connection, &mut bytes[..], RecvFlags::empty()).unwrap();
    bytes[..got].to_vec()
}

/// Waits until another thread has seen something.
pub fn eventually(what: &str, holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
