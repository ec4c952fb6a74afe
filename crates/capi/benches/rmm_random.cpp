/* Times random allocations on RMM's resources of 25.4 and on gapless's, in turn in one process: `rmm_random REQUESTS ROUNDS`.
 *
 * As RMM's own benchmark of that name has it: sizes are uniform up to 4 MiB, on one stream. Of 100 steps 73 allocate, as long as
 * fewer than REQUESTS allocations have been made and less than 16,000 MB is live; the others free one of the live ones. The pool
 * and the arena begin with 32 GiB. Prints a line for each resource: its name, and the nanoseconds of a step, in the median of the
 * rounds. */
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <gapless.hpp>
#include <random>
#include <rmm/mr/device/arena_memory_resource.hpp>
#include <rmm/mr/device/cuda_memory_resource.hpp>
#include <rmm/mr/device/pool_memory_resource.hpp>
#include <rmm/resource_ref.hpp>
#include <string>
#include <vector>

namespace {

constexpr std::size_t MIB = 1 << 20;
constexpr std::size_t LARGEST = 4 * MIB;
constexpr std::size_t MOST_LIVE = std::size_t{16000} * 1000 * 1000;
constexpr std::size_t POOL = 32 * (std::size_t{1} << 30);

using Resource = rmm::device_async_resource_ref;

struct Block {
    void *pointer;
    std::size_t bytes;
};

/* Nanoseconds of a step. The same steps for every resource. */
double time_steps(Resource resource, std::size_t requests) {
    std::mt19937_64 random(1);
    std::uniform_int_distribution<std::size_t> sizes(1, LARGEST);
    std::uniform_int_distribution<int> percent(0, 99);
    std::vector<Block> live;
    live.reserve(requests);
    std::size_t live_bytes = 0, made = 0, steps = 2 * requests;
    cuda::stream_ref stream{cudaStream_t{nullptr}};
    auto begin = std::chrono::steady_clock::now();
    for (std::size_t step = 0; step < steps; step++) {
        std::size_t bytes = sizes(random);
        bool allocates = live.empty() || percent(random) < 73;
        if (allocates && made < requests && live_bytes + bytes < MOST_LIVE) {
            live.push_back({resource.allocate_async(bytes, stream), bytes});
            live_bytes += bytes;
            made++;
        } else if (!live.empty()) {
            std::swap(live[std::uniform_int_distribution<std::size_t>(0, live.size() - 1)(random)], live.back());
            resource.deallocate_async(live.back().pointer, live.back().bytes, stream);
            live_bytes -= live.back().bytes;
            live.pop_back();
        }
    }
    auto took = std::chrono::steady_clock::now() - begin;
    for (const Block &block : live) {
        resource.deallocate_async(block.pointer, block.bytes, stream);
    }
    return std::chrono::duration<double, std::nano>(took).count() / static_cast<double>(steps);
}

struct Row {
    const char *name;
    std::function<double(std::size_t)> time;
    std::vector<double> rounds;
};

/* With as much memory at hand as the pool and the arena begin with. */
double on_gapless(std::size_t requests) {
    gapless::memory_resource resource(0);
    cuda::stream_ref stream{cudaStream_t{nullptr}};
    resource.deallocate_async(resource.allocate_async(POOL, stream), POOL, stream);
    double took = time_steps(resource, requests);
    gapless::device(0).trim(0);
    return took;
}

double on_gapless_from_nothing(std::size_t requests) {
    gapless::memory_resource resource(0);
    double took = time_steps(resource, requests);
    gapless::device(0).trim(0);
    return took;
}

double on_cuda(std::size_t requests) {
    rmm::mr::cuda_memory_resource resource;
    return time_steps(resource, requests);
}

double on_pool(std::size_t requests) {
    rmm::mr::cuda_memory_resource cuda;
    rmm::mr::pool_memory_resource<rmm::mr::cuda_memory_resource> resource(cuda, POOL);
    return time_steps(resource, requests);
}

double on_arena(std::size_t requests) {
    rmm::mr::cuda_memory_resource cuda;
    rmm::mr::arena_memory_resource<rmm::mr::cuda_memory_resource> resource(cuda, POOL);
    return time_steps(resource, requests);
}

} // namespace

int main(int count, char **arguments) {
    std::size_t requests = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 10000;
    int rounds = count > 2 ? std::atoi(arguments[2]) : 5;
    std::vector<Row> rows = {
        {"gapless", on_gapless, {}},
        {"gapless_from_nothing", on_gapless_from_nothing, {}},
        {"pool", on_pool, {}},
        {"arena", on_arena, {}},
        {"cuda", on_cuda, {}},
    };
    for (int round = 0; round < rounds; round++) {
        for (Row &row : rows) {
            row.rounds.push_back(row.time(requests));
        }
    }
    for (Row &row : rows) {
        std::sort(row.rounds.begin(), row.rounds.end());
        std::printf("%s %.0f\n", row.name, row.rounds[row.rounds.size() / 2]);
    }
}
