// Finds the fastest instruction set that this machine has; SAX_CPU_KERNELS names a slower one.
// A library for quick tests has only one, which build.py names in SAX_ONLY.

#include <stdlib.h>
#include <string.h>

#include <atomic>

#include "kernels.h"
#include "machine.h"

namespace sax {

#define SAX_TABLE_(name) kernels_##name
#define SAX_TABLE(name) SAX_TABLE_(name)

#if defined(SAX_ONLY)
extern const Kernels SAX_TABLE(SAX_ONLY);
#elif defined(__x86_64__)
extern const Kernels kernels_avx512_bf16, kernels_avx512_vnni, kernels_avx2;
#elif defined(__aarch64__)
extern const Kernels kernels_neon;
#endif
#if !defined(SAX_ONLY)
extern const Kernels kernels_portable;
#endif

namespace {

struct Choice {
  const Kernels* kernels;
  bool runs;
};

// The kernels of this name, or the fastest; null: this machine has no such instructions.
const Kernels* find(const char* wanted) {
#if defined(SAX_ONLY)
  const Choice choices[] = {{&SAX_TABLE(SAX_ONLY), true}};
#elif defined(__x86_64__)
  const Machine machine = this_machine();
  const Choice choices[] = {{&kernels_avx512_bf16, machine.bf16},
                            {&kernels_avx512_vnni, machine.vnni},
                            {&kernels_avx2, machine.avx2},
                            {&kernels_portable, true}};
#elif defined(__aarch64__)
  const Choice choices[] = {{&kernels_neon, true}, {&kernels_portable, true}};
#else
  const Choice choices[] = {{&kernels_portable, true}};
#endif
  for (const Choice& each : choices) {
    if (each.runs && (!wanted || !strcmp(wanted, each.kernels->name))) return each.kernels;
  }
  return nullptr;
}

std::atomic<const Kernels*> in_use{nullptr};

}  // namespace

const Kernels& chosen() {
  const Kernels* found = in_use.load(std::memory_order_acquire);
  if (found) return *found;
  found = find(getenv("SAX_CPU_KERNELS"));
  if (!found) found = find(nullptr);
  in_use.store(found, std::memory_order_release);
  return *found;
}

}  // namespace sax

extern "C" {

// The name of the instruction set in use.
__attribute__((visibility("default"))) const char* sax_cpu_name() { return sax::chosen().name; }

// Uses another one from now on; returns 0 if this machine does not have it.
__attribute__((visibility("default"))) int sax_cpu_choose(const char* name) {
  const sax::Kernels* found = sax::find(name);
  if (found) sax::in_use.store(found, std::memory_order_release);
  return found != nullptr;
}

}
