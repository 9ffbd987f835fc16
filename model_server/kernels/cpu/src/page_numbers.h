// Numbers of pages as float32: of four types, in lanes or one by one.

#pragma once

#include <type_traits>

#include "kernels.h"
#include "lanes.h"

namespace sax::SAX_ISA {

SAX_INLINE float f8_value(uint8_t bits) {  // e4m3fn
  uint32_t exponent = bits >> 3 & 15, fraction = bits & 7;
  float value = exponent == 0                     ? static_cast<float>(fraction) * 0x1p-9f
                : exponent == 15 && fraction == 7 ? __builtin_nanf("")
                                                  : from_bits((exponent + 120) << 23 | fraction << 20);
  return bits & 0x80 ? -value : value;
}

template <Number N>
SAX_INLINE F load_numbers(const void* base, size_t at) {
  if constexpr (N == Number::f32) return load(static_cast<const float*>(base) + at);
  if constexpr (N == Number::bf16) return load_bf16(static_cast<const uint16_t*>(base) + at);
  if constexpr (N == Number::i8) return load_i8(static_cast<const int8_t*>(base) + at);
  float held[kLanes];
  for (int i = 0; i < kLanes; ++i) held[i] = f8_value(static_cast<const uint8_t*>(base)[at + i]);
  return load(held);
}

template <Number N>
SAX_INLINE float number_at(const void* base, size_t at) {
  if constexpr (N == Number::f32) return static_cast<const float*>(base)[at];
  if constexpr (N == Number::bf16) return from_bits(uint32_t{static_cast<const uint16_t*>(base)[at]} << 16);
  if constexpr (N == Number::i8) return static_cast<const int8_t*>(base)[at];
  return f8_value(static_cast<const uint8_t*>(base)[at]);
}

// The first `count` of sixteen numbers, the others zero.
template <Number N>
SAX_INLINE F load_some_numbers(const void* base, size_t at, int count) {
  if (count >= kLanes) return load_numbers<N>(base, at);
  float held[kLanes] = {};
  for (int i = 0; i < count; ++i) held[i] = number_at<N>(base, at + i);
  return load(held);
}

// Fetches numbers that are read soon, into the second level of the cache: the first waits for few lines at
// once, and pages lie anywhere, so that the machine cannot see how they go on.
template <Number N>
SAX_INLINE void fetch(const void* base, size_t at) {
  constexpr size_t bytes = N == Number::f32 ? 4 : N == Number::bf16 ? 2 : 1;
  __builtin_prefetch(static_cast<const char*>(base) + at * bytes, 0, 2);
}

// Calls function(constant) for the type of the pages' numbers.
template <class Function>
SAX_INLINE void with_number(Number number, Function&& function) {
  switch (number) {
    case Number::f32: return function(std::integral_constant<Number, Number::f32>{});
    case Number::bf16: return function(std::integral_constant<Number, Number::bf16>{});
    case Number::i8: return function(std::integral_constant<Number, Number::i8>{});
    case Number::f8: return function(std::integral_constant<Number, Number::f8>{});
  }
}

}  // namespace sax::SAX_ISA
