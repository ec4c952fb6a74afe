//! The trial: one real cycle of virtual memory calls, at opening with as many chunk features as work, and for every peer
//! that is added later.
//!
//! The claims of a device are not enough: some say that RDMA-capable chunks work and then refuse access to them (WSL), and
//! some claim virtual memory management and refuse the calls.

use super::context::Context;
use super::error::OpenError;
use super::library::Library;
use super::memory::Vmm;
use super::sys::{CUdevice, CUmemAccessDesc};
use super::{ChunkFeatures, DeviceInfo};
use crate::driver::{DriverCall, DriverError, DriverErrorKind, DriverResult};
use crate::units::ByteSize;

/// The features that the device claims and the trial has confirmed.
pub(super) struct Agreed {
    pub features: ChunkFeatures,
    pub granularity: u64,
    pub recommended_granularity: u64,
}

/// Tries `wanted`, then without RDMA, then without export; the first whose cycle succeeds.
pub(super) fn agree(
    library: &'static Library,
    context: &Context,
    device: CUdevice,
    info: &DeviceInfo,
    access: &[CUmemAccessDesc],
    wanted: ChunkFeatures,
) -> Result<Agreed, OpenError> {
    let less = ChunkFeatures { rdma: false, ..wanted };
    let least = ChunkFeatures { posix_fd: false, rdma: false };
    let mut attempts = vec![wanted, less, least];
    attempts.dedup();
    let last = attempts.len() - 1;
    for (attempt, features) in attempts.into_iter().enumerate() {
        let vmm = Vmm { library, context, device, features };
        let mut needed = 0;
        let tried = vmm.granularities().and_then(|(granularity, recommended_granularity)| {
            needed = granularity;
            cycle(&vmm, granularity, access).map(|()| Agreed { features, granularity, recommended_granularity })
        });
        match tried {
            Ok(agreed) if agreed.granularity.is_power_of_two() => return Ok(agreed),
            Ok(agreed) => {
                let reason = format!("its granularity is {}, no power of two", agreed.granularity).into();
                return Err(OpenError::NoVmm { ordinal: info.ordinal, name: info.name.clone(), reason });
            }
            Err(error) if error.kind.is_sticky() => return Err(error.into()),
            Err(_) if attempt < last => {}
            Err(error) => return Err(failed(info, needed, error)),
        }
    }
    unreachable!("the last attempt returns")
}

/// Says why the last attempt failed. Only a call that is not supported means that the device cannot be used.
fn failed(info: &DeviceInfo, needed: u64, error: DriverError) -> OpenError {
    let (ordinal, name, needed) = (info.ordinal, info.name.clone(), ByteSize(needed));
    match error.kind {
        DriverErrorKind::NotSupported => {
            OpenError::NoVmm { ordinal, name, reason: format!("the trial at opening: {error}").into() }
        }
        _ if error.call == DriverCall::Reserve => OpenError::NoAddresses { ordinal, needed, cause: error },
        DriverErrorKind::OutOfMemory => OpenError::DeviceFull { ordinal, needed, cause: error },
        _ => OpenError::Trial { ordinal, name, cause: error },
    }
}

/// Create, reserve, map, access, and everything back.
pub(super) fn cycle(vmm: &Vmm<'_>, bytes: u64, access: &[CUmemAccessDesc]) -> DriverResult<()> {
    let chunk = vmm.create(bytes)?;
    let outcome = vmm.reserve(bytes, bytes).and_then(|addr| {
        let mapped = vmm.map(addr, bytes, chunk);
        let accessed = mapped.as_ref().map_or(Ok(()), |()| vmm.set_access(addr, bytes, access));
        let unmapped = mapped.as_ref().map_or(Ok(()), |()| vmm.unmap(addr, bytes));
        // Addresses are not given back while something is mapped there.
        let freed = unmapped.as_ref().map_or(Ok(()), |()| vmm.address_free(addr, bytes));
        mapped.and(accessed).and(unmapped).and(freed)
    });
    outcome.and(vmm.release(chunk))
}
