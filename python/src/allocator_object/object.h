// PyTorch's allocator interface on gapless. It translates calls and keeps what is of PyTorch's own types; every decision about memory
// is behind the C interface. PyTorch's own allocator stays alive beside: it serves the pools that have an allocator of their own, and
// whatever it allocated before.
//
// Threads: any. Exceptions: PyTorch's own, from here to PyTorch; gapless does not throw, and calls back with what it maps and
// unmaps while somebody wants to know.
#pragma once

#include <array>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "history.h"
#include "library.h"
#include "pools.h"
#include "torch_version.h"

namespace gapless {

// Writes what lines of the program hold on a device into a text with so much room, and returns how many bytes it wrote.
using Explain = size_t (*)(int device, char *text, size_t room);

// How a caller is told of a free that gapless refuses: a deleter must not throw.
enum class Refusal { Throw, Warn };

class AllocatorObject final : public CUDAAllocator {
   public:
    AllocatorObject(Library library, CUDAAllocator *native);

    // Answers of a fixed kind, by which the layout of what is returned is proved.
    void plant(bool on) { planted_ = on; }
    static void release(void *pointer);
    // What this thread asks of PyTorch's own allocator for itself: a snapshot to explain a refusal, or memory that it may not have.
    enum class Asking { Nothing, Explanation, Memory };
    static thread_local Asking asking;
    static AllocatorObject *instance;
    void explain_refusals(Explain explain) { explain_ = explain; }

    // c10::Allocator
    c10::DataPtr allocate(size_t bytes) override;
    c10::DeleterFnPtr raw_deleter() const override;
    void copy_data(void *to, const void *from, size_t bytes) const override;

    // Memory
    void *raw_alloc(size_t bytes) override;
    void *raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override;
    void raw_delete(void *pointer) override;
    void *getBaseAllocation(void *pointer, size_t *bytes) override;
    using CUDAAllocator::recordStream;
    void recordStream(const c10::DataPtr &data, c10::cuda::CUDAStream stream) override;
    void emptyCache(PoolId pool = {0, 0}) override;
    void cacheInfo(DeviceIndex device, size_t *largest) override;
    void init(int devices) override;
    bool initialized() override { return initialized_; }
    double getMemoryFraction(DeviceIndex device) override;
    void setMemoryFraction(double fraction, DeviceIndex device) override;
    void enable(bool value) override;
    bool isEnabled() const override { return enabled_; }
    // PyTorch and programs compare it with "native" before they use what plug-ins lack, and so does the parser of PyTorch's
    // variable.
    std::string name() override { return planted_ ? "planted" : "native"; }
#if GAPLESS_TORCH >= 210
    std::vector<native::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override;
#endif
#if GAPLESS_TORCH >= 213
    c10::DataPtr allocateWithAddress(size_t bytes, void *address) override;
#endif

    // Figures
    Stats getDeviceStats(DeviceIndex device) override;
    void resetAccumulatedStats(DeviceIndex device) override;
    void resetPeakStats(DeviceIndex device) override;
    native::SnapshotInfo snapshot(PoolId pool = {0, 0}
#if GAPLESS_TORCH >= 211
                                  ,
                                  bool with_traces = true
#endif
                                  ) override;

    // Pools
    void beginAllocateToPool(DeviceIndex device, PoolId pool, std::function<bool(cudaStream_t)> filter) override;
    void endAllocateToPool(DeviceIndex device, PoolId pool) override;
    void releasePool(DeviceIndex device, PoolId pool) override;
    int getPoolUseCount(DeviceIndex device, PoolId pool) override;
#if GAPLESS_TORCH >= 211
    void createOrIncrefPool(DeviceIndex device, PoolId pool, std::shared_ptr<CUDAAllocator> allocator) override;
    void setUseOnOOM(DeviceIndex device, PoolId pool, bool use_on_oom) override;
#else
    void createOrIncrefPool(DeviceIndex device, PoolId pool, CUDAAllocator *allocator) override;
    void setUseOnOOM(DeviceIndex device, PoolId pool) override;
#endif
#if GAPLESS_TORCH >= 210
    void setNoSplit(DeviceIndex device, PoolId pool) override;
#endif
#if GAPLESS_TORCH >= 213
    void markCaptureBegin(DeviceIndex device) override { native_->markCaptureBegin(device); }
    void markCaptureEnd(DeviceIndex device) override { native_->markCaptureEnd(device); }
#endif
    bool checkPoolLiveAllocations(DeviceIndex device, PoolId pool, const std::unordered_set<void *> &expected) override;
    std::shared_ptr<native::AllocatorState> getCheckpointState(DeviceIndex device, PoolId pool) override;
    native::CheckpointDelta setCheckpointPoolState(DeviceIndex device,
                                                   std::shared_ptr<native::AllocatorState> state) override;

    // History
    bool isHistoryEnabled() override { return history_.recording(); }
    void recordHistory(bool enabled, plain::CreateContextFn recorder, size_t most, plain::RecordContext when, bool clear
#if GAPLESS_TORCH >= 211
                       ,
                       const std::vector<std::string> &skipped
#endif
                       ) override;
    void recordAnnotation(const std::vector<std::pair<std::string, std::string>> &metadata) override;
    void pushCompileContext(std::string &text) override { History::push_compile_context(text); }
    void popCompileContext() override { History::pop_compile_context(); }
    void attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) override;
    void attachAllocatorTraceTracker(plain::AllocatorTraceTracker tracker) override;
#if GAPLESS_TORCH >= 210
    void setUserMetadata(const std::string &metadata) override;
    std::string getUserMetadata() override;
#endif
#if GAPLESS_TORCH >= 212
    Context getContextForPointer(const void *pointer) override;
    void attachOomRejectionObserver(native::OomRejectionObserver observer) override;
#endif
#if GAPLESS_TORCH >= 214
    bool supportsUserMetadata() override { return true; }
    void annotateMemory(const void *pointer, const std::string &metadata) override;
#endif

    // Other devices and processes
    void enablePeerAccess(DeviceIndex device, DeviceIndex peer) override;
    cudaError_t memcpyAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                            cudaStream_t stream, bool peers_enabled) override;
    native::ShareableHandle shareIpcHandle(void *pointer) override;
    std::shared_ptr<void> getIpcDevPtr(std::string handle) override;

   private:
    void *take(DeviceIndex device, size_t bytes, cudaStream_t stream);
    [[gnu::noinline]] void *take_routed(DeviceIndex device, size_t bytes, cudaStream_t stream);
    void *take_from(const Pool *pool, DeviceIndex device, size_t bytes, cudaStream_t stream);
    void *take_native(DeviceIndex device, size_t bytes, cudaStream_t stream, PoolId pool);
    void *take_native_once(DeviceIndex device, size_t bytes, cudaStream_t stream);
    void settle_native(DeviceIndex device);
    [[gnu::noinline]] void *retry(DeviceIndex device, size_t bytes, cudaStream_t stream, const Pool *pool, int status);
    Owner intercepted(DeviceIndex device, const Route &route);
    bool is_ordinary(DeviceIndex device, PoolId pool) const;
    bool hand_over(DeviceIndex device, PoolId pool);
    void *ask_native(size_t bytes, cudaStream_t stream);
    static bool is_of_program(const plain::TraceEntry &entry);
    void *take_lent(DeviceIndex device, size_t bytes, cudaStream_t stream);
    void tell_refused(DeviceIndex device, size_t bytes, cudaStream_t stream, PoolId pool);
    void give(void *pointer, Refusal refusal);
    [[gnu::noinline]] void give_told(void *pointer, Refusal refusal);
    [[gnu::noinline]] void give_elsewhere(void *pointer, Refusal refusal, int status);
    [[gnu::noinline]] void tell_allocated(void *pointer);
    void tell_freed(const Block &block);
    std::optional<Block> live_at(void *pointer) const;
    c10::DataPtr owned(void *pointer, DeviceIndex device) const;
    bool is_ours(const void *pointer) const { return gapless_.torch_device_of(pointer) >= 0; }
    bool native_holds(DeviceIndex device) const;
    int64_t retries_of(DeviceIndex device) const;
    void count_retry(DeviceIndex device);
    std::vector<Block> blocks(DeviceIndex device, PoolId pool, bool live_only) const;
    void add_segments(DeviceIndex device, PoolId pool, std::vector<plain::SegmentInfo> &segments,
                      std::vector<Extent> &extents);
    void follow();
    void follow(DeviceIndex device);
    void follow_no_more(DeviceIndex device);
    void check(int status, const char *what) const;
    Stats planted_stats() const;
    native::SnapshotInfo planted_snapshot() const;

    Library gapless_;
    CUDAAllocator *native_;
    Pools pools_;
    History history_;
    // torch_memory_saver's function that says whether the calling thread's memory is to be its own; null unless its cudaMalloc was
    // preloaded.
    bool (*const is_intercepted_)();
    bool initialized_ = false;
    bool planted_ = false;
    std::atomic<bool> enabled_{true};
    std::atomic<Explain> explain_{nullptr};
    int devices_ = 0;

    std::mutex mutex_;
    std::vector<native::OutOfMemoryObserver> observers_;
    std::unordered_map<int, double> fractions_;
    std::recursive_mutex lending_;  // Locked while PyTorch's own allocator is lent what gapless does not hold of a limit.
    // By device: requests that were made again after the other side had given back what it cached.
    std::array<std::atomic<int64_t>, C10_COMPILE_TIME_MAX_GPUS> retries_{};
    c10::ApproximateClockToUnixTimeConverter clock_;

    std::mutex following_;
    std::array<std::atomic<uint64_t>, C10_COMPILE_TIME_MAX_GPUS> listeners_{};  // By device; 0 where nobody wants to be told.
};

}  // namespace gapless
