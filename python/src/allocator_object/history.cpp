#include "history.h"

#include <algorithm>

namespace gapless {

using plain::RecordContext;
using plain::TraceEntry;

namespace {

thread_local std::vector<std::string> compile_contexts;

const std::string &compile_context() {
    static const std::string none;
    return compile_contexts.empty() ? none : compile_contexts.back();
}

cudaStream_t stream_of(const Block &block) { return reinterpret_cast<cudaStream_t>(block.stream); }

PoolId pool_of(const Block &block) { return {block.pool.first, block.pool.second}; }

TraceEntry about(TraceEntry::Action action, const Block &block, size_t bytes, Context context) {
    return trace_entry(action, static_cast<DeviceIndex>(block.device), block.address, bytes, stream_of(block),
                       pool_of(block), std::move(context), compile_context(), History::user_metadata());
}

// How many of the bytes from an address on come before what is mapped; 0 for an address that is mapped.
size_t unmapped(const std::vector<std::pair<size_t, size_t>> &mapped, size_t address, size_t bytes) {
    auto after = std::upper_bound(mapped.begin(), mapped.end(), std::make_pair(address, SIZE_MAX));
    if (after != mapped.begin() && address < std::prev(after)->second) {
        return 0;
    }
    return after == mapped.end() ? bytes : std::min(bytes, after->first - address);
}

}  // namespace

std::string &History::user_metadata() {
    thread_local std::string metadata;
    return metadata;
}

void History::push_compile_context(std::string text) { compile_contexts.push_back(std::move(text)); }

void History::pop_compile_context() {
    if (!compile_contexts.empty()) {
        compile_contexts.pop_back();
    }
}

void History::record(bool enabled, plain::CreateContextFn recorder, size_t most, RecordContext when, bool clear,
                     const std::vector<std::string> &skipped) {
    TORCH_CHECK(when == RecordContext::NEVER || recorder != nullptr, "a memory history with stacks needs a recorder of stacks");
    std::deque<TraceEntry> dropped;  // Ends outside of the lock: stacks may be many.
    std::lock_guard<std::mutex> lock(mutex_);
    skipped_.clear();
#if GAPLESS_TORCH >= 211
    for (const auto &action : skipped) {
        skipped_.insert(plain::parseTraceEntryAction(action));
    }
#else
    (void)skipped;
#endif
    most_ = most;
    recorder_ = enabled ? recorder : nullptr;
    when_ = enabled ? when : RecordContext::NEVER;
    recording_ = enabled;
    if (!enabled || clear) {
        dropped.swap(entries_);
        annotations_.clear();
    }
    while (entries_.size() > most_) {
        entries_.pop_front();
    }
    watch();
}

void History::add_tracker(plain::AllocatorTraceTracker tracker) {
    std::lock_guard<std::mutex> lock(mutex_);
    trackers_.push_back(std::move(tracker));
    watch();
}

void History::watch() { watching_ = recording_ || !trackers_.empty(); }

Context History::gather(RecordContext level) const {
    auto recorder = recorder_.load();
    return recorder != nullptr && when_.load() >= level ? recorder() : nullptr;
}

// Called with the lock held.
void History::note(TraceEntry entry) {
    for (const auto &tracker : trackers_) {
        tracker(entry);
    }
    if (!recording_ || most_ == 0 || skipped_.count(entry.action_) > 0) {
        return;
    }
    if (entries_.size() >= most_) {
        entries_.pop_front();
    }
    entries_.push_back(std::move(entry));
}

void History::allocated(const Block &block) {
    Context context = gather(RecordContext::STATE);
    std::lock_guard<std::mutex> lock(mutex_);
    Context shown = when_.load() >= RecordContext::ALLOC ? context : nullptr;
    if (context) {
        contexts_[reinterpret_cast<const void *>(block.address)] = std::move(context);
    }
    note(about(TraceEntry::ALLOC, block, block.bytes, std::move(shown)));
}

void History::freed(const Block &block) {
    Context context = gather(RecordContext::ALL);
    std::lock_guard<std::mutex> lock(mutex_);
    auto of_alloc = contexts_.find(reinterpret_cast<const void *>(block.address));
    if (of_alloc != contexts_.end()) {
        if (!context && when_.load() >= RecordContext::ALLOC) {
            context = of_alloc->second;
        }
        contexts_.erase(of_alloc);
    }
    note(about(TraceEntry::FREE_REQUESTED, block, block.bytes, context));
    note(about(TraceEntry::FREE_COMPLETED, block, block.bytes, std::move(context)));
}

void History::refused(DeviceIndex device, size_t free_bytes, size_t bytes, cudaStream_t stream) {
    Context context = gather(RecordContext::STATE);
    std::lock_guard<std::mutex> lock(mutex_);
    note(trace_entry(TraceEntry::OOM, device, free_bytes, bytes, stream, {0, 0}, std::move(context), compile_context(),
                     user_metadata()));
}

void History::annotate(DeviceIndex device, const std::vector<std::pair<std::string, std::string>> &metadata) {
    if (!recording()) {
        return;
    }
    plain::AnnotationEntry entry(device, c10::getApproximateTime());
    for (const auto &[name, value] : metadata) {
        entry.recordUserMetadata(name, value);
    }
    std::lock_guard<std::mutex> lock(mutex_);
    if (most_ == 0) {
        return;
    }
    if (annotations_.size() >= most_) {
        annotations_.pop_front();
    }
    annotations_.push_back(std::move(entry));
}

void History::annotate_memory(const Block &block, const std::string &metadata) {
#if GAPLESS_TORCH >= 214
    std::lock_guard<std::mutex> lock(mutex_);
    note(trace_entry(TraceEntry::ANNOTATE, static_cast<DeviceIndex>(block.device), block.address, block.bytes,
                     stream_of(block), pool_of(block), nullptr, compile_context(), metadata));
#else
    (void)block, (void)metadata;
#endif
}

Context History::context_of(const void *pointer) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = contexts_.find(pointer);
    return found == contexts_.end() ? nullptr : found->second;
}

std::vector<TraceEntry> History::entries(DeviceIndex device, PoolId pool,
                                         const std::vector<std::pair<size_t, size_t>> &mapped) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<TraceEntry> found;
    auto of_segment = [&](const TraceEntry &entry, TraceEntry::Action action, size_t bytes) {
        auto segment = entry;
        segment.action_ = action;
        segment.size_ = bytes;
        found.push_back(std::move(segment));
    };
    for (const auto &entry : entries_) {
        if (entry.device_ != device || (pool != PoolId{0, 0} && entry.mempool_ != pool)) {
            continue;
        }
        // A viewer goes back in time from what is mapped now, and expects every block to begin there.
        bool is_free = entry.action_ == TraceEntry::FREE_COMPLETED;
        bool is_block = is_free || entry.action_ == TraceEntry::ALLOC;
        size_t own = is_block ? unmapped(mapped, entry.addr_, entry.size_) : 0;
        if (own > 0 && !is_free) {
            of_segment(entry, TraceEntry::SEGMENT_MAP, own);
        }
        found.push_back(entry);
        if (own > 0 && is_free) {
            of_segment(entry, TraceEntry::SEGMENT_UNMAP, own);
        }
    }
    return found;
}

std::vector<plain::AnnotationEntry> History::annotations() {
    std::lock_guard<std::mutex> lock(mutex_);
    return {annotations_.begin(), annotations_.end()};
}

}  // namespace gapless
