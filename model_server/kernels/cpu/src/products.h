// Products of a few or many rows with a weight in tiles.

#pragma once

#include "operands.h"
#if defined(SAX_MATRICES)
#include "matrices.h"
#endif

namespace sax::SAX_ISA {

// Pairs of a row that are summed before they are added to those before: many rows find this much of
// a tile in cache again. The same for any number of rows, so that a row's result is, too.
constexpr size_t kPairsAtOnce = 1024;

#if !defined(SAX_MATRICES)

// R rows times C tiles, pairs `begin` to `end`; adds to `out` unless they are the first. Fetches what
// lies `ahead` in each tile.
template <int R, int C>
SAX_INLINE void plain_block(const PlainWeight& weight, const Pair* x, size_t tile, size_t begin,
                            size_t end, size_t ahead, float* const* out) {
  F sums[R][C];
  const uint32_t* tiles[C];
  for (int c = 0; c < C; ++c) tiles[c] = weight.tiles + (tile + c) * weight.pairs * kLanes;
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) sums[r][c] = set(0.0f);
  }
  for (size_t pair = begin; pair < end; ++pair) {
    Pairs weights[C];
    for (int c = 0; c < C; ++c) {
      const uint32_t* at = tiles[c] + pair * kLanes;
      __builtin_prefetch(at + ahead);
      weights[c] = pairs_in(load_bytes(at));
    }
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < C; ++c) {
        sums[r][c] = dot2(sums[r][c], weights[c], x[r * weight.pairs + pair]);
      }
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) {
      float* to = out[r] + (tile + c) * kLanes;
      int lanes = lanes_of(weight.outputs, tile + c);
      F sum = begin ? add(sums[r][c], load_some(to, lanes)) : sums[r][c];
      store_some(to, sum, lanes);
    }
  }
}

#endif

template <int R, int C>
SAX_INLINE void plain_rows(const PlainWeight& weight, const Pair* x, size_t first, size_t last,
                           size_t begin, size_t end, size_t ahead, float* const* out) {
  size_t tile = first;
  for (; tile + C <= last; tile += C) plain_block<R, C>(weight, x, tile, begin, end, ahead, out);
  for (; tile < last; ++tile) plain_block<R, 1>(weight, x, tile, begin, end, ahead, out);
}

// Each number of rows gets as many tiles at once as registers hold sums for; where there are few
// registers, weights that were widened need as many.
#if defined(SAX_MATRICES)

constexpr bool kFewRegisters = true;
constexpr int kMostRows = 4;

constexpr int tiles_for(int rows) { return rows <= 2 ? 2 : 1; }

#else

constexpr bool kFewRegisters = kAccumulators >= 5 && kAccumulators < 24;
constexpr int kMostRows = kAccumulators >= 24 ? 8 : kFewRegisters ? 5 : 1;

constexpr int tiles_for(int rows) {
  if (kFewRegisters) return rows <= 1 ? 6 : rows == 2 ? 3 : 1;
  int tiles = kAccumulators / (rows > 0 ? rows : 1);
  return tiles > 6 ? 6 : tiles < 1 ? 1 : tiles;
}

#endif

template <int R>
static void plain_step(const PlainWeight& weight, const Pair* x, size_t rows, size_t first,
                       size_t last, size_t begin, size_t end, size_t ahead, float* const* out) {
  if constexpr (R > 0) {
    if (rows == R) {
      return plain_rows<R, tiles_for(R)>(weight, x, first, last, begin, end, ahead, out);
    }
    plain_step<R - 1>(weight, x, rows, first, last, begin, end, ahead, out);
  }
}

static void plain_part(const PlainWeight& weight, const Pair* x, size_t rows, size_t first,
                       size_t last, size_t begin, size_t end, float* const* out) {
  size_t count = 0;
  for (size_t row = 0; row < rows; row += count) {
    size_t left = rows - row;
    count = left < kMostRows ? left : kMostRows;
    // Of about equal size, where that leaves the tiles at once as they are.
    if (kFewRegisters) count = in_parts(left, in_parts(left, kMostRows));
    // The next lines; or, where there is time, the next tiles.
    bool lines = rows <= 4 || (row == 0 && rows > kMostRows);
    size_t ahead = lines ? 8 * kLanes : (last - first) * weight.pairs * kLanes;
    plain_step<kMostRows>(weight, x + row * weight.pairs, count, first, last, begin, end, ahead,
                          out + row);
  }
}

static void plain(const PlainWeight& weight, const void* of_rows, size_t rows, size_t first,
                  size_t last, float* const* out) {
  const Pair* x = static_cast<const Pair*>(of_rows);
  size_t wide = static_cast<size_t>(tiles_for(static_cast<int>(rows < kMostRows ? rows : kMostRows)));
  for (size_t tile = first; tile < last; tile += wide) {
    size_t end_tile = tile + wide < last ? tile + wide : last;
    for (size_t begin = 0; begin < weight.pairs; begin += kPairsAtOnce) {
      size_t end = begin + kPairsAtOnce < weight.pairs ? begin + kPairsAtOnce : weight.pairs;
      plain_part(weight, x, rows, tile, end_tile, begin, end, out);
    }
  }
}

// --- weights of f32 -----------------------------------------------------------------------------------

constexpr size_t kFloatsAtOnce = 2048;  // as kPairsAtOnce
constexpr int kMostFloatRows = kAccumulators >= 24 ? 8 : kAccumulators;

constexpr int float_tiles_for(int rows) {
  int tiles = kAccumulators / (rows > 0 ? rows : 1);
  return tiles > 6 ? 6 : tiles < 1 ? 1 : tiles;
}

// R rows times C tiles, as `plain_block`.
template <int R, int C>
SAX_INLINE void float_block(const FloatWeight& weight, const float* const* x, size_t tile,
                            size_t begin, size_t end, float* const* out) {
  F sums[R][C];
  const float* tiles[C];
  for (int c = 0; c < C; ++c) tiles[c] = weight.tiles + (tile + c) * weight.inputs * kLanes;
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) sums[r][c] = set(0.0f);
  }
  for (size_t i = begin; i < end; ++i) {
    F weights[C];
    for (int c = 0; c < C; ++c) {
      __builtin_prefetch(tiles[c] + (i + 8) * kLanes);
      weights[c] = load(tiles[c] + i * kLanes);
    }
    for (int r = 0; r < R; ++r) {
      F some = set(x[r][i]);
      for (int c = 0; c < C; ++c) sums[r][c] = fma(weights[c], some, sums[r][c]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) {
      float* to = out[r] + (tile + c) * kLanes;
      int lanes = lanes_of(weight.outputs, tile + c);
      store_some(to, begin ? add(sums[r][c], load_some(to, lanes)) : sums[r][c], lanes);
    }
  }
}

template <int R>
static void float_rows(const FloatWeight& weight, const float* const* x, size_t rows, size_t first,
                       size_t last, size_t begin, size_t end, float* const* out) {
  if constexpr (R > 0) {
    if (rows != R) return float_rows<R - 1>(weight, x, rows, first, last, begin, end, out);
    constexpr int wide = float_tiles_for(R);
    size_t tile = first;
    for (; tile + wide <= last; tile += wide) float_block<R, wide>(weight, x, tile, begin, end, out);
    for (; tile < last; ++tile) float_block<R, 1>(weight, x, tile, begin, end, out);
  }
}

static void floats(const FloatWeight& weight, const float* const* x, size_t rows, size_t first,
                   size_t last, float* const* out) {
  constexpr size_t most = kMostFloatRows;
  size_t wide = static_cast<size_t>(float_tiles_for(static_cast<int>(rows < most ? rows : most)));
  for (size_t tile = first; tile < last; tile += wide) {
    size_t end_tile = tile + wide < last ? tile + wide : last;
    for (size_t begin = 0; begin < weight.inputs; begin += kFloatsAtOnce) {
      size_t end = begin + kFloatsAtOnce < weight.inputs ? begin + kFloatsAtOnce : weight.inputs;
      for (size_t row = 0, count; row < rows; row += count) {
        count = rows - row < most ? rows - row : most;
        float_rows<kMostFloatRows>(weight, x + row, count, tile, end_tile, begin, end, out + row);
      }
    }
  }
}

static size_t pairs_size(size_t rows, size_t inputs) { return rows * ((inputs + 1) / 2) * sizeof(Pair); }

static void pairs_of(const float* x, size_t inputs, size_t row, void* to) {
  Pair* pairs = static_cast<Pair*>(to) + row * ((inputs + 1) / 2);
  size_t at = 0;
#if defined(SAX_NARROWS)
  for (; at + 2 * kLanes <= inputs; at += 2 * kLanes, pairs += kLanes) store_narrow(pairs, x + at);
#endif
  for (; at + 1 < inputs; at += 2) *pairs++ = pair_of(x[at], x[at + 1]);
  if (at < inputs) *pairs++ = pair_of(x[at], 0.0f);
}

// Rows are multiplied in groups of about equal size. Of each group the first four numbers of every row
// lie side by side, then the next.
#if defined(SAX_MATRICES)
constexpr size_t kMostBytesRows = 2;
#else
constexpr size_t kMostBytesRows = kAccumulators >= 5 ? 4 : 1;
#endif
// Of numbers of one byte. Only VNNI takes them as they are: elsewhere the second byte is 0.
constexpr size_t kMostOneByteRows = kOneByte ? 8 : kMostBytesRows;
constexpr size_t kBytesOfOneFour = kOneByte ? 4 : kBytesOfFour;

SAX_INLINE size_t rows_of_group(const ByteRows& rows) {
  return in_parts(rows.count, in_parts(rows.count, rows.one_byte ? kMostOneByteRows : kMostBytesRows));
}

static size_t bytes_size(size_t rows, size_t inputs, size_t) { return rows * 2 * inputs; }

// Calls take(block, its sum, the place of its first four) for each block of a row, whose fours take so
// many bytes.
template <class Take>
SAX_INLINE void over_blocks(size_t row, const ByteRows& to, size_t of_four, Take take) {
  size_t of_group = rows_of_group(to), first = row / of_group * of_group;
  size_t beside = to.count - first < of_group ? to.count - first : of_group;
  int8_t* fours = to.bytes + first * of_four / 4 * to.inputs + (row - first) * of_four;
  BlockSum* sum = to.sums + first * to.blocks() + (row - first);
  for (size_t block = 0; block < to.blocks(); ++block, sum += beside) {
    take(block, *sum, fours, beside * of_four);
    fours += to.block / 4 * beside * of_four;
  }
}

// The numbers of one block, `distance` bytes from each four to the next.
SAX_INLINE BlockSum put_block(const float* x, const ByteRows& rows, float largest, int8_t* fours,
                              size_t distance) {
  WholeSum whole;
  for (size_t begin = 0; begin < rows.block;) {
    Numbers some;
    size_t count = rows.block - begin < kSome ? rows.block - begin : kSome;
    quantize(x + begin, count, 127.0f / largest, whole,
             [&](size_t i, int32_t high, int32_t low) { some.put(i, high, low); });
    for (size_t i = 0; i < count; i += 4, fours += distance) some.copy_four(i, fours);
    begin += count;
  }
  return block_sum(whole, rows.zero);
}

static void two_bytes_of(const float* x, size_t row, const ByteRows& to) {
  float largest = largest_of(x, to.inputs);
  to.steps[row] = largest / 127.0f / kStepsOfRow;
  over_blocks(row, to, kBytesOfFour, [&](size_t block, BlockSum& sum, int8_t* fours, size_t distance) {
    sum = put_block(x + block * to.block, to, largest, fours, distance);
  });
}

// As `put_block`, each number in one byte: at most `kSome`.
SAX_INLINE BlockSum put_one_bytes(const float* x, const ByteRows& rows, int8_t* fours, size_t distance) {
  OneByteNumbers some;
  BlockSum sum = quantize_block(x, rows.block, rows.zero,
                                [&](size_t i, int32_t number) { some.put(i, number); });
  for (size_t i = 0; i < rows.block; i += 4, fours += distance) some.copy_four(i, fours);
  return sum;
}

static void bytes_of(const float* x, size_t row, const ByteRows& to) {
  if (!to.one_byte) return two_bytes_of(x, row, to);
  to.steps[row] = 1.0f;
  over_blocks(row, to, kBytesOfOneFour, [&](size_t block, BlockSum& sum, int8_t* fours, size_t distance) {
    sum = put_one_bytes(x + block * to.block, to, fours, distance);
  });
}

#if !defined(SAX_MATRICES)

// Calls add(row, four weights of each output, its fours) for R rows and the numbers from `i` to `stop`
// of a tile, whose fours take so many bytes; moves on in both.
template <int R, Stored S, size_t Of, class Add>
SAX_INLINE void over_fours(const uint8_t*& at, const int8_t*& x, size_t i, size_t stop, Add add) {
  constexpr int bits = S == Stored::i8 ? 8 : 4;
  for (; i < stop; i += 32 / bits, at += 64) {
    __builtin_prefetch(at + 8 * 64);
    B both = load_bytes(at);
    Bytes four = bytes_in(bits == 8 ? both : numbers_of<S>(low_nibbles(both)));
    for (int r = 0; r < R; ++r) add(r, four, x + r * Of);
    x += R * Of;
    if constexpr (bits == 4) {
      four = bytes_in(numbers_of<S>(high_nibbles(both)));
      for (int r = 0; r < R; ++r) add(r, four, x + r * Of);
      x += R * Of;
    }
  }
}

// Adds the products of R rows with the numbers from `i` to `stop` of a tile; moves on in both.
template <int R, Stored S>
SAX_INLINE void add_wholes(Wholes* wholes, const uint8_t*& at, const int8_t*& x, size_t i, size_t stop) {
  over_fours<R, S, kBytesOfFour>(at, x, i, stop, [&](int r, const Bytes& four, const int8_t* numbers) {
    add_four(wholes[r], four, numbers);
  });
}

#endif

// R rows from `first` on times one tile. Each block's sums are whole numbers, scaled once.
template <int R, Stored S>
SAX_INLINE void quantized_block(const QuantizedWeight& weight, const ByteRows& rows, size_t first,
                                size_t tile, float* const* out) {
  size_t blocks = weight.inputs / weight.block;
  constexpr int bits = S == Stored::i8 ? 8 : 4;
  const uint8_t* at = weight.tiles + tile * weight.inputs * kLanes * bits / 8;
  const int8_t* x = rows.bytes + first * 2 * weight.inputs;
  const BlockSum* sums = rows.sums + first * blocks;
  F totals[R];
  for (int r = 0; r < R; ++r) totals[r] = set(0.0f);
  for (size_t block = 0; block < blocks; ++block, sums += R) {
    Scaling scaling = scaling_of(weight, tile, block, weight.block);
    for (size_t i = 0; i < weight.block;) {
      size_t stop = weight.block - i < kNumbersAtOnce ? weight.block : i + kNumbersAtOnce;
      Wholes wholes[R];
      for (int r = 0; r < R; ++r) wholes[r] = scaling.folded ? beginning(sums[r]) : no_wholes();
      add_wholes<R, S>(wholes, at, x, i, stop);
      i = stop;
      for (int r = 0; r < R; ++r) totals[r] = fma(value_of(wholes[r]), scaling.scale, totals[r]);
    }
    if (!scaling.offsets) continue;
    for (int r = 0; r < R; ++r) totals[r] = fma(set(sums[r].value), scaling.offset, totals[r]);
  }
  int lanes = lanes_of(weight.outputs, tile);
  for (int r = 0; r < R; ++r) {
    store_some(out[first + r] + tile * kLanes, mul(totals[r], set(rows.steps[first + r])), lanes);
  }
}

#if !defined(SAX_ONE_BYTE)

// The numbers have a second byte, which is 0.
template <int R, Stored S>
SAX_INLINE void add_one_bytes(F* values, const BlockSum* sums, const uint8_t*& at, const int8_t*& x, size_t block) {
  Wholes wholes[R];
  for (int r = 0; r < R; ++r) wholes[r] = beginning(sums[r]);
  add_wholes<R, S>(wholes, at, x, 0, block);
  for (int r = 0; r < R; ++r) values[r] = value_of(wholes[r]);
}

#else

template <int R, Stored S>
SAX_INLINE void add_one_bytes(F* values, const BlockSum* sums, const uint8_t*& at, const int8_t*& x, size_t block) {
  I wholes[R];
  for (int r = 0; r < R; ++r) wholes[r] = set_i(sums[r].high);
  over_fours<R, S, kBytesOfOneFour>(at, x, 0, block, [&](int r, const Bytes& four, const int8_t* numbers) {
    wholes[r] = dot4(wholes[r], four, numbers);
  });
  for (int r = 0; r < R; ++r) values[r] = to_f(wholes[r]);
}

#endif

// As `quantized_block`, of numbers of one byte, whose blocks are at most the weight's.
template <int R, Stored S>
SAX_INLINE void one_byte_block(const QuantizedWeight& weight, const ByteRows& rows, size_t first,
                               size_t tile, float* const* out) {
  constexpr size_t bits = S == Stored::i8 ? 8 : 4;
  const uint8_t* at = weight.tiles + tile * weight.inputs * kLanes * bits / 8;
  const int8_t* x = rows.bytes + first * kBytesOfOneFour / 4 * weight.inputs;
  const BlockSum* sums = rows.sums + first * rows.blocks();
  F totals[R];
  for (int r = 0; r < R; ++r) totals[r] = set(0.0f);
  for (size_t block = 0; block < weight.inputs / weight.block; ++block) {
    Scaling scaling = scaling_of(weight, tile, block, rows.block);
    for (size_t i = 0; i < weight.block; i += rows.block, sums += R) {
      F values[R];
      add_one_bytes<R, S>(values, sums, at, x, rows.block);
      for (int r = 0; r < R; ++r) {
        totals[r] = fma(values[r], mul(scaling.scale, set(sums[r].step)), totals[r]);
      }
      if (!weight.offsets) continue;
      for (int r = 0; r < R; ++r) totals[r] = fma(set(sums[r].value), scaling.offset, totals[r]);
    }
  }
  int lanes = lanes_of(weight.outputs, tile);
  for (int r = 0; r < R; ++r) store_some(out[first + r] + tile * kLanes, totals[r], lanes);
}

template <int R, Stored S, bool One>
static void quantized_step(const QuantizedWeight& weight, const ByteRows& rows, size_t first,
                           size_t count, size_t tile, float* const* out) {
  if constexpr (R > 0) {
    if (count != R) return quantized_step<R - 1, S, One>(weight, rows, first, count, tile, out);
    if constexpr (One) return one_byte_block<R, S>(weight, rows, first, tile, out);
    return quantized_block<R, S>(weight, rows, first, tile, out);
  }
}

template <size_t Most, bool One>
static void quantized_tiles(const QuantizedWeight& weight, const ByteRows& rows, size_t first,
                            size_t last, float* const* out) {
  auto step = quantized_step<Most, Stored::i8, One>;
  if (weight.bits == 4) step = quantized_step<Most, Stored::i4, One>;
  if (weight.float4) step = quantized_step<Most, Stored::float4, One>;
  size_t of_group = rows.count ? rows_of_group(rows) : 1;
  for (size_t tile = first; tile < last; ++tile) {
    for (size_t row = 0; row < rows.count; row += of_group) {
      step(weight, rows, row, rows.count - row < of_group ? rows.count - row : of_group, tile, out);
    }
  }
}

static void quantized(const QuantizedWeight& weight, const ByteRows& rows, size_t first, size_t last,
                      float* const* out) {
  if (rows.one_byte) return quantized_tiles<kMostOneByteRows, true>(weight, rows, first, last, out);
  quantized_tiles<kMostBytesRows, false>(weight, rows, first, last, out);
}

}  // namespace sax::SAX_ISA
