// Calls a constructor of PyTorch's errors. Its string is libstdc++'s of one of two kinds: PyTorch's wheels had the older kind up to
// 2.6. The kind is chosen for a whole source file, so there is one file for each.
#pragma once

// Constructs an error with this text in `exception`. `constructor` is c10::Error::Error(SourceLocation, std::string), or a class's
// that derives from it.
using Construct = void (*)(void *constructor, void *exception, const char *text);

void construct_with_new_string(void *constructor, void *exception, const char *text);
void construct_with_old_string(void *constructor, void *exception, const char *text);
