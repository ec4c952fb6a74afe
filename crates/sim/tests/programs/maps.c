/* Maps CHUNKS chunks one after the other into one reservation, and gives everything back, whatever fails. With -DLEAKS a chunk
 * stays whose cuMemMap failed; with -DFORGETS the program unmaps what it has not mapped; with -DCRASHES it crashes on a failed
 * cuMemSetAccess, and with -DHANGS it waits. */
#include "driver.h"
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifndef CHUNKS
#define CHUNKS 2
#endif
enum { BYTES = 2 << 20 };

static int map(uint64_t address) {
    struct property property = {.type = 1, .location_type = 1};
    struct access access = {.location_type = 1, .flags = 3};
    uint64_t chunk = 0;
    int code = cuMemCreate(&chunk, BYTES, &property, 0);
    if (code != 0) {
        return code;
    }
    code = cuMemMap(address, BYTES, 0, chunk, 0);
    if (code == 0) {
        code = cuMemSetAccess(address, BYTES, &access, 1);
        if (code != 0) {
#ifdef CRASHES
            *(volatile int *)8 = 1;
#endif
#ifdef HANGS
            sleep(600);
#endif
            cuMemUnmap(address, BYTES);
        }
    }
#ifdef FORGETS
    else {
        cuMemUnmap(address, BYTES);
    }
#endif
#ifdef LEAKS
    else {
        return code;
    }
#endif
    cuMemRelease(chunk);
    return code;
}

int main(int argc, char **argv) {
    void *context = NULL;
    uint64_t address = 0;
    if (cuInit(0) != 0 || cuDevicePrimaryCtxRetain(&context, 0) != 0) {
        return 3;
    }
    if (argc > 1 && strcmp(argv[1], "--ends-badly") == 0) {
        return 9;
    }
    int code = cuMemAddressReserve(&address, (size_t)CHUNKS * BYTES, 0, 0, 0);
    int mapped = 0;
    while (code == 0 && mapped < CHUNKS) {
        code = map(address + (uint64_t)mapped * BYTES);
        mapped += code == 0;
    }
    for (int chunk = 0; chunk < mapped; chunk++) {
        cuMemUnmap(address + (uint64_t)chunk * BYTES, BYTES);
    }
    if (address != 0) {
        cuMemAddressFree(address, (size_t)CHUNKS * BYTES);
    }
    cuDevicePrimaryCtxRelease_v2(0);
    printf("mapped %d, code %d\n", mapped, code);
    return code == 0 ? 0 : 4;
}
