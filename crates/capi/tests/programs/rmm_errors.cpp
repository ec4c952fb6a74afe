/* The memory resource with RMM's exceptions, over stand-ins for RMM and libcu++, linked with rmm_errors_without.cpp. */
#include "held_back.hpp"

#include <exception>
#include <gapless/rmm.hpp>
#include <string>
#include <type_traits>
#include <utility>

using Resource = gapless::rmm_memory_resource;

static_assert(std::is_nothrow_copy_constructible_v<Resource> && std::is_nothrow_destructible_v<Resource>);
static_assert(noexcept(std::declval<Resource &>().deallocate(cuda::stream_ref(nullptr), nullptr, 0)));

bool is_out_of_memory_of_gapless_without_rmm();

static std::uint64_t live() { return gapless::device(0).stats().live_allocations; }

static bool contains(const char *text, const char *part) { return std::string(text).find(part) != std::string::npos; }

/* As RMM's failure_callback_resource_adaptor: what there is too little memory for is asked for again once some is freed. */
static void memory_can_be_freed_and_asked_for_again(Resource resource) {
    void *const cached = resource.allocate(new_stream(), BLOCK);
    int freed = 0;
    void *wanted = nullptr;
    while (wanted == nullptr) {
        try {
            wanted = resource.allocate(new_stream(), BLOCK);
        } catch (const rmm::out_of_memory &error) {
            expect(contains(error.what(), "out_of_memory: ") && contains(error.what(), "40 MiB were asked for"),
                   "the text is that of the report");
            expect(std::string(error.what()) == dynamic_cast<const gapless::failure &>(error).what(), "of a failure, too");
            gapless::memory_resource(0).deallocate(nullptr, cached, BLOCK);
            freed++;
        }
    }
    expect(freed == 1 && live() == 1, "there was too little memory once");
    resource.deallocate(nullptr, wanted, BLOCK);
}

static void every_function_throws_them(Resource resource) {
    constexpr std::size_t IMPOSSIBLE = 100 * MIB;
    constexpr gapless_status SHORT = GAPLESS_ERROR_OUT_OF_MEMORY;
    CUstream_st *const stream = new_stream();
    auto allocate = [&] { (void)resource.allocate(stream, IMPOSSIBLE); };
    expect_thrown<rmm::out_of_memory>(SHORT, allocate, "on a stream");
    expect_thrown<rmm::out_of_memory>(SHORT, [&] { (void)resource.allocate_sync(IMPOSSIBLE); }, "for every stream");
    expect_thrown<rmm::out_of_memory>(SHORT, [&] { (void)resource.allocate(IMPOSSIBLE); }, "under the name of before");
    expect_thrown<rmm::out_of_memory>(
        SHORT, [&] { (void)resource.allocate_async(IMPOSSIBLE, 512, stream); }, "on a stream, aligned, as before");
    expect_thrown<rmm::out_of_memory>(
        SHORT, [&] { (void)resource.allocate_async(IMPOSSIBLE, stream); }, "on a stream, as before");
    expect_thrown<std::bad_alloc>(SHORT, allocate, "it is a std::bad_alloc");
    expect_thrown<std::exception>(SHORT, allocate, "and an exception of one kind");
}

static void nothing_is_freed_in_vain(Resource resource) {
    auto absurd = [&] { (void)resource.allocate(new_stream(), SIZE_MAX); };
    expect_thrown<rmm::bad_alloc>(GAPLESS_ERROR_TOO_LARGE, absurd, "more than the addresses is a bad_alloc");
    try {
        absurd();
    } catch (const rmm::out_of_memory &) {
        expect(false, "more than the addresses is no lack of memory");
    } catch (const rmm::bad_alloc &) {
    }
    auto odd = [&] { (void)resource.allocate(new_stream(), MIB, 3); };
    expect_thrown<gapless::error>(GAPLESS_ERROR_INVALID_ARGUMENT, odd, "all else is as without RMM");
}

int main() {
    gapless::check(gapless_configure(CONF));
    open_device();
    Resource resource(0);
    expect(resource == Resource(0) && resource != Resource(1), "resources of one device are equal");
    expect(resource == gapless::memory_resource(0), "also with that of other exceptions");
    get_property(resource, cuda::mr::device_accessible{});
    memory_can_be_freed_and_asked_for_again(resource);
    every_function_throws_them(resource);
    nothing_is_freed_in_vain(resource);
    expect(is_out_of_memory_of_gapless_without_rmm(), "what is compiled without RMM has gapless's exceptions");
    expect(live() == 0 && gapless::device(0).stats().refused_frees == 0, "all is freed");
    return ended();
}
