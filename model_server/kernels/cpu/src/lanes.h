// Sixteen lanes of f32 or i32, with the widest instructions that this file is compiled for.
//
// Everything lies in a namespace per instruction set, because a linker keeps one copy of functions
// of one name: it could keep the one that this machine cannot run.

#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__) && !defined(SAX_PORTABLE)
#include <arm_neon.h>
#define SAX_NEON
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) && defined(__ARM_FEATURE_MATMUL_INT8)
#define SAX_MATRICES  // two rows times two columns in one instruction
#endif
#endif

#define SAX_INLINE static inline __attribute__((always_inline))

namespace sax::SAX_ISA {

constexpr int kLanes = 16;

SAX_INLINE float from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

SAX_INLINE uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Rounds to the nearest bfloat16, ties to even; a NaN stays one.
SAX_INLINE uint16_t bf16_of(float value) {
  uint32_t bits = bits_of(value);
  uint32_t nearest = (bits + 0x7fffu + (bits >> 16 & 1)) >> 16;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40 : nearest);
}

// Twice the numbers of float4 (e2m1), plus 12, by their bits plus 8.
constexpr uint8_t kFloat4[16] = {12, 11, 10, 9, 8, 6, 4, 0, 12, 13, 14, 15, 16, 18, 20, 24};

// F: sixteen f32. I: sixteen i32. B: sixty-four bytes of a weight.

#if defined(__AVX512F__)

struct F { __m512 v; };
struct I { __m512i v; };
struct B { __m512i v; };
constexpr int kAccumulators = 24;  // F and I that fit in registers beside what they are made of

SAX_INLINE F set(float x) { return {_mm512_set1_ps(x)}; }
SAX_INLINE F load(const float* p) { return {_mm512_loadu_ps(p)}; }
SAX_INLINE void store(float* p, F x) { _mm512_storeu_ps(p, x.v); }
SAX_INLINE F add(F x, F y) { return {_mm512_add_ps(x.v, y.v)}; }
SAX_INLINE F mul(F x, F y) { return {_mm512_mul_ps(x.v, y.v)}; }
SAX_INLINE F div(F x, F y) { return {_mm512_div_ps(x.v, y.v)}; }
SAX_INLINE F fma(F x, F y, F z) { return {_mm512_fmadd_ps(x.v, y.v, z.v)}; }
SAX_INLINE F max(F x, F y) { return {_mm512_max_ps(x.v, y.v)}; }
SAX_INLINE F min(F x, F y) { return {_mm512_min_ps(x.v, y.v)}; }
SAX_INLINE F rounded(F x) {
  return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
// x times two to the power of n; n holds whole numbers.
SAX_INLINE F scaled_by_power(F x, F n) { return {_mm512_scalef_ps(x.v, n.v)}; }
SAX_INLINE float sum(F x) { return _mm512_reduce_add_ps(x.v); }
SAX_INLINE float highest(F x) { return _mm512_reduce_max_ps(x.v); }
SAX_INLINE F load_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
SAX_INLINE F load_bf16(const uint16_t* p) {
  __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}
SAX_INLINE F load_i8(const int8_t* p) {
  __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
}
SAX_INLINE F to_f(I x) { return {_mm512_cvtepi32_ps(x.v)}; }
SAX_INLINE I no_i() { return {_mm512_setzero_si512()}; }
SAX_INLINE I set_i(int32_t x) { return {_mm512_set1_epi32(x)}; }
SAX_INLINE I add_i(I x, I y) { return {_mm512_add_epi32(x.v, y.v)}; }
SAX_INLINE B load_bytes(const void* p) { return {_mm512_loadu_si512(p)}; }
SAX_INLINE B low_nibbles(B x) { return {_mm512_and_si512(x.v, _mm512_set1_epi8(15))}; }
SAX_INLINE B high_nibbles(B x) {
  return {_mm512_and_si512(_mm512_srli_epi16(x.v, 4), _mm512_set1_epi8(15))};
}
SAX_INLINE B of_float4(B x) {
  __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kFloat4));
  return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), x.v)};
}

#define SAX_PACKS
// Stores the lanes of a mask side by side, then zeros: sixteen numbers in all.
SAX_INLINE void store_packed(float* p, F x, uint16_t which) {
  _mm512_storeu_ps(p, _mm512_maskz_compress_ps(which, x.v));
}
// The reverse: the other lanes are zero.
SAX_INLINE F load_spread(const float* p, uint16_t which) {
  return {_mm512_maskz_expand_ps(which, _mm512_loadu_ps(p))};
}
// Turns sixteen rows into the sixteen columns of what they hold.
SAX_INLINE void turn(F (&x)[kLanes]) {
  __m512 twos[kLanes], fours[kLanes];
  for (int i = 0; i < kLanes; i += 2) {
    twos[i] = _mm512_unpacklo_ps(x[i].v, x[i + 1].v);
    twos[i + 1] = _mm512_unpackhi_ps(x[i].v, x[i + 1].v);
  }
  for (int i = 0; i < kLanes; i += 4) {  // the k-th quarter of fours[i + j]: column 4 k + j of four rows
    for (int j = 0; j < 2; ++j) {
      __m512d one = _mm512_castps_pd(twos[i + j]), other = _mm512_castps_pd(twos[i + 2 + j]);
      fours[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(one, other));
      fours[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(one, other));
    }
  }
  for (int j = 0; j < 4; ++j) {
    __m512 even[2], odd[2];  // quarters of these columns
    for (int half = 0; half < 2; ++half) {
      __m512 one = fours[8 * half + j], other = fours[8 * half + 4 + j];
      even[half] = _mm512_shuffle_f32x4(one, other, 0x88);
      odd[half] = _mm512_shuffle_f32x4(one, other, 0xdd);
    }
    x[j].v = _mm512_shuffle_f32x4(even[0], even[1], 0x88);
    x[j + 4].v = _mm512_shuffle_f32x4(odd[0], odd[1], 0x88);
    x[j + 8].v = _mm512_shuffle_f32x4(even[0], even[1], 0xdd);
    x[j + 12].v = _mm512_shuffle_f32x4(odd[0], odd[1], 0xdd);
  }
}

#if defined(__AVX512BF16__)
#define SAX_NARROWS
// Stores 32 numbers as bf16, rounded to nearest.
SAX_INLINE void store_narrow(void* to, const float* x) {
  __m512bh both = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + kLanes), _mm512_loadu_ps(x));
  _mm512_storeu_si512(to, (__m512i)both);
}
#endif

#elif defined(__AVX2__)

struct F { __m256 a, b; };
struct I { __m256i a, b; };
struct B { __m256i a, b; };
constexpr int kAccumulators = 6;

SAX_INLINE F set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
SAX_INLINE F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
SAX_INLINE void store(float* p, F x) { _mm256_storeu_ps(p, x.a), _mm256_storeu_ps(p + 8, x.b); }
SAX_INLINE F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
SAX_INLINE F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
SAX_INLINE F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
SAX_INLINE F fma(F x, F y, F z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
SAX_INLINE F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
SAX_INLINE F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
SAX_INLINE F rounded(F x) {
  constexpr int how = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.a, how), _mm256_round_ps(x.b, how)};
}
SAX_INLINE __m256 power_(__m256 n) {
  __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_max_epi32(exponent, _mm256_setzero_si256()), 23));
}
SAX_INLINE F scaled_by_power(F x, F n) {
  return {_mm256_mul_ps(x.a, power_(n.a)), _mm256_mul_ps(x.b, power_(n.b))};
}
SAX_INLINE float sum(F x) {
  __m256 eight = _mm256_add_ps(x.a, x.b);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
SAX_INLINE float highest(F x) {
  __m256 eight = _mm256_max_ps(x.a, x.b);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
SAX_INLINE F load_f16(const uint16_t* p) {
  const __m128i* halves = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}
SAX_INLINE __m256 widened_(__m128i eight) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(eight), 16));
}
SAX_INLINE F load_bf16(const uint16_t* p) {
  const __m128i* halves = reinterpret_cast<const __m128i*>(p);
  return {widened_(_mm_loadu_si128(halves)), widened_(_mm_loadu_si128(halves + 1))};
}
SAX_INLINE F load_i8(const int8_t* p) {
  __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
}
SAX_INLINE F to_f(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
SAX_INLINE I no_i() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
SAX_INLINE I set_i(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
SAX_INLINE B load_bytes(const void* p) {
  const __m256i* halves = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
}
SAX_INLINE B low_nibbles(B x) {
  __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask)};
}
SAX_INLINE B high_nibbles(B x) {
  __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(_mm256_srli_epi16(x.a, 4), mask),
          _mm256_and_si256(_mm256_srli_epi16(x.b, 4), mask)};
}
SAX_INLINE B of_float4(B x) {
  __m128i one = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kFloat4));
  __m256i table = _mm256_broadcastsi128_si256(one);
  return {_mm256_shuffle_epi8(table, x.a), _mm256_shuffle_epi8(table, x.b)};
}

#elif defined(SAX_NEON)

struct F { float32x4_t v[4]; };
struct I { int32x4_t v[4]; };
struct B { uint8x16_t v[4]; };
constexpr int kAccumulators = 5;

#define SAX_EACH for (int i = 0; i < 4; ++i)
SAX_INLINE F set(float x) { F y; SAX_EACH y.v[i] = vdupq_n_f32(x); return y; }
SAX_INLINE F load(const float* p) { F y; SAX_EACH y.v[i] = vld1q_f32(p + 4 * i); return y; }
SAX_INLINE void store(float* p, F x) { SAX_EACH vst1q_f32(p + 4 * i, x.v[i]); }
SAX_INLINE F add(F x, F y) { SAX_EACH x.v[i] = vaddq_f32(x.v[i], y.v[i]); return x; }
SAX_INLINE F mul(F x, F y) { SAX_EACH x.v[i] = vmulq_f32(x.v[i], y.v[i]); return x; }
SAX_INLINE F div(F x, F y) { SAX_EACH x.v[i] = vdivq_f32(x.v[i], y.v[i]); return x; }
SAX_INLINE F fma(F x, F y, F z) { SAX_EACH z.v[i] = vfmaq_f32(z.v[i], x.v[i], y.v[i]); return z; }
SAX_INLINE F max(F x, F y) { SAX_EACH x.v[i] = vmaxq_f32(x.v[i], y.v[i]); return x; }
SAX_INLINE F min(F x, F y) { SAX_EACH x.v[i] = vminq_f32(x.v[i], y.v[i]); return x; }
SAX_INLINE F rounded(F x) { SAX_EACH x.v[i] = vrndnq_f32(x.v[i]); return x; }
SAX_INLINE F scaled_by_power(F x, F n) {
  SAX_EACH {
    int32x4_t exponent = vaddq_s32(vcvtnq_s32_f32(n.v[i]), vdupq_n_s32(127));
    int32x4_t bits = vshlq_n_s32(vmaxq_s32(exponent, vdupq_n_s32(0)), 23);
    x.v[i] = vmulq_f32(x.v[i], vreinterpretq_f32_s32(bits));
  }
  return x;
}
SAX_INLINE float sum(F x) {
  return vaddvq_f32(vaddq_f32(vaddq_f32(x.v[0], x.v[1]), vaddq_f32(x.v[2], x.v[3])));
}
SAX_INLINE float highest(F x) {
  return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.v[0], x.v[1]), vmaxq_f32(x.v[2], x.v[3])));
}
SAX_INLINE F load_f16(const uint16_t* p) {
  F y;
  SAX_EACH y.v[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)));
  return y;
}
SAX_INLINE F load_bf16(const uint16_t* p) {
  F y;
  SAX_EACH y.v[i] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16));
  return y;
}
SAX_INLINE F load_i8(const int8_t* p) {
  int8x16_t bytes = vld1q_s8(p);
  int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
          vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))};
}
SAX_INLINE F to_f(I x) { F y; SAX_EACH y.v[i] = vcvtq_f32_s32(x.v[i]); return y; }
SAX_INLINE I no_i() { I y; SAX_EACH y.v[i] = vdupq_n_s32(0); return y; }
SAX_INLINE I set_i(int32_t x) { I y; SAX_EACH y.v[i] = vdupq_n_s32(x); return y; }
SAX_INLINE B load_bytes(const void* p) {
  B y;
  SAX_EACH y.v[i] = vld1q_u8(static_cast<const uint8_t*>(p) + 16 * i);
  return y;
}
SAX_INLINE B low_nibbles(B x) { SAX_EACH x.v[i] = vandq_u8(x.v[i], vdupq_n_u8(15)); return x; }
SAX_INLINE B high_nibbles(B x) { SAX_EACH x.v[i] = vshrq_n_u8(x.v[i], 4); return x; }
SAX_INLINE B of_float4(B x) { SAX_EACH x.v[i] = vqtbl1q_u8(vld1q_u8(kFloat4), x.v[i]); return x; }

#undef SAX_EACH

#else

struct F { float v[16]; };
struct I { int32_t v[16]; };
struct B { uint8_t v[64]; };
constexpr int kAccumulators = 2;

#define SAX_EACH for (int i = 0; i < 16; ++i)
SAX_INLINE F set(float x) { F y; SAX_EACH y.v[i] = x; return y; }
SAX_INLINE F load(const float* p) { F y; SAX_EACH y.v[i] = p[i]; return y; }
SAX_INLINE void store(float* p, F x) { SAX_EACH p[i] = x.v[i]; }
SAX_INLINE F add(F x, F y) { SAX_EACH x.v[i] += y.v[i]; return x; }
SAX_INLINE F mul(F x, F y) { SAX_EACH x.v[i] *= y.v[i]; return x; }
SAX_INLINE F div(F x, F y) { SAX_EACH x.v[i] /= y.v[i]; return x; }
#if defined(SAX_TILE_MODEL)  // which has the bits of the machines that it stands for
SAX_INLINE F fma(F x, F y, F z) { SAX_EACH z.v[i] = __builtin_fmaf(x.v[i], y.v[i], z.v[i]); return z; }
#else
SAX_INLINE F fma(F x, F y, F z) { SAX_EACH z.v[i] += x.v[i] * y.v[i]; return z; }
#endif
SAX_INLINE F max(F x, F y) { SAX_EACH x.v[i] = x.v[i] > y.v[i] ? x.v[i] : y.v[i]; return x; }
SAX_INLINE F min(F x, F y) { SAX_EACH x.v[i] = x.v[i] < y.v[i] ? x.v[i] : y.v[i]; return x; }
SAX_INLINE F rounded(F x) { SAX_EACH x.v[i] = __builtin_nearbyintf(x.v[i]); return x; }
SAX_INLINE F scaled_by_power(F x, F n) {
  SAX_EACH {
    int32_t exponent = static_cast<int32_t>(n.v[i]) + 127;
    x.v[i] *= from_bits(static_cast<uint32_t>(exponent > 0 ? exponent : 0) << 23);
  }
  return x;
}
#if defined(SAX_TILE_MODEL)
SAX_INLINE float sum(F x) {  // in the order of AVX-512
  for (int half = 8; half; half /= 2) {
    for (int i = 0; i < half; ++i) x.v[i] += x.v[i + half];
  }
  return x.v[0];
}
#else
SAX_INLINE float sum(F x) { float y = 0; SAX_EACH y += x.v[i]; return y; }
#endif
SAX_INLINE float highest(F x) {
  float y = x.v[0];
  SAX_EACH y = x.v[i] > y ? x.v[i] : y;
  return y;
}
SAX_INLINE float f16_value_(uint16_t half) {
  uint32_t exponent = half >> 10 & 31, fraction = half & 1023;
  float value = exponent == 0    ? static_cast<float>(fraction) * 0x1p-24f
                : exponent == 31 ? from_bits(0x7f800000u | fraction << 13)
                                 : from_bits((exponent + 112) << 23 | fraction << 13);
  return half & 0x8000 ? -value : value;
}
SAX_INLINE F load_f16(const uint16_t* p) { F y; SAX_EACH y.v[i] = f16_value_(p[i]); return y; }
SAX_INLINE F load_bf16(const uint16_t* p) {
  F y;
  SAX_EACH y.v[i] = from_bits(static_cast<uint32_t>(p[i]) << 16);
  return y;
}
SAX_INLINE F load_i8(const int8_t* p) { F y; SAX_EACH y.v[i] = p[i]; return y; }
SAX_INLINE F to_f(I x) { F y; SAX_EACH y.v[i] = static_cast<float>(x.v[i]); return y; }
SAX_INLINE I no_i() { I y; SAX_EACH y.v[i] = 0; return y; }
SAX_INLINE I set_i(int32_t x) { I y; SAX_EACH y.v[i] = x; return y; }
SAX_INLINE I add_i(I x, I y) { SAX_EACH x.v[i] += y.v[i]; return x; }
SAX_INLINE B load_bytes(const void* p) { B y; memcpy(y.v, p, 64); return y; }
SAX_INLINE B low_nibbles(B x) { for (auto& each : x.v) each &= 15; return x; }
SAX_INLINE B high_nibbles(B x) { for (auto& each : x.v) each >>= 4; return x; }
SAX_INLINE B of_float4(B x) { for (auto& each : x.v) each = kFloat4[each]; return x; }
#undef SAX_EACH

#endif

// The first `count` lanes, the others zero.
SAX_INLINE F load_some(const float* p, int count) {
  if (count >= kLanes) return load(p);
  float held[kLanes] = {};
  memcpy(held, p, sizeof(float) * static_cast<size_t>(count));
  return load(held);
}

SAX_INLINE void store_some(float* p, F x, int count) {
  if (count >= kLanes) return store(p, x);
  float held[kLanes];
  store(held, x);
  memcpy(p, held, sizeof(float) * static_cast<size_t>(count));
}

// e to the power of each lane, within two units in the last place; 0 below -87.
SAX_INLINE F exp(F x) {
  x = max(min(x, set(88.0f)), set(-104.0f));
  F n = rounded(mul(x, set(1.44269504f)));
  F r = fma(n, set(-0.693359375f), x);  // ln 2 in two parts
  r = fma(n, set(2.12194440e-4f), r);
  constexpr float terms[] = {1.0f / 720.0f, 1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f,
                             0.5f,          1.0f,          1.0f};
  F y = set(1.0f / 5040.0f);
  for (float term : terms) y = fma(y, r, set(term));
  return scaled_by_power(y, n);
}

}  // namespace sax::SAX_ISA
