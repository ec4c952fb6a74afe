/* Memory that grows at its address. */

#ifndef GAPLESS_RANGE_HPP
#define GAPLESS_RANGE_HPP

#include <gapless/device.hpp>

#include <cstdint>
#include <utility>

namespace gapless {
inline namespace GAPLESS_DEFAULT_STREAM {

/// Owns a growable range of a device, or nothing: an empty range, as after a move. It grows and shrinks at its end, and its address
/// does not change. Its destructor closes it; the object of the device may be gone. Of an empty range, what changes it or asks
/// about it throws, except for close.
///
/// No work may be queued that reaches beyond size(): an access there ends the device's context. What a range holds stays awake in
/// device::sleep.
class range {
   public:
    range() noexcept = default;

    /// Reserves addresses, of which there may be far more than memory, rounded up to the driver's granularity. No memory is held
    /// yet.
    range(device from, std::uint64_t address_bytes) : from_(from) {
        check(gapless_range_reserve(from.number(), address_bytes, &data_));
    }

    range(range &&other) noexcept : from_(other.from_), data_(std::exchange(other.data_, nullptr)) {}

    range &operator=(range &&other) noexcept {
        range taken(std::move(other));
        std::swap(from_, taken.from_);
        std::swap(data_, taken.data_);
        return *this;
    }

    ~range() {
        if (data_ != nullptr) {
            detail::tell(gapless_range_close(from_.number(), data_), "a range was not closed");
        }
    }

    /// The first address on the device, a null pointer of an empty range.
    void *data() const noexcept { return data_; }
    /// The device that it was reserved on.
    device on() const noexcept { return from_; }
    /// Whether it owns addresses, without memory perhaps.
    explicit operator bool() const noexcept { return data_ != nullptr; }

    /// The bytes that may be used, from the start.
    std::uint64_t size() const {
        std::uint64_t mapped = 0;
        check(gapless_range_size(from_.number(), data_, &mapped, nullptr));
        return mapped;
    }

    /// The bytes of its addresses, which it can grow to.
    std::uint64_t capacity() const {
        std::uint64_t addresses = 0;
        check(gapless_range_size(from_.number(), data_, nullptr, &addresses));
        return addresses;
    }

    /// Maps at least `bytes` more at the end, in whole pages of undefined content, for work that is queued on a stream from now on.
    /// What the range has stays as it is, also where this throws.
    void grow(std::uint64_t bytes, CUstream_st *stream) {
        check(gapless_range_grow(from_.number(), data_, bytes, stream));
    }

    /// Records that another stream also uses the range: shrink and close wait for it.
    void record_stream(CUstream_st *stream) const { check(gapless_range_grow(from_.number(), data_, 0, stream)); }

    /// Unmaps up to `bytes` at the end, the whole physical allocations that lie in them, and says how many bytes that were. The
    /// host waits for the streams that use the range. Where this throws, size() says how far it came.
    std::uint64_t shrink(std::uint64_t bytes) {
        std::uint64_t unmapped = 0;
        check(gapless_range_shrink(from_.number(), data_, bytes, &unmapped));
        return unmapped;
    }

    /// Moves whole physical allocations of up to `bytes` from the end of another range of the device to the end of this one,
    /// contents and all, for work on a stream, and says how many bytes that were. The host does not wait: work on the stream has to
    /// be ordered behind all other work that uses the end of the other range. Where this throws, both are as before.
    std::uint64_t take(range &other, std::uint64_t bytes, CUstream_st *stream) {
        std::uint64_t moved = 0;
        check(gapless_range_take(from_.number(), data_, other.data_, bytes, stream, &moved));
        return moved;
    }

    /// A new tensor of DLPack over all addresses, of bytes in one dimension: what the range grows by is in its reach at once. Until
    /// its deleter is called, once, the memory and the addresses stay, also when the range is closed.
    [[nodiscard]] DLManagedTensor *dlpack() const {
        DLManagedTensor *tensor = nullptr;
        check(gapless_range_dlpack(from_.number(), data_, &tensor));
        return tensor;
    }

    /// Gives memory and addresses back now, after a wait as in shrink; nothing for an empty range. Where that fails, the range owns
    /// them still.
    void close() {
        if (data_ != nullptr) {
            check(gapless_range_close(from_.number(), data_));
            data_ = nullptr;
        }
    }

    /// Leaves the range empty, and what it had to the caller, who closes it with gapless_range_close.
    void *release() noexcept { return std::exchange(data_, nullptr); }

   private:
    device from_{0};
    void *data_ = nullptr;
};

}  // inline namespace
}  // namespace gapless

#endif  // GAPLESS_RANGE_HPP
