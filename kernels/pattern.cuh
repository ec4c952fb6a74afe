// The bytes that fill_pattern writes and verify_pattern expects: the same function as `pattern_word` and
// `pattern_byte` in src/driver/mod.rs, byte for byte (little-endian).
#pragma once

typedef unsigned long long u64;

__device__ __forceinline__ u64 pattern_word(u64 seed, u64 index) {
    u64 z = seed * 0x9e3779b97f4a7c15ull + index * 0xd1b54a32d192ed03ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

__device__ __forceinline__ unsigned char pattern_byte(u64 seed, u64 offset) {
    return (unsigned char)(pattern_word(seed, offset / 8) >> (8 * (offset % 8)));
}

__device__ __forceinline__ u64 grid_thread() {
    return (u64)blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ u64 grid_threads() {
    return (u64)gridDim.x * blockDim.x;
}
