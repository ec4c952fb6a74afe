/* How memory sleeps and wakes: what gapless::device is told and tells. */

#ifndef GAPLESS_SLEEP_HPP
#define GAPLESS_SLEEP_HPP

#include <gapless/failures.hpp>

#include <chrono>
#include <cstdint>

namespace gapless {

/// What becomes of the bytes of what sleeps.
enum class backup : gapless_backup {
    /// They are lost: what wakes has undefined content, as newly allocated memory.
    discard = GAPLESS_BACKUP_DISCARD,
    /// They are copied to pinned memory of the host, and back when they wake.
    pinned = GAPLESS_BACKUP_PINNED,
    /// They are copied to ordinary memory of the host, which is slower to copy to and quicker to get than pinned memory.
    pageable = GAPLESS_BACKUP_PAGEABLE,
    /// They are written to a file without a name in the directory of GAPLESS_CONF=backups:DIRECTORY.
    file = GAPLESS_BACKUP_FILE,
};

/// A tag, and what becomes of its bytes. A null pointer: the device's own memory, and all pools whose tag is not named beside it.
struct tag_backup {
    const char *tag;
    gapless::backup backup;
};

/// How to wake.
struct wake_options {
    /// How long to try again where there is too little memory: another process may be about to give some back.
    std::chrono::milliseconds wait{0};
    /// Whether device::backup_of has the bytes as of the sleep until what they are of is freed or sleeps again. Pools of captured
    /// graphs keep no backups, and files are not kept.
    bool retain_backups = false;
};

/// How much is asleep.
struct sleeping {
    /// Bytes of the allocations.
    std::uint64_t live_bytes;
    /// Bytes of the pages that a wake needs.
    std::uint64_t asleep_bytes;
};

/// Gives a tag to the pools of captured graphs that the thread makes while it lives; within several, the last one counts. It ends
/// on the thread that it began on.
class tag_scope {
   public:
    explicit tag_scope(const char *tag) { check(gapless_tag_push(tag)); }
    tag_scope(const tag_scope &) = delete;
    tag_scope &operator=(const tag_scope &) = delete;
    ~tag_scope() { detail::tell(gapless_tag_pop(), "a tag could not be ended"); }
};

}  // namespace gapless

#endif  // GAPLESS_SLEEP_HPP
