// Pools: of graphs, of MemPool, and what graph trees ask of them.
#include <algorithm>

#include "object.h"

namespace gapless {

namespace {

// What was live in a pool at one moment.
struct PoolState : native::AllocatorState {
    Pool pool{};
    std::vector<Block> live;
};

Pool named(PoolId pool) { return {pool.first, pool.second}; }

void *pointer_of(const Block &block) { return reinterpret_cast<void *>(block.address); }

}  // namespace

std::vector<Block> AllocatorObject::blocks(DeviceIndex device, PoolId pool, bool live_only) const {
    Pool name = named(pool);
    const Pool *wanted = pool == PoolId{0, 0} ? nullptr : &name;
    std::vector<Block> found(1024);
    uint64_t needed = 0;
    int status = GAPLESS_OK;
    // Other threads may allocate between two calls.
    while ((status = gapless_.torch_blocks(device, wanted, live_only, found.data(), found.size(), &needed)) ==
           GAPLESS_ERROR_BUFFER_TOO_SMALL) {
        found.resize(needed + needed / 8);
    }
    check(status, "the blocks of a device");
    found.resize(needed);
    return found;
}

void AllocatorObject::beginAllocateToPool(DeviceIndex device, PoolId pool, std::function<bool(cudaStream_t)> filter) {
    if (pools_.owner(device, pool) == Owner::Native) {
        native_->beginAllocateToPool(device, pool, filter);
    } else {
        check(gapless_.torch_open_pool(device, named(pool)), "a pool");
    }
    pools_.open(device, pool, std::move(filter));
}

void AllocatorObject::endAllocateToPool(DeviceIndex device, PoolId pool) {
    TORCH_CHECK(pools_.close(device, pool), "endAllocatePool: not currently recording to mempool_id");
    if (pools_.owner(device, pool) == Owner::Native) {
        native_->endAllocateToPool(device, pool);
    } else {
        gapless_.torch_end_allocate_to_pool(device, named(pool));
    }
}

void AllocatorObject::releasePool(DeviceIndex device, PoolId pool) {
    if (pools_.owner(device, pool) == Owner::Native) {
        native_->releasePool(device, pool);
        if (native_->getPoolUseCount(device, pool) == 0) {
            pools_.forget(device, pool);
        }
    } else {
        gapless_.torch_release_pool(device, named(pool));
    }
}

int AllocatorObject::getPoolUseCount(DeviceIndex device, PoolId pool) {
    if (pools_.owner(device, pool) == Owner::Native) {
        return native_->getPoolUseCount(device, pool);
    }
    uint32_t users = 0;
    check(gapless_.torch_pool_users(device, named(pool), &users), "the use count of a pool");
    return static_cast<int>(users);
}

#if GAPLESS_TORCH >= 211
void AllocatorObject::createOrIncrefPool(DeviceIndex device, PoolId pool, std::shared_ptr<CUDAAllocator> allocator) {
#else
void AllocatorObject::createOrIncrefPool(DeviceIndex device, PoolId pool, CUDAAllocator *allocator) {
#endif
    if (allocator || pools_.owner(device, pool) == Owner::Native) {
        native_->createOrIncrefPool(device, pool, std::move(allocator));
        pools_.make_native(device, pool);
    } else {
        check(gapless_.torch_use_pool(device, named(pool)), "a pool");
    }
}

#if GAPLESS_TORCH >= 211
void AllocatorObject::setUseOnOOM(DeviceIndex device, PoolId pool, bool use_on_oom) {
    pools_.set_lends(device, pool, use_on_oom);
    if (pools_.owner(device, pool) == Owner::Native) {
        native_->setUseOnOOM(device, pool, use_on_oom);
        return;
    }
#else
void AllocatorObject::setUseOnOOM(DeviceIndex device, PoolId pool) {
    bool use_on_oom = true;
    pools_.set_lends(device, pool, use_on_oom);
    if (pools_.owner(device, pool) == Owner::Native) {
        native_->setUseOnOOM(device, pool);
        return;
    }
#endif
    check(gapless_.torch_lend_pool(device, named(pool), use_on_oom), "use_on_oom");
}

// Whether a pool is not for captured graphs: those of tags are not.
bool AllocatorObject::is_ordinary(DeviceIndex device, PoolId pool) const {
    gapless_pool_kind kind = GAPLESS_POOL_GRAPH;
    check(gapless_.torch_pool_kind(device, named(pool), &kind), "the kind of a pool");
    return kind == GAPLESS_POOL_ORDINARY;
}

// Makes a pool of gapless one of PyTorch's own allocator, with its users, and open as often. Returns false where it has memory.
bool AllocatorObject::hand_over(DeviceIndex device, PoolId pool) {
    if (!blocks(device, pool, false).empty()) {
        return false;
    }
    uint32_t users = 0;
    check(gapless_.torch_pool_users(device, named(pool), &users), "the use count of a pool");
    // Each opening is a user, too.
    for (auto &filter : pools_.filters(device, pool)) {
        gapless_.torch_end_allocate_to_pool(device, named(pool));
        gapless_.torch_release_pool(device, named(pool));
        native_->beginAllocateToPool(device, pool, std::move(filter));
        users -= users > 0;
    }
    for (; users > 0; users--) {
        gapless_.torch_release_pool(device, named(pool));
        native_->createOrIncrefPool(device, pool, nullptr);
    }
    pools_.make_native(device, pool);
    if (pools_.lends(device, pool)) {
#if GAPLESS_TORCH >= 211
        native_->setUseOnOOM(device, pool, true);
#else
        native_->setUseOnOOM(device, pool);
#endif
    }
    return true;
}

#if GAPLESS_TORCH >= 210
// Each block is a segment of its own then, which gapless has none of: PyTorch's own allocator serves the pool from the beginning.
void AllocatorObject::setNoSplit(DeviceIndex device, PoolId pool) {
    if (pools_.owner(device, pool) == Owner::Gapless) {
        TORCH_CHECK(hand_over(device, pool), "no_split comes too late: the pool has memory already");
    }
    native_->setNoSplit(device, pool);
}
#endif

bool AllocatorObject::checkPoolLiveAllocations(DeviceIndex device, PoolId pool,
                                               const std::unordered_set<void *> &expected) {
    if (pools_.owner(device, pool) == Owner::Native) {
        return native_->checkPoolLiveAllocations(device, pool, expected);
    }
    auto live = blocks(device, pool, true);
    return live.size() == expected.size() &&
           std::all_of(live.begin(), live.end(), [&](const Block &block) { return expected.count(pointer_of(block)) > 0; });
}

std::shared_ptr<native::AllocatorState> AllocatorObject::getCheckpointState(DeviceIndex device, PoolId pool) {
    if (pools_.owner(device, pool) == Owner::Native) {
        return native_->getCheckpointState(device, pool);
    }
    auto state = std::make_shared<PoolState>();
    state->pool = named(pool);
    state->live = blocks(device, pool, true);
    return state;
}

native::CheckpointDelta AllocatorObject::setCheckpointPoolState(DeviceIndex device,
                                                                std::shared_ptr<native::AllocatorState> state) {
    native::CheckpointDelta delta;
    auto *ours = dynamic_cast<PoolState *>(state.get());
    if (ours == nullptr) {
        delta = native_->setCheckpointPoolState(device, std::move(state));
        for (auto &data : delta.dataptrs_allocd) {
            void *pointer = data.release_context();
            data = owned(pointer, device);
        }
        return delta;
    }
    auto before = blocks(device, {ours->pool.first, ours->pool.second}, true);
    check(gapless_.torch_restore_pool(device, ours->pool, ours->live.data(), ours->live.size()),
          "a pool cannot be put back into an earlier state");
    for (const auto &block : before) {
        delta.ptrs_freed.push_back(pointer_of(block));
        if (history_.watching()) {
            history_.freed(block);
        }
    }
    for (const auto &block : ours->live) {
        delta.dataptrs_allocd.push_back(owned(pointer_of(block), device));
        if (history_.watching()) {
            history_.allocated(block);
        }
    }
    return delta;
}

}  // namespace gapless
