/* The process-wide allocator of a device. */

#ifndef GAPLESS_DEVICE_HPP
#define GAPLESS_DEVICE_HPP

#include <gapless/sleep.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

/* Where a program is compiled for per-thread default streams, a null stream is another one: see the end of gapless.h. What is
 * compiled for either must not be taken for the other by a linker. */
#ifdef GAPLESS_PER_THREAD_DEFAULT_STREAM
#define GAPLESS_DEFAULT_STREAM per_thread_default_stream
#else
#define GAPLESS_DEFAULT_STREAM legacy_default_stream
#endif

namespace gapless {
inline namespace GAPLESS_DEFAULT_STREAM {

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

    /// Puts the pools of a tag to sleep, or with a null pointer all pools and the device's own memory: the memory goes back to the
    /// device, and allocations keep their addresses. All of it or none; a tag that no pool has: nothing.
    ///
    /// The host waits until what is queued has completed, and the bytes are copied. No work that uses the memory may be queued
    /// until it is awake.
    gapless_slept sleep(const char *tag, backup bytes = backup::pinned) const {
        gapless_slept slept{};
        slept.size = sizeof slept;
        check(gapless_sleep(number_, tag, static_cast<gapless_backup>(bytes), &slept));
        return slept;
    }

    /// The same, of everything.
    gapless_slept sleep(backup bytes = backup::pinned) const { return sleep(nullptr, bytes); }

    /// The same, of several tags: all of them or none.
    gapless_slept sleep_tags(const std::vector<tag_backup> &tags) const {
        std::vector<gapless_tag_backup> entries;
        entries.reserve(tags.size());
        for (const tag_backup &entry : tags) {
            entries.push_back({entry.tag, static_cast<gapless_backup>(entry.backup)});
        }
        gapless_slept slept{};
        slept.size = sizeof slept;
        check(gapless_sleep_tags(number_, entries.data(), entries.size(), &slept));
        return slept;
    }

    /// Wakes the pools of a tag, or with a null pointer everything, at the addresses that it had, with its bytes unless those were
    /// discarded. Returns the bytes of the pages that have memory again, 0 where nothing was asleep. All of it wakes or none.
    std::uint64_t wake(const char *tag, wake_options options = {}) const { return wake_tags({tag}, options); }

    /// The same, of everything.
    std::uint64_t wake(wake_options options = {}) const { return wake(nullptr, options); }

    /// The same, of several tags: all of them or none.
    std::uint64_t wake_tags(const std::vector<const char *> &tags, wake_options options = {}) const {
        const auto wait = static_cast<std::uint64_t>(std::max<std::chrono::milliseconds::rep>(options.wait.count(), 0));
        const gapless_wake_flags flags = options.retain_backups ? GAPLESS_WAKE_RETAIN_BACKUPS : 0;
        std::uint64_t mapped = 0;
        check(gapless_wake_tags(number_, tags.data(), tags.size(), wait, flags, &mapped));
        return mapped;
    }

    /// How much of a tag is asleep, or with a null pointer of everything.
    sleeping asleep(const char *tag = nullptr) const {
        sleeping found{};
        check(gapless_asleep(number_, tag, &found.live_bytes, &found.asleep_bytes));
        return found;
    }

    /// Where the host has bytes of an allocation, or of a part of one, that is asleep with a backup, or whose backup is retained. A
    /// null pointer where it has none of them; a gapless::error (GAPLESS_ERROR_NOT_FOUND) where only some are in a backup, and
    /// where they are in a file. They can be read until the allocation wakes, sleeps again or is freed; retained ones through its
    /// wake.
    const void *backup_of(void *pointer, std::size_t bytes) const {
        const void *host = nullptr;
        check(gapless_backup_of(number_, pointer, bytes, &host));
        return host;
    }

    friend bool operator==(device one, device other) noexcept { return one.number_ == other.number_; }
    friend bool operator!=(device one, device other) noexcept { return one.number_ != other.number_; }

   private:
    std::int32_t number_;
};

}  // inline namespace
}  // namespace gapless

#endif  // GAPLESS_DEVICE_HPP
