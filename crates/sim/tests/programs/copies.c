/* Copies to the device behind much work, writes to the source at once, copies to pageable memory behind as much work, and prints
 * what is there at once: of pageable memory what was there at the call. */
#include "driver.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 1 << 20, MUCH = 64 << 20, NON_BLOCKING = 1 };

static void must(int code) {
    if (code != 0) {
        printf("code %d\n", code);
        exit(1);
    }
}

static int arrives(unsigned char *source, uint64_t much, uint64_t target, handle stream) {
    unsigned char *found = calloc(1, BYTES);
    memset(source, 1, BYTES);
    for (int i = 0; i < 20; i++) {
        must(cuMemsetD8Async(much, 0, MUCH, stream));
    }
    must(cuMemcpyHtoDAsync_v2(target, source, BYTES, stream));
    memset(source, 2, BYTES);
    must(cuStreamSynchronize(stream));
    for (int i = 0; i < 20; i++) {
        must(cuMemsetD8Async(much, 0, MUCH, stream));
    }
    must(cuMemcpyDtoHAsync_v2(found, target, BYTES, stream));
    int value = found[BYTES - 1];
    free(found);
    return value;
}

int main(void) {
    handle context = NULL, stream = NULL;
    uint64_t much = 0, target = 0;
    void *pinned = NULL, *pageable = malloc(BYTES);
    must(cuInit(0));
    must(cuDevicePrimaryCtxRetain(&context, 0));
    must(cuCtxSetCurrent(context));
    must(cuStreamCreate(&stream, NON_BLOCKING));
    must(cuMemAlloc_v2(&much, MUCH));
    must(cuMemAlloc_v2(&target, BYTES));
    must(cuMemAllocHost_v2(&pinned, BYTES));
    printf("pageable %d, pinned %d\n", arrives(pageable, much, target, stream), arrives(pinned, much, target, stream));
    free(pageable);
    must(cuMemFreeHost(pinned));
    must(cuMemFree_v2(target));
    must(cuMemFree_v2(much));
    must(cuStreamDestroy_v2(stream));
    return 0;
}
