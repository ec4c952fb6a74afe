//! Sharing with other processes in C: blocks of a device by pointer, blocks of others by handle.
//!
//! - I1  a pointer is in the table of imports as often as it was imported and not closed.
//!
//! Threads: any. The table is not locked while a block is opened or closed, which may take its time.

use crate::functions::{address, device_pointer};
use crate::last_error::guard;
use crate::out::check_out;
use crate::process::Device;
use crate::status::{
    Answer, Failure, GAPLESS_ERROR_DRIVER, GAPLESS_ERROR_GONE, GAPLESS_ERROR_NOT_ALLOCATED, GAPLESS_ERROR_SHARE,
    gapless_status,
};
use gapless::driver::cuda::CudaDriver;
use gapless::{Allocator, DeviceAddr};
use gapless_share::{Exporter, HANDLE_BYTES, Handle, Importer, ShareError, SharedBlock};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;

/// Bytes of a handle of shared memory.
pub const GAPLESS_SHARE_HANDLE_BYTES: usize = 192;
const _: () = assert!(GAPLESS_SHARE_HANDLE_BYTES == HANDLE_BYTES);

/// What one device shares with other processes.
#[derive(Debug)]
pub(crate) struct Sharing {
    exporter: Exporter<CudaDriver>,
    importer: Importer<CudaDriver>,
    imports: Mutex<BTreeMap<DeviceAddr, Vec<SharedBlock<CudaDriver>>>>,
}

impl Sharing {
    pub fn new(allocator: &Allocator<CudaDriver>) -> Self {
        let importer = Importer::new(Arc::clone(allocator.driver()));
        Self { exporter: Exporter::new(), importer, imports: Mutex::default() }
    }

    /// At the end of the process: nobody else opens anything.
    pub fn remove_socket(&self) {
        self.exporter.remove_socket();
    }

    fn open(&self, handle: &Handle) -> Answer<(DeviceAddr, u64)> {
        let block = self.importer.open(handle)?;
        let found = (block.addr(), block.bytes());
        self.imports.lock().entry(block.addr()).or_default().push(block);
        Ok(found)
    }

    fn take(&self, addr: DeviceAddr) -> Answer<SharedBlock<CudaDriver>> {
        let mut imports = self.imports.lock();
        let none = || Failure::new(GAPLESS_ERROR_NOT_ALLOCATED, format!("no imported block starts at {addr}"));
        let blocks = imports.get_mut(&addr).ok_or_else(none)?;
        let block = blocks.pop().ok_or_else(none)?;
        if blocks.is_empty() {
            imports.remove(&addr);
        }
        Ok(block)
    }
}

impl From<ShareError> for Failure {
    fn from(error: ShareError) -> Self {
        match error {
            ShareError::NotAllocated(error) => error.into(),
            ShareError::Alloc(error) => error.into(),
            ShareError::Driver(error) => error.into(),
            ShareError::NoHandle => Self::argument(error),
            ShareError::Gone | ShareError::ExporterGone(_) => Self::new(GAPLESS_ERROR_GONE, error),
            ShareError::Forked => Self::new(GAPLESS_ERROR_DRIVER, error),
            _ => Self::new(GAPLESS_ERROR_SHARE, error),
        }
    }
}

/// Offers the live allocation that pointer lies in, one of a pool too, to other processes of the user: writes a handle of
/// GAPLESS_SHARE_HANDLE_BYTES bytes to handle, and to *offset how far pointer lies behind the start of the allocation. The
/// handle starts with "gapless1", is good until the allocation is freed, and can be sent by whatever means; one
/// allocation has one handle.
///
/// What another process has imported stays as it is until that has closed it, also when it is freed here meanwhile. A thread of
/// this process answers the others over a socket in the folder that GAPLESS_SHARE_DIR names, else in /tmp/gapless-UID.
///
/// # Safety
/// handle points to GAPLESS_SHARE_HANDLE_BYTES bytes, offset to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_device_export(
    device: i32,
    pointer: *const c_void,
    handle: *mut u8,
    offset: *mut u64,
) -> gapless_status {
    guard(|| {
        check_out(handle, "handle")?;
        check_out(offset, "offset")?;
        let (device, addr) = (Device::get(device)?, DeviceAddr(pointer.addr() as u64));
        let live = device.live_around(addr).map(|(_, live)| live.addr);
        let none = || Failure::new(GAPLESS_ERROR_NOT_ALLOCATED, format!("no live allocation is at {addr}"));
        let block = live.ok_or_else(none)?;
        device.expect_not_held(block)?;
        let allocator = device.allocator_of(block).unwrap_or_else(|| device.main.allocator.clone());
        let bytes = device.sharing.exporter.export(&allocator, block)?.to_bytes();
        // SAFETY: not null, so as many bytes as a handle has (the function's contract).
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), handle, bytes.len()) };
        // SAFETY: not null, so valid for a write (the function's contract).
        unsafe { offset.write(addr.0 - block.0) };
        Ok(())
    })
}

/// Maps the allocation of a handle of handle_bytes bytes for use on device: writes its address here to *pointer, and its bytes,
/// rounding included, to *bytes. What is imported already costs no call to the driver; each import is closed once.
///
/// Work of the process that shared it has to be ordered before work here, with an event for instance. What is mapped is whole
/// physical allocations: what else they hold, before and behind, is within reach too. GAPLESS_ERROR_GONE where the allocation
/// or its process is gone.
///
/// # Safety
/// handle points to handle_bytes bytes, pointer to a pointer, bytes to a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gapless_device_import(
    device: i32,
    handle: *const u8,
    handle_bytes: u64,
    pointer: *mut *mut c_void,
    bytes: *mut u64,
) -> gapless_status {
    guard(|| {
        check_out(pointer, "pointer")?;
        check_out(bytes, "bytes")?;
        if handle.is_null() || handle_bytes != HANDLE_BYTES as u64 {
            return Err(ShareError::NoHandle.into());
        }
        // SAFETY: not null, so that many bytes (the function's contract).
        let handle = Handle::from_bytes(unsafe { std::slice::from_raw_parts(handle, HANDLE_BYTES) })?;
        let (addr, mapped) = Device::get(device)?.sharing.open(&handle)?;
        // SAFETY: not null, so valid for a write (the function's contract).
        unsafe { pointer.write(device_pointer(addr)) };
        // SAFETY: as above.
        unsafe { bytes.write(mapped) };
        Ok(())
    })
}

/// Closes an import. With the last one of an address the host waits for the device, and what was mapped there is not any more.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_device_close_import(device: i32, pointer: *mut c_void) -> gapless_status {
    guard(|| {
        drop(Device::get(device)?.sharing.take(address(pointer))?);
        Ok(())
    })
}

/// Keeps up to bytes of closed imports of a device mapped, those closed last, for processes that send the same allocations again:
/// to import one that lives still costs no call to the driver then. To the process that shared them they are closed. What that
/// releases to the driver while it is kept here comes back to the device when it is given up here: beyond that many bytes, when
/// its allocation is imported in vain, and for 0, which is what a device begins with.
#[unsafe(no_mangle)]
pub extern "C" fn gapless_device_keep_closed_imports(device: i32, bytes: u64) -> gapless_status {
    guard(|| {
        Device::get(device)?.sharing.importer.keep_closed(bytes);
        Ok(())
    })
}
