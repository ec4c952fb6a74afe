//! The devices that get access to a driver's mappings: its own, and peers, which may be added later.
//!
//! Every `set_access` names them all, in one call. What was mapped before a peer was added is not within its reach until
//! `set_access` is called for it again: the driver does not know what is mapped, the allocator does
//! (`Allocator::renew_access`).
//!
//! Threads: any; one lock, which `set_access` takes for the length of a copy of a pointer, and which is held through the
//! trial of a new peer. A mapping made meanwhile has access for the peer or not: whoever renews access afterwards reaches it.

use super::device::can_access;
use super::error::OpenError;
use super::library::Library;
use super::streams::raw_stream;
use super::sys::{CUmemAccess_flags_enum, CUmemAccessDesc, CUmemLocation, CUmemLocationType_enum};
use super::{CudaDriver, trial};
use crate::driver::{DriverCall, DriverErrorKind, DriverResult};
use crate::sync::Arc;
use crate::sync::unseen::Mutex;
use crate::units::StreamId;

/// The devices with access, the own device first.
#[derive(Clone)]
pub(super) struct Access {
    ordinals: Vec<u32>,
    list: Arc<[CUmemAccessDesc]>,
}

impl Access {
    /// Access for one device.
    pub(super) fn of(library: &Library, ordinal: u32) -> DriverResult<Self> {
        Ok(Self { ordinals: vec![ordinal], list: [read_write(library, ordinal)?].into() })
    }

    /// The same, and access for further devices, which can reach the first one's memory.
    pub(super) fn with(&self, library: &Library, peers: &[u32]) -> Result<Self, OpenError> {
        let count = library.device_count()?;
        let own = self.ordinals[0];
        let (mut ordinals, mut list) = (self.ordinals.clone(), self.list.to_vec());
        for &peer in peers {
            if peer >= count {
                return Err(OpenError::NoSuchDevice { ordinal: peer, count });
            }
            if ordinals.contains(&peer) {
                continue;
            }
            if !can_access(library, library.device(peer)?, library.device(own)?)? {
                return Err(OpenError::NoPeerAccess { ordinal: own, peer });
            }
            ordinals.push(peer);
            list.push(read_write(library, peer)?);
        }
        Ok(Self { ordinals, list: list.into() })
    }

    /// The same without these peers.
    fn without(&self, peers: &[u32]) -> Self {
        let stays = |at: usize| at == 0 || !peers.contains(&self.ordinals[at]);
        let kept = || (0..self.ordinals.len()).filter(|at| stays(*at));
        Self { ordinals: kept().map(|at| self.ordinals[at]).collect(), list: kept().map(|at| self.list[at]).collect() }
    }

    /// Returns the arguments of `cuMemSetAccess`.
    pub(super) fn list(&self) -> &[CUmemAccessDesc] {
        &self.list
    }
}

/// The devices with access, which may become more.
pub(super) struct Peers {
    access: Mutex<Access>,
}

impl Peers {
    pub(super) fn new(access: Access) -> Self {
        Self { access: Mutex::new(access) }
    }

    /// Returns the current arguments of `cuMemSetAccess`.
    pub(super) fn access(&self) -> Arc<[CUmemAccessDesc]> {
        Arc::clone(&self.access.lock().list)
    }
}

impl CudaDriver {
    /// Gives further devices access to every mapping that is made from now on, after a trial cycle with them.
    ///
    /// Mappings that exist already are within their reach once [`set_access`](crate::driver::MemoryDriver::set_access) was
    /// called for them again: call [`renew_access`](crate::Allocator::renew_access) of every allocator on this driver. A
    /// device that has access already is left out.
    ///
    /// # Errors
    /// [`OpenError::NoSuchDevice`]; [`OpenError::NoPeerAccess`] for a device that cannot reach this one's memory; the error
    /// of the trial. Nothing has changed.
    pub fn add_peers(&self, ordinals: impl IntoIterator<Item = u32>) -> Result<(), OpenError> {
        let ordinals: Vec<u32> = ordinals.into_iter().collect();
        let mut access = self.peers.access.lock();
        let more = access.with(self.library, &ordinals)?;
        if more.ordinals.len() == access.ordinals.len() {
            return Ok(());
        }
        match trial::cycle(&self.vmm(), self.granularity, &more.list) {
            // A device without a free page: what is mapped already is the trial then.
            Err(error) if error.kind != DriverErrorKind::OutOfMemory => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
        *access = more;
        Ok(())
    }

    /// Leaves devices out of what is mapped from now on. Where they have access, they keep it.
    pub fn remove_peers(&self, ordinals: impl IntoIterator<Item = u32>) {
        let ordinals: Vec<u32> = ordinals.into_iter().collect();
        let mut access = self.peers.access.lock();
        let fewer = access.without(&ordinals);
        *access = fewer;
    }

    /// Returns the device that a stream belongs to, of whatever context.
    ///
    /// # Errors
    /// The driver's, for a handle that is no stream; `Capturing` for a stream that is being captured and that no driver of this
    /// library has seen before.
    pub fn device_of_stream(&self, stream: StreamId) -> DriverResult<u32> {
        let current = self.context.enter(DriverCall::Stream)?;
        match self.known_in_capture(stream, &current)? {
            Some(known) => Ok(known.ordinal),
            None => self.context.device_of(raw_stream(stream)),
        }
    }

    /// Returns the devices, besides this one, that get access to every mapping.
    pub fn peers(&self) -> Vec<u32> {
        self.peers.access.lock().ordinals[1..].to_vec()
    }
}

fn read_write(library: &Library, ordinal: u32) -> DriverResult<CUmemAccessDesc> {
    let id = library.device(ordinal)?;
    Ok(CUmemAccessDesc {
        location: CUmemLocation { type_: CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE, id },
        flags: CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    })
}
