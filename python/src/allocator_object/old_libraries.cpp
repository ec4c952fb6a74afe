// What headers of newer compilers use and libraries of older systems do not have, for this library alone.
#include <new>

// glibc has it from 2.32 on. Counts of shared pointers ask it whether the process has a single thread; here there may be more.
extern "C" __attribute__((visibility("hidden"))) char __libc_single_threaded;
char __libc_single_threaded = 0;

// libstdc++ has it from GCC 11 on. Containers call it when asked for more elements than there are addresses.
namespace std {
__attribute__((visibility("hidden"))) void __throw_bad_array_new_length() { throw bad_array_new_length(); }
}  // namespace std
