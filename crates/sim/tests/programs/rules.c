/* Prints what the driver answers to one call that a rule speaks of: `rules NAME`. Without a name it prints all names. A process for
 * each rule, since some lose the context. */
#include "driver.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The size of pages on the devices that are asked; NON_BLOCKING is a flag of streams, GLOBAL and RELAXED are modes of captures. */
enum { PAGE = 2 << 20, NON_BLOCKING = 1, GLOBAL = 0, RELAXED = 2, READ = 1, WRITE = 3 };

/* What prepares a question has to succeed. */
static void must(int code) {
    if (code != 0) {
        printf("no question: %d\n", code);
        exit(3);
    }
}

static void start(void) {
    handle context = NULL;
    must(cuInit(0));
    must(cuDevicePrimaryCtxRetain(&context, 0));
    must(cuCtxSetCurrent(context));
}

static int create(uint64_t *chunk, size_t bytes) {
    struct property property = {.type = 1, .location_type = 1};
    return cuMemCreate(chunk, bytes, &property, 0);
}

static int give(uint64_t address, size_t bytes, int what) {
    struct access access = {.location_type = 1, .flags = what};
    return cuMemSetAccess(address, bytes, &access, 1);
}

static uint64_t reserved(int pages) {
    uint64_t address = 0;
    must(cuMemAddressReserve(&address, (size_t)pages * PAGE, 0, 0, 0));
    return address;
}

static uint64_t chunk_of(int pages) {
    uint64_t chunk = 0;
    must(create(&chunk, (size_t)pages * PAGE));
    return chunk;
}

static void map(uint64_t address, int pages) {
    uint64_t chunk = chunk_of(pages);
    must(cuMemMap(address, (size_t)pages * PAGE, 0, chunk, 0));
    must(cuMemRelease(chunk));
}

static uint64_t mapped(int pages) {
    uint64_t address = reserved(pages);
    map(address, pages);
    return address;
}

static handle stream_of(unsigned flags) {
    handle stream = NULL;
    must(cuStreamCreate(&stream, flags));
    return stream;
}

static handle event_on(handle stream) {
    handle event = NULL;
    must(cuEventCreate(&event, 2));
    must(cuEventRecord(event, stream));
    return event;
}

static handle captured(unsigned mode) {
    handle stream = stream_of(NON_BLOCKING);
    must(cuStreamBeginCapture_v2(stream, mode));
    return stream;
}

static int begin_without_init(void) {
    int count = 0;
    return cuDeviceGetCount(&count);
}

static int info_without_context(void) {
    size_t available = 0, total = 0;
    must(cuCtxSetCurrent(NULL));
    return cuMemGetInfo_v2(&available, &total);
}

static int create_without_context(void) {
    uint64_t chunk = 0;
    must(cuCtxSetCurrent(NULL));
    return create(&chunk, PAGE);
}

static int reserve_odd(void) {
    uint64_t address = 0;
    return cuMemAddressReserve(&address, PAGE + 4096, 0, 0, 0);
}

static int create_odd(void) {
    uint64_t chunk = 0;
    return create(&chunk, PAGE + 4096);
}

static int create_too_much(void) {
    size_t available = 0, total = 0;
    uint64_t chunk = 0;
    must(cuMemGetInfo_v2(&available, &total));
    return create(&chunk, total / PAGE * PAGE + PAGE);
}

static int map_part(void) { return cuMemMap(reserved(2), PAGE, 0, chunk_of(2), 0); }

static int map_offset(void) { return cuMemMap(reserved(2), PAGE, PAGE, chunk_of(2), 0); }

static int map_released(void) {
    uint64_t chunk = chunk_of(1);
    must(cuMemRelease(chunk));
    return cuMemMap(reserved(1), PAGE, 0, chunk, 0);
}

static int map_unreserved(void) {
    uint64_t address = reserved(1);
    must(cuMemAddressFree(address, PAGE));
    return cuMemMap(address, PAGE, 0, chunk_of(1), 0);
}

static int map_over(void) { return cuMemMap(mapped(1), PAGE, 0, chunk_of(1), 0); }

static int map_again(void) {
    uint64_t addresses = reserved(2), chunk = chunk_of(1);
    must(cuMemMap(addresses, PAGE, 0, chunk, 0));
    return cuMemMap(addresses + PAGE, PAGE, 0, chunk, 0);
}

static int unmap_two(void) {
    uint64_t address = reserved(2);
    map(address, 1);
    map(address + PAGE, 1);
    return cuMemUnmap(address, 2 * PAGE);
}

static int unmap_again(void) {
    uint64_t address = mapped(1);
    must(cuMemUnmap(address, PAGE));
    return cuMemUnmap(address, PAGE);
}

static int unmap_part(void) { return cuMemUnmap(mapped(2), PAGE); }

static int unmap_hole(void) {
    uint64_t address = reserved(3);
    map(address, 1);
    map(address + 2 * PAGE, 1);
    return cuMemUnmap(address, 3 * PAGE);
}

static int access_part(void) { return give(mapped(2), PAGE, WRITE); }

static int access_unmapped(void) { return give(reserved(1), PAGE, WRITE); }

static int access_read_only(void) { return give(mapped(1), PAGE, READ); }

static int release_twice(void) {
    uint64_t chunk = chunk_of(1);
    must(cuMemRelease(chunk));
    return cuMemRelease(chunk);
}

static int release_mapped(void) {
    uint64_t chunk = chunk_of(1), address = reserved(1);
    must(cuMemMap(address, PAGE, 0, chunk, 0));
    must(cuMemRelease(chunk));
    must(give(address, PAGE, WRITE));
    must(cuMemsetD8Async(address, 1, PAGE, NULL));
    return cuStreamSynchronize(NULL);
}

static int free_mapped(void) { return cuMemAddressFree(mapped(1), PAGE); }

static int free_part(void) { return cuMemAddressFree(reserved(2), PAGE); }

static int free_again(void) {
    uint64_t address = reserved(1);
    must(cuMemAddressFree(address, PAGE));
    return cuMemAddressFree(address, PAGE);
}

static int free_twice(void) {
    uint64_t address = 0;
    must(cuMemAlloc_v2(&address, PAGE));
    must(cuMemFree_v2(address));
    return cuMemFree_v2(address);
}

static int work_unmapped(void) {
    uint64_t address = mapped(1);
    must(give(address, PAGE, WRITE));
    must(cuMemUnmap(address, PAGE));
    int code = cuMemsetD8Async(address, 1, PAGE, NULL);
    return code != 0 ? code : cuStreamSynchronize(NULL);
}

static int work_without_access(void) {
    int code = cuMemsetD8Async(mapped(1), 1, PAGE, NULL);
    return code != 0 ? code : cuStreamSynchronize(NULL);
}

/* Much work is queued first, so that the last of it is not over when its memory goes. */
static void unmap_under_work(void) {
    uint64_t address = mapped(32);
    must(give(address, (size_t)32 * PAGE, WRITE));
    for (int i = 0; i < 20; i++) {
        must(cuMemsetD8Async(address, 1, (size_t)32 * PAGE, NULL));
    }
    must(cuMemUnmap(address, (size_t)32 * PAGE));
}

static int wait_after_unmap(void) {
    unmap_under_work();
    return cuStreamSynchronize(NULL);
}

static int create_after_loss(void) {
    uint64_t chunk = 0;
    unmap_under_work();
    (void)cuStreamSynchronize(NULL);
    return create(&chunk, PAGE);
}

static int reset_info(void) {
    size_t available = 0, total = 0;
    must(cuDevicePrimaryCtxReset_v2(0));
    return cuMemGetInfo_v2(&available, &total);
}

static int reset_chunk(void) {
    uint64_t address = mapped(1);
    must(cuDevicePrimaryCtxReset_v2(0));
    return cuMemUnmap(address, PAGE);
}

static int dead_stream(void) {
    handle stream = stream_of(NON_BLOCKING);
    must(cuStreamDestroy_v2(stream));
    return cuStreamQuery(stream);
}

static int capture_create(void) {
    uint64_t chunk = 0;
    captured(GLOBAL);
    return create(&chunk, PAGE);
}

static int capture_query(void) {
    handle event = event_on(NULL);
    captured(GLOBAL);
    return cuEventQuery(event);
}

static int capture_synchronize(void) {
    captured(RELAXED);
    return cuCtxSynchronize();
}

static int capture_event(void) { return cuEventQuery(event_on(captured(RELAXED))); }

static int capture_wait(void) {
    handle event = event_on(stream_of(NON_BLOCKING));
    return cuStreamWaitEvent(captured(RELAXED), event, 0);
}

static int capture_id(void) {
    unsigned long long id = 0;
    return cuStreamGetId(captured(GLOBAL), &id);
}

static int capture_legacy(void) {
    must(cuStreamBeginCapture_v2(stream_of(0), RELAXED));
    return cuStreamQuery(NULL);
}

static int capture_end(void) {
    handle stream = captured(RELAXED), graph = NULL;
    (void)cuCtxSynchronize();
    return cuStreamEndCapture(stream, &graph);
}

#define RULE(name) {#name, name}
static const struct {
    const char *name;
    int (*ask)(void);
} rules[] = {
    RULE(begin_without_init),
    RULE(info_without_context),
    RULE(create_without_context),
    RULE(reserve_odd),
    RULE(create_odd),
    RULE(create_too_much),
    RULE(map_part),
    RULE(map_offset),
    RULE(map_released),
    RULE(map_unreserved),
    RULE(map_over),
    RULE(map_again),
    RULE(unmap_two),
    RULE(unmap_again),
    RULE(unmap_part),
    RULE(unmap_hole),
    RULE(access_part),
    RULE(access_unmapped),
    RULE(access_read_only),
    RULE(release_twice),
    RULE(release_mapped),
    RULE(free_mapped),
    RULE(free_part),
    RULE(free_again),
    RULE(free_twice),
    RULE(work_unmapped),
    RULE(work_without_access),
    RULE(wait_after_unmap),
    RULE(create_after_loss),
    RULE(reset_info),
    RULE(reset_chunk),
    RULE(dead_stream),
    RULE(capture_create),
    RULE(capture_query),
    RULE(capture_synchronize),
    RULE(capture_event),
    RULE(capture_wait),
    RULE(capture_id),
    RULE(capture_legacy),
    RULE(capture_end),
};

int main(int argc, char **argv) {
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        if (argc < 2) {
            printf("%s\n", rules[i].name);
        } else if (strcmp(argv[1], rules[i].name) == 0) {
            if (rules[i].ask != begin_without_init) {
                start();
            }
            printf("%d\n", rules[i].ask());
            return 0;
        }
    }
    return argc < 2 ? 0 : 2;
}
