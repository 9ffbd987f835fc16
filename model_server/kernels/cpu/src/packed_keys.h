// Keys that are chosen, side by side, so that the others are not multiplied; and keys that are the values,
// too, one after the other. For instructions that move lanes.

#pragma once

#include "held_lines.h"
#include "segments.h"

namespace sax::SAX_ISA {

#if defined(SAX_PACKS)

constexpr size_t kMostPacked = size_t{1} << 16;  // numbers, lanes behind the last key included

struct PackedKeys {
  int count;     // 0: none are packed
  size_t width;  // lanes of each number of the keys
  alignas(64) float keys[kMostPacked];

  int groups() const { return (count + kLanes - 1) / kLanes; }
};

SAX_INLINE PackedKeys& packed_keys() {  // of this thread
  return *reinterpret_cast<PackedKeys*>(lines_held<7>(sizeof(PackedKeys)));
}

// Packs the chosen keys of a segment, if R rows then take less time.
template <Number N, int R>
SAX_INLINE void pack(const Attention& a, const Segment& s, PackedKeys& to) {
  constexpr int as_rows = 3;  // a group is packed in the time in which so many rows multiply it
  to.count = s.count;
  to.width = static_cast<size_t>(to.groups()) * kLanes;
  bool pays = R * (s.groups - to.groups()) > as_rows * s.groups;
  if (!pays || to.width * a.key_dim + kLanes > kMostPacked) {
    to.count = 0;
    return;
  }
  for (size_t d = 0; d < a.key_dim; ++d) {
    float* at = to.keys + d * to.width;
    for (int group = 0; group < s.groups; ++group) {
      store_packed(at, load_numbers<N>(a.keys, s.key[group] + d * a.page_size), s.lanes[group]);
      at += __builtin_popcount(s.lanes[group]);
    }
    store(at, set(0.0f));  // up to whole lanes
  }
}

// As `scores_of`, with the same bits, of the keys that are packed; the others get zeros.
template <int R>
SAX_INLINE void scores_of_packed(const Attention& a, const Segment& s, const PackedKeys& packed,
                                 const float* queries, float (*scores)[kKeys]) {
  Attention of_packed = a;
  of_packed.keys = packed.keys, of_packed.values = nullptr, of_packed.key_scales = nullptr;
  of_packed.page_size = packed.width;
  Segment side_by_side;
  side_by_side.groups = packed.groups();
  for (int group = 0; group < packed.groups(); ++group) {
    side_by_side.key[group] = static_cast<size_t>(group * kLanes);
  }
  alignas(64) float found[R + 1][kKeys];  // lanes behind those of the last row are read, too
  Segment none;
  none.groups = 0;
  scores_of<Number::f32, R>(of_packed, side_by_side, none, queries, found);
  for (int r = 0; r < R; ++r) {
    const float* from = found[r];
    for (int group = 0; group < s.groups; ++group) {
      F sum = load_spread(from, s.lanes[group]);
      if (a.key_scales) sum = mul(sum, load(a.key_scales + s.scale[group]));
      store(scores[r] + group * kLanes, sum);
      from += __builtin_popcount(s.lanes[group]);
    }
  }
}

// C vectors of the numbers of keys, from `column` on: key after key, where they lie number by number.
// Those of a segment, or of its packed keys: turned[keys][C][lanes].
template <Number N, int C>
SAX_INLINE void turn_keys(const Attention& a, const Segment& s, const PackedKeys* packed, size_t column,
                          float (*turned)[C][kLanes]) {
  int groups = packed ? packed->groups() : s.groups;
  for (int group = 0; group < groups; ++group) {
    for (int c = 0; c < C; ++c) {
      F keys[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        size_t d = column + static_cast<size_t>(c * kLanes + i);
        if (d >= a.key_dim) keys[i] = set(0.0f);
        else if (packed) keys[i] = load(packed->keys + d * packed->width + group * kLanes);
        else keys[i] = load_numbers<N>(a.keys, s.key[group] + d * a.page_size);
      }
      turn(keys);
      for (int i = 0; i < kLanes; ++i) store(turned[group * kLanes + i][c], keys[i]);
    }
  }
}

// Adds turned keys to sums of R rows, weighted. Keys that are not chosen would add zeros.
template <int R, int C>
SAX_INLINE void add_turned_keys(const Attention& a, const Segment& s, bool packed,
                                const float (*turned)[C][kLanes], const float (*weights)[kKeys],
                                const float* decays, size_t column, float* out) {
  auto lanes = [&](int c) {
    size_t left = a.key_dim - column - static_cast<size_t>(c * kLanes);
    return left < kLanes ? static_cast<int>(left) : kLanes;
  };
  F sums[R][C];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) {
      F before = load_some(out + r * a.value_dim + column + c * kLanes, lanes(c));
      sums[r][c] = mul(before, set(decays[r]));
    }
  }
  auto add_key = [&](int key, int place) {
    F keys[C];
    for (int c = 0; c < C; ++c) keys[c] = load(turned[key][c]);
    for (int r = 0; r < R; ++r) {
      F weight = set(weights[r][place]);
      for (int c = 0; c < C; ++c) sums[r][c] = fma(keys[c], weight, sums[r][c]);
    }
  };
  if (s.chosen) {
    for (int k = 0; k < s.count; ++k) add_key(packed ? k : s.place[k], s.place[k]);
  } else {
    for (int group = 0; group < s.groups; ++group) {
      for (int i = s.from[group]; i < s.end[group]; ++i) add_key(group * kLanes + i, group * kLanes + i);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) store_some(out + r * a.value_dim + column + c * kLanes, sums[r][c], lanes(c));
  }
}

#endif

}  // namespace sax::SAX_ISA
