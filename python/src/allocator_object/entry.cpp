// What gapless/torch/_object.py calls. No exception leaves these functions.
#include "object.h"
#include "proof.h"

namespace {

gapless::CUDAAllocator *native_allocator = nullptr;

}  // namespace

extern "C" {

// The version of PyTorch that this was compiled for.
__attribute__((visibility("default"))) const char *gapless_object_version() { return GAPLESS_TORCH_VERSION; }

// The commit of PyTorch whose headers this was compiled with.
__attribute__((visibility("default"))) const char *gapless_object_commit() { return GAPLESS_TORCH_COMMIT; }

// Makes the object on gapless's library, and proves that its table of functions is PyTorch's where `is_of_commit` is 0. Returns why it
// cannot be used with the running PyTorch, or NULL.
__attribute__((visibility("default"))) const char *gapless_object_prepare(const char *library, int is_of_commit) try {
    static std::string problem;
    gapless::Library functions;
    problem = functions.open(library);
    if (!problem.empty()) {
        return problem.c_str();
    }
    native_allocator = gapless::native::allocator.load();
    if (native_allocator == nullptr || native_allocator == gapless::AllocatorObject::instance) {
        return "PyTorch has no allocator of its own";
    }
    // Lives as long as the process: memory may be freed by whatever ends last.
    auto *object = new gapless::AllocatorObject(functions, native_allocator);
    if (is_of_commit == 0) {
        problem = gapless::prove_layout(object);
    }
    if (!problem.empty()) {
        delete object;
        return problem.c_str();
    }
    gapless::AllocatorObject::instance = object;
    return nullptr;
} catch (const std::exception &error) {
    static std::string problem;
    problem = error.what();
    return problem.c_str();
}

// Whether the answers are planted ones.
__attribute__((visibility("default"))) void gapless_object_plant(int on) { gapless::AllocatorObject::instance->plant(on != 0); }

// Makes PyTorch use the object (1), or its own allocator (0). Nothing has used the GPU yet.
__attribute__((visibility("default"))) void gapless_object_use(int on) {
    gapless::CUDAAllocator *chosen = on != 0 ? gapless::AllocatorObject::instance : native_allocator;
    gapless::native::allocator.store(chosen);
    // With the highest priority: PyTorch takes no allocator of a lower one than that in use.
    c10::SetAllocator(c10::kCUDA, chosen, UINT8_MAX);
}

// Whether PyTorch uses the object.
__attribute__((visibility("default"))) int gapless_object_is_used() {
    return gapless::native::allocator.load() == gapless::AllocatorObject::instance;
}

// Has a function add to the text of each refusal while a history is kept. It runs on the thread of the request.
__attribute__((visibility("default"))) void gapless_object_explain_refusals(gapless::Explain explain) {
    gapless::AllocatorObject::instance->explain_refusals(explain);
}

}  // extern "C"
