#include "history.h"

#include <algorithm>
#include <map>

namespace gapless {

using plain::RecordContext;
using plain::TraceEntry;

namespace {

// What sizes of blocks are multiples of, gapless's and PyTorch's.
constexpr size_t BLOCK_UNIT = 512;

thread_local std::vector<std::string> compile_contexts;

const std::string &compile_context() {
    static const std::string none = "N/A";  // As PyTorch says it.
    return compile_contexts.empty() ? none : compile_contexts.back();
}

cudaStream_t stream_of(const Block &block) { return reinterpret_cast<cudaStream_t>(block.stream); }

PoolId pool_of(const Block &block) { return {block.pool.first, block.pool.second}; }

// PyTorch tells the requested bytes of a block.
TraceEntry about(TraceEntry::Action action, const Block &block, Context context) {
    return trace_entry(action, static_cast<DeviceIndex>(block.device), block.address, block.requested_bytes, stream_of(block),
                       pool_of(block), std::move(context), compile_context(), History::user_metadata());
}

size_t rounded(size_t bytes) { return (bytes + BLOCK_UNIT - 1) / BLOCK_UNIT * BLOCK_UNIT; }

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
    std::deque<Noted> dropped;  // Ends outside of the lock: stacks may be many.
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

thread_local const History::Cause *History::Cause::current_ = nullptr;

History::Cause::Cause(const History &history, RecordContext level, cudaStream_t stream, PoolId pool)
    : stream_(stream), pool_(pool), context_(history.gather(level)), before_(current_) {
    current_ = this;
}

Context History::gather(RecordContext level) const {
    auto recorder = recorder_.load();
    return recorder != nullptr && when_.load() >= level ? recorder() : nullptr;
}

// Called with the lock held.
void History::note(TraceEntry entry) {
    for (const auto &tracker : trackers_) {
        tracker(entry);
    }
    keep(std::move(entry), false);
}

// Called with the lock held.
void History::keep(TraceEntry entry, bool is_native) {
    if (!recording_ || most_ == 0 || skipped_.count(entry.action_) > 0) {
        return;
    }
    if (entries_.size() >= most_) {
        entries_.pop_front();
    }
    entries_.push_back({std::move(entry), is_native});
}

void History::native_event(const TraceEntry &entry) {
    if (recording()) {
        std::lock_guard<std::mutex> lock(mutex_);
        keep(entry, true);
    }
}

void History::allocated(const Block &block) {
    Context context = Cause::current_ != nullptr ? Cause::current_->context_ : gather(RecordContext::STATE);
    std::lock_guard<std::mutex> lock(mutex_);
    Context shown = when_.load() >= RecordContext::ALLOC ? context : nullptr;
    if (context) {
        contexts_[reinterpret_cast<const void *>(block.address)] = std::move(context);
    }
    note(about(TraceEntry::ALLOC, block, std::move(shown)));
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
    note(about(TraceEntry::FREE_REQUESTED, block, context));
    note(about(TraceEntry::FREE_COMPLETED, block, std::move(context)));
}

void History::refused(DeviceIndex device, size_t free_bytes, size_t bytes, cudaStream_t stream, PoolId pool) {
    Context context = Cause::current_ != nullptr ? Cause::current_->context_ : gather(RecordContext::STATE);
    std::lock_guard<std::mutex> lock(mutex_);
    // PyTorch tells the bytes that a block would have had.
    note(trace_entry(TraceEntry::OOM, device, free_bytes, rounded(bytes), stream, pool, std::move(context), compile_context(),
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
    note(trace_entry(TraceEntry::ANNOTATE, static_cast<DeviceIndex>(block.device), block.address, block.requested_bytes,
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

void History::mapped(DeviceIndex device, size_t address, size_t bytes) {
    const Cause *cause = Cause::current_;
    std::lock_guard<std::mutex> lock(mutex_);
    mapped_for_[address] = cause == nullptr ? std::make_pair(cudaStream_t{}, PoolId{0, 0})
                                            : std::make_pair(cause->stream_, cause->pool_);
    note_segment(TraceEntry::SEGMENT_MAP, device, address, bytes);
}

void History::unmapping(DeviceIndex device, size_t address, size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    note_segment(TraceEntry::SEGMENT_UNMAP, device, address, bytes);
    mapped_for_.erase(address);
}

// Called with the lock held.
void History::note_segment(TraceEntry::Action action, DeviceIndex device, size_t address, size_t bytes) {
    Context context = Cause::current_ != nullptr && when_.load() >= RecordContext::ALLOC ? Cause::current_->context_ : nullptr;
    auto found = mapped_for_.find(address);
    auto [stream, pool] = found == mapped_for_.end() ? std::make_pair(cudaStream_t{}, PoolId{0, 0}) : found->second;
    note(trace_entry(action, device, address, bytes, stream, pool, std::move(context), compile_context(), user_metadata()));
}

namespace {

// The segments that a viewer has, from now backwards: it joins what touches and has the same stream.
class Segments {
   public:
    explicit Segments(std::vector<Extent> extents) {
        for (const auto &extent : extents) {
            extents_[extent.address] = extent;
        }
    }

    // What of a range is mapped, each part within one segment.
    std::vector<Extent> inside(size_t address, size_t end) const {
        std::vector<Extent> found;
        for (auto at = first_after(address); at != extents_.end() && at->first < end; ++at) {
            const auto &[own_address, own_end, stream] = at->second;
            found.push_back({std::max(address, own_address), std::min(end, own_end), stream});
        }
        return found;
    }

    // What of a range is not mapped.
    std::vector<Extent> outside(size_t address, size_t end, Handle stream) const {
        std::vector<Extent> found;
        for (const auto &part : inside(address, end)) {
            if (address < part.address) {
                found.push_back({address, part.address, stream});
            }
            address = part.end;
        }
        if (address < end) {
            found.push_back({address, end, stream});
        }
        return found;
    }

    void add(Extent part) {
        auto after = extents_.lower_bound(part.address);
        if (after != extents_.end() && after->first == part.end && after->second.stream == part.stream) {
            part.end = after->second.end;
            after = extents_.erase(after);
        }
        if (after != extents_.begin()) {
            auto before = std::prev(after);
            if (before->second.end == part.address && before->second.stream == part.stream) {
                before->second.end = part.end;
                return;
            }
        }
        extents_[part.address] = part;
    }

    // A part lies within one segment.
    void remove(const Extent &part) {
        auto at = std::prev(extents_.upper_bound(part.address));
        Extent whole = at->second;
        extents_.erase(at);
        if (whole.address < part.address) {
            extents_[whole.address] = {whole.address, part.address, whole.stream};
        }
        if (part.end < whole.end) {
            extents_[part.end] = {part.end, whole.end, whole.stream};
        }
    }

   private:
    std::map<size_t, Extent>::const_iterator first_after(size_t address) const {
        auto at = extents_.upper_bound(address);
        bool in_one_before = at != extents_.begin() && std::prev(at)->second.end > address;
        return in_one_before ? std::prev(at) : at;
    }

    std::map<size_t, Extent> extents_;  // By their addresses; none overlap.
};

}  // namespace

std::vector<TraceEntry> History::entries(DeviceIndex device, PoolId pool, std::vector<Extent> extents) {
    Segments segments(std::move(extents));
    std::vector<TraceEntry> found;
    auto of_segment = [&](const TraceEntry &entry, TraceEntry::Action action, const Extent &part) {
        if (skipped_.count(action) > 0) {
            return;  // A free stands for an unmap that was left out, too.
        }
        auto segment = entry;
        segment.action_ = action;
        segment.addr_ = part.address;
        segment.size_ = part.end - part.address;
        segment.stream_ = part.stream;
        found.push_back(std::move(segment));
    };
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto noted = entries_.rbegin(); noted != entries_.rend(); ++noted) {
        const TraceEntry *entry = &noted->entry;
        if (entry->device_ != device || (pool != PoolId{0, 0} && entry->mempool_ != pool)) {
            continue;
        }
        if (noted->is_native) {
            found.push_back(*entry);
            continue;
        }
        // A block ends where its rounded size says.
        size_t end = entry->addr_ + rounded(entry->size_);
        if (entry->action_ == TraceEntry::SEGMENT_MAP) {
            for (const auto &part : segments.inside(entry->addr_, end)) {
                of_segment(*entry, TraceEntry::SEGMENT_MAP, part);
                segments.remove(part);
            }
            continue;
        }
        // Memory that has moved was still mapped where it had been: it is shown as unmapped when the last block there was freed.
        if (entry->action_ == TraceEntry::SEGMENT_UNMAP || entry->action_ == TraceEntry::FREE_COMPLETED) {
            for (const auto &part : segments.outside(entry->addr_, end, entry->stream_)) {
                of_segment(*entry, TraceEntry::SEGMENT_UNMAP, part);
                segments.add(part);
            }
        }
        if (entry->action_ != TraceEntry::SEGMENT_UNMAP) {
            found.push_back(*entry);
        }
    }
    std::reverse(found.begin(), found.end());
    return found;
}

std::vector<plain::AnnotationEntry> History::annotations() {
    std::lock_guard<std::mutex> lock(mutex_);
    return {annotations_.begin(), annotations_.end()};
}

}  // namespace gapless
