// The functions of gapless's C library that the allocator object calls, looked up in the library that the process has loaded.
#pragma once

#include <dlfcn.h>

#include <string>

#include "gapless_share.h"
#include "gapless_torch.h"

namespace gapless {

using Pool = gapless_torch_pool;
using Block = gapless_torch_block;

// The figures of a device, or of a pool.
struct Figures : gapless_stats {
    Figures() : gapless_stats() { size = sizeof(gapless_stats); }
};

#define GAPLESS_FUNCTIONS(do)                                                                                        \
    do(device_add_map_listener) do(device_close_import) do(device_export) do(device_import)                           \
    do(device_remove_map_listener) do(last_error) do(torch_alloc) do(torch_alloc_again)                              \
    do(torch_blocks) do(torch_delete) do(torch_describe)                                                             \
    do(torch_lend_native) do(torch_limit) do(torch_settle_native)                                                    \
    do(torch_device_of) do(torch_end_allocate_to_pool) do(torch_get_stats) do(torch_lend_pool) do(torch_open_pool)   \
    do(torch_pool_kind) do(torch_pool_users) do(torch_pools) do(torch_reaches) do(torch_release_pool)                \
    do(torch_reset_counts) do(torch_reset_peaks) do(torch_restore_pool) do(torch_set_fraction) do(torch_trim)        \
    do(torch_use_on) do(torch_use_pool) do(torch_use_range)

struct Library {
#define GAPLESS_DECLARE(name) decltype(&gapless_##name) name = nullptr;
    GAPLESS_FUNCTIONS(GAPLESS_DECLARE)
#undef GAPLESS_DECLARE

    // Returns what is wrong, or an empty text.
    std::string open(const char *path) {
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) {
            return dlerror();
        }
        std::string missing;
#define GAPLESS_FIND(name)                                                                   \
    name = reinterpret_cast<decltype(&gapless_##name)>(dlsym(library, "gapless_" #name));    \
    if (name == nullptr) {                                                                   \
        missing = "the library has no function gapless_" #name;                             \
    }
        GAPLESS_FUNCTIONS(GAPLESS_FIND)
#undef GAPLESS_FIND
        return missing;
    }
};

}  // namespace gapless
