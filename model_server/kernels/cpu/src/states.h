// States of recurrent layers, token by token, and products with weights as they lie. A result's bits
// depend on its own row and on the tokens before it, however many are computed at once.

#pragma once

#include "attention.h"
#include "kernels.h"
#include "lanes.h"
#include "low_rank.h"
#include "rows.h"
#include "sampling.h"

namespace sax::SAX_ISA {

// memory = exp(decay) * memory + column x row; out[A] = memory times read.
static void take_in(float* memory, size_t high, size_t wide, const MemoryToken& token, float* out) {
  F faded = exp(set(*token.decay));
  for (size_t a = 0; a < high; ++a, memory += wide) {
    F column = set(token.column[a]), total = set(0.0f);
    for (size_t b = 0; b < wide; b += kLanes) {
      int count = lanes_from(b, wide);
      F now = fma(column, load_some(token.row + b, count), mul(load_some(memory + b, count), faded));
      store_some(memory + b, now, count);
      total = fma(now, load_some(token.read + b, count), total);
    }
    out[a] = sum(total);
  }
}

// As above for G groups of sixteen columns, but what is taken in is the rate times what the memory
// lacks of the row; out[B] = read times memory. fades: of the memory, or with kEach of its rows.
template <int G, bool kEach>
SAX_INLINE void correct_groups(float* memory, size_t high, size_t wide, const MemoryToken& token,
                               const float* fades, int last, float* out, size_t b) {
  F faded = set(*fades);
  auto count = [&](int g) { return g + 1 < G ? kLanes : last; };
  F found[G], lacking[G], made[G];
  for (int g = 0; g < G; ++g) found[g] = made[g] = set(0.0f);
  for (size_t a = 0; a < high; ++a) {
    F column = kEach ? mul(set(token.column[a]), set(fades[a])) : set(token.column[a]);
    for (int g = 0; g < G; ++g) {
      found[g] = fma(load_some(memory + a * wide + b + g * kLanes, count(g)), column, found[g]);
    }
  }
  F less = kEach ? set(-1.0f) : mul(faded, set(-1.0f)), rate = set(*token.rate);
  for (int g = 0; g < G; ++g) {
    lacking[g] = mul(rate, fma(found[g], less, load_some(token.row + b + g * kLanes, count(g))));
  }
  for (size_t a = 0; a < high; ++a) {
    F column = set(token.column[a]), read = set(token.read[a]);
    if (kEach) faded = set(fades[a]);
    for (int g = 0; g < G; ++g) {
      float* at = memory + a * wide + b + g * kLanes;
      F now = fma(column, lacking[g], mul(load_some(at, count(g)), faded));
      store_some(at, now, count(g));
      made[g] = fma(now, read, made[g]);
    }
  }
  for (int g = 0; g < G; ++g) store_some(out + b + g * kLanes, made[g], count(g));
}

template <bool kEach>
SAX_INLINE void correct(float* memory, size_t high, size_t wide, const MemoryToken& token,
                        const float* fades, float* out) {
  size_t b = 0;
  for (; b + 4 * kLanes <= wide; b += 4 * kLanes) {
    correct_groups<4, kEach>(memory, high, wide, token, fades, kLanes, out, b);
  }
  for (; b < wide; b += kLanes) {
    correct_groups<1, kEach>(memory, high, wide, token, fades, lanes_from(b, wide), out, b);
  }
}

// fades: room for A numbers.
static void remember(float* memory, size_t high, size_t wide, const MemoryToken& token, float* fades,
                     float* out) {
  if (!token.rate) return take_in(memory, high, wide, token, out);
  size_t several = token.each ? high : 1;
  for (size_t a = 0; a < several; a += kLanes) {
    int count = lanes_from(a, several);
    store_some(fades + a, exp(load_some(token.decay + a, count)), count);
  }
  (token.each ? correct<true> : correct<false>)(memory, high, wide, token, fades, out);
}

// Numbers `distance` apart, one to a lane.
SAX_INLINE F gathered(const float* from, size_t distance, int count) {
  float held[kLanes] = {};
  for (int i = 0; i < count; ++i) held[i] = from[static_cast<size_t>(i) * distance];
  return load(held);
}

// Up to sixteen channels of consecutive tokens, `channels` numbers apart.
static void convolve(const Filter& filter, size_t first, int lanes, float* before, const float* x,
                     size_t tokens, size_t channels, float* out) {
  size_t width = filter.width;
  F seen[kMostTaps], taps[kMostTaps];
  for (size_t at = 0; at < width; ++at) {
    taps[at] = gathered(filter.taps + first * width + at, width, lanes);
    if (at + 1 < width) seen[at] = gathered(before + at, width - 1, lanes);
  }
  F bias = filter.bias ? load_some(filter.bias + first, lanes) : set(0.0f);
  for (size_t token = 0; token < tokens; ++token) {
    seen[width - 1] = load_some(x + token * channels + first, lanes);
    F made = bias;
    for (size_t at = 0; at < width; ++at) made = fma(seen[at], taps[at], made);
    store_some(out + token * channels + first, made, lanes);
    for (size_t at = 0; at + 1 < width; ++at) seen[at] = seen[at + 1];
  }
  for (size_t at = 0; at + 1 < width; ++at) {
    float held[kLanes];
    store(held, seen[at]);
    for (int i = 0; i < lanes; ++i) before[static_cast<size_t>(i) * (width - 1) + at] = held[i];
  }
}

constexpr int kSide = kAccumulators >= 16 ? 4 : kAccumulators >= 4 ? 2 : 1;

// R rows times C rows of a weight: sums of sixteen lanes, then of the lanes.
template <bool kHalves, int R, int C>
SAX_INLINE void dense_block(const float* const* x, const void* weight, size_t inputs, size_t output,
                            float* const* out) {
  F sums[R][C];
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) sums[r][c] = set(0.0f);
  }
  for (size_t i = 0; i < inputs; i += kLanes) {
    int count = lanes_from(i, inputs);
    F weights[C];
    for (int c = 0; c < C; ++c) {
      size_t at = (output + c) * inputs + i;
      if constexpr (kHalves) weights[c] = load_some_bf16(static_cast<const uint16_t*>(weight) + at, count);
      else weights[c] = load_some(static_cast<const float*>(weight) + at, count);
    }
    for (int r = 0; r < R; ++r) {
      F some = load_some(x[r] + i, count);
      for (int c = 0; c < C; ++c) sums[r][c] = fma(some, weights[c], sums[r][c]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int c = 0; c < C; ++c) out[r][output + c] = sum(sums[r][c]);
  }
}

template <bool kHalves, int R>
SAX_INLINE void dense_rows(const float* const* x, const void* weight, size_t inputs, size_t first,
                           size_t last, float* const* out) {
  size_t output = first;
  for (; output + kSide <= last; output += kSide) {
    dense_block<kHalves, R, kSide>(x, weight, inputs, output, out);
  }
  for (; output < last; ++output) dense_block<kHalves, R, 1>(x, weight, inputs, output, out);
}

template <bool kHalves>
static void dense_of(const void* weight, const float* const* x, size_t rows, size_t inputs,
                     size_t first, size_t last, float* const* out) {
  size_t row = 0;
  for (; row + kSide <= rows; row += kSide) {
    dense_rows<kHalves, kSide>(x + row, weight, inputs, first, last, out + row);
  }
  for (; row < rows; ++row) dense_rows<kHalves, 1>(x + row, weight, inputs, first, last, out + row);
}

static void dense(bool halves, const void* weight, const float* const* x, size_t rows, size_t inputs,
                  size_t first, size_t last, float* const* out) {
  (halves ? dense_of<true> : dense_of<false>)(weight, x, rows, inputs, first, last, out);
}

// log(1 + exp(x)), with log(1 + e) = 2 atanh(e / (2 + e)) for e of 0 to 1.
SAX_INLINE F softplus(F x) {
  F above = max(x, set(0.0f));
  F e = exp(add(min(x, set(0.0f)), mul(above, set(-1.0f))));
  F z = div(e, add(set(2.0f), e)), square = mul(z, z);
  F series = set(1.0f / 15.0f);
  for (int odd = 13; odd > 0; odd -= 2) series = fma(series, square, set(1.0f / static_cast<float>(odd)));
  return fma(mul(z, set(2.0f)), series, above);
}

// to = (x - less) / sqrt(mean of the squares of that + epsilon).
static void normed(const float* x, size_t size, float less, float epsilon, float* to) {
  F squares = set(0.0f);
  for (size_t i = 0; i < size; i += kLanes) {
    int count = lanes_from(i, size);
    store_some(to + i, add(load_some(x + i, count), set(-less)), count);
    F some = load_some(to + i, count);
    squares = fma(some, some, squares);
  }
  float mean = sum(squares) / static_cast<float>(size);
  F by = set(1.0f / __builtin_sqrtf(mean + epsilon));
  for (size_t i = 0; i < size; i += kLanes) {
    int count = lanes_from(i, size);
    store_some(to + i, mul(load_some(to + i, count), by), count);
  }
}

// One row of numbers: their sum, their softmax, or a function of each.
static void curve(Curve kind, const float* x, size_t size, float epsilon, float* to) {
  if (kind == Curve::sum) return void(*to = sum_of(x, size));
  if (kind == Curve::unit) return normed(x, size, 0.0f, epsilon, to);
  if (kind == Curve::standardized) {
    return normed(x, size, sum_of(x, size) / static_cast<float>(size), epsilon, to);
  }
  F total = set(0.0f), most = set(-__builtin_inff());
  for (size_t i = 0; kind == Curve::softmax && i < size; i += kLanes) {
    float held[kLanes];
    store(held, most);
    int count = lanes_from(i, size);
    for (int lane = 0; lane < count; ++lane) held[lane] = x[i + lane] > held[lane] ? x[i + lane] : held[lane];
    most = load(held);
  }
  float above = highest(most);
  for (size_t i = 0; i < size; i += kLanes) {
    int count = lanes_from(i, size);
    F some = load_some(x + i, count);
    if (kind == Curve::logistic) {
      store_some(to + i, times_logistic(set(1.0f), some), count);
    } else if (kind == Curve::softplus) {
      store_some(to + i, softplus(some), count);
    } else {
      store_some(to + i, exp(add(some, set(-above))), count);
      total = add(total, load_some(to + i, count));
    }
  }
  if (kind != Curve::softmax) return;
  F all = set(sum(total));
  for (size_t i = 0; i < size; i += kLanes) {
    int count = lanes_from(i, size);
    store_some(to + i, div(load_some(to + i, count), all), count);
  }
}

}  // namespace sax::SAX_ISA
