//! Virtual memory of a CUDA device.
//!
//! The raw calls are methods of [`Vmm`], so that the trial at opening and the driver itself use the same ones.

use super::context::{Context, Relaxed};
use super::library::Library;
use super::sys::{
    CUdevice, CUmemAccessDesc, CUmemAllocationGranularity_flags_enum as granularity_flags,
    CUmemAllocationHandleType_enum as handle_type, CUmemAllocationProp, CUmemAllocationType_enum as allocation_type,
    CUmemLocation, CUmemLocationType_enum as location_type, CUmemRangeHandleType, CUmemRangeHandleType_enum, CUresult,
};
use super::{ChunkFeatures, CudaDriver};
use crate::driver::{
    ChunkHandle, DriverCall, DriverError, DriverErrorKind, DriverResult, HostMemory, MemoryDriver, MemoryInfo,
};
use crate::sync::unseen::{AtomicU64, Ordering};
use crate::units::{ByteSize, DeviceAddr, GIB};
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// The calls, with the context entered and the capture mode relaxed around each.
pub(super) struct Vmm<'a> {
    pub library: &'static Library,
    pub context: &'a Context,
    pub device: CUdevice,
    pub features: ChunkFeatures,
}

impl Vmm<'_> {
    /// Returns the minimum and the recommended granularity for chunks with these features.
    pub(super) fn granularities(&self) -> DriverResult<(u64, u64)> {
        // A device may be opened while a stream is being captured.
        let _guards = self.context.enter_outside_capture(DriverCall::Open)?;
        let one = |flag| {
            let prop = self.properties();
            let mut bytes = 0;
            // SAFETY: both pointers are valid for the call.
            let result =
                unsafe { self.library.api().cuMemGetAllocationGranularity(&raw mut bytes, &raw const prop, flag) };
            self.library.check(DriverCall::Open, "cuMemGetAllocationGranularity", result).map(|()| bytes as u64)
        };
        Ok((
            one(granularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM)?,
            one(granularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)?,
        ))
    }

    pub(super) fn reserve(&self, bytes: u64, alignment: u64) -> DriverResult<DeviceAddr> {
        let mut addr = 0;
        let (bytes, alignment) = (size(DriverCall::Reserve, bytes)?, size(DriverCall::Reserve, alignment)?);
        self.call(DriverCall::Reserve, || {
            // SAFETY: the out-parameter is a valid pointer for the call; no address is wished for.
            unsafe { self.library.api().cuMemAddressReserve(&raw mut addr, bytes, alignment, 0, 0) }
        })?;
        Ok(DeviceAddr(addr))
    }

    pub(super) fn address_free(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        let bytes = size(DriverCall::AddressFree, bytes)?;
        // SAFETY: numbers only; the driver checks them against its reservations.
        self.give_back(DriverCall::AddressFree, || unsafe { self.library.api().cuMemAddressFree(addr.0, bytes) })
    }

    pub(super) fn create(&self, bytes: u64) -> DriverResult<ChunkHandle> {
        let prop = self.properties();
        let mut handle = 0;
        let bytes = size(DriverCall::Create, bytes)?;
        self.call(DriverCall::Create, || {
            // SAFETY: both pointers are valid for the call.
            unsafe { self.library.api().cuMemCreate(&raw mut handle, bytes, &raw const prop, 0) }
        })?;
        Ok(ChunkHandle(handle))
    }

    pub(super) fn release(&self, chunk: ChunkHandle) -> DriverResult<()> {
        // SAFETY: the caller releases a handle of this driver once (the trait's contract).
        self.give_back(DriverCall::Release, || unsafe { self.library.api().cuMemRelease(chunk.0) })
    }

    pub(super) fn map(&self, addr: DeviceAddr, bytes: u64, chunk: ChunkHandle) -> DriverResult<()> {
        let bytes = size(DriverCall::Map, bytes)?;
        // SAFETY: the caller's handle is live (the trait's contract); the driver checks the addresses.
        self.call(DriverCall::Map, || unsafe { self.library.api().cuMemMap(addr.0, bytes, 0, chunk.0, 0) })
    }

    /// Gives the devices of the list access, all in one call.
    pub(super) fn set_access(&self, addr: DeviceAddr, bytes: u64, access: &[CUmemAccessDesc]) -> DriverResult<()> {
        let bytes = size(DriverCall::SetAccess, bytes)?;
        let (list, count) = (access.as_ptr(), access.len());
        // SAFETY: the list is as long as the count says; the driver checks the addresses.
        self.call(DriverCall::SetAccess, || unsafe { self.library.api().cuMemSetAccess(addr.0, bytes, list, count) })
    }

    pub(super) fn unmap(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        let bytes = size(DriverCall::Unmap, bytes)?;
        // SAFETY: numbers only for the driver; that nothing uses the range is the caller's promise.
        self.give_back(DriverCall::Unmap, || unsafe { self.library.api().cuMemUnmap(addr.0, bytes) })
    }

    pub(super) fn export(&self, chunk: ChunkHandle) -> DriverResult<OwnedFd> {
        const CALL: DriverCall = DriverCall::Export;
        let function = self.library.optional().cuMemExportToShareableHandle.as_ref().map_err(|_| unshared(CALL))?;
        let mut descriptor: c_int = -1;
        // SAFETY: the caller's handle is live (the trait's contract); for this kind the driver writes an `int`.
        self.call(CALL, || unsafe { function((&raw mut descriptor).cast(), chunk.0, DESCRIPTOR, 0) })?;
        // SAFETY: the driver has opened it for the caller, who closes it.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    pub(super) fn import(&self, descriptor: BorrowedFd<'_>) -> DriverResult<ChunkHandle> {
        const CALL: DriverCall = DriverCall::Import;
        let function = self.library.optional().cuMemImportFromShareableHandle.as_ref().map_err(|_| unshared(CALL))?;
        let number = usize::try_from(descriptor.as_raw_fd()).map_err(|_| {
            DriverError::new(CALL, DriverErrorKind::InvalidValue, "the number of a descriptor is not negative")
        })?;
        let mut handle = 0;
        // SAFETY: the out-parameter is valid for the call; a descriptor is passed as the pointer's value.
        self.call(CALL, || unsafe { function(&raw mut handle, std::ptr::without_provenance_mut(number), DESCRIPTOR) })?;
        Ok(ChunkHandle(handle))
    }

    pub(super) fn export_dma_buf(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<OwnedFd> {
        const CALL: DriverCall = DriverCall::ExportDmaBuf;
        let unsupported = || {
            DriverError::new(CALL, DriverErrorKind::NotSupported, "the device or its driver library has no dma-bufs")
        };
        let function = self.library.optional().cuMemGetHandleForAddressRange.as_ref().map_err(|_| unsupported())?;
        let bytes = size(CALL, bytes)?;
        let mut descriptor: c_int = -1;
        // SAFETY: for this kind the driver writes an `int`; it checks the addresses.
        self.call(CALL, || unsafe { function((&raw mut descriptor).cast(), addr.0, bytes, DMA_BUF, 0) })?;
        // SAFETY: the driver has opened it for the caller, who closes it.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    /// Makes a call that needs no context, whether or not it can be entered: chunks, mappings and reservations survive a reset of
    /// the primary one, and are given back after it as well.
    fn give_back(&self, call: DriverCall, function: impl FnOnce() -> CUresult) -> DriverResult<()> {
        let entered = self.context.enter_outside_capture(call);
        let _relaxed = entered.is_err().then(|| Relaxed::new(self.library));
        self.library.check(call, call.name(), function())
    }

    fn call(&self, call: DriverCall, function: impl FnOnce() -> CUresult) -> DriverResult<()> {
        let _guards = self.context.enter_outside_capture(call)?;
        let result = function();
        self.library.check(call, call.name(), result)
    }

    fn properties(&self) -> CUmemAllocationProp {
        let mut prop = CUmemAllocationProp {
            type_: allocation_type::CU_MEM_ALLOCATION_TYPE_PINNED,
            location: CUmemLocation { type_: location_type::CU_MEM_LOCATION_TYPE_DEVICE, id: self.device },
            ..CUmemAllocationProp::default()
        };
        if self.features.posix_fd {
            prop.requestedHandleTypes = handle_type::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        }
        if self.features.rdma {
            prop.allocFlags.gpuDirectRDMACapable = 1;
        }
        prop
    }
}

impl CudaDriver {
    pub(super) fn vmm(&self) -> Vmm<'_> {
        Vmm { library: self.library, context: &self.context, device: self.device, features: self.features }
    }
}

impl MemoryDriver for CudaDriver {
    fn granularity(&self) -> u64 {
        self.granularity
    }

    fn ordinal(&self) -> u32 {
        self.info.ordinal
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        self.info.uuid
    }

    fn memory_info(&self) -> DriverResult<MemoryInfo> {
        super::plain::memory_info(self.library, &self.context, &self.info)
    }

    fn reserve(&self, bytes: u64, alignment: u64) -> DriverResult<DeviceAddr> {
        let call = DriverCall::Reserve;
        if bytes == 0 || !bytes.is_multiple_of(self.granularity) {
            return Err(DriverError::new(
                call,
                DriverErrorKind::InvalidValue,
                format!("{bytes} bytes are not a multiple of the granularity, {}", self.granularity),
            ));
        }
        if !alignment.is_power_of_two() || alignment < self.granularity {
            return Err(DriverError::new(
                call,
                DriverErrorKind::InvalidValue,
                format!("alignment {alignment} is not a power of two from the granularity, {}, up", self.granularity),
            ));
        }
        // Relaxed: a sum, which orders nothing.
        let before = RESERVED.fetch_add(bytes, Ordering::Relaxed);
        let reserved = if bytes <= ALWAYS_TRIED || before.saturating_add(bytes) <= MOST_ADDRESSES {
            self.vmm().reserve(bytes, alignment)
        } else {
            let text = format!("{} of addresses beside {}", ByteSize(bytes), ByteSize(before));
            Err(DriverError::new(call, DriverErrorKind::OutOfMemory, text))
        };
        if reserved.is_err() {
            RESERVED.fetch_sub(bytes, Ordering::Relaxed);
        }
        reserved
    }

    fn address_free(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.vmm().address_free(addr, bytes)?;
        RESERVED.fetch_sub(bytes, Ordering::Relaxed);
        Ok(())
    }

    fn create(&self, bytes: u64) -> DriverResult<ChunkHandle> {
        self.vmm().create(bytes)
    }

    fn release(&self, chunk: ChunkHandle) -> DriverResult<()> {
        self.vmm().release(chunk)
    }

    fn map(&self, addr: DeviceAddr, bytes: u64, chunk: ChunkHandle) -> DriverResult<()> {
        self.vmm().map(addr, bytes, chunk)
    }

    fn set_access(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        let access = self.peers.access();
        self.vmm().set_access(addr, bytes, &access)
    }

    fn unmap(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<()> {
        self.vmm().unmap(addr, bytes)
    }

    fn export(&self, chunk: ChunkHandle) -> DriverResult<OwnedFd> {
        self.vmm().export(chunk)
    }

    fn import(&self, descriptor: BorrowedFd<'_>, _bytes: u64) -> DriverResult<ChunkHandle> {
        self.vmm().import(descriptor)
    }

    fn export_dma_buf(&self, addr: DeviceAddr, bytes: u64) -> DriverResult<OwnedFd> {
        self.vmm().export_dma_buf(addr, bytes)
    }

    fn host_alloc(&self, bytes: u64) -> DriverResult<HostMemory> {
        let call = DriverCall::HostAlloc;
        let bytes = size(call, bytes)?;
        let _guards = self.context.enter_outside_capture(call)?;
        let mut memory = std::ptr::null_mut();
        // SAFETY: the out-parameter is a valid pointer for the call.
        let result = unsafe { self.library.api().cuMemAllocHost_v2(&raw mut memory, bytes) };
        self.library.check(call, "cuMemAllocHost", result)?;
        Ok(HostMemory(memory as u64))
    }

    fn host_free(&self, memory: HostMemory) -> DriverResult<()> {
        let call = DriverCall::HostFree;
        let _guards = self.context.enter_outside_capture(call)?;
        // SAFETY: memory of `host_alloc`, freed once, that no copy uses any more (the trait's contract).
        let result = unsafe { self.library.api().cuMemFreeHost(memory.0 as *mut c_void) };
        self.library.check(call, "cuMemFreeHost", result)
    }

    fn host_read(&self, memory: HostMemory, offset: u64, bytes: u64, read: &mut dyn FnMut(&[u8])) -> DriverResult<()> {
        let call = DriverCall::HostAlloc;
        let (start, bytes) = (size(call, memory.0 + offset)? as *const u8, size(call, bytes)?);
        // SAFETY: a range of memory of `host_alloc`, which is neither freed nor written to meanwhile (the trait's contract).
        read(unsafe { std::slice::from_raw_parts(start, bytes) });
        Ok(())
    }

    fn host_write(
        &self,
        memory: HostMemory,
        offset: u64,
        bytes: u64,
        write: &mut dyn FnMut(&mut [u8]),
    ) -> DriverResult<()> {
        let call = DriverCall::HostAlloc;
        let (start, bytes) = (size(call, memory.0 + offset)? as *mut u8, size(call, bytes)?);
        // SAFETY: a range of memory of `host_alloc`, which is neither freed nor used by a copy meanwhile (the trait's contract).
        write(unsafe { std::slice::from_raw_parts_mut(start, bytes) });
        Ok(())
    }
}

/// Bytes of addresses that the drivers of this process have reserved.
static RESERVED: AtomicU64 = AtomicU64::new(0);
/// The most of them, a quarter of the addresses of a process: its other libraries reserve addresses as well.
const MOST_ADDRESSES: u64 = 32 * 1024 * GIB;
/// A reservation that is no larger is left to the driver to refuse.
const ALWAYS_TRIED: u64 = 4 * GIB;

/// The kind of handle that chunks are shared by.
const DESCRIPTOR: handle_type = handle_type::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
const DMA_BUF: CUmemRangeHandleType = CUmemRangeHandleType_enum::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;

fn unshared(call: DriverCall) -> DriverError {
    DriverError::new(call, DriverErrorKind::NotSupported, "the driver library cannot share memory with other processes")
}

/// Converts `bytes` to the driver's `size_t`.
pub(super) fn size(call: DriverCall, bytes: u64) -> DriverResult<usize> {
    usize::try_from(bytes).map_err(|_| {
        DriverError::new(call, DriverErrorKind::InvalidValue, "more bytes than this machine's addresses can count")
    })
}
