/* What calls of the simulation take of the processor, in ns: `speed ALLOCATIONS` for the calls of an allocation, in rounds of 512
 * chunks of 2 MiB, and `speed map MAPPINGS` for so many mappings at once, and the memory of the host that they take. */
#include "driver.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

static const size_t CHUNK = 2 << 20;
static const struct property DEVICE = {.type = 1, .location_type = 1};
static const struct access READ_WRITE = {1, 0, 3};

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static void must(int code) {
    if (code != 0) {
        printf("code %d\n", code);
        exit(1);
    }
}

/* Does something for each number below `n`, and adds how long it takes to `total`. */
#define EACH(total, n, work)             \
    do {                                 \
        double start = now();            \
        for (size_t i = 0; i < (n); i++) \
            must(work);                  \
        (total) += now() - start;        \
    } while (0)

static void allocations(size_t all) {
    enum { ROUND = 512 };
    static uint64_t chunks[ROUND];
    uint64_t base = 0;
    double create = 0, map = 0, access = 0, unmap = 0, release = 0, alloc = 0, release_plain = 0;
    must(cuMemAddressReserve(&base, ROUND * CHUNK, 0, 0, 0));
    size_t done = 0;
    for (; done < all; done += ROUND) {
        EACH(create, ROUND, cuMemCreate(&chunks[i], CHUNK, &DEVICE, 0));
        EACH(map, ROUND, cuMemMap(base + i * CHUNK, CHUNK, 0, chunks[i], 0));
        EACH(access, ROUND, cuMemSetAccess(base + i * CHUNK, CHUNK, &READ_WRITE, 1));
        EACH(unmap, ROUND, cuMemUnmap(base + i * CHUNK, CHUNK));
        EACH(release, ROUND, cuMemRelease(chunks[i]));
        EACH(alloc, ROUND, cuMemAlloc_v2(&chunks[i], CHUNK));
        EACH(release_plain, ROUND, cuMemFree_v2(chunks[i]));
    }
    printf("cuMemCreate %.0f\ncuMemMap %.0f\ncuMemSetAccess %.0f\ncuMemUnmap %.0f\ncuMemRelease %.0f\n", create / done,
           map / done, access / done, unmap / done, release / done);
    printf("cuMemAlloc %.0f\ncuMemFree %.0f\n", alloc / done, release_plain / done);
}

static void mappings(size_t all) {
    uint64_t base = 0, *chunks = calloc(all, sizeof *chunks);
    double create = 0, map = 0, access = 0, unmap = 0;
    must(chunks == NULL);
    must(cuMemAddressReserve(&base, all * CHUNK, 0, 0, 0));
    EACH(create, all, cuMemCreate(&chunks[i], CHUNK, &DEVICE, 0));
    EACH(map, all, cuMemMap(base + i * CHUNK, CHUNK, 0, chunks[i], 0));
    EACH(access, all, cuMemSetAccess(base + i * CHUNK, CHUNK, &READ_WRITE, 1));
    EACH(unmap, all, cuMemUnmap(base + i * CHUNK, CHUNK));
    printf("cuMemCreate %.0f\ncuMemMap %.0f\ncuMemSetAccess %.0f\ncuMemUnmap %.0f\n", create / all, map / all,
           access / all, unmap / all);
    free(chunks);
}

int main(int count, char **arguments) {
    handle context = NULL;
    must(cuInit(0));
    must(cuDevicePrimaryCtxRetain(&context, 0));
    must(cuCtxSetCurrent(context));
    if (count > 2 && strcmp(arguments[1], "map") == 0) {
        mappings(strtoul(arguments[2], NULL, 10));
    } else {
        allocations(count > 1 ? strtoul(arguments[1], NULL, 10) : 1 << 14);
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("%ld MiB of the host\n", usage.ru_maxrss >> 10);
    return 0;
}
