// How fast kernels multiply on this machine.

#pragma once

#include "kernels.h"

namespace sax {

// Billions of additions and multiplications per second, of 8 rows with bf16 weights that lie in the
// cache, on this thread; the best of a few runs, which take some 3 ms at most.
double speed_of(const Kernels& kernels);

}  // namespace sax
