/* What ranges own, and that they grow where they are. */
#include "streams.hpp"

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

using gapless::device;
using gapless::range;

static_assert(!std::is_copy_constructible_v<range> && !std::is_copy_assignable_v<range>);
static_assert(std::is_nothrow_move_constructible_v<range> && std::is_nothrow_move_assignable_v<range>);
static_assert(std::is_nothrow_destructible_v<range>);

static const device DEVICE(0);

/* Of what dlpack.h says of a tensor, what is looked at here. */
struct Tensor {
    void *data;
    std::int32_t device_type;
    std::int32_t device_id;
    std::int32_t dimensions;
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
    std::int64_t *shape;
    std::int64_t *strides;
    std::uint64_t byte_offset;
    void *manager;
    void (*deleter)(Tensor *);
};

static std::uint64_t held() { return DEVICE.stats().range_bytes; }

static void *at(const range &of, std::size_t offset) { return static_cast<char *>(of.data()) + offset; }

/* Whether all bytes from an offset on are the same. */
static bool all_are(unsigned char byte, const range &of, std::size_t offset, std::size_t bytes) {
    std::vector<unsigned char> read(bytes);
    expect(cuMemcpyDtoH_v2(read.data(), reinterpret_cast<std::uintptr_t>(at(of, offset)), bytes) == 0, "a copy");
    return read == std::vector<unsigned char>(bytes, byte);
}

/* A stream that lives as long as the process: what others are at work on is not waited for with it. */
static CUstream_st *kept_stream() {
    CUstream_st *const stream = new_stream();
    expect(gapless_device_keep_stream(0, stream) == GAPLESS_OK, "it is kept");
    return stream;
}

static void it_grows_and_shrinks_where_it_is() {
    CUstream_st *const stream = kept_stream();
    range cache(DEVICE, 1024 * MIB + 1);
    void *const address = cache.data();
    expect(cache && cache.on() == DEVICE && cache.size() == 0 && held() == 0, "addresses are no memory");
    expect(cache.capacity() == 1026 * MIB, "and there may be more of them than memory");
    cache.grow(5 * MIB, stream);
    expect(cache.size() == 6 * MIB && held() == 6 * MIB, "it has whole pages");
    fill(address, 7, 6 * MIB, stream);
    cache.grow(20 * MIB, stream);
    fill(at(cache, 6 * MIB), 8, 20 * MIB, stream);
    expect(cuStreamSynchronize(stream) == 0, "a wait");
    expect(cache.data() == address && cache.size() == 26 * MIB, "it has grown at its address");
    expect(all_are(7, cache, 0, 6 * MIB) && all_are(8, cache, 6 * MIB, 20 * MIB), "with the bytes that it had");
    CUstream_st *const other = kept_stream();
    cache.record_stream(other);
    for (unsigned char byte = 9; byte < 21; byte++) {
        fill(at(cache, 6 * MIB), byte, 20 * MIB, other);
    }
    expect(cache.shrink(11 * MIB) == 10 * MIB && cache.size() == 16 * MIB, "it shrinks by whole pages");
    expect(all_are(20, cache, 6 * MIB, 10 * MIB), "after a wait for the streams that were recorded");
    expect(cache.size() == held(), "what it holds is counted");
}

static void a_range_takes_the_end_of_another() {
    range one(DEVICE, 64 * MIB), two(DEVICE, 64 * MIB);
    one.grow(8 * MIB, nullptr);
    fill(one.data(), 3, 8 * MIB, nullptr);
    two.grow(2 * MIB, nullptr);
    fill(two.data(), 4, 2 * MIB, nullptr);
    expect(two.take(one, 4 * MIB, nullptr) == 4 * MIB, "it takes as much as it is told");
    expect(cuStreamSynchronize(nullptr) == 0, "a wait");
    expect(one.size() == 4 * MIB && two.size() == 6 * MIB && held() == 10 * MIB, "nothing is mapped anew");
    expect(all_are(4, two, 0, 2 * MIB) && all_are(3, two, 2 * MIB, 4 * MIB), "the contents come along");
    auto itself = [&] { two.take(two, 2 * MIB, nullptr); };
    expect_thrown<gapless::error>(GAPLESS_ERROR_INVALID_ARGUMENT, itself, "none takes from itself");
}

static void each_range_has_one_owner() {
    range one(DEVICE, 64 * MIB);
    one.grow(2 * MIB, nullptr);
    void *const address = one.data();
    range two(std::move(one));
    expect(!one && one.data() == nullptr && two.data() == address, "a range that was moved from is empty");
    range three(DEVICE, 64 * MIB);
    three.grow(4 * MIB, nullptr);
    three = std::move(two);
    expect(held() == 2 * MIB && three.data() == address, "what was there before is closed");
    range &same = three;
    three = std::move(same);
    expect(held() == 2 * MIB && three.data() == address, "a range may be moved to itself");
    three.close();
    three.close();
    expect(held() == 0 && !three, "it is closed once");
    expect_thrown<gapless::error>(GAPLESS_ERROR_NOT_ALLOCATED, [&] { three.grow(MIB, nullptr); }, "none grows");
    expect_thrown<gapless::error>(GAPLESS_ERROR_NOT_ALLOCATED, [&] { (void)three.size(); }, "and none has a size");
    three = range(DEVICE, 64 * MIB);
    three.grow(2 * MIB, nullptr);
    void *const released = three.release();
    expect(!three && held() == 2 * MIB, "what is released lives on");
    expect(gapless_range_close(0, released) == GAPLESS_OK && held() == 0, "until the caller closes it");
}

static void too_little_of_either_is_a_bad_alloc() {
    range cache(DEVICE, 128 * MIB);
    cache.grow(2 * MIB, nullptr);
    bool caught = false;
    try {
        cache.grow(100 * MIB, nullptr);
    } catch (const std::bad_alloc &error) {
        caught = std::string(error.what()).find("held by growable ranges") != std::string::npos;
    }
    expect(caught && cache.size() == 2 * MIB, "too little memory, with the report");
    auto further = [&] { cache.grow(127 * MIB, nullptr); };
    expect_thrown<gapless::out_of_memory>(GAPLESS_ERROR_TOO_LARGE, further, "too few addresses");
    expect(cache.size() == 2 * MIB, "and the range is as before");
}

static void a_tensor_keeps_a_range() {
    range cache(DEVICE, 64 * MIB);
    void *const address = cache.data();
    auto *const tensor = reinterpret_cast<Tensor *>(cache.dlpack());
    expect(tensor->data == address && tensor->dimensions == 1 && tensor->shape[0] == 64 * MIB, "it is of all addresses");
    cache.grow(2 * MIB, nullptr);
    cache.close();
    expect(held() == 2 * MIB, "memory stays with the tensor");
    tensor->deleter(tensor);
    expect(held() == 0, "until that goes");
}

int main() {
    gapless::check(gapless_configure("chunk:2MiB,budget:64MiB"));
    open_device();
    it_grows_and_shrinks_where_it_is();
    expect(held() == 0, "its end closes it");
    a_range_takes_the_end_of_another();
    each_range_has_one_owner();
    too_little_of_either_is_a_bad_alloc();
    a_tensor_keeps_a_range();
    /* The library closes what a range owns, behind its back. */
    range lost(DEVICE, 64 * MIB);
    gapless_range_close(0, lost.data());
    expect_thrown<gapless::error>(GAPLESS_ERROR_NOT_ALLOCATED, [&] { lost.close(); }, "a close that fails throws");
    expect(static_cast<bool>(lost), "and the range owns it still");
    return ended();
}
