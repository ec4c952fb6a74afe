/* Asks RMM 25.4 for buffers on two streams, each once more where that fails, and gives them all back. Ends with status 1 where
 * something fails twice or bytes are lost. The argument says whose memory it is: `cuda`, `pool`, `arena`, and where it is compiled
 * with -DON_GAPLESS `gapless`, and `gapless_pool`, `gapless_tracked` and `gapless_spilling`, which are adaptors of RMM over it. */
#include <cstdio>
#include <list>
#include <memory>
#include <rmm/cuda_stream.hpp>
#include <rmm/device_buffer.hpp>
#include <rmm/device_uvector.hpp>
#include <rmm/mr/device/arena_memory_resource.hpp>
#include <rmm/mr/device/cuda_memory_resource.hpp>
#include <rmm/mr/device/failure_callback_resource_adaptor.hpp>
#include <rmm/mr/device/pool_memory_resource.hpp>
#include <rmm/mr/device/tracking_resource_adaptor.hpp>
#include <rmm/resource_ref.hpp>
#include <stdexcept>
#include <string>
#include <vector>
#ifdef ON_GAPLESS
#include <gapless.hpp>
#include <gapless/rmm.hpp>
#endif

namespace {

constexpr std::size_t MIB = 1 << 20;
using Resource = rmm::device_async_resource_ref;

#ifdef ON_GAPLESS
static_assert(cuda::mr::async_resource_with<gapless::memory_resource, cuda::mr::device_accessible>);
static_assert(!cuda::has_property<gapless::memory_resource, cuda::mr::host_accessible>);
static_assert(cuda::mr::async_resource_with<gapless::rmm_memory_resource, cuda::mr::device_accessible>);
static_assert(!cuda::has_property<gapless::rmm_memory_resource, cuda::mr::host_accessible>);
#endif

template <typename Step>
auto again(const char *name, Step step) {
    try {
        return step();
    } catch (const std::exception &error) {
        std::string text = error.what();
        std::printf("%s: %s\n", name, text.substr(0, text.find('\n')).c_str());
        std::fflush(stdout);
        return step();
    }
}

void must(cudaError_t error) {
    if (error != cudaSuccess) {
        throw std::runtime_error(cudaGetErrorName(error));
    }
}

/* A buffer whose bytes are all the same. */
struct Filled {
    char byte;
    rmm::device_buffer buffer;

    /* What is copied from stays: after a wait that failed, the copy may be queued still. */
    Filled(char byte, std::size_t mib, rmm::cuda_stream_view stream, Resource resource)
        : byte(byte), buffer(again("buffer", [&] {
              static std::list<std::vector<char>> copied;
              const std::vector<char> &host = copied.emplace_back(mib * MIB, byte);
              return rmm::device_buffer(host.data(), host.size(), stream, resource);
          })) {}

    void check() const {
        std::vector<char> host(buffer.size());
        again("copy", [&] {
            must(cudaMemcpyAsync(host.data(), buffer.data(), host.size(), cudaMemcpyDefault, buffer.stream().value()));
            buffer.stream().synchronize();
        });
        for (char other : host) {
            if (other != byte) {
                throw std::runtime_error("bytes are lost");
            }
        }
    }
};

using Stream = std::unique_ptr<rmm::cuda_stream>;

void use(Resource resource, const Stream &first, const Stream &second) {
    std::vector<Filled> kept;
    for (char byte = 0; byte < 8; byte++) {
        kept.emplace_back(byte, 4, *first, resource);
    }
    for (std::size_t at = 0; at < 4; at++) {
        kept.erase(kept.begin() + at);
    }
    /* What the first stream has freed, for the second: a hole as it is, and more than a hole. */
    kept.emplace_back(8, 4, *second, resource);
    kept.emplace_back(9, 12, *second, resource);

    {
        auto grows = again("vector", [&] { return rmm::device_uvector<int>(MIB, *second, resource); });
        again("resize", [&] { grows.resize(3 * MIB, *second); });
        again("shrink", [&] {
            grows.resize(MIB / 2, *second);
            grows.shrink_to_fit(*second);
        });
    }

    /* Work is still queued when its buffer goes, and the other stream cannot do without the memory. */
    auto used = std::make_unique<Filled>(10, 40, *first, resource);
    again("work", [&] {
        for (int i = 0; i < 24; i++) {
            must(cudaMemsetAsync(used->buffer.data(), 10, used->buffer.size(), first->value()));
        }
    });
    used.reset();
    kept.emplace_back(11, 40, *second, resource);
    again("wait", [&] { first->synchronize(); });
    for (const Filled &filled : kept) {
        filled.check();
    }
}

/* `most` is what one buffer can have when no other is there: nothing may be missing after an error. */
void run(Resource resource, std::size_t most) {
    auto stream = [] { return again("stream", [] { return std::make_unique<rmm::cuda_stream>(); }); };
    Stream first = stream(), second = stream();
    use(resource, first, second);
    again("most", [&] { return rmm::device_buffer(most, *first, resource); });
    again("wait", [&] { first->synchronize(); });
}

template <typename Pool, typename... Arguments>
void run_in(std::size_t most, Arguments... arguments) {
    auto pool = again("pool", [&] { return std::make_unique<Pool>(arguments...); });
    run(*pool, most);
}

#ifdef ON_GAPLESS
/* Buffers that take nearly all memory at first, each of which goes where there is too little for something else. */
struct Spilled {
    std::list<rmm::device_buffer> buffers;
    int callbacks = 0;

    static bool spill(std::size_t, void *self) {
        auto &spilled = *static_cast<Spilled *>(self);
        spilled.callbacks++;
        if (spilled.buffers.empty()) {
            return false;
        }
        spilled.buffers.pop_front();
        return true;
    }
};

void run_spilling() {
    using Resource = gapless::rmm_memory_resource;
    Resource resource(0);
    Spilled spilled;
    for (int i = 0; i < 11; i++) {
        again("spilled", [&] { spilled.buffers.emplace_back(8 * MIB, rmm::cuda_stream_default, resource); });
    }
    rmm::mr::failure_callback_resource_adaptor<Resource> spilling(&resource, Spilled::spill, &spilled);
    run(spilling, 96 * MIB);
    if (!spilled.buffers.empty() || spilled.callbacks != 11) {
        throw std::runtime_error("not all was spilled, once each");
    }
    spilled.buffers.emplace_back(8 * MIB, rmm::cuda_stream_default, resource);
    try {
        rmm::device_buffer impossible(std::size_t{1} << 60, rmm::cuda_stream_default, spilling);
    } catch (const rmm::bad_alloc &) {
    }
    if (spilled.buffers.empty()) {
        throw std::runtime_error("memory was spilled for more than there are addresses");
    }
}

void run_on_gapless(const std::string &kind) {
    gapless::check(gapless_configure("budget:96MiB"));
    gapless::memory_resource resource(0);
    if (kind == "gapless_pool") {
        using Pool = rmm::mr::pool_memory_resource<gapless::memory_resource>;
        run_in<Pool>(96 * MIB, &resource, 96 * MIB, 96 * MIB);
    } else if (kind == "gapless_tracked") {
        using Tracked = rmm::mr::tracking_resource_adaptor<gapless::memory_resource>;
        Tracked tracked(&resource);
        run(tracked, 96 * MIB);
        if (tracked.get_allocated_bytes() != 0) {
            throw std::runtime_error("buffers are left");
        }
    } else if (kind == "gapless_spilling") {
        run_spilling();
    } else {
        run(resource, 96 * MIB);
    }
    const gapless::device device(0);
    again("trim", [&] { device.trim(); });
    const gapless_stats stats = device.stats();
    if (stats.live_allocations != 0 || stats.refused_frees != 0) {
        throw std::runtime_error("not all was freed");
    }
}
#endif

}  // namespace

int main(int count, char **arguments) {
    std::string kind = count > 1 ? arguments[1] : "";
    rmm::mr::cuda_memory_resource cuda;
    using Pool = rmm::mr::pool_memory_resource<rmm::mr::cuda_memory_resource>;
    using Arena = rmm::mr::arena_memory_resource<rmm::mr::cuda_memory_resource>;
    try {
        if (kind == "cuda") {
            run(cuda, 224 * MIB);
        } else if (kind == "pool") {
            run_in<Pool>(96 * MIB, &cuda, 96 * MIB, 96 * MIB);
        } else if (kind == "arena") {
            run_in<Arena>(96 * MIB, &cuda, 96 * MIB);
#ifdef ON_GAPLESS
        } else if (kind.rfind("gapless", 0) == 0) {
            run_on_gapless(kind);
#endif
        } else {
            std::fprintf(stderr, "whose memory?\n");
            return 2;
        }
    } catch (const std::exception &error) {
        std::printf("fails twice: %s\n", error.what());
        return 1;
    }
    return 0;
}
