// Attention and the pages it reads, as XLA calls them.

#include <math.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "attention_pieces.h"
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

bool tables_fit(const ffi::Buffer<ffi::S32>& tables, size_t pages) {
  const int32_t* at = tables.typed_data();
  return std::all_of(at, at + tables.element_count(), [pages](int32_t page) {
    return page >= 0 && static_cast<size_t>(page) < pages;
  });
}

// The pages of a step: false if their dtype or shape is none that attention knows.
bool take_pages(Attention& step, const ffi::AnyBuffer& keys, const ffi::Buffer<ffi::F32>& scales) {
  switch (keys.element_type()) {
    case ffi::F32: step.number = Number::f32; break;
    case ffi::BF16: step.number = Number::bf16; break;
    case ffi::S8: step.number = Number::i8; break;
    case ffi::F8E4M3FN: step.number = Number::f8; break;
    default: return false;
  }
  step.keys = keys.untyped_data();
  step.key_scales = absent(scales) ? nullptr : scales.typed_data();
  step.pages = dim(keys, 0), step.kv_heads = dim(keys, 1);
  step.key_rows = dim(keys, 2), step.page_size = dim(keys, 3);
  size_t count = step.pages * step.kv_heads * step.page_size;
  return step.kv_heads && step.page_size && (!step.key_scales || scales.element_count() == count);
}

// Copies numbers of a page's tokens: `rows` rows, of `of_row` bytes here and `of_copy` there.
void copy_rows(const char* from, char* to, size_t rows, size_t of_row, size_t of_copy, size_t bytes) {
  for (size_t row = 0; row < rows; ++row) memcpy(to + row * of_copy, from + row * of_row, bytes);
}

// Attention reads lanes of sixteen tokens of a page. Where pages hold no whole number of them, it
// reads copies: a page of each sequence, with the tokens that it sees, for as long as a step lasts.
void copy_small_pages(Attention& step, std::vector<Queries>& all) {
  if (step.page_size % kLanes == 0 || all.empty()) return;
  size_t bytes = step.number == Number::f32 ? 4 : step.number == Number::bf16 ? 2 : 1, most = 0;
  for (const Queries& each : all) most = std::max<size_t>(most, most_seen(each, step));
  size_t size = (most + kLanes - 1) / kLanes * kLanes, small = step.page_size;
  size_t of_key = step.key_rows * size * bytes, of_value = step.values ? step.value_dim * size * bytes : 0;
  char* keys = held<char, 8>(all.size() * step.kv_heads * of_key);
  char* values = held<char, 9>(all.size() * step.kv_heads * of_value);
  float* key_scales = held<float, 10>(step.key_scales ? all.size() * step.kv_heads * size : 0);
  float* value_scales = held<float, 11>(step.value_scales ? all.size() * step.kv_heads * size : 0);
  parallel(all.size() * step.kv_heads, [&](size_t copy) {
    const Queries& of = all[copy / step.kv_heads];
    size_t seen = static_cast<size_t>(most_seen(of, step));
    size_t least = static_cast<size_t>(*std::min_element(of.limits, of.limits + of.count));
    for (size_t at = first_seen(step, static_cast<int32_t>(least)) / small * small; at < seen; at += small) {
      size_t count = std::min(small, seen - at);
      size_t head = static_cast<size_t>(of.table[at / small]) * step.kv_heads + copy % step.kv_heads;
      copy_rows(static_cast<const char*>(step.keys) + head * step.key_rows * small * bytes,
                keys + copy * of_key + at * bytes, step.key_rows, small * bytes, size * bytes, count * bytes);
      if (step.values) {
        size_t row = step.value_dim * bytes;
        memcpy(values + copy * of_value + at * row,
               static_cast<const char*>(step.values) + head * small * row, count * row);
      }
      auto scales = [&](const float* from, float* to) {
        if (from) memcpy(to + copy * size + at, from + head * small, count * sizeof(float));
      };
      scales(step.key_scales, key_scales);
      scales(step.value_scales, value_scales);
    }
  });
  step.page_size = size;
  step.keys = keys, step.values = step.values ? values : nullptr;
  step.key_scales = step.key_scales ? key_scales : nullptr;
  step.value_scales = step.value_scales ? value_scales : nullptr;
  int32_t* tables = held<int32_t, 12>(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    tables[i] = static_cast<int32_t>(i);
    all[i].table = tables + i, all[i].columns = 1;
  }
}

using Flags = ffi::Buffer<ffi::PRED>;
using Numbers = ffi::Buffer<ffi::F32>;
using Whole = ffi::Buffer<ffi::S32>;

// True if the flags are of so many groups of queries, or of none. `choosers` becomes what they say.
bool take_chosen(const Flags& flags, size_t groups, size_t queries, size_t tokens, size_t& choosers) {
  if (absent(flags)) return true;
  if (rank(flags) != 4 || dim(flags, 0) != groups || dim(flags, 2) != queries ||
      dim(flags, 3) != tokens || (choosers && choosers != dim(flags, 1))) {
    return false;
  }
  choosers = dim(flags, 1);
  return true;
}

const uint8_t* flags_of(const Flags& flags, size_t group) {
  if (absent(flags)) return nullptr;
  size_t each = dim(flags, 1) * dim(flags, 2) * dim(flags, 3);
  return reinterpret_cast<const uint8_t*>(flags.typed_data()) + group * each;
}

// q f32[T, H, D]; keys, values as above, of at least D numbers a key; scales f32[P, K, G] or of no
// size; tables i32[D, S / G] of decode rows and i32[N, S / G] of prompt blocks, limits i32[D, 1] and
// i32[N, C]; sinks f32[H] or of no size; flags of chosen tokens [D, J, 1, S] and [N, J, C, S], each
// for H / J heads, or of no size; sums f32[T, H, W] and states f32[T, H, 2] of what was attended to
// before, or of no size -> f32[T, H, W], and states, or of no size: then what is written is divided
ffi::Error attend(Numbers q, ffi::AnyBuffer keys, ffi::AnyBuffer values, Numbers key_scales,
                  Numbers value_scales, Whole decode_tables, Whole decode_limits, Whole block_tables,
                  Whole block_limits, Numbers sinks, Flags decode_chosen, Flags block_chosen,
                  Numbers begun, Numbers begun_states, ffi::ResultBuffer<ffi::F32> out,
                  ffi::ResultBuffer<ffi::F32> states, float scale, float softcap, int32_t window,
                  int32_t own_chunk) {
  if (rank(q) != 3 || rank(keys) != 4 || rank(values) != 4 || rank(*out) != 3 ||
      rank(decode_tables) != 2 || rank(block_tables) != 2 || rank(block_limits) != 2) {
    return wrong("attention: ranks");
  }
  Attention step{};
  if (!take_pages(step, keys, key_scales)) return wrong("attention: the pages do not fit");
  step.queries = q.typed_data();
  step.values = absent(values) ? nullptr : values.untyped_data();
  step.value_scales = absent(value_scales) ? nullptr : value_scales.typed_data();
  step.sinks = absent(sinks) ? nullptr : sinks.typed_data();
  step.begun = absent(begun) ? nullptr : begun.typed_data();
  step.begun_states = begun_states.typed_data();
  step.out = out->typed_data();
  step.states = absent(*states) ? nullptr : states->typed_data();
  step.heads = dim(q, 1), step.key_dim = dim(q, 2), step.value_dim = dim(*out, 2);
  step.scale = scale, step.softcap = softcap, step.window = window, step.chunk = own_chunk;
  size_t decodes = dim(decode_tables, 0), blocks = dim(block_tables, 0), chunk = dim(block_limits, 1);
  bool fits = step.key_dim <= step.key_rows && step.heads % step.kv_heads == 0 &&
              step.key_dim <= kMostDim && step.value_dim <= kMostDim &&
              decode_limits.element_count() == decodes && dim(block_limits, 0) == blocks &&
              dim(q, 0) == decodes + blocks * chunk && dim(*out, 0) == dim(q, 0) &&
              dim(*out, 1) == step.heads;
  bool valued = step.values ? values.element_type() == keys.element_type() &&
                                  dim(values, 0) == step.pages && dim(values, 1) == step.kv_heads &&
                                  dim(values, 2) == step.page_size &&
                                  dim(values, 3) == step.value_dim
                            : step.value_dim == step.key_dim;
  size_t scales = step.pages * step.kv_heads * step.page_size;
  bool sunk = !step.sinks || sinks.element_count() == step.heads;
  bool scaled = !step.value_scales || value_scales.element_count() == scales;
  size_t of_states = 2 * dim(q, 0) * step.heads;
  bool continued = (!step.begun || (begun.element_count() == out->element_count() &&
                                    begun_states.element_count() == of_states)) &&
                   (!step.states || states->element_count() == of_states);
  size_t columns = dim(decode_tables, 1), block_columns = dim(block_tables, 1);
  bool told = take_chosen(decode_chosen, decodes, 1, columns * step.page_size, step.choosers) &&
              take_chosen(block_chosen, blocks, chunk, block_columns * step.page_size, step.choosers) &&
              (!step.choosers || step.heads % step.choosers == 0);
  if (!fits || !valued || !scaled || !sunk || !continued || !told) {
    return wrong("attention: the shapes do not fit");
  }
  if (!tables_fit(decode_tables, step.pages) || !tables_fit(block_tables, step.pages)) {
    return wrong("attention: a table names a page outside the pool");
  }
  std::vector<Queries> all;
  for (size_t row = 0; row < decodes; ++row) {
    all.push_back({decode_tables.typed_data() + row * columns, decode_limits.typed_data() + row,
                   flags_of(decode_chosen, row), columns * step.page_size, row, 1, columns});
  }
  for (size_t block = 0; chunk && block < blocks; ++block) {
    all.push_back({block_tables.typed_data() + block * block_columns,
                   block_limits.typed_data() + block * chunk, flags_of(block_chosen, block),
                   block_columns * step.page_size, decodes + block * chunk, chunk, block_columns});
  }
  copy_small_pages(step, all);
  Pieces(step, all, decodes).attend();
  return ffi::Error::Success();
}

// queries f32[N, C, J, I]; weights f32[N, C, J] or of no size; keys [P, K, D, G], of which the first
// head's numbers from `first` on are compared; scales f32[P, K, G] or of no size; tables i32[N, S / G];
// limits i32[N, C] -> f32[N, C, S], the positive products weighted and added up, or without weights
// f32[N, C, J, S]; -inf from the limit on
ffi::Error score_tokens(Numbers queries, Numbers weights, ffi::AnyBuffer keys, Numbers key_scales,
                        Whole tables, Whole limits, ffi::ResultBuffer<ffi::F32> out, int32_t first) {
  if (rank(queries) != 4 || rank(keys) != 4 || rank(tables) != 2 || rank(limits) != 2) {
    return wrong("scores of tokens: ranks");
  }
  Attention step{};
  if (!take_pages(step, keys, key_scales)) return wrong("scores of tokens: the pages do not fit");
  step.queries = queries.typed_data();
  step.heads = dim(queries, 2), step.key_dim = dim(queries, 3);
  step.key_first = static_cast<size_t>(first);
  size_t sequences = dim(queries, 0), chunk = dim(queries, 1), columns = dim(tables, 1);
  size_t rows = sequences * chunk, tokens = columns * step.page_size;
  const float* given = absent(weights) ? nullptr : weights.typed_data();
  size_t apart = given ? 1 : step.heads;
  if (first < 0 || step.key_first + step.key_dim > step.key_rows || dim(tables, 0) != sequences ||
      limits.element_count() != rows || out->element_count() != rows * apart * tokens ||
      (given && weights.element_count() != rows * step.heads)) {
    return wrong("scores of tokens: the shapes do not fit");
  }
  if (!tables_fit(tables, step.pages)) return wrong("scores of tokens: a page outside the pool");
  std::vector<Queries> all;
  for (size_t i = 0; chunk && i < sequences; ++i) {
    all.push_back({tables.typed_data() + i * columns, limits.typed_data() + i * chunk, nullptr, 0,
                   i * chunk, chunk, columns});
  }
  copy_small_pages(step, all);
  size_t parts = (tokens + kKeysOfPart - 1) / kKeysOfPart;
  parallel(rows * parts, [&](size_t piece) {
    size_t row = piece / parts, begin = piece % parts * kKeysOfPart;
    size_t end = std::min<size_t>(begin + kKeysOfPart, tokens);
    int32_t limit = limits.typed_data()[row];
    size_t seen = std::clamp<size_t>(limit > 0 ? static_cast<size_t>(limit) : 0, begin, end);
    float* to = out->typed_data() + row * apart * tokens;
    if (seen > begin) {
      chosen().score(step, all[row / chunk].table, row, static_cast<int32_t>(begin), static_cast<int32_t>(seen), given,
                     to, tokens);
    }
    for (size_t head = 0; head < apart; ++head) {
      std::fill(to + head * tokens + seen, to + head * tokens + end, -INFINITY);
    }
  });
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

XLA_FFI_DEFINE_HANDLER_SYMBOL(sax_cpu_attend_over_pages, sax::attend,
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
                                  .Arg<ffi::Buffer<ffi::PRED>>()
                                  .Arg<ffi::Buffer<ffi::PRED>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<float>("scale")
                                  .Attr<float>("softcap")
                                  .Attr<int32_t>("window")
                                  .Attr<int32_t>("chunk"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(sax_cpu_score_tokens, sax::score_tokens,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<int32_t>("first"));

#pragma GCC visibility pop
