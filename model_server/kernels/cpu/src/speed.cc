#include "speed.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <vector>

namespace sax {
namespace {

using Clock = std::chrono::steady_clock;

// Seconds of the shortest of a few runs, which take some milliseconds at most.
template <class Function>
double shortest(std::chrono::microseconds limit, Function run) {
  auto begin = Clock::now(), last = begin;
  auto best = Clock::duration::max();
  for (int i = 0; i < 20 && last - begin < limit; ++i) {
    run();
    auto now = Clock::now();
    best = std::min(best, now - last);
    last = now;
  }
  return std::max(std::chrono::duration<double>(best).count(), 1e-9);
}

}  // namespace

double speed_of(const Kernels& kernels) {
  constexpr size_t rows = 8, inputs = 1024, outputs = 192, lanes = 16, line = 64;
  constexpr uint32_t small = 0x3c003c00;  // two bf16
  std::vector<uint32_t> tiles(outputs * inputs / 2 + line, small);
  std::vector<float> x(inputs, 0.01f), made(rows * outputs);
  std::vector<char> memory(kernels.plain.size(rows, inputs) + line);
  auto from_line = [](auto* at) {
    return reinterpret_cast<decltype(at)>((reinterpret_cast<uintptr_t>(at) + line - 1) / line * line);
  };
  char* pairs = from_line(memory.data());
  PlainWeight weight{from_line(tiles.data()), outputs, inputs / 2};
  float* out[rows];
  for (size_t row = 0; row < rows; ++row) {
    out[row] = made.data() + row * outputs;
    kernels.plain.pairs_of(x.data(), inputs, row, pairs);
  }
  double seconds = shortest(std::chrono::milliseconds(3), [&] {
    kernels.plain.multiply(weight, pairs, rows, 0, outputs / lanes, out);
  });
  if (kernels.release) kernels.release();
  return 2.0 * rows * inputs * outputs / seconds / 1e9;
}

size_t queries_for_tiles(const Kernels& kernels) {
  constexpr size_t most = 32, dim = 128, page = 16, pages = kKeysOfPart / page;
  constexpr uint16_t small = 0x3c00;  // of bf16
  std::vector<uint16_t> numbers(kKeysOfPart * dim, small);
  std::vector<float> queries(most * dim, 0.01f), out(most * dim);
  std::vector<int32_t> table(pages);
  std::iota(table.begin(), table.end(), 0);
  const int32_t limit = kKeysOfPart;
  Attention step{};
  step.queries = queries.data(), step.out = out.data(), step.scale = 1.0f, step.number = Number::bf16;
  step.keys = step.values = numbers.data();
  step.pages = pages, step.page_size = page, step.kv_heads = 1;
  step.key_dim = step.value_dim = step.key_rows = dim;
  size_t found = SIZE_MAX;
  for (size_t rows = 1; rows <= most && found == SIZE_MAX; rows *= 2) {
    step.heads = rows;
    auto seconds = [&](const PageAttention& by) {
      return shortest(std::chrono::microseconds(400), [&] {
        by.attend(step, {table.data(), &limit, nullptr, 0, 0, 1, pages}, 0, 0, limit, nullptr, nullptr, {});
      });
    };
    if (seconds(kernels.halves_of_many) < seconds(kernels.halves)) found = rows;
  }
  if (kernels.release) kernels.release();
  return found;
}

}  // namespace sax
