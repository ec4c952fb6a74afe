/* A stand-in for the CUDA runtime, over the simulated driver: enough for PyTorch's CUDA build to start on a machine
 * without a GPU and to allocate. Loaded by LD_PRELOAD before PyTorch's own libcudart.so.13. Streams, events and graphs
 * are the simulated driver's. No kernel runs: a launch returns at once. Compiled against CUDA's own headers. */
#define _GNU_SOURCE
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DEVICES = 64 };

static _Thread_local int current_device;
static _Thread_local cudaError_t last_error = cudaSuccess;
static CUcontext contexts[MOST_DEVICES];

static cudaError_t answer(CUresult result) {
    /* The numbers of the runtime's errors are the driver's. */
    cudaError_t error = (cudaError_t)result;
    if (error != cudaSuccess && error != cudaErrorNotReady) {
        last_error = error;
    }
    return error;
}

__attribute__((constructor)) static void start(void) { cuInit(0); }

static cudaError_t enter(void) {
    CUcontext context = NULL;
    if (cuCtxGetCurrent(&context) == CUDA_SUCCESS && context != NULL && context == contexts[current_device]) {
        return cudaSuccess;
    }
    if (contexts[current_device] == NULL) {
        CUresult result = cuDevicePrimaryCtxRetain(&contexts[current_device], current_device);
        if (result != CUDA_SUCCESS) {
            return answer(result);
        }
    }
    return answer(cuCtxSetCurrent(contexts[current_device]));
}

#define IN_CONTEXT(call)               \
    do {                               \
        cudaError_t entered = enter(); \
        if (entered != cudaSuccess) {  \
            return entered;            \
        }                              \
        return answer(call);           \
    } while (0)

/* Devices. */

cudaError_t cudaGetDeviceCount(int *count) { return answer(cuDeviceGetCount(count)); }

cudaError_t cudaGetDevice(int *device) {
    *device = current_device;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
    int count = 0;
    cuDeviceGetCount(&count);
    if (device < 0 || device >= count || device >= MOST_DEVICES) {
        return answer((CUresult)cudaErrorInvalidDevice);
    }
    current_device = device;
    return enter();
}

static int attribute(int which, int device) {
    int value = 0;
    cuDeviceGetAttribute(&value, (CUdevice_attribute)which, device);
    return value;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr which, int device) {
    *value = attribute(which, device);
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
    memset(properties, 0, sizeof *properties);
    snprintf(properties->name, sizeof properties->name, "simulated device");
    cuDeviceTotalMem(&properties->totalGlobalMem, device);
    properties->pciBusID = device;
    properties->major = 9;
    properties->minor = 0;
    properties->multiProcessorCount = 4;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->regsPerBlock = 65536;
    properties->regsPerMultiprocessor = 65536;
    properties->sharedMemPerBlock = 49152;
    properties->sharedMemPerBlockOptin = 232448;
    properties->sharedMemPerMultiprocessor = 233472;
    for (int i = 0; i < 3; i++) {
        properties->maxThreadsDim[i] = 1024;
        properties->maxGridSize[i] = 65535;
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    return answer(cuDeviceCanAccessPeer(can, device, peer));
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
    (void)peer, (void)flags;
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void) { IN_CONTEXT(cuCtxSynchronize()); }

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) { return answer(cuDriverGetVersion(version)); }

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) { IN_CONTEXT(cuMemGetInfo(available, total)); }

/* What PyTorch looks up and the simulated driver lacks is never called here. */
static CUresult absent(void) { return CUDA_ERROR_NOT_SUPPORTED; }

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned int version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *status) {
    (void)version, (void)flags;
    static const char *const endings[] = {"_v2", "_v3", ""};
    char name[128];
    *function = NULL;
    for (size_t i = 0; i < sizeof endings / sizeof *endings && *function == NULL; i++) {
        snprintf(name, sizeof name, "%s%s", symbol, endings[i]);
        *function = dlsym(RTLD_DEFAULT, name);
    }
    if (*function == NULL) {
        *function = (void *)absent;
    }
    if (status != NULL) {
        *status = cudaDriverEntryPointSuccess;
    }
    return cudaSuccess;
}

/* Errors. */

cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void) { return last_error; }

const char *cudaGetErrorName(cudaError_t error) {
    const char *text = NULL;
    return cuGetErrorName((CUresult)error, &text) == CUDA_SUCCESS ? text : "unknown error";
}

const char *cudaGetErrorString(cudaError_t error) {
    const char *text = NULL;
    return cuGetErrorString((CUresult)error, &text) == CUDA_SUCCESS ? text : "unknown error";
}

/* Streams and events. */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority) {
    (void)priority;
    IN_CONTEXT(cuStreamCreate(stream, flags));
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags) {
    IN_CONTEXT(cuStreamCreate(stream, flags));
}
cudaError_t cudaStreamCreate(cudaStream_t *stream) { IN_CONTEXT(cuStreamCreate(stream, 0)); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { IN_CONTEXT(cuStreamDestroy(stream)); }
cudaError_t cudaStreamQuery(cudaStream_t stream) { IN_CONTEXT(cuStreamQuery(stream)); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { IN_CONTEXT(cuStreamSynchronize(stream)); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags) {
    IN_CONTEXT(cuStreamWaitEvent(stream, event, flags));
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    (void)stream;
    *priority = 0;
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags) {
    IN_CONTEXT(cuEventCreate(event, flags));
}
cudaError_t cudaEventCreate(cudaEvent_t *event) { IN_CONTEXT(cuEventCreate(event, 0)); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { IN_CONTEXT(cuEventDestroy(event)); }
cudaError_t cudaEventQuery(cudaEvent_t event) { IN_CONTEXT(cuEventQuery(event)); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { IN_CONTEXT(cuEventSynchronize(event)); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { IN_CONTEXT(cuEventRecord(event, stream)); }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags) {
    (void)flags;
    IN_CONTEXT(cuEventRecord(event, stream));
}
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
    (void)start, (void)end;
    *milliseconds = 1;
    return cudaSuccess;
}

/* Between processes: the driver's handles have the same bytes. */

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event) {
    IN_CONTEXT(cuIpcGetEventHandle((CUipcEventHandle *)handle, event));
}
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle) {
    CUipcEventHandle same;
    memcpy(&same, &handle, sizeof same);
    IN_CONTEXT(cuIpcOpenEventHandle(event, same));
}
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *pointer) {
    IN_CONTEXT(cuIpcGetMemHandle((CUipcMemHandle *)handle, (CUdeviceptr)pointer));
}
cudaError_t cudaIpcOpenMemHandle(void **pointer, cudaIpcMemHandle_t handle, unsigned int flags) {
    CUipcMemHandle same;
    memcpy(&same, &handle, sizeof same);
    IN_CONTEXT(cuIpcOpenMemHandle((CUdeviceptr *)pointer, same, flags));
}
cudaError_t cudaIpcCloseMemHandle(void *pointer) { IN_CONTEXT(cuIpcCloseMemHandle((CUdeviceptr)pointer)); }

/* Captures and graphs. */

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    return answer(cuThreadExchangeStreamCaptureMode((CUstreamCaptureMode *)mode));
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    IN_CONTEXT(cuStreamBeginCapture(stream, (CUstreamCaptureMode)mode));
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    IN_CONTEXT(cuStreamEndCapture(stream, graph));
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    IN_CONTEXT(cuStreamIsCapturing(stream, (CUstreamCaptureStatus *)status));
}
#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **dependencies,
                                     const cudaGraphEdgeData **edges, size_t *count) {
#else
/* CUDA 12's header renames it to its second version, without edges. */
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **dependencies, size_t *count) {
    void **edges = NULL;
#endif
    if (id != NULL) {
        *id = (unsigned long long)(size_t)stream;
    }
    if (graph != NULL) {
        *graph = NULL;
    }
    if (dependencies != NULL) {
        *dependencies = NULL;
    }
    if (edges != NULL) {
        *edges = NULL;
    }
    if (count != NULL) {
        *count = 0;
    }
    return cudaStreamIsCapturing(stream, status);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags) {
    IN_CONTEXT(cuGraphInstantiateWithFlags(executable, graph, flags));
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags) {
    IN_CONTEXT(cuGraphInstantiateWithFlags(executable, graph, flags));
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    IN_CONTEXT(cuGraphLaunch(executable, stream));
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { IN_CONTEXT(cuGraphDestroy(graph)); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) { IN_CONTEXT(cuGraphExecDestroy(executable)); }
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
    (void)graph, (void)nodes;
    *count = 1;
    return cudaSuccess;
}

/* Memory. */

cudaError_t cudaMalloc(void **pointer, size_t bytes) { IN_CONTEXT(cuMemAlloc((CUdeviceptr *)pointer, bytes)); }
cudaError_t cudaFree(void *pointer) {
    if (pointer == NULL) {
        return enter();
    }
    IN_CONTEXT(cuMemFree((CUdeviceptr)pointer));
}
/* Pinned memory: host memory, of which it is known where it lies. The driver knows what it has allocated itself. */
struct pinned {
    struct pinned *next;
    char *begin;
    size_t bytes;
    unsigned int flags;
};
static struct pinned *all_pinned;
static pthread_mutex_t pinned_lock = PTHREAD_MUTEX_INITIALIZER;

/* Where the entry of an address is linked: of one that it begins with, or that it lies in. */
static struct pinned **pinned_at(const void *pointer) {
    struct pinned **entry = &all_pinned;
    while (*entry != NULL && (uintptr_t)pointer - (uintptr_t)(*entry)->begin >= (*entry)->bytes) {
        entry = &(*entry)->next;
    }
    return entry;
}

static bool pinned_flags(const void *pointer, unsigned int *flags) {
    pthread_mutex_lock(&pinned_lock);
    struct pinned *entry = *pinned_at(pointer);
    if (entry != NULL) {
        *flags = entry->flags;
    }
    pthread_mutex_unlock(&pinned_lock);
    return entry != NULL || cuMemHostGetFlags(flags, (void *)pointer) == CUDA_SUCCESS;
}

cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned int flags) {
    struct pinned *entry = malloc(sizeof *entry);
    if (entry == NULL) {
        return answer(CUDA_ERROR_OUT_OF_MEMORY);
    }
    pthread_mutex_lock(&pinned_lock);
    *entry = (struct pinned){.next = all_pinned, .begin = pointer, .bytes = bytes, .flags = flags};
    all_pinned = entry;
    pthread_mutex_unlock(&pinned_lock);
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void *pointer) {
    pthread_mutex_lock(&pinned_lock);
    struct pinned **link = pinned_at(pointer), *entry = *link;
    if (entry != NULL) {
        *link = entry->next;
    }
    pthread_mutex_unlock(&pinned_lock);
    free(entry);
    return entry != NULL ? cudaSuccess : answer(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}
cudaError_t cudaHostGetFlags(unsigned int *flags, void *pointer) {
    return pinned_flags(pointer, flags) ? cudaSuccess : answer(CUDA_ERROR_INVALID_VALUE);
}
cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned int flags) {
    *pointer = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return *pointer != NULL ? cudaHostRegister(*pointer, bytes, flags) : answer(CUDA_ERROR_OUT_OF_MEMORY);
}
cudaError_t cudaMallocHost(void **pointer, size_t bytes) { return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault); }
cudaError_t cudaFreeHost(void *pointer) {
    cudaError_t error = pointer == NULL ? cudaSuccess : cudaHostUnregister(pointer);
    if (error == cudaSuccess) {
        free(pointer);
    }
    return error;
}

/* What programs look up, and the simulated driver does not have. */
cudaError_t cudaDeviceReset(void) { return answer(CUDA_ERROR_NOT_SUPPORTED); }

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer) {
    memset(attributes, 0, sizeof *attributes);
    cudaError_t entered = enter();
    if (entered != cudaSuccess) {
        return entered;
    }
    unsigned int type = 0;
    if (cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)pointer) == CUDA_SUCCESS) {
        attributes->type = cudaMemoryTypeDevice;
        attributes->devicePointer = (void *)pointer;
        return answer(cuPointerGetAttribute(&attributes->device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, (CUdeviceptr)pointer));
    }
    unsigned int flags = 0;
    bool is_pinned = pinned_flags(pointer, &flags);
    attributes->type = is_pinned ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    attributes->devicePointer = is_pinned ? (void *)pointer : NULL;
    attributes->device = current_device;
    attributes->hostPointer = (void *)pointer;
    return cudaSuccess;
}

static bool is_of_device(const void *pointer) {
    unsigned int type = 0;
    return cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)pointer) == CUDA_SUCCESS &&
           type == CU_MEMORYTYPE_DEVICE;
}
/* What is copied from where, told by the addresses. */
static enum cudaMemcpyKind kind_of(const void *target, const void *source) {
    if (is_of_device(source)) {
        return is_of_device(target) ? cudaMemcpyDeviceToDevice : cudaMemcpyDeviceToHost;
    }
    return is_of_device(target) ? cudaMemcpyHostToDevice : cudaMemcpyHostToHost;
}
cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
    switch (kind == cudaMemcpyDefault ? kind_of(target, source) : kind) {
        case cudaMemcpyHostToDevice:
            IN_CONTEXT(cuMemcpyHtoDAsync((CUdeviceptr)target, source, bytes, stream));
        case cudaMemcpyDeviceToHost:
            IN_CONTEXT(cuMemcpyDtoHAsync(target, (CUdeviceptr)source, bytes, stream));
        case cudaMemcpyDeviceToDevice:
            IN_CONTEXT(cuMemcpyDtoDAsync((CUdeviceptr)target, (CUdeviceptr)source, bytes, stream));
        default:
            memcpy(target, source, bytes);
            return cudaSuccess;
    }
}
/* A device's primary context. */
static CUcontext context_of(int device) {
    if (contexts[device] == NULL) {
        cuDevicePrimaryCtxRetain(&contexts[device], device);
    }
    return contexts[device];
}
cudaError_t cudaMemcpyPeerAsync(void *target, int to, const void *source, int from, size_t bytes, cudaStream_t stream) {
    IN_CONTEXT(cuMemcpyPeerAsync((CUdeviceptr)target, context_of(to), (CUdeviceptr)source, context_of(from), bytes, stream));
}
cudaError_t cudaMemcpy(void *target, const void *source, size_t bytes, enum cudaMemcpyKind kind) {
    cudaError_t error = cudaMemcpyAsync(target, source, bytes, kind, NULL);
    return error != cudaSuccess ? error : cudaStreamSynchronize(NULL);
}
cudaError_t cudaMemsetAsync(void *target, int value, size_t bytes, cudaStream_t stream) {
    IN_CONTEXT(cuMemsetD8Async((CUdeviceptr)target, (unsigned char)value, bytes, stream));
}
cudaError_t cudaMemset(void *target, int value, size_t bytes) { return cudaMemsetAsync(target, value, bytes, NULL); }

/* Kernels. */

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared,
                             cudaStream_t stream) {
    (void)function, (void)grid, (void)block, (void)arguments, (void)shared, (void)stream;
    return cudaSuccess;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments) {
    (void)config, (void)function, (void)arguments;
    return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function) {
    (void)function;
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = 1024;
    attributes->binaryVersion = 90;
    attributes->ptxVersion = 90;
    return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute which, int value) {
    (void)function, (void)which, (void)value;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function, int threads, size_t shared) {
    (void)function, (void)threads, (void)shared;
    *blocks = 2;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function, int threads,
                                                                   size_t shared, unsigned int flags) {
    (void)flags;
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared);
}
