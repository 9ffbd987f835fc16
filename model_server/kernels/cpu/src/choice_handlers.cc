// The choice of tokens, as XLA calls it.

#include <string.h>

#include <algorithm>
#include <vector>

#include "handling.h"

namespace sax {
namespace {

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

}  // namespace
}  // namespace sax

#pragma GCC visibility push(default)  // else hidden, as all that Python does not look for

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


#pragma GCC visibility pop
