/* Allocates, asks for too much, reads why that fails, and returns everything.
 *
 *     cargo xtask build-capi dist/capi
 *     cc -Wall -Wextra -Werror examples/c/allocate.c -Idist/capi/include -Ldist/capi/lib -lgapless -o allocate
 *     LD_LIBRARY_PATH=dist/capi/lib ./allocate
 */
#include <gapless.h>
#include <stdio.h>
#include <stdlib.h>

static void check(gapless_status status, const char *what) {
    if (status != GAPLESS_OK) {
        fprintf(stderr, "%s failed (%s): %s\n", what, gapless_status_name(status), gapless_last_error());
        exit(1);
    }
}

/* Why this thread's last request failed. Functions that write a text are called twice: for its size, and for the text. */
static void print_report(void) {
    uint64_t needed = 0;
    gapless_last_error_report_json(NULL, 0, &needed);
    char *text = malloc(needed);
    if (text == NULL) {
        exit(1);
    }
    check(gapless_last_error_report_json(text, needed, &needed), "the report");
    printf("report: %s\n", text);
    free(text);
}

int main(void) {
    gapless_config config = {.size = sizeof config, .device = 0, .budget_fraction = 0.5};
    gapless_allocator *allocator = NULL;
    check(gapless_create(&config, &allocator), "gapless_create");

    enum { BLOCKS = 8 };
    void *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        check(gapless_alloc(allocator, 8 << 20, NULL, &blocks[i]), "gapless_alloc");
    }
    /* Every second block is free: no two of them touch, and yet their memory serves one request of their total size. */
    for (int i = 0; i < BLOCKS; i += 2) {
        check(gapless_free(allocator, blocks[i]), "gapless_free");
    }
    void *joined = NULL;
    check(gapless_alloc(allocator, (8 << 20) * (BLOCKS / 2), NULL, &joined), "the joined block");

    gapless_stats stats = {.size = sizeof stats};
    check(gapless_get_stats(allocator, &stats), "gapless_get_stats");
    printf("%llu bytes live, %llu held\n", (unsigned long long)stats.live_bytes,
           (unsigned long long)stats.reserved_bytes);

    void *impossible = NULL;
    if (gapless_alloc(allocator, stats.budget_bytes, NULL, &impossible) != GAPLESS_ERROR_OUT_OF_MEMORY) {
        fprintf(stderr, "an allocation beyond the budget succeeded\n");
        return 1;
    }
    if (gapless_last_error_kind() != GAPLESS_KIND_OUT_OF_MEMORY) {
        fprintf(stderr, "more than the budget failed otherwise: %s\n", gapless_last_error());
        return 1;
    }
    print_report();

    check(gapless_free(allocator, joined), "gapless_free");
    for (int i = 1; i < BLOCKS; i += 2) {
        check(gapless_free(allocator, blocks[i]), "gapless_free");
    }
    uint64_t released = 0;
    check(gapless_trim(allocator, 0, &released), "gapless_trim");
    printf("%llu bytes released\n", (unsigned long long)released);
    check(gapless_destroy(allocator), "gapless_destroy");
    return 0;
}
