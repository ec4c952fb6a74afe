//! Packets with descriptors over unix sockets.

use crate::error::ShareError;
use crate::messages::{MOST_BYTES, MOST_DESCRIPTORS};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, recvmsg, sendmsg,
    socket_with,
};
use rustix::process::geteuid;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_millis(900);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Makes `call` again when a signal interrupts it, as long as the answer may take. The system does not, not even for handlers
/// with `SA_RESTART`, where a socket has a time limit.
fn despite_signals<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    let start = Instant::now();
    loop {
        match call() {
            Err(Errno::INTR) if start.elapsed() < PATIENCE => {}
            Err(Errno::INTR) => return Err(Errno::AGAIN),
            done => return done,
        }
    }
}

fn socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags | SocketFlags::CLOEXEC, None)
}

/// A socket that others connect to.
pub fn listening(path: &Path) -> Result<OwnedFd, ShareError> {
    let told = ShareError::system("the socket for other processes");
    let listener = socket(SocketFlags::NONBLOCK).map_err(&told)?;
    bind(&listener, &SocketAddrUnix::new(path).map_err(&told)?).map_err(&told)?;
    listen(&listener, BACKLOG).map_err(&told)?;
    Ok(listener)
}

/// Whether nobody listens at a socket any more.
pub fn is_abandoned(path: &Path) -> bool {
    let Ok(address) = SocketAddrUnix::new(path) else { return false };
    socket(SocketFlags::NONBLOCK).is_ok_and(|socket| connect(&socket, &address) == Err(Errno::CONNREFUSED))
}

/// Connects to the socket of a process of the same user, whose answers are waited for less than a second.
pub fn connected(path: &Path) -> Result<OwnedFd, ShareError> {
    let gone = |errno: Errno| ShareError::ExporterGone(errno.into());
    let socket = socket(SocketFlags::empty()).map_err(ShareError::system("a socket"))?;
    for timeout in [Timeout::Recv, Timeout::Send] {
        set_socket_timeout(&socket, timeout, Some(PATIENCE)).map_err(ShareError::system("a socket"))?;
    }
    let address = SocketAddrUnix::new(path).map_err(gone)?;
    despite_signals(|| connect(&socket, &address)).map_err(gone)?;
    match user_of(&socket)? {
        uid if uid == geteuid().as_raw() => Ok(socket),
        uid => Err(ShareError::OtherUser { path: path.to_owned(), uid }),
    }
}

/// The user of the process at the other end.
pub fn user_of(socket: impl AsFd) -> Result<u32, ShareError> {
    let credentials = socket_peercred(socket).map_err(ShareError::system("the user of a socket"))?;
    Ok(credentials.uid.as_raw())
}

/// Sends a packet with descriptors.
pub fn send(
    socket: impl AsFd,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), Errno> {
    // Everything that is sent is bounded by the limits of `messages`.
    let packet = postcard::to_stdvec(message).expect("messages can be written");
    debug_assert!(packet.len() <= MOST_BYTES && descriptors.len() <= MOST_DESCRIPTORS);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(descriptors)), "there is room for that many");
    }
    let packet = [IoSlice::new(&packet)];
    despite_signals(|| sendmsg(&socket, &packet, &mut ancillary, flags | SendFlags::NOSIGNAL)).map(drop)
}

/// What came in one packet.
#[derive(Debug)]
pub enum Packet<T> {
    /// A message with descriptors.
    Message(T, Vec<OwnedFd>),
    /// The other end is closed.
    End,
    /// Something else; its descriptors are closed.
    Nonsense,
}

/// Receives a packet.
pub fn receive<T: DeserializeOwned>(socket: impl AsFd, flags: RecvFlags) -> Result<Packet<T>, Errno> {
    let mut bytes = vec![0; MOST_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let got = despite_signals(|| recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags))?;
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if got.bytes == 0 {
        return Ok(Packet::End);
    }
    if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Ok(Packet::Nonsense);
    }
    // A packet is one message, without anything behind it.
    Ok(match postcard::take_from_bytes(&bytes[..got.bytes]) {
        Ok((message, [])) => Packet::Message(message, descriptors),
        _ => Packet::Nonsense,
    })
}
