// The operands of products: a row's numbers as bf16 or in bytes, and the scales of a weight's blocks.

#pragma once

#include "dots.h"
#include "kernels.h"

namespace sax::SAX_ISA {

SAX_INLINE size_t in_parts(size_t all, size_t of_part) { return (all + of_part - 1) / of_part; }

SAX_INLINE int lanes_of(size_t outputs, size_t tile) {
  size_t left = outputs - tile * kLanes;
  return left < kLanes ? static_cast<int>(left) : kLanes;
}

SAX_INLINE void narrow(const float* x, size_t count, uint16_t* to) {
  size_t at = 0;
#if defined(SAX_NARROWS)
  for (; at + 2 * kLanes <= count; at += 2 * kLanes) store_narrow(to + at, x + at);
#endif
  for (; at < count; ++at) to[at] = bf16_of(x[at]);
}

// The largest size of a number of a row, above zero.
SAX_INLINE float largest_of(const float* x, size_t inputs) {
  F sizes = set(1e-30f);
  for (size_t i = 0; i < inputs; i += kLanes) {
    F some = load_some(x + i, static_cast<int>(inputs - i));
    sizes = max(sizes, max(some, mul(some, set(-1.0f))));
  }
  return highest(sizes);
}

// The sum of a block's numbers, each in two bytes.
struct WholeSum {
  int32_t high = 0, low = 0;
};

SAX_INLINE BlockSum block_sum(const WholeSum& of, int32_t zero) {
  float value = (static_cast<float>(of.high) + static_cast<float>(of.low) * (1.0f / 254.0f)) * kStepsOfRow;
  int64_t high = int64_t{-zero} * of.high, low = int64_t{-zero} * of.low;
  if (!kTwoSums) high = 254 * high + low;
  return {static_cast<int32_t>(high), static_cast<int32_t>(low), value, 1.0f};
}

// Calls store(i, high, low) for each number, and adds it to the sum.
template <class Store>
SAX_INLINE void quantize(const float* x, size_t count, float per_step, WholeSum& sum, Store store) {
  int32_t of_high = 0, of_low = 0;
  for (size_t i = 0; i < count; ++i) {
    float scaled = x[i] * per_step;
    float whole = __builtin_rintf(scaled);
    float rest = __builtin_rintf((scaled - whole) * 254.0f);
    int32_t high = static_cast<int32_t>(whole), low = static_cast<int32_t>(rest);
    store(i, high, low);
    of_high += high;
    of_low += low;
  }
  sum.high += of_high;
  sum.low += of_low;
}

// Calls store(i, number) for each number of a block, in one byte; returns the sum.
template <class Store>
SAX_INLINE BlockSum quantize_block(const float* x, size_t count, int32_t zero, Store store) {
  float largest = largest_of(x, count), per_step = 127.0f / largest;
  WholeSum whole;
  for (size_t i = 0; i < count; ++i) {
    int32_t number = static_cast<int32_t>(__builtin_rintf(x[i] * per_step));
    store(i, number);
    whole.high += number;
  }
  BlockSum sum = block_sum(whole, zero);
  sum.step = largest / 127.0f / kStepsOfRow;
  sum.value *= sum.step;
  return sum;
}

enum class Stored { i8, i4, float4 };

template <Stored S>
SAX_INLINE B numbers_of(B nibbles) {
  return S == Stored::float4 ? of_float4(nibbles) : nibbles;
}

// Of the sixteen rows of a tile, for one block: weight = scale * number + offset.
struct Scaling {
  F scale, offset;
  bool folded;   // sums of products begin with `BlockSum`: a number is what is stored, less its zero
  bool offsets;  // there are any
};

// together: numbers of a row whose products are summed as whole numbers, of its blocks.
SAX_INLINE Scaling scaling_of(const QuantizedWeight& weight, size_t tile, size_t block, size_t together) {
  const float* units = weight.units + tile * 2 * kLanes;
  size_t place = (tile * (weight.inputs / weight.block) + block) * kLanes;
  F scale = mul(load_f16(weight.scales + place), load(units));
  bool folded = together <= kNumbersAtOnce;
  F offset = folded ? set(0.0f) : mul(scale, set(static_cast<float>(-weight.zero())));
  if (weight.offsets) offset = fma(load_f16(weight.offsets + place), load(units + kLanes), offset);
  return {scale, offset, folded, !folded || weight.offsets};
}

}  // namespace sax::SAX_ISA
