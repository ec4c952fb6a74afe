// A writer and a reader for programmatic dependent launch: each lets the next kernel of its stream start at once, and
// waits until the one before it has ended before it touches memory. For compute capability 9.0 and later.
#include "pattern.cuh"

__device__ __forceinline__ void start_next_and_wait() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

extern "C" __global__ void dependent_write(u64 *data, u64 words, u64 seed) {
    start_next_and_wait();
    for (u64 i = grid_thread(); i < words; i += grid_threads()) {
        data[i] = pattern_word(seed, i);
    }
}

// result[0] += words that differ.
extern "C" __global__ void dependent_check(const u64 *data, u64 words, u64 seed, u64 *result) {
    start_next_and_wait();
    for (u64 i = grid_thread(); i < words; i += grid_threads()) {
        if (data[i] != pattern_word(seed, i)) {
            atomicAdd(&result[0], 1ull);
        }
    }
}
