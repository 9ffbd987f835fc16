// Products of rows with weights and with the factors of adapters, as XLA calls them.

#include <string.h>

#include <algorithm>
#include <vector>

#include "handling.h"

namespace sax {
namespace {

// Tiles of one chunk: enough chunks for threads of unequal speed, each worth the handing over.
size_t tiles_per_chunk(size_t tiles) {
  size_t fair = tiles / (static_cast<size_t>(threads()) * 4);
  if (fair >= 24) return 24;
  if (chosen().release) return std::max<size_t>(fair / 2 * 2, 1);  // AMX takes two at once
  return fair >= 6 ? fair / 6 * 6 : fair >= 3 ? 3 : std::max<size_t>(fair, 1);
}

template <class Function>
void over_tiles(size_t tiles, Function&& function) {
  size_t each = tiles_per_chunk(tiles);
  parallel((tiles + each - 1) / each, [&](size_t chunk) {
    function(chunk * each, std::min(tiles, (chunk + 1) * each));
  });
  if (chosen().release) chosen().release();  // the pool's threads do when they sleep
}

// The rows of a batch that are multiplied: padding is not.
struct Rows {
  std::vector<size_t> there;  // their places in the batch
  std::vector<float*> out;    // where the result of each goes

  size_t count() const { return there.size(); }
};

// live i32: the places, ended by -1; of no size: all. Rows that are not live get zeros.
Rows rows_of(const ffi::Buffer<ffi::S32>& live, size_t rows, size_t outputs, float* out) {
  Rows made;
  if (absent(live)) {
    for (size_t row = 0; row < rows; ++row) made.there.push_back(row);
  }
  size_t next = 0;  // the first row whose zeros may be missing
  for (size_t i = 0; i < live.element_count(); ++i) {
    size_t row = static_cast<size_t>(live.typed_data()[i]);
    if (row >= rows || row < next) break;
    std::fill(out + next * outputs, out + row * outputs, 0.0f);
    made.there.push_back(row);
    next = row + 1;
  }
  if (!absent(live)) std::fill(out + next * outputs, out + rows * outputs, 0.0f);
  for (size_t row : made.there) made.out.push_back(out + row * outputs);
  return made;
}

// Memory of this thread that starts at a line of the cache.
template <int Use>
char* held_lines(size_t bytes) {
  constexpr uintptr_t line = 64;
  auto start = reinterpret_cast<uintptr_t>(held<char, Use>(bytes + line));
  return reinterpret_cast<char*>((start + line - 1) / line * line);
}

const void* pairs_of(const float* x, const Rows& rows, size_t inputs) {
  const PlainProduct& product = chosen().plain;
  char* made = held_lines<0>(product.size(rows.count(), inputs));
  over_rows(rows.count(), inputs, [&](size_t first, size_t last) {
    for (size_t i = first; i < last; ++i) {
      product.pairs_of(x + rows.there[i] * inputs, inputs, i, made);
    }
  });
  return made;
}

// x f32[T, K], live i32[T] or of no size, tiles bf16[N / 16, K / 2, 16, 2] -> f32[T, N]
ffi::Error plain_product(ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::S32> live,
                         ffi::Buffer<ffi::BF16> tiles, ffi::ResultBuffer<ffi::F32> out) {
  if (rank(x) != 2 || rank(tiles) != 4 || rank(*out) != 2) return wrong("product: ranks");
  size_t inputs = dim(x, 1), outputs = dim(*out, 1);
  PlainWeight weight{static_cast<const uint32_t*>(tiles.untyped_data()), outputs, dim(tiles, 1)};
  if (dim(tiles, 0) != (outputs + kLanes - 1) / kLanes || weight.pairs != (inputs + 1) / 2 ||
      dim(tiles, 2) != kLanes || dim(tiles, 3) != 2 || dim(*out, 0) != dim(x, 0)) {
    return wrong("product: the tiles do not fit");
  }
  if (!dim(x, 0) || !outputs) return ffi::Error::Success();
  Rows rows = rows_of(live, dim(x, 0), outputs, out->typed_data());
  const void* pairs = pairs_of(x.typed_data(), rows, inputs);
  over_tiles(dim(tiles, 0), [&](size_t first, size_t last) {
    chosen().plain.multiply(weight, pairs, rows.count(), first, last, rows.out.data());
  });
  return ffi::Error::Success();
}

// x f32[T, K], live i32[T] or of no size, tiles f32[N / 16, K, 16, 1] -> f32[T, N]
ffi::Error float_product(ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::S32> live,
                         ffi::Buffer<ffi::F32> tiles, ffi::ResultBuffer<ffi::F32> out) {
  if (rank(x) != 2 || rank(tiles) != 4 || rank(*out) != 2) return wrong("float product: ranks");
  size_t inputs = dim(x, 1), outputs = dim(*out, 1);
  if (dim(tiles, 0) != (outputs + kLanes - 1) / kLanes || dim(tiles, 1) != inputs ||
      dim(tiles, 2) != kLanes || dim(tiles, 3) != 1 || dim(*out, 0) != dim(x, 0)) {
    return wrong("float product: the tiles do not fit");
  }
  if (!dim(x, 0) || !outputs) return ffi::Error::Success();
  FloatWeight weight{tiles.typed_data(), outputs, inputs};
  Rows rows = rows_of(live, dim(x, 0), outputs, out->typed_data());
  std::vector<const float*> from;
  for (size_t row : rows.there) from.push_back(x.typed_data() + row * inputs);
  over_tiles(dim(tiles, 0), [&](size_t first, size_t last) {
    chosen().floats(weight, from.data(), rows.count(), first, last, rows.out.data());
  });
  return ffi::Error::Success();
}

void byte_product(const QuantizedWeight& weight, const float* x, const Rows& rows, bool one_byte) {
  size_t count = rows.count();
  const Kernels& kernels = chosen();
  const ByteProduct& product = count < kernels.many_rows ? kernels.bytes : kernels.bytes_of_many;
  ByteRows bytes{count, weight.inputs, row_block(weight, one_byte), one_byte, weight.zero(),
                 nullptr, nullptr, nullptr};
  bytes.bytes =
      reinterpret_cast<int8_t*>(held_lines<1>(product.size(count, weight.inputs, bytes.block)));
  bytes.steps = held<float, 2>(count);
  bytes.sums = held<BlockSum, 3>(count * bytes.blocks());
  over_rows(count, 4 * weight.inputs, [&](size_t first, size_t last) {
    for (size_t i = first; i < last; ++i) {
      product.bytes_of(x + rows.there[i] * weight.inputs, i, bytes);
    }
  });
  over_tiles((weight.outputs + kLanes - 1) / kLanes, [&](size_t first, size_t last) {
    product.multiply(weight, bytes, first, last, rows.out.data());
  });
}

// x f32[T, K], live i32[T] or of no size, tiles u8[N / 16, K / 4 or 8, 16, 4], scales and offsets
// f16[N / 16, K / block, 16], offsets possibly of no size, units f32[N / 16, 2, 16] -> f32[T, N];
// float4: whether numbers of 4 bits are e2m1; one_byte: whether numbers of x are one byte
ffi::Error quantized_product(ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::S32> live,
                             ffi::Buffer<ffi::U8> tiles, ffi::Buffer<ffi::F16> scales,
                             ffi::Buffer<ffi::F16> offsets, ffi::Buffer<ffi::F32> units,
                             ffi::ResultBuffer<ffi::F32> out, int32_t float4, int32_t one_byte) {
  if (rank(x) != 2 || rank(tiles) != 4 || rank(scales) != 3 || rank(units) != 3 || rank(*out) != 2) {
    return wrong("quantised product: ranks");
  }
  size_t inputs = dim(x, 1), outputs = dim(*out, 1);
  size_t count = (outputs + kLanes - 1) / kLanes, blocks = dim(scales, 1);
  size_t of_bytes = dim(tiles, 1) ? inputs / dim(tiles, 1) : 0;  // numbers of a row in four bytes
  bool fits = dim(tiles, 0) == count && dim(scales, 0) == count && dim(units, 0) == count &&
              dim(tiles, 2) == kLanes && dim(tiles, 3) == 4 && dim(scales, 2) == kLanes &&
              dim(units, 1) == 2 && dim(units, 2) == kLanes && dim(*out, 0) == dim(x, 0) &&
              (of_bytes == 4 || of_bytes == 8) && of_bytes * dim(tiles, 1) == inputs && blocks &&
              inputs % blocks == 0 && inputs / blocks % of_bytes == 0 && (!float4 || of_bytes == 8) &&
              (absent(offsets) || offsets.element_count() == scales.element_count());
  if (!fits) return wrong("quantised product: the tiles do not fit");
  if (!dim(x, 0) || !outputs) return ffi::Error::Success();
  QuantizedWeight weight{
      tiles.typed_data(),
      static_cast<const uint16_t*>(scales.untyped_data()),
      absent(offsets) ? nullptr : static_cast<const uint16_t*>(offsets.untyped_data()),
      units.typed_data(),
      outputs,
      inputs,
      inputs / blocks,
      of_bytes == 8 ? 4 : 8,
      float4 != 0};
  Rows rows = rows_of(live, dim(x, 0), outputs, out->typed_data());
  byte_product(weight, x.typed_data(), rows, one_byte != 0);
  return ffi::Error::Success();
}

// x f32[T, K], chosen i32[T] (from 1 on; 0: none), down bf16[places, C * r, K], then C times
// up bf16[places, r, N] and C times made f32[T, N], or one of all their N side by side -> as many
// f32[T, N], written over what was made.
ffi::Error low_rank(ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::S32> chosen,
                    ffi::Buffer<ffi::BF16> down, ffi::RemainingArgs rest, ffi::RemainingRets out) {
  if (rank(x) != 2 || rank(down) != 3 || !out.size() || rest.size() <= out.size()) {
    return wrong("adapters: ranks");
  }
  size_t rows = dim(x, 0), inputs = dim(x, 1), places = dim(down, 0);
  size_t made_count = out.size(), count = rest.size() - made_count;
  size_t of_each = dim(down, 1) / count;  // r
  if (dim(down, 2) != inputs || dim(down, 1) % count || chosen.element_count() != rows ||
      (made_count != count && made_count != 1)) {
    return wrong("adapters: the factors do not fit");
  }
  struct Branch {
    const uint16_t* up;
    size_t outputs;
    float* out;     // of the first row
    size_t stride;  // to the next
  };
  std::vector<Branch> branches;
  for (size_t i = 0, column = 0; i < count; ++i) {
    size_t place = made_count == count ? i : 0;
    auto up = rest.get<ffi::Buffer<ffi::BF16>>(i);
    auto made = rest.get<ffi::Buffer<ffi::F32>>(count + place);
    auto to = out.get<ffi::Buffer<ffi::F32>>(place);
    if (!up || !made || !to || rank(*up) != 3 || rank(*made) != 2) return wrong("adapters: dtypes");
    size_t outputs = dim(*up, 2), width = dim(*made, 1);
    if (made_count == count) column = 0;
    bool last = made_count == count || i + 1 == count;
    if (dim(*up, 0) != places || dim(*up, 1) != of_each || dim(*made, 0) != rows ||
        (last ? column + outputs != width : column + outputs > width) ||
        (*to)->element_count() != made->element_count()) {
      return wrong("adapters: the factors do not fit");
    }
    float* target = (*to)->typed_data();
    if (target != made->typed_data() && column == 0) {
      memcpy(target, made->typed_data(), made->size_bytes());
    }
    branches.push_back(
        {static_cast<const uint16_t*>(up->untyped_data()), outputs, target + column, width});
    column += outputs;
  }
  const Kernels& chosen_kernels = sax::chosen();
  const auto* factors = static_cast<const uint16_t*>(down.untyped_data());
  parallel(rows, [&](size_t row) {
    int32_t adapter = chosen.typed_data()[row];
    if (adapter < 1 || static_cast<size_t>(adapter) > places) return;
    size_t place = static_cast<size_t>(adapter) - 1;
    float* inner = held<float, 8>(dim(down, 1));
    chosen_kernels.low_rank_down(x.typed_data() + row * inputs, inputs,
                                 factors + place * dim(down, 1) * inputs, dim(down, 1), inner);
    for (size_t i = 0; i < branches.size(); ++i) {
      const Branch& each = branches[i];
      chosen_kernels.low_rank_up(inner + i * of_each, of_each,
                                 each.up + place * of_each * each.outputs, each.outputs,
                                 each.out + row * each.stride);
    }
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace sax

#pragma GCC visibility push(default)  // else hidden, as all that Python does not look for

XLA_FFI_DEFINE_HANDLER_SYMBOL(sax_cpu_low_rank, sax::low_rank,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::BF16>>()
                                  .RemainingArgs()
                                  .RemainingRets());

XLA_FFI_DEFINE_HANDLER_SYMBOL(sax_cpu_plain, sax::plain_product,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::BF16>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(sax_cpu_floats, sax::float_product,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(sax_cpu_in_bytes, sax::quantized_product,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::U8>>()
                                  .Arg<ffi::Buffer<ffi::F16>>()
                                  .Arg<ffi::Buffer<ffi::F16>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<int32_t>("float4")
                                  .Attr<int32_t>("one_byte"));

#pragma GCC visibility pop
