// Streams over a range, 16 bytes a thread at a time: read, write and copy. Ranges are 16-byte aligned and a multiple
// of 16 bytes long.
#include "pattern.cuh"

// `sink` gets a value that depends on every byte, so that no load can be left out.
extern "C" __global__ void bandwidth_read(const ulonglong2 *data, u64 bytes, u64 *sink) {
    u64 sum = 0;
    for (u64 i = grid_thread(); i < bytes / 16; i += grid_threads()) {
        ulonglong2 value = data[i];
        sum ^= value.x ^ value.y;
    }
    if (sum == 0x6761706c65737321ull) {
        *sink = sum;
    }
}

extern "C" __global__ void bandwidth_write(ulonglong2 *data, u64 bytes, u64 value) {
    for (u64 i = grid_thread(); i < bytes / 16; i += grid_threads()) {
        data[i] = make_ulonglong2(value, value);
    }
}

extern "C" __global__ void bandwidth_copy(ulonglong2 *target, const ulonglong2 *source, u64 bytes) {
    for (u64 i = grid_thread(); i < bytes / 16; i += grid_threads()) {
        target[i] = source[i];
    }
}
