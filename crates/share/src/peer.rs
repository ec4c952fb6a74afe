//! Who is at the other end of a socket.

use crate::error::ShareError;
use rustix::fd::{AsFd, AsRawFd};
use rustix::process::geteuid;
use std::io;
use std::num::NonZeroU32;

/// A process at the other end of a socket, when that was connected or began to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    user: u32,
    /// `None` for one of another namespace, as in another container: it has no number here.
    pub process: Option<NonZeroU32>,
}

impl Peer {
    pub fn of(socket: impl AsFd) -> Result<Self, ShareError> {
        let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        // rustix has a type for process numbers in which 0 is none, and would make an error of another kind of it.
        // SAFETY: `found` has the size that is given, and all of its values are valid.
        let failed = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut found).cast(),
                &raw mut length,
            )
        };
        if failed != 0 {
            return Err(ShareError::System { what: "the user of a socket", cause: io::Error::last_os_error() });
        }
        Ok(Self { user: found.uid, process: u32::try_from(found.pid).ok().and_then(NonZeroU32::new) })
    }

    /// The user that is not this process's own, if it is one.
    pub fn other_user(&self) -> Option<u32> {
        let own = geteuid().as_raw();
        (self.user != own || stands_for_all(own)).then_some(self.user)
    }
}

/// Whether a user of this number may be another one: in a user namespace, all that it does not map have one number.
pub fn stands_for_all(user: u32) -> bool {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    is_ambiguous(user, &read("/proc/sys/kernel/overflowuid"), &read("/proc/self/uid_map"))
}

fn is_ambiguous(user: u32, overflow: &str, map: &str) -> bool {
    let maps_all = map.split_ascii_whitespace().eq(["0", "0", "4294967295"]);
    overflow.trim().parse() == Ok(user) && !maps_all
}

#[cfg(test)]
mod tests {
    use super::is_ambiguous;

    #[test]
    fn who_stands_for_all_others() {
        let all = "         0          0 4294967295\n";
        assert!(is_ambiguous(65534, "65534\n", "         0       1000          1\n"));
        assert!(is_ambiguous(65534, "65534\n", ""));
        assert!(!is_ambiguous(65534, "65534\n", all));
        assert!(!is_ambiguous(1000, "65534\n", "      1000       1000          1\n"));
    }
}
