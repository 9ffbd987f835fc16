// Attention among the tokens of whole inputs, which no page keeps, as XLA calls it.

#include <string.h>

#include <algorithm>
#include <vector>

#include "handling.h"

namespace sax {
namespace {

using Numbers = ffi::Buffer<ffi::F32>;
using Whole = ffi::Buffer<ffi::S32>;

constexpr size_t kTokens = 64;    // of a page: its rows of keys lie close to each other
constexpr size_t kQueries = 128;  // of a piece of work

// The shapes of a call, and where its keys and values are laid out as pages.
struct Inputs {
  size_t count, length, heads, kv_heads, key_dim, value_dim;
  bool valued;  // else the keys double as values

  size_t columns() const { return (length + kTokens - 1) / kTokens; }  // pages of an input
  size_t of_keys() const { return count * columns() * kv_heads * key_dim * kTokens; }
  size_t of_values() const { return valued ? count * columns() * kv_heads * value_dim * kTokens : 0; }
};

// Copies one head's keys and values of a page's tokens. What lies behind the last token is zeros, so
// that no score of it is a NaN.
void lay_out(const Inputs& in, const float* k, const float* v, size_t page, size_t head, float* keys,
             float* values) {
  size_t input = page / in.columns(), first = page % in.columns() * kTokens;
  size_t tokens = std::min(kTokens, in.length - first), row = input * in.length + first;
  size_t of_head = page * in.kv_heads + head;
  float* key = keys + of_head * in.key_dim * kTokens;
  if (tokens < kTokens) memset(key, 0, in.key_dim * kTokens * sizeof(float));
  for (size_t i = 0; i < tokens; ++i) {
    const float* from = k + ((row + i) * in.kv_heads + head) * in.key_dim;
    for (size_t d = 0; d < in.key_dim; ++d) key[d * kTokens + i] = from[d];
  }
  if (!in.valued) return;
  float* value = values + of_head * in.value_dim * kTokens;
  for (size_t i = 0; i < tokens; ++i) {
    const float* from = v + ((row + i) * in.kv_heads + head) * in.value_dim;
    memcpy(value + i * in.value_dim, from, in.value_dim * sizeof(float));
  }
}

bool within(const Whole& firsts, const Whole& limits, size_t length) {
  const int32_t *first = firsts.typed_data(), *limit = limits.typed_data();
  for (size_t i = 0; i < limits.element_count(); ++i) {
    if (first[i] < 0 || limit[i] > static_cast<int32_t>(length)) return false;
  }
  return true;
}

// q f32[B * T, H, D], k f32[B * T, K, D], v f32[B * T, K, W] or of no size; firsts and limits i32[B, T]:
// of the tokens that each sees, none where the limit is 0; sinks f32[H] or of no size
// -> f32[B * T, H, W]; and room for pages of keys and values
ffi::Error attend_whole(Numbers q, Numbers k, Numbers v, Whole firsts, Whole limits, Numbers sinks,
                        ffi::ResultBuffer<ffi::F32> out, ffi::ResultBuffer<ffi::F32> room, float scale,
                        float softcap) {
  if (rank(q) != 3 || rank(k) != 3 || rank(v) != 3 || rank(limits) != 2 || rank(*out) != 3) {
    return wrong("whole attention: ranks");
  }
  Inputs in{dim(limits, 0), dim(limits, 1), dim(q, 1), dim(k, 1), dim(q, 2), dim(*out, 2), !absent(v)};
  size_t rows = in.count * in.length;
  bool fits = dim(q, 0) == rows && dim(k, 0) == rows && dim(k, 2) == in.key_dim &&
              dim(*out, 0) == rows && dim(*out, 1) == in.heads && in.kv_heads &&
              in.heads % in.kv_heads == 0 && in.key_dim <= kMostDim && in.value_dim <= kMostDim &&
              firsts.element_count() == rows && within(firsts, limits, in.length) &&
              (absent(sinks) || sinks.element_count() == in.heads) &&
              room->element_count() == in.of_keys() + in.of_values();
  bool valued = in.valued ? dim(v, 0) == rows && dim(v, 1) == in.kv_heads && dim(v, 2) == in.value_dim
                          : in.value_dim == in.key_dim;
  if (!fits || !valued) return wrong("whole attention: the shapes do not fit");
  float *keys = room->typed_data(), *values = keys + in.of_keys();
  size_t pages = in.count * in.columns();
  parallel(pages * in.kv_heads, [&](size_t i) {
    lay_out(in, k.typed_data(), v.typed_data(), i / in.kv_heads, i % in.kv_heads, keys, values);
  });
  Attention step{};
  step.queries = q.typed_data(), step.keys = keys, step.values = in.valued ? values : nullptr;
  step.sinks = absent(sinks) ? nullptr : sinks.typed_data();
  step.out = out->typed_data(), step.number = Number::f32;
  step.pages = pages, step.page_size = kTokens, step.heads = in.heads, step.kv_heads = in.kv_heads;
  step.key_dim = step.key_rows = in.key_dim, step.value_dim = in.value_dim;
  step.scale = scale, step.softcap = softcap;
  std::vector<int32_t> table(pages);
  for (size_t i = 0; i < pages; ++i) table[i] = static_cast<int32_t>(i);
  size_t parts = (in.length + kQueries - 1) / kQueries;
  parallel(in.count * in.kv_heads * parts, [&](size_t piece) {
    size_t part = piece % parts, head = piece / parts % in.kv_heads, input = piece / parts / in.kv_heads;
    size_t first = input * in.length + part * kQueries;
    size_t count = std::min(kQueries, in.length - part * kQueries);
    const int32_t* of = limits.typed_data() + first;
    Queries queries{table.data() + input * in.columns(), of, nullptr, 0, first, count, in.columns(),
                    firsts.typed_data() + first};
    chosen().pages.attend(step, queries, head, 0, std::max(*std::max_element(of, of + count), 0), nullptr,
                          nullptr, {});
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace sax

#pragma GCC visibility push(default)  // else hidden, as all that Python does not look for

XLA_FFI_DEFINE_HANDLER_SYMBOL(sax_cpu_attend_whole, sax::attend_whole,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<float>("scale")
                                  .Attr<float>("softcap"));

#pragma GCC visibility pop
