/* The memory resource with RMM's exceptions. gapless.hpp does not include this header, which needs RMM's. */

#ifndef GAPLESS_RMM_HPP
#define GAPLESS_RMM_HPP

#include <gapless/memory_resource.hpp>

#ifndef GAPLESS_HAS_MEMORY_RESOURCE
#error "gapless/rmm.hpp needs CUDA's and libcu++'s headers: see GAPLESS_MEMORY_RESOURCE"
#endif

#include <rmm/error.hpp>

#include <cstddef>
#include <cstdint>

namespace gapless {
namespace detail {

/// An exception of RMM that is a gapless::failure, too, with the text of either.
template <typename Error>
class rmm_failure : public Error, public failure {
   public:
    explicit rmm_failure(const out_of_memory &cause) : Error(cause.what()), failure(cause) {}
    const char *what() const noexcept override { return Error::what(); }
};

/// Allocates, and throws what RMM throws for a lack of memory. A request that exceeds the addresses of a stream is no
/// rmm::out_of_memory: whoever catches that frees memory and asks again.
template <typename Allocate>
void *with_errors_of_rmm(Allocate allocate) {
    try {
        return allocate();
    } catch (const out_of_memory &cause) {
        if (cause.status() == GAPLESS_ERROR_TOO_LARGE) {
            throw rmm_failure<::rmm::bad_alloc>(cause);
        }
        throw rmm_failure<::rmm::out_of_memory>(cause);
    }
}

}  // namespace detail

inline namespace GAPLESS_DEFAULT_STREAM {

/// A memory_resource that throws rmm::out_of_memory where there is too little memory, and rmm::bad_alloc for a request that exceeds
/// the addresses of a stream. Each is a gapless::failure and a std::bad_alloc, and no gapless::out_of_memory. Everything else is as
/// with a memory_resource, to which it is equal.
class rmm_memory_resource : public memory_resource {
   public:
    using memory_resource::memory_resource;

    [[nodiscard]] void *allocate(::cuda::stream_ref stream, std::size_t bytes, std::size_t alignment = 1) {
        return detail::with_errors_of_rmm([&] { return memory_resource::allocate(stream, bytes, alignment); });
    }
    [[nodiscard]] void *allocate_sync(std::size_t bytes, std::size_t alignment = 1) {
        return detail::with_errors_of_rmm([&] { return memory_resource::allocate_sync(bytes, alignment); });
    }
    [[nodiscard]] void *allocate_async(std::size_t bytes, std::size_t alignment, ::cuda::stream_ref stream) {
        return allocate(stream, bytes, alignment);
    }
    [[nodiscard]] void *allocate_async(std::size_t bytes, ::cuda::stream_ref stream) { return allocate(stream, bytes); }
    [[nodiscard]] void *allocate(std::size_t bytes, std::size_t alignment = 1) { return allocate_sync(bytes, alignment); }
};

}  // inline namespace
}  // namespace gapless

#endif  // GAPLESS_RMM_HPP
