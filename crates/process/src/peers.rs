//! Access between the devices of this process: each is given access to the memory of the others, as far as there is a path.
//!
//! PyTorch copies between the devices of a plug-in allocator with a plain `cudaMemcpyAsync`, and `cudaDeviceEnablePeerAccess`
//! does not cover mapped memory: without access, `t.to("cuda:1")` fails or loses the device.
//!
//! A device is introduced when it is used for the first time, so a program that stays on one device pays nothing. Pools of
//! graphs share their device's driver, and what they have mapped is given access as well.
//!
//! Threads: one at a time introduces a device (`Process` holds a lock). Cost: one driver call for each run of mappings of
//! each other device.

use crate::conf::Peers;
use crate::device::Device;
use crate::driver::{DeviceDriver, driver_of};
use crate::error::Error;
use crate::notice::notice;
use gapless::driver::cuda::OpenError;
use std::fmt::Display;

/// The outcome of giving a device access.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Grant {
    Given,
    /// The device cannot reach the other one's memory.
    NoPath,
    /// The driver refused, and said why. That was reported.
    Refused,
}

/// Gives access to and from a device that is new, as far as the configuration wants it. `others` are the devices that were
/// used before.
///
/// # Errors
/// The configuration names a device that there is not. What the driver refuses is reported on stderr and no error: the device
/// works without.
pub(crate) fn introduce<D: DeviceDriver>(new: &Device<D>, others: &[&Device<D>], wanted: &Peers) -> Result<(), Error> {
    let mut unreachable: Vec<u32> = Vec::new();
    match wanted {
        Peers::None => {}
        Peers::Auto => {
            for other in others {
                let there = grant(new, other.ordinal)?;
                let back = grant(other, new.ordinal)?;
                if there == Grant::NoPath || back == Grant::NoPath {
                    unreachable.push(other.ordinal);
                }
            }
        }
        Peers::Listed(listed) => {
            for &peer in listed.iter().filter(|&&peer| peer != new.ordinal) {
                if grant(new, peer)? == Grant::NoPath {
                    unreachable.push(peer);
                }
            }
        }
    }
    if !unreachable.is_empty() {
        report_no_path(new.ordinal, &unreachable);
    }
    Ok(())
}

/// Gives `peer` access to all memory of `owner`: what is mapped, and what will be.
fn grant<D: DeviceDriver>(owner: &Device<D>, peer: u32) -> Result<Grant, Error> {
    let driver = driver_of(&owner.main.allocator);
    match driver.add_peer(peer) {
        Ok(()) => {}
        Err(OpenError::NoPeerAccess { .. }) => return Ok(Grant::NoPath),
        Err(error @ OpenError::NoSuchDevice { .. }) => return Err(error.into()),
        Err(error) => return Ok(refused(owner.ordinal, peer, &error)),
    }
    let pools = owner.pools.all();
    let all = std::iter::once(&owner.main.allocator).chain(pools.iter().map(|pool| &pool.allocator));
    for allocator in all {
        if let Err(error) = allocator.renew_access() {
            // What was given stays given and harms nobody; what is mapped from now on is without.
            driver.remove_peer(peer);
            return Ok(refused(owner.ordinal, peer, &error));
        }
    }
    Ok(Grant::Given)
}

fn refused(owner: u32, peer: u32, error: &dyn Display) -> Grant {
    notice(format_args!("gapless: device {peer} was not given access to the memory of device {owner}: {error}"));
    Grant::Refused
}

fn report_no_path(new: u32, others: &[u32]) {
    let others: Vec<String> = others.iter().map(|other| format!("device {other}")).collect();
    let others = others.join(", ");
    notice(format_args!(
        "gapless: there is no peer access between device {new} and {others}. A plain copy from one to the other fails, such \
         as PyTorch's t.to(\"cuda:{new}\"): write t.cpu().to(\"cuda:{new}\"), or copy with cudaMemcpyPeerAsync. \
         GAPLESS_CONF=peers:none ends this message"
    ));
}
