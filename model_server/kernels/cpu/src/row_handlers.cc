// Operations on rows between products, as XLA calls them. Rows that are not live get zeros.

#include <string.h>

#include "handling.h"

namespace sax {
namespace {

using Numbers = ffi::Buffer<ffi::F32>;

// live i32: the places, ended by -1; of no size: all.
std::vector<char> marks_of(const ffi::Buffer<ffi::S32>& live, size_t rows) {
  std::vector<char> marks(rows, absent(live));
  for (size_t i = 0; i < live.element_count(); ++i) {
    size_t row = static_cast<size_t>(live.typed_data()[i]);
    if (row >= rows) break;
    marks[row] = 1;
  }
  return marks;
}

// Calls `compute` with each live row and `clear` with the others.
template <class Compute, class Clear>
void over_live(const ffi::Buffer<ffi::S32>& live, size_t rows, size_t numbers, Compute&& compute,
               Clear&& clear) {
  std::vector<char> marks = marks_of(live, rows);
  over_rows(rows, numbers, [&](size_t first, size_t last) {
    for (size_t row = first; row < last; ++row) {
      if (marks[row]) compute(row);
      else clear(row);
    }
  });
}

void clear(float* to, size_t numbers) { memset(to, 0, numbers * sizeof(float)); }

// x and y f32[T, D], y possibly of no size, live i32[T] or of no size, scale f32[D]
// -> x + y f32[T, D], of no size without y; its norm f32[T, D]
ffi::Error rms_norm(Numbers x, Numbers y, ffi::Buffer<ffi::S32> live, Numbers scale,
                    ffi::ResultBuffer<ffi::F32> sums, ffi::ResultBuffer<ffi::F32> out, float epsilon,
                    float more) {
  if (rank(x) != 2 || rank(*out) != 2) return wrong("norm: ranks");
  size_t rows = dim(x, 0), size = dim(x, 1), count = x.element_count();
  bool added = !absent(y);
  if (scale.element_count() != size || out->element_count() != count ||
      (added && (y.element_count() != count || sums->element_count() != count))) {
    return wrong("norm: the shapes do not fit");
  }
  Norm norm{scale.typed_data(), epsilon, more};
  over_live(
      live, rows, size,
      [&](size_t row) {
        size_t at = row * size;
        chosen().rms_norm(x.typed_data() + at, added ? y.typed_data() + at : nullptr, size, norm,
                          added ? sums->typed_data() + at : nullptr, out->typed_data() + at);
      },
      [&](size_t row) {
        if (added) clear(sums->typed_data() + row * size, size);
        clear(out->typed_data() + row * size, size);
      });
  return ffi::Error::Success();
}

// As `rms_norm`, with the mean taken off first, and bias f32[D] or of no size added last.
ffi::Error layer_norm(Numbers x, Numbers y, ffi::Buffer<ffi::S32> live, Numbers scale, Numbers bias,
                      ffi::ResultBuffer<ffi::F32> sums, ffi::ResultBuffer<ffi::F32> out,
                      float epsilon) {
  if (rank(x) != 2 || rank(*out) != 2) return wrong("layer norm: ranks");
  size_t rows = dim(x, 0), size = dim(x, 1), count = x.element_count();
  bool added = !absent(y);
  if (scale.element_count() != size || (!absent(bias) && bias.element_count() != size) ||
      out->element_count() != count ||
      (added && (y.element_count() != count || sums->element_count() != count))) {
    return wrong("layer norm: the shapes do not fit");
  }
  over_live(
      live, rows, 2 * size,
      [&](size_t row) {
        size_t at = row * size;
        chosen().layer_norm(x.typed_data() + at, added ? y.typed_data() + at : nullptr, size,
                            scale.typed_data(), absent(bias) ? nullptr : bias.typed_data(), epsilon,
                            added ? sums->typed_data() + at : nullptr, out->typed_data() + at);
      },
      [&](size_t row) {
        if (added) clear(sums->typed_data() + row * size, size);
        clear(out->typed_data() + row * size, size);
      });
  return ffi::Error::Success();
}

// x f32[T, F], bias f32[F] or of no size; live i32[T] or of no size -> f32[T, F]
ffi::Error activated(Numbers x, Numbers bias, ffi::Buffer<ffi::S32> live,
                     ffi::ResultBuffer<ffi::F32> out, int32_t gate) {
  if (rank(x) != 2 || gate < 0 || gate > static_cast<int32_t>(kLastGate)) {
    return wrong("activation: ranks");
  }
  size_t rows = dim(x, 0), size = dim(x, 1);
  if (out->element_count() != x.element_count() || (!absent(bias) && bias.element_count() != size)) {
    return wrong("activation: the shapes do not fit");
  }
  over_live(
      live, rows, 4 * size,
      [&](size_t row) {
        chosen().activated(static_cast<Gate>(gate), x.typed_data() + row * size,
                           absent(bias) ? nullptr : bias.typed_data(), size,
                           out->typed_data() + row * size);
      },
      [&](size_t row) { clear(out->typed_data() + row * size, size); });
  return ffi::Error::Success();
}

// both f32[T, 2 F]: gates, then what they let through; live i32[T] or of no size -> f32[T, F]
ffi::Error gated(Numbers both, ffi::Buffer<ffi::S32> live, ffi::ResultBuffer<ffi::F32> out,
                 int32_t gate) {
  if (rank(both) != 2 || rank(*out) != 2 || gate < 0 || gate > static_cast<int32_t>(kLastGate)) {
    return wrong("gate: ranks");
  }
  size_t rows = dim(both, 0), size = dim(*out, 1);
  if (dim(both, 1) != 2 * size || dim(*out, 0) != rows) return wrong("gate: the shapes do not fit");
  over_live(
      live, rows, 4 * size,
      [&](size_t row) {
        const float* x = both.typed_data() + row * 2 * size;
        chosen().gated(static_cast<Gate>(gate), x, x + size, size, out->typed_data() + row * size);
      },
      [&](size_t row) { clear(out->typed_data() + row * size, size); });
  return ffi::Error::Success();
}

// joined f32[T, (H + 2 K) D]: queries, keys and values; scales f32[D] of the norms of queries and
// of keys, or of no size; cos and sin f32[T, 1, R / 2], or of no size; live i32[T] or of no size
// -> f32[T, H, D], f32[T, K, D], f32[T, K, D]
ffi::Error heads(Numbers joined, Numbers query_scale, Numbers key_scale, Numbers cos, Numbers sin,
                 ffi::Buffer<ffi::S32> live, ffi::ResultBuffer<ffi::F32> queries,
                 ffi::ResultBuffer<ffi::F32> keys, ffi::ResultBuffer<ffi::F32> values,
                 float epsilon, float more, int32_t interleaved) {
  if (rank(joined) != 2 || rank(*queries) != 3 || rank(*keys) != 3) return wrong("heads: ranks");
  size_t rows = dim(joined, 0), size = dim(*queries, 2);
  size_t query_heads = dim(*queries, 1), key_heads = dim(*keys, 1), width = dim(joined, 1);
  size_t half = rows ? cos.element_count() / rows : 0;
  auto scales = [&](const Numbers& each) { return absent(each) || each.element_count() == size; };
  if (width != (query_heads + 2 * key_heads) * size || dim(*queries, 0) != rows ||
      dim(*keys, 0) != rows || dim(*keys, 2) != size ||
      values->element_count() != keys->element_count() || !scales(query_scale) ||
      !scales(key_scale) || cos.element_count() != sin.element_count() ||
      cos.element_count() != half * rows || 2 * half > size) {
    return wrong("heads: the shapes do not fit");
  }
  auto norm_of = [&](const Numbers& scale) {
    return Norm{absent(scale) ? nullptr : scale.typed_data(), epsilon, more};
  };
  Norm of_queries = norm_of(query_scale), of_keys = norm_of(key_scale);
  size_t of_query = query_heads * size, of_key = key_heads * size;
  over_live(
      live, rows, width,
      [&](size_t row) {
        const float* x = joined.typed_data() + row * width;
        Rotation rotation{cos.typed_data() + row * half, sin.typed_data() + row * half, half,
                  interleaved != 0};
        chosen().heads(x, query_heads, size, of_queries, rotation, queries->typed_data() + row * of_query);
        chosen().heads(x + of_query, key_heads, size, of_keys, rotation,
                       keys->typed_data() + row * of_key);
        memcpy(values->typed_data() + row * of_key, x + of_query + of_key, of_key * sizeof(float));
      },
      [&](size_t row) {
        clear(queries->typed_data() + row * of_query, of_query);
        clear(keys->typed_data() + row * of_key, of_key);
        clear(values->typed_data() + row * of_key, of_key);
      });
  return ffi::Error::Success();
}

// x f32[T, N, D]; weights f32[T, N, M], or of no size: M = N, and streams are as they are; adding
// f32[T, M] and made f32[T, D], or of no size -> f32[T, M, D]
ffi::Error mix(Numbers x, Numbers weights, Numbers adding, Numbers made,
               ffi::ResultBuffer<ffi::F32> out) {
  if (rank(x) != 3 || rank(*out) != 3) return wrong("streams: ranks");
  size_t rows = dim(x, 0);
  Streams of{dim(x, 1), dim(*out, 1), dim(x, 2)};
  bool mixed = !absent(weights), added = !absent(made);
  if (dim(*out, 0) != rows || dim(*out, 2) != of.size || (!mixed && of.outs != of.streams) ||
      (mixed && weights.element_count() != rows * of.streams * of.outs) ||
      (added && (made.element_count() != rows * of.size || adding.element_count() != rows * of.outs))) {
    return wrong("streams: the shapes do not fit");
  }
  over_rows(rows, of.outs * of.size * of.streams, [&](size_t first, size_t last) {
    for (size_t row = first; row < last; ++row) {
      chosen().mix(of, x.typed_data() + row * of.streams * of.size,
                   mixed ? weights.typed_data() + row * of.streams * of.outs : nullptr,
                   adding.typed_data() + (added ? row * of.outs : 0),
                   added ? made.typed_data() + row * of.size : nullptr,
                   out->typed_data() + row * of.outs * of.size);
    }
  });
  return ffi::Error::Success();
}

// Divides each column, or each row, of a matrix [n][n] by its sum.
void divide_by_sums(float* matrix, size_t n, size_t step, size_t next, float least) {
  for (size_t line = 0; line < n; ++line, matrix += next) {
    float total = 0.0f;
    for (size_t i = 0; i < n; ++i) total += matrix[i * step];
    for (size_t i = 0; i < n; ++i) matrix[i * step] /= total + least;
  }
}

// x f32[T, N, N] -> the same shape: each matrix divided by the sums of its columns, then rounds - 1
// times by those of its rows and of its columns (Sinkhorn and Knopp); least: added to sums.
ffi::Error balance(Numbers x, ffi::ResultBuffer<ffi::F32> out, float least, int32_t rounds) {
  if (rank(x) != 3 || dim(x, 1) != dim(x, 2) || out->element_count() != x.element_count()) {
    return wrong("balance: the shapes do not fit");
  }
  size_t n = dim(x, 1), each = n * n;
  over_rows(dim(x, 0), each * static_cast<size_t>(std::max(rounds, 1)), [&](size_t first, size_t last) {
    for (size_t row = first; row < last; ++row) {
      float* to = out->typed_data() + row * each;
      memcpy(to, x.typed_data() + row * each, each * sizeof(float));
      divide_by_sums(to, n, n, 1, least);
      for (int32_t round = 1; round < rounds; ++round) {
        divide_by_sums(to, n, 1, n, least);
        divide_by_sums(to, n, n, 1, least);
      }
    }
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace sax

#pragma GCC visibility push(default)  // else hidden, as all that Python does not look for

XLA_FFI_DEFINE_HANDLER_SYMBOL(sax_cpu_rms_norm, sax::rms_norm,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<float>("epsilon")
                                  .Attr<float>("more"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(sax_cpu_layer_norm, sax::layer_norm,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<float>("epsilon"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(sax_cpu_activated, sax::activated,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<int32_t>("gate"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(sax_cpu_gated, sax::gated,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<int32_t>("gate"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(sax_cpu_mix, sax::mix,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(sax_cpu_balance, sax::balance,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<float>("least")
                                  .Attr<int32_t>("rounds"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(sax_cpu_heads, sax::heads,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<float>("epsilon")
                                  .Attr<float>("more")
                                  .Attr<int32_t>("interleaved"));

#pragma GCC visibility pop
