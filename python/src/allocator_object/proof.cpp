// The proof that the running PyTorch has the table of virtual functions that this was compiled for: its plug-in class implements the
// same interface, and its functions are exported with names and arguments. Nothing is called for it.
#include "proof.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>

#include <cstdlib>
#include <cstring>
#include <memory>

namespace gapless {

namespace {

// Enough of the functions have a name that can be compared; some are inherited, or local to a library.
constexpr size_t LEAST_COMPARED = 24;

// Number of virtual functions of a class, by the size of its table: two entries come before them.
size_t functions_in(void *table) {
    Dl_info info;
    ElfW(Sym) *symbol = nullptr;
    if (dladdr1(table, &info, reinterpret_cast<void **>(&symbol), RTLD_DL_SYMENT) == 0 || symbol == nullptr ||
        info.dli_saddr != table) {
        return 0;
    }
    return symbol->st_size / sizeof(void *) - 2;
}

// The name and arguments of an exported function without its class; empty for one that has no name.
std::string name_of(void *function) {
    Dl_info info;
    if (dladdr(function, &info) == 0 || info.dli_saddr != function || info.dli_sname == nullptr) {
        return {};
    }
    int status = 0;
    std::unique_ptr<char, decltype(&free)> text(abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status), free);
    if (!text) {
        return {};
    }
    std::string name(text.get());
    size_t arguments = name.find('(');
    size_t scope = name.rfind("::", arguments);
    name = scope == std::string::npos ? name : name.substr(scope + 2);
    return name[0] == '~' ? "~" : name;
}

}  // namespace

std::string prove_layout(const void *object) {
    void *theirs = dlsym(RTLD_DEFAULT, "_ZTVN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocatorE");
    if (theirs == nullptr) {
        if (void *library = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD)) {
            theirs = dlsym(library, "_ZTVN5torch4cuda22CUDAPluggableAllocator22CUDAPluggableAllocatorE");
        }
    }
    if (theirs == nullptr) {
        return "PyTorch exports no class to compare with";
    }
    void **ours_table;
    std::memcpy(&ours_table, object, sizeof ours_table);
    void **their_table = static_cast<void **>(theirs) + 2;
    size_t ours = functions_in(ours_table - 2);
    size_t count = functions_in(theirs);
    if (count == 0 || count != ours) {
        return "PyTorch's allocator interface has " + std::to_string(count) + " functions, this shim knows " + std::to_string(ours);
    }
    size_t compared = 0;
    for (size_t slot = 0; slot < count; slot++) {
        std::string own = name_of(ours_table[slot]);
        std::string other = name_of(their_table[slot]);
        if (own.empty() || other.empty()) {
            continue;
        }
        if (own != other) {
            return "function " + std::to_string(slot) + " of PyTorch's allocator interface is " + other + ", this shim has " +
                   own + " there";
        }
        compared++;
    }
    if (compared < LEAST_COMPARED) {
        return "only " + std::to_string(compared) + " of " + std::to_string(count) + " functions could be compared";
    }
    return {};
}

}  // namespace gapless
