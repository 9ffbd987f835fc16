// The parts that the handlers share: how XLA calls a kernel, and how its work is divided.

#pragma once

#include <algorithm>
#include <vector>

#include "kernels.h"
#include "threads.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace sax {
namespace {

constexpr size_t kLanes = 16;

inline ffi::Error wrong(const char* text) { return ffi::Error::InvalidArgument(text); }

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

// Calls function(first, last) for parts of the rows, each worth the handing over.
template <class Function>
void over_rows(size_t rows, size_t numbers_of_each, Function&& function) {
  constexpr size_t worth = 16384;  // numbers: a few microseconds
  size_t each = std::max<size_t>(1, worth / std::max<size_t>(1, numbers_of_each));
  parallel((rows + each - 1) / each, [&](size_t chunk) {
    function(chunk * each, std::min(rows, (chunk + 1) * each));
  });
}

}  // namespace
}  // namespace sax
