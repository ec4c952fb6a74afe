/* Compiled for per-thread default streams: NULL is another stream on every thread. */
#include <gapless.h>
#include <gapless.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>

#define MIB (1ull << 20)

static gapless_allocator *allocator = NULL;
static int wrong = 0;

static void expect(int holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "%s: %s\n", what, gapless_last_error());
        wrong = 1;
    }
}

/* The address of a block that is freed at once. */
static void *of_null(void *unused) {
    void *block = NULL;
    (void)unused;
    expect(gapless_alloc(allocator, MIB, NULL, &block) == GAPLESS_OK, "a block");
    expect(gapless_free(allocator, block) == GAPLESS_OK, "its free");
    return block;
}

/* The same with the function itself, which no macro calls here. */
static void *of_legacy(void *unused) {
    void *block = NULL;
    (void)unused;
    expect((gapless_alloc)(allocator, MIB, NULL, &block) == GAPLESS_OK, "a block");
    expect(gapless_free(allocator, block) == GAPLESS_OK, "its free");
    return block;
}

static void *elsewhere(void *(*run)(void *)) {
    pthread_t thread;
    void *block = NULL;
    pthread_create(&thread, NULL, run, NULL);
    pthread_join(thread, &block);
    return block;
}

int main(void) {
    gapless_config config = {.size = sizeof config};
    expect(gapless_create(&config, &allocator) == GAPLESS_OK, "an allocator");
    expect(of_null(NULL) == of_null(NULL), "one thread has one stream");
    expect(of_null(NULL) != elsewhere(of_null), "two threads have two");
    expect(of_legacy(NULL) == elsewhere(of_legacy), "the legacy stream is that of both");
    expect(of_legacy(NULL) != of_null(NULL), "and another one than theirs");
    expect(gapless_keep_stream(allocator, NULL) == GAPLESS_OK, "a promise");
    expect(gapless_forget_stream(allocator, NULL) == GAPLESS_OK, "and its end");
    expect(gapless_destroy(allocator) == GAPLESS_OK, "the end");
    if (!wrong) {
        puts("all as expected");
    }
    return wrong;
}
