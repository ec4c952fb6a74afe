/* Eight threads on four streams allocate, write, check and free blocks, half of which are recorded on a second stream.
 * Every block must keep its content until it is freed. Streams and copies use the driver directly. */
#include <gapless.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* The parts of cuda.h that are used here. */
typedef int CUresult;
typedef int CUdevice;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef unsigned long long CUdeviceptr;
CUresult cuInit(unsigned int flags);
CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuStreamCreate(CUstream *stream, unsigned int flags);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr target, const void *source, size_t bytes, CUstream stream);
CUresult cuMemcpyDtoHAsync_v2(void *target, CUdeviceptr source, size_t bytes, CUstream stream);

enum { THREADS = 8, STREAMS = 4, LIVE = 24, ROUNDS = 400, STAMP = 64 };

static CUcontext context;
static CUstream streams[STREAMS];
static gapless_allocator *allocator;

static void require(int ok, const char *what) {
    if (!ok) {
        fprintf(stderr, "%s: %s\n", what, gapless_last_error());
        exit(1);
    }
}

typedef struct block {
    void *pointer;
    CUstream stream;
    uint64_t bytes;
    unsigned char stamp[STAMP];
} block;

static uint64_t draw(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Writes the stamp to both ends. The source of the copies is valid until the stream is synchronized. */
static void stamp(block *one) {
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)one->pointer;
    require(cuMemcpyHtoDAsync_v2(at, one->stamp, STAMP, one->stream) == 0, "write");
    require(cuMemcpyHtoDAsync_v2(at + one->bytes - STAMP, one->stamp, STAMP, one->stream) == 0, "write");
    require(cuStreamSynchronize(one->stream) == 0, "synchronize");
}

static void verify(const block *one) {
    unsigned char seen[2][STAMP];
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)one->pointer;
    require(cuMemcpyDtoHAsync_v2(seen[0], at, STAMP, one->stream) == 0, "read");
    require(cuMemcpyDtoHAsync_v2(seen[1], at + one->bytes - STAMP, STAMP, one->stream) == 0, "read");
    require(cuStreamSynchronize(one->stream) == 0, "synchronize");
    for (int i = 0; i < STAMP; i++) {
        require(seen[0][i] == one->stamp[i] && seen[1][i] == one->stamp[i], "a block has wrong content");
    }
}

static void *work(void *argument) {
    uint64_t number = (uint64_t)(uintptr_t)argument;
    uint64_t random = number * 977 + 1;
    block blocks[LIVE] = {0};
    require(cuCtxSetCurrent(context) == 0, "cuCtxSetCurrent");
    for (int round = 0; round < ROUNDS; round++) {
        block *one = &blocks[draw(&random) % LIVE];
        if (one->pointer != NULL) {
            verify(one);
            if (draw(&random) % 2 == 0) {
                require(gapless_record_stream(allocator, one->pointer, streams[draw(&random) % STREAMS]) == 0, "record");
            }
            require(gapless_free(allocator, one->pointer) == 0, "gapless_free");
            one->pointer = NULL;
            continue;
        }
        static const uint64_t sizes[] = {128, 4096, 65536, 700000, 2 << 20, 5 << 20};
        one->bytes = sizes[draw(&random) % 6];
        one->stream = streams[(number + draw(&random) % 2) % STREAMS];
        gapless_status status = gapless_alloc(allocator, one->bytes, one->stream, &one->pointer);
        if (status == GAPLESS_ERROR_OUT_OF_MEMORY) {
            one->pointer = NULL;
            continue;
        }
        require(status == 0, "gapless_alloc");
        for (int i = 0; i < STAMP; i++) {
            one->stamp[i] = (unsigned char)draw(&random);
        }
        stamp(one);
        if (round % 50 == 0) {
            uint64_t released = 0;
            require(gapless_trim(allocator, 32 << 20, &released) == 0, "gapless_trim");
            gapless_stats stats = {.size = sizeof stats};
            require(gapless_get_stats(allocator, &stats) == 0, "gapless_get_stats");
            require(stats.live_bytes <= stats.reserved_bytes, "more bytes live than reserved");
        }
    }
    for (int i = 0; i < LIVE; i++) {
        if (blocks[i].pointer != NULL) {
            verify(&blocks[i]);
            require(gapless_free(allocator, blocks[i].pointer) == 0, "gapless_free");
        }
    }
    return NULL;
}

int main(void) {
    CUdevice device = 0;
    require(cuInit(0) == 0 && cuDeviceGet(&device, 0) == 0, "cuInit");
    require(cuDevicePrimaryCtxRetain(&context, device) == 0 && cuCtxSetCurrent(context) == 0, "a context");
    for (int i = 0; i < STREAMS; i++) {
        require(cuStreamCreate(&streams[i], 1) == 0, "cuStreamCreate");
    }
    gapless_config config = {.size = sizeof config, .budget_bytes = 160 << 20};
    require(gapless_create(&config, &allocator) == 0, "gapless_create");

    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) {
        require(pthread_create(&threads[i], NULL, work, (void *)i) == 0, "pthread_create");
    }
    for (int i = 0; i < THREADS; i++) {
        require(pthread_join(threads[i], NULL) == 0, "pthread_join");
    }
    gapless_stats stats = {.size = sizeof stats};
    require(gapless_get_stats(allocator, &stats) == 0, "gapless_get_stats");
    require(stats.live_bytes == 0 && stats.allocs == stats.frees, "blocks are left");
    printf("%llu allocations, %llu failed, %llu chunks moved, %llu host waits\n", (unsigned long long)stats.allocs,
           (unsigned long long)stats.failed_allocs, (unsigned long long)stats.harvested_chunks,
           (unsigned long long)stats.host_waits);
    require(gapless_destroy(allocator) == 0, "gapless_destroy");
    for (int i = 0; i < STREAMS; i++) {
        require(cuStreamDestroy_v2(streams[i]) == 0, "cuStreamDestroy");
    }
    return 0;
}
