// Products and attention on the tile registers of AMX. The build compiles this file for the unit, where the compiler
// knows it, and with SAX_TILE_MODEL for a model of the unit, which runs anywhere.

#define SAX_TILES
#include "operands.h"

#define SAX_TABLE_(name) tiles_##name
#define SAX_TABLE(name) SAX_TABLE_(name)

#if defined(SAX_TILE_MODEL) || (defined(__AMX_BF16__) && defined(__AMX_INT8__))
#include "tile_attention.h"
#else
#define SAX_NO_TILES
#endif

#if !defined(SAX_NO_TILES)
namespace sax::SAX_ISA {

// What fits into the second level of the cache beside the weights that come in: so many rows, in
// parts of so many registers.
constexpr size_t kRowsInCache = 256, kStepsInCache = 32;
constexpr size_t kBytesInCache = size_t{1} << 20;

SAX_INLINE void fetch_lines(const void* lines, size_t count) {
  for (size_t i = 0; i < count; ++i) __builtin_prefetch(static_cast<const char*>(lines) + i * kLine);
}

constexpr size_t kRegistersAhead = 2;  // registers of weights that are fetched before they are read

// --- pairs of bf16 ----------------------------------------------------------------------------------

// Rows lie as registers take them: of each sixteen rows the first 32 numbers, then the next.

static size_t pairs_size(size_t rows, size_t inputs) {
  return in_parts(rows, kTile) * in_parts(inputs, 2 * kPairs) * kRegister;
}

static void pairs_of(const float* x, size_t inputs, size_t row, void* to) {
  constexpr size_t numbers = 2 * kPairs;
  size_t steps = in_parts(inputs, numbers);
  char* at = static_cast<char*>(to) + row / kTile * steps * kRegister + row % kTile * kLine;
  for (; inputs; at += kRegister, x += numbers) {
    size_t count = least(inputs, numbers);
    if (count < numbers) memset(at, 0, kLine);
    narrow(x, count, reinterpret_cast<uint16_t*>(at));
    inputs -= count;
  }
}

// Steps `begin` to `end` of a product.
struct PlainPart {
  const PlainWeight& weight;
  const char* rows;
  size_t begin, end;
  float* const* out;
};

// Where the sums of up to 32 rows and two tiles lie while they are in no register: in `out`, or where
// its rows do not follow each other or end within a tile, in `held`.
struct PlainSums {
  const PlainPart& part;
  size_t row, count, tile;
  Two two;
  float (*held)[kSums];

  bool in_place() const {
    float* const* out = part.out + row;
    return out[count - 1] == out[0] + (count - 1) * part.weight.outputs &&
           (tile + two.tiles()) * kTile <= part.weight.outputs;
  }

  size_t distance() const { return part.weight.outputs * sizeof(float); }

  // Calls copy(held sums, of `out`, lanes) for each row and tile.
  template <class Copy>
  void each(Copy copy) const {
    for (size_t r = 0; r < count; ++r) {
      for (size_t c = 0; c < two.tiles(); ++c) {
        float* of = part.out[row + r] + (tile + c) * kTile;
        copy(&held[r][c * kTile], of, lanes_of(part.weight.outputs, tile + c));
      }
    }
  }

  void take() const {
    if (in_place()) return load_sums(two, part.out[row] + tile * kTile, distance());
    each([](float* sum, const float* of, int lanes) { store(sum, load_some(of, lanes)); });
    load_sums(two, held, sizeof held[0]);
  }

  void put() const {
    if (in_place()) return store_sums(two, part.out[row] + tile * kTile, distance());
    store_sums(two, held, sizeof held[0]);
    each([](const float* sum, float* of, int lanes) { store_some(of, load(sum), lanes); });
  }
};

// Up to 32 rows times one tile or two; adds to `out` unless the steps are the first.
static void plain_block(const PlainPart& part, size_t row, size_t count, size_t tile, Two two) {
  const PlainWeight& weight = part.weight;
  size_t next = in_parts(weight.pairs, kPairs) * kRegister, of_tile = weight.pairs * kLine;
  const char* x = part.rows + row / kTile * next + part.begin * kRegister;
  const char* tiles = reinterpret_cast<const char*>(weight.tiles) + tile * of_tile;
  alignas(64) float held[kSums][kSums];
  PlainSums sums{part, row, count, tile, two, held};
  if (part.begin) sums.take();
  else clear_sums(two);
  size_t whole = least(part.end, weight.pairs / kPairs);
  for (size_t step = part.begin; step < whole; ++step, x += kRegister) {
    const char* lines = tiles + step * kRegister;
    for (size_t c = 0; row == 0 && c < two.tiles(); ++c) {
      fetch_lines(lines + c * of_tile + kRegistersAhead * kRegister, kTile);
    }
    add_step<true>(two, x, next, lines, lines + of_tile);
  }
  if (whole < part.end) {  // fewer lines, filled up with zeros: what follows them is another tile's
    alignas(64) char last[2][kRegister] = {};
    for (size_t c = 0; c < two.tiles(); ++c) {
      const char* lines = tiles + c * of_tile + whole * kRegister;
      memcpy(last[c], lines, weight.pairs % kPairs * kLine);
    }
    settle();
    add_step<true>(two, x, next, last[0], last[1]);
  }
  sums.put();
}

static void plain(const PlainWeight& weight, const void* pairs, size_t rows, size_t first, size_t last,
                  float* const* out) {
  size_t steps = in_parts(weight.pairs, kPairs);
  size_t at_once = rows > kSums ? kStepsInCache : steps;
  for (size_t some = 0; some < rows; some += kRowsInCache) {
    for (size_t begin = 0; begin < steps; begin += at_once) {
      PlainPart part{weight, static_cast<const char*>(pairs), begin, least(begin + at_once, steps), out};
      auto product = [&](size_t row, size_t end, size_t count) {
        shape(count, kTile);
        for (size_t tile = first; tile < last; tile += 2) {
          Two two{count > kTile, last - tile > 1};
          for (size_t at = row; at < end; at += count) plain_block(part, at, count, tile, two);
        }
      };
      over_shapes(some, least(some + kRowsInCache, rows), kSums, product);
    }
  }
}

// --- whole numbers ----------------------------------------------------------------------------------

// How the numbers of a block are divided: registers hold as many lines as a block has, or sixteen.
struct Division {
  size_t lines, of_step, steps;

  explicit Division(size_t block)
      : lines(block / 4), of_step(least(lines, kTile)), steps(in_parts(lines, kTile)) {}
};

// Two bytes of a number are numbers of two rows, one after the other.

static size_t bytes_size(size_t rows, size_t inputs, size_t block) {
  return in_parts(2 * rows, kTile) * (inputs / block) * Division(block).steps * kRegister;
}

SAX_INLINE size_t parts_of(const ByteRows& rows) { return rows.one_byte ? 1 : 2; }

static void bytes_of(const float* x, size_t row, const ByteRows& to) {
  size_t blocks = to.blocks(), place = parts_of(to) * row;
  int8_t* at = to.bytes + place / kTile * blocks * Division(to.block).steps * kRegister +
               place % kTile * kLine;
  if (to.one_byte) {  // a block has one step
    to.steps[row] = 1.0f;
    for (size_t i = 0; i < blocks; ++i, at += kRegister) {
      auto store = [at](size_t j, int32_t number) { at[j] = static_cast<int8_t>(number); };
      to.sums[row * blocks + i] = quantize_block(x + i * to.block, to.block, to.zero, store);
    }
    return;
  }
  float largest = largest_of(x, to.inputs);
  to.steps[row] = largest / 127.0f;
  for (size_t i = 0; i < blocks; ++i) {
    WholeSum sum;
    for (size_t begin = 0; begin < to.block; begin += kBytes, at += kRegister) {
      size_t count = least(to.block - begin, kBytes);
      auto store = [at](size_t j, int32_t high, int32_t low) {
        at[j] = static_cast<int8_t>(high);
        at[kLine + j] = static_cast<int8_t>(low);
      };
      quantize(x + i * to.block + begin, count, 127.0f / largest, sum, store);
    }
    to.sums[row * blocks + i] = block_sum(sum, to.zero);
  }
}

// Rows that two registers hold.
SAX_INLINE size_t rows_at_once(const ByteRows& rows) { return kSums / parts_of(rows); }

// Some rows and two tiles.
struct ByteOperands {
  const QuantizedWeight& weight;
  const ByteRows& all;
  size_t row, count, tile;
  Two two;
  Division division{all.block};

  size_t blocks() const { return all.blocks(); }
  size_t next() const { return blocks() * division.steps * kRegister; }  // from sixteen to the next
  const int8_t* rows() const {
    return all.bytes + parts_of(all) * row * blocks() * division.steps * kLine;
  }
  const BlockSum& sum(size_t r, size_t block) const { return all.sums[(row + r) * blocks() + block]; }
  Scaling scaling(size_t c, size_t block) const {
    return scaling_of(weight, tile + c, block * all.block / weight.block, all.block);
  }
};

// The lines of a step of a block: where they lie, or one number a byte and filled up with zeros.
SAX_INLINE const void* lines_of(const ByteOperands& of, size_t tile, size_t block, size_t step,
                                char* room) {
  const Division& division = of.division;
  size_t bits = static_cast<size_t>(of.weight.bits), line = kLine * bits / 8;
  size_t count = least(division.lines - step * kTile, kTile);
  const uint8_t* at = of.weight.tiles + tile * of.weight.inputs * kTile * bits / 8 +
                      (block * division.lines + step * kTile) * line;
  if (of.row == 0) fetch_lines(at + kRegistersAhead * kTile * line, kTile * line / kLine);
  if (bits == 8) {
    if (count == division.of_step) return at;
    memcpy(room, at, count * kLine);
  } else {
    for (size_t i = 0; i < count; i += 2, at += kLine) {
      B both = load_bytes(at), low = low_nibbles(both), high = high_nibbles(both);
      if (of.weight.float4) low = of_float4(low), high = of_float4(high);
      memcpy(room + i * kLine, &low, kLine);
      memcpy(room + (i + 1) * kLine, &high, kLine);
    }
  }
  if (count < division.of_step) {
    memset(room + count * kLine, 0, (division.of_step - count) * kLine);
  }
  return room;
}

// Sums of whole numbers in memory: of each row one or two.
struct ByteSums {
  alignas(64) int32_t of[kSums][kSums];

  I one(size_t row, size_t tile, const I& begun) const {
    I sum;
    memcpy(&sum, &of[row][tile * kTile], kLine);
    return add_i(begun, sum);
  }

  // From a beginning on.
  Wholes at(size_t row, size_t tile, const Wholes& begun) const {
    Wholes both;
    memcpy(&both.high, &of[2 * row][tile * kTile], kLine);
    memcpy(&both.low, &of[2 * row + 1][tile * kTile], kLine);
    return {add_i(begun.high, both.high), add_i(begun.low, both.low)};
  }
};

// The sums of steps `begin` to `end` of a block.
SAX_INLINE void sum_bytes(const ByteOperands& of, size_t block, size_t begin, size_t end, ByteSums& sums) {
  alignas(64) char room[2][kRegister];
  const int8_t* x = of.rows() + (block * of.division.steps + begin) * kRegister;
  clear_sums(of.two);
  for (size_t step = begin; step < end; ++step, x += kRegister) {
    const void* first = lines_of(of, of.tile, block, step, room[0]);
    const void* second = of.two.weights ? lines_of(of, of.tile + 1, block, step, room[1]) : nullptr;
    settle();
    add_step<false>(of.two, x, of.next(), first, second);
  }
  store_sums(of.two, sums.of, sizeof sums.of[0]);
}

// Totals of each row and tile.
using ByteTotals = F[kSums][2];

// Adds a block to the totals, as on vectors: its sums are scaled once.
SAX_INLINE void add_two_bytes(const ByteOperands& of, size_t block, const Scaling* scaling, ByteTotals& totals) {
  constexpr size_t at_once = kNumbersAtOnce / kBytes;
  for (size_t begin = 0; begin < of.division.steps; begin += at_once) {
    ByteSums wholes;
    sum_bytes(of, block, begin, least(begin + at_once, of.division.steps), wholes);
    for (size_t r = 0; r < of.count; ++r) {
      Wholes begun = scaling[0].folded ? beginning(of.sum(r, block)) : no_wholes();
      for (size_t c = 0; c < of.two.tiles(); ++c) {
        totals[r][c] = fma(value_of(wholes.at(r, c, begun)), scaling[c].scale, totals[r][c]);
      }
    }
  }
}

SAX_INLINE void add_one_byte(const ByteOperands& of, size_t block, const Scaling* scaling, ByteTotals& totals) {
  ByteSums wholes;
  sum_bytes(of, block, 0, of.division.steps, wholes);
  for (size_t r = 0; r < of.count; ++r) {
    const BlockSum& sum = of.sum(r, block);
    for (size_t c = 0; c < of.two.tiles(); ++c) {
      F value = to_f(wholes.one(r, c, set_i(sum.high)));
      totals[r][c] = fma(value, mul(scaling[c].scale, set(sum.step)), totals[r][c]);
    }
  }
}

SAX_INLINE void add_block(const ByteOperands& of, size_t block, ByteTotals& totals) {
  size_t tiles = of.two.tiles();
  Scaling scaling[2];
  for (size_t c = 0; c < tiles; ++c) scaling[c] = of.scaling(c, block);
  if (of.all.one_byte) add_one_byte(of, block, scaling, totals);
  else add_two_bytes(of, block, scaling, totals);
  for (size_t r = 0; scaling[0].offsets && r < of.count; ++r) {
    F sum = set(of.sum(r, block).value);
    for (size_t c = 0; c < tiles; ++c) totals[r][c] = fma(sum, scaling[c].offset, totals[r][c]);
  }
}

static void quantized_block(const ByteOperands& of, float* const* out) {
  ByteTotals totals;
  for (auto& each : totals) each[0] = each[1] = set(0.0f);
  for (size_t block = 0; block < of.blocks(); ++block) add_block(of, block, totals);
  for (size_t r = 0; r < of.count; ++r) {
    F step = set(of.all.steps[of.row + r]);
    for (size_t c = 0; c < of.two.tiles(); ++c) {
      int lanes = lanes_of(of.weight.outputs, of.tile + c);
      store_some(out[of.row + r] + (of.tile + c) * kTile, mul(totals[r][c], step), lanes);
    }
  }
}

static void quantized(const QuantizedWeight& weight, const ByteRows& rows, size_t first, size_t last,
                      float* const* out) {
  Division division(rows.block);
  size_t parts = parts_of(rows), most = rows_at_once(rows);
  size_t of_row = parts * rows.blocks() * division.steps * kLine;
  size_t at_once = in_parts(kBytesInCache, of_row * most) * most;
  auto product = [&](size_t row, size_t end, size_t count) {
    shape(parts * count, division.of_step);
    for (size_t tile = first; tile < last; tile += 2) {
      Two two{parts * count > kTile, last - tile > 1};
      for (size_t at = row; at < end; at += count) {
        quantized_block({weight, rows, at, count, tile, two}, out);
      }
    }
  };
  for (size_t some = 0; some < rows.count; some += at_once) {
    over_shapes(some, least(some + at_once, rows.count), most, product);
  }
}

}  // namespace sax::SAX_ISA
#endif

namespace sax {

#if defined(SAX_NO_TILES)
const TileKernels* const SAX_TABLE(SAX_ISA) = nullptr;
#else
static const TileKernels products = {
    {SAX_ISA::pairs_size, SAX_ISA::pairs_of, SAX_ISA::plain},
    {SAX_ISA::bytes_size, SAX_ISA::bytes_of, SAX_ISA::quantized},
    {SAX_ISA::attend_in_halves, SAX_ISA::join_in_halves},
    {SAX_ISA::attend_on_tiles, SAX_ISA::join_in_halves},
    SAX_ISA::release,
};
const TileKernels* const SAX_TABLE(SAX_ISA) = &products;
#endif

}  // namespace sax
