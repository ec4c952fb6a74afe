/* gapless: a GPU memory allocator on CUDA virtual memory management. C++ interface, of C++17 and later.
 *
 * Over gapless.h, header only: link with -lgapless. The parts are in gapless/, and one that needs RMM's headers, gapless/rmm.hpp,
 * is included on its own. Memory is that of the process-wide allocator of a device, which PyTorch, CuPy and others in the process
 * share. Any function may be called from any thread, an object of a buffer or of a range from one at a time.
 *
 * What fails throws gapless::out_of_memory, which is a std::bad_alloc, where there is too little memory, and gapless::error, which
 * is a std::runtime_error, else. What cannot throw, a destructor and the frees of memory_resource, says it on the standard error
 * stream, the first few times, and leaves the memory allocated. */

#ifndef GAPLESS_HPP
#define GAPLESS_HPP

#include <gapless/buffer.hpp>
#include <gapless/device.hpp>
#include <gapless/failures.hpp>
#include <gapless/memory_resource.hpp>
#include <gapless/range.hpp>
#include <gapless/sleep.hpp>

#endif  // GAPLESS_HPP
