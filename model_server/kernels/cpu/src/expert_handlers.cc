// Products of rows with the weights of the experts they are routed to, as XLA calls them.

#include <algorithm>
#include <vector>

#include "handling.h"

namespace sax {
namespace {

// Rows in the order of their experts: row i of the result is of rows[i] of x, and expert e has those
// from its begin to its end. Rows behind the last end are nobody's, and get zeros.
struct Grouped {
  const float* x;
  const int32_t* rows;
  std::vector<size_t> ends;  // [E]

  size_t begin(size_t expert) const { return expert ? ends[expert - 1] : 0; }
  size_t count(size_t expert) const { return ends[expert] - begin(expert); }
  size_t all() const { return ends.back(); }
};

// Memory of this thread whose parts start at lines of the cache.
constexpr size_t kLine = 64;
size_t in_lines(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

template <int Use>
char* held_lines(size_t bytes) {
  auto start = reinterpret_cast<uintptr_t>(held<char, Use>(bytes + kLine));
  return reinterpret_cast<char*>((start + kLine - 1) / kLine * kLine);
}

// The weights of E experts, each [N, K], with the rows of each in the form that they multiply.
struct PlainExperts {
  const uint32_t* tiles;
  size_t outputs, inputs, pairs;
  std::vector<char*> of_expert;  // [E]
  char* memory = nullptr;

  void hold(const Grouped& rows) {
    of_expert.resize(rows.ends.size());
    size_t bytes = 0;
    auto size = [&](size_t e) { return in_lines(chosen().plain.size(rows.count(e), inputs)); };
    for (size_t e = 0; e < of_expert.size(); ++e) bytes += size(e);
    memory = held_lines<10>(bytes);
    char* at = memory;
    for (size_t e = 0; e < of_expert.size(); at += size(e), ++e) of_expert[e] = at;
  }

  void take(const float* x, size_t expert, size_t row) {
    chosen().plain.pairs_of(x, inputs, row, of_expert[expert]);
  }

  void multiply(size_t expert, size_t count, size_t first, size_t last, float* const* out) const {
    size_t tile = expert * (outputs / kLanes);
    PlainWeight weight{tiles + tile * pairs * kLanes, outputs, pairs};
    chosen().plain.multiply(weight, of_expert[expert], count, first, last, out);
  }
};

struct QuantizedExperts {
  QuantizedWeight whole;  // of all experts, one below the other
  size_t outputs, inputs;
  bool one_byte;
  std::vector<ByteRows> of_expert;  // [E]

  static const ByteProduct& product(size_t rows) {
    return rows < chosen().many_rows ? chosen().bytes : chosen().bytes_of_many;
  }

  void hold(const Grouped& rows) {
    size_t bytes = 0, block = row_block(whole, one_byte), blocks = inputs / block;
    auto size = [&](size_t e) {
      return in_lines(product(rows.count(e)).size(rows.count(e), inputs, block));
    };
    for (size_t e = 0; e < rows.ends.size(); ++e) bytes += size(e);
    auto* at = reinterpret_cast<int8_t*>(held_lines<10>(bytes));
    float* steps = held<float, 11>(rows.all());
    BlockSum* sums = held<BlockSum, 12>(rows.all() * blocks);
    for (size_t e = 0; e < rows.ends.size(); ++e) {
      of_expert.push_back({rows.count(e), inputs, block, one_byte, whole.zero(), at,
                           steps + rows.begin(e), sums + rows.begin(e) * blocks});
      at += size(e);
    }
  }

  void take(const float* x, size_t expert, size_t row) {
    product(of_expert[expert].count).bytes_of(x, row, of_expert[expert]);
  }

  void multiply(size_t expert, size_t count, size_t first, size_t last, float* const* out) const {
    size_t tile = expert * (outputs / kLanes), blocks = inputs / whole.block;
    QuantizedWeight mine = whole;
    mine.outputs = outputs;
    mine.tiles += tile * inputs * kLanes * static_cast<size_t>(whole.bits) / 8;
    mine.scales += tile * blocks * kLanes;
    if (mine.offsets) mine.offsets += tile * blocks * kLanes;
    mine.units += tile * 2 * kLanes;
    product(count).multiply(mine, of_expert[expert], first, last, out);
  }
};

// Some tiles of one expert.
struct Piece {
  size_t expert, first, last;
};

// Pieces of about equal work for each thread, adjacent in memory.
std::vector<Piece> pieces_of(const Grouped& rows, size_t tiles) {
  size_t used = 0;
  for (size_t e = 0; e < rows.ends.size(); ++e) used += rows.count(e) > 0;
  size_t fair = used * tiles / (static_cast<size_t>(threads()) * 4);
  size_t each = std::clamp<size_t>(fair / 6 * 6, std::min<size_t>(6, tiles), 24);
  std::vector<Piece> made;
  for (size_t e = 0; e < rows.ends.size(); ++e) {
    if (!rows.count(e)) continue;
    for (size_t first = 0; first < tiles; first += each) {
      made.push_back({e, first, std::min(tiles, first + each)});
    }
  }
  return made;
}

// Writes the rows of each expert in the form that it multiplies.
template <class Experts>
void take_rows(const Grouped& rows, Experts& experts) {
  experts.hold(rows);
  over_rows(rows.all(), 4 * experts.inputs, [&](size_t first, size_t last) {
    size_t expert = static_cast<size_t>(
        std::upper_bound(rows.ends.begin(), rows.ends.end(), first) - rows.ends.begin());
    for (size_t i = first; i < last; ++i) {
      while (i >= rows.ends[expert]) ++expert;
      experts.take(rows.x + static_cast<size_t>(rows.rows[i]) * experts.inputs, expert,
                   i - rows.begin(expert));
    }
  });
}

// out f32[R, N] = the product of each row with its expert's weight.
template <class Experts>
void multiply(const Grouped& rows, Experts& experts, float* out, size_t size) {
  take_rows(rows, experts);
  std::vector<float*> places(rows.all());
  for (size_t i = 0; i < places.size(); ++i) places[i] = out + i * experts.outputs;
  std::vector<Piece> pieces = pieces_of(rows, experts.outputs / kLanes);
  parallel(pieces.size(), [&](size_t number) {
    const Piece& at = pieces[number];
    experts.multiply(at.expert, rows.count(at.expert), at.first, at.last,
                     places.data() + rows.begin(at.expert));
  });
  if (chosen().release) chosen().release();
  std::fill(out + rows.all() * experts.outputs, out + size, 0.0f);
}

// out f32[R, N] = gate(row times the expert's gate) * (row times its up), in one pass.
template <class Experts>
void multiply_gated(const Grouped& rows, Experts& gates, Experts& ups, Gate gate, float* out,
                    size_t size) {
  take_rows(rows, gates);
  ups.of_expert = gates.of_expert;  // the same rows, in the same form
  size_t outputs = gates.outputs;
  std::vector<Piece> pieces = pieces_of(rows, outputs / kLanes);
  parallel(pieces.size(), [&](size_t number) {
    const Piece& at = pieces[number];
    size_t count = rows.count(at.expert), width = (at.last - at.first) * kLanes;
    float* both = held<float, 13>(2 * count * width);
    float** places = held<float*, 14>(2 * count);
    // As if the tiles were the first.
    for (size_t i = 0; i < 2 * count; ++i) places[i] = both + i * width - at.first * kLanes;
    gates.multiply(at.expert, count, at.first, at.last, places);
    ups.multiply(at.expert, count, at.first, at.last, places + count);
    for (size_t i = 0; i < count; ++i) {
      float* to = out + (rows.begin(at.expert) + i) * outputs + at.first * kLanes;
      chosen().gated(gate, both + i * width, both + (count + i) * width, width, to);
    }
  });
  if (chosen().release) chosen().release();
  std::fill(out + rows.all() * outputs, out + size, 0.0f);
}

using Floats = ffi::Buffer<ffi::F32>;
using Places = ffi::Buffer<ffi::S32>;

// Whether rows and ends can be; ends i32[E], rows i32[R], of x f32[T, K].
bool grouped(const Floats& x, const Places& rows, const Places& ends, const Floats& out,
             Grouped& made) {
  if (rank(x) != 2 || rank(out) != 2 || dim(out, 0) != rows.element_count() || absent(ends)) {
    return false;
  }
  made = {x.typed_data(), rows.typed_data(), {}};
  size_t last = 0;
  for (size_t e = 0; e < ends.element_count(); ++e) {
    int32_t end = ends.typed_data()[e];
    if (end < 0 || static_cast<size_t>(end) < last || static_cast<size_t>(end) > dim(out, 0)) {
      return false;
    }
    made.ends.push_back(last = static_cast<size_t>(end));
  }
  return std::all_of(made.rows, made.rows + last, [&](int32_t row) {
    return row >= 0 && static_cast<size_t>(row) < dim(x, 0);
  });
}

// tiles bf16[E * N / 16, K / 2, 16, 2]
bool plain_experts(const ffi::Buffer<ffi::BF16>& tiles, size_t count, size_t inputs, size_t outputs,
                   PlainExperts& made) {
  if (rank(tiles) != 4 || dim(tiles, 2) != kLanes || dim(tiles, 3) != 2 || outputs % kLanes ||
      dim(tiles, 0) != count * (outputs / kLanes) || dim(tiles, 1) != (inputs + 1) / 2) {
    return false;
  }
  made.tiles = static_cast<const uint32_t*>(tiles.untyped_data());
  made.outputs = outputs, made.inputs = inputs, made.pairs = dim(tiles, 1);
  return true;
}

// tiles u8[E * N / 16, K / 4 or 8, 16, 4], scales and offsets f16[E * N / 16, K / block, 16],
// offsets possibly of no size, units f32[E * N / 16, 2, 16]
bool quantized_experts(const ffi::Buffer<ffi::U8>& tiles, const ffi::Buffer<ffi::F16>& scales,
                       const ffi::Buffer<ffi::F16>& offsets, const Floats& units, size_t count,
                       size_t inputs, size_t outputs, int32_t float4, int32_t one_byte,
                       QuantizedExperts& made) {
  if (rank(tiles) != 4 || rank(scales) != 3 || rank(units) != 3 || outputs % kLanes) return false;
  size_t all = count * (outputs / kLanes), blocks = dim(scales, 1);
  size_t of_bytes = dim(tiles, 1) ? inputs / dim(tiles, 1) : 0;
  bool fits = dim(tiles, 0) == all && dim(scales, 0) == all && dim(units, 0) == all &&
              dim(tiles, 2) == kLanes && dim(tiles, 3) == 4 && dim(scales, 2) == kLanes &&
              dim(units, 1) == 2 && dim(units, 2) == kLanes && (of_bytes == 4 || of_bytes == 8) &&
              of_bytes * dim(tiles, 1) == inputs && blocks && inputs % blocks == 0 &&
              inputs / blocks % of_bytes == 0 && (!float4 || of_bytes == 8) &&
              (absent(offsets) || offsets.element_count() == scales.element_count());
  if (!fits) return false;
  made.whole = {tiles.typed_data(),
                static_cast<const uint16_t*>(scales.untyped_data()),
                absent(offsets) ? nullptr : static_cast<const uint16_t*>(offsets.untyped_data()),
                units.typed_data(),
                outputs,
                inputs,
                inputs / blocks,
                of_bytes == 8 ? 4 : 8,
                float4 != 0};
  made.outputs = outputs, made.inputs = inputs, made.one_byte = one_byte != 0;
  return true;
}

const char* const kDoNotFit = "experts: the shapes do not fit";

ffi::Error plain(Floats x, Places rows, Places ends, ffi::Buffer<ffi::BF16> tiles,
                 ffi::ResultBuffer<ffi::F32> out) {
  Grouped by;
  PlainExperts experts;
  if (!grouped(x, rows, ends, *out, by) ||
      !plain_experts(tiles, by.ends.size(), dim(x, 1), dim(*out, 1), experts)) {
    return wrong(kDoNotFit);
  }
  multiply(by, experts, out->typed_data(), out->element_count());
  return ffi::Error::Success();
}

ffi::Error plain_gated(Floats x, Places rows, Places ends, ffi::Buffer<ffi::BF16> gates,
                       ffi::Buffer<ffi::BF16> ups, ffi::ResultBuffer<ffi::F32> out, int32_t gate) {
  Grouped by;
  PlainExperts opening, going_up;
  if (gate < 0 || gate > static_cast<int32_t>(kLastGate) || !grouped(x, rows, ends, *out, by) ||
      !plain_experts(gates, by.ends.size(), dim(x, 1), dim(*out, 1), opening) ||
      !plain_experts(ups, by.ends.size(), dim(x, 1), dim(*out, 1), going_up)) {
    return wrong(kDoNotFit);
  }
  multiply_gated(by, opening, going_up, static_cast<Gate>(gate), out->typed_data(),
                 out->element_count());
  return ffi::Error::Success();
}

ffi::Error quantized(Floats x, Places rows, Places ends, ffi::Buffer<ffi::U8> tiles,
                     ffi::Buffer<ffi::F16> scales, ffi::Buffer<ffi::F16> offsets, Floats units,
                     ffi::ResultBuffer<ffi::F32> out, int32_t float4, int32_t one_byte) {
  Grouped by;
  QuantizedExperts experts;
  if (!grouped(x, rows, ends, *out, by) ||
      !quantized_experts(tiles, scales, offsets, units, by.ends.size(), dim(x, 1), dim(*out, 1),
                         float4, one_byte, experts)) {
    return wrong(kDoNotFit);
  }
  multiply(by, experts, out->typed_data(), out->element_count());
  return ffi::Error::Success();
}

ffi::Error quantized_gated(Floats x, Places rows, Places ends, ffi::Buffer<ffi::U8> gates,
                           ffi::Buffer<ffi::F16> gate_scales, ffi::Buffer<ffi::F16> gate_offsets,
                           Floats gate_units, ffi::Buffer<ffi::U8> ups,
                           ffi::Buffer<ffi::F16> up_scales, ffi::Buffer<ffi::F16> up_offsets,
                           Floats up_units, ffi::ResultBuffer<ffi::F32> out, int32_t gate,
                           int32_t float4, int32_t one_byte) {
  Grouped by;
  QuantizedExperts opening, going_up;
  if (gate < 0 || gate > static_cast<int32_t>(kLastGate) || !grouped(x, rows, ends, *out, by) ||
      !quantized_experts(gates, gate_scales, gate_offsets, gate_units, by.ends.size(), dim(x, 1),
                         dim(*out, 1), float4, one_byte, opening) ||
      !quantized_experts(ups, up_scales, up_offsets, up_units, by.ends.size(), dim(x, 1),
                         dim(*out, 1), float4, one_byte, going_up) ||
      opening.whole.block != going_up.whole.block || opening.whole.bits != going_up.whole.bits) {
    return wrong(kDoNotFit);
  }
  multiply_gated(by, opening, going_up, static_cast<Gate>(gate), out->typed_data(),
                 out->element_count());
  return ffi::Error::Success();
}

auto rows_by_expert() {
  return ffi::Ffi::Bind()
      .Arg<ffi::Buffer<ffi::F32>>()
      .Arg<ffi::Buffer<ffi::S32>>()
      .Arg<ffi::Buffer<ffi::S32>>();
}

}  // namespace
}  // namespace sax

#pragma GCC visibility push(default)  // else hidden, as all that Python does not look for

XLA_FFI_DEFINE_HANDLER_SYMBOL(sax_cpu_experts, sax::plain,
                              sax::rows_by_expert()
                                  .Arg<ffi::Buffer<ffi::BF16>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(sax_cpu_experts_gated, sax::plain_gated,
                              sax::rows_by_expert()
                                  .Arg<ffi::Buffer<ffi::BF16>>()
                                  .Arg<ffi::Buffer<ffi::BF16>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<int32_t>("gate"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(sax_cpu_experts_in_bytes, sax::quantized,
                              sax::rows_by_expert()
                                  .Arg<ffi::Buffer<ffi::U8>>()
                                  .Arg<ffi::Buffer<ffi::F16>>()
                                  .Arg<ffi::Buffer<ffi::F16>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<int32_t>("float4")
                                  .Attr<int32_t>("one_byte"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(sax_cpu_experts_in_bytes_gated, sax::quantized_gated,
                              sax::rows_by_expert()
                                  .Arg<ffi::Buffer<ffi::U8>>()
                                  .Arg<ffi::Buffer<ffi::F16>>()
                                  .Arg<ffi::Buffer<ffi::F16>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::U8>>()
                                  .Arg<ffi::Buffer<ffi::F16>>()
                                  .Arg<ffi::Buffer<ffi::F16>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<int32_t>("gate")
                                  .Attr<int32_t>("float4")
                                  .Attr<int32_t>("one_byte"));

#pragma GCC visibility pop
