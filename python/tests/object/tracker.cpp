// A tracker as PyTorch's libraries attach it: it reaches for the memory of each segment that it is told of.
#include <c10/cuda/CUDACachingAllocator.h>

#include <atomic>
#include <stdexcept>
#include <type_traits>

extern "C" {

// Bytes that were told as mapped and as about to be unmapped, and events whose memory could not be reached.
std::atomic<size_t> tracker_mapped, tracker_unmapped, tracker_unreachable;
// Whether the next mapping is refused.
std::atomic<bool> tracker_refuses;

void tracker_attach() {
    c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker([](const auto &entry) {
        using Entry = std::decay_t<decltype(entry)>;
        bool is_map = entry.action_ == Entry::SEGMENT_MAP;
        if (!is_map && entry.action_ != Entry::SEGMENT_UNMAP) {
            return;
        }
        if (is_map && tracker_refuses.exchange(false)) {
            throw std::runtime_error("refused");
        }
        (is_map ? tracker_mapped : tracker_unmapped) += entry.size_;
        char last = 0;
        auto *end = reinterpret_cast<char *>(entry.addr_) + entry.size_;
        if (cudaMemcpy(&last, end - 1, 1, cudaMemcpyDeviceToHost) != cudaSuccess) {
            tracker_unreachable++;
        }
    });
}

}  // extern "C"
