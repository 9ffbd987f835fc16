// Scores of tokens by which queries choose what they attend to.

#pragma once

#include "attention.h"

namespace sax::SAX_ISA {

template <Number N, int R>
SAX_INLINE void some_scores(const Attention& a, const Segment& s, const Segment& next, const float* queries,
                            size_t rows, float (*scores)[kKeys]) {
  if constexpr (R > 0) {
    if (rows == R) return scores_of<N, R>(a, s, next, queries, scores);
    some_scores<N, R - 1>(a, s, next, queries, rows, scores);
  }
}

template <Number N>
static void score_number(const Attention& a, const int32_t* table, size_t row, int32_t begin,
                         int32_t end, const float* weights, float* to, size_t distance) {
  const float* queries = a.queries + row * a.heads * a.key_dim;
  alignas(64) float scores[kQueryRows][kKeys];
  Segment none;
  none.groups = 0;
  for (int32_t at = begin; at < end; at += kKeys) {
    int32_t next = at + kKeys < end ? at + kKeys : end;
    Segment s = segment_at(a, table, 0, at, at, next);
    F totals[kKeys / kLanes];
    for (F& total : totals) total = set(0.0f);
    for (size_t first = 0; first < a.heads; first += kQueryRows) {
      size_t count = a.heads - first < kQueryRows ? a.heads - first : kQueryRows;
      some_scores<N, kQueryRows>(a, s, none, queries + first * a.key_dim, count, scores);
      for (size_t r = 0; r < count; ++r) {
        if (!weights) {
          memcpy(to + (first + r) * distance + at, scores[r], static_cast<size_t>(next - at) * sizeof(float));
          continue;
        }
        F weight = set(weights[row * a.heads + first + r]);
        for (int group = 0; group < s.groups; ++group) {
          F found = max(load(scores[r] + group * kLanes), set(0.0f));
          totals[group] = fma(found, weight, totals[group]);
        }
      }
    }
    for (int group = 0; weights && group < s.groups; ++group) {
      int32_t left = next - s.at[group];
      store_some(to + s.at[group], totals[group], left < kLanes ? left : kLanes);
    }
  }
}

static void score(const Attention& a, const int32_t* table, size_t row, int32_t begin, int32_t end,
                  const float* weights, float* to, size_t distance) {
  with_number(a.number, [&](auto number) {
    score_number<number()>(a, table, row, begin, end, weights, to, distance);
  });
}

}  // namespace sax::SAX_ISA
