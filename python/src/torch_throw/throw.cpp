// Throws PyTorch's own out-of-memory error, which becomes torch.cuda.OutOfMemoryError in Python.
//
// An allocator plug-in cannot return a failure to PyTorch, which takes a null pointer for memory. The exception is
// constructed by PyTorch's libc10.so, whose constructor is looked up at run time. So this file builds without PyTorch and
// works with every version that exports the symbols.
#include "construct.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <cstddef>
#include <string>
#include <typeinfo>

namespace {

struct Kind {
    Construct construct;
    void *constructor;
    std::type_info *type;
    void **table;  // Replaces the table of virtual functions that the constructor set, unless null.
};

Kind out_of_memory{};
Kind error{};

// Larger than any version of the exceptions.
constexpr size_t exception_bytes = 1024;

// The destructor is the first entry of the table of virtual functions: the class derives from std::exception alone.
void destroy(void *exception) {
    auto table = *static_cast<void (***)(void *)>(exception);
    table[0](exception);
}

bool find(void *library, const char *name, const char *type, Kind *kind) {
    struct Strings {
        const char *arguments;
        Construct construct;
    };
    const Strings both[] = {
        {"ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE", construct_with_new_string},
        {"ENS_14SourceLocationESs", construct_with_old_string},
    };
    kind->type = static_cast<std::type_info *>(dlsym(library, type));
    for (const Strings &strings : both) {
        void *constructor = dlsym(library, (std::string(name) + strings.arguments).c_str());
        if (constructor != nullptr && kind->type != nullptr) {
            kind->construct = strings.construct;
            kind->constructor = constructor;
            return true;
        }
    }
    return false;
}

}  // namespace

// Looks up the constructors in libc10.so, and the out-of-memory error's type, if that library lacks it, in libc10_cuda.so,
// which throws it. The arguments are their paths. Returns 0 when an out-of-memory error can be thrown, 1 when only a plain
// error can, 2 when neither can.
extern "C" int gapless_torch_throw_prepare(const char *libc10, const char *libc10_cuda) {
    void *library = dlopen(libc10, RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) {
        return 2;
    }
    bool plain = find(library, "_ZN3c105ErrorC1", "_ZTIN3c105ErrorE", &error);
    bool special = find(library, "_ZN3c1016OutOfMemoryErrorC1", "_ZTIN3c1016OutOfMemoryErrorE", &out_of_memory);
    if (!special && plain) {
        // Older versions, such as 2.11, compile the constructor into every library that throws. So: the constructor of
        // the base class, and the derived class's table of virtual functions from a library that throws.
        void *thrower = dlopen(libc10_cuda, RTLD_NOW | RTLD_NOLOAD);
        for (void *place : {library, thrower}) {
            auto table = place ? static_cast<void **>(dlsym(place, "_ZTVN3c1016OutOfMemoryErrorE")) : nullptr;
            auto type = place ? static_cast<std::type_info *>(dlsym(place, "_ZTIN3c1016OutOfMemoryErrorE")) : nullptr;
            if (table != nullptr && type != nullptr) {
                out_of_memory = Kind{error.construct, error.constructor, type, table + 2};
                return 0;
            }
        }
    }
    return special ? 0 : plain ? 1 : 2;
}

// gapless's failure handler. Does not return, unless there is no exception that it could throw.
extern "C" void gapless_torch_throw(const char *text, int is_out_of_memory) {
    const Kind &kind = is_out_of_memory != 0 && out_of_memory.type != nullptr ? out_of_memory : error;
    if (kind.construct == nullptr) {
        return;
    }
    void *exception = abi::__cxa_allocate_exception(exception_bytes);
    kind.construct(kind.constructor, exception, text);
    if (kind.table != nullptr) {
        *static_cast<void ***>(exception) = kind.table;
    }
    abi::__cxa_throw(exception, kind.type, destroy);
}
