/* Whether memory that one stream still works on is handed to another one in order. */
#pragma once

#include "streams.hpp"

#include <vector>

/* The bytes of a block, more than half of what GAPLESS_CONF lets the device have. */
constexpr std::size_t BLOCK = 40 * MIB;
constexpr const char *CONF = "budget:64MiB";

/* Allocates for one stream, works on it on another one for long, frees, and has the memory again for the first. `allocate` is given
 * a stream and returns an address; `free` is given the other stream. Nothing is cached before, which would have other streams to
 * wait for. */
template <typename Allocate, typename Free>
void expect_order(const char *what, Allocate allocate, Free free) {
    CUstream_st *const own = new_stream();
    CUstream_st *const other = new_stream();
    gapless::device(0).trim();
    void *const first = allocate(own);
    for (int i = 0; i < 12; i++) {
        fill(first, 1, BLOCK, other);
    }
    free(other);
    gapless::buffer again(gapless::device(0), BLOCK, own);
    fill(again.data(), 9, BLOCK, own);
    expect(cuStreamSynchronize(own) == 0 && cuStreamSynchronize(other) == 0, "waits");
    std::vector<unsigned char> bytes(BLOCK);
    expect(cuMemcpyDtoH_v2(bytes.data(), reinterpret_cast<std::uintptr_t>(again.data()), BLOCK) == 0, "a copy");
    expect(bytes.front() == 9 && bytes[BLOCK / 2] == 9 && bytes.back() == 9, what);
}
