// Latency over a range: dependent loads that visit `slots` places, `stride` bytes apart, in one cycle.
#include "pattern.cuh"

// Links the places: slot i holds the address of slot (multiplier * i + 1) mod slots. `slots` is a power of two and
// `multiplier` is 1 mod 4, so that the cycle visits every slot (Hull and Dobell, 1962).
extern "C" __global__ void pointer_chase_link(char *data, u64 slots, u64 stride, u64 multiplier) {
    for (u64 i = grid_thread(); i < slots; i += grid_threads()) {
        u64 next = (multiplier * i + 1) & (slots - 1);
        *(u64 *)(data + i * stride) = (u64)(data + next * stride);
    }
}

// Follows `steps` links from `data`. result[0] = cycles of the processor's clock, result[1] = the last address.
// Launch with one thread.
extern "C" __global__ void pointer_chase(const char *data, u64 steps, u64 *result) {
    u64 place = (u64)data;
    long long start = clock64();
    for (u64 i = 0; i < steps; i++) {
        place = *(const volatile u64 *)place;
    }
    result[0] = (u64)(clock64() - start);
    result[1] = place;
}
