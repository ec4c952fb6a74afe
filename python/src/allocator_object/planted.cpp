// Answers of a fixed kind: PyTorch's compiled code reads them once, before the object is in use, and shows in Python what it read. So
// it is proved that both sides lay out in the same way what the interface returns. `gapless/torch/_object.py` has the same numbers.
#include "object.h"

namespace gapless {

Stats AllocatorObject::planted_stats() const {
    Stats stats;
    int64_t next = 1000;
    for (StatArray *array : {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split, &stats.allocated_bytes,
                             &stats.reserved_bytes, &stats.active_bytes, &stats.inactive_split_bytes,
                             &stats.requested_bytes}) {
        for (auto &stat : *array) {
            stat.current = next++;
            stat.peak = next++;
            stat.allocated = next++;
            stat.freed = next++;
        }
    }
    stats.num_alloc_retries = next++;
    stats.num_ooms = next++;
    stats.num_sync_all_streams = next++;
    stats.num_device_alloc = next++;
    stats.num_device_free = next++;
    stats.max_split_size = next++;
    return stats;
}

native::SnapshotInfo AllocatorObject::planted_snapshot() const {
    native::SnapshotInfo snapshot{};
    for (size_t number = 0; number < 2; number++) {
        plain::SegmentInfo segment;
        segment.address = 2000 + number;
        segment.total_size = 2010 + number;
        segment.allocated_size = 2020 + number;
        segment.active_size = 2030 + number;
        segment.requested_size = 2040 + number;
        segment.owner_private_pool_id = {2050 + number, 2060 + number};
        for (size_t which = 0; which < 2; which++) {
            plain::BlockInfo block;
            block.size = 2070 + number * 2 + which;
            block.requested_size = 2080 + number * 2 + which;
            block.allocated = block.active = which == 1;
            segment.blocks.push_back(block);
        }
        snapshot.segments.push_back(std::move(segment));
    }
    snapshot.device_traces.resize(1);
    for (size_t number = 0; number < 2; number++) {
        auto entry = trace_entry(plain::TraceEntry::ALLOC, 0, 2100 + number, 2110 + number,
                                 reinterpret_cast<cudaStream_t>(2120 + number), {0, 0}, nullptr,
                                 "compile context " + std::to_string(number), "metadata " + std::to_string(number));
        entry.time_.t_ = 2130 + static_cast<int64_t>(number);
        snapshot.device_traces[0].push_back(std::move(entry));
    }
    snapshot.config_metadata.last_allocator_settings = "planted";
    snapshot.config_metadata.max_split_size = 2140;
    snapshot.config_metadata.roundup_power2_divisions.assign(16, 1);
    return snapshot;
}

}  // namespace gapless
