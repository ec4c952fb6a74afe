/* Streams of the simulated driver for programs that allocate, and what they expect. */
#pragma once

#include <cstdint>
#include <cstdio>
#include <gapless.hpp>
#include <gapless_torch.h>

extern "C" {
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(struct CUctx_st **context, int device);
int cuCtxSetCurrent(struct CUctx_st *context);
int cuStreamCreate(CUstream_st **stream, unsigned flags);
int cuStreamSynchronize(CUstream_st *stream);
int cuMemsetD8Async(std::uint64_t at, unsigned char byte, std::size_t bytes, CUstream_st *stream);
int cuMemcpyDtoH_v2(void *to, std::uint64_t from, std::size_t bytes);
}

constexpr std::size_t MIB = 1 << 20;

inline bool wrong = false;

inline void expect(bool holds, const char *what) {
    if (!holds) {
        std::fprintf(stderr, "not so: %s. %s\n", what, gapless_last_error());
        wrong = true;
    }
}

/* Whether a call throws this, with this status. */
template <typename Error, typename Call>
void expect_thrown(gapless_status status, Call call, const char *what) {
    bool caught = false;
    try {
        call();
    } catch (const Error &error) {
        const auto *failure = dynamic_cast<const gapless::failure *>(&error);
        caught = failure != nullptr && failure->status() == status;
    }
    expect(caught, what);
}

inline int ended() {
    if (!wrong) {
        std::puts("all as expected");
    }
    return wrong;
}

/* The device's context on this thread. */
inline void open_device() {
    CUctx_st *context = nullptr;
    expect(cuInit(0) == 0, "cuInit");
    expect(cuDevicePrimaryCtxRetain(&context, 0) == 0, "a context");
    expect(cuCtxSetCurrent(context) == 0, "it is current");
}

/* A stream that does not synchronize with the default one. */
inline CUstream_st *new_stream() {
    CUstream_st *stream = nullptr;
    expect(cuStreamCreate(&stream, 1) == 0, "a stream");
    return stream;
}

inline void fill(void *at, unsigned char byte, std::size_t bytes, CUstream_st *stream) {
    expect(cuMemsetD8Async(reinterpret_cast<std::uintptr_t>(at), byte, bytes, stream) == 0, "work");
}

/* The stream that a live allocation was made for. */
inline CUstream_st *stream_of(const void *pointer) {
    gapless_torch_block block{};
    expect(gapless_torch_describe(pointer, &block) == GAPLESS_OK, "a live allocation");
    return reinterpret_cast<CUstream_st *>(static_cast<std::uintptr_t>(block.stream));
}
