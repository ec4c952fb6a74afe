/* An allocation that is freed by itself. */

#ifndef GAPLESS_BUFFER_HPP
#define GAPLESS_BUFFER_HPP

#include <gapless/device.hpp>

#include <cstddef>
#include <utility>

namespace gapless {
inline namespace GAPLESS_DEFAULT_STREAM {

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

}  // inline namespace
}  // namespace gapless

#endif  // GAPLESS_BUFFER_HPP
