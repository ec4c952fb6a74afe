/* gapless: a GPU memory allocator on CUDA virtual memory management. C++ interface, of C++17 and later.
 *
 * Over gapless.h, header only: link with -lgapless. Memory is that of the process-wide allocator of a device, which PyTorch, CuPy
 * and others in the process share. Any function may be called from any thread, an object of a buffer from one at a time.
 *
 * What fails throws gapless::out_of_memory, which is a std::bad_alloc, where there is too little memory, and gapless::error, which
 * is a std::runtime_error, else. What cannot throw, a destructor and the frees of memory_resource, says it on the standard error
 * stream, the first few times, and leaves the memory allocated. */

#ifndef GAPLESS_HPP
#define GAPLESS_HPP

#include <gapless.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <new>
#include <stdexcept>
#include <utility>

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

namespace gapless {

/// What both exceptions have in common: `catch (const gapless::failure &failure)` catches both. It is no std::exception, and
/// neither exception derives from the other: one with two of these inside would pass by `catch (const std::exception &)`.
class failure {
   public:
    /// One of the GAPLESS_ERROR_... numbers.
    gapless_status status() const noexcept { return status_; }
    /// One of the GAPLESS_KIND_... numbers, which refines the status.
    gapless_error_kind kind() const noexcept { return kind_; }
    /// The CUresult of the driver call behind it, 0 when no driver call failed.
    std::int32_t code() const noexcept { return code_; }
    /// The text for a person.
    virtual const char *what() const noexcept = 0;

   protected:
    explicit failure(gapless_status status) noexcept
        : status_(status), kind_(gapless_last_error_kind()), code_(gapless_last_error_code()) {}
    failure(const failure &) = default;
    failure &operator=(const failure &) = default;
    ~failure() = default;

   private:
    gapless_status status_;
    gapless_error_kind kind_;
    std::int32_t code_;
};

/// A call that failed for another reason than a lack of memory.
class error : public std::runtime_error, public failure {
   public:
    /// This thread's last failure, whose status a function has returned.
    explicit error(gapless_status status) : std::runtime_error(gapless_last_error()), failure(status) {}
    const char *what() const noexcept override { return std::runtime_error::what(); }
};

/// There is too little memory, or the request exceeds the addresses of a stream or of a growable range (GAPLESS_ERROR_TOO_LARGE).
/// Where it is memory, the text is that of the report, which says what has the memory and whether any allocator could have served
/// the request; gapless_last_error_report_json has it as JSON until the next call fails on the thread.
class out_of_memory : public std::bad_alloc, public failure {
   public:
    /// This thread's last failure, whose status a function has returned.
    explicit out_of_memory(gapless_status status) : failure(status), text_(gapless_last_error()) {}
    const char *what() const noexcept override { return text_.what(); }

   private:
    /* A text whose copies cannot fail, as those of an exception must not. */
    std::runtime_error text_;
};

/// Throws what a function of gapless.h has answered, unless that is GAPLESS_OK.
inline void check(gapless_status status) {
    if (status == GAPLESS_ERROR_OUT_OF_MEMORY || status == GAPLESS_ERROR_TOO_LARGE) {
        throw out_of_memory(status);
    }
    if (status != GAPLESS_OK) {
        throw error(status);
    }
}

namespace detail {

/// Says what failed where nothing can be thrown.
inline void tell(gapless_status status) noexcept {
    constexpr unsigned MOST_TOLD = 5;
    static std::atomic<unsigned> told{0};
    if (status != GAPLESS_OK && told.fetch_add(1, std::memory_order_relaxed) < MOST_TOLD) {
        std::fprintf(stderr, "gapless: memory was not freed: %s\n", gapless_last_error());
    }
}

}  // namespace detail

/* Where a program is compiled for per-thread default streams, a null stream is another one: see the end of gapless.h. What is
 * compiled for either must not be taken for the other by a linker. */
#ifdef GAPLESS_PER_THREAD_DEFAULT_STREAM
inline namespace per_thread_default_stream {
#else
inline namespace legacy_default_stream {
#endif

/// The process-wide allocator of a device, which is made on its first use from GAPLESS_CONF or gapless_configure, and lives as long
/// as the process. This is only the number that names it.
class device {
   public:
    /// The device of a number, counted from 0 after CUDA_VISIBLE_DEVICES. Calls nothing.
    explicit device(std::int32_t number) noexcept : number_(number) {}

    std::int32_t number() const noexcept { return number_; }

    /// Allocates memory for work that is queued on a stream from now on, at a multiple of 512 bytes and of `alignment`, a power of
    /// two. 0 bytes: an address that no other live allocation has.
    [[nodiscard]] void *allocate(std::size_t bytes, CUstream_st *stream, std::size_t alignment = 1) const {
        void *pointer = nullptr;
        check(gapless_device_alloc_aligned(number_, bytes, alignment, stream, &pointer));
        return pointer;
    }

    /// Frees memory: work that is queued on its stream, and on streams that it was recorded on, may still use it. `bytes` is what
    /// was asked for, or 0.
    void deallocate(void *pointer, std::size_t bytes = 0) const {
        check(gapless_device_free(number_, pointer, bytes));
    }

    /// Frees memory whose last use is queued on a stream, which need not be the one that it was allocated on.
    void deallocate_on(void *pointer, CUstream_st *stream, std::size_t bytes = 0) const {
        check(gapless_device_free_on(number_, pointer, bytes, stream));
    }

    /// Records that a stream, which may be one of another device, also uses the memory.
    void record_stream(void *pointer, CUstream_st *stream) const {
        check(gapless_device_record_stream(number_, pointer, stream));
    }

    /// Statistics, pools included.
    gapless_stats stats() const {
        gapless_allocator *allocator = nullptr;
        check(gapless_device_allocator(number_, &allocator));
        gapless_stats stats{};
        stats.size = sizeof stats;
        check(gapless_get_stats(allocator, &stats));
        return stats;
    }

    /// Returns free memory to the driver until at most `keep_bytes` are held, and says how many bytes that were.
    std::uint64_t trim(std::uint64_t keep_bytes = 0) const {
        std::uint64_t released = 0;
        check(gapless_device_trim(number_, keep_bytes, &released));
        return released;
    }

    friend bool operator==(device one, device other) noexcept { return one.number_ == other.number_; }
    friend bool operator!=(device one, device other) noexcept { return one.number_ != other.number_; }

   private:
    std::int32_t number_;
};

/// Owns an allocation of a device, or nothing: an empty buffer, as after a move. Its destructor frees it on the stream that it was
/// allocated on; the object of the device may be gone.
class buffer {
   public:
    buffer() noexcept = default;

    /// Allocates, as device::allocate.
    buffer(device from, std::size_t bytes, CUstream_st *stream, std::size_t alignment = 1)
        : from_(from), data_(from.allocate(bytes, stream, alignment)), bytes_(bytes), stream_(stream) {}

    buffer(buffer &&other) noexcept
        : from_(other.from_),
          data_(std::exchange(other.data_, nullptr)),
          bytes_(std::exchange(other.bytes_, 0)),
          stream_(std::exchange(other.stream_, nullptr)) {}

    buffer &operator=(buffer &&other) noexcept {
        buffer taken(std::move(other));
        std::swap(from_, taken.from_);
        std::swap(data_, taken.data_);
        std::swap(bytes_, taken.bytes_);
        std::swap(stream_, taken.stream_);
        return *this;
    }

    ~buffer() {
        if (data_ != nullptr) {
            detail::tell(gapless_device_free(from_.number(), data_, bytes_));
        }
    }

    /// The address on the device, a null pointer of an empty buffer.
    void *data() const noexcept { return data_; }
    /// The bytes that were asked for.
    std::size_t size() const noexcept { return bytes_; }
    /// The stream that it was allocated on.
    CUstream_st *stream() const noexcept { return stream_; }
    /// The device that it was allocated on.
    device on() const noexcept { return from_; }
    /// Whether it owns an allocation, of 0 bytes perhaps.
    explicit operator bool() const noexcept { return data_ != nullptr; }

    /// Records that another stream also uses the memory.
    void record_stream(CUstream_st *stream) const { from_.record_stream(data_, stream); }

    /// Frees the memory on its stream now; nothing for an empty buffer. Where that fails, the buffer owns it still.
    void free() {
        if (data_ != nullptr) {
            from_.deallocate(data_, bytes_);
            release();
        }
    }

    /// The same, where the last use is queued on another stream.
    void free_on(CUstream_st *stream) {
        if (data_ != nullptr) {
            from_.deallocate_on(data_, stream, bytes_);
            release();
        }
    }

    /// Leaves the buffer empty, and the memory to the caller, who frees it with device::deallocate.
    void *release() noexcept {
        bytes_ = 0;
        stream_ = nullptr;
        return std::exchange(data_, nullptr);
    }

   private:
    device from_{0};
    void *data_ = nullptr;
    std::size_t bytes_ = 0;
    CUstream_st *stream_ = nullptr;
};

#ifdef GAPLESS_HAS_MEMORY_RESOURCE

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

#endif  // GAPLESS_HAS_MEMORY_RESOURCE

}  // inline namespace
}  // namespace gapless

#endif  // GAPLESS_HPP
