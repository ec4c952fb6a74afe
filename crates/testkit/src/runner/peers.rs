//! Peers: other devices that get access to all memory of the device, whichever allocator holds it, and leave again.
//!
//! The witness keeps who has access to each mapping. Once a peer has been given access, every byte that callers may use must
//! be within its reach: what was mapped before, what is stale and may become active again, and what is mapped later. So the
//! oracle's checks of access are about the peers as well.

use super::Runner;
use crate::device::Device;
use gapless::allocator::AllocError;

impl<D: Device> Runner<D> {
    /// Gives a peer access, as a program does: the driver is asked first, then every allocator renews what is mapped. If one of
    /// them fails, nobody relies on the peer; after an injected failure, all of it is tried once more.
    pub(crate) fn add_peer(&mut self, number: u8) {
        let Some(peer) = number.checked_rem(self.driver.inner().inner().peers()) else { return };
        let current = self.current;
        if self.grant(peer) == Granted::NotYet {
            let again = self.grant(peer);
            assert_ne!(again, Granted::NotYet, "a failure occurs once");
        }
        self.current = current;
    }

    fn grant(&mut self, peer: u8) -> Granted {
        self.driver.inner().add_peer(peer);
        for instance in 0..self.instances.len() {
            self.current = instance;
            let error = match self.allocator().renew_access() {
                Ok(()) => continue,
                Err(AllocError::Driver(error)) => error,
                Err(other) => panic!("renew_access returned {other}"),
            };
            self.expect_injected(&error);
            self.remove_peer(peer);
            let struck = self.struck();
            if struck {
                self.recover();
            }
            return if struck && !self.instance().lost { Granted::NotYet } else { Granted::No };
        }
        self.driver.inner().rely_on_peer(peer);
        self.summary.peers += 1;
        Granted::Yes
    }

    /// Leaves a peer out of what is mapped from now on.
    pub(crate) fn remove_peer(&mut self, number: u8) {
        if let Some(peer) = number.checked_rem(self.driver.inner().inner().peers()) {
            self.driver.inner().remove_peer(peer);
        }
    }
}

/// The outcome of giving a peer access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Granted {
    Yes,
    /// An injected failure prevented it.
    NotYet,
    /// The device is lost.
    No,
}
