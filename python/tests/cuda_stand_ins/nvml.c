/* A stand-in for NVML, libnvidia-ml.so.1, over the simulated driver. PyTorch looks here for links between devices before it shares
 * expandable segments, and for what processes use before it says that a device is out of memory: there are no links, and this
 * process uses what the device lacks. The driver's packages alone have NVML's header: its numbers are written out here. */
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, UNKNOWN = 999 };

/* The numbers of devices, from 1 on: a handle is not null. */
typedef void *nvmlDevice_t;

/* nvmlProcessInfo_v1_t */
struct process {
    unsigned int pid;
    unsigned long long used_memory;
};

/* nvmlGpuFabricInfoV_t: what all of its versions begin with. */
struct fabric {
    unsigned int version;
    unsigned char cluster[16];
    int status;
    unsigned int clique;
    unsigned char state;
};
enum { NO_FABRIC = 0 };

int nvmlInit_v2(void) { return cuInit(0) == CUDA_SUCCESS ? SUCCESS : UNKNOWN; }
int nvmlInit(void) { return nvmlInit_v2(); }

int nvmlSystemGetCudaDriverVersion_v2(int *version) { return cuDriverGetVersion(version) == CUDA_SUCCESS ? SUCCESS : UNKNOWN; }

int nvmlDeviceGetCount_v2(unsigned int *count) { return cuDeviceGetCount((int *)count) == CUDA_SUCCESS ? SUCCESS : UNKNOWN; }

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    unsigned int count = 0;
    if (nvmlDeviceGetCount_v2(&count) != SUCCESS || index >= count) {
        return INVALID_ARGUMENT;
    }
    *device = (nvmlDevice_t)(uintptr_t)(index + 1);
    return SUCCESS;
}

/* The runtime's stand-in gives the devices their numbers on the bus: their own. */
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device) {
    unsigned int domain = 0, bus = 0;
    if (sscanf(bus_id, "%x:%x:", &domain, &bus) != 2) {
        return INVALID_ARGUMENT;
    }
    return nvmlDeviceGetHandleByIndex_v2(bus, device);
}

int nvmlDeviceGetUUID(nvmlDevice_t device, char *text, unsigned int length) {
    CUuuid uuid;
    if (cuDeviceGetUuid(&uuid, (CUdevice)(uintptr_t)device - 1) != CUDA_SUCCESS) {
        return INVALID_ARGUMENT;
    }
    char hex[2 * sizeof uuid.bytes + 1];
    for (size_t i = 0; i < sizeof uuid.bytes; i++) {
        snprintf(hex + 2 * i, 3, "%02x", (unsigned char)uuid.bytes[i]);
    }
    int written = snprintf(text, length, "GPU-%.8s-%.4s-%.4s-%.4s-%s", hex, hex + 8, hex + 12, hex + 16, hex + 20);
    return written >= 0 && (unsigned int)written < length ? SUCCESS : INSUFFICIENT_SIZE;
}

/* This process, on the current context's device. */
int nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count, struct process *processes) {
    CUdevice current = -1;
    size_t available = 0, total = 0;
    unsigned int room = *count;
    *count = cuCtxGetDevice(&current) == CUDA_SUCCESS && current == (CUdevice)(uintptr_t)device - 1;
    if (*count > room) {
        return INSUFFICIENT_SIZE;
    }
    if (*count == 1) {
        if (cuMemGetInfo(&available, &total) != CUDA_SUCCESS) {
            return UNKNOWN;
        }
        processes[0] = (struct process){.pid = (unsigned int)getpid(), .used_memory = total - available};
    }
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link, void *type) {
    (void)device, (void)link, (void)type;
    return NOT_SUPPORTED;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, void *information) {
    (void)device, (void)link, (void)information;
    return NOT_SUPPORTED;
}
int nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, struct fabric *fabric) {
    (void)device;
    memset(fabric->cluster, 0, sizeof fabric->cluster);
    fabric->status = SUCCESS;
    fabric->clique = 0;
    fabric->state = NO_FABRIC;
    return SUCCESS;
}
