/* Calls that fail and calls that succeed after main has returned: in handlers of atexit, in a destructor of the program,
 * and in one of a thread's variables. */
#include <gapless_torch.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static gapless_allocator *allocator = NULL;
static int wrong = 0;

static void expect(gapless_status got, gapless_status expected, const char *what) {
    if (got != expected) {
        fprintf(stderr, "%s: got %d, expected %d: %s\n", what, (int)got, (int)expected, gapless_last_error());
        wrong = 1;
    }
}

static void use(const char *when) {
    void *pointer = NULL;
    uint64_t needed = 0;
    expect(gapless_alloc(NULL, 1, NULL, &pointer), GAPLESS_ERROR_INVALID_HANDLE, when);
    expect(gapless_alloc(allocator, UINT64_MAX, NULL, &pointer), GAPLESS_ERROR_TOO_LARGE, when);
    expect(gapless_alloc(allocator, 65 << 20, NULL, &pointer), GAPLESS_ERROR_OUT_OF_MEMORY, when);
    expect(gapless_free(allocator, (void *)(uintptr_t)512), GAPLESS_ERROR_NOT_ALLOCATED, when);
    expect(gapless_stats_json(allocator, NULL, 0, &needed), GAPLESS_ERROR_BUFFER_TOO_SMALL, when);
    expect(gapless_alloc(allocator, 1, NULL, &pointer), GAPLESS_OK, when);
    expect(gapless_free(allocator, pointer), GAPLESS_OK, when);
    expect(gapless_device_free(-1, pointer, 1), GAPLESS_ERROR_INVALID_ARGUMENT, when);
    if (gapless_torch_malloc(-1, 0, NULL) != NULL || gapless_torch_malloc(1, 99, NULL) != NULL) {
        wrong = 1;
    }
    gapless_torch_free(NULL, 0, 0, NULL);
    gapless_torch_free(pointer, 1, 0, NULL);
    (void)gapless_last_error_status();
    (void)gapless_last_error_kind();
    (void)gapless_last_error_code();
    (void)gapless_last_error_report_json(NULL, 0, &needed);
    if (gapless_last_error() == NULL) {
        wrong = 1;
    }
}

static void first_registered(void) {
    use("in a handler registered before the first call");
    printf("%s\n", wrong ? "wrong" : "as expected");
    fflush(stdout);
}

static void last_registered(void) { use("in a handler registered after the first call"); }

__attribute__((destructor)) static void destructor(void) {
    if (allocator != NULL) {
        use("in a destructor");
        expect(gapless_destroy(allocator), GAPLESS_OK, "in a destructor");
    }
    fprintf(stderr, "%s\n", wrong ? "ended wrongly" : "ended as expected");
}

static void end_of_thread(void *when) { use(when); }

static pthread_key_t key;

static void *thread(void *unused) {
    (void)unused;
    pthread_setspecific(key, "at the end of a thread");
    use("in a thread");
    return NULL;
}

int main(void) {
    atexit(first_registered);
    gapless_config config = {.size = sizeof config, .budget_bytes = 64 << 20};
    expect(gapless_create(&config, &allocator), GAPLESS_OK, "create");
    use("in main");
    pthread_t other;
    if (pthread_key_create(&key, end_of_thread) != 0 || pthread_create(&other, NULL, thread, NULL) != 0 ||
        pthread_join(other, NULL) != 0) {
        return 2;
    }
    atexit(last_registered);
    return 0;
}
