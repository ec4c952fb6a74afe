//! Properties of a device that can be queried without creating a context on it.

use std::ffi::{CStr, c_char};

use super::library::Library;
use super::sys::{CUdevice, CUdevice_attribute, CUdevice_attribute_enum as attribute, CUuuid};
use crate::driver::{DriverCall, DriverResult};
use crate::units::ByteSize;

/// Properties of one device.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The device's number, counted from 0 among those that `CUDA_VISIBLE_DEVICES` leaves visible.
    pub ordinal: u32,
    /// The marketing name.
    pub name: String,
    /// The PCI bus id, if the driver reports it.
    pub pci_bus_id: Option<String>,
    /// What names the physical device, or the part of it that is a device (MIG), in every process; if the driver reports it.
    #[serde(skip)]
    pub uuid: Option<[u8; 16]>,
    /// The compute capability, such as (9, 0).
    pub compute_capability: (i32, i32),
    /// Physical memory in bytes.
    pub total: ByteSize,
    /// The number of multiprocessors.
    pub multiprocessors: i32,
    /// Whether virtual memory management is supported.
    pub vmm: bool,
    /// Whether chunks can be exported as POSIX file descriptors.
    pub posix_fd_export: bool,
    /// Whether chunks can be exported as fabric handles.
    pub fabric_export: bool,
    /// Whether chunks can be used for GPUDirect RDMA.
    pub rdma: bool,
    /// Whether ranges can be exported as dma-buf.
    pub dma_buf: bool,
    /// Whether multicast objects are supported.
    pub multicast: bool,
    /// Whether chunks can be compressible.
    pub compression: bool,
    /// Whether the device has its memory from the machine, and shares it with the processors.
    pub integrated: bool,
    /// The number of the machine's memory node that the device's memory is, where the kernel may use it as well (GH200).
    pub memory_node: Option<u32>,
}

impl DeviceInfo {
    /// Queries the properties of device number `ordinal`. An attribute that this driver does not know is taken as "no".
    ///
    /// # Errors
    /// The driver's error, for example for an ordinal out of range.
    pub fn query(library: &Library, ordinal: u32) -> DriverResult<Self> {
        let device = library.device(ordinal)?;
        let mut total = 0;
        // SAFETY: the out-parameter is a valid pointer for the call.
        let result = unsafe { library.api().cuDeviceTotalMem_v2(&raw mut total, device) };
        library.check(DriverCall::Open, "cuDeviceTotalMem", result)?;
        let value = |which| attribute_of(library, device, which).unwrap_or(0);
        let has = |which| value(which) != 0;
        Ok(Self {
            ordinal,
            name: name_of(library, device)?,
            pci_bus_id: pci_bus_id_of(library, device),
            uuid: uuid_of(library, device),
            compute_capability: (
                value(attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                value(attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
            ),
            total: ByteSize(total as u64),
            multiprocessors: value(attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
            vmm: has(attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED),
            posix_fd_export: has(attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED),
            fabric_export: has(attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED),
            rdma: has(attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED),
            dma_buf: has(attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED),
            multicast: has(attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED),
            compression: has(attribute::CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED),
            integrated: has(attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED),
            memory_node: has(attribute::CU_DEVICE_ATTRIBUTE_NUMA_CONFIG)
                .then(|| u32::try_from(value(attribute::CU_DEVICE_ATTRIBUTE_NUMA_ID)).ok())
                .flatten(),
        })
    }
}

/// Returns true when `peer` can access memory of `device`.
pub(super) fn can_access(library: &Library, peer: CUdevice, device: CUdevice) -> DriverResult<bool> {
    let mut answer = 0;
    // SAFETY: the out-parameter is a valid pointer for the call.
    let result = unsafe { library.api().cuDeviceCanAccessPeer(&raw mut answer, peer, device) };
    library.check(DriverCall::Open, "cuDeviceCanAccessPeer", result)?;
    Ok(answer != 0)
}

/// Returns an attribute's value; `None` if the driver does not know the attribute.
fn attribute_of(library: &Library, device: CUdevice, which: CUdevice_attribute) -> Option<i32> {
    let mut value = 0;
    // SAFETY: the out-parameter is a valid pointer for the call; the driver refuses attributes that it does not know.
    let result = unsafe { library.api().cuDeviceGetAttribute(&raw mut value, which, device) };
    library.check(DriverCall::Open, "cuDeviceGetAttribute", result).ok().map(|()| value)
}

fn name_of(library: &Library, device: CUdevice) -> DriverResult<String> {
    let mut text = [0; TEXT_BYTES];
    // SAFETY: the buffer is as long as the length says; the driver terminates what it writes.
    let result = unsafe { library.api().cuDeviceGetName(text.as_mut_ptr(), TEXT_BYTES as i32, device) };
    library.check(DriverCall::Open, "cuDeviceGetName", result)?;
    Ok(text_of(&text))
}

fn pci_bus_id_of(library: &Library, device: CUdevice) -> Option<String> {
    let function = library.optional().cuDeviceGetPCIBusId.as_ref().ok()?;
    let mut text = [0; TEXT_BYTES];
    // SAFETY: the buffer is as long as the length says; the driver terminates what it writes.
    let result = unsafe { function(text.as_mut_ptr(), TEXT_BYTES as i32, device) };
    library.check(DriverCall::Open, "cuDeviceGetPCIBusId", result).ok().map(|()| text_of(&text))
}

fn uuid_of(library: &Library, device: CUdevice) -> Option<[u8; 16]> {
    let function = library.optional().cuDeviceGetUuid_v2.as_ref().ok()?;
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: the out-parameter is valid for the call.
    let result = unsafe { function(&raw mut uuid, device) };
    library
        .check(DriverCall::Open, "cuDeviceGetUuid", result)
        .ok()
        .map(|()| uuid.bytes.map(|byte| byte.to_ne_bytes()[0]))
}

fn text_of(buffer: &[c_char; TEXT_BYTES]) -> String {
    let bytes = buffer.map(|c| c.to_ne_bytes()[0]);
    CStr::from_bytes_until_nul(&bytes).map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
}

/// Longer than every name and bus id; small enough for an `i32`.
const TEXT_BYTES: usize = 256;
