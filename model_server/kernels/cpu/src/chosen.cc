// Finds the fastest instruction set that this machine has; SAX_CPU_KERNELS names another one, or
// several, of which the fastest is measured. A library for quick tests has only one, which build.py names in SAX_ONLY, and no tiles.

#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <string>

#include "kernels.h"
#include "machine.h"
#include "speed.h"
#include "threads.h"

namespace sax {

#define SAX_TABLE_(name) kernels_##name
#define SAX_TABLE(name) SAX_TABLE_(name)

#if defined(SAX_ONLY)
extern const Kernels SAX_TABLE(SAX_ONLY);
#elif defined(__x86_64__)
extern const Kernels kernels_avx512_bf16, kernels_avx512_vnni, kernels_avx2;
#elif defined(__aarch64__)
extern const Kernels kernels_neon_matrices, kernels_neon;
#endif
#if !defined(SAX_ONLY)
extern const Kernels kernels_portable;
#endif

namespace {

struct Choice {
  const Kernels* kernels;
  bool runs;
};

// The vector kernels of this name, or the fastest; null: this machine has no such instructions.
const Kernels* vectors(const char* wanted) {
#if defined(SAX_ONLY)
  const Choice choices[] = {{&SAX_TABLE(SAX_ONLY), true}};
#elif defined(__x86_64__)
  const Machine machine = this_machine();
  const Choice choices[] = {{&kernels_avx512_bf16, machine.bf16},
                            {&kernels_avx512_vnni, machine.vnni},
                            {&kernels_avx2, machine.avx2},
                            {&kernels_portable, true}};
#elif defined(__aarch64__)
  const Choice choices[] = {{&kernels_neon_matrices, this_machine().matrices},
                            {&kernels_neon, true},
                            {&kernels_portable, true}};
#else
  const Choice choices[] = {{&kernels_portable, true}};
#endif
  for (const Choice& each : choices) {
    if (each.runs && (!wanted || !strcmp(wanted, each.kernels->name))) return each.kernels;
  }
  return nullptr;
}

#if !defined(SAX_NO_TILES)

// The number that a variable of the environment has, or another one.
size_t number_in(const char* variable, size_t otherwise) {
  const char* wanted = getenv(variable);
  int number = wanted ? atoi(wanted) : 0;
  return number > 0 ? static_cast<size_t>(number) : otherwise;
}

// The fastest vector kernels with products and attention on tiles. Those of bf16 have the unit's order
// of sums for any number of rows, or a row's result would depend on how many there are.
Kernels on_tiles(const char* name, const TileKernels& tiles, bool measures) {
  Kernels made = *vectors(nullptr);
  made.name = name;
  made.plain = tiles.plain;
  made.bytes_of_many = tiles.bytes;
  made.many_rows = number_in("SAX_CPU_AMX_ROWS", 4);  // fewer wait for memory on either
  made.halves = tiles.halves;
  made.halves_of_many = tiles.halves_of_many;
  made.release = tiles.release;
  made.many_queries = number_in("SAX_CPU_AMX_QUERIES", 0);
  if (!made.many_queries) made.many_queries = measures ? queries_for_tiles(made) : 1;
  return made;
}

bool is_wanted(const char* wanted, const char* name) { return wanted && !strcmp(wanted, name); }

#endif

// Why a machine with AMX does not use it.
constexpr int kNotGranted = -1, kNotCompiled = -2;
std::atomic<int> missing{0};

// As `vectors`, with the unit for matrices; the model of one only by its name.
const Kernels* find_one(const char* wanted) {
#if !defined(SAX_NO_TILES)
#if defined(__x86_64__)
  if ((!wanted || is_wanted(wanted, "amx")) && this_machine().amx) {
    if (tiles_amx && tiles_granted()) {
      static const Kernels amx = on_tiles("amx", *tiles_amx, true);
      return &amx;
    }
    missing.store(tiles_amx ? kNotGranted : kNotCompiled, std::memory_order_relaxed);
  }
#endif
  if (is_wanted(wanted, "amx_model")) {
    static std::mutex choosing;
    static std::deque<Kernels> models;  // one of each choice: a thread may still use an older one
    std::lock_guard lock(choosing);
    return &models.emplace_back(on_tiles("amx_model", *tiles_amx_model, false));
  }
#endif
  return vectors(wanted);
}

std::mutex measuring;
std::string measured;  // what was, for the log

// The first of these, unless a later one is clearly faster: near ties would be decided by chance, and
// the next start would give other bits.
const Kernels* find_fastest(const std::string& names) {
  constexpr double clearly = 1.25;
  std::lock_guard lock(measuring);
  const Kernels* best = nullptr;
  double highest = 0;
  measured.clear();
  for (size_t at = 0; at <= names.size();) {
    size_t end = std::min(names.find(',', at), names.size());
    const Kernels* found = find_one(names.substr(at, end - at).c_str());
    at = end + 1;
    if (!found) continue;
    double speed = speed_of(*found);
    measured += (measured.empty() ? "" : ", ") + std::string(found->name) + " " +
                std::to_string(static_cast<long>(speed + 0.5));
    if (speed > highest * clearly) best = found, highest = speed;
  }
  return best;
}

const Kernels* find(const char* wanted) {
  if (wanted && strchr(wanted, ',')) return find_fastest(wanted);
#if defined(__x86_64__) && !defined(SAX_ONLY)
  // Where there is AMX, vectors of bf16 are slower than widened ones, and AMX may not be granted.
  if (!wanted && this_machine().amx) return find_fastest("amx,avx512_bf16,avx512_vnni");
#endif
  return find_one(wanted);
}

std::atomic<const Kernels*> in_use{nullptr};

void use(const Kernels* found) {
  if (found->release) before_sleep(found->release);
  in_use.store(found, std::memory_order_release);
}

}  // namespace

const Kernels& chosen() {
  const Kernels* found = in_use.load(std::memory_order_acquire);
  if (found) return *found;
  found = find(getenv("SAX_CPU_KERNELS"));
  if (!found) found = find(nullptr);
  use(found);
  return *found;
}

}  // namespace sax

extern "C" {

// The name of the instruction set in use.
__attribute__((visibility("default"))) const char* sax_cpu_name() { return sax::chosen().name; }

// Rows from which products in whole numbers use tiles of AMX; those of bf16 always do. 0: the machine
// has none; -1: the operating system does not grant them; -2: they were not compiled.
__attribute__((visibility("default"))) int sax_cpu_rows_on_tiles() {
  const sax::Kernels& kernels = sax::chosen();
  if (kernels.release) return static_cast<int>(kernels.many_rows);
  return sax::missing.load(std::memory_order_relaxed);
}

// Query rows of a sequence and head from which attention uses tiles, or SIZE_MAX as -1: for none.
__attribute__((visibility("default"))) int sax_cpu_queries_on_tiles() {
  size_t rows = sax::chosen().many_queries;
  return rows < INT32_MAX ? static_cast<int>(rows) : -1;
}

// Billions of operations per second of the instruction sets that were measured; "": none was.
__attribute__((visibility("default"))) const char* sax_cpu_measured() {
  sax::chosen();
  std::lock_guard lock(sax::measuring);
  static thread_local std::string told;
  told = sax::measured;
  return told.c_str();
}

// Uses another one from now on; returns 0 if this machine does not have it.
__attribute__((visibility("default"))) int sax_cpu_choose(const char* name) {
  const sax::Kernels* found = sax::find(name);
  if (found) sax::use(found);
  return found != nullptr;
}

}
