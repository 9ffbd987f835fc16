// Operations on single rows between products: norms, gates, and heads normed and rotated.

#pragma once

#include <type_traits>

#include "kernels.h"
#include "lanes.h"

namespace sax::SAX_ISA {

SAX_INLINE int lanes_from(size_t i, size_t size) {
  return size - i < kLanes ? static_cast<int>(size - i) : kLanes;
}

// Calls each(lanes) for x + y, which become `sums`, and returns them; y null: x alone, and sums is not
// written.
template <class Each>
SAX_INLINE const float* added(const float* x, const float* y, size_t size, float* sums, Each&& each) {
  for (size_t i = 0; i < size; i += kLanes) {
    int count = lanes_from(i, size);
    F some = load_some(x + i, count);
    if (y) {
      some = add(some, load_some(y + i, count));
      store_some(sums + i, some, count);
    }
    each(some);
  }
  return y ? sums : x;
}

// to = (x + y) / rms(x + y) * scale; x + y as above.
static void rms_norm(const float* x, const float* y, size_t size, const Norm& norm, float* sums,
                     float* to) {
  F squares = set(0.0f);
  const float* from = added(x, y, size, sums, [&](F some) { squares = fma(some, some, squares); });
  float mean = sum(squares) / static_cast<float>(size);
  F by = set(1.0f / __builtin_sqrtf(mean + norm.epsilon)), more = set(norm.more);
  for (size_t i = 0; i < size; i += kLanes) {
    int count = lanes_from(i, size);
    F scale = add(load_some(norm.scale + i, count), more);
    store_some(to + i, mul(mul(load_some(from + i, count), by), scale), count);
  }
}

// to = (x + y - mean) / deviation * scale + bias, x + y likewise; bias null: none.
static void layer_norm(const float* x, const float* y, size_t size, const float* scale,
                       const float* bias, float epsilon, float* sums, float* to) {
  F total = set(0.0f), squares = set(0.0f);
  const float* from = added(x, y, size, sums, [&](F some) { total = add(total, some); });
  F less = set(-sum(total) / static_cast<float>(size));
  for (size_t i = 0; i < size; i += kLanes) {
    int count = lanes_from(i, size);
    store_some(to + i, add(load_some(from + i, count), less), count);
    F some = load_some(to + i, count);  // zeros behind the last
    squares = fma(some, some, squares);
  }
  float mean = sum(squares) / static_cast<float>(size);
  F by = set(1.0f / __builtin_sqrtf(mean + epsilon)), none = set(0.0f);
  for (size_t i = 0; i < size; i += kLanes) {
    int count = lanes_from(i, size);
    F some = mul(load_some(to + i, count), by);
    F more = bias ? load_some(bias + i, count) : none;
    store_some(to + i, fma(some, load_some(scale + i, count), more), count);
  }
}

// 1 or -1 of each lane; 0 where it is 0.
SAX_INLINE F signs_of(F x) {
  F huge = mul(x, set(1e38f));
  return max(min(mul(huge, set(1e38f)), set(1.0f)), set(-1.0f));
}

// The error function, within 3e-7 (Abramowitz and Stegun 1964, 7.1.26).
SAX_INLINE F error_function(F x) {
  F negative = mul(x, set(-1.0f)), size = max(x, negative);
  F t = div(set(1.0f), fma(size, set(0.3275911f), set(1.0f)));
  constexpr float terms[] = {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f};
  F series = set(1.061405429f);
  for (float term : terms) series = fma(series, t, set(term));
  F left = mul(mul(series, t), exp(mul(size, mul(size, set(-1.0f)))));
  F above = add(set(1.0f), mul(left, set(-1.0f)));
  return mul(above, signs_of(x));
}

// x times the logistic function of y.
SAX_INLINE F times_logistic(F x, F y) {
  return div(x, add(set(1.0f), exp(mul(y, set(-1.0f)))));
}

template <Gate G>
SAX_INLINE F opened(F x) {
  if constexpr (G == Gate::silu) return times_logistic(x, x);
  if constexpr (G == Gate::relu) return max(x, set(0.0f));
  if constexpr (G == Gate::quick_gelu) return times_logistic(x, mul(x, set(1.702f)));
  if constexpr (G == Gate::gelu) {
    F half = mul(x, set(0.5f));
    return fma(half, error_function(mul(x, set(0.70710678f))), half);
  }
  // With tanh(u) = 2 logistic(2 u) - 1 (Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415).
  F u = mul(x, fma(mul(x, x), set(0.044715f), set(1.0f)));
  return times_logistic(x, mul(u, set(1.5957691216f)));
}

template <Gate G>
static void gated_by(const float* gate, const float* up, size_t size, float* to) {
  for (size_t i = 0; i < size; i += kLanes) {
    int count = lanes_from(i, size);
    store_some(to + i, mul(opened<G>(load_some(gate + i, count)), load_some(up + i, count)), count);
  }
}

template <Gate G>
static void activated_by(const float* x, const float* bias, size_t size, float* to) {
  for (size_t i = 0; i < size; i += kLanes) {
    int count = lanes_from(i, size);
    F some = load_some(x + i, count);
    if (bias) some = add(some, load_some(bias + i, count));
    store_some(to + i, opened<G>(some), count);
  }
}

// Calls function(constant) for a gate.
template <class Function>
SAX_INLINE void with_gate(Gate gate, Function&& function) {
  switch (gate) {
    case Gate::silu: return function(std::integral_constant<Gate, Gate::silu>{});
    case Gate::gelu_tanh: return function(std::integral_constant<Gate, Gate::gelu_tanh>{});
    case Gate::relu: return function(std::integral_constant<Gate, Gate::relu>{});
    case Gate::gelu: return function(std::integral_constant<Gate, Gate::gelu>{});
    case Gate::quick_gelu: return function(std::integral_constant<Gate, Gate::quick_gelu>{});
  }
}

static void gated(Gate gate, const float* x, const float* up, size_t size, float* to) {
  with_gate(gate, [&](auto each) { gated_by<each()>(x, up, size, to); });
}

static void activated(Gate gate, const float* x, const float* bias, size_t size, float* to) {
  with_gate(gate, [&](auto each) { activated_by<each()>(x, bias, size, to); });
}

// Sums of streams [streams][size], each weighted, for `outs` results, or the streams as they are; with
// what was made added to each by a weight of its own.
static void mix(const Streams& s, const float* x, const float* weights, const float* adding,
                const float* made, float* to) {
  for (size_t out = 0; out < s.outs; ++out, to += s.size) {
    for (size_t i = 0; i < s.size; i += kLanes) {
      int count = lanes_from(i, s.size);
      F sum = set(0.0f);
      if (!weights) sum = load_some(x + out * s.size + i, count);
      for (size_t stream = 0; weights && stream < s.streams; ++stream) {
        F weight = set(weights[stream * s.outs + out]);
        sum = fma(load_some(x + stream * s.size + i, count), weight, sum);
      }
      if (made) sum = fma(load_some(made + i, count), set(adding[out]), sum);
      store_some(to + i, sum, count);
    }
  }
}

// Rotates the first 2 * half numbers of a head, in place.
static void rotate(const Rotation& by, float* head) {
  if (by.interleaved) {
    for (size_t i = 0; i < by.half; ++i) {
      float left = head[2 * i], right = head[2 * i + 1];
      head[2 * i] = left * by.cos[i] - right * by.sin[i];
      head[2 * i + 1] = right * by.cos[i] + left * by.sin[i];
    }
    return;
  }
  for (size_t i = 0; i < by.half; i += kLanes) {
    int count = lanes_from(i, by.half);
    F left = load_some(head + i, count), right = load_some(head + by.half + i, count);
    F cos = load_some(by.cos + i, count), sin = load_some(by.sin + i, count);
    F less = mul(mul(right, sin), set(-1.0f));
    store_some(head + i, add(mul(left, cos), less), count);
    store_some(head + by.half + i, add(mul(right, cos), mul(left, sin)), count);
  }
}

static void heads(const float* x, size_t count, size_t size, const Norm& norm, const Rotation& by,
                  float* to) {
  for (size_t head = 0; head < count; ++head, x += size, to += size) {
    if (norm.scale) rms_norm(x, nullptr, size, norm, nullptr, to);
    else memcpy(to, x, size * sizeof(float));
    if (by.half) rotate(by, to);
  }
}

}  // namespace sax::SAX_ISA
