//! Errors of sharing.

use crate::uuid::{Named, Uuid};
use gapless::allocator::{AllocError, FreeError};
use gapless::driver::DriverError;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why memory could not be shared. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShareError {
    /// The bytes are no handle of a shared block.
    #[error("these bytes are no handle of a shared block")]
    NoHandle,
    /// The block of the handle has been freed, or its allocator has ended.
    #[error("the block of this handle has been freed by the process that shared it")]
    Gone,
    /// The process that shared the block has ended, or shares nothing any more.
    #[error("the process that shared the block has ended: {0}")]
    ExporterGone(io::Error),
    /// The process that shared the block lives, as far as can be known, and has not answered in the time that there was.
    #[error(
        "the process that shared the block has not answered for {waited:.1?}: it is stopped, or very busy; try again"
    )]
    NoAnswer {
        /// How long its answer was waited for.
        waited: Duration,
    },
    /// The socket is of another user, or of the number that stands for all strangers in this user namespace.
    #[error(
        "the socket {path} is of user {uid}, who is another one or cannot be told from strangers: memory is shared between \
         processes of one user only"
    )]
    OtherUser {
        /// The socket.
        path: PathBuf,
        /// Its user.
        uid: u32,
    },
    /// The block is on another physical device than the one that it was to be opened on.
    #[error(
        "the block is on device {}, and was to be opened on device {}: open it on the former",
        Named(theirs),
        Named(ours)
    )]
    OtherDevice {
        /// That of the block.
        theirs: Uuid,
        /// The one at hand.
        ours: Uuid,
    },
    /// The block is on a physical device that this process does not see.
    #[error("the block is on device {}, which this process does not see: CUDA_VISIBLE_DEVICES leaves others", Named(.0))]
    UnseenDevice(Uuid),
    /// The folder of the sockets cannot be used.
    #[error("the folder of sockets {path} {what}; GAPLESS_SHARE_DIR names another one")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The words for what is wrong with it.
        what: String,
    },
    /// The path of the socket is too long for the system.
    #[error("the path {0} is too long for a socket; GAPLESS_SHARE_DIR names another folder")]
    LongPath(PathBuf),
    /// The process that shared the block serves as many others as it can, and has done so for all of the time that there was.
    #[error(
        "the process that shared the block serves as many others as it can: try again when one of them has closed its blocks"
    )]
    Busy,
    /// This process, or the one that shared the block, has no descriptors left.
    #[error(
        "no file descriptors are left, here or in the process that shared the block: raise their limit (ulimit -n)"
    )]
    FewDescriptors,
    /// The other process sent what it must not.
    #[error("the other process sent a message that makes no sense: {0}")]
    Message(&'static str),
    /// The exporting process's driver refused.
    #[error("the process that shared the block could not hand it out: {0}")]
    Refused(String),
    /// This process was forked from the one that shares.
    #[error("this process was forked from the one that shares; start it by spawn or forkserver instead")]
    Forked,
    /// The exporter has ended: this process is about to.
    #[error("this process shares nothing any more: it is about to end")]
    Ended,
    /// No live allocation is at the address.
    #[error(transparent)]
    NotAllocated(#[from] FreeError),
    /// The allocator refused.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// The driver refused.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The system refused.
    #[error("{what}: {cause}")]
    System {
        /// The words for what was tried.
        what: &'static str,
        /// The system's error.
        cause: io::Error,
    },
}

impl ShareError {
    pub(crate) fn system(what: &'static str) -> impl Fn(rustix::io::Errno) -> Self {
        move |errno| Self::System { what, cause: errno.into() }
    }
}
