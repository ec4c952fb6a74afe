//! The protocol once more, as those write and read it who keep to it as far as they like.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

/// Kinds of questions.
pub const OPEN: u8 = 0;
pub const CHUNKS: u8 = 1;
pub const DESCRIPTORS: u8 = 2;
pub const CLOSE: u8 = 3;

/// Kinds of answers.
pub const OPENED: u8 = 0;
pub const LISTED: u8 = 1;
pub const PASSED: u8 = 2;
pub const CLOSED: u8 = 3;
pub const GONE: u8 = 4;
pub const BUSY: u8 = 5;
pub const REFUSED: u8 = 6;
pub const FEW_DESCRIPTORS: u8 = 7;

/// Most descriptors that a packet comes with.
const MOST_DESCRIPTORS: usize = 64;

/// A packet with these numbers, which are of few bytes where they are small.
pub fn packet(numbers: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::new();
    numbers.iter().for_each(|number| push(&mut bytes, *number));
    bytes
}

pub fn push(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Takes a number off a packet.
pub fn number(packet: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = *packet.split_off_first()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

/// Sends a packet without a wait. Whether it was sent: whoever does not read, or has ended, gets none.
pub fn say(socket: &OwnedFd, packet: &[u8], descriptors: &[OwnedFd]) -> bool {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS + 1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
    if !descriptors.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)), "there is room");
    }
    let flags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);
    sendmsg(socket, &[IoSlice::new(packet)], &mut ancillary, flags).is_ok()
}

/// What has come: the bytes of a packet, of which there are none at the end, and the number of its descriptors, which are closed.
/// An error where nothing comes in time.
pub fn hear(socket: &OwnedFd, flags: RecvFlags) -> rustix::io::Result<(Vec<u8>, usize)> {
    let mut bytes = vec![0; 1 << 15];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = flags.union(RecvFlags::CMSG_CLOEXEC);
    let got = recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags)?;
    let mut descriptors = 0;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors += rights.count();
        }
    }
    bytes.truncate(got.bytes);
    Ok((bytes, descriptors))
}
