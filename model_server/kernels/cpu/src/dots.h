// Products of sixteen lanes of weights with the numbers of one row, as this instruction set likes
// both best.

#pragma once

#include "kernels.h"
#include "lanes.h"

namespace sax::SAX_ISA {

// --- pairs of bf16 ----------------------------------------------------------------------------------

#if defined(__AVX512BF16__) || defined(SAX_MATRICES)

using Pair = uint32_t;  // two numbers of a row, as bf16

SAX_INLINE Pair pair_of(float even, float odd) {
  return bf16_of(even) | static_cast<uint32_t>(bf16_of(odd)) << 16;
}

#endif

#if defined(SAX_MATRICES)  // matrices.h has products

#elif defined(__AVX512BF16__)

using Pairs = B;  // of weights

SAX_INLINE Pairs pairs_in(B weights) { return weights; }

// Adds to each lane the product of its pair with that of the row.
SAX_INLINE F dot2(F sum, const Pairs& weights, const Pair& x) {
  __m512i pair = _mm512_set1_epi32(static_cast<int>(x));
  return {_mm512_dpbf16_ps(sum.v, (__m512bh)weights.v, (__m512bh)pair)};
}

#else

// Widened: the row once for all tiles, the weights once for all rows of a block.
struct Pair { float even, odd; };
struct Pairs { F even, odd; };

SAX_INLINE Pair pair_of(float even, float odd) {
  return {from_bits(static_cast<uint32_t>(bf16_of(even)) << 16),
          from_bits(static_cast<uint32_t>(bf16_of(odd)) << 16)};
}

SAX_INLINE Pairs pairs_in(B weights) {
#if defined(__AVX512F__)
  return {{_mm512_castsi512_ps(_mm512_slli_epi32(weights.v, 16))},
          {_mm512_castsi512_ps(_mm512_and_si512(weights.v, _mm512_set1_epi32(-65536)))}};
#elif defined(__AVX2__)
  __m256i odd = _mm256_set1_epi32(-65536);
  return {{_mm256_castsi256_ps(_mm256_slli_epi32(weights.a, 16)),
           _mm256_castsi256_ps(_mm256_slli_epi32(weights.b, 16))},
          {_mm256_castsi256_ps(_mm256_and_si256(weights.a, odd)),
           _mm256_castsi256_ps(_mm256_and_si256(weights.b, odd))}};
#elif defined(SAX_NEON)
  Pairs made;
  for (int i = 0; i < 4; ++i) {
    uint32x4_t both = vreinterpretq_u32_u8(weights.v[i]);
    made.even.v[i] = vreinterpretq_f32_u32(vshlq_n_u32(both, 16));
    made.odd.v[i] = vreinterpretq_f32_u32(vandq_u32(both, vdupq_n_u32(0xffff0000u)));
  }
  return made;
#else
  Pairs made;
  for (int i = 0; i < 16; ++i) {
    uint32_t both;
    memcpy(&both, weights.v + 4 * i, 4);
    made.even.v[i] = from_bits(both << 16);
    made.odd.v[i] = from_bits(both & 0xffff0000u);
  }
  return made;
#endif
}

SAX_INLINE F dot2(F sum, const Pairs& weights, const Pair& x) {
  return fma(weights.odd, set(x.odd), fma(weights.even, set(x.even), sum));
}

#endif

// --- whole numbers -----------------------------------------------------------------------------------

// A number of a row is its value in steps of the row's largest / 127, and 254 times the rest: two
// bytes, or together 254 times the first plus the second in 16 bits.
constexpr size_t kSome = 64;      // numbers that are quantised at once
constexpr size_t kBytesOfFour = 8;

#if defined(__AVX512VNNI__) || defined(SAX_TILES) || defined(SAX_MATRICES)

constexpr bool kTwoSums = true;
struct Wholes { I high, low; };               // sums of products with either
constexpr size_t kNumbersAtOnce = size_t{1} << 16;  // whose products 32 bits hold
constexpr float kStepsOfRow = 1.0f;           // in the unit of `value_of`

SAX_INLINE Wholes no_wholes() { return {no_i(), no_i()}; }
SAX_INLINE Wholes beginning(const BlockSum& of) { return {set_i(of.high), set_i(of.low)}; }
SAX_INLINE F value_of(const Wholes& sums) {
  return fma(to_f(sums.low), set(1.0f / 254.0f), to_f(sums.high));
}

#if defined(__AVX512VNNI__) || defined(SAX_MATRICES)

// Numbers of a row, and how products take four of them.
struct Numbers {
  int8_t high[kSome], low[kSome];

  void put(size_t i, int high_number, int low_number) {
    high[i] = static_cast<int8_t>(high_number);
    low[i] = static_cast<int8_t>(low_number);
  }
  void copy_four(size_t i, int8_t* to) const { memcpy(to, high + i, 4), memcpy(to + 4, low + i, 4); }
};

#endif

#if defined(__AVX512VNNI__)

// Numbers of one byte.
#define SAX_ONE_BYTE
struct OneByteNumbers {
  int8_t of[kSome];

  void put(size_t i, int number) { of[i] = static_cast<int8_t>(number); }
  void copy_four(size_t i, int8_t* to) const { memcpy(to, of + i, 4); }
};

using Bytes = B;  // of weights, unsigned

SAX_INLINE Bytes bytes_in(B weights) { return weights; }

SAX_INLINE I dot4(I sum, const Bytes& weights, const int8_t* four) {
  int32_t x;
  memcpy(&x, four, 4);
  return {_mm512_dpbusd_epi32(sum.v, weights.v, _mm512_set1_epi32(x))};
}

// Adds to each lane the products of its four bytes with four numbers of a row.
SAX_INLINE void add_four(Wholes& sums, const Bytes& weights, const int8_t* four) {
  sums.high = dot4(sums.high, weights, four);
  sums.low = dot4(sums.low, weights, four + 4);
}

#endif

#else

constexpr bool kTwoSums = false;
using Wholes = I;
constexpr size_t kNumbersAtOnce = 256;
constexpr float kStepsOfRow = 254.0f;

SAX_INLINE Wholes no_wholes() { return no_i(); }
SAX_INLINE Wholes beginning(const BlockSum& of) { return set_i(of.high); }
SAX_INLINE F value_of(const Wholes& sums) { return to_f(sums); }

#if defined(__AVX2__)
constexpr size_t kPlaces[4] = {0, 2, 1, 3};  // the even ones, then the odd ones
#else
constexpr size_t kPlaces[4] = {0, 1, 2, 3};
#endif

struct Numbers {
  int16_t both[kSome];

  void put(size_t i, int high, int low) { both[i] = static_cast<int16_t>(254 * high + low); }
  void copy_four(size_t i, int8_t* to) const {
    for (size_t j = 0; j < 4; ++j) memcpy(to + 2 * kPlaces[j], both + i + j, 2);
  }
};

#if defined(__AVX2__)

struct Bytes { B even, odd; };  // in 16 bits

SAX_INLINE Bytes bytes_in(B weights) {
  __m256i low = _mm256_set1_epi16(255);
  return {{_mm256_and_si256(weights.a, low), _mm256_and_si256(weights.b, low)},
          {_mm256_srli_epi16(weights.a, 8), _mm256_srli_epi16(weights.b, 8)}};
}

SAX_INLINE I dot2(I sum, const B& weights, const int8_t* two) {
  int32_t x;
  memcpy(&x, two, 4);
  __m256i pair = _mm256_set1_epi32(x);
  return {_mm256_add_epi32(sum.a, _mm256_madd_epi16(weights.a, pair)),
          _mm256_add_epi32(sum.b, _mm256_madd_epi16(weights.b, pair))};
}

SAX_INLINE void add_four(Wholes& sums, const Bytes& weights, const int8_t* four) {
  sums = dot2(dot2(sums, weights.even, four), weights.odd, four + 4);
}

#elif defined(SAX_NEON)

using Bytes = B;

SAX_INLINE Bytes bytes_in(B weights) { return weights; }

SAX_INLINE void add_four(Wholes& sums, const Bytes& weights, const int8_t* four) {
  int16x4_t x = vreinterpret_s16_s8(vld1_s8(four));
  for (int n = 0; n < 4; ++n) {
    int16x8_t low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(weights.v[n])));
    int16x8_t high = vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(weights.v[n])));
    int32x4_t a = vmull_s16(vget_low_s16(low), x), b = vmull_s16(vget_high_s16(low), x);
    int32x4_t c = vmull_s16(vget_low_s16(high), x), d = vmull_s16(vget_high_s16(high), x);
    sums.v[n] = vaddq_s32(sums.v[n], vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d)));
  }
}

#else

using Bytes = B;

SAX_INLINE Bytes bytes_in(B weights) { return weights; }

SAX_INLINE void add_four(Wholes& sums, const Bytes& weights, const int8_t* four) {
  int16_t x[4];
  memcpy(x, four, sizeof x);
  for (int lane = 0; lane < 16; ++lane) {
    for (int j = 0; j < 4; ++j) sums.v[lane] += weights.v[4 * lane + j] * x[j];
  }
}

#endif
#endif

#if defined(SAX_ONE_BYTE)
constexpr bool kOneByte = true;
#else
constexpr bool kOneByte = false;
#if !defined(SAX_TILES)
// Numbers of one byte, with a second one that is 0.
struct OneByteNumbers : Numbers {
  void put(size_t i, int number) { Numbers::put(i, number, 0); }
};
#endif
#endif

}  // namespace sax::SAX_ISA
