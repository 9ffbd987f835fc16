// Attention of a few queries of one sequence to its pages, with a running softmax
// (Milakov and Gimelshein 2018, https://arxiv.org/abs/1805.02867).

#pragma once

#include "held_lines.h"
#include "packed_keys.h"
#include "segments.h"

namespace sax::SAX_ISA {

constexpr size_t kQueryRows = kAccumulators >= 24 ? 8 : kAccumulators >= 5 ? 4 : 2;  // at once
constexpr float kMasked = -1e30f;

// What a query sees: a flag for each cached token, or null for all, between these positions.
struct Seen {
  int32_t from, limit;
  const uint8_t* chosen;
};

SAX_INLINE void mask(const Segment& s, const Seen& seen, float* scores) {
  for (int group = 0; group < s.groups; ++group, scores += kLanes) {
    int32_t at = s.at[group];
    if (!seen.chosen && at >= seen.from && at + kLanes <= seen.limit) continue;
    for (int i = 0; i < kLanes; ++i) {
      bool within = at + i >= seen.from && at + i < seen.limit;
      if (!within || (seen.chosen && !seen.chosen[at + i])) scores[i] = kMasked;
    }
  }
}

// How many of the first rows, a multiple of R, are one query's and choose alike; R if the first R do not.
SAX_INLINE size_t rows_alike(const Seen* seen, size_t rows, size_t together) {
  size_t alike = 1;
  while (alike < rows && seen[alike].chosen == seen[0].chosen) ++alike;
  return alike < together ? together : alike / together * together;
}

// Turns scores into weights of the values; returns by how much earlier sums shrink.
SAX_INLINE float weigh(const Attention& a, const Segment& s, const Seen& seen, float* scores,
                       Partial& state) {
  int count = s.groups * kLanes;
  if (a.softcap > 0.0f) {
    for (int i = 0; i < count; ++i) scores[i] = a.softcap * __builtin_tanhf(scores[i] / a.softcap);
  }
  mask(s, seen, scores);
  F most = set(kMasked);
  for (int i = 0; i < count; i += kLanes) most = max(most, load(scores + i));
  float now = highest(most);
  if (now <= kMasked) {  // sees none of these
    for (int i = 0; i < count; i += kLanes) store(scores + i, set(0.0f));
    return 1.0f;
  }
  now = now > state.highest ? now : state.highest;
  F total = set(0.0f), less = set(-now);
  for (int i = 0; i < count; i += kLanes) {
    F weight = exp(add(load(scores + i), less));
    total = add(total, weight);
    store(scores + i, weight);
  }
  float lanes[kLanes];
  store(lanes, exp(set(state.highest - now)));
  state.total = state.total * lanes[0] + sum(total);
  state.highest = now;
  if (a.value_scales || (!a.values && a.key_scales)) {
    const float* scales = a.values ? a.value_scales : a.key_scales;
    for (int group = 0; group < s.groups; ++group) {
      float* at = scores + group * kLanes;
      store(at, mul(load(at), load(scales + s.scale[group])));
    }
  }
  return lanes[0];
}

// last: lanes of the last of C vectors. The keys of the next segment are fetched meanwhile.
template <Number N, int R, int C>
SAX_INLINE void add_values(const Attention& a, const Segment& s, const Segment& next,
                           float (*weights)[kKeys], const float* decays, size_t column, int last,
                           float* out) {
  auto lanes = [&](int c) { return c + 1 < C ? kLanes : last; };
  F sums[R][C];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) {
      F before = load_some(out + r * a.value_dim + column + c * kLanes, lanes(c));
      sums[r][c] = mul(before, set(decays[r]));
    }
  }
  auto add_key = [&](int group, int i) {
    F values[C];
    for (int c = 0; c < C; ++c) {
      size_t in_group = i * a.value_dim + column + c * kLanes;
      if (group < next.groups) fetch<N>(a.values, next.value[group] + in_group);
      values[c] = load_some_numbers<N>(a.values, s.value[group] + in_group, lanes(c));
    }
    for (int r = 0; r < R; ++r) {
      F weight = set(weights[r][group * kLanes + i]);
      for (int c = 0; c < C; ++c) sums[r][c] = fma(values[c], weight, sums[r][c]);
    }
  };
  if (s.chosen) {  // the others would add zeros
    for (int k = 0; k < s.count; ++k) add_key(s.place[k] / kLanes, s.place[k] % kLanes);
  } else {
    for (int group = 0; group < s.groups; ++group) {
      for (int i = s.from[group]; i < s.end[group]; ++i) add_key(group, i);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) {
      store_some(out + r * a.value_dim + column + c * kLanes, sums[r][c], lanes(c));
    }
  }
}

constexpr size_t kTimes = 4;  // as many rows as are multiplied at once attend to a segment in turn

// Of times R rows: scores with the keys of a segment and then weights of its values, and by how much
// earlier sums shrink.
template <int R>
struct RowWeights {
  size_t times;
  alignas(64) float weights[kTimes][R][kKeys];
  float decays[kTimes][R];
};

// Adds weighted keys, which are the values, too, to sums [times][R][W].
#if defined(SAX_PACKS)

// Of C vectors of each row's numbers.
template <Number N, int R, int C>
SAX_INLINE void add_key_columns(const Attention& a, const Segment& s, const RowWeights<R>& of, size_t column,
                                float* out) {
  alignas(64) float turned[kKeys][C][kLanes];
  const PackedKeys* packed = s.chosen && packed_keys().count ? &packed_keys() : nullptr;
  turn_keys<N, C>(a, s, packed, column, turned);
  for (size_t time = 0; time < of.times; ++time) {
    add_turned_keys<R, C>(a, s, packed != nullptr, turned, of.weights[time], of.decays[time], column,
                          out + time * R * a.value_dim);
  }
}

template <Number N, int R>
SAX_INLINE void add_keys_as_values(const Attention& a, const Segment& s, const RowWeights<R>& of, float* out) {
  constexpr size_t wide = beside(R), columns = wide * kLanes;
  size_t column = 0;
  for (; column + columns <= a.key_dim; column += columns) add_key_columns<N, R, wide>(a, s, of, column, out);
  for (; column < a.key_dim; column += kLanes) add_key_columns<N, R, 1>(a, s, of, column, out);
}

#else

template <Number N, int R>
SAX_INLINE void add_keys_as_values(const Attention& a, const Segment& s, const RowWeights<R>& of, float* out) {
  for (size_t time = 0; time < of.times; ++time, out += R * a.value_dim) {
    for (size_t d = 0; d < a.key_dim; ++d) {
      F sums[R];
      for (int r = 0; r < R; ++r) sums[r] = set(0.0f);
      for (int group = 0; group < s.groups; ++group) {
        F keys = load_numbers<N>(a.keys, s.key[group] + d * a.page_size);
        if (s.from[group] > 0 || s.end[group] < kLanes) {
          float lanes[kLanes], kept[kLanes] = {};
          store(lanes, keys);
          for (int i = s.from[group]; i < s.end[group]; ++i) kept[i] = lanes[i];
          keys = load(kept);
        }
        for (int r = 0; r < R; ++r) sums[r] = fma(keys, load(of.weights[time][r] + group * kLanes), sums[r]);
      }
      for (int r = 0; r < R; ++r) {
        float* to = out + r * a.value_dim + d;
        *to = *to * of.decays[time][r] + sum(sums[r]);
      }
    }
  }
}

#endif

// How rows are compared with keys and weighted values added up, for numbers of a page that are widened to
// float32; `Halves` has another order of sums.
template <Number N>
struct Widened {
  static constexpr Number kNumber = N;
  static constexpr size_t kRows = kQueryRows, kParts = 1;  // rows at once; numbers that one of a query becomes

  // Scaled, to[parts][D].
  static void take(const Attention& a, const float* query, float* to) {
    for (size_t d = 0; d < a.key_dim; ++d) to[d] = query[d] * a.scale;
  }

  // Before the scores of a segment of which some keys are chosen.
  template <int R>
  SAX_INLINE void take_chosen([[maybe_unused]] const Attention& a, [[maybe_unused]] const Segment& s) {
#if defined(SAX_PACKS)
    pack<N, R>(a, s, packed_keys());
#endif
  }

  template <int R>
  SAX_INLINE void scores(const Attention& a, const Segment& s, const Segment& next, const float* queries,
                         float (*to)[kKeys]) {
#if defined(SAX_PACKS)
    if (s.chosen && packed_keys().count) return scores_of_packed<R>(a, s, packed_keys(), queries, to);
#endif
    scores_of<N, R>(a, s, next, queries, to);
  }

  template <int R>
  SAX_INLINE void keys_as_values(const Attention& a, const Segment& s, const RowWeights<R>& of, float* out) {
    add_keys_as_values<N, R>(a, s, of, out);
  }

  template <int R>
  SAX_INLINE void values(const Attention& a, const Segment& s, const Segment& next,
                         float (*weights)[kKeys], const float* decays, float* out) {
    size_t column = 0;
    constexpr int wide = beside(R);
    for (; column + wide * kLanes <= a.value_dim; column += wide * kLanes) {
      add_values<N, R, wide>(a, s, next, weights, decays, column, kLanes, out);
    }
    for (; column < a.value_dim; column += kLanes) {
      int last = a.value_dim - column < kLanes ? static_cast<int>(a.value_dim - column) : kLanes;
      add_values<N, R, 1>(a, s, next, weights, decays, column, last, out);
    }
  }
};

// Times R rows, each a query with one of its heads: queries [times][R][parts][D], sums [times][R][W]. All
// attend to a segment while the cache holds it.
template <class Order, int R>
static void attend_rows(const Attention& a, const int32_t* table, size_t head, int32_t first,
                        int32_t end, const Segment& after, const float* queries, const Seen* seen,
                        float* out, Partial* states, size_t times) {
  RowWeights<R> of;
  Segment nothing;
  nothing.groups = 0;
  // Rows that see the same of a segment. The first fetch the next one meanwhile: as much of it.
  auto attend_to = [&](const Segment& s, const Segment& next, size_t begin) {
    for (size_t time = 0; time < of.times; ++time) {
      size_t row = begin + time * R;
      Order::template scores<R>(a, s, row ? nothing : next, queries + row * Order::kParts * a.key_dim,
                                of.weights[time]);
      for (int r = 0; r < R; ++r) {
        of.decays[time][r] = weigh(a, s, seen[row + r], of.weights[time][r], states[row + r]);
      }
    }
    if (!a.values) return Order::template keys_as_values<R>(a, s, of, out + begin * a.value_dim);
    for (size_t time = 0; time < of.times; ++time) {
      Order::template values<R>(a, s, begin + time ? nothing : next, of.weights[time], of.decays[time],
                                out + (begin + time * R) * a.value_dim);
    }
  };
  auto attend_to_chosen = [&](const Segment& whole, const Segment& next) {
    for (size_t begin = 0; begin < times * R; begin += of.times * R) {
      const uint8_t* chosen[R];
      for (int r = 0; r < R; ++r) chosen[r] = seen[begin + r].chosen;
      of.times = rows_alike(seen + begin, times * R - begin, R) / R;
      Segment s = whole;
      leave_chosen<R>(s, chosen);
      if (!s.groups) continue;
      Order::template take_chosen<R>(a, s);
      attend_to(s, next, begin);
    }
  };
  auto segment = [&](int32_t at) {
    return segment_at(a, table, head, at, first, behind(at) < end ? behind(at) : end);
  };
  int32_t at = first / kLanes * kLanes;
  for (Segment next = segment(at); at < end; at = behind(at)) {
    Segment s = next;
    next = behind(at) < end ? segment(behind(at)) : after;
    if (seen[0].chosen) {
      attend_to_chosen(s, next);
    } else {
      of.times = times;
      attend_to(s, next, 0);
    }
    fetch_groups<Order::kNumber>(a, next, s.groups);
  }
}

template <class Order, int R>
SAX_INLINE void attend_some(const Attention& a, const int32_t* table, size_t head, int32_t first,
                            int32_t end, const Segment& after, const float* queries, const Seen* seen,
                            float* out, Partial* states, size_t rows) {
  if constexpr (R > 0) {
    if (rows == R) {
      return attend_rows<Order, R>(a, table, head, first, end, after, queries, seen, out, states, 1);
    }
    attend_some<Order, R - 1>(a, table, head, first, end, after, queries, seen, out, states, rows);
  }
}

// Rows on vectors: their queries, and sums over all keys and over a part.
template <class Order>
struct OnVectors {
  static constexpr size_t kTogether = Order::kRows, kRows = kTimes * kTogether;
  float *queries, *held, *parts;

  explicit OnVectors(const Attention& a)
      : queries(numbers_held<8>(kRows * Order::kParts * a.key_dim)),
        held(numbers_held<9>(kRows * a.value_dim)),
        parts(numbers_held<10>(kRows * a.value_dim)) {}

  void take(const Attention& a, size_t r, const float* query) {
    Order::take(a, query, queries + r * Order::kParts * a.key_dim);
  }
  float* sums(const Attention& a, size_t r) { return held + r * a.value_dim; }
  float* part(const Attention& a, size_t r) { return parts + r * a.value_dim; }
  void fetch_first(const Attention& a, const Segment& s) { fetch_groups<Order::kNumber>(a, s, 0); }
  // after: the segment to attend to when these rows are done.
  void attend(const Attention& a, const int32_t* table, size_t head, int32_t first, int32_t end,
              const Segment& after, const Seen* seen, Partial* states, size_t count) {
    size_t times = count / kTogether, whole = times * kTogether;
    if (times) {
      attend_rows<Order, kTogether>(a, table, head, first, end, after, queries, seen, parts, states, times);
    }
    attend_some<Order, kTogether - 1>(a, table, head, first, end, after,
                                      queries + whole * Order::kParts * a.key_dim, seen + whole,
                                      part(a, whole), states + whole, count - whole);
  }
};

// Adds sums over a part of the keys to those over the parts before it.
SAX_INLINE void add_part(const float* part, const Partial& of_part, size_t width, float* sums,
                         Partial& state) {
  if (of_part.total <= 0.0f) return;
  if (state.total <= 0.0f) {
    memcpy(sums, part, width * sizeof(float));
    state = of_part;
    return;
  }
  float highest = of_part.highest > state.highest ? of_part.highest : state.highest;
  float decay[kLanes], by[kLanes];
  store(decay, exp(set(state.highest - highest)));
  store(by, exp(set(of_part.highest - highest)));
  for (size_t w = 0; w < width; w += kLanes) {
    int count = width - w < kLanes ? static_cast<int>(width - w) : kLanes;
    F before = mul(load_some(sums + w, count), set(decay[0]));
    store_some(sums + w, fma(load_some(part + w, count), set(by[0]), before), count);
  }
  state = {highest, state.total * decay[0] + of_part.total * by[0]};
}

// The state before any key: of what was attended to before, or of the sink, which has no value.
// vector: of a row and a head.
SAX_INLINE Partial before_keys(const Attention& a, size_t vector, float* sums) {
  if (!a.begun) {
    memset(sums, 0, a.value_dim * sizeof(float));
    return a.sinks ? Partial{a.sinks[vector % a.heads], 1.0f} : Partial{kMasked, 0.0f};
  }
  memcpy(sums, a.begun + vector * a.value_dim, a.value_dim * sizeof(float));
  return {a.begun_states[2 * vector], a.begun_states[2 * vector + 1]};
}

SAX_INLINE void divide(const Partial& state, size_t width, const float* sums, float* out) {
  float by = state.total > 0.0f ? 1.0f / state.total : 0.0f;
  for (size_t w = 0; w < width; ++w) out[w] = sums[w] * by;
}

// Writes what a row and a head attended to, or the sums of it if there is more to come.
SAX_INLINE void finish(const Attention& a, size_t vector, const Partial& state, const float* sums) {
  float* out = a.out + vector * a.value_dim;
  if (!a.states) return divide(state, a.value_dim, sums, out);
  if (out != sums) memcpy(out, sums, a.value_dim * sizeof(float));
  a.states[2 * vector] = state.highest, a.states[2 * vector + 1] = state.total;
}

static void join(const Attention& a, size_t row, size_t parts, const float* sums,
                 const Partial* partials) {
  for (size_t head = 0; head < a.heads; ++head) {
    size_t vector = row * a.heads + head;
    float* out = a.out + vector * a.value_dim;
    Partial state = before_keys(a, vector, out);
    for (size_t part = 0; part < parts; ++part) {
      size_t of_part = part * a.heads + head;
      add_part(sums + of_part * a.value_dim, partials[of_part], a.value_dim, out, state);
    }
    finish(a, vector, state, out);
  }
}

// What a row sees: a query of the batch with one of its heads, of which `vector` counts both.
SAX_INLINE Seen seen_of(const Attention& a, const Queries& q, size_t query, size_t vector) {
  int32_t limit = q.limits[query];
  size_t chooser = a.choosers ? vector % a.heads / (a.heads / a.choosers) : 0;
  const uint8_t* chosen = q.chosen ? q.chosen + (chooser * q.count + query) * q.flags : nullptr;
  return {q.first_of(a, query), limit, chosen};
}

// The keys that some of these rows see, between `begin` and `end`.
template <size_t Most>
SAX_INLINE void narrow_keys(const Seen (&seen)[Most], size_t count, int32_t& begin, int32_t& end) {
  int32_t most = 0, first = INT32_MAX;
  for (size_t r = 0; r < count; ++r) {
    if (seen[r].limit > most) most = seen[r].limit;
    if (seen[r].limit > 0 && seen[r].from < first) first = seen[r].from;
  }
  if (first != INT32_MAX && first > begin) begin = first;
  if (most < end) end = most;
}

// Rows: what computes them, `kRows` at once.
template <class Rows>
static void attend_by(Rows& by, const Attention& a, const Queries& q, size_t head, int32_t begin,
                      int32_t end, float* part_sums, Partial* partials, const Coming& coming) {
  constexpr size_t most = Rows::kRows;
  size_t group = a.heads / a.kv_heads, rows = q.count * group, width = a.value_dim;
  for (size_t row = 0; row < rows; row += most) {
    size_t count = rows - row < most ? rows - row : most;
    Seen seen[most];
    Partial states[most], of_part[most];
    auto vector_of = [&](size_t r) {  // of this sequence
      return (row + r) / group * a.heads + head * group + (row + r) % group;
    };
    for (size_t r = 0; r < count; ++r) {
      size_t query = (row + r) / group;
      size_t vector = q.row(query) * a.heads + head * group + (row + r) % group;
      by.take(a, r, a.queries + vector * a.key_dim);
      seen[r] = seen_of(a, q, query, vector);
      // Of several pieces, what was before is added where they are joined.
      if (partials) memset(by.sums(a, r), 0, width * sizeof(float));
      states[r] = partials ? Partial{kMasked, 0.0f} : before_keys(a, vector, by.sums(a, r));
    }
    int32_t first = begin, last = end;
    narrow_keys(seen, count, first, last);
    if (!row) by.fetch_first(a, first_segment(a, {q.table, head, first, last}));
    for (int32_t at = first / kKeysOfPart * kKeysOfPart; at < last; at += kKeysOfPart) {
      for (size_t r = 0; r < count; ++r) {
        of_part[r] = {kMasked, 0.0f};
        memset(by.part(a, r), 0, width * sizeof(float));
      }
      int32_t part_end = at + kKeysOfPart < last ? at + kKeysOfPart : last;
      Coming next{q.table, head, part_end, last};
      if (part_end >= last) next = row + count < rows ? Coming{} : coming;
      by.attend(a, q.table, head, first > at ? first : at, part_end, first_segment(a, next), seen, of_part, count);
      for (size_t r = 0; r < count; ++r) add_part(by.part(a, r), of_part[r], width, by.sums(a, r), states[r]);
    }
    for (size_t r = 0; r < count; ++r) {
      size_t vector = vector_of(r);
      if (!partials) finish(a, q.first * a.heads + vector, states[r], by.sums(a, r));
      else memcpy(part_sums + vector * width, by.sums(a, r), width * sizeof(float)), partials[vector] = states[r];
    }
  }
}

[[maybe_unused]] static void attend(const Attention& a, const Queries& q, size_t head,
                                    int32_t begin, int32_t end, float* sums, Partial* partials,
                                    const Coming& coming) {
  with_number(a.number, [&](auto number) {
    OnVectors<Widened<number()>> rows(a);
    attend_by(rows, a, q, head, begin, end, sums, partials, coming);
  });
}

}  // namespace sax::SAX_ISA
