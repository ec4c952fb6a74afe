#define _GLIBCXX_USE_CXX11_ABI 0
#include "construct.h"
#include "construct.inc"

void construct_with_old_string(void *constructor, void *exception, const char *text) {
    construct(constructor, exception, text);
}
