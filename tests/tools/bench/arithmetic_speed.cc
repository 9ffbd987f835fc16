// Prints how fast this processor multiplies and adds: one line per kind of numbers, its name and
// GFLOP/s. Every thread repeats the widest instruction there is on registers alone, in as many
// independent sums as hide its latency, so no program of this kind can be faster.
// arithmetic_speed THREADS

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
#if defined(__AMX_BF16__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

constexpr int kSums = 24, kRounds = 500'000, kTries = 12;

// Keeps a sum in its register and tells the compiler nothing of its value.
template <class Vector>
inline void kept(Vector& sum) {
#if defined(__x86_64__)
  asm volatile("" : "+v"(sum));
#elif defined(__aarch64__)
  asm volatile("" : "+w"(sum));
#else
  asm volatile("" : "+r"(sum));
#endif
}

template <class Vector, class Step>
void repeat(Vector zero, Step step) {
  Vector sums[kSums];
  for (auto& sum : sums) sum = zero;
  for (int round = 0; round < kRounds; ++round) {
#pragma GCC unroll 24
    for (auto& sum : sums) {
      sum = step(sum);
      kept(sum);
    }
  }
}

using Clock = std::chrono::steady_clock;

// GFLOP/s of `work`, which does `operations` in a call, on so many threads at once, from the first
// thread's start to the last one's end; the best try.
template <class Work>
double rate(int threads, double operations, Work work) {
  double best = 0;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    std::barrier start(threads);
    std::vector<Clock::time_point> began(threads), ended(threads);
    std::vector<std::thread> workers;
    for (int i = 0; i < threads; ++i)
      workers.emplace_back([&, i] {
        start.arrive_and_wait();
        began[i] = Clock::now();
        work();
        ended[i] = Clock::now();
      });
    for (auto& worker : workers) worker.join();
    std::chrono::duration<double> took = *std::max_element(ended.begin(), ended.end()) -
                                         *std::min_element(began.begin(), began.end());
    best = std::max(best, threads * operations / took.count() / 1e9);
  }
  return best;
}

constexpr double kSteps = double(kSums) * kRounds;

void show(const char* name, double rate) { std::printf("%s %.1f\n", name, rate); }

#if defined(__AMX_BF16__)

bool tiles_allowed() {
  constexpr int request = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, request, tile_data) == 0;
}

// Four sums of 16 by 16 numbers, each of products of 32 pairs.
void tiles() {
  struct alignas(64) {
    unsigned char palette = 1, start_row = 0, reserved[14] = {};
    unsigned short bytes[16] = {};
    unsigned char rows[16] = {};
  } shape;
  for (int tile = 0; tile < 8; ++tile) shape.bytes[tile] = 64, shape.rows[tile] = 16;
  _tile_loadconfig(&shape);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  for (int round = 0; round < kRounds; ++round) {
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 5);
    _tile_dpbf16ps(2, 4, 5);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_release();
}

#endif

}  // namespace

int main(int count, char** words) {
  int threads = count > 1 ? std::max(1, std::atoi(words[1])) : 1;
#if defined(__AVX512F__)
  auto ones = _mm512_set1_ps(1e-3f), zero = _mm512_setzero_ps();
  show("float32", rate(threads, kSteps * 32, [&] {
         repeat(zero, [=](__m512 sum) { return _mm512_fmadd_ps(ones, ones, sum); });
       }));
#elif defined(__FMA__)
  auto ones = _mm256_set1_ps(1e-3f), zero = _mm256_setzero_ps();
  show("float32", rate(threads, kSteps * 16, [&] {
         repeat(zero, [=](__m256 sum) { return _mm256_fmadd_ps(ones, ones, sum); });
       }));
#elif defined(__aarch64__)
  auto ones = vdupq_n_f32(1e-3f), zero = vdupq_n_f32(0);
  show("float32", rate(threads, kSteps * 8, [&] {
         repeat(zero, [=](float32x4_t sum) { return vfmaq_f32(sum, ones, ones); });
       }));
#endif
#if defined(__AVX512BF16__)
  auto pairs = (__m512bh)_mm512_set1_epi32(0x3c003c00);
  show("bfloat16", rate(threads, kSteps * 64, [&] {
         repeat(_mm512_setzero_ps(), [=](__m512 sum) { return _mm512_dpbf16_ps(sum, pairs, pairs); });
       }));
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  auto pairs = vdupq_n_bf16(vcvth_bf16_f32(1e-2f));
  show("bfloat16", rate(threads, kSteps * 32, [&] {
         repeat(vdupq_n_f32(0), [=](float32x4_t sum) { return vbfmmlaq_f32(sum, pairs, pairs); });
       }));
#endif
#if defined(__AMX_BF16__)
  if (tiles_allowed()) show("bfloat16", rate(threads, kRounds * 4.0 * 2 * 16 * 16 * 32, tiles));
#endif
#if defined(__AVX512VNNI__)
  auto bytes = _mm512_set1_epi8(1);
  show("int8", rate(threads, kSteps * 128, [&] {
         repeat(_mm512_setzero_si512(), [=](__m512i sum) { return _mm512_dpbusd_epi32(sum, bytes, bytes); });
       }));
#elif defined(__ARM_FEATURE_MATMUL_INT8)
  auto bytes = vdupq_n_s8(1);
  show("int8", rate(threads, kSteps * 64, [&] {
         repeat(vdupq_n_s32(0), [=](int32x4_t sum) { return vmmlaq_s32(sum, bytes, bytes); });
       }));
#endif
}
