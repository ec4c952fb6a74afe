/* Allocates buffers, asks for too much, reads why that fails, and returns everything.
 *
 *     cargo xtask build-capi dist/capi
 *     c++ -std=c++17 -Wall -Wextra -Werror examples/cxx/allocate.cpp -Idist/capi/include -Ldist/capi/lib -lgapless -o allocate
 *     LD_LIBRARY_PATH=dist/capi/lib ./allocate
 */
#include <cstdio>
#include <exception>
#include <gapless.hpp>
#include <iostream>
#include <vector>

constexpr std::size_t MIB = 1 << 20;

/* The stream of all work here: the default one. A cudaStream_t or a CUstream is as good. */
constexpr CUstream_st *STREAM = nullptr;

static void run() {
    const gapless::device device(0);

    std::vector<gapless::buffer> blocks;
    for (int i = 0; i < 8; i++) {
        blocks.emplace_back(device, 8 * MIB, STREAM);
    }
    /* Every second block goes: no two of them touch, and yet their memory serves one request of their total size. */
    for (std::size_t at = 0; at < 4; at++) {
        blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(at));
    }
    gapless::buffer joined(device, 4 * 8 * MIB, STREAM);

    const gapless_stats stats = device.stats();
    std::cout << stats.live_bytes << " bytes live, " << stats.reserved_bytes << " held\n";

    try {
        gapless::buffer impossible(device, stats.budget_bytes, STREAM);
        throw std::logic_error("an allocation beyond the budget succeeded");
    } catch (const gapless::out_of_memory &refused) {
        /* A std::bad_alloc as well, and a gapless::failure, as every exception of gapless. */
        std::cout << "report: " << refused.what() << "\n";
    }

    /* Frees on the stream that it was allocated on, as its destructor would, but says what fails. */
    joined.free();
    blocks.clear();
    std::cout << device.trim() << " bytes released\n";
}

int main() {
    try {
        run();
    } catch (const std::exception &error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
    return 0;
}
