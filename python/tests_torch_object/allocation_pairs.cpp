// Times pairs of an allocation and a free through PyTorch's C++ entry, whichever allocator PyTorch uses.
#include <c10/cuda/CUDACachingAllocator.h>

#include <chrono>
#include <vector>

// Nanoseconds a pair, of `rounds` rounds over `live` blocks of `bytes` each: all are allocated, then all freed.
extern "C" double allocation_pairs(size_t bytes, size_t live, size_t rounds) {
    std::vector<void *> blocks(live);
    auto start = std::chrono::steady_clock::now();
    for (size_t round = 0; round < rounds; round++) {
        for (auto &block : blocks) {
            block = c10::cuda::CUDACachingAllocator::raw_alloc(bytes);
        }
        for (auto block : blocks) {
            c10::cuda::CUDACachingAllocator::raw_delete(block);
        }
    }
    std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    return took.count() / static_cast<double>(live * rounds);
}
