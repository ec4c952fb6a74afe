// Keeps its stream busy for `nanoseconds` of the device's global timer. Launch with one thread.
typedef unsigned long long u64;

__device__ __forceinline__ u64 now() {
    u64 value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
    return value;
}

extern "C" __global__ void spin(u64 nanoseconds) {
    u64 start = now();
    while (now() - start < nanoseconds) {
    }
}
