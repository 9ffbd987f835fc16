// Attention to pages of bf16 with instructions that multiply pairs of bf16 and add them to f32: queries
// and weights of values are rounded to bf16, as keys and values were. Twice as many products at once as
// with numbers that are widened.

#pragma once

#include "attention.h"
#include "dots.h"
#include "flushing.h"
#include "operands.h"

namespace sax::SAX_ISA {

#if defined(__AVX512BF16__) && !defined(SAX_MATRICES) && !defined(SAX_TILE_MODEL)
#define SAX_PAIRED_ATTENTION

// Numbers of two rows side by side, sixteen pairs.
SAX_INLINE B paired(__m256i even, __m256i odd) {
  // Places among the sixteen numbers of either, the second's behind 32.
  const __m512i order = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7,
                                         38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  return {_mm512_permutex2var_epi16(_mm512_castsi256_si512(even), order, _mm512_castsi256_si512(odd))};
}

SAX_INLINE __m256i sixteen(const void* base, size_t at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(static_cast<const uint16_t*>(base) + at));
}

// The first `count` of sixteen, the others zero.
SAX_INLINE __m256i some_of_sixteen(const void* base, size_t at, int count) {
  if (count == kLanes) return sixteen(base, at);
  auto mask = static_cast<__mmask16>((1u << count) - 1);
  return _mm256_maskz_loadu_epi16(mask, static_cast<const uint16_t*>(base) + at);
}

SAX_INLINE Pair pair_at(const void* of) {
  Pair pair;
  memcpy(&pair, of, sizeof pair);
  return pair;
}

template <int R, int G>
SAX_INLINE void paired_scores(const Attention& a, const Segment& s, const Segment& next, int group,
                              const float* queries, float (*scores)[kKeys]) {
  F sums[R][G];
  for (auto& row : sums) {
    for (F& sum : row) sum = set(0.0f);
  }
  for (size_t d = 0; d < a.key_dim; d += 2) {
    size_t odd = d + 1 < a.key_dim ? d + 1 : d;  // beside a zero of the query
    B keys[G];
    for (int g = 0; g < G; ++g) {
      size_t key = s.key[group + g];
      if (group + g < next.groups) {
        fetch<Number::bf16>(a.keys, next.key[group + g] + d * a.page_size);
        if (a.page_size > kLanes) fetch<Number::bf16>(a.keys, next.key[group + g] + odd * a.page_size);
      }
      keys[g] = paired(sixteen(a.keys, key + d * a.page_size), sixteen(a.keys, key + odd * a.page_size));
    }
    for (int r = 0; r < R; ++r) {
      Pair query = pair_at(queries + static_cast<size_t>(r) * a.key_dim + d / 2);
      for (int g = 0; g < G; ++g) sums[r][g] = dot2(sums[r][g], keys[g], query);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int g = 0; g < G; ++g) store(scores[r] + (group + g) * kLanes, sums[r][g]);
  }
}

// weights: of each row. last: lanes of the last of C vectors.
template <int R, int C>
SAX_INLINE void paired_values(const Attention& a, const Segment& s, const Segment& next,
                              const uint16_t (*weights)[kKeys], const float* decays, size_t column, int last,
                              float* out) {
  auto lanes = [&](int c) { return c + 1 < C ? kLanes : last; };
  auto place = [&](int r, int c) {
    return out + static_cast<size_t>(r) * a.value_dim + column + static_cast<size_t>(c) * kLanes;
  };
  F sums[R][C];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) sums[r][c] = mul(load_some(place(r, c), lanes(c)), set(decays[r]));
  }
  for (int group = 0; group < s.groups; ++group) {
    bool fetches = group < next.groups;
    int from = s.from[group], end = s.end[group];
    auto add = [&](int i, bool even, bool odd) __attribute__((always_inline)) {
      B values[C];
      for (int c = 0; c < C; ++c) {
        size_t in_group = static_cast<size_t>(i) * a.value_dim + column + static_cast<size_t>(c) * kLanes;
        if (fetches) {
          fetch<Number::bf16>(a.values, next.value[group] + in_group);
          fetch<Number::bf16>(a.values, next.value[group] + in_group + a.value_dim);
        }
        size_t at = s.value[group] + in_group;
        values[c] = paired(some_of_sixteen(a.values, at, even ? lanes(c) : 0),
                           some_of_sixteen(a.values, at + a.value_dim, odd ? lanes(c) : 0));
      }
      for (int r = 0; r < R; ++r) {
        Pair weight = pair_at(weights[r] + group * kLanes + i);
        for (int c = 0; c < C; ++c) sums[r][c] = dot2(sums[r][c], values[c], weight);
      }
    };
    // What nobody sees may be no number, and is not multiplied with its weight of zero.
    int i = from;
    if (i % 2) add(i - 1, false, true), ++i;
    for (; i + 1 < end; i += 2) add(i, true, true);
    if (i < end) add(i, true, false);
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) store_some(place(r, c), sums[r][c], lanes(c));
  }
}

// The arithmetic for `attend_rows`.
struct Paired {
  static constexpr Number kNumber = Number::bf16;
  static constexpr size_t kRows = kQueryRows, kParts = 1;

  // Scaled, in pairs, an odd number beside zero: to[(D + 1) / 2].
  static void take(const Attention& a, const float* query, float* to) {
    alignas(64) float scaled[kMostDim + 1];
    for (size_t d = 0; d < a.key_dim; ++d) scaled[d] = query[d] * a.scale;
    scaled[a.key_dim] = 0.0f;
    alignas(64) uint16_t halves[kMostDim + 1];
    size_t count = a.key_dim + a.key_dim % 2;
    narrow(scaled, count, halves);
    memcpy(to, halves, count * sizeof *halves);
  }

  template <int R>
  SAX_INLINE void take_chosen(const Attention&, const Segment&) {}

  template <int R>
  SAX_INLINE void keys_as_values(const Attention&, const Segment&, const RowWeights<R>&, float*) {}  // see `takes_halves`

  template <int R>
  SAX_INLINE void scores(const Attention& a, const Segment& s, const Segment& next, const float* queries,
                         float (*to)[kKeys]) {
    constexpr int wide = beside(R);
    int group = 0;
    for (; group + wide <= s.groups; group += wide) paired_scores<R, wide>(a, s, next, group, queries, to);
    for (; group < s.groups; ++group) paired_scores<R, 1>(a, s, next, group, queries, to);
  }

  template <int R>
  SAX_INLINE void values(const Attention& a, const Segment& s, const Segment& next,
                         float (*weights)[kKeys], const float* decays, float* out) {
    alignas(64) uint16_t halves[R][kKeys];
    size_t count = static_cast<size_t>(s.groups) * kLanes;
    for (int r = 0; r < R; ++r) narrow(weights[r], count, halves[r]);
    size_t column = 0;
    constexpr int wide = beside(R);
    for (; column + wide * kLanes <= a.value_dim; column += wide * kLanes) {
      paired_values<R, wide>(a, s, next, halves, decays, column, kLanes, out);
    }
    for (; column < a.value_dim; column += kLanes) {
      int last = a.value_dim - column < kLanes ? static_cast<int>(a.value_dim - column) : kLanes;
      paired_values<R, 1>(a, s, next, halves, decays, column, last, out);
    }
  }
};

static void attend_paired(const Attention& a, const Queries& q, size_t head, int32_t begin, int32_t end,
                          float* sums, Partial* partials, const Coming& coming) {
  Flushing flushing;  // the instructions take denormal numbers for zeros; so does what is between them
  OnVectors<Paired> rows(a);
  attend_by(rows, a, q, head, begin, end, sums, partials, coming);
}

#endif

}  // namespace sax::SAX_ISA
