/* What is thrown where a function of gapless.h fails. */

#ifndef GAPLESS_FAILURES_HPP
#define GAPLESS_FAILURES_HPP

#include <gapless.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <new>
#include <stdexcept>

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
inline void tell(gapless_status status, const char *what = "memory was not freed") noexcept {
    constexpr unsigned MOST_TOLD = 5;
    static std::atomic<unsigned> told{0};
    if (status != GAPLESS_OK && told.fetch_add(1, std::memory_order_relaxed) < MOST_TOLD) {
        std::fprintf(stderr, "gapless: %s: %s\n", what, gapless_last_error());
    }
}

}  // namespace detail
}  // namespace gapless

#endif  // GAPLESS_FAILURES_HPP
