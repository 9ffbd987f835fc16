// The kernels, compiled once per instruction set; `chosen` is the fastest this machine runs.

#pragma once

#include <stddef.h>
#include <stdint.h>

namespace sax {

// A weight [N, K] in tiles of 16 rows: N / 16 tiles, the last filled up with zeros.
struct PlainWeight {
  const uint32_t* tiles;  // [tiles][K / 2][16], pairs of bf16 along K
  size_t outputs;         // N
  size_t pairs;           // K / 2, rounded up
};

// The same with numbers of f32.
struct FloatWeight {
  const float* tiles;  // [tiles][K][16]
  size_t outputs;      // N
  size_t inputs;       // K
};

// As above, with numbers of 8 or 4 bits: weight = scale * value + offset.
struct QuantizedWeight {
  const uint8_t* tiles;     // 8 bits: [tiles][K / 4][16][4], plus 128. 4 bits: [tiles][K / 8][16][4],
                            // plus 8, numbers 4 to 7 of each eight in the high nibbles. Of float4
                            // the bits, plus 8: a table has twice the number, plus 12
  const uint16_t* scales;   // f16[tiles][K / block][16], as parts of the row's `units`
  const uint16_t* offsets;  // the same, or null
  const float* units;       // f32[tiles][2][16]: of scales, of offsets
  size_t outputs;           // N
  size_t inputs;            // K
  size_t block;             // numbers that share a scale
  int bits;                 // 8 or 4
  bool float4;              // numbers of 4 bits are e2m1

  // What is stored for 0, or what the table has for it.
  int32_t zero() const { return bits == 8 ? 128 : float4 ? 12 : 8; }
};

enum class Number { f32, bf16, i8, f8 };

constexpr size_t kMostDim = 1152;  // numbers of a key that are compared, or of a value

struct Attention {
  const float* queries;  // f32[T, H, D]
  const void* keys;      // [P, K, at least D, G]
  const void* values;    // [P, K, G, W]; null: the keys double as values
  const float* key_scales;    // f32[P, K, G] or null
  const float* value_scales;
  const float* sinks;         // f32[H] or null: a score of each head that has no value
  const float* begun;         // f32[T, H, W] or null: sums over what was attended to before these
  const float* begun_states;  // f32[T, H, 2], highest scores and totals
  float* out;                 // f32[T, H, W]
  float* states;              // as `begun_states`, and `out` as `begun`; null: `out` is divided
  Number number;
  size_t pages, page_size, heads, kv_heads, key_dim, value_dim;
  size_t key_rows, key_first;  // numbers of a cached key, and the first that is compared
  size_t choosers;             // of tokens, for as many heads each; 0: queries see all
  float scale, softcap;  // softcap 0: none
  int32_t window;        // 0: none
  int32_t chunk;         // 0: none; a query sees its own chunk of so many tokens
};

// Whether the order of sums of `Kernels::halves` is for these pages.
inline bool takes_halves(const Attention& a) {
  return a.number == Number::bf16 && a.values && !a.key_scales && !a.value_scales;
}

// The first token that a query with this limit sees.
inline int32_t first_seen(const Attention& a, int32_t limit) {
  if (a.chunk) return limit > 0 ? (limit - 1) / a.chunk * a.chunk : 0;
  return a.window && limit > a.window ? limit - a.window : 0;
}

// Queries of one sequence, or of decodes that share pages: rows of the batch with a limit each.
struct Queries {
  const int32_t* table;   // pages of the sequence
  const int32_t* limits;  // cached tokens each query sees
  const uint8_t* chosen;  // [choosers][count][flags], 1: of those it does; null: all of them
  size_t flags;
  size_t first;           // row of the batch
  size_t count;
  size_t columns;         // of the table
  const int32_t* firsts = nullptr;  // first token that each query sees; null: as its limit says
  const size_t* rows = nullptr;     // of the batch, where they do not follow each other

  int32_t first_of(const Attention& a, size_t query) const {
    return firsts ? firsts[query] : first_seen(a, limits[query]);
  }

  size_t row(size_t query) const { return rows ? rows[query] : first + query; }
};

// A sequence's keys are summed in parts, divided by their positions alone, and the parts in their
// order: a row's result depends neither on the rows beside it, nor on how it is computed.
constexpr int32_t kKeysOfPart = 512;

// State of a softmax over part of the keys, for one query head.
struct Partial {
  float highest, total;
};

// x / rms(x) * (scale + more).
struct Norm {
  const float* scale;
  float epsilon, more;
};

enum class Gate { silu, gelu_tanh, relu, gelu, quick_gelu };
constexpr Gate kLastGate = Gate::quick_gelu;

enum class Curve { sum, softmax, logistic, softplus, standardized, unit };

// What a memory [A][B] of one head takes in of a token, and what reads it.
struct MemoryToken {
  const float* column;  // [A]
  const float* row;     // [B]
  const float* read;    // [B], with a rate [A]
  const float* decay;   // logarithm, of the whole memory or [A] of each row
  bool each;            // there is one of each row; only with a rate
  const float* rate;    // null: all of the row is taken in
};

// A short convolution of each channel.
struct Filter {
  const float* taps;  // [channels][width]
  const float* bias;  // [channels] or null
  size_t width;
};
constexpr size_t kMostTaps = 16;

// Rotation of a head by its position: of `half` pairs, with what lies `half` further on, or next to
// each other.
struct Rotation {
  const float* cos;
  const float* sin;
  size_t half;
  bool interleaved;
};

// Residual streams of a row, and what they are mixed into.
struct Streams {
  size_t streams, outs, size;
};

// How the token of one row is chosen.
struct Choice {
  float temperature;  // 0: the likeliest
  int32_t top_k;      // 0: off
  float top_p, min_p, typical_p;  // 1, 0, 1: off
  uint32_t key[2];    // of the row's random numbers
  int32_t target;     // a token to report on instead of choosing; -1: choose
  int32_t tops;       // above 0: report the likeliest tokens and the rank
};

// Where the choice of one row is written.
struct Chosen {
  int32_t* token;
  float* logprob;
  int32_t* top_tokens;
  float* top_logprobs;
  int32_t* rank;
};

// Products of rows with plain weights.
struct PlainProduct {
  // Of the memory for the pairs of so many rows.
  size_t (*size)(size_t rows, size_t inputs);

  // x f32[K], one row of several, to its pairs of bf16.
  void (*pairs_of)(const float* x, size_t inputs, size_t row, void* pairs);

  // out[row], f32[N], = x times the transposed weight, for tiles `first` to `last`.
  void (*multiply)(const PlainWeight& weight, const void* pairs, size_t rows, size_t first,
                   size_t last, float* const* out);
};

// Of the numbers of a block of a row: their sum, and the whole numbers that sums of their products
// begin with, where these hold a whole block: the zero of the weight's stored numbers times theirs.
struct BlockSum {
  int32_t high, low;
  float value;
  float step;  // of the block's numbers, where each is one byte
};

// Rows as two bytes for each number: its value in steps of the row's largest / 127, and 254 times
// the rest. Or as one: its value in steps of its block's largest / 127.
struct ByteRows {
  size_t count, inputs, block;  // the block divides the weight's
  bool one_byte;
  int32_t zero;  // what the weight stores for 0
  int8_t* bytes;
  float* steps;    // [count]
  BlockSum* sums;  // [count][K / block], in an order of the instruction set's own

  size_t blocks() const { return inputs / block; }
};

// Numbers of a row that are summed together: the weight's block, or of one byte each at most 64.
inline size_t row_block(const QuantizedWeight& weight, bool one_byte) {
  size_t whole = weight.block, fours = weight.bits == 4 ? 8 : 4;
  size_t parts = one_byte ? (whole + 63) / 64 : 1;
  while (whole % parts || whole / parts % fours) ++parts;
  return whole / parts;
}

// Products of rows with quantised weights, in whole numbers: one order of sums for any number of
// rows.
struct ByteProduct {
  // Of the memory for the bytes of so many rows.
  size_t (*size)(size_t rows, size_t inputs, size_t block);

  // Writes x f32[K], one of the rows.
  void (*bytes_of)(const float* x, size_t row, const ByteRows& to);

  void (*multiply)(const QuantizedWeight& weight, const ByteRows& rows, size_t first, size_t last,
                   float* const* out);
};

// Attention over pages.
// Keys and values of which the first are fetched before they are read: pages lie anywhere, so a machine
// would wait for the first of each. A table of no pages: none.
struct Coming {
  const int32_t* table = nullptr;
  size_t kv_head = 0;
  int32_t begin = 0, end = 0;
};

struct PageAttention {
  // Heads [kv_head] of these queries over the keys from `begin` to `end`. partials: null, and the
  // result is written, or one per query and head, as sums are: for `join`.
  // coming: what this thread most likely attends to next.
  void (*attend)(const Attention& step, const Queries& queries, size_t kv_head, int32_t begin,
                 int32_t end, float* sums, Partial* partials, const Coming& coming);

  // All heads of one row: the parts of its keys in their order, sums [parts][H][W].
  void (*join)(const Attention& step, size_t row, size_t parts, const float* sums,
               const Partial* partials);
};

// Products and attention on the tile registers of AMX.
struct TileKernels {
  PlainProduct plain;
  ByteProduct bytes;
  PageAttention halves, halves_of_many;  // on vectors, and on tiles, which take no chosen tokens
  void (*release)();  // the registers of this thread, before it rests
};

struct Kernels {
  const char* name;

  // f32 to bf16, rounded to nearest.
  void (*narrow)(const float* x, size_t count, uint16_t* to);

  PlainProduct plain;

  // out[row], f32[N], = x[row], f32[K], times the transposed weight, for tiles `first` to `last`.
  void (*floats)(const FloatWeight& weight, const float* const* x, size_t rows, size_t first,
                 size_t last, float* const* out);

  // The same numbers from either; the second from `many_rows` rows on.
  ByteProduct bytes, bytes_of_many;
  size_t many_rows;

  PageAttention pages;

  // For pages that `takes_halves` of, in another order of sums; the same numbers from either, the
  // second from `many_queries` on, each with one of its heads.
  PageAttention halves, halves_of_many;
  size_t many_queries;

  // Scores of the keys from `begin`, a multiple of 128, to `end` by all heads of one row: positive
  // ones weighted and added up, to[S], or without weights each head's, to[H][distance].
  void (*score)(const Attention& step, const int32_t* table, size_t row, int32_t begin, int32_t end,
                const float* weights, float* to, size_t distance);

  // An adapter's factors: to[rows] = x . down[row]; to[outputs] += inner times up [rank, outputs].
  void (*low_rank_down)(const float* x, size_t inputs, const uint16_t* down, size_t rows, float* to);
  void (*low_rank_up)(const float* inner, size_t rank, const uint16_t* up, size_t outputs, float* to);

  // sums = x + y, unless y is null, and to = the norm of that.
  void (*rms_norm)(const float* x, const float* y, size_t size, const Norm& norm, float* sums,
                   float* to);

  // sums = x + y, unless y is null, and to = (that - its mean) / its deviation * scale + bias, unless
  // bias is null.
  void (*layer_norm)(const float* x, const float* y, size_t size, const float* scale,
                     const float* bias, float epsilon, float* sums, float* to);

  // to = gate(x) * up.
  void (*gated)(Gate gate, const float* x, const float* up, size_t size, float* to);

  // to = gate(x + bias), unless bias is null.
  void (*activated)(Gate gate, const float* x, const float* bias, size_t size, float* to);

  // Heads of one row, normed if there is a scale, then rotated.
  void (*heads)(const float* x, size_t count, size_t size, const Norm& norm, const Rotation& by,
                float* to);

  // to[outs][size] = sums of x[streams][size] by weights[streams][outs], or x itself if they are null;
  // and adding[outs] times made[size], unless it is null.
  void (*mix)(const Streams& of, const float* x, const float* weights, const float* adding,
              const float* made, float* to);

  // One row: to[1] = its sum, or to[size] = its softmax, or a function of each of its numbers.
  // epsilon: added to the mean square that `standardized` and `unit` divide by the root of.
  void (*curve)(Curve kind, const float* x, size_t size, float epsilon, float* to);

  // A memory [high][wide] takes in a token, and is read: out[high], with a rate out[wide].
  void (*remember)(float* memory, size_t high, size_t wide, const MemoryToken& token, float* fades,
                   float* out);

  // Up to sixteen channels of consecutive tokens [tokens][channels]; before [lanes][width - 1].
  void (*convolve)(const Filter& filter, size_t first, int lanes, float* before, const float* x,
                   size_t tokens, size_t channels, float* out);

  // out[row][first to last] = x[row] times rows of a weight [N][inputs], of f32 or bf16.
  void (*dense)(bool halves, const void* weight, const float* const* x, size_t rows, size_t inputs,
                size_t first, size_t last, float* const* out);

  // Chooses a token by the edited logits of one row and reports it by the plain ones; scratch: four
  // numbers of each token.
  void (*choose)(const float* logits, const float* edited, size_t vocab, const Choice& row,
                 size_t tops, float* scratch, Chosen& to);

  // Ends this thread's use of what makes its switches expensive; null: nothing does.
  void (*release)();
};

const Kernels& chosen();

// On the unit itself, or null if the compiler does not know it; and on a model of it, for tests.
extern const TileKernels* const tiles_amx;
extern const TileKernels* const tiles_amx_model;

}  // namespace sax
