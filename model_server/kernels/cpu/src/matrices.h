// Products with instructions of Arm that multiply two rows with two outputs at once: BFMMLA over four
// numbers, USMMLA over eight.
//
// A row by itself takes the same instructions, with zeros beside it, so its bits do not depend on the
// rows that it comes with.

#pragma once

#include "operands.h"

namespace sax::SAX_ISA {

constexpr int in_twos(int rows) { return (rows + 1) / 2; }

// Two rows' numbers of two pairs; rows and pairs that there are not are zeros.
SAX_INLINE bfloat16x8_t two_rows(const Pair* first, const Pair* second, bool both) {
  Pair four[4] = {first[0], both ? first[1] : 0, second ? second[0] : 0, second && both ? second[1] : 0};
  return vreinterpretq_bf16_u32(vld1q_u32(four));
}

// As `plain_block` of the other instruction sets.
template <int R, int C>
SAX_INLINE void plain_block(const PlainWeight& weight, const Pair* x, size_t tile, size_t begin,
                            size_t end, size_t ahead, float* const* out) {
  constexpr int twos = in_twos(R);
  float32x4_t sums[twos][C][8];  // each of two outputs by two rows
  const uint32_t* tiles[C];
  for (int c = 0; c < C; ++c) tiles[c] = weight.tiles + (tile + c) * weight.pairs * kLanes;
  for (int t = 0; t < twos; ++t) {
    for (int c = 0; c < C; ++c) {
      for (int n = 0; n < 8; ++n) sums[t][c][n] = vdupq_n_f32(0.0f);
    }
  }
  for (size_t pair = begin; pair < end; pair += 2) {
    bool both = pair + 1 < end;
    bfloat16x8_t rows[twos];
    for (int t = 0; t < twos; ++t) {
      const Pair* first = x + 2 * t * weight.pairs + pair;
      rows[t] = two_rows(first, 2 * t + 1 < R ? first + weight.pairs : nullptr, both);
    }
    for (int c = 0; c < C; ++c) {
      const uint32_t* at = tiles[c] + pair * kLanes;
      __builtin_prefetch(at + ahead);
      __builtin_prefetch(at + ahead + kLanes);
      for (int n = 0; n < 4; ++n) {
        uint32x4_t one = vld1q_u32(at + 4 * n);
        uint32x4_t two = both ? vld1q_u32(at + kLanes + 4 * n) : vdupq_n_u32(0);
        bfloat16x8_t low = vreinterpretq_bf16_u32(vzip1q_u32(one, two));
        bfloat16x8_t high = vreinterpretq_bf16_u32(vzip2q_u32(one, two));
        for (int t = 0; t < twos; ++t) {
          sums[t][c][2 * n] = vbfmmlaq_f32(sums[t][c][2 * n], rows[t], low);
          sums[t][c][2 * n + 1] = vbfmmlaq_f32(sums[t][c][2 * n + 1], rows[t], high);
        }
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) {
      const float32x4_t* of = sums[r / 2][c];
      F sum;
      for (int n = 0; n < 4; ++n) {
        float32x4_t a = of[2 * n], b = of[2 * n + 1];
        sum.v[n] = r % 2 ? vcombine_f32(vget_high_f32(a), vget_high_f32(b))
                         : vcombine_f32(vget_low_f32(a), vget_low_f32(b));
      }
      float* to = out[r] + (tile + c) * kLanes;
      int lanes = lanes_of(weight.outputs, tile + c);
      store_some(to, begin ? add(sum, load_some(to, lanes)) : sum, lanes);
    }
  }
}

// Eight numbers of two rows, in their two parts.
struct EightOfTwo {
  int8x16_t high, low;
};

// fours: of a row the parts of four numbers, and `next` further on those of the next four; null: zeros.
SAX_INLINE int32x2x2_t eight_of(const int8_t* fours, size_t next, bool both) {
  if (!fours) return {{vdup_n_s32(0), vdup_n_s32(0)}};
  int32x2_t first = vreinterpret_s32_s8(vld1_s8(fours));
  int32x2_t second = both ? vreinterpret_s32_s8(vld1_s8(fours + next)) : vdup_n_s32(0);
  return vzip_s32(first, second);
}

SAX_INLINE EightOfTwo eight_of_two(const int8_t* fours, int rows, size_t next, bool both) {
  int32x2x2_t a = eight_of(fours, next, both);
  int32x2x2_t b = eight_of(rows > 1 ? fours + kBytesOfFour : nullptr, next, both);
  return {vreinterpretq_s8_s32(vcombine_s32(a.val[0], b.val[0])),
          vreinterpretq_s8_s32(vcombine_s32(a.val[1], b.val[1]))};
}

SAX_INLINE I of_row(const int32x4_t* sums, int row) {
  I made;
  for (int n = 0; n < 4; ++n) {
    int32x4_t a = sums[2 * n], b = sums[2 * n + 1];
    made.v[n] = row ? vuzp2q_s32(a, b) : vuzp1q_s32(a, b);
  }
  return made;
}

SAX_INLINE I add_i(I x, I y) {
  for (int n = 0; n < 4; ++n) x.v[n] = vaddq_s32(x.v[n], y.v[n]);
  return x;
}

// As `add_wholes` of the other instruction sets: eight numbers at a time, at most two rows.
template <int R, Stored S>
SAX_INLINE void add_wholes(Wholes* wholes, const uint8_t*& at, const int8_t*& x, size_t i, size_t stop) {
  static_assert(R <= 2);
  constexpr bool bytes = S == Stored::i8;
  constexpr size_t next = R * kBytesOfFour;
  int32x4_t high[8], low[8];  // each of two outputs by two rows
  for (int n = 0; n < 8; ++n) high[n] = low[n] = vdupq_n_s32(0);
  for (; i < stop; i += 8) {
    bool both = i + 4 < stop;
    B held = load_bytes(at), first, second;
    __builtin_prefetch(at + 8 * 64);
    if constexpr (bytes) {
      first = held;
      for (int n = 0; n < 4; ++n) second.v[n] = vdupq_n_u8(0);
      if (both) second = load_bytes(at + 64);
      at += both ? 128 : 64;
    } else {
      first = numbers_of<S>(low_nibbles(held)), second = numbers_of<S>(high_nibbles(held));
      at += 64;
    }
    EightOfTwo rows = eight_of_two(x, R, next, both);
    x += both ? 2 * next : next;
    for (int n = 0; n < 4; ++n) {
      uint32x4_t one = vreinterpretq_u32_u8(first.v[n]), two = vreinterpretq_u32_u8(second.v[n]);
      uint8x16_t outputs[2] = {vreinterpretq_u8_u32(vzip1q_u32(one, two)),
                               vreinterpretq_u8_u32(vzip2q_u32(one, two))};
      for (int side = 0; side < 2; ++side) {
        high[2 * n + side] = vusmmlaq_s32(high[2 * n + side], outputs[side], rows.high);
        low[2 * n + side] = vusmmlaq_s32(low[2 * n + side], outputs[side], rows.low);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    wholes[r].high = add_i(wholes[r].high, of_row(high, r));
    wholes[r].low = add_i(wholes[r].low, of_row(low, r));
  }
}

}  // namespace sax::SAX_ISA
