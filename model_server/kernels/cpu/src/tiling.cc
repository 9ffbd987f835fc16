// Weights into tiles of 16 rows, once, as they are loaded.

#if defined(__SSE2__)
#include <emmintrin.h>
#endif
#if defined(__linux__)
#include <sys/resource.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <utility>

#include "kernels.h"
#include "threads.h"

namespace sax {
namespace {

constexpr size_t kLanes = 16;

// Whether this thread has a lower priority than its process: it then leaves the pool to steps.
bool gives_way() {
#if defined(__linux__)
  return getpriority(PRIO_PROCESS, static_cast<id_t>(gettid())) >
         getpriority(PRIO_PROCESS, static_cast<id_t>(getpid()));
#else
  return false;
#endif
}

// Calls fill(tile, rows that it has) for each tile.
template <class Function>
void over_tiles(size_t outputs, Function&& fill) {
  auto one = [&](size_t tile) { fill(tile, std::min(kLanes, outputs - tile * kLanes)); };
  size_t tiles = (outputs + kLanes - 1) / kLanes;
  if (!gives_way()) return parallel(tiles, std::move(one));
  for (size_t tile = 0; tile < tiles; ++tile) one(tile);
}

// rows [16, inputs] -> [pairs, 16, 2], four pairs of all rows at a time; returns the pairs it did.
// A pair by itself would cost a load and a store of four bytes. The stores pass by the caches, which
// would first read what they overwrite; `to` is a multiple of 16 bytes.
size_t turn_pairs(const uint16_t* rows, size_t inputs, uint16_t* to) {
  size_t pair = 0;
#if defined(__SSE2__)
  for (; 2 * pair + 8 <= inputs; pair += 4) {
    for (size_t lane = 0; lane < kLanes; lane += 4) {
      __m128i row[4];
      for (size_t i = 0; i < 4; ++i) {
        const uint16_t* at = rows + (lane + i) * inputs + 2 * pair;
        row[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
      }
      __m128i low[2] = {_mm_unpacklo_epi32(row[0], row[1]), _mm_unpacklo_epi32(row[2], row[3])};
      __m128i high[2] = {_mm_unpackhi_epi32(row[0], row[1]), _mm_unpackhi_epi32(row[2], row[3])};
      __m128i turned[4] = {
          _mm_unpacklo_epi64(low[0], low[1]), _mm_unpackhi_epi64(low[0], low[1]),
          _mm_unpacklo_epi64(high[0], high[1]), _mm_unpackhi_epi64(high[0], high[1])};
      for (size_t i = 0; i < 4; ++i) {
        uint16_t* at = to + ((pair + i) * kLanes + lane) * 2;
        _mm_stream_si128(reinterpret_cast<__m128i*>(at), turned[i]);
      }
    }
  }
  _mm_sfence();
#endif
  return pair;
}

}  // namespace
}  // namespace sax

extern "C" {

// rows [N, K] of two bytes -> tiles [N / 16, K / 2, 16, 2], where both are rounded up.
__attribute__((visibility("default"))) void sax_cpu_tile_halves(const uint16_t* rows, size_t outputs,
                                                                size_t inputs, uint16_t* tiles) {
  size_t pairs = (inputs + 1) / 2;
  sax::over_tiles(outputs, [&](size_t tile, size_t there) {
    uint16_t* to = tiles + tile * pairs * 2 * sax::kLanes;
    const uint16_t* from = rows + tile * sax::kLanes * inputs;
    bool whole = there == sax::kLanes && inputs % 2 == 0 && reinterpret_cast<uintptr_t>(to) % 16 == 0;
    size_t pair = whole ? sax::turn_pairs(from, inputs, to) : 0;
    for (to += pair * 2 * sax::kLanes; pair < pairs; ++pair) {
      for (size_t lane = 0; lane < sax::kLanes; ++lane, to += 2) {
        const uint16_t* at = from + lane * inputs + 2 * pair;
        to[0] = lane < there ? at[0] : 0;
        to[1] = lane < there && 2 * pair + 1 < inputs ? at[1] : 0;
      }
    }
  });
}

// rows f32[N, K] -> tiles f32[N / 16, K, 16], rounded up.
__attribute__((visibility("default"))) void sax_cpu_tile_floats(const float* rows, size_t outputs,
                                                                size_t inputs, float* tiles) {
  sax::over_tiles(outputs, [&](size_t tile, size_t there) {
    float* to = tiles + tile * inputs * sax::kLanes;
    const float* from = rows + tile * sax::kLanes * inputs;
    constexpr size_t some = 16;  // numbers of each row: a line of the cache
    for (size_t begin = 0; begin < inputs; begin += some) {
      size_t end = std::min(begin + some, inputs);
      for (size_t lane = 0; lane < sax::kLanes; ++lane) {
        const float* row = from + lane * inputs;
        for (size_t i = begin; i < end; ++i) to[i * sax::kLanes + lane] = lane < there ? row[i] : 0.0f;
      }
    }
  });
}

// values i8[N, K] -> tiles u8[N / 16, K / 4, 16, 4], each plus 128; K is a multiple of 4.
__attribute__((visibility("default"))) void sax_cpu_tile_bytes(const int8_t* values, size_t outputs,
                                                               size_t inputs, uint8_t* tiles) {
  sax::over_tiles(outputs, [&](size_t tile, size_t there) {
    uint8_t* to = tiles + tile * inputs * sax::kLanes;
    for (size_t i = 0; i < inputs; i += 4) {
      for (size_t lane = 0; lane < sax::kLanes; ++lane, to += 4) {
        const int8_t* at = values + (tile * sax::kLanes + lane) * inputs + i;
        for (size_t j = 0; j < 4; ++j) to[j] = static_cast<uint8_t>(lane < there ? at[j] + 128 : 128);
      }
    }
  });
}

// values i8[N, K] of -8 to 7 -> tiles u8[N / 16, K / 8, 16, 4], each plus 8, two to a byte: of eight
// the first four in the low nibbles, the others in the high ones. K is a multiple of 8.
__attribute__((visibility("default"))) void sax_cpu_tile_nibbles(const int8_t* values, size_t outputs,
                                                                 size_t inputs, uint8_t* tiles) {
  sax::over_tiles(outputs, [&](size_t tile, size_t there) {
    uint8_t* to = tiles + tile * inputs * sax::kLanes / 2;
    for (size_t i = 0; i < inputs; i += 8) {
      for (size_t lane = 0; lane < sax::kLanes; ++lane, to += 4) {
        const int8_t* at = values + (tile * sax::kLanes + lane) * inputs + i;
        for (size_t j = 0; j < 4; ++j) {
          int low = lane < there ? at[j] + 8 : 8, high = lane < there ? at[j + 4] + 8 : 8;
          to[j] = static_cast<uint8_t>((low & 15) | (high & 15) << 4);
        }
      }
    }
  });
}

}
