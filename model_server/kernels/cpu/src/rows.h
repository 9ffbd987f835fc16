// Operations on single rows between products: norms, gates, and heads normed and rotated.

#pragma once

#include "kernels.h"
#include "lanes.h"

namespace sax::SAX_ISA {

SAX_INLINE int lanes_from(size_t i, size_t size) {
  return size - i < kLanes ? static_cast<int>(size - i) : kLanes;
}

// to = (x + y) / rms(x + y) * scale, and sums = x + y; y null: x alone, and sums is not written.
static void rms_norm(const float* x, const float* y, size_t size, const Norm& norm, float* sums,
                     float* to) {
  F squares = set(0.0f);
  for (size_t i = 0; i < size; i += kLanes) {
    int count = lanes_from(i, size);
    F some = load_some(x + i, count);
    if (y) {
      some = add(some, load_some(y + i, count));
      store_some(sums + i, some, count);
    }
    squares = fma(some, some, squares);
  }
  const float* from = y ? sums : x;
  float mean = sum(squares) / static_cast<float>(size);
  F by = set(1.0f / __builtin_sqrtf(mean + norm.epsilon)), more = set(norm.more);
  for (size_t i = 0; i < size; i += kLanes) {
    int count = lanes_from(i, size);
    F scale = add(load_some(norm.scale + i, count), more);
    store_some(to + i, mul(mul(load_some(from + i, count), by), scale), count);
  }
}

// x times the logistic function of y.
SAX_INLINE F times_logistic(F x, F y) {
  return div(x, add(set(1.0f), exp(mul(y, set(-1.0f)))));
}

template <Gate G>
SAX_INLINE F opened(F x) {
  if constexpr (G == Gate::silu) return times_logistic(x, x);
  if constexpr (G == Gate::relu) return max(x, set(0.0f));
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

static void gated(Gate gate, const float* x, const float* up, size_t size, float* to) {
  switch (gate) {
    case Gate::silu: return gated_by<Gate::silu>(x, up, size, to);
    case Gate::gelu_tanh: return gated_by<Gate::gelu_tanh>(x, up, size, to);
    case Gate::relu: return gated_by<Gate::relu>(x, up, size, to);
  }
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
