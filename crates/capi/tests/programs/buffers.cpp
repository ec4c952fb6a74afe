/* What buffers own, and what fails how. */
#include "held_back.hpp"

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

using gapless::buffer;
using gapless::device;

static_assert(!std::is_copy_constructible_v<buffer> && !std::is_copy_assignable_v<buffer>);
static_assert(std::is_nothrow_move_constructible_v<buffer> && std::is_nothrow_move_assignable_v<buffer>);
static_assert(std::is_nothrow_destructible_v<buffer>);
static_assert(std::is_base_of_v<std::bad_alloc, gapless::out_of_memory>);
static_assert(std::is_base_of_v<std::runtime_error, gapless::error>);
static_assert(std::is_nothrow_copy_constructible_v<gapless::out_of_memory>);
static_assert(std::is_nothrow_copy_constructible_v<gapless::error>);

static const device DEVICE(0);

/* Gone after main. */
static buffer last;

static std::uint64_t live() { return DEVICE.stats().live_allocations; }

static bool contains(const char *text, const char *part) { return std::string(text).find(part) != std::string::npos; }

static void each_allocation_has_one_owner() {
    buffer one(DEVICE, MIB, nullptr);
    void *const address = one.data();
    buffer two(std::move(one));
    expect(one.data() == nullptr && one.size() == 0 && !one, "a buffer that was moved from is empty");
    expect(two.data() == address && two.size() == MIB && two.on() == DEVICE, "and the other one has it");
    buffer three(DEVICE, 2 * MIB, nullptr);
    expect(live() == 2, "two are live");
    three = std::move(two);
    expect(live() == 1 && three.data() == address, "what was there before is freed");
    buffer &same = three;
    three = std::move(same);
    expect(live() == 1 && three.data() == address, "a buffer may be moved to itself");
    one = buffer(DEVICE, MIB, nullptr);
    expect(live() == 2, "an empty one may be filled again");
    one.free();
    one.free();
    one.free_on(nullptr);
    expect(live() == 1 && !one, "it is freed once");
    void *const released = three.release();
    expect(live() == 1 && released == address && !three, "what is released lives on");
    DEVICE.deallocate(released);
    buffer nothing(DEVICE, 0, nullptr);
    expect(nothing && nothing.size() == 0 && live() == 1, "0 bytes are an allocation");
}

static void a_buffer_outlives_the_object_of_its_device() {
    auto from = std::make_unique<device>(0);
    buffer outlives(*from, MIB, nullptr, 1 << 16);
    from.reset();
    expect(reinterpret_cast<std::uintptr_t>(outlives.data()) % (1 << 16) == 0, "it is aligned");
    outlives.record_stream(new_stream());
    outlives = buffer();
    expect(DEVICE.stats().live_allocations == 0, "its free finds the device");
}

static void too_little_memory_is_a_bad_alloc() {
    bool caught = false;
    try {
        buffer impossible(DEVICE, 1000 * MIB, nullptr);
    } catch (const std::bad_alloc &error) {
        caught = contains(error.what(), "1000 MiB were asked for");
    }
    expect(caught, "with the text of the report");
    caught = false;
    try {
        buffer impossible(DEVICE, 1000 * MIB, nullptr);
    } catch (const gapless::failure &failure) {
        caught = failure.status() == GAPLESS_ERROR_OUT_OF_MEMORY && failure.kind() == GAPLESS_KIND_OUT_OF_MEMORY;
        caught = caught && contains(failure.what(), "1000 MiB were asked for");
    }
    expect(caught, "and a failure");
    caught = false;
    try {
        buffer absurd(DEVICE, SIZE_MAX, nullptr);
    } catch (const gapless::out_of_memory &failure) {
        caught = failure.status() == GAPLESS_ERROR_TOO_LARGE;
    }
    expect(caught, "more than the addresses is a lack of memory, too");
    caught = false;
    try {
        buffer impossible(DEVICE, 1000 * MIB, nullptr);
    } catch (const std::exception &) {
        caught = true;
    }
    expect(caught, "and an exception of one kind");
}

static void all_else_is_a_runtime_error() {
    bool caught = false;
    try {
        buffer odd(DEVICE, MIB, nullptr, 3);
    } catch (const std::runtime_error &error) {
        const auto *failure = dynamic_cast<const gapless::failure *>(&error);
        caught = failure != nullptr && failure->status() == GAPLESS_ERROR_INVALID_ARGUMENT;
        caught = caught && contains(error.what(), "power of two");
    }
    expect(caught, "an alignment that is none");
    caught = false;
    try {
        device(99).stats();
    } catch (const gapless::error &error) {
        caught = error.status() == GAPLESS_ERROR_INVALID_ARGUMENT;
    }
    expect(caught, "a device that is not there");
}

/* The library frees what a buffer owns, behind its back. */
static void what_cannot_be_freed() {
    buffer kept(DEVICE, MIB, nullptr);
    gapless_device_free(0, kept.data(), 0);
    bool caught = false;
    try {
        kept.free();
    } catch (const gapless::error &error) {
        caught = error.status() == GAPLESS_ERROR_NOT_ALLOCATED;
    }
    expect(caught && kept, "a free that fails throws, and the buffer owns it still");
    kept.release();
    for (int i = 0; i < 9; i++) {
        buffer lost(DEVICE, MIB, nullptr);
        gapless_device_free(0, lost.data(), 0);
    }
}

static void streams_are_kept_in_order() {
    buffer block;
    auto allocate = [&](CUstream_st *stream) {
        block = buffer(DEVICE, BLOCK, stream);
        expect(block.stream() == stream && stream_of(block.data()) == stream, "it is that stream's");
        return block.data();
    };
    expect_order("a free on another stream", allocate, [&](CUstream_st *other) { block.free_on(other); });
    expect_order("a recorded stream", allocate, [&](CUstream_st *other) {
        block.record_stream(other);
        block = buffer();
    });
    expect_order("a free of the device", allocate, [&](CUstream_st *other) {
        DEVICE.deallocate_on(block.release(), other, BLOCK);
    });
}

int main() {
    gapless::check(gapless_configure(CONF));
    open_device();
    each_allocation_has_one_owner();
    a_buffer_outlives_the_object_of_its_device();
    too_little_memory_is_a_bad_alloc();
    all_else_is_a_runtime_error();
    streams_are_kept_in_order();
    expect(DEVICE.stats().refused_frees == 0, "no free was refused");
    what_cannot_be_freed();
    expect(DEVICE.trim() > 0 && DEVICE.stats().reserved_bytes == 0, "all is given back");
    last = buffer(DEVICE, MIB, nullptr);
    return ended();
}
