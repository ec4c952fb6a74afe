// Figures: statistics, snapshots, the history's switches.
#include "object.h"

namespace gapless {

namespace {

// There are no pools by size: everything is in the large one. 0 is all blocks, 2 the large ones.
void set(StatArray &stats, int64_t Stat::*count, uint64_t value) {
    for (size_t kind : {0, 2}) {
        stats[kind].*count = static_cast<int64_t>(value);
    }
}

// Adds what PyTorch's own allocator holds beside. The sum of two peaks may exceed the peak of the sum.
void add(StatArray &stats, const StatArray &more) {
    for (size_t kind = 0; kind < stats.size(); kind++) {
        stats[kind].current += more[kind].current;
        stats[kind].peak += more[kind].peak;
        stats[kind].allocated += more[kind].allocated;
        stats[kind].freed += more[kind].freed;
    }
}

// A callback of gapless's map listeners. A tracker that throws refuses.
template <void (History::*TELL)(DeviceIndex, size_t, size_t)>
int32_t tell(void *history, int32_t device, void *pointer, uint64_t bytes) try {
    (static_cast<History *>(history)->*TELL)(static_cast<DeviceIndex>(device), reinterpret_cast<size_t>(pointer), bytes);
    return 0;
} catch (...) {
    return 1;
}

}  // namespace

Stats AllocatorObject::getDeviceStats(DeviceIndex device) {
    if (planted_) {
        return planted_stats();
    }
    Figures now;
    check(gapless_.torch_get_stats(device, nullptr, &now), "the statistics");
    Stats stats;
#define GAPLESS_STAT(metric, count, figure) set(stats.metric, &Stat::count, now.figure);
#define GAPLESS_NUMBER(number, figure) stats.number = static_cast<int64_t>(now.figure);
#include "torch_keys.inc"
#undef GAPLESS_STAT
#undef GAPLESS_NUMBER
    stats.max_split_size = -1;

    if (initialized_) {
        const Stats native = native_->getDeviceStats(device);
        add(stats.allocation, native.allocation);
        add(stats.segment, native.segment);
        add(stats.active, native.active);
        add(stats.inactive_split, native.inactive_split);
        add(stats.allocated_bytes, native.allocated_bytes);
        add(stats.reserved_bytes, native.reserved_bytes);
        add(stats.active_bytes, native.active_bytes);
        add(stats.inactive_split_bytes, native.inactive_split_bytes);
        add(stats.requested_bytes, native.requested_bytes);
        // An attempt that was made again is no failure of the program's.
        auto retries = retries_of(device);
        stats.num_alloc_retries = native.num_alloc_retries + retries;
        stats.num_ooms += native.num_ooms - retries;
        stats.num_sync_all_streams += native.num_sync_all_streams;
        stats.num_device_alloc += native.num_device_alloc;
        stats.num_device_free += native.num_device_free;
        stats.oversize_allocations = native.oversize_allocations;
        stats.oversize_segments = native.oversize_segments;
#if GAPLESS_TORCH >= 212
        stats.num_oom_rejections = native.num_oom_rejections;
#endif
#if GAPLESS_TORCH >= 213
        stats.reserved_bytes_by_private_pools = native.reserved_bytes_by_private_pools;
#endif
    }
#if GAPLESS_TORCH >= 213
    std::vector<Pool> pools(64);
    uint64_t needed = 0;
    while (gapless_.torch_pools(device, pools.data(), pools.size(), &needed) == GAPLESS_ERROR_BUFFER_TOO_SMALL) {
        pools.resize(needed * 2);
    }
    pools.resize(needed);
    for (const auto &pool : pools) {
        Figures of_pool;
        if (gapless_.torch_get_stats(device, &pool, &of_pool) == GAPLESS_OK) {
            auto &of_segments = stats.reserved_bytes_by_private_pools[{pool.first, pool.second}];
            set(of_segments, &Stat::current, of_pool.reserved_bytes);
            set(of_segments, &Stat::peak, of_pool.peak_reserved_bytes);
            set(of_segments, &Stat::allocated, of_pool.created_bytes);
            set(of_segments, &Stat::freed, of_pool.released_bytes);
        }
    }
#endif
    return stats;
}

int64_t AllocatorObject::retries_of(DeviceIndex device) const {
    return static_cast<size_t>(device) < retries_.size() ? retries_[device].load() : 0;
}

void AllocatorObject::count_retry(DeviceIndex device) {
    if (static_cast<size_t>(device) < retries_.size()) {
        retries_[device]++;
    }
}

void AllocatorObject::resetAccumulatedStats(DeviceIndex device) {
    native_->resetAccumulatedStats(device);
    if (static_cast<size_t>(device) < retries_.size()) {
        retries_[device] = 0;
    }
    check(gapless_.torch_reset_counts(device), "the statistics");
}

void AllocatorObject::resetPeakStats(DeviceIndex device) {
    native_->resetPeakStats(device);
    check(gapless_.torch_reset_peaks(device), "the peaks");
}

// Segments: runs of blocks that touch.
void AllocatorObject::add_segments(DeviceIndex device, PoolId pool, std::vector<plain::SegmentInfo> &segments,
                                   std::vector<Extent> &extents) {
    auto all = blocks(device, pool, false);
    const Block *before = nullptr;
    for (const auto &block : all) {
        bool touches = before != nullptr && before->region == block.region &&
                       before->address + before->bytes == block.address;
        before = &block;
        if (!touches) {
            plain::SegmentInfo segment;
            segment.device = device;
            segment.address = block.address;
            segment.stream = reinterpret_cast<Handle>(block.stream);
            segment.is_large = block.small == 0;
            segment.is_expandable = true;
            segment.owner_private_pool_id = {block.pool.first, block.pool.second};
            segments.push_back(std::move(segment));
            extents.push_back({block.address, block.address, reinterpret_cast<Handle>(block.stream)});
        }
        extents.back().end += block.bytes;
        auto &segment = segments.back();
        plain::BlockInfo info;
        info.size = block.bytes;
        info.requested_size = block.requested_bytes;
        info.allocated = block.state == 1;
        info.active = block.state != 0;
        if (info.allocated) {
            info.context_when_allocated = history_.context_of(reinterpret_cast<const void *>(block.address));
            segment.allocated_size += info.size;
        }
        if (info.active) {
            segment.active_size += info.size;
        }
        segment.total_size += info.size;
        segment.requested_size += info.requested_size;
        segment.blocks.push_back(std::move(info));
    }
}

#if GAPLESS_TORCH >= 211
native::SnapshotInfo AllocatorObject::snapshot(PoolId pool, bool with_traces) {
#else
native::SnapshotInfo AllocatorObject::snapshot(PoolId pool) {
    const bool with_traces = true;
#endif
    if (planted_) {
        return planted_snapshot();
    }
    auto unix_nanoseconds = clock_.makeConverter();
    auto unix_time = [&](auto &time) { time.t_ = unix_nanoseconds(time.approx_t_) / 1000; };
    std::vector<plain::SegmentInfo> segments;
    std::vector<std::vector<plain::TraceEntry>> traces(devices_);
    for (int device = 0; device < devices_; device++) {
        auto index = static_cast<DeviceIndex>(device);
        std::vector<Extent> extents;
        add_segments(index, pool, segments, extents);
        if (with_traces) {
            traces[device] = history_.entries(index, pool, std::move(extents));
        }
        for (auto &entry : traces[device]) {
            unix_time(entry.time_);
        }
    }
    // After the traces: a snapshot is an event of the next one.
#if GAPLESS_TORCH >= 211
    auto result = native_->snapshot(pool, false);
#else
    auto result = native_->snapshot(pool);
#endif
    result.segments.insert(result.segments.end(), std::make_move_iterator(segments.begin()),
                           std::make_move_iterator(segments.end()));
    result.device_traces = std::move(traces);
    if (with_traces) {
        for (auto &annotation : history_.annotations()) {
            unix_time(annotation.time_);
            result.external_annotations.push_back(std::move(annotation));
        }
    }
    return result;
}

void AllocatorObject::recordHistory(bool enabled, plain::CreateContextFn recorder, size_t most,
                                    plain::RecordContext when, bool clear
#if GAPLESS_TORCH >= 211
                                    ,
                                    const std::vector<std::string> &skipped
#endif
) {
    // PyTorch's own allocator collects stacks for its trackers while it records. Its own record is not read.
    const size_t of_native = std::min<size_t>(most, 1);
#if GAPLESS_TORCH >= 211
    native_->recordHistory(enabled, recorder, of_native, when, clear, skipped);
#else
    const std::vector<std::string> skipped;
    native_->recordHistory(enabled, recorder, of_native, when, clear);
#endif
    history_.record(enabled, recorder, most, when, clear, skipped);
    follow();
}

void AllocatorObject::recordAnnotation(const std::vector<std::pair<std::string, std::string>> &metadata) {
    DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    history_.annotate(device, metadata);
}

void AllocatorObject::attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) {
    std::lock_guard<std::mutex> lock(mutex_);
    observers_.push_back(std::move(observer));
}

void AllocatorObject::attachAllocatorTraceTracker(plain::AllocatorTraceTracker tracker) {
    native_->attachAllocatorTraceTracker([tracker](const plain::TraceEntry &entry) {
        if (is_of_program(entry)) {
            tracker(entry);
        }
    });
    history_.add_tracker(std::move(tracker));
    follow();
}

// Events of segments come from listeners, of the devices that are in use and as long as somebody wants to be told.
void AllocatorObject::follow() {
    for (int device = 0; device < devices_; device++) {
        auto index = static_cast<DeviceIndex>(device);
        if (!history_.watching()) {
            follow_no_more(index);
        } else if (c10::cuda::hasPrimaryContext(index)) {
            follow(index);
        }
    }
}

void AllocatorObject::follow(DeviceIndex device) {
    if (listeners_[device].load(std::memory_order_acquire) != 0) {
        return;
    }
    std::lock_guard<std::mutex> lock(following_);
    uint64_t listener = 0;
    if (listeners_[device].load(std::memory_order_relaxed) == 0 &&
        gapless_.device_add_map_listener(device, tell<&History::mapped>, tell<&History::unmapping>, &history_, &listener) == GAPLESS_OK) {
        listeners_[device].store(listener, std::memory_order_release);
    }
}

void AllocatorObject::follow_no_more(DeviceIndex device) {
    std::lock_guard<std::mutex> lock(following_);
    uint64_t listener = listeners_[device].exchange(0);
    if (listener != 0) {
        check(gapless_.device_remove_map_listener(device, listener), "a listener");
    }
}

#if GAPLESS_TORCH >= 210
void AllocatorObject::setUserMetadata(const std::string &metadata) {
    native_->setUserMetadata(metadata);
    History::user_metadata() = metadata;
}

std::string AllocatorObject::getUserMetadata() { return History::user_metadata(); }
#endif

#if GAPLESS_TORCH >= 212
Context AllocatorObject::getContextForPointer(const void *pointer) {
    return is_ours(pointer) ? history_.context_of(pointer) : native_->getContextForPointer(pointer);
}

void AllocatorObject::attachOomRejectionObserver(native::OomRejectionObserver observer) {
    native_->attachOomRejectionObserver(std::move(observer));
}
#endif

#if GAPLESS_TORCH >= 214
void AllocatorObject::annotateMemory(const void *pointer, const std::string &metadata) {
    Block block{};
    if (gapless_.torch_describe(pointer, &block) != GAPLESS_OK) {
        native_->annotateMemory(pointer, metadata);
    } else if (history_.recording()) {
        history_.annotate_memory(block, metadata);
    }
}
#endif

}  // namespace gapless
