// Attention of many queries of one sequence to its pages of bf16, on tile registers: the order of sums
// is that of halves.h, which computes few queries.

#pragma once

#include "halves.h"
#include "tile_registers.h"

namespace sax::SAX_ISA {

// A line of two vectors: the numbers of one in the even places, of the other in the odd ones.
SAX_INLINE void put_line(const uint16_t* even, const uint16_t* odd, void* to) {
#if defined(__AVX512BW__)
  alignas(64) static constexpr uint16_t kPlaces[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,
                                                       21, 6, 22, 7, 23, 8,  24, 9,  25, 10, 26,
                                                       11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  __m512i both = _mm512_inserti64x4(
      _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(even))),
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(odd)), 1);
  _mm512_storeu_si512(to, _mm512_permutexvar_epi16(_mm512_load_si512(kPlaces), both));
#else
  uint16_t line[2 * kLanes];
  for (int i = 0; i < kLanes; ++i) line[2 * i] = even[i], line[2 * i + 1] = odd[i];
  memcpy(to, line, sizeof line);
#endif
}

// Rows on tiles, for `attend_by`. Numbers of rows lie as registers take them: of each sixteen rows, for
// each step, the first part of its 32 numbers, then the second.
struct OnTiles {
  static constexpr size_t kRows = 4 * kSums;  // that read the lines of a segment
  static constexpr size_t kSteps = kKeys / kStep;

  size_t steps, wide;  // of a key; numbers of a row of sums, a multiple of two tiles
  char *queries, *weights, *keys, *values;
  float *held, *parts, (*scores)[kKeys];

  explicit OnTiles(const Attention& a)
      : steps(in_parts(a.key_dim, kStep)), wide(in_parts(a.value_dim, kSums) * kSums) {
    queries = lines_held<0>(kRows / kTile * 2 * steps * kRegister);
    weights = lines_held<1>(kSums / kTile * 2 * kSteps * kRegister);
    keys = lines_held<2>(kKeys / kTile * steps * kRegister);
    values = lines_held<3>(wide / kTile * kSteps * kRegister);
    held = numbers_held<4>(kRows * a.value_dim);
    parts = numbers_held<5>(kRows * wide);
    scores = reinterpret_cast<float(*)[kKeys]>(lines_held<6>(kSums * sizeof(float[kKeys])));
  }

  float* sums(const Attention& a, size_t r) { return held + r * a.value_dim; }
  float* part(const Attention&, size_t r) { return parts + r * wide; }

  // Writes the two parts of a row's numbers, `count` of them and zeros up to the end of a step.
  static void put_row(const float* x, size_t count, char* lines) {
    for (size_t at = 0; at < count; at += kStep, lines += 2 * kRegister) {
      alignas(64) uint16_t both[2][kStep] = {};
      split(x + at, least(count - at, kStep), both[0], kStep);
      memcpy(lines, both[0], kLine);
      memcpy(lines + kRegister, both[1], kLine);
    }
  }

  void take(const Attention& a, size_t r, const float* query) {
    float scaled[kMostDim];
    Widened<Number::bf16>::take(a, query, scaled);
    put_row(scaled, a.key_dim, queries + r / kTile * 2 * steps * kRegister + r % kTile * kLine);
  }

  void fetch_first(const Attention&, const Segment&) {}
  void attend(const Attention& a, const int32_t* table, size_t head, int32_t first, int32_t end,
              const Segment&, const Seen* seen, Partial* states, size_t count) {
    for (int32_t at = first / kInStep * kInStep, next; at < end; at = next) {
      next = at / kKeys * kKeys + kKeys;
      Segment s = segment_at(a, table, head, at, first, next < end ? next : end);
      put_keys(a, s);
      put_values(a, s);
      over_shapes(0, count, kSums, [&](size_t row, size_t last, size_t some) {
        shape(some, kTile);
        for (; row < last; row += some) attend_some(a, s, seen, states, row, some);
      });
    }
  }

 private:
  // Sixteen keys a tile, [groups][steps]; behind the last number there are zeros.
  void put_keys(const Attention& a, const Segment& s) const {
    alignas(64) static constexpr uint16_t kNone[kLanes] = {};
    for (size_t group = 0; group < static_cast<size_t>(s.groups); ++group) {
      const uint16_t* from = static_cast<const uint16_t*>(a.keys) + s.key[group];
      char* line = keys + group * steps * kRegister;
      for (size_t d = 0; d < steps * kStep; d += 2, line += kLine, from += 2 * a.page_size) {
        if (d + 1 < a.key_dim) put_line(from, from + a.page_size, line);
        else if (d < a.key_dim) put_line(from, kNone, line);
        else memset(line, 0, kLine);
      }
    }
  }

  // Sixteen numbers of a value a tile, [tiles][steps]; zeros of keys outside the segment.
  void put_values(const Attention& a, const Segment& s) const {
    size_t whole = a.value_dim / kTile;
    for (size_t key = 0; key < steps_of(s) * kStep; key += 2) {
      const uint16_t *even = value_of(a, s, key), *odd = value_of(a, s, key + 1);
      char* line = values + key / 2 * kLine;
      for (size_t tile = 0; tile < wide / kTile; ++tile, line += kSteps * kRegister) {
        if (tile < whole && even && odd) {
          put_line(even + tile * kTile, odd + tile * kTile, line);
          continue;
        }
        uint16_t some[2][kTile] = {};
        size_t left = tile * kTile < a.value_dim ? least(a.value_dim - tile * kTile, kTile) : 0;
        if (even) memcpy(some[0], even + tile * kTile, left * sizeof(uint16_t));
        if (odd) memcpy(some[1], odd + tile * kTile, left * sizeof(uint16_t));
        put_line(some[0], some[1], line);
      }
    }
  }

  static size_t steps_of(const Segment& s) {
    return in_parts(static_cast<size_t>(s.groups) * kLanes, kStep);
  }

  // The value of a key of the segment, or null.
  static const uint16_t* value_of(const Attention& a, const Segment& s, size_t key) {
    int group = static_cast<int>(key / kLanes), lane = static_cast<int>(key % kLanes);
    if (group >= s.groups || lane < s.from[group] || lane >= s.end[group]) return nullptr;
    return static_cast<const uint16_t*>(a.values) + s.value[group] + static_cast<size_t>(lane) * a.value_dim;
  }

  // Adds products of rows with lines: `of_row` bytes from sixteen rows to the next, `of_tile` likewise.
  static void add_steps(Two two, size_t count, const char* rows, size_t of_row, const char* lines, size_t of_tile) {
    for (size_t step = 0; step < count; ++step, rows += 2 * kRegister, lines += kRegister) {
      add_step<true>(two, rows, of_row, lines, lines + of_tile);
      add_step<true>(two, rows + kRegister, of_row, lines, lines + of_tile);
    }
  }

  // Up to 32 rows.
  void attend_some(const Attention& a, const Segment& s, const Seen* seen, Partial* states, size_t row,
                   size_t count) const {
    size_t of_keys = steps * kRegister, of_values = kSteps * kRegister, groups = static_cast<size_t>(s.groups);
    const char* rows = queries + row / kTile * 2 * of_keys;
    settle();
    for (size_t group = 0; group < groups; group += 2) {
      Two two{count > kTile, groups - group > 1};
      clear_sums(two);
      add_steps(two, steps, rows, 2 * of_keys, keys + group * of_keys, of_keys);
      store_sums(two, &scores[0][group * kTile], sizeof *scores);
    }
    for (size_t r = 0; r < count; ++r) {
      float decay = weigh(a, s, seen[row + r], scores[r], states[row + r]);
      char* at = weights + r / kTile * 2 * of_values + r % kTile * kLine;
      put_row(scores[r], groups * kTile, at);
      float* sum = parts + (row + r) * wide;
      for (size_t w = 0; w < wide; w += kLanes) store(sum + w, mul(load(sum + w), set(decay)));
    }
    settle();
    for (size_t tile = 0; tile < wide / kTile; tile += 2) {
      Two two{count > kTile, true};
      float* sum = parts + row * wide + tile * kTile;
      load_sums(two, sum, wide * sizeof(float));
      add_steps(two, steps_of(s), weights, 2 * of_values, values + tile * of_values, of_values);
      store_sums(two, sum, wide * sizeof(float));
    }
  }
};

static void attend_on_tiles(const Attention& a, const Queries& q, size_t head, int32_t begin, int32_t end,
                            float* sums, Partial* partials, const Coming& coming) {
  Flushing flushing;
  OnTiles rows(a);
  attend_by(rows, a, q, head, begin, end, sums, partials, coming);
}

}  // namespace sax::SAX_ISA
