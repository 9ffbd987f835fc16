// The tile registers of AMX, or of the model of it: their shapes, and the steps of a product.

#pragma once

#include "operands.h"

#if defined(SAX_TILE_MODEL)
#include "tile_model.h"
#else
#include <immintrin.h>
#endif

namespace sax::SAX_ISA {

constexpr size_t kTile = 16;  // rows or lines of a register
constexpr size_t kLine = 64;  // bytes: of a line of weights, the next four of each of sixteen outputs
constexpr size_t kRegister = kTile * kLine;
// Pairs that a register holds of each row, and bytes.
constexpr size_t kPairs = 16, kBytes = 64;

// The compilers' intrinsics do not say what memory they read.
SAX_INLINE void settle() { asm volatile("" ::: "memory"); }

SAX_INLINE size_t least(size_t x, size_t y) { return x < y ? x : y; }

// The shapes of the registers: sums in 0 to 3, numbers of rows in 4 and 5, weights in 6 and 7.
struct alignas(64) Shapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {};  // of a row
  uint8_t rows[16] = {};
};

// Rows and lines of this thread's registers; 0: they have no shape.
static thread_local size_t shaped = 0;

// For at most 32 rows, the numbers of which come four bytes for each line of weights.
static void shape(size_t rows, size_t lines) {
  size_t wanted = rows << 8 | lines;
  if (shaped == wanted) return;
  size_t first = least(rows, kTile), second = rows - first;
  const size_t of[8] = {first, first, second, second, first, second, lines, lines};
  Shapes shapes;
  for (int i = 0; i < 8; ++i) {
    bool numbers = i == 4 || i == 5;
    shapes.rows[i] = static_cast<uint8_t>(of[i]);
    shapes.bytes[i] = static_cast<uint16_t>(!of[i] ? 0 : numbers ? 4 * lines : kLine);
  }
  settle();
  _tile_loadconfig(&shapes);
  shaped = wanted;
}

static void release() {
  if (!shaped) return;
  _tile_release();
  shaped = 0;
}

// Whether there is a second register of rows, and of weights.
struct Two {
  bool rows, weights;

  size_t tiles() const { return weights ? 2 : 1; }
};

SAX_INLINE void clear_sums(Two two) {
  _tile_zero(0);
  if (two.weights) _tile_zero(1);
  if (two.rows) _tile_zero(2);
  if (two.rows && two.weights) _tile_zero(3);
}

// Sums in memory: four bytes of 32 rows and 32 outputs, rows `distance` bytes from each other.
constexpr size_t kSums = 2 * kTile;

SAX_INLINE void load_sums(Two two, const void* from, size_t distance) {
  const char* at = static_cast<const char*>(from);
  const char* below = at + kTile * distance;
  settle();
  _tile_loadd(0, at, distance);
  if (two.weights) _tile_loadd(1, at + kLine, distance);
  if (two.rows) _tile_loadd(2, below, distance);
  if (two.rows && two.weights) _tile_loadd(3, below + kLine, distance);
}

SAX_INLINE void store_sums(Two two, void* to, size_t distance) {
  char* at = static_cast<char*>(to);
  char* below = at + kTile * distance;
  _tile_stored(0, at, distance);
  if (two.weights) _tile_stored(1, at + kLine, distance);
  if (two.rows) _tile_stored(2, below, distance);
  if (two.rows && two.weights) _tile_stored(3, below + kLine, distance);
  settle();
}

// Adds to the sums the products of a register's numbers of the rows, the second sixteen of which lie
// `next` bytes further on, with lines of the first and the second tile.
template <bool Halves>
SAX_INLINE void add_step(Two two, const void* rows, size_t next, const void* first, const void* second) {
#define SAX_DOT(sum, rows, weights)                          \
  if constexpr (Halves) _tile_dpbf16ps(sum, rows, weights);  \
  if constexpr (!Halves) _tile_dpbsud(sum, rows, weights)
  _tile_loadd(4, rows, kLine);
  _tile_loadd(6, first, kLine);
  SAX_DOT(0, 4, 6);
  if (two.weights) {
    _tile_loadd(7, second, kLine);
    SAX_DOT(1, 4, 7);
  }
  if (two.rows) {
    _tile_loadd(5, static_cast<const char*>(rows) + next, kLine);
    SAX_DOT(2, 5, 6);
    if (two.weights) {
      SAX_DOT(3, 5, 7);
    }
  }
#undef SAX_DOT
}

// Calls product(begin, end, rows at once) for those rows that fill the registers, then for the rest:
// one shape each.
template <class Product>
SAX_INLINE void over_shapes(size_t begin, size_t end, size_t most, Product product) {
  size_t whole = end - (end - begin) % most;
  if (begin < whole) product(begin, whole, most);
  if (whole < end) product(whole, end, end - whole);
}

}  // namespace sax::SAX_ISA
