// Arithmetic that takes denormal numbers for zeros.

#pragma once

#include "kernels.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace sax::SAX_ISA {

// Denormal numbers are zeros to this thread, as they are to the unit.
class Flushing {
 public:
#if defined(__SSE2__)
  Flushing() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }  // of results, and of operands
  ~Flushing() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#else
  Flushing() {}
#endif
};

}  // namespace sax::SAX_ISA
