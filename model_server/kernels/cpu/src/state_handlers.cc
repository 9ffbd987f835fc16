// States of recurrent layers in pages, sums of rows, and products with weights as they lie, as XLA
// calls them.

#include <string.h>

#include <algorithm>
#include <vector>

#include "handling.h"

namespace sax {
namespace {

using Numbers = ffi::Buffer<ffi::F32>;
using Whole = ffi::Buffer<ffi::S32>;

// Consecutive tokens of one sequence, the page of the state before them, and that of the state
// behind them; 0: it is not kept.
struct Piece {
  size_t token, count;
  int32_t read, write;
  bool fresh;  // begins with zeros
};

// Pieces that follow each other: each goes on where the one before it ended.
struct Sequences {
  std::vector<Piece> pieces;
  std::vector<size_t> firsts;  // piece with which each begins
};

// reads, writes and fresh i32[D + N]; goes_on i32[D + N]; counts i32[N]: D rows of one token, then N
// blocks of as many tokens each. A row that keeps no state is padding.
bool sequences_of(const Whole& reads, const Whole& writes, const Whole& fresh, const Whole& goes_on,
                  const Whole& counts, size_t tokens, size_t pages, Sequences& made) {
  size_t rows = reads.element_count(), blocks = counts.element_count();
  if (rows < blocks || writes.element_count() != rows || fresh.element_count() != rows ||
      goes_on.element_count() != rows) {
    return false;
  }
  size_t decodes = rows - blocks, each = blocks ? (tokens - std::min(tokens, decodes)) / blocks : 0;
  if (tokens != decodes + each * blocks) return false;
  bool last_there = false;
  for (size_t row = 0; row < rows; ++row) {
    int32_t read = reads.typed_data()[row], write = writes.typed_data()[row];
    if (read < 0 || write < 0 || static_cast<size_t>(std::max(read, write)) >= pages) return false;
    bool is_block = row >= decodes;
    size_t count = is_block ? static_cast<size_t>(std::max(0, counts.typed_data()[row - decodes])) : write > 0;
    if (count > (is_block ? each : 1)) return false;
    if (count) {
      size_t token = is_block ? decodes + (row - decodes) * each : row;
      if (!goes_on.typed_data()[row] || !last_there) made.firsts.push_back(made.pieces.size());
      made.pieces.push_back({token, count, read, write, fresh.typed_data()[row] != 0});
    }
    last_there = count > 0;
  }
  return true;
}

// Calls take(part, state, piece) for the pieces of each sequence in their order, on the state that it
// is to go on from. A page's state has parts: `starts` of them, and the end of the last.
template <class Take>
void over_states(const Sequences& all, float* held, const std::vector<size_t>& starts, Take&& take) {
  size_t parts = starts.size() - 1, of_page = starts.back();
  parallel(all.firsts.size() * parts, [&](size_t job) {
    size_t sequence = job / parts, part = job % parts;
    size_t size = starts[part + 1] - starts[part];
    size_t end = sequence + 1 < all.firsts.size() ? all.firsts[sequence + 1] : all.pieces.size();
    float* apart = ::sax::held<float, 8>(size);
    const float* before = nullptr;
    for (size_t i = all.firsts[sequence]; i < end; ++i) {
      const Piece& piece = all.pieces[i];
      auto page = [&](int32_t number) { return held + static_cast<size_t>(number) * of_page + starts[part]; };
      float* state = piece.write ? page(piece.write) : apart;
      if (!before && piece.fresh) {
        memset(state, 0, size * sizeof(float));
      } else {
        const float* from = before ? before : page(piece.read);
        if (from != state) memcpy(state, from, size * sizeof(float));
      }
      take(part, state, piece);
      before = state;
    }
  });
}

void keep(const Numbers& held, float* out) {
  if (out != held.typed_data()) memcpy(out, held.typed_data(), held.size_bytes());
}

// Places as of `sequences_of`; column f32[T, H, A], row f32[T, H, B], read f32[T, H, B], decay
// f32[T, H], rate of no size; memory f32[P, H, A, B], written in place -> f32[T, H, A]. With a rate
// f32[T, H] read is f32[T, H, A], the result f32[T, H, B], and decay may be f32[T, H, A]. Padding gets
// zeros.
ffi::Error remember(Whole reads, Whole writes, Whole fresh, Whole goes_on, Whole counts, Numbers column,
                    Numbers row, Numbers read, Numbers decay, Numbers rate, Numbers memory,
                    ffi::ResultBuffer<ffi::F32> out, ffi::ResultBuffer<ffi::F32> left) {
  if (rank(column) != 3 || rank(row) != 3 || rank(read) != 3 || rank(memory) != 4) {
    return wrong("memories: ranks");
  }
  size_t tokens = dim(column, 0), heads = dim(column, 1), high = dim(column, 2), wide = dim(row, 2);
  bool rated = !absent(rate);
  size_t reads_of = rated ? high : wide, made_of = rated ? wide : high, count = tokens * heads;
  bool each = rated && rank(decay) == 3;
  size_t fades_of = each ? high : 1;
  if (dim(row, 0) * dim(row, 1) != count || read.element_count() != count * reads_of ||
      decay.element_count() != count * fades_of || (rated && rate.element_count() != count) ||
      out->element_count() != count * made_of || dim(memory, 1) != heads || dim(memory, 2) != high ||
      dim(memory, 3) != wide || left->element_count() != memory.element_count()) {
    return wrong("memories: the shapes do not fit");
  }
  Sequences all;
  if (!sequences_of(reads, writes, fresh, goes_on, counts, tokens, dim(memory, 0), all)) {
    return wrong("memories: the places do not fit");
  }
  keep(memory, left->typed_data());
  std::fill_n(out->typed_data(), out->element_count(), 0.0f);
  std::vector<size_t> starts;
  for (size_t head = 0; head <= heads; ++head) starts.push_back(head * high * wide);
  over_states(all, left->typed_data(), starts, [&](size_t head, float* state, const Piece& piece) {
    float* fades = ::sax::held<float, 9>(fades_of);
    for (size_t token = piece.token; token < piece.token + piece.count; ++token) {
      size_t at = token * heads + head;
      MemoryToken its{column.typed_data() + at * high, row.typed_data() + at * wide,
                      read.typed_data() + at * reads_of, decay.typed_data() + at * fades_of, each,
                      rated ? rate.typed_data() + at : nullptr};
      chosen().remember(state, high, wide, its, fades, out->typed_data() + at * made_of);
    }
  });
  return ffi::Error::Success();
}

// Places as of `sequences_of`; x f32[T, D], taps f32[D, K], bias f32[D] or of no size; held
// f32[P, D, K - 1], written in place -> f32[T, D]. Padding gets zeros.
ffi::Error convolve(Whole reads, Whole writes, Whole fresh, Whole goes_on, Whole counts, Numbers x,
                    Numbers taps, Numbers bias, Numbers held, ffi::ResultBuffer<ffi::F32> out,
                    ffi::ResultBuffer<ffi::F32> left) {
  if (rank(x) != 2 || rank(taps) != 2 || rank(held) != 3) return wrong("convolution: ranks");
  size_t tokens = dim(x, 0), channels = dim(x, 1), width = dim(taps, 1);
  if (width < 1 || width > kMostTaps || dim(taps, 0) != channels || dim(held, 1) != channels ||
      dim(held, 2) + 1 != width || (!absent(bias) && bias.element_count() != channels) ||
      out->element_count() != x.element_count() || left->element_count() != held.element_count()) {
    return wrong("convolution: the shapes do not fit");
  }
  Sequences all;
  if (!sequences_of(reads, writes, fresh, goes_on, counts, tokens, dim(held, 0), all)) {
    return wrong("convolution: the places do not fit");
  }
  keep(held, left->typed_data());
  std::fill_n(out->typed_data(), out->element_count(), 0.0f);
  Filter filter{taps.typed_data(), absent(bias) ? nullptr : bias.typed_data(), width};
  constexpr size_t groups = 16;  // of sixteen channels, worth the handing over
  std::vector<size_t> firsts, starts;
  for (size_t first = 0; first < channels; first += groups * kLanes) firsts.push_back(first);
  firsts.push_back(channels);
  for (size_t first : firsts) starts.push_back(first * (width - 1));
  over_states(all, left->typed_data(), starts, [&](size_t part, float* state, const Piece& piece) {
    for (size_t first = firsts[part]; first < firsts[part + 1]; first += kLanes) {
      int lanes = static_cast<int>(std::min(kLanes, firsts[part + 1] - first));
      size_t at = piece.token * channels;
      chosen().convolve(filter, first, lanes, state + (first - firsts[part]) * (width - 1),
                        x.typed_data() + at, piece.count, channels, out->typed_data() + at);
    }
  });
  return ffi::Error::Success();
}

// x f32[T, H, K], live i32[T] or of no size, weight f32 or bf16[H, N, K] -> f32[T, H, N]: each row
// times its head's transposed weight. Rows that are not live get zeros.
ffi::Error dense(Numbers x, Whole live, ffi::AnyBuffer weight, ffi::ResultBuffer<ffi::F32> out) {
  if (rank(x) != 3 || rank(weight) != 3 || rank(*out) != 3) return wrong("dense product: ranks");
  size_t tokens = dim(x, 0), heads = dim(x, 1), inputs = dim(x, 2), outputs = dim(weight, 1);
  bool halves = weight.element_type() == ffi::BF16;
  if ((!halves && weight.element_type() != ffi::F32) || dim(weight, 0) != heads ||
      dim(weight, 2) != inputs || dim(*out, 0) != tokens || dim(*out, 1) != heads ||
      dim(*out, 2) != outputs) {
    return wrong("dense product: the shapes do not fit");
  }
  std::fill_n(out->typed_data(), out->element_count(), 0.0f);
  std::vector<size_t> rows;
  for (size_t i = 0; i < (absent(live) ? tokens : live.element_count()); ++i) {
    size_t row = absent(live) ? i : static_cast<size_t>(live.typed_data()[i]);
    if (row >= tokens) break;
    rows.push_back(row);
  }
  constexpr size_t each = 32;  // outputs of a job
  size_t jobs = (outputs + each - 1) / each, bytes = halves ? 2 : 4;
  parallel(heads * jobs, [&](size_t job) {
    size_t head = job / jobs, first = job % jobs * each;
    std::vector<const float*> from;
    std::vector<float*> to;
    for (size_t row : rows) {
      from.push_back(x.typed_data() + (row * heads + head) * inputs);
      to.push_back(out->typed_data() + (row * heads + head) * outputs);
    }
    const char* its = static_cast<const char*>(weight.untyped_data()) + head * outputs * inputs * bytes;
    chosen().dense(halves, its, from.data(), from.size(), inputs, first, std::min(outputs, first + each),
                   to.data());
  });
  return ffi::Error::Success();
}

// x f32[..., D] -> the sums f32[..., 1], or the softmax or a function of each number f32[..., D].
ffi::Error curve(Numbers x, ffi::ResultBuffer<ffi::F32> out, int32_t kind, float epsilon) {
  if (!rank(x) || kind < 0 || kind > static_cast<int32_t>(Curve::unit)) return wrong("rows: ranks");
  size_t size = dim(x, rank(x) - 1), rows = size ? x.element_count() / size : 0;
  size_t made = static_cast<Curve>(kind) == Curve::sum ? 1 : size;
  if (out->element_count() != rows * made) return wrong("rows: the shapes do not fit");
  over_rows(rows, size, [&](size_t first, size_t last) {
    for (size_t row = first; row < last; ++row) {
      chosen().curve(static_cast<Curve>(kind), x.typed_data() + row * size, size, epsilon,
                     out->typed_data() + row * made);
    }
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace sax

#pragma GCC visibility push(default)  // else hidden, as all that Python does not look for

XLA_FFI_DEFINE_HANDLER_SYMBOL(sax_cpu_remember, sax::remember,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(sax_cpu_convolve, sax::convolve,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(sax_cpu_dense, sax::dense,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(sax_cpu_curve, sax::curve,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<int32_t>("kind")
                                  .Attr<float>("epsilon"));

#pragma GCC visibility pop
