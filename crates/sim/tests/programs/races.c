/* Fills memory on a stream and takes the memory away: with -DWAITS when the stream has said that it is done, else a moment later,
 * which is long enough on most days. */
#include "driver.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { PAGE = 2 << 20, NON_BLOCKING = 1, WRITE = 3, MOMENT = 45000 };

static void must(int code) {
    if (code != 0) {
        printf("code %d\n", code);
        exit(1);
    }
}

int main(void) {
    handle context = NULL, stream = NULL;
    uint64_t address = 0, chunk = 0;
    struct property property = {.type = 1, .location_type = 1};
    struct access access = {.location_type = 1, .flags = WRITE};
    must(cuInit(0));
    must(cuDevicePrimaryCtxRetain(&context, 0));
    must(cuCtxSetCurrent(context));
    must(cuStreamCreate(&stream, NON_BLOCKING));
    must(cuMemAddressReserve(&address, PAGE, 0, 0, 0));
    must(cuMemCreate(&chunk, PAGE, &property, 0));
    must(cuMemMap(address, PAGE, 0, chunk, 0));
    must(cuMemSetAccess(address, PAGE, &access, 1));
    for (int i = 0; i < 60; i++) {
        must(cuMemsetD8Async(address, i, 4096, stream));
    }
#ifdef WAITS
    must(cuStreamSynchronize(stream));
#else
    usleep(MOMENT);
#endif
    must(cuMemUnmap(address, PAGE));
    must(cuMemRelease(chunk));
    must(cuMemAddressFree(address, PAGE));
    must(cuStreamSynchronize(stream));
    must(cuStreamDestroy_v2(stream));
    return 0;
}
