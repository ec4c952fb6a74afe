/* What a program can do wrong, and what each mistake returns. Exits with 0 if everything is as expected. */
#include <gapless.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int wrong = 0;

static void expect(gapless_status got, gapless_status expected, const char *hint, const char *what) {
    if (got != expected || (got != GAPLESS_OK && strstr(gapless_last_error(), hint) == NULL)) {
        fprintf(stderr, "%s: got %d, expected %d with '%s' in: %s\n", what, (int)got, (int)expected, hint,
                gapless_last_error());
        wrong = 1;
    }
}

int main(void) {
    gapless_config config = {.size = sizeof config, .budget_bytes = 64 << 20};
    gapless_allocator *allocator = NULL;
    expect(gapless_create(NULL, &allocator), GAPLESS_ERROR_INVALID_ARGUMENT, "config is null", "no config");
    expect(gapless_create(&config, NULL), GAPLESS_ERROR_INVALID_ARGUMENT, "null", "nowhere to write");
    gapless_config bad = config;
    bad.size = 7;
    expect(gapless_create(&bad, &allocator), GAPLESS_ERROR_INVALID_ARGUMENT, "sizeof", "a struct of another size");
    bad = config;
    bad.device = -1;
    expect(gapless_create(&bad, &allocator), GAPLESS_ERROR_INVALID_ARGUMENT, "-1", "a negative device");
    bad.device = 99;
    expect(gapless_create(&bad, &allocator), GAPLESS_ERROR_NO_DEVICE, "99", "a device that does not exist");
    bad = config;
    bad.slack = 0.5;
    expect(gapless_create(&bad, &allocator), GAPLESS_ERROR_INVALID_ARGUMENT, "slack", "a slack below 1");
    bad = config;
    bad.budget_bytes = 0;
    bad.budget_fraction = 1.5;
    expect(gapless_create(&bad, &allocator), GAPLESS_ERROR_INVALID_ARGUMENT, "fraction", "more than the device");
    bad = config;
    bad.peer_count = 1;
    expect(gapless_create(&bad, &allocator), GAPLESS_ERROR_INVALID_ARGUMENT, "peers is null", "peers without a list");
    if (allocator != NULL) {
        fprintf(stderr, "a failed call wrote its out-parameter\n");
        wrong = 1;
    }
    expect(gapless_create(&config, &allocator), GAPLESS_OK, "", "create");

    void *pointer = (void *)(uintptr_t)0x1234;
    int local = 0;
    expect(gapless_alloc(NULL, 1, NULL, &pointer), GAPLESS_ERROR_INVALID_HANDLE, "null", "a null handle");
    expect(gapless_alloc((gapless_allocator *)&local, 1, NULL, &pointer), GAPLESS_ERROR_INVALID_HANDLE, "handle",
           "a foreign handle");
    expect(gapless_alloc(allocator, 1, NULL, NULL), GAPLESS_ERROR_INVALID_ARGUMENT, "null", "nowhere to write");
    expect(gapless_alloc(allocator, UINT64_MAX, NULL, &pointer), GAPLESS_ERROR_TOO_LARGE, "18446744073709551615",
           "an absurd size");
    expect(gapless_alloc(allocator, 65 << 20, NULL, &pointer), GAPLESS_ERROR_OUT_OF_MEMORY, "The budget of",
           "more than the budget");
    expect(gapless_alloc_aligned(allocator, 1, 3, NULL, &pointer), GAPLESS_ERROR_INVALID_ARGUMENT, "power of two",
           "an alignment of 3");
    expect(gapless_alloc(allocator, 1, (struct CUstream_st *)&local, &pointer), GAPLESS_ERROR_STREAM, "not a stream",
           "a foreign stream");
    if (pointer != (void *)(uintptr_t)0x1234) {
        fprintf(stderr, "a failed call wrote its out-parameter\n");
        wrong = 1;
    }

    expect(gapless_alloc_aligned(allocator, 100, 1 << 20, NULL, &pointer), GAPLESS_OK, "", "an aligned block");
    if ((uintptr_t)pointer % (1 << 20) != 0) {
        fprintf(stderr, "%p is not aligned\n", pointer);
        wrong = 1;
    }
    expect(gapless_free(allocator, NULL), GAPLESS_OK, "", "free of nothing");
    expect(gapless_free(allocator, (char *)pointer + 1), GAPLESS_ERROR_NOT_ALLOCATED, "inside", "an interior pointer");
    expect(gapless_free(allocator, &local), GAPLESS_ERROR_NOT_ALLOCATED, "not allocated by", "a foreign pointer");
    expect(gapless_record_stream(allocator, &local, NULL), GAPLESS_ERROR_NOT_ALLOCATED, "not allocated by",
           "a foreign pointer");
    expect(gapless_free(allocator, pointer), GAPLESS_OK, "", "free");
    expect(gapless_free(allocator, pointer), GAPLESS_ERROR_NOT_ALLOCATED, "freed before", "a double free");

    gapless_stats stats = {0};
    expect(gapless_get_stats(allocator, &stats), GAPLESS_ERROR_INVALID_ARGUMENT, "sizeof", "stats without a size");
    expect(gapless_get_stats(allocator, NULL), GAPLESS_ERROR_INVALID_ARGUMENT, "null", "no stats");
    stats.size = offsetof(gapless_stats, peak_live_bytes) + sizeof stats.peak_live_bytes;
    expect(gapless_get_stats(allocator, &stats), GAPLESS_OK, "", "an older program's stats");
    if (stats.budget_bytes != 0) {
        fprintf(stderr, "more was written than the size given\n");
        wrong = 1;
    }
    char buffer[8] = "before";
    uint64_t needed = 0;
    expect(gapless_stats_json(allocator, buffer, sizeof buffer, &needed), GAPLESS_ERROR_BUFFER_TOO_SMALL, "bytes",
           "a small buffer");
    if (needed < 100 || strcmp(buffer, "before") != 0) {
        fprintf(stderr, "needed %llu, the buffer has '%s'\n", (unsigned long long)needed, buffer);
        wrong = 1;
    }
    expect(gapless_stats_json(allocator, NULL, needed, &needed), GAPLESS_ERROR_INVALID_ARGUMENT, "null", "no buffer");
    expect(gapless_stats_json(allocator, NULL, 0, NULL), GAPLESS_ERROR_INVALID_ARGUMENT, "null", "no needed");
    expect(gapless_record_stop(allocator), GAPLESS_ERROR_NOT_FOUND, "nothing is being", "no recording");
    expect(gapless_record_start(allocator, "/nowhere/at/all"), GAPLESS_ERROR_IO, "/nowhere", "an impossible file");
    expect(gapless_record_start(allocator, NULL), GAPLESS_ERROR_INVALID_ARGUMENT, "null", "no path");
    expect(gapless_check_conf("bugdet:1"), GAPLESS_ERROR_INVALID_ARGUMENT, "budget", "a misspelt key");
    expect(gapless_check_conf("budget:0.5,max_split_size_mb:20"), GAPLESS_OK, "", "a configuration");

    expect(gapless_alloc(allocator, 100, NULL, &pointer), GAPLESS_OK, "", "a block to forget");
    expect(gapless_destroy(allocator), GAPLESS_ERROR_LEAKED, "1 allocation of", "a leak");
    expect(gapless_destroy(allocator), GAPLESS_ERROR_INVALID_HANDLE, "destroyed", "a stale handle");
    expect(gapless_free(allocator, pointer), GAPLESS_ERROR_INVALID_HANDLE, "destroyed", "a stale handle");

    gapless_allocator *device = NULL;
    expect(gapless_device_allocator(-1, &device), GAPLESS_ERROR_INVALID_ARGUMENT, "-1", "a negative device");
    expect(gapless_device_allocator(0, &device), GAPLESS_OK, "", "the device's allocator");
    expect(gapless_destroy(device), GAPLESS_ERROR_IN_USE, "process", "the device's allocator");
    expect(gapless_configure("log:on"), GAPLESS_ERROR_IN_USE, "before", "too late");
    expect(gapless_device_alloc(0, 100, NULL, NULL), GAPLESS_ERROR_INVALID_ARGUMENT, "null", "nowhere to write");
    expect(gapless_device_alloc(63, 100, NULL, &pointer), GAPLESS_ERROR_NO_DEVICE, "63", "a device too many");
    expect(gapless_device_alloc(0, 100, NULL, &pointer), GAPLESS_OK, "", "a block of the device");
    expect(gapless_device_free(-1, pointer, 100), GAPLESS_ERROR_INVALID_ARGUMENT, "-1", "a negative device");
    expect(gapless_device_free(0, pointer, 100), GAPLESS_OK, "", "free");
    expect(gapless_device_free(0, pointer, 100), GAPLESS_ERROR_NOT_ALLOCATED, "freed before", "a double free");
    expect(gapless_device_free(0, NULL, 0), GAPLESS_OK, "", "free of nothing");
    expect(gapless_device_free_on(0, pointer, 100, NULL), GAPLESS_ERROR_NOT_ALLOCATED, "freed before", "a double free");
    expect(gapless_device_free_on(0, NULL, 0, NULL), GAPLESS_OK, "", "free of nothing");
    expect(gapless_device_record_stream(0, &local, NULL), GAPLESS_ERROR_NOT_ALLOCATED, "not allocated by",
           "a foreign pointer");
    expect(gapless_device_trim(0, 0, NULL), GAPLESS_OK, "", "trim");
    expect(gapless_device_alloc(0, UINT64_MAX, NULL, &pointer), GAPLESS_ERROR_TOO_LARGE, "out of memory",
           "an absurd size");
    uint64_t report = 0;
    if (gapless_last_error_report_json(NULL, 0, &report) != GAPLESS_ERROR_NOT_FOUND ||
        gapless_last_error_status() != GAPLESS_ERROR_TOO_LARGE || gapless_last_error_kind() != GAPLESS_KIND_NONE ||
        gapless_last_error_code() != 0) {
        fprintf(stderr, "the last error is %s of kind %d\n", gapless_status_name(gapless_last_error_status()),
                (int)gapless_last_error_kind());
        wrong = 1;
    }
    printf("%s\n", wrong ? "wrong" : "as expected");
    return wrong;
}
