// Writes [data, data + bytes) with the pattern of `seed`. Any alignment; aligned ranges go eight bytes at a time.
#include "pattern.cuh"

extern "C" __global__ void fill_pattern(unsigned char *data, u64 bytes, u64 seed) {
    u64 words = ((u64)data % 8 == 0) ? bytes / 8 : 0;
    u64 *as_words = (u64 *)data;
    for (u64 i = grid_thread(); i < words; i += grid_threads()) {
        as_words[i] = pattern_word(seed, i);
    }
    for (u64 i = words * 8 + grid_thread(); i < bytes; i += grid_threads()) {
        data[i] = pattern_byte(seed, i);
    }
}
