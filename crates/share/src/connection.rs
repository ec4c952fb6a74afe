//! A connection of the importing side: one question, one answer.

use crate::error::ShareError;
use crate::handle::{Handle, Token};
use crate::messages::{ListedChunk, Reply, Request};
use crate::sockets::{self, Packet};
use rustix::fd::OwnedFd;
use rustix::net::{RecvFlags, SendFlags};
use std::collections::HashSet;
use std::io;
use std::ops::Range;

/// Most chunks of a block: as many as 2 TiB have in pages of 2 MiB.
const MOST_CHUNKS: u64 = 1 << 20;

/// A connection to an exporter. What is open through it counts as long as it lasts.
#[derive(Debug)]
pub struct Connection {
    pub exporter: Token,
    socket: OwnedFd,
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
    /// A connection to the exporter of a handle.
    pub fn new(handle: &Handle) -> Result<Self, ShareError> {
        Ok(Self { exporter: handle.exporter, socket: sockets::connected(&handle.socket)? })
    }

    fn ask(&self, request: &Request) -> Result<(Reply, Vec<OwnedFd>), ShareError> {
        let gone = |errno: rustix::io::Errno| ShareError::ExporterGone(errno.into());
        sockets::send(&self.socket, request, &[], SendFlags::empty()).map_err(gone)?;
        match sockets::receive(&self.socket, RecvFlags::empty()).map_err(gone)? {
            Packet::Message(Reply::Gone, _) => Err(ShareError::Gone),
            Packet::Message(Reply::Busy, _) => Err(ShareError::Busy),
            Packet::Message(Reply::Refused(reason), _) => Err(ShareError::Refused(reason)),
            Packet::Message(reply, descriptors) => Ok((reply, descriptors)),
            Packet::End => Err(ShareError::ExporterGone(io::ErrorKind::ConnectionAborted.into())),
            Packet::Nonsense => Err(ShareError::Message("a packet that is none")),
        }
    }

    /// Opens a block.
    pub fn open(&self, token: Token) -> Result<Opened, ShareError> {
        let (Reply::Opened { open, bytes, offset, chunks }, _) = self.ask(&Request::Open { token })? else {
            return Err(ShareError::Message("no block where one was asked for"));
        };
        let Some(end) = offset.checked_add(bytes) else {
            self.close(open);
            return Err(ShareError::Message("a block that is larger than its chunks"));
        };
        Ok(Opened { open, place: offset..end, chunks })
    }

    /// The chunks of an open block.
    pub fn chunks(&self, opened: &Opened) -> Result<Vec<ListedChunk>, ShareError> {
        let listed = self.list(opened.open, opened.chunks)?;
        match listed.iter().try_fold(0_u64, |sum, chunk| sum.checked_add(chunk.bytes)) {
            Some(total) if opened.place.end <= total => Ok(listed),
            _ => Err(ShareError::Message("a block that is larger than its chunks")),
        }
    }

    fn list(&self, open: u64, chunks: u64) -> Result<Vec<ListedChunk>, ShareError> {
        if chunks == 0 || chunks > MOST_CHUNKS {
            return Err(ShareError::Message("a block without chunks, or with too many"));
        }
        let mut listed = Vec::new();
        while (listed.len() as u64) < chunks {
            let (Reply::Chunks(more), _) = self.ask(&Request::Chunks { open, from: listed.len() as u64 })? else {
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
    pub fn descriptors(&self, open: u64, which: &[u64]) -> Result<Vec<OwnedFd>, ShareError> {
        match self.ask(&Request::Descriptors { open, which: which.to_vec() })? {
            (Reply::Descriptors, descriptors) if descriptors.len() == which.len() => Ok(descriptors),
            _ => Err(ShareError::Message("other descriptors than were asked for")),
        }
    }

    pub fn close(&self, open: u64) {
        // Where the other process has ended, there is nothing to give back.
        let _ = self.ask(&Request::Close { open });
    }
}
