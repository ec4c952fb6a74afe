/* Without a budget an allocator has the device as it is now: another context takes memory, and gives it back. */
#include <gapless.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define MIB (1ull << 20)

/* The driver's functions that the other context uses. */
typedef struct CUctx_st *CUcontext;
int cuInit(unsigned flags);
int cuCtxCreate_v2(CUcontext *context, unsigned flags, int device);
int cuCtxSetCurrent(CUcontext context);
int cuMemAlloc_v2(uint64_t *pointer, size_t bytes);
int cuMemFree_v2(uint64_t pointer);

static int wrong = 0;

static void expect(int got, int expected, const char *what) {
    if (got != expected) {
        fprintf(stderr, "%s: got %d, expected %d: %s\n", what, got, expected, gapless_last_error());
        wrong = 1;
    }
}

int main(void) {
    CUcontext others = NULL;
    uint64_t taken = 0;
    expect(cuInit(0), 0, "cuInit");
    expect(cuCtxCreate_v2(&others, 0, 0), 0, "another context");
    expect(cuMemAlloc_v2(&taken, 200 * MIB), 0, "its memory");
    expect(cuCtxSetCurrent(NULL), 0, "no context");

    gapless_allocator *allocator = NULL;
    gapless_config config = {.size = sizeof config};
    void *block = NULL, *large = NULL;
    expect(gapless_create(&config, &allocator), GAPLESS_OK, "an allocator");
    expect(gapless_alloc(allocator, 40 * MIB, NULL, &block), GAPLESS_OK, "what is left");
    expect(gapless_alloc(allocator, 100 * MIB, NULL, &large), GAPLESS_ERROR_OUT_OF_MEMORY, "more than that");
    if (strstr(gapless_last_error(), "No allocator could have served this") == NULL) {
        expect(1, 0, "the text");
    }
    expect(cuCtxSetCurrent(others), 0, "the other context again");
    expect(cuMemFree_v2(taken), 0, "its free");
    expect(cuCtxSetCurrent(NULL), 0, "no context");
    expect(gapless_alloc(allocator, 200 * MIB, NULL, &large), GAPLESS_OK, "what the other context has freed");
    expect(gapless_free(allocator, large), GAPLESS_OK, "a free");

    expect(gapless_set_budget(allocator, 64 * MIB), GAPLESS_OK, "a budget");
    expect(gapless_alloc(allocator, 100 * MIB, NULL, &large), GAPLESS_ERROR_OUT_OF_MEMORY, "more than the budget");
    if (strstr(gapless_last_error(), "The budget of 64 MiB that was set stops this") == NULL) {
        expect(1, 0, "the text about the budget");
    }
    expect(gapless_free(allocator, block), GAPLESS_OK, "a free");
    expect(gapless_destroy(allocator), GAPLESS_OK, "the end");
    if (!wrong) {
        puts("all as expected");
    }
    return wrong;
}
