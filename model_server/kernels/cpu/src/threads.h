// Threads that share the chunks of one piece of work at a time.

#pragma once

#include <stddef.h>

namespace sax {

// Threads that take part, the caller included: SAX_CPU_THREADS, or the cores this process may use.
int threads();

using Chunk = void (*)(void* work, size_t chunk);

// Calls run(work, chunk) for every chunk. Returns when all are done. While another caller's work is
// under way the caller does all of its own chunks: a second set of threads would only take turns.
void share(size_t chunks, Chunk run, void* work);

// From now on each thread of the pool calls this before it sleeps.
void before_sleep(void (*function)());

template <class Function>
void parallel(size_t chunks, Function&& function) {
  share(chunks, [](void* work, size_t chunk) { (*static_cast<Function*>(work))(chunk); }, &function);
}

}  // namespace sax
