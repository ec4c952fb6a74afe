//! Packets with descriptors over unix sockets.

use crate::error::ShareError;
use crate::messages::{MOST_BYTES, MOST_DESCRIPTORS};
use crate::patience::Patience;
use crate::peer::Peer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, recvmsg, sendmsg,
    socket_with,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::path::Path;
use std::time::Duration;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// A wait in one piece, which the system takes for any number.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

fn socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags.union(SocketFlags::CLOEXEC), None)
}

/// A socket that others connect to.
pub fn listening(path: &Path) -> Result<OwnedFd, ShareError> {
    let failed = ShareError::system("the socket for other processes");
    let listener = socket(SocketFlags::NONBLOCK).map_err(&failed)?;
    bind(&listener, &SocketAddrUnix::new(path).map_err(&failed)?).map_err(&failed)?;
    listen(&listener, BACKLOG).map_err(&failed)?;
    Ok(listener)
}

/// Whether nobody listens at a socket any more.
pub fn is_abandoned(path: &Path) -> bool {
    let Ok(address) = SocketAddrUnix::new(path) else { return false };
    socket(SocketFlags::NONBLOCK).is_ok_and(|socket| connect(&socket, &address) == Err(Errno::CONNREFUSED))
}

/// Connects to the socket of a process of the same user. What is sent and received does not wait.
pub fn connected(path: &Path, patience: &Patience) -> Result<OwnedFd, ShareError> {
    let socket = socket(SocketFlags::empty()).map_err(|errno| match errno {
        Errno::MFILE | Errno::NFILE => ShareError::FewDescriptors,
        _ => ShareError::system("a socket")(errno),
    })?;
    let address = SocketAddrUnix::new(path).map_err(|errno| ShareError::ExporterGone(errno.into()))?;
    loop {
        // While as many wait to be accepted as may, connecting waits; no event shows when that is over.
        let left = patience.left_within(LONGEST_WAIT).ok_or_else(|| patience.over())?;
        let left = left.max(Duration::from_millis(1));
        set_socket_timeout(&socket, Timeout::Send, Some(left)).map_err(ShareError::system("a socket"))?;
        match connect(&socket, &address) {
            Ok(()) => break,
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno @ (Errno::NOENT | Errno::NOTDIR | Errno::CONNREFUSED)) => {
                return Err(ShareError::ExporterGone(errno.into()));
            }
            Err(errno) => return Err(ShareError::system("a connection to the process that shared the block")(errno)),
        }
    }
    match Peer::of(&socket)?.other_user() {
        None => Ok(socket),
        Some(uid) => Err(ShareError::OtherUser { path: path.to_owned(), uid }),
    }
}

/// Waits until a socket can be read from, or written to. A signal does not end the wait.
pub fn wait(socket: impl AsFd, what: PollFlags, patience: &Patience) -> Result<(), ShareError> {
    loop {
        let left = patience.left_within(LONGEST_WAIT).ok_or_else(|| patience.over())?;
        let left = Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&socket, what)], Some(&left)) {
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(ShareError::system("a wait for the other process")(errno)),
        }
    }
}

/// Sends a packet with descriptors, without a wait.
pub fn send(socket: impl AsFd, message: &impl Serialize, descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    // Everything that is sent is bounded by the limits of `messages`.
    let packet = postcard::to_stdvec(message).expect("messages can be written");
    debug_assert!(packet.len() <= MOST_BYTES && descriptors.len() <= MOST_DESCRIPTORS);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(descriptors)), "there is room for that many");
    }
    let packet = [IoSlice::new(&packet)];
    let flags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
    retry_on_intr(|| sendmsg(&socket, &packet, &mut ancillary, flags)).map(drop)
}

/// The contents of one packet.
#[derive(Debug)]
pub enum Packet<T> {
    /// A message with descriptors.
    Message(T, Vec<OwnedFd>),
    /// A message whose descriptors this process has no room for; those that came are closed.
    NoRoom(T),
    /// The other end is closed.
    End,
    /// Something else; its descriptors are closed.
    Nonsense,
}

/// Receives a packet, without a wait.
pub fn receive<T: DeserializeOwned>(socket: impl AsFd) -> Result<Packet<T>, Errno> {
    let mut bytes = vec![0; MOST_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT.union(RecvFlags::CMSG_CLOEXEC);
    let got = retry_on_intr(|| recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags))?;
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if got.bytes == 0 {
        return Ok(Packet::End);
    }
    // A packet is one message, without anything behind it.
    Ok(match postcard::take_from_bytes(&bytes[..got.bytes]) {
        _ if got.flags.contains(ReturnFlags::TRUNC) => Packet::Nonsense,
        Ok((message, [])) if got.flags.contains(ReturnFlags::CTRUNC) => Packet::NoRoom(message),
        Ok((message, [])) => Packet::Message(message, descriptors),
        _ => Packet::Nonsense,
    })
}
