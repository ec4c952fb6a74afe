/* What these programs call of the driver, and CUmemAllocationProp and CUmemAccessDesc: numbers alone, with those of a
 * device's memory that is read and written. */
#include <stddef.h>
#include <stdint.h>

typedef void *handle;
struct property {
    int type, handles, location_type, device;
    void *security;
    unsigned char flags[8];
};
struct access {
    int location_type, device, flags;
};

int cuInit(unsigned flags);
int cuDeviceGetCount(int *count);
int cuDevicePrimaryCtxRetain(handle *context, int device);
int cuDevicePrimaryCtxReset_v2(int device);
int cuCtxSetCurrent(handle context);
int cuCtxSynchronize(void);
int cuMemGetInfo_v2(size_t *available, size_t *total);
int cuMemAddressReserve(uint64_t *address, size_t bytes, size_t alignment, uint64_t hint, unsigned long long flags);
int cuMemAddressFree(uint64_t address, size_t bytes);
int cuMemAlloc_v2(uint64_t *address, size_t bytes);
int cuMemFree_v2(uint64_t address);
int cuMemCreate(uint64_t *chunk, size_t bytes, const struct property *property, unsigned long long flags);
int cuMemRelease(uint64_t chunk);
int cuMemMap(uint64_t address, size_t bytes, size_t offset, uint64_t chunk, unsigned long long flags);
int cuMemUnmap(uint64_t address, size_t bytes);
int cuMemSetAccess(uint64_t address, size_t bytes, const struct access *list, size_t count);
int cuMemAllocHost_v2(void **memory, size_t bytes);
int cuMemFreeHost(void *memory);
int cuMemcpyHtoDAsync_v2(uint64_t target, const void *source, size_t bytes, handle stream);
int cuMemcpyDtoHAsync_v2(void *target, uint64_t source, size_t bytes, handle stream);
int cuMemsetD8Async(uint64_t address, unsigned char value, size_t bytes, handle stream);
int cuStreamCreate(handle *stream, unsigned flags);
int cuStreamDestroy_v2(handle stream);
int cuStreamQuery(handle stream);
int cuStreamSynchronize(handle stream);
int cuStreamGetId(handle stream, unsigned long long *id);
int cuStreamWaitEvent(handle stream, handle event, unsigned flags);
int cuStreamBeginCapture_v2(handle stream, unsigned mode);
int cuStreamEndCapture(handle stream, handle *graph);
int cuEventCreate(handle *event, unsigned flags);
int cuEventRecord(handle event, handle stream);
int cuEventQuery(handle event);
int cuEventDestroy_v2(handle event);
int cuDevicePrimaryCtxRelease_v2(int device);
