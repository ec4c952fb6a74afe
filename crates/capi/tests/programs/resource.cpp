/* The memory resource, over stand-ins for libcu++. */
#include "held_back.hpp"

#include <string>
#include <type_traits>
#include <utility>

using Resource = gapless::memory_resource;

static_assert(std::is_nothrow_copy_constructible_v<Resource> && std::is_nothrow_destructible_v<Resource>);
static_assert(noexcept(std::declval<Resource &>().deallocate(cuda::stream_ref(nullptr), nullptr, 0)));
static_assert(noexcept(std::declval<Resource &>().deallocate_sync(nullptr, 0)));

template <typename Property, typename = void>
constexpr bool HAS = false;
template <typename Property>
constexpr bool HAS<Property, decltype(get_property(std::declval<const Resource &>(), Property{}))> = true;
static_assert(HAS<cuda::mr::device_accessible> && !HAS<cuda::mr::host_accessible>);

static std::uint64_t live() { return gapless::device(0).stats().live_allocations; }

static void waits_and_frees(Resource resource) {
    const int before = waits;
    void *const today = resource.allocate_sync(MIB, 1 << 16);
    void *const before_that = resource.allocate(MIB, 1 << 16);
    expect(waits == before + 2, "each is waited for");
    expect((reinterpret_cast<std::uintptr_t>(today) | reinterpret_cast<std::uintptr_t>(before_that)) % (1 << 16) == 0,
           "both are aligned");
    next_wait_fails = true;
    bool caught = false;
    try {
        (void)resource.allocate_sync(MIB);
    } catch (const std::runtime_error &error) {
        caught = std::string(error.what()) == "the wait failed";
    }
    next_wait_fails = false;
    expect(caught && live() == 2, "memory that was not waited for is freed");
    resource.deallocate_sync(today, MIB, 1 << 16);
    Resource(0).deallocate(before_that, MIB, 1 << 16);
    expect(live() == 0, "and so are both");
}

int main() {
    gapless::check(gapless_configure(CONF));
    open_device();
    Resource resource(0);
    expect(resource == Resource(0) && resource != Resource(1), "resources of one device are equal");
    waits_and_frees(resource);

    void *block = nullptr;
    auto allocate = [&](CUstream_st *stream) {
        block = resource.allocate(cuda::stream_ref(stream), BLOCK, 512);
        expect(stream_of(block) == stream, "it is that stream's");
        return block;
    };
    auto allocate_async = [&](CUstream_st *stream) {
        block = resource.allocate_async(BLOCK, 512, stream);
        expect(stream_of(block) == stream, "it is that stream's");
        return block;
    };
    expect_order("deallocate", allocate, [&](CUstream_st *other) { resource.deallocate(other, block, BLOCK, 512); });
    expect_order("deallocate_async", allocate_async, [&](CUstream_st *other) {
        resource.deallocate_async(block, BLOCK, 512, other);
    });

    bool caught = false;
    try {
        (void)resource.allocate(new_stream(), 1000 * MIB);
    } catch (const std::bad_alloc &) {
        caught = true;
    }
    expect(caught && live() == 0, "too little memory is a bad_alloc");
    expect(gapless::device(0).stats().refused_frees == 0, "no free was refused");
    resource.deallocate(cuda::stream_ref(nullptr), &resource, MIB);
    return ended();
}
