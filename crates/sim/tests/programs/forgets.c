/* Takes memory and streams, and gives all of it back; with -DFORGETS what two of its functions made stays, and
 * with -DPLACES memory of twelve places. */
#include "driver.h"
#include <stdio.h>
#include <stdlib.h>

enum { BYTES = 2 << 20, TIMES = 3 };

static void check(int code) {
    if (code != 0) {
        printf("code %d\n", code);
        exit(4);
    }
}

static uint64_t create(void) {
    struct property property = {.type = 1, .location_type = 1};
    uint64_t chunk = 0;
    check(cuMemCreate(&chunk, BYTES, &property, 0));
    return chunk;
}

/* A chunk and its mapping, in a reservation of the caller's. */
static uint64_t forget_memory(uint64_t address) {
    uint64_t chunk = create();
    check(cuMemMap(address, BYTES, 0, chunk, 0));
    return chunk;
}

static handle forget_a_stream(void) {
    handle stream = NULL;
    check(cuStreamCreate(&stream, 1));
    return stream;
}

#ifdef PLACES
/* From the n-th call of itself. */
static void forget_from(int place, size_t bytes) {
    uint64_t address = 0;
    if (place > 0) {
        forget_from(place - 1, bytes);
    } else {
        check(cuMemAlloc_v2(&address, bytes));
    }
}
#endif

int main(void) {
    handle context = NULL, event = NULL, streams[TIMES];
    uint64_t address = 0, plain = 0;
    check(cuInit(0));
    check(cuDevicePrimaryCtxRetain(&context, 0));
    check(cuCtxSetCurrent(context));
    check(cuMemAddressReserve(&address, BYTES, 0, 0, 0));
    check(cuMemAlloc_v2(&plain, BYTES));
    check(cuEventCreate(&event, 2));
    uint64_t chunk = forget_memory(address);
    for (int i = 0; i < TIMES; i++) {
        streams[i] = forget_a_stream();
    }
    uint64_t released = create();
    check(cuMemRelease(released));
    check(cuMemFree_v2(plain));
    check(cuEventDestroy_v2(event));
#ifdef PLACES
    for (int place = 1; place <= 12; place++) {
        forget_from(place, (size_t)place * BYTES);
    }
#endif
#ifndef FORGETS
    check(cuMemUnmap(address, BYTES));
    check(cuMemRelease(chunk));
    check(cuMemAddressFree(address, BYTES));
    for (int i = 0; i < TIMES; i++) {
        check(cuStreamDestroy_v2(streams[i]));
    }
#endif
    printf("%d streams, chunk %d, address %d\n", TIMES, chunk != 0, address != 0);
    return streams[0] == NULL;
}
