// Times pairs of an allocation and a free through PyTorch's C++ entry, whichever allocator PyTorch uses.
#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <chrono>
#include <vector>

namespace {

constexpr size_t PAIRS = 1024;  // Short enough that most samples are not interrupted.

}  // namespace

// Nanoseconds a pair, the least of `samples`: `live` blocks of `bytes` each are allocated, then all freed.
extern "C" double allocation_pairs(size_t bytes, size_t live, size_t samples) {
    std::vector<void *> blocks(live);
    double least = 1e9;
    for (size_t sample = 0; sample < samples; sample++) {
        auto start = std::chrono::steady_clock::now();
        for (size_t round = 0; round < PAIRS / live; round++) {
            for (auto &block : blocks) {
                block = c10::cuda::CUDACachingAllocator::raw_alloc(bytes);
            }
            for (auto block : blocks) {
                c10::cuda::CUDACachingAllocator::raw_delete(block);
            }
        }
        std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
        least = std::min(least, took.count() / PAIRS);
    }
    return least;
}
