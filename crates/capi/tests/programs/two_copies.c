/* Two copies of the library in one process, given by their paths: the handle of one is no handle of the other. */
#include <dlfcn.h>
#include <gapless.h>
#include <stdio.h>

typedef gapless_status create_function(const gapless_config *, gapless_allocator **);
typedef gapless_status trim_function(gapless_allocator *, uint64_t, uint64_t *);
typedef gapless_status destroy_function(gapless_allocator *);

struct copy {
    create_function *create;
    trim_function *trim;
    destroy_function *destroy;
    gapless_allocator *allocator;
};

static int load(const char *path, struct copy *copy) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    *(void **)&copy->create = dlsym(library, "gapless_create");
    *(void **)&copy->trim = dlsym(library, "gapless_trim");
    *(void **)&copy->destroy = dlsym(library, "gapless_destroy");
    gapless_config config = {.size = sizeof config, .budget_bytes = 64 << 20};
    return copy->create == NULL || copy->trim == NULL || copy->destroy == NULL ||
           copy->create(&config, &copy->allocator) != GAPLESS_OK;
}

int main(int argc, char **argv) {
    struct copy copies[2];
    if (argc != 3 || load(argv[1], &copies[0]) || load(argv[2], &copies[1]) || copies[0].create == copies[1].create) {
        fprintf(stderr, "give two copies of the library\n");
        return 2;
    }
    for (int one = 0; one < 2; one++) {
        gapless_allocator *foreign = copies[1 - one].allocator;
        if (copies[one].trim(foreign, 0, NULL) != GAPLESS_ERROR_INVALID_HANDLE ||
            copies[one].destroy(foreign) != GAPLESS_ERROR_INVALID_HANDLE) {
            fprintf(stderr, "copy %d takes %p of the other\n", one, (void *)foreign);
            return 1;
        }
    }
    for (int one = 0; one < 2; one++) {
        if (copies[one].trim(copies[one].allocator, 0, NULL) != GAPLESS_OK ||
            copies[one].destroy(copies[one].allocator) != GAPLESS_OK) {
            fprintf(stderr, "copy %d refuses its own handle\n", one);
            return 1;
        }
    }
    printf("as expected\n");
    return 0;
}
