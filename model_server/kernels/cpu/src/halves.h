// Attention to pages of bf16 in the order of sums of AMX's tile registers, on vectors: a row gets the
// bits that tile_attention.h gives it (Intel's Software Developer's Manual, volume 2: TDPBF16PS).
//
// Queries and weights of values are two bf16 each, a number and what rounding took from it.

#pragma once

#include "attention.h"
#include "flushing.h"
#include "operands.h"

namespace sax::SAX_ISA {

constexpr size_t kStep = 32;  // products that a register sums from zero on: even and odd ones apart
constexpr int kInStep = static_cast<int>(kStep);

// Two bf16 for each number: to[2][distance].
SAX_INLINE void split(const float* x, size_t count, uint16_t* to, size_t distance) {
  constexpr size_t some = 4 * kStep;
  alignas(64) float rest[some];
  for (size_t at = 0; at < count; at += some) {
    size_t now = count - at < some ? count - at : some;
    narrow(x + at, now, to + at);
    for (size_t i = 0; i < now; ++i) rest[i] = x[at + i] - number_at<Number::bf16>(to, at + i);
    narrow(rest, now, to + distance + at);
  }
}

// As above, widened again.
SAX_INLINE void split_wide(const float* x, size_t count, float* to, size_t distance) {
  constexpr size_t some = kKeys;
  alignas(64) uint16_t halves[2 * some];
  for (size_t at = 0; at < count; at += some) {
    size_t now = count - at < some ? count - at : some;
    split(x + at, now, halves, some);
    for (size_t i = 0; i < now; ++i) {
      to[at + i] = number_at<Number::bf16>(halves, i);
      to[distance + at + i] = number_at<Number::bf16>(halves, some + i);
    }
  }
}

// The sums of one step, of R rows and C vectors: of either part of a row's numbers, even and odd ones.
template <int R, int C>
struct StepSums {
  F of[R][C][2][2];

  SAX_INLINE void clear(StepSums& sums) {
    for (auto& row : sums.of) {
      for (auto& each : row) each[0][0] = each[0][1] = each[1][0] = each[1][1] = set(0.0f);
    }
  }

  // x: numbers of each row [parts][distance].
  template <int Odd>
  SAX_INLINE void add_to(StepSums& sums, const F (&vectors)[C], const float* x, size_t of_row, size_t distance) {
    for (int r = 0; r < R; ++r) {
      for (int part = 0; part < 2; ++part) {
        F number = set(x[static_cast<size_t>(r) * of_row + static_cast<size_t>(part) * distance]);
        for (int c = 0; c < C; ++c) {
          sums.of[r][c][part][Odd] = fma(vectors[c], number, sums.of[r][c][part][Odd]);
        }
      }
    }
  }

  SAX_INLINE void add_up(const StepSums& sums, F (&totals)[R][C]) {
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < C; ++c) {
        for (const auto& part : sums.of[r][c]) totals[r][c] = add(totals[r][c], add(part[0], part[1]));
      }
    }
  }
};

template <int R, int G>
SAX_INLINE void step_scores(const Attention& a, const Segment& s, const Segment& next, int group,
                            const float* queries, float (*scores)[kKeys]) {
  F totals[R][G];
  for (auto& row : totals) {
    for (F& total : row) total = set(0.0f);
  }
  for (size_t step = 0; step < a.key_dim; step += kStep) {
    size_t end = a.key_dim - step < kStep ? a.key_dim : step + kStep;
    StepSums<R, G> sums;
    StepSums<R, G>::clear(sums);
    auto keys_of = [&](size_t d, F(&keys)[G]) __attribute__((always_inline)) {
      for (int g = 0; g < G; ++g) {
        size_t at = s.key[group + g] + d * a.page_size;
        if (group + g < next.groups) fetch<Number::bf16>(a.keys, next.key[group + g] + d * a.page_size);
        keys[g] = load_bf16(static_cast<const uint16_t*>(a.keys) + at);
      }
    };
    F keys[G];
    for (size_t d = step; d < end; d += 2) {
      keys_of(d, keys);
      StepSums<R, G>::template add_to<0>(sums, keys, queries + d, 2 * a.key_dim, a.key_dim);
      if (d + 1 == end) break;
      keys_of(d + 1, keys);
      StepSums<R, G>::template add_to<1>(sums, keys, queries + d + 1, 2 * a.key_dim, a.key_dim);
    }
    StepSums<R, G>::add_up(sums, totals);
  }
  for (int r = 0; r < R; ++r) {
    for (int g = 0; g < G; ++g) store(scores[r] + (group + g) * kLanes, totals[r][g]);
  }
}

// The weights of keys, of each row [parts][kKeys].
template <int R, int C>
SAX_INLINE void step_values(const Attention& a, const Segment& s, const Segment& next, const float* weights,
                            const float* decays, size_t column, int last, float* out) {
  auto lanes = [&](int c) { return c + 1 < C ? kLanes : last; };
  auto place = [&](int r, int c) {
    return out + static_cast<size_t>(r) * a.value_dim + column + static_cast<size_t>(c) * kLanes;
  };
  F totals[R][C];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) totals[r][c] = mul(load_some(place(r, c), lanes(c)), set(decays[r]));
  }
  auto values_of = [&](int group, size_t key, F(&values)[C]) __attribute__((always_inline)) {
    bool fetches = group < next.groups;
    for (int c = 0; c < C; ++c) {
      size_t in_group = key * a.value_dim + column + static_cast<size_t>(c) * kLanes;
      if (fetches) fetch<Number::bf16>(a.values, next.value[group] + in_group);
      values[c] = load_some_numbers<Number::bf16>(a.values, s.value[group] + in_group, lanes(c));
    }
  };
  for (int group = 0; group < s.groups;) {
    StepSums<R, C> sums;
    StepSums<R, C>::clear(sums);
    for (int32_t step = s.at[group] / kInStep; group < s.groups && s.at[group] / kInStep == step; ++group) {
      auto add = [&]<int Odd>(int i, std::integral_constant<int, Odd>) __attribute__((always_inline)) {
        F values[C];
        values_of(group, static_cast<size_t>(i), values);
        StepSums<R, C>::template add_to<Odd>(sums, values, weights + group * kLanes + i, 2 * kKeys, kKeys);
      };
      constexpr std::integral_constant<int, 0> even;
      constexpr std::integral_constant<int, 1> odd;
      int i = s.from[group], end = s.end[group];
      if (i % 2 && i < end) add(i++, odd);
      for (; i + 1 < end; i += 2) add(i, even), add(i + 1, odd);
      if (i < end) add(i, even);
    }
    StepSums<R, C>::add_up(sums, totals);
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) store_some(place(r, c), totals[r][c], lanes(c));
  }
}

// The arithmetic for `attend_rows`.
struct Halves {
  static constexpr Number kNumber = Number::bf16;
  static constexpr size_t kRows = kAccumulators >= 24 ? 4 : 1, kParts = 2;

  static constexpr int beside(int rows) { return static_cast<int>(kRows) / rows; }

  static void take(const Attention& a, const float* query, float* to) {
    float scaled[kMostDim];
    Widened<Number::bf16>::take(a, query, scaled);
    split_wide(scaled, a.key_dim, to, a.key_dim);
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
    for (; group + wide <= s.groups; group += wide) step_scores<R, wide>(a, s, next, group, queries, to);
    for (; group < s.groups; ++group) step_scores<R, 1>(a, s, next, group, queries, to);
  }

  template <int R>
  SAX_INLINE void values(const Attention& a, const Segment& s, const Segment& next,
                         float (*weights)[kKeys], const float* decays, float* out) {
    alignas(64) float parts[R][2 * kKeys];
    size_t count = static_cast<size_t>(s.groups) * kLanes;
    for (int r = 0; r < R; ++r) split_wide(weights[r], count, parts[r], kKeys);
    size_t column = 0;
    constexpr int wide = beside(R);
    for (; column + wide * kLanes <= a.value_dim; column += wide * kLanes) {
      step_values<R, wide>(a, s, next, parts[0], decays, column, kLanes, out);
    }
    for (; column < a.value_dim; column += kLanes) {
      int last = a.value_dim - column < kLanes ? static_cast<int>(a.value_dim - column) : kLanes;
      step_values<R, 1>(a, s, next, parts[0], decays, column, last, out);
    }
  }
};

static void attend_in_halves(const Attention& a, const Queries& q, size_t head, int32_t begin, int32_t end,
                             float* sums, Partial* partials, const Coming& coming) {
  Flushing flushing;
  OnVectors<Halves> rows(a);
  attend_by(rows, a, q, head, begin, end, sums, partials, coming);
}

static void join_in_halves(const Attention& a, size_t row, size_t parts, const float* sums,
                           const Partial* partials) {
  Flushing flushing;
  join(a, row, parts, sums, partials);
}

}  // namespace sax::SAX_ISA
