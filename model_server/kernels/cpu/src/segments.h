// Segments of the keys of one sequence, and the scores of rows of queries with them.

#pragma once

#include "page_numbers.h"

namespace sax::SAX_ISA {

constexpr int kKeys = 128;            // whose scores are kept at once; a part holds a whole number

// At most kKeys keys, in groups of sixteen lanes. Nothing outside `from` and `end` of a group
// contributes, not even numbers that are none.
struct Segment {
  int groups;      // of sixteen keys
  int32_t at[kKeys / kLanes];    // position of the first lane of each
  size_t key[kKeys / kLanes];    // where each group starts among the keys, and among the values
  size_t value[kKeys / kLanes];
  size_t scale[kKeys / kLanes];
  int from[kKeys / kLanes], end[kKeys / kLanes];  // lanes
  bool chosen;                     // by flags, in which case some row attends to
  uint16_t lanes[kKeys / kLanes];  // these of each group,
  int count;                       // so many keys in all,
  uint8_t place[kKeys];            // at these places among the groups
};

SAX_INLINE Segment segment_at(const Attention& a, const int32_t* table, size_t head, int32_t begin,
                              int32_t first, int32_t end) {
  Segment s;
  s.groups = 0;
  s.chosen = false;
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

// Segments end at the same positions wherever the first of their rows begins to see.
SAX_INLINE int32_t behind(int32_t at) { return at / kKeys * kKeys + kKeys; }

SAX_INLINE Segment first_segment(const Attention& a, const Coming& coming) {
  Segment none;
  none.groups = 0;
  if (!coming.table || coming.begin >= coming.end) return none;
  int32_t begin = coming.begin / kLanes * kLanes, end = behind(begin);
  return segment_at(a, coming.table, coming.kv_head, begin, coming.begin, end < coming.end ? end : coming.end);
}

// Fetches the keys and values of the groups from the given one on.
template <Number N>
SAX_INLINE void fetch_groups(const Attention& a, const Segment& s, int group) {
  for (; group < s.groups; ++group) {
    for (size_t d = 0; d < a.key_dim; ++d) fetch<N>(a.keys, s.key[group] + d * a.page_size);
    for (size_t at = 0; a.values && at < kLanes * a.value_dim; at += kLanes) fetch<N>(a.values, s.value[group] + at);
  }
}

// Scores of G groups from the given one on: enough sums at once to hide how long each takes. The
// keys of the next segment are fetched meanwhile.
template <Number N, int R, int G>
SAX_INLINE void scores_of_groups(const Attention& a, const Segment& s, const Segment& next, int group,
                                 const float* queries, float (*scores)[kKeys]) {
  F sums[R][G];
  for (int r = 0; r < R; ++r) {
    for (int g = 0; g < G; ++g) sums[r][g] = set(0.0f);
  }
  for (size_t d = 0; d < a.key_dim; ++d) {
    F keys[G];
    for (int g = 0; g < G; ++g) {
      if (group + g < next.groups) fetch<N>(a.keys, next.key[group + g] + d * a.page_size);
      keys[g] = load_numbers<N>(a.keys, s.key[group + g] + d * a.page_size);
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
SAX_INLINE void scores_of(const Attention& a, const Segment& s, const Segment& next,
                          const float* queries, float (*scores)[kKeys]) {
  constexpr int wide = beside(R);
  int group = 0;
  for (; group + wide <= s.groups; group += wide) {
    scores_of_groups<N, R, wide>(a, s, next, group, queries, scores);
  }
  for (; group < s.groups; ++group) scores_of_groups<N, R, 1>(a, s, next, group, queries, scores);
}

// Leaves the groups of which some row attends to a key; those of no row would add zeros.
template <int R>
SAX_INLINE void leave_chosen(Segment& s, const uint8_t* const* chosen) {
  int kept = 0;
  s.count = 0;
  for (int group = 0; group < s.groups; ++group) {
    uint32_t lanes = 0;
    for (int r = 0; r < R; ++r) {
      if (r && chosen[r] == chosen[r - 1]) continue;
      for (int i = s.from[group]; i < s.end[group]; ++i) lanes |= uint32_t{chosen[r][s.at[group] + i] != 0} << i;
    }
    if (!lanes) continue;
    s.at[kept] = s.at[group], s.from[kept] = s.from[group], s.end[kept] = s.end[group];
    s.key[kept] = s.key[group], s.value[kept] = s.value[group], s.scale[kept] = s.scale[group];
    s.lanes[kept] = static_cast<uint16_t>(lanes);
    for (uint32_t left = lanes; left; left &= left - 1) {
      s.place[s.count++] = static_cast<uint8_t>(kept * kLanes + __builtin_ctz(left));
    }
    ++kept;
  }
  s.groups = kept;
  s.chosen = true;
}

}  // namespace sax::SAX_ISA
