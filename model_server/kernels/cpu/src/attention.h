// Attention of a few queries of one sequence to its pages, with a running softmax
// (Milakov and Gimelshein 2018, https://arxiv.org/abs/1805.02867).

#pragma once

#include "page_numbers.h"

namespace sax::SAX_ISA {

constexpr size_t kQueryRows = kAccumulators >= 24 ? 8 : kAccumulators >= 5 ? 4 : 2;  // at once
constexpr int kKeys = 128;            // whose scores are kept at once; a part holds a whole number
constexpr float kMasked = -1e30f;

// At most kKeys keys, in groups of sixteen lanes. Nothing outside `from` and `end` of a group
// contributes, not even numbers that are none.
struct Segment {
  int groups;      // of sixteen keys
  int32_t at[kKeys / kLanes];    // position of the first lane of each
  size_t key[kKeys / kLanes];    // where each group starts among the keys, and among the values
  size_t value[kKeys / kLanes];
  size_t scale[kKeys / kLanes];
  int from[kKeys / kLanes], end[kKeys / kLanes];  // lanes
};

SAX_INLINE Segment segment_at(const Attention& a, const int32_t* table, size_t head, int32_t begin,
                              int32_t first, int32_t end) {
  Segment s;
  s.groups = 0;
  for (int32_t at = begin; at < end && s.groups < kKeys / kLanes; at += kLanes, ++s.groups) {
    s.at[s.groups] = at;
    s.from[s.groups] = first > at ? first - at : 0;
    s.end[s.groups] = end - at < kLanes ? end - at : kLanes;
    size_t in_page = static_cast<size_t>(at) % a.page_size;
    size_t page = static_cast<size_t>(table[static_cast<size_t>(at) / a.page_size]);
    size_t of_head = page * a.kv_heads + head;
    s.key[s.groups] = (of_head * a.key_rows + a.key_first) * a.page_size + in_page;
    s.value[s.groups] = (of_head * a.page_size + in_page) * a.value_dim;
    s.scale[s.groups] = of_head * a.page_size + in_page;
  }
  return s;
}

template <Number N>
SAX_INLINE void fetch_keys(const Attention& a, const Segment& s) {
  for (size_t d = 0; d < a.key_dim; ++d) {
    for (int group = 0; group < s.groups; ++group) fetch<N>(a.keys, s.key[group] + d * a.page_size);
  }
}

// Scores of G groups from the given one on: enough sums at once to hide how long each takes. The
// values of the groups are fetched meanwhile.
template <Number N, int R, int G>
SAX_INLINE void scores_of_groups(const Attention& a, const Segment& s, int group,
                                 const float* queries, float (*scores)[kKeys]) {
  F sums[R][G];
  for (int r = 0; r < R; ++r) {
    for (int g = 0; g < G; ++g) sums[r][g] = set(0.0f);
  }
  for (size_t d = 0; d < a.key_dim; ++d) {
    F keys[G];
    for (int g = 0; g < G; ++g) {
      size_t at = s.key[group + g] + d * a.page_size;
      if (a.values) fetch<N>(a.values, s.value[group + g] + d * kLanes);
      keys[g] = load_numbers<N>(a.keys, at);
    }
    for (int r = 0; r < R; ++r) {
      F query = set(queries[r * a.key_dim + d]);
      for (int g = 0; g < G; ++g) sums[r][g] = fma(keys[g], query, sums[r][g]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int g = 0; g < G; ++g) {
      F sum = sums[r][g];
      if (a.key_scales) sum = mul(sum, load(a.key_scales + s.scale[group + g]));
      store(scores[r] + (group + g) * kLanes, sum);
    }
  }
}

// Vectors beside each other for R rows: their sums stay in registers.
constexpr int beside(int rows) {
  int most = kAccumulators / rows;
  return most >= 4 ? 4 : most >= 2 ? 2 : 1;
}

template <Number N, int R>
SAX_INLINE void scores_of(const Attention& a, const Segment& s, const float* queries,
                          float (*scores)[kKeys]) {
  constexpr int wide = beside(R);
  int group = 0;
  for (; group + wide <= s.groups; group += wide) {
    scores_of_groups<N, R, wide>(a, s, group, queries, scores);
  }
  for (; group < s.groups; ++group) scores_of_groups<N, R, 1>(a, s, group, queries, scores);
}

// Leaves the groups of which some row attends to a key; those of no row would add zeros.
template <int R>
SAX_INLINE void leave_chosen(Segment& s, const uint8_t* const* chosen) {
  int kept = 0;
  for (int group = 0; group < s.groups; ++group) {
    uint8_t any = 0;
    for (int r = 0; r < R; ++r) {
      for (int i = s.from[group]; i < s.end[group]; ++i) any |= chosen[r][s.at[group] + i];
    }
    if (!any) continue;
    s.at[kept] = s.at[group], s.from[kept] = s.from[group], s.end[kept] = s.end[group];
    s.key[kept] = s.key[group], s.value[kept] = s.value[group], s.scale[kept] = s.scale[group];
    ++kept;
  }
  s.groups = kept;
}

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
  for (int group = 0; group < s.groups; ++group) {
    size_t keys = group < next.groups ? next.key[group] : s.key[group];
    for (int i = s.from[group]; i < s.end[group]; ++i) {
      F values[C];
      for (int c = 0; c < C; ++c) {
        size_t in_group = i * a.value_dim + column + c * kLanes;
        fetch<N>(a.keys, keys + in_group / kLanes * a.page_size);
        values[c] = load_some_numbers<N>(a.values, s.value[group] + in_group, lanes(c));
      }
      for (int r = 0; r < R; ++r) {
        F weight = set(weights[r][group * kLanes + i]);
        for (int c = 0; c < C; ++c) sums[r][c] = fma(values[c], weight, sums[r][c]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) {
      store_some(out + r * a.value_dim + column + c * kLanes, sums[r][c], lanes(c));
    }
  }
}

template <Number N, int R>
SAX_INLINE void add_keys_as_values(const Attention& a, const Segment& s, float (*weights)[kKeys],
                                   const float* decays, float* out) {
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
      for (int r = 0; r < R; ++r) sums[r] = fma(keys, load(weights[r] + group * kLanes), sums[r]);
    }
    for (int r = 0; r < R; ++r) {
      float* to = out + r * a.value_dim + d;
      *to = *to * decays[r] + sum(sums[r]);
    }
  }
}

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

  template <int R>
  SAX_INLINE void scores(const Attention& a, const Segment& s, const float* queries, float (*to)[kKeys]) {
    scores_of<N, R>(a, s, queries, to);
  }

  template <int R>
  SAX_INLINE void values(const Attention& a, const Segment& s, const Segment& next,
                         float (*weights)[kKeys], const float* decays, float* out) {
    if (!a.values) return add_keys_as_values<N, R>(a, s, weights, decays, out);
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

// R rows, each a query with one of its heads: queries [R][parts][D], sums [R][W].
template <class Order, int R>
static void attend_rows(const Attention& a, const int32_t* table, size_t head, int32_t first,
                        int32_t end, const float* queries, const Seen* seen, float* out,
                        Partial* states) {
  alignas(64) float scores[R][kKeys];
  float decays[R];
  const uint8_t* chosen[R];
  for (int r = 0; r < R; ++r) chosen[r] = seen[r].chosen;
  // Segments end at the same positions wherever the first of these rows begins to see.
  auto behind = [](int32_t at) { return at / kKeys * kKeys + kKeys; };
  auto segment = [&](int32_t at) {
    return segment_at(a, table, head, at, first, behind(at) < end ? behind(at) : end);
  };
  int32_t at = first / kLanes * kLanes;
  Segment next = segment(at);
  fetch_keys<Order::kNumber>(a, next);
  for (; at < end; at = behind(at)) {
    Segment s = next;
    next = segment(behind(at));
    if (chosen[0]) leave_chosen<R>(s, chosen);
    if (!s.groups) continue;
    Order::template scores<R>(a, s, queries, scores);
    for (int r = 0; r < R; ++r) decays[r] = weigh(a, s, seen[r], scores[r], states[r]);
    Order::template values<R>(a, s, next, scores, decays, out);
  }
}

template <class Order, int R>
SAX_INLINE void attend_some(const Attention& a, const int32_t* table, size_t head, int32_t first,
                            int32_t end, const float* queries, const Seen* seen, float* out,
                            Partial* states, size_t rows) {
  if constexpr (R > 0) {
    if (rows == R) {
      return attend_rows<Order, R>(a, table, head, first, end, queries, seen, out, states);
    }
    attend_some<Order, R - 1>(a, table, head, first, end, queries, seen, out, states, rows);
  }
}

// Rows on vectors: their queries, and sums over all keys and over a part.
template <class Order>
struct OnVectors {
  static constexpr size_t kRows = Order::kRows;
  float queries[kRows * Order::kParts * kMostDim], sums_[kRows * kMostDim], parts[kRows * kMostDim];

  void take(const Attention& a, size_t r, const float* query) {
    Order::take(a, query, queries + r * Order::kParts * a.key_dim);
  }
  float* sums(const Attention& a, size_t r) { return sums_ + r * a.value_dim; }
  float* part(const Attention& a, size_t r) { return parts + r * a.value_dim; }
  void attend(const Attention& a, const int32_t* table, size_t head, int32_t first, int32_t end,
              const Seen* seen, Partial* states, size_t count) {
    attend_some<Order, kRows>(a, table, head, first, end, queries, seen, parts, states, count);
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
                      int32_t end, float* part_sums, Partial* partials) {
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
    for (int32_t at = first / kKeysOfPart * kKeysOfPart; at < last; at += kKeysOfPart) {
      for (size_t r = 0; r < count; ++r) {
        of_part[r] = {kMasked, 0.0f};
        memset(by.part(a, r), 0, width * sizeof(float));
      }
      int32_t part_end = at + kKeysOfPart < last ? at + kKeysOfPart : last;
      by.attend(a, q.table, head, first > at ? first : at, part_end, seen, of_part, count);
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
                                    int32_t begin, int32_t end, float* sums, Partial* partials) {
  with_number(a.number, [&](auto number) {
    OnVectors<Widened<number()>> rows;
    attend_by(rows, a, q, head, begin, end, sums, partials);
  });
}

}  // namespace sax::SAX_ISA
