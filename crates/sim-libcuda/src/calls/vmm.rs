//! Virtual memory management.

use std::ffi::{c_int, c_uint, c_void};

use gapless::driver::MemoryDriver;
use gapless::driver::cuda::sys::{
    CUmemAccess_flags_enum, CUmemAccessDesc, CUmemAllocationProp, CUmemLocation, CUmemLocationType_enum,
    cudaError_enum as E,
};
use gapless::driver::host::HostDriver;
use gapless::{ByteSize, DeviceAddr};

use super::entry::{Code, INVALID, OK, UNSUPPORTED, begin_vmm, code_of, put};
use crate::broken;
use crate::settings::Rdma;
use crate::state::{Accessor, CURRENT, Chunk, DeviceSet, Mapping, State};

/// Returns the device of a location.
fn device_at(state: &State, location: &CUmemLocation) -> Option<usize> {
    let device = usize::try_from(location.id).ok()?;
    (location.type_ == CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE && device < state.devices.len())
        .then_some(device)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAllocationGranularity(
    bytes: *mut usize,
    prop: *const CUmemAllocationProp,
    _option: c_uint,
) -> Code {
    let state = begin_vmm!("cuMemGetAllocationGranularity");
    // SAFETY: null or valid (the driver API's contract).
    let Some(prop) = (unsafe { prop.as_ref() }) else { return INVALID };
    let Some(device) = device_at(state, &prop.location) else { return INVALID };
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(bytes, state.devices[device].host.granularity() as usize) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressReserve(
    addr: *mut u64,
    bytes: usize,
    align: usize,
    _hint: u64,
    flags: u64,
) -> Code {
    let state = begin_vmm!("cuMemAddressReserve");
    if addr.is_null() || flags != 0 || bytes == 0 {
        return INVALID;
    }
    // Addresses belong to the process. The current device's host driver reserves them, since it will map into them.
    let device = CURRENT.get().unwrap_or_default().device;
    let host = &state.devices[device].host;
    match host.reserve(bytes as u64, (align as u64).max(host.granularity())) {
        Ok(at) => {
            state.reservations.lock().insert(at.0, (bytes as u64, device));
            // SAFETY: guaranteed by the driver API's contract.
            unsafe { put(addr, at.0) }
        }
        Err(error) => match code_of::<()>(Err(error)) {
            INVALID if !is_whole(host, bytes) => {
                broken::rule("reserve_odd", INVALID, || ByteSize(bytes as u64).to_string())
            }
            code => code,
        },
    }
}

/// Whether a size is a multiple of the granularity.
fn is_whole(host: &HostDriver, bytes: usize) -> bool {
    (bytes as u64).is_multiple_of(host.granularity())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressFree(addr: u64, bytes: usize) -> Code {
    let state = begin_vmm!("cuMemAddressFree");
    let mut reservations = state.reservations.lock();
    let Some(&(reserved, device)) = reservations.get(&addr) else {
        return broken::rule("free_again", INVALID, || format!("no reservation begins at {addr:#x}"));
    };
    let result = state.devices[device].host.address_free(DeviceAddr(addr), bytes as u64);
    if result.is_ok() {
        reservations.remove(&addr);
    } else if reserved != bytes as u64 {
        return broken::rule("free_part", code_of(result), || {
            format!("{} of {} at {addr:#x}", ByteSize(bytes as u64), ByteSize(reserved))
        });
    } else if state.mappings.read().range(addr..addr + reserved).next().is_some() {
        return broken::rule("free_mapped", code_of(result), || format!("{} at {addr:#x}", ByteSize(reserved)));
    }
    code_of(result)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemCreate(
    handle: *mut u64,
    bytes: usize,
    prop: *const CUmemAllocationProp,
    flags: u64,
) -> Code {
    let state = begin_vmm!("cuMemCreate");
    // SAFETY: null or valid (the driver API's contract).
    let Some(prop) = (unsafe { prop.as_ref() }) else { return INVALID };
    let Some(device) = device_at(state, &prop.location) else { return INVALID };
    if handle.is_null() || flags != 0 {
        return INVALID;
    }
    let exportable = prop.requestedHandleTypes.0;
    if exportable != 0 && !state.settings.export {
        return UNSUPPORTED;
    }
    match state.accounted(device, |host| host.create(bytes as u64)) {
        Ok(made) => {
            let token = state.token();
            let rdma = prop.allocFlags.gpuDirectRDMACapable != 0;
            let chunk = Chunk { device, handle: made, bytes: bytes as u64, references: 1, rdma, exportable };
            state.chunks.lock().insert(token, chunk);
            // SAFETY: guaranteed by the driver API's contract.
            unsafe { put(handle, token) }
        }
        Err(error) => match code_of::<()>(Err(error)) {
            INVALID if !is_whole(&state.devices[device].host, bytes) => {
                broken::rule("create_odd", INVALID, || ByteSize(bytes as u64).to_string())
            }
            code => code,
        },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemRelease(handle: u64) -> Code {
    let state = begin_vmm!("cuMemRelease");
    let mut chunks = state.chunks.lock();
    let Some(chunk) = chunks.get_mut(&handle) else {
        return broken::rule("release_twice", INVALID, || format!("no chunk has the handle {handle:#x}"));
    };
    if chunk.references > 1 {
        chunk.references -= 1;
        return OK;
    }
    let result = state.accounted(chunk.device, |host| host.release(chunk.handle));
    if result.is_ok() {
        chunks.remove(&handle);
    }
    code_of(result)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemMap(addr: u64, bytes: usize, offset: usize, handle: u64, flags: u64) -> Code {
    let state = begin_vmm!("cuMemMap");
    if flags != 0 {
        return INVALID;
    }
    if offset != 0 {
        return broken::rule("map_offset", INVALID, || format!("an offset of {}", ByteSize(offset as u64)));
    }
    let Some(chunk) = state.chunks.lock().get(&handle).copied() else {
        return broken::rule("map_released", INVALID, || format!("no chunk has the handle {handle:#x}"));
    };
    if bytes as u64 != chunk.bytes {
        return broken::rule("map_part", UNSUPPORTED, || {
            format!("{} of a chunk of {}", ByteSize(bytes as u64), ByteSize(chunk.bytes))
        });
    }
    match state.device_of(addr) {
        Some(device) if device == chunk.device => {}
        // A rule of the simulation alone.
        Some(_) => return INVALID,
        None => {
            return broken::rule("map_unreserved", INVALID, || format!("{} at {addr:#x}", ByteSize(chunk.bytes)));
        }
    }
    let mut mappings = state.mappings.write();
    let result = state.devices[chunk.device].host.map(DeviceAddr(addr), chunk.bytes, chunk.handle);
    if result.is_ok() {
        let Chunk { device, bytes, rdma, .. } = chunk;
        mappings.insert(addr, Mapping { bytes, device, chunk: handle, rdma, granted: DeviceSet::default() });
    } else if let Some((at, bytes)) = State::overlapping(&mappings, addr, chunk.bytes) {
        return broken::rule("map_over", code_of(result), || {
            format!("{} at {addr:#x}; {} are mapped at {at:#x}", ByteSize(chunk.bytes), ByteSize(bytes))
        });
    }
    code_of(result)
}

/// What is said of addresses that are not those of whole mappings.
fn no_tiling(addr: u64, bytes: usize, at: u64, mapped: u64) -> String {
    format!("{} at {addr:#x}; {} are mapped at {at:#x}", ByteSize(bytes as u64), ByteSize(mapped))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemSetAccess(addr: u64, bytes: usize, list: *const CUmemAccessDesc, count: usize) -> Code {
    let state = begin_vmm!("cuMemSetAccess");
    if list.is_null() || count == 0 {
        return INVALID;
    }
    // SAFETY: the list has `count` entries (the driver API's contract).
    let list = unsafe { std::slice::from_raw_parts(list, count) };
    // The whole list is checked before anything changes.
    let mut wanted = Vec::with_capacity(list.len());
    for one in list {
        let Some(device) = device_at(state, &one.location) else { return INVALID };
        match one.flags {
            CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE => wanted.push((device, true)),
            CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_NONE => wanted.push((device, false)),
            flags => return broken::rule("access_read_only", INVALID, || format!("access of kind {}", flags.0)),
        }
    }
    let mut mappings = state.mappings.write();
    let Some(starts) = State::tiling(&mappings, addr, bytes as u64) else {
        return match State::overlapping(&mappings, addr, bytes as u64) {
            Some((at, mapped)) => broken::rule("access_part", INVALID, || no_tiling(addr, bytes, at, mapped)),
            None => broken::rule("access_unmapped", INVALID, || format!("{} at {addr:#x}", ByteSize(bytes as u64))),
        };
    };
    let owners = starts.iter().map(|start| mappings[start].device);
    if owners.into_iter().any(|owner| wanted.iter().any(|&(device, _)| !state.can_reach(device, owner))) {
        return E::CUDA_ERROR_INVALID_DEVICE.0;
    }
    if state.settings.rdma == Rdma::Refused && starts.iter().any(|start| mappings[start].rdma) {
        return E::CUDA_ERROR_UNKNOWN.0;
    }
    let device = mappings[&addr].device;
    let result = state.devices[device].host.set_access(DeviceAddr(addr), bytes as u64);
    if result.is_ok() {
        for start in starts {
            if let Some(mapping) = mappings.get_mut(&start) {
                for &(device, grant) in &wanted {
                    mapping.granted =
                        if grant { mapping.granted.with(device) } else { mapping.granted.without(device) };
                }
            }
        }
    }
    code_of(result)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemUnmap(addr: u64, bytes: usize) -> Code {
    let state = begin_vmm!("cuMemUnmap");
    let mut mappings = state.mappings.write();
    let Some(starts) = State::tiling(&mappings, addr, bytes as u64) else {
        let Some((at, mapped)) = State::overlapping(&mappings, addr, bytes as u64) else {
            return broken::rule("unmap_again", INVALID, || format!("{} at {addr:#x}", ByteSize(bytes as u64)));
        };
        // Mappings that lie in it whole, and nothing between them.
        let is_cut = at < addr || State::is_cut(&mappings, addr + bytes as u64);
        let rule = if is_cut { "unmap_part" } else { "unmap_hole" };
        return broken::rule(rule, INVALID, || no_tiling(addr, bytes, at, mapped));
    };
    let device = mappings[&addr].device;
    broken::unmapping(addr, bytes as u64);
    let result = state.accounted(device, |host| host.unmap(DeviceAddr(addr), bytes as u64));
    if result.is_ok() {
        for start in starts {
            mappings.remove(&start);
        }
    }
    code_of(result)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAccess(flags: *mut u64, location: *const CUmemLocation, addr: u64) -> Code {
    let state = begin_vmm!("cuMemGetAccess");
    // SAFETY: null or valid (the driver API's contract).
    let location = unsafe { location.as_ref() };
    let Some(device) = location.and_then(|location| device_at(state, location)) else { return INVALID };
    let accessible = state.accessible(&state.mappings.read(), Accessor::Kernel(device), addr, 1);
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(flags, if accessible { 3 } else { 0 }) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemRetainAllocationHandle(handle: *mut u64, addr: *mut c_void) -> Code {
    let state = begin_vmm!("cuMemRetainAllocationHandle");
    let addr = addr as u64;
    let found = state.mappings.read().range(..=addr).next_back().map(|(start, mapping)| (*start, *mapping));
    let Some((_, mapping)) = found.filter(|(start, mapping)| addr - start < mapping.bytes && mapping.chunk != 0) else {
        return INVALID;
    };
    let mut chunks = state.chunks.lock();
    let Some(chunk) = chunks.get_mut(&mapping.chunk) else { return INVALID };
    chunk.references += 1;
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(handle, mapping.chunk) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAllocationPropertiesFromHandle(prop: *mut CUmemAllocationProp, handle: u64) -> Code {
    let state = begin_vmm!("cuMemGetAllocationPropertiesFromHandle");
    let Some(chunk) = state.chunks.lock().get(&handle).copied() else { return INVALID };
    let mut found = CUmemAllocationProp::default();
    found.type_.0 = 1;
    found.location.type_ = CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
    found.location.id = chunk.device as c_int;
    found.requestedHandleTypes.0 = chunk.exportable;
    found.allocFlags.gpuDirectRDMACapable = u8::from(chunk.rdma);
    // SAFETY: guaranteed by the driver API's contract.
    unsafe { put(prop, found) }
}
