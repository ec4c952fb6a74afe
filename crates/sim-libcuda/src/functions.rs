//! The functions that can be made to fail, by the names that their calls are counted under.

/// A function that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// The name that its calls are counted under.
    pub name: &'static str,
    /// What a call that fails most likely returns.
    pub code: u32,
    /// Whether it gives device memory back, so that the memory stays where a call fails.
    pub gives_back: bool,
}

/// Returns all of them.
pub fn all() -> impl Iterator<Item = Function> {
    let takes = TAKE.iter().map(|name| Function { name, code: OUT_OF_MEMORY, gives_back: false });
    let gives_back = GIVE_BACK.iter().map(|name| Function { name, code: UNKNOWN, gives_back: true });
    takes.chain(gives_back).chain(OTHERS.iter().map(|name| Function { name, code: UNKNOWN, gives_back: false }))
}

/// Returns the function of a name, which may lack the version that `cuda.h` gives it: `cuMemAlloc` is `cuMemAlloc_v2`.
pub fn find(name: &str) -> Option<Function> {
    all().find(|function| function.name == name).or_else(|| all().find(|it| unversioned(it.name) == unversioned(name)))
}

/// Returns the name that has the longest beginning in common with what was written.
pub fn nearest(written: &str) -> &'static str {
    let in_common = |name: &str| name.bytes().zip(written.bytes()).take_while(|(one, other)| one == other).count();
    all().map(|function| function.name).max_by_key(|name| in_common(name)).unwrap_or_default()
}

fn unversioned(name: &str) -> &str {
    let Some((stem, version)) = name.rsplit_once("_v") else { return name };
    if version.parse::<u32>().is_ok() { stem } else { name }
}

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: u32 = 2;
/// `CUDA_ERROR_UNKNOWN`.
const UNKNOWN: u32 = 999;

/// Those that run out of memory, of the device or of the host.
const TAKE: [&str; 18] = [
    "cuCtxCreate_v2",
    "cuDevicePrimaryCtxRetain",
    "cuEventCreate",
    "cuGraphInstantiateWithFlags",
    "cuGreenCtxCreate",
    "cuGreenCtxStreamCreate",
    "cuIpcOpenMemHandle_v2",
    "cuMemAddressReserve",
    "cuMemAllocAsync",
    "cuMemAllocHost_v2",
    "cuMemAlloc_v2",
    "cuMemCreate",
    "cuMemImportFromShareableHandle",
    "cuMemMap",
    "cuMemSetAccess",
    "cuModuleLoadData",
    "cuStreamCreate",
    "cuStreamCreateWithPriority",
];

/// Those that give device memory back.
const GIVE_BACK: [&str; 6] = [
    "cuDevicePrimaryCtxReset_v2",
    "cuIpcCloseMemHandle",
    "cuMemFreeAsync",
    "cuMemFree_v2",
    "cuMemRelease",
    "cuMemUnmap",
];

const OTHERS: [&str; 65] = [
    "cuCtxDestroy_v2",
    "cuCtxEnablePeerAccess",
    "cuCtxFromGreenCtx",
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuCtxGetId",
    "cuCtxPopCurrent",
    "cuCtxPushCurrent",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuDevResourceGenerateDesc",
    "cuDeviceCanAccessPeer",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetDevResource",
    "cuDeviceGetName",
    "cuDeviceGetPCIBusId",
    "cuDeviceGetUuid_v2",
    "cuDevicePrimaryCtxGetState",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDeviceTotalMem_v2",
    "cuEventDestroy_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphLaunch",
    "cuGreenCtxDestroy",
    "cuInit",
    "cuIpcGetEventHandle",
    "cuIpcGetMemHandle",
    "cuIpcOpenEventHandle",
    "cuLaunchKernel",
    "cuMemAddressFree",
    "cuMemExportToShareableHandle",
    "cuMemFreeHost",
    "cuMemGetAccess",
    "cuMemGetAllocationGranularity",
    "cuMemGetAllocationPropertiesFromHandle",
    "cuMemGetHandleForAddressRange",
    "cuMemGetInfo_v2",
    "cuMemHostGetFlags",
    "cuMemRetainAllocationHandle",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyPeerAsync",
    "cuMemsetD32Async",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleUnload",
    "cuPointerGetAttribute",
    "cuStreamBeginCapture_v2",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamGetCtx",
    "cuStreamGetCtx_v2",
    "cuStreamGetId",
    "cuStreamIsCapturing",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuThreadExchangeStreamCaptureMode",
];

/// Functions that came after CUDA 11.4, with the version of the driver API in which they did, as `cuDriverGetVersion` says it.
///
/// Source: the names of the types in `cudaTypedefs.h` of CUDA 13.2, such as `PFN_cuStreamGetId_v12000`.
pub const NEWER: [(&str, i32); 15] = [
    ("cuLaunchKernelEx", 11_060),
    ("cuMemGetHandleForAddressRange", 11_070),
    ("cuCtxGetId", 12_000),
    ("cuGetProcAddress_v2", 12_000),
    ("cuStreamGetId", 12_000),
    ("cuTensorMapEncodeTiled", 12_000),
    ("cuStreamGetCaptureInfo_v3", 12_030),
    ("cuCtxFromGreenCtx", 12_040),
    ("cuDevResourceGenerateDesc", 12_040),
    ("cuDeviceGetDevResource", 12_040),
    ("cuGreenCtxCreate", 12_040),
    ("cuGreenCtxDestroy", 12_040),
    ("cuCtxCreate_v4", 12_050),
    ("cuGreenCtxStreamCreate", 12_050),
    ("cuStreamGetCtx_v2", 12_050),
];
