/* Prints what the driver says of itself: its version, the memory of device 0, the number of devices, and which of the functions
 * that are named as arguments dlsym and cuGetProcAddress find. cuModuleLoad is called then, too. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int cuInit(unsigned flags);
int cuDriverGetVersion(int *version);
int cuDeviceGetCount(int *count);
int cuDeviceTotalMem_v2(size_t *bytes, int device);
int cuGetProcAddress(const char *symbol, void **function, int version, unsigned long long flags);

int main(int argc, char **argv) {
    int version = 0, devices = 0, code = cuInit(0);
    size_t bytes = 0;
    if (code != 0) {
        printf("cuInit: %d\n", code);
        return 3;
    }
    cuDriverGetVersion(&version);
    cuDeviceGetCount(&devices);
    cuDeviceTotalMem_v2(&bytes, 0);
    printf("version %d, %d devices of %zu MiB\n", version, devices, bytes >> 20);
    for (int i = 1; i < argc; i++) {
        void *found = NULL;
        void *symbol = dlsym(RTLD_DEFAULT, argv[i]);
        int answer = cuGetProcAddress(argv[i], &found, 13000, 0);
        printf("%s: %s, %d\n", argv[i], symbol != NULL ? "there" : "not there", answer);
        if (symbol != NULL && strcmp(argv[i], "cuModuleLoad") == 0) {
            int (*load)(void **, const char *) = (int (*)(void **, const char *))symbol;
            void *module = NULL;
            printf("called: %d\n", load(&module, "file"));
        }
    }
    return 0;
}
