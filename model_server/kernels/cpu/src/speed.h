// How fast kernels multiply on this machine.

#pragma once

#include "kernels.h"

namespace sax {

// Billions of additions and multiplications per second, of 8 rows with bf16 weights that lie in the
// cache, on this thread; the best of a few runs, which take some 3 ms at most.
double speed_of(const Kernels& kernels);

// The least number of queries, up to 32, whose attention to 512 keys is faster by `halves_of_many` than
// by `halves` on this thread; SIZE_MAX: none is. It takes some 5 ms.
size_t queries_for_tiles(const Kernels& kernels);

}  // namespace sax
