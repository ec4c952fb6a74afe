// Compares [data, data + bytes) with the pattern of `seed`. result[0] += bytes that differ;
// result[1] = min(result[1], offset of the first one). The caller sets result to {0, ~0} first.
#include "pattern.cuh"

__device__ __forceinline__ void report(u64 *result, u64 count, u64 first) {
    atomicAdd(&result[0], count);
    atomicMin(&result[1], first);
}

extern "C" __global__ void verify_pattern(const unsigned char *data, u64 bytes, u64 seed, u64 *result) {
    u64 words = ((u64)data % 8 == 0) ? bytes / 8 : 0;
    const u64 *as_words = (const u64 *)data;
    for (u64 i = grid_thread(); i < words; i += grid_threads()) {
        u64 difference = as_words[i] ^ pattern_word(seed, i);
        if (difference == 0) {
            continue;
        }
        u64 count = 0;
        u64 first = 8;
        for (u64 byte = 0; byte < 8; byte++) {
            if ((difference >> (8 * byte)) & 0xff) {
                count++;
                if (first == 8) {
                    first = byte;
                }
            }
        }
        report(result, count, i * 8 + first);
    }
    for (u64 i = words * 8 + grid_thread(); i < bytes; i += grid_threads()) {
        if (data[i] != pattern_byte(seed, i)) {
            report(result, 1, i);
        }
    }
}
