#include "threads.h"

#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

namespace sax {
namespace {

// A thread spins this long before it sleeps: longer than the gaps within a step, shorter than those
// between steps.
constexpr auto kPatience = std::chrono::microseconds(100);

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// How this thread computes: what it rounds to, and whether denormal numbers are zeros. XLA sets that of its own
// threads, so a row's bits would depend on which thread computed it.
#if defined(__SSE2__)
using Arithmetic = unsigned;
Arithmetic arithmetic() { return _mm_getcsr(); }
void compute_as(Arithmetic wanted) { _mm_setcsr(wanted); }
#elif defined(__aarch64__)
using Arithmetic = uint64_t;
Arithmetic arithmetic() {
  Arithmetic found;
  asm volatile("mrs %0, fpcr" : "=r"(found));
  return found;
}
void compute_as(Arithmetic wanted) { asm volatile("msr fpcr, %0" ::"r"(wanted)); }
#else
using Arithmetic = int;
Arithmetic arithmetic() { return 0; }
void compute_as(Arithmetic) {}
#endif

// Whether `done` holds before kPatience is over.
template <typename Done>
bool spin(Done done) {
  auto until = std::chrono::steady_clock::now() + kPatience;
  do {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < until);
  return false;
}

// Cores that the container's quota allows, or 0 if it has none.
int cores_of_quota() {
  FILE* file = fopen("/sys/fs/cgroup/cpu.max", "r");
  if (!file) return 0;
  long quota = 0, period = 0;
  int found = fscanf(file, "%ld %ld", &quota, &period);
  fclose(file);
  return found == 2 && period > 0 ? static_cast<int>((quota + period - 1) / period) : 0;
}

int count_threads() {
  if (const char* wanted = getenv("SAX_CPU_THREADS"); wanted && atoi(wanted) > 0) {
    return atoi(wanted) < 256 ? atoi(wanted) : 256;
  }
  int cores = static_cast<int>(std::thread::hardware_concurrency());
#if defined(__linux__)
  cpu_set_t allowed;
  if (!sched_getaffinity(0, sizeof allowed, &allowed)) cores = CPU_COUNT(&allowed);
#endif
  int quota = cores_of_quota();
  if (quota > 0 && quota < cores) cores = quota;
  return cores > 1 ? cores : 1;
}

std::atomic<void (*)()> called_before_sleep{nullptr};

class Pool {
 public:
  static Pool& get() {
    static Pool* pool = new Pool;  // never destroyed: threads may outlive static objects
    return *pool;
  }

  void share(size_t chunks, Chunk run, void* work) {
    if (chunks < 2 || threads() < 2 || !caller_.try_lock()) {
      for (size_t chunk = 0; chunk < chunks; ++chunk) run(work, chunk);
      return;
    }
    run_ = run, work_ = work, arithmetic_ = arithmetic();
    size_t count = static_cast<size_t>(threads());
    for (size_t i = 0; i < count; ++i) {
      ranges_[i].end = chunks * (i + 1) / count;
      ranges_[i].next.store(chunks * i / count, std::memory_order_relaxed);
    }
    inside_.fetch_or(1, std::memory_order_seq_cst);  // opens: what is above is seen by who enters
    round_.fetch_add(1, std::memory_order_seq_cst);
    if (asleep_.load(std::memory_order_seq_cst)) round_.notify_all();
    take_chunks(0);
    inside_.fetch_and(~1, std::memory_order_acq_rel);
    wait_for_workers();
    caller_.unlock();
  }

  // The id that Linux has for a thread other than the caller.
  int id(size_t thread) {
    ranges_[thread].id.wait(0, std::memory_order_acquire);
    return ranges_[thread].id.load(std::memory_order_acquire);
  }

 private:
  Pool() {
    for (int i = 1; i < threads(); ++i) std::thread([this, i] { work(i); }).detach();
  }

  void work(int own) {
#if defined(__linux__)
    ranges_[static_cast<size_t>(own)].id.store(static_cast<int>(syscall(SYS_gettid)), std::memory_order_release);
    ranges_[static_cast<size_t>(own)].id.notify_all();
#endif
    for (unsigned seen = 0;;) {
      seen = wait_for_other_than(seen);
      // Twice the workers inside, and one while there is work to take.
      if (inside_.fetch_add(2, std::memory_order_acq_rel) & 1) {
        compute_as(arithmetic_);
        take_chunks(own);
      }
      if (inside_.fetch_sub(2, std::memory_order_acq_rel) == 2) inside_.notify_one();
    }
  }

  // A worker that has lost its core to another process may keep its chunk for milliseconds: the
  // caller sleeps then. With sched_yield() in a loop it spent half of a busy machine on the calls.
  void wait_for_workers() {
    if (spin([this] { return inside_.load(std::memory_order_acquire) == 0; })) return;
    while (int left = inside_.load(std::memory_order_acquire)) inside_.wait(left);
  }

  // Those of its own range first, which lie next to each other in memory, then what others have left.
  void take_chunks(int own) {
    for (int i = 0; i < threads(); ++i) {
      Range& range = ranges_[static_cast<size_t>((own + i) % threads())];
      if (range.next.load(std::memory_order_relaxed) >= range.end) continue;
      for (size_t chunk; (chunk = range.next.fetch_add(1, std::memory_order_relaxed)) < range.end;) {
        run_(work_, chunk);
      }
    }
  }

  unsigned wait_for_other_than(unsigned seen) {
    if (!spin([&] { return round_.load(std::memory_order_acquire) != seen; })) {
      if (auto function = called_before_sleep.load(std::memory_order_acquire)) function();
      asleep_.fetch_add(1, std::memory_order_seq_cst);
      round_.wait(seen, std::memory_order_seq_cst);
      asleep_.fetch_sub(1, std::memory_order_relaxed);
    }
    return round_.load(std::memory_order_acquire);
  }

  struct alignas(64) Range {
    std::atomic<size_t> next{0};
    size_t end = 0;
    std::atomic<int> id{0};  // that Linux has for the thread; 0: it has not begun
  };

  std::mutex caller_;
  Chunk run_ = nullptr;
  void* work_ = nullptr;
  Arithmetic arithmetic_{};  // the caller's
  std::vector<Range> ranges_{static_cast<size_t>(threads())};  // of chunks, one per thread
  alignas(64) std::atomic<int> inside_{0};
  alignas(64) std::atomic<unsigned> round_{0};
  std::atomic<int> asleep_{0};
};

}  // namespace

int threads() {
  static const int count = count_threads();
  return count;
}

void before_sleep(void (*function)()) {
  called_before_sleep.store(function, std::memory_order_release);
}

void share(size_t chunks, Chunk run, void* work) { Pool::get().share(chunks, run, work); }

}  // namespace sax

extern "C" {

__attribute__((visibility("default"))) int sax_cpu_threads() { return sax::threads(); }

// Linux's ids of the threads in the order of their shares of the work, the first of which, 0, is the
// caller's; returns how many there are.
__attribute__((visibility("default"))) int sax_cpu_thread_ids(int* ids, int room) {
#if defined(__linux__)
  int count = sax::threads() < room ? sax::threads() : room;
  for (int i = 0; i < count; ++i) ids[i] = i ? sax::Pool::get().id(static_cast<size_t>(i)) : 0;
  return count;
#else
  return 0;
#endif
}

}
