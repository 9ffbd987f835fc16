// Multiplies with each instruction set of an arm64 machine, and compares with sums in double, and the
// rows of a product with each of them alone, whose bits are the same. `test_arm.py` runs it emulated.

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <random>
#include <vector>

#include "kernels.h"

namespace sax {

extern const Kernels kernels_neon, kernels_neon_matrices, kernels_portable;

namespace {

constexpr size_t kLanes = 16;

std::mt19937 random_bits(7);

float any() { return std::normal_distribution<float>()(random_bits); }

std::vector<float> numbers(size_t count) {
  std::vector<float> made(count);
  for (float& each : made) each = any();
  return made;
}

uint16_t bf16(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float widened(uint16_t bits) {
  uint32_t whole = static_cast<uint32_t>(bits) << 16;
  float made;
  memcpy(&made, &whole, 4);
  return made;
}

size_t tiles_of(size_t outputs) { return (outputs + kLanes - 1) / kLanes; }

struct Found {
  double error = 0;  // largest, as a part of the sum of the sizes of the products
  int differing = 0;  // rows with other bits alone
};

using Multiply = void (*)(const Kernels&, const void*, const float*, size_t rows, size_t inputs,
                          size_t outputs, float*);

Found tried(const Kernels& kernels, Multiply multiply, const void* weight, const std::vector<float>& x,
            size_t rows, size_t inputs, size_t outputs, const std::vector<double>& values) {
  Found found;
  std::vector<float> made(rows * outputs), alone(outputs);
  multiply(kernels, weight, x.data(), rows, inputs, outputs, made.data());
  for (size_t row = 0; row < rows; ++row) {
    multiply(kernels, weight, x.data() + row * inputs, 1, inputs, outputs, alone.data());
    found.differing += memcmp(alone.data(), made.data() + row * outputs, outputs * sizeof(float)) != 0;
    for (size_t n = 0; n < outputs; ++n) {
      double sum = 0, sizes = 0;
      for (size_t k = 0; k < inputs; ++k) {
        double product = values[n * inputs + k] * x[row * inputs + k];
        sum += product, sizes += fabs(product);
      }
      double error = fabs(sum - static_cast<double>(made[row * outputs + n])) / sizes;
      found.error = std::max(found.error, std::isnan(error) ? 1.0 : error);
    }
  }
  return found;
}

std::vector<float*> rows_of(float* out, size_t rows, size_t outputs) {
  std::vector<float*> made(rows);
  for (size_t row = 0; row < rows; ++row) made[row] = out + row * outputs;
  return made;
}

void multiply_plain(const Kernels& kernels, const void* weight, const float* x, size_t rows, size_t inputs,
                    size_t outputs, float* out) {
  std::vector<char> pairs(kernels.plain.size(rows, inputs));
  for (size_t row = 0; row < rows; ++row) kernels.plain.pairs_of(x + row * inputs, inputs, row, pairs.data());
  auto to = rows_of(out, rows, outputs);
  kernels.plain.multiply(*static_cast<const PlainWeight*>(weight), pairs.data(), rows, 0, tiles_of(outputs),
                         to.data());
}

void multiply_bytes(const Kernels& kernels, const void* given, const float* x, size_t rows, size_t inputs,
                    size_t outputs, float* out) {
  const auto& weight = *static_cast<const QuantizedWeight*>(given);
  std::vector<int8_t> bytes(kernels.bytes.size(rows, inputs, weight.block));
  std::vector<float> steps(rows);
  std::vector<BlockSum> sums(rows * inputs / weight.block);
  ByteRows held{rows, inputs, weight.block, weight.zero(), bytes.data(), steps.data(), sums.data()};
  for (size_t row = 0; row < rows; ++row) kernels.bytes.bytes_of(x + row * inputs, row, held);
  auto to = rows_of(out, rows, outputs);
  kernels.bytes.multiply(weight, held, 0, tiles_of(outputs), to.data());
}

Found plain(const Kernels& kernels, size_t rows, size_t inputs, size_t outputs) {
  size_t pairs = (inputs + 1) / 2;
  std::vector<uint32_t> tiles(tiles_of(outputs) * pairs * kLanes + 64);
  std::vector<double> values(outputs * inputs);
  auto* halves = reinterpret_cast<uint16_t*>(tiles.data());
  for (size_t n = 0; n < outputs; ++n) {
    for (size_t k = 0; k < inputs; ++k) {
      uint16_t half = bf16(any());
      halves[((n / kLanes * pairs + k / 2) * kLanes + n % kLanes) * 2 + k % 2] = half;
      values[n * inputs + k] = widened(half);
    }
  }
  std::vector<float> x = numbers(rows * inputs);
  for (float& each : x) each = widened(bf16(each));
  PlainWeight weight{tiles.data(), outputs, pairs};
  return tried(kernels, multiply_plain, &weight, x, rows, inputs, outputs, values);
}

constexpr double kFloat4[16] = {0, .5, 1, 1.5, 2, 3, 4, 6, -0.0, -.5, -1, -1.5, -2, -3, -4, -6};

Found quantized(const Kernels& kernels, int bits, bool float4, bool offsets, size_t block, size_t rows,
                size_t inputs, size_t outputs) {
  size_t tiles = tiles_of(outputs), blocks = inputs / block;
  std::vector<uint8_t> packed(tiles * inputs * kLanes * static_cast<size_t>(bits) / 8 + 1024);
  std::vector<uint16_t> scales(tiles * blocks * kLanes), added(scales.size());
  std::vector<float> units(tiles * 2 * kLanes);
  std::vector<double> values(outputs * inputs);
  for (float& each : units) each = 0.01f + 0.01f * fabsf(any());
  auto half = [](float x) { _Float16 small = static_cast<_Float16>(x); uint16_t made; memcpy(&made, &small, 2); return made; };
  for (size_t i = 0; i < scales.size(); ++i) {
    scales[i] = half(0.25f + 0.5f * static_cast<float>(i % 3) / 2), added[i] = half(any() / 4);
  }
  auto whole = [](uint16_t x) { _Float16 small; memcpy(&small, &x, 2); return static_cast<double>(small); };
  for (size_t n = 0; n < outputs; ++n) {
    for (size_t k = 0; k < inputs; ++k) {
      size_t tile = n / kLanes, lane = n % kLanes, place = (tile * blocks + k / block) * kLanes + lane;
      int stored = static_cast<int>(random_bits() % (bits == 8 ? 256u : 16u));
      if (bits == 8) {
        packed[((tile * inputs + k / 4 * 4) * kLanes) + lane * 4 + k % 4] = static_cast<uint8_t>(stored);
      } else {
        size_t at = (tile * inputs / 8 + k / 8) * kLanes * 4 + lane * 4 + k % 4;
        packed[at] = static_cast<uint8_t>(packed[at] | stored << (k % 8 < 4 ? 0 : 4));
      }
      double number = bits == 8 ? stored - 128 : float4 ? 2 * kFloat4[(stored + 8) & 15] : stored - 8;
      const float* unit = units.data() + tile * 2 * kLanes + lane;
      double offset = offsets ? whole(added[place]) * static_cast<double>(unit[kLanes]) : 0;
      values[n * inputs + k] = whole(scales[place]) * static_cast<double>(unit[0]) * number + offset;
    }
  }
  QuantizedWeight weight{packed.data(), scales.data(), offsets ? added.data() : nullptr, units.data(),
                         outputs, inputs, block, bits, float4};
  return tried(kernels, multiply_bytes, &weight, numbers(rows * inputs), rows, inputs, outputs, values);
}

int tell(const Kernels& kernels, const char* kind, size_t rows, size_t inputs, size_t outputs, Found found,
         double most) {
  bool wrong = found.error > most || found.differing;
  if (wrong) {
    printf("%s, %s, %zu x %zu x %zu: off by %.2e, %d rows have other bits alone\n", kernels.name, kind, rows,
           inputs, outputs, found.error, found.differing);
  }
  return wrong;
}

}  // namespace
}  // namespace sax

int main() {
  using namespace sax;
  int wrong = 0, done = 0;
  for (const Kernels* kernels : {&kernels_neon_matrices, &kernels_neon, &kernels_portable}) {
    for (size_t rows : {1, 2, 3, 4, 5, 9}) {
      for (auto [inputs, outputs] : {std::pair<size_t, size_t>{64, 16}, {577, 49}, {2056, 33}, {2, 1}}) {
        wrong += tell(*kernels, "bf16", rows, inputs, outputs, plain(*kernels, rows, inputs, outputs), 1e-6);
        ++done;
      }
      for (auto [inputs, block] : {std::pair<size_t, size_t>{64, 32}, {96, 16}, {576, 576}, {132, 132}}) {
        for (bool offsets : {false, true}) {
          Found found = quantized(*kernels, 8, false, offsets, block, rows, inputs, 49);
          wrong += tell(*kernels, "int8", rows, inputs, 49, found, 1e-4);
          ++done;
          if (inputs % 8) continue;
          found = quantized(*kernels, 4, false, offsets, block, rows, inputs, 49);
          wrong += tell(*kernels, "int4", rows, inputs, 49, found, 1e-4);
          found = quantized(*kernels, 4, true, offsets, block, rows, inputs, 49);
          wrong += tell(*kernels, "float4", rows, inputs, 49, found, 1e-4);
          done += 2;
        }
      }
    }
  }
  printf("%d of %d products are wrong\n", wrong, done);
  return wrong != 0;
}
