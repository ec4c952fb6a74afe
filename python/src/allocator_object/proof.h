#pragma once

#include <string>

namespace gapless {

// Returns why the running PyTorch does not have the functions of this object's class, or an empty text.
std::string prove_layout(const void *object);

}  // namespace gapless
