// The kernels as XLA calls them, and what Python asks the library directly.

#include <string.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels.h"
#include "threads.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace sax {
namespace {

constexpr size_t kLanes = 16;
constexpr size_t kManyRows = 32;  // from here on a quantised tile is widened once for all rows

ffi::Error wrong(const char* text) { return ffi::Error::InvalidArgument(text); }

size_t dim(const auto& buffer, size_t index) {
  return static_cast<size_t>(buffer.dimensions()[index]);
}

size_t rank(const auto& buffer) { return buffer.dimensions().size(); }

bool absent(const auto& buffer) { return buffer.element_count() == 0; }

// Memory of this thread for `count` numbers, kept between calls.
template <class T, int Use>
T* held(size_t count) {
  thread_local std::vector<T> memory;
  if (memory.size() < count) memory.resize(count);
  return memory.data();
}

// Tiles of one chunk: enough chunks for threads of unequal speed, each worth the handing over.
size_t tiles_per_chunk(size_t tiles) {
  size_t fair = tiles / (static_cast<size_t>(threads()) * 4);
  if (fair >= 24) return 24;
  return fair >= 6 ? fair / 6 * 6 : fair >= 3 ? 3 : std::max<size_t>(fair, 1);
}

template <class Function>
void over_tiles(size_t tiles, Function&& function) {
  size_t each = tiles_per_chunk(tiles);
  parallel((tiles + each - 1) / each, [&](size_t chunk) {
    function(chunk * each, std::min(tiles, (chunk + 1) * each));
  });
}

template <class Function>
void over_rows(size_t rows, Function&& function) {
  size_t each = 8;
  parallel((rows + each - 1) / each, [&](size_t chunk) {
    function(chunk * each, std::min(rows, (chunk + 1) * each));
  });
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

const uint32_t* pairs_of(const float* x, const Rows& rows, size_t inputs) {
  size_t pairs = (inputs + 1) / 2;
  uint32_t* made = held<uint32_t, 0>(rows.count() * pairs);
  over_rows(rows.count(), [&](size_t first, size_t last) {
    for (size_t i = first; i < last; ++i) {
      chosen().pairs_of(x + rows.there[i] * inputs, 1, inputs, made + i * pairs);
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
  const uint32_t* pairs = pairs_of(x.typed_data(), rows, inputs);
  over_tiles(dim(tiles, 0), [&](size_t first, size_t last) {
    chosen().plain(weight, pairs, rows.count(), first, last, rows.out.data());
  });
  return ffi::Error::Success();
}

void widened_product(const QuantizedWeight& weight, const float* x, const Rows& rows) {
  const uint32_t* pairs = pairs_of(x, rows, weight.inputs);
  size_t of_tile = weight.inputs / 2 * kLanes;
  over_tiles((weight.outputs + kLanes - 1) / kLanes, [&](size_t first, size_t last) {
    constexpr size_t at_once = 3;
    uint32_t* wide = held<uint32_t, 1>(at_once * of_tile);
    for (size_t tile = first; tile < last; tile += at_once) {
      size_t count = std::min(at_once, last - tile);
      for (size_t i = 0; i < count; ++i) chosen().widen(weight, tile + i, wide + i * of_tile);
      // As if these tiles were the first: their outputs lie `tile` further on.
      PlainWeight plain{wide - tile * of_tile, weight.outputs, weight.inputs / 2};
      chosen().plain(plain, pairs, rows.count(), tile, tile + count, rows.out.data());
    }
  });
}

void byte_product(const QuantizedWeight& weight, const float* x, const Rows& rows) {
  size_t blocks = weight.inputs / weight.block, count = rows.count();
  int8_t* high = held<int8_t, 2>(count * weight.inputs);
  int8_t* low = held<int8_t, 3>(count * weight.inputs);
  float* steps = held<float, 4>(count);
  float* sums = held<float, 5>(count * blocks);
  over_rows(count, [&](size_t first, size_t last) {
    for (size_t i = first; i < last; ++i) {
      size_t at = i * weight.inputs;
      chosen().bytes_of(x + rows.there[i] * weight.inputs, 1, weight.inputs, weight.block, high + at,
                        low + at, steps + i, sums + i * blocks);
    }
  });
  over_tiles((weight.outputs + kLanes - 1) / kLanes, [&](size_t first, size_t last) {
    chosen().quantized(weight, high, low, steps, sums, count, first, last, rows.out.data());
  });
}

// x f32[T, K], live i32[T] or of no size, tiles u8[N / 16, K / 4 or 8, 16, 4], scales and offsets
// f16[N / 16, K / block, 16], offsets possibly of no size, units f32[N / 16, 2, 16] -> f32[T, N]
ffi::Error quantized_product(ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::S32> live,
                             ffi::Buffer<ffi::U8> tiles, ffi::Buffer<ffi::F16> scales,
                             ffi::Buffer<ffi::F16> offsets, ffi::Buffer<ffi::F32> units,
                             ffi::ResultBuffer<ffi::F32> out) {
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
              inputs % blocks == 0 && inputs / blocks % of_bytes == 0 &&
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
      of_bytes == 8 ? 4 : 8};
  Rows rows = rows_of(live, dim(x, 0), outputs, out->typed_data());
  auto product = rows.count() < kManyRows ? byte_product : widened_product;
  product(weight, x.typed_data(), rows);
  return ffi::Error::Success();
}

// Stores f32 numbers at a distance from each other, as the pages' dtype.
void put(const float* from, size_t count, void* base, size_t at, size_t stride, ffi::DataType type) {
  if (type == ffi::F32) {
    float* to = static_cast<float*>(base) + at;
    for (size_t i = 0; i < count; ++i) to[i * stride] = from[i];
    return;
  }
  uint16_t* to = static_cast<uint16_t*>(base) + at;
  for (size_t i = 0; i < count; ++i) {
    uint32_t pair;
    chosen().pairs_of(from + i, 1, 1, &pair);
    to[i * stride] = static_cast<uint16_t>(pair);
  }
}

// k f32[T, K, D], v f32[T, K, W], pages and offsets i32[T], keys [P, K, D, G], values [P, K, G, W]:
// the last two are written in place. v and values may be of no size.
ffi::Error write_pages(ffi::Buffer<ffi::F32> k, ffi::Buffer<ffi::F32> v, ffi::Buffer<ffi::S32> pages,
                       ffi::Buffer<ffi::S32> offsets, ffi::AnyBuffer keys, ffi::AnyBuffer values,
                       ffi::Result<ffi::AnyBuffer> new_keys, ffi::Result<ffi::AnyBuffer> new_values) {
  if (rank(k) != 3 || rank(keys) != 4 || rank(v) != 3 || rank(values) != 4) return wrong("write: ranks");
  auto type = keys.element_type();
  if (type != ffi::F32 && type != ffi::BF16) return wrong("write: f32 or bf16 pages");
  size_t tokens = dim(k, 0), heads = dim(k, 1), key_dim = dim(k, 2), value_dim = dim(v, 2);
  size_t count = dim(keys, 0), size = dim(keys, 3);
  if (dim(keys, 1) != heads || dim(keys, 2) != key_dim || pages.element_count() != tokens ||
      offsets.element_count() != tokens) {
    return wrong("write: the pages do not fit");
  }
  bool valued = !absent(values) && !absent(v);
  if (valued && (dim(values, 0) != count || dim(values, 1) != heads || dim(values, 2) != size ||
                 dim(values, 3) != value_dim || dim(v, 0) != tokens || dim(v, 1) != heads ||
                 values.element_type() != type)) {
    return wrong("write: the values do not fit");
  }
  if (new_keys->untyped_data() != keys.untyped_data()) {
    memcpy(new_keys->untyped_data(), keys.untyped_data(), keys.size_bytes());
  }
  if (valued && new_values->untyped_data() != values.untyped_data()) {
    memcpy(new_values->untyped_data(), values.untyped_data(), values.size_bytes());
  }
  over_rows(tokens, [&](size_t first, size_t last) {
    for (size_t t = first; t < last; ++t) {
      size_t page = static_cast<size_t>(pages.typed_data()[t]);
      size_t offset = static_cast<size_t>(offsets.typed_data()[t]);
      if (page >= count || offset >= size) continue;  // nothing is written outside the pool
      for (size_t head = 0; head < heads; ++head) {
        size_t vector = t * heads + head, of_head = page * heads + head;
        put(k.typed_data() + vector * key_dim, key_dim, new_keys->untyped_data(),
            of_head * key_dim * size + offset, size, type);
        if (!valued) continue;
        put(v.typed_data() + vector * value_dim, value_dim, new_values->untyped_data(),
            (of_head * size + offset) * value_dim, 1, type);
      }
    }
  });
  return ffi::Error::Success();
}

// One piece of attention: queries of one sequence, one KV head, some of the keys.
struct Piece {
  Queries queries;
  size_t head;
  int32_t begin, end;
  size_t part, parts;  // of the keys
};

// A sequence's keys are divided by their number alone: a row's result does not depend on the rows
// beside it, nor on the threads.
constexpr int32_t kKeysOfPart = 512;

int32_t most_seen(const Queries& queries, const Attention& step) {
  int32_t most = *std::max_element(queries.limits, queries.limits + queries.count);
  int32_t cached = static_cast<int32_t>(queries.columns * step.page_size);
  return std::clamp(most, 0, cached);
}

void add_pieces(const Attention& step, const Queries& queries, bool divided,
                std::vector<Piece>& pieces) {
  int32_t seen = most_seen(queries, step);
  int32_t each = divided ? kKeysOfPart : std::max(seen, 1);
  int32_t unseen = divided && step.window ? std::max(seen - step.window, 0) / each : 0;  // parts
  size_t parts = static_cast<size_t>(std::max(1, (seen + each - 1) / each - unseen));
  for (size_t head = 0; head < step.kv_heads; ++head) {
    for (size_t part = 0; part < parts; ++part) {
      int32_t begin = (unseen + static_cast<int32_t>(part)) * each;
      pieces.push_back({queries, head, begin, std::min(seen, begin + each), part, parts});
    }
  }
}

// Sums of the parts of one decode row's keys, each relative to its own highest score.
void join(const Attention& step, const Queries& queries, size_t parts, const float* sums,
          const Partial* partials, float* out) {
  size_t vectors = step.heads, width = step.value_dim;
  for (size_t vector = 0; vector < vectors; ++vector) {
    float highest = -1e30f, total = 0.0f;
    for (size_t part = 0; part < parts; ++part) {
      highest = std::max(highest, partials[part * vectors + vector].highest);
    }
    float* to = out + (queries.first * vectors + vector) * width;
    std::fill(to, to + width, 0.0f);
    for (size_t part = 0; part < parts; ++part) {
      const Partial& each = partials[part * vectors + vector];
      if (each.total <= 0.0f) continue;
      float by = __builtin_expf(each.highest - highest);
      total += each.total * by;
      const float* from = sums + (part * vectors + vector) * width;
      for (size_t w = 0; w < width; ++w) to[w] += from[w] * by;
    }
    for (size_t w = 0; w < width && total > 0.0f; ++w) to[w] /= total;
  }
}

void attend_all(const Attention& step, const std::vector<Piece>& pieces) {
  // Where each piece with parts keeps its sums: pieces of one row follow each other.
  std::vector<size_t> rows;  // first piece of each row that is divided
  size_t room = 0;
  std::vector<size_t> places(pieces.size());
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].parts == 1) continue;
    if (pieces[i].head == 0 && pieces[i].part == 0) {
      rows.push_back(i);
      for (size_t j = i; j < i + pieces[i].parts * step.kv_heads; ++j) places[j] = room;
      room += pieces[i].parts * step.heads;
    }
  }
  float* sums = held<float, 6>(room * step.value_dim);
  Partial* partials = held<Partial, 7>(room);
  parallel(pieces.size(), [&](size_t i) {
    const Piece& piece = pieces[i];
    if (piece.parts == 1) {
      float* out = step.out + piece.queries.first * step.heads * step.value_dim;
      return chosen().attend(step, piece.queries, piece.head, piece.begin, piece.end, out, nullptr);
    }
    size_t at = places[i] + piece.part * step.heads;
    chosen().attend(step, piece.queries, piece.head, piece.begin, piece.end,
                    sums + at * step.value_dim, partials + at);
  });
  for (size_t i : rows) {
    join(step, pieces[i].queries, pieces[i].parts, sums + places[i] * step.value_dim,
         partials + places[i], step.out);
  }
}

bool tables_fit(const ffi::Buffer<ffi::S32>& tables, size_t pages) {
  const int32_t* at = tables.typed_data();
  return std::all_of(at, at + tables.element_count(), [pages](int32_t page) {
    return page >= 0 && static_cast<size_t>(page) < pages;
  });
}

// q f32[T, H, D]; keys, values as above; scales f32[P, K, G] or of no size; tables i32[D, S / G] of
// decode rows and i32[N, S / G] of prompt blocks, limits i32[D, 1] and i32[N, C] -> f32[T, H, W]
ffi::Error attend(ffi::Buffer<ffi::F32> q, ffi::AnyBuffer keys, ffi::AnyBuffer values,
                  ffi::Buffer<ffi::F32> key_scales, ffi::Buffer<ffi::F32> value_scales,
                  ffi::Buffer<ffi::S32> decode_tables, ffi::Buffer<ffi::S32> decode_limits,
                  ffi::Buffer<ffi::S32> block_tables, ffi::Buffer<ffi::S32> block_limits,
                  ffi::ResultBuffer<ffi::F32> out, float scale, float softcap, int32_t window) {
  if (rank(q) != 3 || rank(keys) != 4 || rank(values) != 4 || rank(*out) != 3 ||
      rank(decode_tables) != 2 || rank(block_tables) != 2 || rank(block_limits) != 2) {
    return wrong("attention: ranks");
  }
  Attention step{};
  step.queries = q.typed_data();
  step.keys = keys.untyped_data();
  step.values = absent(values) ? nullptr : values.untyped_data();
  step.key_scales = absent(key_scales) ? nullptr : key_scales.typed_data();
  step.value_scales = absent(value_scales) ? nullptr : value_scales.typed_data();
  step.out = out->typed_data();
  switch (keys.element_type()) {
    case ffi::F32: step.number = Number::f32; break;
    case ffi::BF16: step.number = Number::bf16; break;
    case ffi::S8: step.number = Number::i8; break;
    case ffi::F8E4M3FN: step.number = Number::f8; break;
    default: return wrong("attention: dtype of the pages");
  }
  step.pages = dim(keys, 0), step.page_size = dim(keys, 3);
  step.heads = dim(q, 1), step.kv_heads = dim(keys, 1);
  step.key_dim = dim(q, 2), step.value_dim = dim(*out, 2);
  step.scale = scale, step.softcap = softcap, step.window = window;
  size_t decodes = dim(decode_tables, 0), blocks = dim(block_tables, 0), chunk = dim(block_limits, 1);
  bool fits = dim(keys, 2) == step.key_dim && step.page_size && step.page_size % kLanes == 0 &&
              step.kv_heads && step.heads % step.kv_heads == 0 && step.key_dim <= 640 &&
              step.value_dim <= 640 && decode_limits.element_count() == decodes &&
              dim(block_limits, 0) == blocks && dim(q, 0) == decodes + blocks * chunk &&
              dim(*out, 0) == dim(q, 0) && dim(*out, 1) == step.heads;
  bool valued = step.values ? values.element_type() == keys.element_type() &&
                                  dim(values, 0) == step.pages && dim(values, 1) == step.kv_heads &&
                                  dim(values, 2) == step.page_size &&
                                  dim(values, 3) == step.value_dim && step.value_dim % kLanes == 0
                            : step.value_dim == step.key_dim;
  size_t scales = step.pages * step.kv_heads * step.page_size;
  bool scaled = (!step.key_scales || key_scales.element_count() == scales) &&
                (!step.value_scales || value_scales.element_count() == scales);
  if (!fits || !valued || !scaled) return wrong("attention: the shapes do not fit");
  if (!tables_fit(decode_tables, step.pages) || !tables_fit(block_tables, step.pages)) {
    return wrong("attention: a table names a page outside the pool");
  }
  std::vector<Piece> pieces;
  size_t columns = dim(decode_tables, 1);
  for (size_t row = 0; row < decodes; ++row) {
    Queries one{decode_tables.typed_data() + row * columns, decode_limits.typed_data() + row, row, 1,
                columns};
    add_pieces(step, one, true, pieces);
  }
  columns = dim(block_tables, 1);
  for (size_t block = 0; block < blocks; ++block) {
    Queries some{block_tables.typed_data() + block * columns,
                 block_limits.typed_data() + block * chunk, decodes + block * chunk, chunk, columns};
    if (chunk) add_pieces(step, some, false, pieces);
  }
  attend_all(step, pieces);
  return ffi::Error::Success();
}

// x f32[T, K], chosen i32[T] (from 1 on; 0: none), down bf16[places, C * r, K], then C times
// up bf16[places, r, N] and C times made f32[T, N] -> C times f32[T, N], written over what was made.
ffi::Error low_rank(ffi::Buffer<ffi::F32> x, ffi::Buffer<ffi::S32> chosen,
                    ffi::Buffer<ffi::BF16> down, ffi::RemainingArgs rest, ffi::RemainingRets out) {
  if (rank(x) != 2 || rank(down) != 3 || rest.size() != 2 * out.size() || !out.size()) {
    return wrong("adapters: ranks");
  }
  size_t rows = dim(x, 0), inputs = dim(x, 1), places = dim(down, 0), count = out.size();
  size_t of_each = dim(down, 1) / count;  // r
  if (dim(down, 2) != inputs || dim(down, 1) % count || chosen.element_count() != rows) {
    return wrong("adapters: the factors do not fit");
  }
  struct Branch {
    const uint16_t* up;
    size_t outputs;
    float* out;
  };
  std::vector<Branch> branches;
  for (size_t i = 0; i < count; ++i) {
    auto up = rest.get<ffi::Buffer<ffi::BF16>>(i);
    auto made = rest.get<ffi::Buffer<ffi::F32>>(count + i);
    auto to = out.get<ffi::Buffer<ffi::F32>>(i);
    if (!up || !made || !to || rank(*up) != 3 || rank(*made) != 2) return wrong("adapters: dtypes");
    size_t outputs = dim(*up, 2);
    if (dim(*up, 0) != places || dim(*up, 1) != of_each || dim(*made, 0) != rows ||
        dim(*made, 1) != outputs || (*to)->element_count() != made->element_count()) {
      return wrong("adapters: the factors do not fit");
    }
    float* target = (*to)->typed_data();
    if (target != made->typed_data()) memcpy(target, made->typed_data(), made->size_bytes());
    branches.push_back({static_cast<const uint16_t*>(up->untyped_data()), outputs, target});
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
                                 each.out + row * each.outputs);
    }
  });
  return ffi::Error::Success();
}

// logits and edited f32[R, V], settings of each row (target -2: padding), keys u32[R, 2] -> tokens i32[R], logprobs
// f32[R], top tokens i32[R, N], their logprobs f32[R, N], ranks i32[R]
ffi::Error choose(ffi::Buffer<ffi::F32> logits, ffi::Buffer<ffi::F32> edited,
                  ffi::Buffer<ffi::F32> temperature, ffi::Buffer<ffi::S32> top_k,
                  ffi::Buffer<ffi::F32> top_p, ffi::Buffer<ffi::F32> min_p,
                  ffi::Buffer<ffi::F32> typical_p, ffi::Buffer<ffi::U32> keys,
                  ffi::Buffer<ffi::S32> target, ffi::Buffer<ffi::S32> tops,
                  ffi::ResultBuffer<ffi::S32> tokens, ffi::ResultBuffer<ffi::F32> logprobs,
                  ffi::ResultBuffer<ffi::S32> top_tokens, ffi::ResultBuffer<ffi::F32> top_logprobs,
                  ffi::ResultBuffer<ffi::S32> ranks) {
  if (rank(logits) != 2 || rank(*top_tokens) != 2 || logits.element_count() != edited.element_count()) {
    return wrong("choice: ranks");
  }
  size_t rows = dim(logits, 0), vocab = dim(logits, 1), count = dim(*top_tokens, 1);
  bool fits = vocab && keys.element_count() == 2 * rows && top_tokens->element_count() == count * rows &&
              top_logprobs->element_count() == count * rows;
  auto by_row = [&](const auto&... each) { return ((each.element_count() == rows) && ...); };
  if (!fits || !by_row(temperature, top_k, top_p, min_p, typical_p, target, tops, *tokens, *logprobs, *ranks)) {
    return wrong("choice: the settings do not fit");
  }
  const Kernels& kernels = chosen();
  parallel(rows, [&](size_t row) {
    if (target.typed_data()[row] < -1) {  // padding
      tokens->typed_data()[row] = ranks->typed_data()[row] = 0;
      logprobs->typed_data()[row] = 0.0f;
      std::fill_n(top_tokens->typed_data() + row * count, count, 0);
      std::fill_n(top_logprobs->typed_data() + row * count, count, 0.0f);
      return;
    }
    Choice choice{temperature.typed_data()[row],
                  top_k.typed_data()[row],
                  top_p.typed_data()[row],
                  min_p.typed_data()[row],
                  typical_p.typed_data()[row],
                  {keys.typed_data()[2 * row], keys.typed_data()[2 * row + 1]},
                  target.typed_data()[row],
                  tops.typed_data()[row]};
    Chosen to{tokens->typed_data() + row, logprobs->typed_data() + row,
              top_tokens->typed_data() + row * count, top_logprobs->typed_data() + row * count,
              ranks->typed_data() + row};
    kernels.choose(logits.typed_data() + row * vocab, edited.typed_data() + row * vocab, vocab, choice,
                   count, held<float, 9>(4 * vocab), to);
  });
  return ffi::Error::Success();
}

// The result is whatever memory held; not touching it leaves its pages to be faulted in later.
ffi::Error unwritten(ffi::Result<ffi::AnyBuffer>) { return ffi::Error::Success(); }

}  // namespace
}  // namespace sax

// Else hidden, as all that Python does not look for.
#pragma GCC visibility push(default)

// The version of XLA's interface that this library is compiled for.
extern "C" int sax_cpu_interface() { return XLA_FFI_API_MAJOR * 1000 + XLA_FFI_API_MINOR; }

XLA_FFI_DEFINE_HANDLER_SYMBOL(sax_cpu_choose_tokens, sax::choose,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(sax_cpu_unwritten, sax::unwritten,
                              ffi::Ffi::Bind().Ret<ffi::AnyBuffer>());

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

XLA_FFI_DEFINE_HANDLER_SYMBOL(sax_cpu_quantized, sax::quantized_product,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::U8>>()
                                  .Arg<ffi::Buffer<ffi::F16>>()
                                  .Arg<ffi::Buffer<ffi::F16>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(sax_cpu_write, sax::write_pages,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(sax_cpu_attend, sax::attend,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<float>("scale")
                                  .Attr<float>("softcap")
                                  .Attr<int32_t>("window"));

#pragma GCC visibility pop
