// Products of one row with the two factors of an adapter.

#pragma once

#include "kernels.h"
#include "lanes.h"

namespace sax::SAX_ISA {

SAX_INLINE F load_some_bf16(const uint16_t* p, int count) {
  if (count >= kLanes) return load_bf16(p);
  uint16_t held[kLanes] = {};
  memcpy(held, p, sizeof(uint16_t) * static_cast<size_t>(count));
  return load_bf16(held);
}

// to[r] = x . down[r], for bf16 rows of `inputs` numbers.
static void low_rank_down(const float* x, size_t inputs, const uint16_t* down, size_t rows, float* to) {
  for (size_t row = 0; row < rows; ++row, down += inputs) {
    F first = set(0.0f), second = set(0.0f);
    size_t i = 0;
    for (; i + 2 * kLanes <= inputs; i += 2 * kLanes) {
      first = fma(load(x + i), load_bf16(down + i), first);
      second = fma(load(x + i + kLanes), load_bf16(down + i + kLanes), second);
    }
    for (; i < inputs; i += kLanes) {
      int count = static_cast<int>(inputs - i);
      first = fma(load_some(x + i, count), load_some_bf16(down + i, count), first);
    }
    to[row] = sum(add(first, second));
  }
}

// to += inner times up, bf16[rank, outputs].
static void low_rank_up(const float* inner, size_t rank, const uint16_t* up, size_t outputs, float* to) {
  for (size_t i = 0; i < outputs; i += kLanes) {
    int count = static_cast<int>(outputs - i);
    F total = load_some(to + i, count);
    for (size_t r = 0; r < rank; ++r) {
      total = fma(set(inner[r]), load_some_bf16(up + r * outputs + i, count), total);
    }
    store_some(to + i, total, count);
  }
}

}  // namespace sax::SAX_ISA
