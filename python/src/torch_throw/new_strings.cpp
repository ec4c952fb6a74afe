#define _GLIBCXX_USE_CXX11_ABI 1
#include "construct.h"
#include "construct.inc"

void construct_with_new_string(void *constructor, void *exception, const char *text) {
    construct(constructor, exception, text);
}
