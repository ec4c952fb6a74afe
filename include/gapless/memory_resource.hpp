/* A memory resource of libcu++, where its headers are found. */

#ifndef GAPLESS_MEMORY_RESOURCE_HPP
#define GAPLESS_MEMORY_RESOURCE_HPP

/* Whether gapless::memory_resource is there, for which CUDA's and libcu++'s headers are needed: where these are found, unless the
 * program defines GAPLESS_MEMORY_RESOURCE as 0, or as 1 to be told where they are missing. */
#ifndef GAPLESS_MEMORY_RESOURCE
#if __has_include(<cuda_runtime_api.h>) && __has_include(<cuda/memory_resource>)
#define GAPLESS_MEMORY_RESOURCE_FOUND
#endif
#elif GAPLESS_MEMORY_RESOURCE
#define GAPLESS_MEMORY_RESOURCE_FOUND
#endif
#ifdef GAPLESS_MEMORY_RESOURCE_FOUND
#include <cuda/memory_resource>
#include <cuda/stream_ref>
#include <cuda_runtime_api.h>
/* Until CCCL 3.1, libcu++ has memory resources only where a program asks for them. */
#if CCCL_VERSION >= 3001000 || defined(LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE)
#define GAPLESS_HAS_MEMORY_RESOURCE 1
#elif defined(GAPLESS_MEMORY_RESOURCE)
#error "this libcu++ has memory resources only where LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE is defined"
#endif
#undef GAPLESS_MEMORY_RESOURCE_FOUND
#endif

#ifdef GAPLESS_HAS_MEMORY_RESOURCE

#include <gapless/buffer.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace gapless {
inline namespace GAPLESS_DEFAULT_STREAM {

/// A device's process-wide allocator as a memory resource of libcu++ with the property cuda::mr::device_accessible, under the names
/// of today (allocate, allocate_sync) and under those of before CCCL 3.1 (allocate_async, allocate). For RMM: it converts to
/// rmm::device_async_resource_ref. Resources of one device are equal and free what the others have allocated.
class memory_resource {
   public:
    explicit memory_resource(std::int32_t device) noexcept : device_(device) {}

    /// Allocates memory for work that is queued on a stream from now on.
    [[nodiscard]] void *allocate(::cuda::stream_ref stream, std::size_t bytes, std::size_t alignment = 1) {
        return device_.allocate(bytes, stream.get(), alignment);
    }

    /// Frees memory whose last use is queued on a stream, which need not be the one that it was allocated on.
    void deallocate(::cuda::stream_ref stream, void *pointer, std::size_t bytes, std::size_t = 1) noexcept {
        detail::tell(gapless_device_free_on(device_.number(), pointer, bytes, stream.get()));
    }

    /// Allocates memory that every stream may use at once: waits for the legacy default stream.
    [[nodiscard]] void *allocate_sync(std::size_t bytes, std::size_t alignment = 1) {
        buffer allocated(device_, bytes, cudaStreamLegacy, alignment);
        if (const cudaError_t waited = cudaStreamSynchronize(cudaStreamLegacy); waited != cudaSuccess) {
            throw std::runtime_error(cudaGetErrorString(waited));
        }
        return allocated.release();
    }

    /// Frees memory that only the legacy default stream, or streams that synchronize with it, may still be at work on.
    void deallocate_sync(void *pointer, std::size_t bytes, std::size_t = 1) noexcept {
        detail::tell(gapless_device_free_on(device_.number(), pointer, bytes, cudaStreamLegacy));
    }

    [[nodiscard]] void *allocate_async(std::size_t bytes, std::size_t alignment, ::cuda::stream_ref stream) {
        return allocate(stream, bytes, alignment);
    }
    [[nodiscard]] void *allocate_async(std::size_t bytes, ::cuda::stream_ref stream) { return allocate(stream, bytes); }
    void deallocate_async(void *pointer, std::size_t bytes, std::size_t, ::cuda::stream_ref stream) noexcept {
        deallocate(stream, pointer, bytes);
    }
    void deallocate_async(void *pointer, std::size_t bytes, ::cuda::stream_ref stream) noexcept {
        deallocate(stream, pointer, bytes);
    }
    [[nodiscard]] void *allocate(std::size_t bytes, std::size_t alignment = 1) { return allocate_sync(bytes, alignment); }
    void deallocate(void *pointer, std::size_t bytes, std::size_t = 1) noexcept { deallocate_sync(pointer, bytes); }

    friend bool operator==(const memory_resource &one, const memory_resource &other) noexcept {
        return one.device_ == other.device_;
    }
    friend bool operator!=(const memory_resource &one, const memory_resource &other) noexcept { return !(one == other); }
    friend constexpr void get_property(const memory_resource &, ::cuda::mr::device_accessible) noexcept {}

   private:
    gapless::device device_;
};

}  // inline namespace
}  // namespace gapless

#endif  // GAPLESS_HAS_MEMORY_RESOURCE
#endif  // GAPLESS_MEMORY_RESOURCE_HPP
