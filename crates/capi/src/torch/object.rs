//! The functions that PyTorch's allocator object calls (`python/src/allocator_object`): the C++ class that implements the whole of
//! PyTorch's allocator interface. Beside `plugin`, which serves the plug-in interface, it needs statuses in place of nothing, pools
//! by name, the facts about a block, and blocks at given addresses.
//!
//! - I1  nothing here calls back into C++, so that no exception can cross this library.
//!
//! Threads: any.

use super::plugin::{GAPLESS_POOL_GRAPH, GAPLESS_POOL_ORDINARY, gapless_pool_kind, gapless_torch_pool, worded};
use crate::abi::{CUstream_st, address, device_pointer, stream_id};
use crate::last_error::guard;
use crate::out::check_out;
use crate::process::{PROCESS, device_of};
use crate::stats::{gapless_stats, write_stats};
use crate::status::{Answer, Failure, GAPLESS_ERROR_BUFFER_TOO_SMALL, GAPLESS_ERROR_NOT_FOUND, gapless_status};
use gapless::driver::cuda::CudaDriver;
use gapless::{DeviceAddr, StreamId};
use gapless_process::{Block, BlockUse, Device, Place, PoolId, PoolKind, Request, StreamLives};
use std::ffi::c_void;

/// A block of a device's memory, or a live allocation.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct gapless_torch_block {
    /// The device.
    pub device: i32,
    /// 0 free, 1 live, 2 freed and waiting for streams, of whichever device.
    pub state: i32,
    /// Whether it is in a region for small blocks.
    pub small: i32,
    /// Its region among those of the device: blocks of one region that touch are mapped without a gap.
    pub region: u32,
    /// First address.
    pub address: u64,
    /// Bytes, rounding included.
    pub bytes: u64,
    /// Bytes requested; 0 for free memory.
    pub requested_bytes: u64,
    /// The stream that it was allocated on, or its region's.
    pub stream: u64,
    /// The pool; 0, 0 for none.
    pub pool: gapless_torch_pool,
}

/// Allocates for PyTorch from a pool, or, where that is NULL, from the device's own memory, whatever pools are open.
///
/// # Safety
/// pool is NULL or points to a name, pointer points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_torch_alloc(
    device: i32,
    bytes: u64,
    stream: *mut CUstream_st,
    pool: *const gapless_torch_pool,
    pointer: *mut *mut c_void,
) -> gapless_status {
    guard(|| {
        check_out(pointer, "pointer")?;
        // SAFETY: null or a name (the function's contract).
        let pool = unsafe { pool.as_ref() }.map(|pool| (pool.first, pool.second));
        let device = device_of(device)?;
        let request =
            Request { bytes, alignment: 1, stream: stream_id(stream), lives: StreamLives::AsLongAsTheProcess };
        let place = pool.map_or(Place::Main, Place::Pool);
        let addr = device.alloc_worded(place, &request, |error| worded(device, bytes, error))?;
        // SAFETY: not null, so valid for a write (the function's contract).
        unsafe { pointer.write(device_pointer(addr)) };
        Ok(())
    })
}

/// The device whose memory an address is in; -1 when it is none of gapless.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_device_of(pointer: *const c_void) -> i32 {
    let mut found = -1;
    guard(|| {
        if let Some(device) = PROCESS.owner_of(DeviceAddr(pointer.addr() as u64)) {
            found = device.ordinal().cast_signed();
        }
        Ok(())
    });
    found
}

/// Frees an allocation, of whichever device. GAPLESS_ERROR_NOT_FOUND when it is no memory of gapless; nothing was done.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_delete(pointer: *mut c_void) -> gapless_status {
    guard(|| {
        let addr = address(pointer);
        Ok(owner(addr)?.free(addr, 0, StreamId::DEFAULT)?)
    })
}

/// Records that a stream of a device, which may be another one, also uses an allocation. As gapless_torch_record_stream, with a
/// status, and with the device that a default stream's handle does not name.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_use_on(pointer: *mut c_void, device: i32, stream: *mut CUstream_st) -> gapless_status {
    guard(|| {
        let (addr, user) = (address(pointer), device_of(device)?.ordinal());
        let lives = StreamLives::AsLongAsTheProcess;
        Ok(PROCESS.record_stream_of(owner(addr)?, addr, user, stream_id(stream), lives)?)
    })
}

/// Records that a stream uses the growable range that starts at an address, of which a tensor is that PyTorch was given.
/// GAPLESS_ERROR_NOT_FOUND when there is none; nothing was done.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_use_range(pointer: *mut c_void, stream: *mut CUstream_st) -> gapless_status {
    guard(|| match PROCESS.record_range(address(pointer), stream_id(stream))? {
        true => Ok(()),
        false => Err(not_found("no growable range starts there")),
    })
}

/// Describes the live allocation that an address lies in. GAPLESS_ERROR_NOT_FOUND when there is none.
///
/// # Safety
/// block points to a block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_torch_describe(
    pointer: *const c_void,
    block: *mut gapless_torch_block,
) -> gapless_status {
    guard(|| {
        check_out(block, "block")?;
        let addr = DeviceAddr(pointer.addr() as u64);
        let device = owner(addr)?;
        let live = device.block_around(addr).ok_or_else(|| not_found("no live allocation is there"))?;
        // SAFETY: not null, so valid for a write (the function's contract).
        unsafe { block.write(described(device, live)) };
        Ok(())
    })
}

/// Writes the statistics of a device, pools included, or of one of its pools, to *stats, as gapless_get_stats does. The counts of a
/// device are those since gapless_torch_reset_counts. GAPLESS_ERROR_NOT_FOUND when there is no such pool.
///
/// # Safety
/// pool is NULL or points to a name, stats points to as many bytes as its first field says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_torch_get_stats(
    device: i32,
    pool: *const gapless_torch_pool,
    stats: *mut gapless_stats,
) -> gapless_status {
    guard(|| {
        // SAFETY: null or a name (the function's contract).
        let pool = unsafe { pool.as_ref() }.map(|pool| (pool.first, pool.second));
        let take = || device_of(device)?.figures_since_reset(pool).ok_or_else(|| not_found("there is no such pool"));
        // SAFETY: the same contract.
        unsafe { write_stats(stats, take) }
    })
}

/// Lets the counts of a device that gapless_torch_get_stats writes start again from 0. Other functions go on counting.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_reset_counts(device: i32) -> gapless_status {
    guard(|| {
        device_of(device)?.reset_counts();
        Ok(())
    })
}

/// Writes the names of a device's pools to names, and their number to *needed. GAPLESS_ERROR_BUFFER_TOO_SMALL when there are
/// more than capacity.
///
/// # Safety
/// names points to capacity names, needed to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_torch_pools(
    device: i32,
    names: *mut gapless_torch_pool,
    capacity: u64,
    needed: *mut u64,
) -> gapless_status {
    guard(|| {
        let pools = device_of(device)?.pools().all();
        let found: Vec<_> = pools.iter().map(|pool| named(pool.id())).collect();
        // SAFETY: the same contract.
        unsafe { write_all(&found, names, capacity, needed) }
    })
}

/// Writes the blocks of a device, of its pools too, or of one pool only, to blocks, and their number to *needed: those of a
/// region in address order. GAPLESS_ERROR_BUFFER_TOO_SMALL when there are more than capacity. live_only: not 0 for live ones only.
///
/// # Safety
/// pool is NULL or points to a name, blocks points to capacity blocks, needed to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_torch_blocks(
    device: i32,
    pool: *const gapless_torch_pool,
    live_only: i32,
    blocks: *mut gapless_torch_block,
    capacity: u64,
    needed: *mut u64,
) -> gapless_status {
    guard(|| {
        // SAFETY: null or a name (the function's contract).
        let pool = unsafe { pool.as_ref() }.map(|pool| (pool.first, pool.second));
        let device = device_of(device)?;
        let found = if live_only == 0 { device.blocks(pool) } else { device.live_blocks(pool) };
        let found: Vec<_> = found.into_iter().map(|block| described(device, block)).collect();
        // SAFETY: the same contract.
        unsafe { write_all(&found, blocks, capacity, needed) }
    })
}

/// Adds a user to a pool, and makes the pool if it is new. gapless_torch_release_pool removes one.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_use_pool(device: i32, pool: gapless_torch_pool) -> gapless_status {
    guard(|| {
        let device = device_of(device)?;
        Ok(device.pools().add_user((pool.first, pool.second))?)
    })
}

/// Opens a pool, as gapless_torch_begin_allocate_to_pool does, with a status.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_open_pool(device: i32, pool: gapless_torch_pool) -> gapless_status {
    guard(|| {
        let device = device_of(device)?;
        Ok(device.pools().begin((pool.first, pool.second))?)
    })
}

/// Writes the number of a pool's users to *users: 0 when there is no such pool.
///
/// # Safety
/// users points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_torch_pool_users(
    device: i32,
    pool: gapless_torch_pool,
    users: *mut u32,
) -> gapless_status {
    guard(|| {
        check_out(users, "users")?;
        let found = device_of(device)?.pools().users((pool.first, pool.second));
        // SAFETY: not null, so valid for a write (the function's contract).
        unsafe { users.write(found) };
        Ok(())
    })
}

/// Writes what a pool is for to *kind, one of the GAPLESS_POOL_... numbers: GAPLESS_POOL_GRAPH when there is no such pool.
///
/// # Safety
/// kind points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_torch_pool_kind(
    device: i32,
    pool: gapless_torch_pool,
    kind: *mut gapless_pool_kind,
) -> gapless_status {
    guard(|| {
        check_out(kind, "kind")?;
        let found = match device_of(device)?.pools().named((pool.first, pool.second)).map(|pool| pool.kind()) {
            Some(PoolKind::Ordinary) => GAPLESS_POOL_ORDINARY,
            Some(PoolKind::Graph) | None => GAPLESS_POOL_GRAPH,
        };
        // SAFETY: not null, so valid for a write (the function's contract).
        unsafe { kind.write(found) };
        Ok(())
    })
}

/// Whether requests outside a pool may be served from it when the rest of the memory does not suffice.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_lend_pool(device: i32, pool: gapless_torch_pool, lend: i32) -> gapless_status {
    guard(|| {
        let found = device_of(device)?.pools().named((pool.first, pool.second));
        found.ok_or_else(|| not_found("there is no such pool"))?.set_lends(lend != 0);
        Ok(())
    })
}

/// Makes a pool hold exactly these allocations, which were live in it before: what else is live is freed, and what is missing is
/// allocated again at its address. GAPLESS_ERROR_NOT_ALLOCATED when one cannot be had: the pool is then as it was, but what was
/// freed to see that is recorded on no other stream any more.
///
/// # Safety
/// wanted points to count blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_torch_restore_pool(
    device: i32,
    pool: gapless_torch_pool,
    wanted: *const gapless_torch_block,
    count: u64,
) -> gapless_status {
    guard(|| {
        if wanted.is_null() && count > 0 {
            return Err(Failure::argument("the list of blocks is null"));
        }
        // SAFETY: as many blocks as that (the function's contract).
        let wanted = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(wanted, count as usize) } };
        let wanted: Vec<(DeviceAddr, u64)> =
            wanted.iter().map(|block| (DeviceAddr(block.address), block.requested_bytes)).collect();
        let device = device_of(device)?;
        match device.restore_pool((pool.first, pool.second), &wanted)? {
            true => Ok(()),
            false => Err(not_found("there is no such pool")),
        }
    })
}

/// Allocates bytes at an address that PyTorch was given before, where the memory is free. GAPLESS_ERROR_NOT_ALLOCATED when it is
/// not, GAPLESS_ERROR_NOT_FOUND when the address is none of gapless; nothing was done.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_alloc_again(pointer: *mut c_void, bytes: u64) -> gapless_status {
    guard(|| {
        let addr = address(pointer);
        Ok(owner(addr)?.alloc_again(addr, bytes)?)
    })
}

/// Returns free memory of a device to the driver, and closes the pools that were released, as gapless_device_trim does; with
/// pools_only not 0 only the latter. Writes the number of bytes released to *released, unless that is null.
///
/// # Safety
/// released is null or points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_torch_trim(device: i32, pools_only: i32, released: *mut u64) -> gapless_status {
    guard(|| {
        let device = device_of(device)?;
        let bytes = match pools_only {
            0 => device.trim(0)?.released_bytes,
            _ => device.close_released_pools(),
        };
        if !released.is_null() {
            // SAFETY: not null, so valid for a write (the function's contract).
            unsafe { released.write(bytes) };
        }
        Ok(())
    })
}

/// Has each device, also those that are not in use yet, hold at most a fraction of its memory, from 0 to 1, where it has no budget.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_limit(fraction: f64) -> gapless_status {
    guard(|| Ok(PROCESS.limit(fraction)?))
}

/// Lends PyTorch's own allocator all of a device's budget that gapless does not hold, until gapless_torch_settle_native. Writes the
/// most bytes that it may hold to *bytes: UINT64_MAX where no budget was set.
///
/// # Safety
/// bytes points to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_torch_lend_native(device: i32, bytes: *mut u64) -> gapless_status {
    guard(|| {
        check_out(bytes, "bytes")?;
        let lent = device_of(device)?.lend_beside().unwrap_or(u64::MAX);
        // SAFETY: not null, so valid for a write (the function's contract).
        unsafe { bytes.write(lent) };
        Ok(())
    })
}

/// Records how many bytes PyTorch's own allocator holds of a device: they count against its budget.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_settle_native(device: i32, bytes: u64) -> gapless_status {
    guard(|| {
        device_of(device)?.settle_beside(bytes);
        Ok(())
    })
}

/// Resets the peaks of a device and of its pools.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_reset_peaks(device: i32) -> gapless_status {
    guard(|| {
        device_of(device)?.reset_peaks();
        Ok(())
    })
}

/// Whether a device can reach the memory of another one through a plain copy: 1 if it was given access, else 0.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_torch_reaches(device: i32, owner: i32) -> i32 {
    let mut reaches = 0;
    guard(|| {
        reaches = i32::from(device_of(device)?.reaches(device_of(owner)?));
        Ok(())
    });
    reaches
}

fn owner(addr: DeviceAddr) -> Answer<&'static Device<CudaDriver>> {
    PROCESS.owner_of(addr).ok_or_else(|| not_found("this is no memory of gapless"))
}

fn not_found(text: &str) -> Failure {
    Failure::new(GAPLESS_ERROR_NOT_FOUND, text)
}

fn named(pool: PoolId) -> gapless_torch_pool {
    gapless_torch_pool { first: pool.0, second: pool.1 }
}

fn described(device: &Device<CudaDriver>, block: Block) -> gapless_torch_block {
    gapless_torch_block {
        device: device.ordinal().cast_signed(),
        state: match block.state {
            BlockUse::Free => 0,
            BlockUse::Live => 1,
            BlockUse::Waiting => 2,
        },
        small: i32::from(block.small),
        region: block.region,
        address: block.addr.0,
        bytes: block.bytes,
        requested_bytes: block.requested_bytes,
        stream: block.stream.as_raw(),
        pool: named(block.pool),
    }
}

/// Writes a list into a caller's buffer, and how long it is.
///
/// # Safety
/// out points to capacity elements, needed to a number.
unsafe fn write_all<T: Copy>(found: &[T], out: *mut T, capacity: u64, needed: *mut u64) -> Answer<()> {
    check_out(needed, "needed")?;
    // SAFETY: not null, so valid for a write (the function's contract).
    unsafe { needed.write(found.len() as u64) };
    if found.len() as u64 > capacity {
        let text = format!("the buffer has room for {capacity} entries, {} are needed", found.len());
        return Err(Failure::new(GAPLESS_ERROR_BUFFER_TOO_SMALL, text));
    }
    if !found.is_empty() {
        check_out(out, "the buffer")?;
        // SAFETY: the buffer has room for as many (the function's contract).
        unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), out, found.len()) };
    }
    Ok(())
}
