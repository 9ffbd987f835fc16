// The instructions of this machine, as the processor and the operating system tell.
//
// By hand, because __builtin_cpu_supports of Zig's runtime always answers no.

#pragma once

#if defined(__x86_64__)

#include <cpuid.h>
#include <stdint.h>

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace sax {

struct Machine {
  bool avx2, vnni, bf16, amx;  // each with what our kernels of that name use besides
};

// Registers that the operating system saves for each thread, a bit for each kind.
inline uint32_t saved_registers() {
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

inline Machine this_machine() {
  uint32_t a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return {};
  auto has = [](uint32_t word, auto... bits) { return ((word >> bits & 1) && ...); };
  if (!has(c, 27)) return {};  // xgetbv
  bool fma = has(c, 12, 28, 29);  // FMA, AVX, F16C
  uint32_t saved = saved_registers();
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return {};
  bool avx2 = fma && has(b, 5) && has(saved, 1, 2);
  // AVX-512 F, DQ, BW, VL and VNNI; its masks and registers
  bool vnni = avx2 && has(b, 16, 17, 30, 31) && has(c, 11) && has(saved, 5, 6, 7);
  // AMX's bf16, tiles and int8; their configuration and data
  bool amx = has(d, 22, 24, 25) && has(saved, 17, 18);
  bool bf16 = vnni && a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && has(a, 5);
  return {avx2, vnni, bf16, bf16 && amx};
}

// Whether the operating system gives this process tile registers: Linux does on request only, as
// each thread that uses them takes 8 KiB more.
inline bool tiles_granted() {
#if defined(__linux__)
  constexpr long request = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM
  return !syscall(SYS_arch_prctl, request, tile_data);
#else
  return false;
#endif
}

}  // namespace sax

#elif defined(__aarch64__)

#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace sax {

struct Machine {
  bool matrices;  // BFMMLA and USMMLA
};

inline Machine this_machine() {
#if defined(__linux__)
  constexpr unsigned long i8mm = 1ul << 13, bf16 = 1ul << 14;  // of AT_HWCAP2
  return {(getauxval(AT_HWCAP2) & (i8mm | bf16)) == (i8mm | bf16)};
#elif defined(__APPLE__)
  auto has = [](const char* name) {
    int told = 0;
    size_t size = sizeof told;
    return !sysctlbyname(name, &told, &size, nullptr, 0) && told;
  };
  return {has("hw.optional.arm.FEAT_BF16") && has("hw.optional.arm.FEAT_I8MM")};
#else
  return {};
#endif
}

}  // namespace sax

#endif
