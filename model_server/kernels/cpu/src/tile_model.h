// A model of AMX's tile registers for tests on machines without the unit: the intrinsics that amx.cc
// uses, with the bits and the faults that Intel's manual gives their instructions (Software
// Developer's Manual, volume 2: LDTILECFG, TDPBF16PS, TDPBSUD).

#pragma once

#include "lanes.h"

namespace sax::SAX_ISA {

struct TileRegister {
  size_t rows, bytes;  // 0: it has no shape
  uint8_t data[16][64];  // zeros outside the shape

  template <class Number>
  Number at(size_t row, size_t index) const {
    Number number;
    memcpy(&number, data[row] + index * sizeof number, sizeof number);
    return number;
  }

  template <class Number>
  void put(size_t row, size_t index, Number number) {
    memcpy(data[row] + index * sizeof number, &number, sizeof number);
  }
};

static thread_local TileRegister registers[8];

// Ends the process where the unit faults.
SAX_INLINE void need(bool met) {
  if (!met) __builtin_trap();
}

static void _tile_loadconfig(const void* config) {
  const uint8_t* from = static_cast<const uint8_t*>(config);
  need(from[0] == 1);
  for (int i = 1; i < 16; ++i) need(from[i] == 0);
  for (size_t tile = 0; tile < 16; ++tile) {
    uint16_t bytes;
    memcpy(&bytes, from + 16 + 2 * tile, sizeof bytes);
    uint8_t rows = from[48 + tile];
    need(rows <= 16 && bytes <= 64 && !rows == !bytes && (tile < 8 || !rows));
    if (tile < 8) registers[tile] = {rows, bytes, {}};
  }
}

static void _tile_release() {
  for (TileRegister& each : registers) each = {};
}

static void _tile_zero(int tile) {
  TileRegister& to = registers[tile];
  need(to.rows);
  memset(to.data, 0, sizeof to.data);
}

static void _tile_loadd(int tile, const void* base, size_t stride) {
  TileRegister& to = registers[tile];
  need(to.rows);
  for (size_t row = 0; row < to.rows; ++row) {
    memcpy(to.data[row], static_cast<const char*>(base) + row * stride, to.bytes);
  }
}

static void _tile_stored(int tile, void* base, size_t stride) {
  const TileRegister& from = registers[tile];
  need(from.rows);
  for (size_t row = 0; row < from.rows; ++row) {
    memcpy(static_cast<char*>(base) + row * stride, from.data[row], from.bytes);
  }
}

static void need_fitting(const TileRegister& sums, const TileRegister& rows, const TileRegister& weights) {
  need(sums.rows && rows.rows && weights.rows && rows.bytes % 4 == 0 && sums.bytes % 4 == 0);
  need(sums.rows == rows.rows && rows.bytes == 4 * weights.rows && weights.bytes == sums.bytes);
}

// The unit reads and writes a denormal number as a zero.
SAX_INLINE float flushed(float x) {
  return bits_of(x) & 0x7f800000u ? x : from_bits(bits_of(x) & 0x80000000u);
}

SAX_INLINE float half_at(const TileRegister& tile, size_t row, size_t index) {
  return flushed(from_bits(static_cast<uint32_t>(tile.at<uint16_t>(row, index)) << 16));
}

// Even and odd products are summed apart from zero on, the two added, and that to the sum.
static void _tile_dpbf16ps(int sum, int left, int right) {
  TileRegister& sums = registers[sum];
  const TileRegister &rows = registers[left], &weights = registers[right];
  need_fitting(sums, rows, weights);
  for (size_t row = 0; row < sums.rows; ++row) {
    for (size_t column = 0; column < sums.bytes / 4; ++column) {
      float of[2] = {};
      for (size_t i = 0; i < rows.bytes / 2; ++i) {
        float x = half_at(rows, row, i), weight = half_at(weights, i / 2, 2 * column + i % 2);
        of[i % 2] = flushed(__builtin_fmaf(x, weight, of[i % 2]));
      }
      float total = flushed(sums.at<float>(row, column)) + flushed(of[0] + of[1]);
      sums.put(row, column, flushed(total));
    }
  }
}

// Of signed bytes with unsigned ones.
static void _tile_dpbsud(int sum, int left, int right) {
  TileRegister& sums = registers[sum];
  const TileRegister &rows = registers[left], &weights = registers[right];
  need_fitting(sums, rows, weights);
  for (size_t row = 0; row < sums.rows; ++row) {
    for (size_t column = 0; column < sums.bytes / 4; ++column) {
      int32_t total = sums.at<int32_t>(row, column);
      for (size_t i = 0; i < rows.bytes; ++i) {
        total += rows.at<int8_t>(row, i) * weights.at<uint8_t>(i / 4, 4 * column + i % 4);
      }
      sums.put(row, column, total);
    }
  }
}

}  // namespace sax::SAX_ISA
