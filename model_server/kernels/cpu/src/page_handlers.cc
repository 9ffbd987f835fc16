// Attention and the pages it reads, as XLA calls them.

#include <string.h>

#include <algorithm>
#include <vector>

#include "handling.h"

namespace sax {
namespace {

// Rows of f32 numbers as the pages' dtype, in memory of this thread where they are narrowed.
struct Narrowed {
  const void* rows;
  size_t of_row;  // numbers from one to the next

  Narrowed(const float* from, size_t count, size_t size, size_t distance, ffi::DataType type)
      : rows(from), of_row(distance) {
    if (type == ffi::F32) return;
    of_row = size;
    uint16_t* halves = held<uint16_t, 5>(count * of_row);
    for (size_t i = 0; i < count; ++i) chosen().narrow(from + i * distance, size, halves + i * of_row);
    rows = halves;
  }
};

// Numbers of consecutive tokens, to places next to each other in each row of a page.
template <class Number>
void put_across(const Narrowed& from, size_t tokens, size_t size, void* base, size_t at,
                size_t page_size) {
  const Number* rows = static_cast<const Number*>(from.rows);
  Number* to = static_cast<Number*>(base) + at;
  for (size_t d = 0; d < size; ++d, to += page_size) {
    for (size_t i = 0; i < tokens; ++i) to[i] = rows[i * from.of_row + d];
  }
}

// Numbers of consecutive tokens, one row after the other.
template <class Number>
void put_along(const Narrowed& from, size_t tokens, size_t size, void* base, size_t at) {
  const Number* rows = static_cast<const Number*>(from.rows);
  Number* to = static_cast<Number*>(base) + at;
  for (size_t i = 0; i < tokens; ++i) memcpy(to + i * size, rows + i * from.of_row, size * sizeof(Number));
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
  const int32_t *page_of = pages.typed_data(), *offset_of = offsets.typed_data();
  auto put_run = [&](size_t t, size_t run) {
    size_t page = static_cast<size_t>(page_of[t]), offset = static_cast<size_t>(offset_of[t]);
    if (page >= count || offset >= size) return;  // nothing is written outside the pool
    for (size_t head = 0; head < heads; ++head) {
      size_t vector = t * heads + head, of_head = page * heads + head;
      Narrowed key(k.typed_data() + vector * key_dim, run, key_dim, heads * key_dim, type);
      auto across = type == ffi::F32 ? put_across<float> : put_across<uint16_t>;
      across(key, run, key_dim, new_keys->untyped_data(), of_head * key_dim * size + offset, size);
      if (!valued) continue;
      Narrowed value(v.typed_data() + vector * value_dim, run, value_dim, heads * value_dim, type);
      auto along = type == ffi::F32 ? put_along<float> : put_along<uint16_t>;
      along(value, run, value_dim, new_values->untyped_data(), (of_head * size + offset) * value_dim);
    }
  };
  over_rows(tokens, heads * (key_dim + value_dim), [&](size_t first, size_t last) {
    for (size_t t = first, run = 1; t < last; t += run, run = 1) {
      size_t room = size - std::min(size, static_cast<size_t>(offset_of[t]));
      while (t + run < last && run < room && page_of[t + run] == page_of[t] &&
             offset_of[t + run] == offset_of[t] + static_cast<int32_t>(run)) {
        ++run;
      }
      put_run(t, run);
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

int32_t most_seen(const Queries& queries, const Attention& step) {
  int32_t most = *std::max_element(queries.limits, queries.limits + queries.count);
  int32_t cached = static_cast<int32_t>(queries.columns * step.page_size);
  return std::clamp(most, 0, cached);
}

void add_pieces(const Attention& step, const Queries& queries, bool divided,
                std::vector<Piece>& pieces) {
  int32_t seen = most_seen(queries, step);
  int32_t each = divided ? kKeysOfPart : std::max(seen, 1);
  int32_t unseen = divided ? first_seen(step, seen) / each : 0;  // parts
  size_t parts = static_cast<size_t>(std::max(1, (seen + each - 1) / each - unseen));
  for (size_t head = 0; head < step.kv_heads; ++head) {
    for (size_t part = 0; part < parts; ++part) {
      int32_t begin = (unseen + static_cast<int32_t>(part)) * each;
      pieces.push_back({queries, head, begin, std::min(seen, begin + each), part, parts});
    }
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
    size_t row = pieces[i].queries.first;
    chosen().join(step, pieces[i].parts, sums + places[i] * step.value_dim, partials + places[i],
                  step.out + row * step.heads * step.value_dim);
  }
}

bool tables_fit(const ffi::Buffer<ffi::S32>& tables, size_t pages) {
  const int32_t* at = tables.typed_data();
  return std::all_of(at, at + tables.element_count(), [pages](int32_t page) {
    return page >= 0 && static_cast<size_t>(page) < pages;
  });
}

// q f32[T, H, D]; keys, values as above; scales f32[P, K, G] or of no size; tables i32[D, S / G] of
// decode rows and i32[N, S / G] of prompt blocks, limits i32[D, 1] and i32[N, C]; sinks f32[H] or of
// no size -> f32[T, H, W]
ffi::Error attend(ffi::Buffer<ffi::F32> q, ffi::AnyBuffer keys, ffi::AnyBuffer values,
                  ffi::Buffer<ffi::F32> key_scales, ffi::Buffer<ffi::F32> value_scales,
                  ffi::Buffer<ffi::S32> decode_tables, ffi::Buffer<ffi::S32> decode_limits,
                  ffi::Buffer<ffi::S32> block_tables, ffi::Buffer<ffi::S32> block_limits,
                  ffi::Buffer<ffi::F32> sinks,
                  ffi::ResultBuffer<ffi::F32> out, float scale, float softcap, int32_t window,
                  int32_t own_chunk) {
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
  step.sinks = absent(sinks) ? nullptr : sinks.typed_data();
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
  step.scale = scale, step.softcap = softcap, step.window = window, step.chunk = own_chunk;
  size_t decodes = dim(decode_tables, 0), blocks = dim(block_tables, 0), chunk = dim(block_limits, 1);
  bool fits = dim(keys, 2) == step.key_dim && step.page_size && step.page_size % kLanes == 0 &&
              step.kv_heads && step.heads % step.kv_heads == 0 && step.key_dim <= 640 &&
              step.value_dim <= 640 && decode_limits.element_count() == decodes &&
              dim(block_limits, 0) == blocks && dim(q, 0) == decodes + blocks * chunk &&
              dim(*out, 0) == dim(q, 0) && dim(*out, 1) == step.heads;
  bool valued = step.values ? values.element_type() == keys.element_type() &&
                                  dim(values, 0) == step.pages && dim(values, 1) == step.kv_heads &&
                                  dim(values, 2) == step.page_size &&
                                  dim(values, 3) == step.value_dim
                            : step.value_dim == step.key_dim;
  size_t scales = step.pages * step.kv_heads * step.page_size;
  bool sunk = !step.sinks || sinks.element_count() == step.heads;
  bool scaled = (!step.key_scales || key_scales.element_count() == scales) &&
                (!step.value_scales || value_scales.element_count() == scales);
  if (!fits || !valued || !scaled || !sunk) return wrong("attention: the shapes do not fit");
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

// index i32[N], rows [N, ...], held [P, ...], written in place: pages as they are, of any dtype.
ffi::Error overwrite(ffi::Buffer<ffi::S32> index, ffi::AnyBuffer rows, ffi::AnyBuffer held,
                     ffi::Result<ffi::AnyBuffer> out) {
  if (!rank(rows) || !rank(held) || rows.element_type() != held.element_type()) {
    return wrong("overwriting: ranks");
  }
  size_t count = dim(rows, 0), pages = dim(held, 0);
  if (index.element_count() != count || out->size_bytes() != held.size_bytes() ||
      rows.element_count() * pages != held.element_count() * count) {
    return wrong("overwriting: the pages do not fit");
  }
  if (out->untyped_data() != held.untyped_data()) {
    memcpy(out->untyped_data(), held.untyped_data(), held.size_bytes());
  }
  size_t size = pages ? held.size_bytes() / pages : 0;
  for (size_t i = 0; i < count; ++i) {
    size_t page = static_cast<size_t>(index.typed_data()[i]);
    if (page >= pages) continue;
    memcpy(static_cast<char*>(out->untyped_data()) + page * size,
           static_cast<const char*>(rows.untyped_data()) + i * size, size);
  }
  return ffi::Error::Success();
}

// The result is whatever memory held; not touching it leaves its pages to be faulted in later.
ffi::Error unwritten(ffi::Result<ffi::AnyBuffer>) { return ffi::Error::Success(); }

}  // namespace
}  // namespace sax

#pragma GCC visibility push(default)  // else hidden, as all that Python does not look for

XLA_FFI_DEFINE_HANDLER_SYMBOL(sax_cpu_unwritten, sax::unwritten,
                              ffi::Ffi::Bind().Ret<ffi::AnyBuffer>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(sax_cpu_overwrite, sax::overwrite,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>());

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

XLA_FFI_DEFINE_HANDLER_SYMBOL(sax_cpu_attend_to_pages, sax::attend,
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
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<float>("scale")
                                  .Attr<float>("softcap")
                                  .Attr<int32_t>("window")
                                  .Attr<int32_t>("chunk"));

#pragma GCC visibility pop
