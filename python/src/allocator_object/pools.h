// Which pool a request belongs to: PyTorch opens pools with a function that tells. Pools with an allocator of their own are PyTorch's
// own allocator's.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <shared_mutex>
#include <set>
#include <tuple>
#include <vector>

#include "torch_version.h"

namespace gapless {

// Whose memory a pool has.
enum class Owner { Gapless, Native };

struct Route {
    Owner owner = Owner::Gapless;
    PoolId pool{0, 0};
};

class Pools {
   public:
    using Filter = std::function<bool(cudaStream_t)>;

    // Whether any pool is open.
    bool some_open() const { return count_.load(std::memory_order_acquire) != 0; }

    // The pool that was opened last of those that want the request.
    Route of(DeviceIndex device, cudaStream_t stream) const { return some_open() ? find(device, stream) : Route{}; }

    Owner owner(DeviceIndex device, PoolId pool) const {
        std::shared_lock<std::shared_mutex> lock(mutex_);
        return native_.count({device, pool}) > 0 ? Owner::Native : Owner::Gapless;
    }

    void make_native(DeviceIndex device, PoolId pool) {
        std::unique_lock<std::shared_mutex> lock(mutex_);
        native_.insert({device, pool});
    }

    // The functions that tell which requests an open pool wants, in the order in which it was opened.
    std::vector<Filter> filters(DeviceIndex device, PoolId pool) const {
        std::shared_lock<std::shared_mutex> lock(mutex_);
        std::vector<Filter> found;
        for (const auto &open : open_) {
            if (open.device == device && open.pool == pool) {
                found.push_back(open.filter);
            }
        }
        return found;
    }

    // After its last user.
    void forget(DeviceIndex device, PoolId pool) {
        std::unique_lock<std::shared_mutex> lock(mutex_);
        native_.erase({device, pool});
        lending_.erase({device, pool});
    }

    // Whether requests from outside may be served from a pool when nothing else is left.
    void set_lends(DeviceIndex device, PoolId pool, bool lends) {
        std::unique_lock<std::shared_mutex> lock(mutex_);
        if (lends) {
            lending_.insert({device, pool});
        } else {
            lending_.erase({device, pool});
        }
    }

    bool lends(DeviceIndex device, PoolId pool) const {
        std::shared_lock<std::shared_mutex> lock(mutex_);
        return lending_.count({device, pool}) > 0;
    }

    bool some_native_lends(DeviceIndex device) const {
        std::shared_lock<std::shared_mutex> lock(mutex_);
        return std::any_of(lending_.begin(), lending_.end(), [&](const auto &pool) {
            return pool.first == device && native_.count(pool) > 0;
        });
    }

    void open(DeviceIndex device, PoolId pool, Filter filter) {
        std::unique_lock<std::shared_mutex> lock(mutex_);
        open_.push_back({device, pool, std::move(filter)});
        count_.store(open_.size(), std::memory_order_release);
    }

    // Closes what was opened last under that name. Returns false when there is nothing.
    bool close(DeviceIndex device, PoolId pool) {
        std::unique_lock<std::shared_mutex> lock(mutex_);
        for (auto open = open_.rbegin(); open != open_.rend(); ++open) {
            if (open->device == device && open->pool == pool) {
                open_.erase(std::next(open).base());
                count_.store(open_.size(), std::memory_order_release);
                return true;
            }
        }
        return false;
    }

   private:
    struct Open {
        DeviceIndex device;
        PoolId pool;
        Filter filter;
    };

    Route find(DeviceIndex device, cudaStream_t stream) const {
        std::shared_lock<std::shared_mutex> lock(mutex_);
        for (auto open = open_.rbegin(); open != open_.rend(); ++open) {
            if (open->device == device && (!open->filter || open->filter(stream))) {
                bool is_native = native_.count({device, open->pool}) > 0;
                return {is_native ? Owner::Native : Owner::Gapless, open->pool};
            }
        }
        return {};
    }

    mutable std::shared_mutex mutex_;
    std::atomic<size_t> count_{0};
    std::vector<Open> open_;
    std::set<std::pair<DeviceIndex, PoolId>> native_;
    std::set<std::pair<DeviceIndex, PoolId>> lending_;
};

}  // namespace gapless
