// What differs between the minors of PyTorch that there are shims for. GAPLESS_TORCH is the minor that this is compiled for: 215 for
// 2.15. Whatever else differs, the compiler finds: every function of the class overrides one.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#ifndef GAPLESS_TORCH
#error "GAPLESS_TORCH is the minor of PyTorch: 215 for 2.15"
#endif

#if GAPLESS_TORCH >= 211
#include <c10/core/AllocatorConfig.h>
#endif

namespace gapless {

namespace native = c10::cuda::CUDACachingAllocator;
using c10::DeviceIndex;
using native::CUDAAllocator;
using PoolId = c10::cuda::MempoolId_t;
using Stats = c10::CachingDeviceAllocator::DeviceStats;
using Stat = c10::CachingDeviceAllocator::Stat;
using StatArray = c10::CachingDeviceAllocator::StatArray;

#if GAPLESS_TORCH >= 211
namespace plain = c10::CachingDeviceAllocator;
using Handle = void *;
#else
namespace plain = c10::cuda::CUDACachingAllocator;
using Handle = cudaStream_t;
#endif

inline plain::TraceEntry trace_entry(plain::TraceEntry::Action action, DeviceIndex device, size_t address, size_t bytes,
                                     cudaStream_t stream, PoolId pool, std::shared_ptr<c10::GatheredContext> context,
                                     const std::string &compile_context, const std::string &metadata) {
    auto now = c10::getApproximateTime();
#if GAPLESS_TORCH >= 210
    return {action, device, address, bytes, stream, pool, now, std::move(context), compile_context, metadata};
#else
    (void)metadata;
    return {action, device, address, bytes, stream, pool, now, std::move(context), compile_context};
#endif
}

}  // namespace gapless
