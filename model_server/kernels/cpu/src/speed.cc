#include "speed.h"

#include <algorithm>
#include <chrono>
#include <vector>

namespace sax {

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
  using Clock = std::chrono::steady_clock;
  auto begin = Clock::now(), last = begin;
  auto best = Clock::duration::max();
  for (int i = 0; i < 20 && last - begin < std::chrono::milliseconds(3); ++i) {
    kernels.plain.multiply(weight, pairs, rows, 0, outputs / lanes, out);
    auto now = Clock::now();
    best = std::min(best, now - last);
    last = now;
  }
  if (kernels.release) kernels.release();
  double seconds = std::max(std::chrono::duration<double>(best).count(), 1e-9);
  return 2.0 * rows * inputs * outputs / seconds / 1e9;
}

}  // namespace sax
