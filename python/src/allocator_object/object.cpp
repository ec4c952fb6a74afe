// Memory: what is called for every tensor, and copies.
#include "object.h"

#include <c10/core/impl/GPUTrace.h>

#include <algorithm>
#include <optional>

namespace gapless {

AllocatorObject *AllocatorObject::instance = nullptr;
thread_local AllocatorObject::Asking AllocatorObject::asking = AllocatorObject::Asking::Nothing;

AllocatorObject::AllocatorObject(Library library, CUDAAllocator *native)
    : gapless_(library),
      native_(native),
      is_intercepted_(reinterpret_cast<bool (*)()>(dlsym(RTLD_DEFAULT, "tms_get_interesting_region"))) {}

namespace {

DeviceIndex current_device() {
    DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    return device;
}

c10::Device on(int device) { return {c10::kCUDA, static_cast<DeviceIndex>(device)}; }

constexpr size_t MIB = 1 << 20;

// The bytes that PyTorch's own allocator asks the driver for when it needs so many.
size_t segment_bytes(size_t bytes) {
#if GAPLESS_TORCH >= 211
    const size_t middle = c10::CachingAllocator::AcceleratorAllocatorConfig::large_segment_size();
#else
    const size_t middle = 20 * MIB;
#endif
    bytes = (bytes + 511) / 512 * 512;
    if (bytes <= MIB) {
        return 2 * MIB;
    }
    return bytes < 10 * MIB ? middle : (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
}

const c10::impl::PyInterpreter *tracer() { return c10::impl::GPUTrace::get_trace(); }

}  // namespace

void AllocatorObject::check(int status, const char *what) const {
    TORCH_CHECK(status == GAPLESS_OK, "gapless: ", what, ": ", gapless_.last_error());
}

void AllocatorObject::init(int devices) {
    native_->init(devices);
    if (!initialized_) {
        native_->attachAllocatorTraceTracker([this](const plain::TraceEntry &entry) {
            if (is_of_program(entry)) {
                history_.native_event(entry);
            }
        });
    }
    devices_ = devices;
    initialized_ = true;
    // PyTorch's own allocator has read the limit in PyTorch's variable, the same for each device.
    double fraction = devices > 0 ? native_->getMemoryFraction(0) : 1.0;
    if (fraction < 1.0) {
        check(gapless_.torch_limit(fraction), "per_process_memory_fraction");
        std::lock_guard<std::mutex> lock(mutex_);
        for (int device = 0; device < devices; device++) {
            fractions_[device] = fraction;
        }
    }
}

void AllocatorObject::release(void *pointer) { instance->give(pointer, Refusal::Warn); }

c10::DeleterFnPtr AllocatorObject::raw_deleter() const { return &release; }

c10::DataPtr AllocatorObject::owned(void *pointer, DeviceIndex device) const {
    return {pointer, pointer, &release, on(device)};
}

c10::DataPtr AllocatorObject::allocate(size_t bytes) {
    DeviceIndex device = current_device();
    void *pointer = nullptr;
    if (bytes != 0) {
        pointer = take(device, bytes, c10::cuda::getCurrentCUDAStream(device).stream());
    }
    return owned(pointer, device);
}

void *AllocatorObject::raw_alloc(size_t bytes) {
    if (bytes == 0) {
        return nullptr;
    }
    DeviceIndex device = current_device();
    return take(device, bytes, c10::cuda::getCurrentCUDAStream(device).stream());
}

void *AllocatorObject::raw_alloc_with_stream(size_t bytes, cudaStream_t stream) {
    return bytes == 0 ? nullptr : take(current_device(), bytes, stream);
}

void AllocatorObject::raw_delete(void *pointer) { give(pointer, Refusal::Throw); }

void *AllocatorObject::take(DeviceIndex device, size_t bytes, cudaStream_t stream) {
    bool is_routed = pools_.some_open() || is_intercepted_ != nullptr || !enabled_.load(std::memory_order_relaxed);
    if (C10_UNLIKELY(is_routed || history_.watching())) {
        return take_routed(device, bytes, stream);
    }
    return take_from(nullptr, device, bytes, stream);
}

// A request that an open pool may want, or PyTorch's own allocator, or of which somebody wants to be told.
void *AllocatorObject::take_routed(DeviceIndex device, size_t bytes, cudaStream_t stream) {
    Route route = pools_.of(device, stream);
    if (is_intercepted_ != nullptr) {
        route.owner = intercepted(device, route);
    }
    if (route.owner == Owner::Native || !enabled_.load(std::memory_order_relaxed)) {
        return take_native(device, bytes, stream, route.pool);
    }
    std::optional<History::Cause> cause;
    if (history_.watching()) {
        follow(device);
        cause.emplace(history_, plain::RecordContext::STATE, stream, route.pool);
    }
    Pool name{route.pool.first, route.pool.second};
    return take_from(route.pool == PoolId{0, 0} ? nullptr : &name, device, bytes, stream);
}

// Memory of gapless: of a pool, or of the device's own.
void *AllocatorObject::take_from(const Pool *pool, DeviceIndex device, size_t bytes, cudaStream_t stream) {
    void *pointer = nullptr;
    int status = gapless_.torch_alloc(device, bytes, reinterpret_cast<CUstream_st *>(stream), pool, &pointer);
    if (C10_UNLIKELY(status != GAPLESS_OK)) {
        pointer = retry(device, bytes, stream, pool, status);
        if (!is_ours(pointer)) {
            return pointer;
        }
    }
    if (C10_UNLIKELY(history_.watching() || c10::memoryProfilingEnabled())) {
        tell_allocated(pointer);
    }
    if (C10_UNLIKELY(tracer() != nullptr)) {
        (*tracer())->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(pointer));
    }
    return pointer;
}

// Memory that torch_memory_saver wants to pause has to come from cudaMalloc, which gapless does not call, unless gapless pauses it:
// that of tags, which are its regions for the most part.
Owner AllocatorObject::intercepted(DeviceIndex device, const Route &route) {
    if (route.owner == Owner::Native || !is_intercepted_()) {
        return route.owner;
    }
    if (route.pool != PoolId{0, 0} && is_ordinary(device, route.pool)) {
        return Owner::Gapless;
    }
    if (route.pool != PoolId{0, 0} && !hand_over(device, route.pool)) {
        TORCH_WARN_ONCE("gapless: torch_memory_saver cannot pause the memory of a pool that had memory before its region began");
        return Owner::Gapless;
    }
    TORCH_WARN_ONCE(
        "gapless: in a region of torch_memory_saver, memory comes from PyTorch's own allocator, through the cudaMalloc that was "
        "preloaded: gapless does not defragment it");
    return Owner::Native;
}

// Memory that PyTorch's own allocator serves. Where it finds none, gapless gives back what it has cached, and it tries again.
void *AllocatorObject::take_native(DeviceIndex device, size_t bytes, cudaStream_t stream, PoolId pool) {
    for (bool is_last = false;; is_last = true) {
        try {
            return take_native_once(device, bytes, stream);
        } catch (const c10::OutOfMemoryError &) {
            uint64_t released = 0;
            if (is_last || gapless_.torch_trim(device, 0, &released) != GAPLESS_OK || released == 0) {
                tell_refused(device, bytes, stream, pool);
                throw;
            }
            count_retry(device);
        }
    }
}

// Both allocators together hold at most what the limit says: for one request, PyTorch's own is lent what gapless does not hold.
void *AllocatorObject::take_native_once(DeviceIndex device, size_t bytes, cudaStream_t stream) {
    uint64_t lent = 0;
    check(gapless_.torch_lend_native(device, &lent), "the limit");
    if (lent == UINT64_MAX) {
        return ask_native(bytes, stream);
    }
    std::lock_guard<std::recursive_mutex> lock(lending_);
    check(gapless_.torch_lend_native(device, &lent), "the limit");
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    // The half keeps the number of bytes as it is when it is rounded down.
    double fraction = (static_cast<double>(lent) + 0.5) / static_cast<double>(total_bytes);
    native_->setMemoryFraction(std::min(fraction, 1.0), device);
    try {
        void *pointer = ask_native(bytes, stream);
        settle_native(device);
        return pointer;
    } catch (...) {
        settle_native(device);
        throw;
    }
}

// What PyTorch's own allocator holds counts against the limit.
void AllocatorObject::settle_native(DeviceIndex device) {
    std::lock_guard<std::recursive_mutex> lock(lending_);
    auto held = native_->getDeviceStats(device).reserved_bytes[0].current;
    check(gapless_.torch_settle_native(device, static_cast<uint64_t>(held)), "the limit");
}

// Whether an event of PyTorch's own allocator is one of the program's. Where it has no memory, others are asked before the request
// fails.
bool AllocatorObject::is_of_program(const plain::TraceEntry &entry) {
    return asking == Asking::Nothing || (asking == Asking::Memory && entry.action_ != plain::TraceEntry::OOM);
}

void *AllocatorObject::ask_native(size_t bytes, cudaStream_t stream) {
    struct Restored {
        Asking before = asking;
        ~Restored() { asking = before; }
    } restored;
    asking = Asking::Memory;
    return native_->raw_alloc_with_stream(bytes, stream);
}

// Memory of a pool of PyTorch's own allocator that lends, or nothing.
void *AllocatorObject::take_lent(DeviceIndex device, size_t bytes, cudaStream_t stream) {
    try {
        return pools_.some_native_lends(device) ? take_native_once(device, bytes, stream) : nullptr;
    } catch (const c10::OutOfMemoryError &) {
        count_retry(device);
        return nullptr;
    }
}

// Tells observers and the history of a request that fails, with the figures that they have natively.
void AllocatorObject::tell_refused(DeviceIndex device, size_t bytes, cudaStream_t stream, PoolId pool) {
    size_t free_bytes = 0;
    size_t allowed_bytes = 0;
    (void)cudaMemGetInfo(&free_bytes, &allowed_bytes);
    std::vector<native::OutOfMemoryObserver> observers;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        observers = observers_;
        auto fraction = fractions_.find(device);
        if (fraction != fractions_.end()) {
            allowed_bytes = static_cast<size_t>(fraction->second * static_cast<double>(allowed_bytes));
        }
    }
    // A snapshot that an observer takes has the event, as natively.
    if (history_.watching()) {
        history_.refused(device, free_bytes, bytes, stream, pool);
    }
    for (const auto &observer : observers) {
        observer(device, segment_bytes(bytes), allowed_bytes, free_bytes);
    }
}

bool AllocatorObject::native_holds(DeviceIndex device) const {
    return initialized_ && native_->getDeviceStats(device).reserved_bytes[0].current > 0;
}

// A request that gapless has refused: once more after PyTorch's own allocator gave back what it has cached; then the error.
void *AllocatorObject::retry(DeviceIndex device, size_t bytes, cudaStream_t stream, const Pool *pool, int status) {
    std::string text = gapless_.last_error();
    if (status == GAPLESS_ERROR_OUT_OF_MEMORY && native_holds(device) &&
        c10::cuda::currentStreamCaptureStatusMayInitCtx() == c10::cuda::CaptureStatus::None) {
        native_->emptyCache();
        settle_native(device);
        count_retry(device);
        void *pointer = nullptr;
        status = gapless_.torch_alloc(device, bytes, reinterpret_cast<CUstream_st *>(stream), pool, &pointer);
        if (status == GAPLESS_OK) {
            return pointer;
        }
        text = gapless_.last_error();
    }
    TORCH_CHECK(status == GAPLESS_ERROR_OUT_OF_MEMORY, text);

    if (void *lent = pool == nullptr ? take_lent(device, bytes, stream) : nullptr) {
        count_retry(device);
        return lent;
    }
    tell_refused(device, bytes, stream, pool == nullptr ? PoolId{0, 0} : PoolId{pool->first, pool->second});
    Figures figures;
    if (gapless_.torch_get_stats(device, nullptr, &figures) == GAPLESS_OK) {
        c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(bytes), figures.live_bytes, figures.reserved_bytes, on(device));
    }
    Explain explain = explain_.load();
    if (explain != nullptr && history_.recording()) {
        char more[4096];
        asking = Asking::Explanation;
        text.append(more, std::min(explain(device, more, sizeof(more)), sizeof(more)));
        asking = Asking::Nothing;
    }
    C10_THROW_ERROR(OutOfMemoryError, text);
}

void AllocatorObject::give(void *pointer, Refusal refusal) {
    if (pointer == nullptr) {
        return;
    }
    if (C10_UNLIKELY(tracer() != nullptr)) {
        (*tracer())->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(pointer));
    }
    if (C10_UNLIKELY(history_.watching() || c10::memoryProfilingEnabled())) {
        return give_told(pointer, refusal);
    }
    int status = gapless_.torch_delete(pointer);
    if (C10_UNLIKELY(status != GAPLESS_OK)) {
        give_elsewhere(pointer, refusal, status);
    }
}

// A free of which somebody wants to be told.
void AllocatorObject::give_told(void *pointer, Refusal refusal) {
    std::optional<Block> block = live_at(pointer);
    if (block.has_value() && history_.watching()) {
        history_.freed(*block);
    }
    int status = gapless_.torch_delete(pointer);
    if (status != GAPLESS_OK) {
        give_elsewhere(pointer, refusal, status);
    } else if (block.has_value()) {
        tell_freed(*block);
    }
}

// A free that gapless has not made: of memory of PyTorch's own allocator, or a refusal.
void AllocatorObject::give_elsewhere(void *pointer, Refusal refusal, int status) {
    if (status == GAPLESS_ERROR_NOT_FOUND) {
        native_->raw_delete(pointer);
    } else if (refusal == Refusal::Throw) {
        TORCH_CHECK(false, "invalid device pointer: ", pointer, ": ", gapless_.last_error());
    } else {
        TORCH_WARN("gapless: ", gapless_.last_error());
    }
}

// The live allocation that starts at an address.
std::optional<Block> AllocatorObject::live_at(void *pointer) const {
    Block block{};
    bool found =
        gapless_.torch_describe(pointer, &block) == GAPLESS_OK && block.address == reinterpret_cast<uint64_t>(pointer);
    return found ? std::optional(block) : std::nullopt;
}

void AllocatorObject::tell_allocated(void *pointer) {
    Block block{};
    if (gapless_.torch_describe(pointer, &block) != GAPLESS_OK) {
        return;
    }
    if (history_.watching()) {
        history_.allocated(block);
    }
    Figures figures;
    if (c10::memoryProfilingEnabled() && gapless_.torch_get_stats(block.device, nullptr, &figures) == GAPLESS_OK) {
        c10::reportMemoryUsageToProfiler(pointer, static_cast<int64_t>(block.bytes), figures.live_block_bytes,
                                         figures.reserved_bytes, on(block.device));
    }
}

void AllocatorObject::tell_freed(const Block &block) {
    Figures figures;
    if (c10::memoryProfilingEnabled() && gapless_.torch_get_stats(block.device, nullptr, &figures) == GAPLESS_OK) {
        c10::reportMemoryUsageToProfiler(reinterpret_cast<void *>(block.address), -static_cast<int64_t>(block.bytes),
                                         figures.live_block_bytes, figures.reserved_bytes, on(block.device));
    }
}

void *AllocatorObject::getBaseAllocation(void *pointer, size_t *bytes) {
    Block block{};
    if (gapless_.torch_describe(pointer, &block) != GAPLESS_OK) {
        return native_->getBaseAllocation(pointer, bytes);
    }
    if (bytes != nullptr) {
        *bytes = block.bytes;
    }
    return reinterpret_cast<void *>(block.address);
}

void AllocatorObject::recordStream(const c10::DataPtr &data, c10::cuda::CUDAStream stream) {
    if (data.get() == nullptr) {
        return;
    }
    // Memory that another allocator made, such as one that was received from another process, is not ours to keep. That of a growable
    // tensor is: a shrink waits for its streams.
    if (data.get_deleter() != raw_deleter()) {
        int status = gapless_.torch_use_range(data.get(), reinterpret_cast<CUstream_st *>(stream.stream()));
        if (status != GAPLESS_ERROR_NOT_FOUND) {
            check(status, "record_stream");
        }
        return;
    }
    int status =
        gapless_.torch_use_on(data.get(), stream.device_index(), reinterpret_cast<CUstream_st *>(stream.stream()));
    if (status == GAPLESS_ERROR_NOT_FOUND) {
        // PyTorch's own allocator takes pointers with its own deleter only.
        c10::DataPtr theirs(data.get(), data.get(), native_->raw_deleter(), data.device());
        native_->recordStream(theirs, stream);
        theirs.release_context();
        return;
    }
    check(status, "record_stream");
}

void AllocatorObject::emptyCache(PoolId pool) {
    native_->emptyCache(pool);
    if (!initialized_) {
        return;
    }
    std::optional<History::Cause> cause;
    if (history_.watching()) {
        cause.emplace(history_, plain::RecordContext::ALL, nullptr, pool);
    }
    for (int device = 0; device < devices_; device++) {
        if (pools_.owner(static_cast<DeviceIndex>(device), pool) == Owner::Gapless) {
            check(gapless_.torch_trim(device, pool != PoolId{0, 0}, nullptr), "empty_cache");
        }
        settle_native(static_cast<DeviceIndex>(device));
    }
}

void AllocatorObject::cacheInfo(DeviceIndex device, size_t *largest) {
    Figures figures;
    check(gapless_.torch_get_stats(device, nullptr, &figures), "cacheInfo");
    *largest = std::max<size_t>(*largest, figures.largest_with_remapping_bytes);
}

double AllocatorObject::getMemoryFraction(DeviceIndex device) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = fractions_.find(device);
    return found == fractions_.end() ? 1.0 : found->second;
}

void AllocatorObject::setMemoryFraction(double fraction, DeviceIndex device) {
    TORCH_CHECK_VALUE(fraction >= 0 && fraction <= 1, "invalid fraction: ", fraction, ". Must be in [0, 1]");
    check(gapless_.torch_set_fraction(fraction, device), "set_per_process_memory_fraction");
    native_->setMemoryFraction(fraction, device);
    settle_native(device);
    std::lock_guard<std::mutex> lock(mutex_);
    fractions_[device] = fraction;
}

// Switched off, PyTorch's own allocator serves requests, each with a call to the driver.
void AllocatorObject::enable(bool value) {
    native_->enable(value);
    enabled_ = value;
}

#if GAPLESS_TORCH >= 210
std::vector<native::StreamSegmentSize> AllocatorObject::getExpandableSegmentSizes(DeviceIndex device) {
    return native_->getExpandableSegmentSizes(device);
}
#endif

#if GAPLESS_TORCH >= 213
c10::DataPtr AllocatorObject::allocateWithAddress(size_t bytes, void *address) {
    check(gapless_.torch_alloc_again(address, bytes), "allocateWithAddress");
    if (history_.watching() || c10::memoryProfilingEnabled()) {
        tell_allocated(address);
    }
    return owned(address, static_cast<DeviceIndex>(gapless_.torch_device_of(address)));
}
#endif

void AllocatorObject::copy_data(void *to, const void *from, size_t bytes) const {
    C10_CUDA_CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice));
}

void AllocatorObject::enablePeerAccess(DeviceIndex device, DeviceIndex peer) { native_->enablePeerAccess(device, peer); }

cudaError_t AllocatorObject::memcpyAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                         cudaStream_t stream, bool peers_enabled) {
    bool ours = is_ours(to) || is_ours(from);
    if (!ours) {
        return native_->memcpyAsync(to, to_device, from, from_device, bytes, stream, peers_enabled);
    }
    bool reaches = to_device == from_device ||
                   (peers_enabled && (!is_ours(to) || gapless_.torch_reaches(from_device, to_device)) &&
                    (!is_ours(from) || gapless_.torch_reaches(to_device, from_device)));
    return reaches ? cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream)
                   : cudaMemcpyPeerAsync(to, to_device, from, from_device, bytes, stream);
}

native::ShareableHandle AllocatorObject::shareIpcHandle(void *pointer) {
    if (!is_ours(pointer)) {
        return native_->shareIpcHandle(pointer);
    }
    std::string handle(GAPLESS_SHARE_HANDLE_BYTES, '\0');
    uint64_t offset = 0;
    int device = gapless_.torch_device_of(pointer);
    check(gapless_.device_export(device, pointer, reinterpret_cast<uint8_t *>(handle.data()), &offset),
          "sending memory to another process");
    return {static_cast<ptrdiff_t>(offset), std::move(handle)};
}

std::shared_ptr<void> AllocatorObject::getIpcDevPtr(std::string handle) {
    // What every handle of gapless begins with, and none of PyTorch's.
    if (handle.compare(0, 7, "gapless") != 0) {
        return native_->getIpcDevPtr(std::move(handle));
    }
    int device = 0;
    C10_CUDA_CHECK(cudaGetDevice(&device));
    void *memory = nullptr;
    uint64_t bytes = 0;
    check(gapless_.device_import(device, reinterpret_cast<const uint8_t *>(handle.data()), handle.size(), &memory, &bytes),
          "memory of another process");
    return {memory, [this, device](void *opened) {
                if (gapless_.device_close_import(device, opened) != GAPLESS_OK) {
                    TORCH_WARN("gapless: memory of another process stays open: ", gapless_.last_error());
                }
            }};
}

}  // namespace gapless
