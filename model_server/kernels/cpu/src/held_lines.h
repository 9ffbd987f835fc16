// Memory that a thread keeps between calls. No container of the standard library: the linker keeps one copy of
// its functions, which another machine could not run.

#pragma once

#include <stdlib.h>

#include "lanes.h"

namespace sax::SAX_ISA {

// At least so many bytes of this thread, from a line of the cache on; what they hold is lost where more are asked for.
template <int Use>
SAX_INLINE char* lines_held(size_t bytes) {
  struct Held {
    char* at = nullptr;
    size_t bytes = 0;
    ~Held() { free(at); }
  };
  constexpr size_t line = 64;
  thread_local Held held;
  if (held.bytes < bytes) {
    free(held.at);
    held.bytes = (bytes + line - 1) / line * line;
    held.at = static_cast<char*>(aligned_alloc(line, held.bytes));
  }
  return held.at;
}

template <int Use>
SAX_INLINE float* numbers_held(size_t count) {
  return reinterpret_cast<float*>(lines_held<Use>(count * sizeof(float)));
}

}  // namespace sax::SAX_ISA
