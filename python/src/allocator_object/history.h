// What PyTorch wants to know of single allocations: the memory history with stack traces, trackers, annotations. All of it is in
// PyTorch's own types. The allocator asks `watching` before it tells anything. What PyTorch's own allocator tells its trackers is
// in the same history, so that the events of both are in the order in which they happened.
#pragma once

#include <atomic>
#include <deque>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "library.h"
#include "torch_version.h"

namespace gapless {

using Context = std::shared_ptr<c10::GatheredContext>;

// A segment as a viewer draws it: addresses that are mapped.
struct Extent {
    size_t address;
    size_t end;
    Handle stream;
};

class History {
   public:
    // What this thread asks of the allocator, as long as it lives: the reason for what is mapped and unmapped meanwhile. The stack is
    // walked here, since nothing may wait for Python inside the allocator.
    class Cause {
       public:
        Cause(const History &history, plain::RecordContext level, cudaStream_t stream, PoolId pool);
        ~Cause() { current_ = before_; }
        Cause(const Cause &) = delete;
        Cause &operator=(const Cause &) = delete;

       private:
        friend History;
        static thread_local const Cause *current_;
        cudaStream_t stream_;
        PoolId pool_;
        Context context_;
        const Cause *before_;
    };

    // Whether anybody wants to be told.
    bool watching() const { return watching_.load(std::memory_order_relaxed); }
    bool recording() const { return recording_.load(std::memory_order_relaxed); }

    void record(bool enabled, plain::CreateContextFn recorder, size_t most, plain::RecordContext when, bool clear,
                const std::vector<std::string> &skipped);
    void add_tracker(plain::AllocatorTraceTracker tracker);
    void annotate(DeviceIndex device, const std::vector<std::pair<std::string, std::string>> &metadata);
    void annotate_memory(const Block &block, const std::string &metadata);

    // An allocation, after it was made; a free, before it is made; a request that was refused, with the bytes that the device has
    // free as its address. The stack is walked here.
    void allocated(const Block &block);
    void freed(const Block &block);
    void refused(DeviceIndex device, size_t free_bytes, size_t bytes, cudaStream_t stream, PoolId pool);

    // An event of PyTorch's own allocator. Called inside it.
    void native_event(const plain::TraceEntry &entry);

    // Memory that was mapped; memory that is about to be unmapped. Called inside the allocator.
    void mapped(DeviceIndex device, size_t address, size_t bytes);
    void unmapping(DeviceIndex device, size_t address, size_t bytes);

    Context context_of(const void *pointer);

    // The entries of one device, oldest first. `segments`: what the snapshot shows as mapped. A viewer goes back from there, so events
    // of segments are of what it can have drawn at that time, and every block begins in a segment.
    std::vector<plain::TraceEntry> entries(DeviceIndex device, PoolId pool, std::vector<Extent> segments);
    std::vector<plain::AnnotationEntry> annotations();

    static void push_compile_context(std::string text);
    static void pop_compile_context();
    static std::string &user_metadata();

   private:
    struct Noted {
        plain::TraceEntry entry;
        bool is_native;
    };

    void note(plain::TraceEntry entry);
    void keep(plain::TraceEntry entry, bool is_native);
    void note_segment(plain::TraceEntry::Action action, DeviceIndex device, size_t address, size_t bytes);
    Context gather(plain::RecordContext level) const;
    void watch();

    std::atomic<bool> watching_{false};
    std::atomic<bool> recording_{false};
    std::atomic<plain::CreateContextFn> recorder_{nullptr};
    std::atomic<plain::RecordContext> when_{plain::RecordContext::NEVER};

    std::mutex mutex_;
    std::vector<plain::AllocatorTraceTracker> trackers_;
    std::deque<Noted> entries_;
    std::deque<plain::AnnotationEntry> annotations_;
    std::unordered_map<const void *, Context> contexts_;  // Of live allocations.
    std::unordered_map<size_t, std::pair<cudaStream_t, PoolId>> mapped_for_;  // By address, as far as it was told.
    std::unordered_set<int> skipped_;
    size_t most_ = 0;
};

}  // namespace gapless
