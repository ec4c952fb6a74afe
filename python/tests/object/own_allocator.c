/* An allocator of a pool's own: what a program hands to torch.cuda.MemPool. Counts what it does. */
#include <cuda.h>
#include <cuda_runtime_api.h>

int own_allocated, own_freed;

void *own_malloc(size_t bytes, int device, cudaStream_t stream) {
    CUdeviceptr pointer = 0;
    (void)device, (void)stream;
    if (cuMemAlloc(&pointer, bytes) != CUDA_SUCCESS) {
        return NULL;
    }
    own_allocated++;
    return (void *)pointer;
}

void own_free(void *pointer, size_t bytes, int device, cudaStream_t stream) {
    (void)bytes, (void)device, (void)stream;
    own_freed++;
    cuMemFree((CUdeviceptr)pointer);
}
