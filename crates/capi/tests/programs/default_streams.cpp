/* Compiled for per-thread default streams, and linked with default_streams_legacy.cpp, which is not. */
#include "streams.hpp"

CUstream_st *stream_of_null_in_the_other_half();

int main() {
    open_device();
    gapless::buffer block(gapless::device(0), MIB, nullptr);
    expect(stream_of(block.data()) == reinterpret_cast<CUstream_st *>(2), "null is the thread's own stream here");
    expect(stream_of_null_in_the_other_half() == nullptr, "and the legacy one there");
    return ended();
}
