/* The parts of CUDA's headers and libcu++'s that gapless.hpp needs for its memory resource, over the driver. */
#pragma once

struct CUstream_st;
using cudaStream_t = CUstream_st *;
enum cudaError_t { cudaSuccess = 0 };
#define cudaStreamLegacy (reinterpret_cast<cudaStream_t>(0x1))

extern "C" int cuStreamSynchronize(cudaStream_t stream);

/* What the program says of the next wait, and how many there were. */
inline bool next_wait_fails = false;
inline int waits = 0;

inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    waits++;
    return static_cast<cudaError_t>(next_wait_fails ? 999 : cuStreamSynchronize(stream));
}

inline const char *cudaGetErrorString(cudaError_t) { return "the wait failed"; }
