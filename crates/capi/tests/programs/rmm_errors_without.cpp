/* Compiled without RMM's headers. */
#include "streams.hpp"

bool is_out_of_memory_of_gapless_without_rmm();

bool is_out_of_memory_of_gapless_without_rmm() {
    try {
        (void)gapless::memory_resource(0).allocate(new_stream(), 100 * MIB);
    } catch (const gapless::out_of_memory &) {
        return true;
    }
    return false;
}
